"""What ``prepare`` leaves for every later step: a table of pairs and the pictures it points to."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from procap.datasets.corpus import CHANGE_TYPES, NO_CHANGE, SHIFT, SPLITS, UNKNOWN_CHANGE
from procap.datasets.shards import Shards
from procap.errors import BadInput

COLUMNS = ("id", "group", "split", "change_type", "captions", "before", "after", "mask")
"""Columns of ``pairs.parquet``, one row per pair.

id           unique text
group        pairs with the same group share a picture and stay in one split
split        train, val or test, or test_shift (rendered scenes unlike all others, scored apart)
change_type  one of CHANGE_TYPES, NO_CHANGE or UNKNOWN_CHANGE (not told, or changes of several types)
captions     list of sentences, any of which describes the pair
before       row in the ``images`` shards (uint8, h w 3)
after        likewise
mask         row in the ``masks`` shards (uint8, h w; 255 where the change shows, before and after united; where masks
             tell two kinds of change apart, 128 is the first kind and 255 the second), -1: none
"""

__all__ = ("CHANGE_TYPES", "COLUMNS", "NO_CHANGE", "SHIFT", "SPLITS", "UNKNOWN_CHANGE", "Pairs")


@dataclass(frozen=True)
class Pairs:
    """The prepared corpus on disk: ``table`` has COLUMNS; pictures are read when they are asked for."""

    folder: Path
    table: Any  # pandas.DataFrame, one row per pair, index 0..n-1 in the file's order

    @staticmethod
    def read(folder: Path) -> "Pairs":
        """Open ``data/prepare``."""
        import pandas as pd

        path = folder / "pairs.parquet"
        if not path.exists():
            raise BadInput(
                "the prepared corpus is not there",
                where=str(path),
                expected="the table that the step `prepare` writes",
                do="run `dvc repro prepare`",
            )
        return Pairs(folder, pd.read_parquet(path))

    def split(self, *names: str) -> "Pairs":
        """The pairs of these splits, in the table's order, renumbered from 0."""
        return Pairs(self.folder, self.table[self.table["split"].isin(names)].reset_index(drop=True))

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def images(self) -> Shards:
        return Shards(self.folder, "images")

    def changed(self, rows: np.ndarray) -> np.ndarray:
        """Where the masks of these pairs say that the change shows, bool (rows, h, w); False where one has no mask."""
        numbers = self.table["mask"].to_numpy()[rows]
        out = np.zeros((len(numbers), *self.images.shape[1:3]), bool)
        if (numbers >= 0).any():
            out[numbers >= 0] = self.masks[numbers[numbers >= 0]] > 0
        return out

    @cached_property
    def masks(self) -> Shards:
        return Shards(self.folder, "masks")

    def before(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Pictures before, uint8 (rows, h, w, 3)."""
        return self.images[self.table["before"].to_numpy()[rows]]

    def after(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Pictures after, uint8 (rows, h, w, 3)."""
        return self.images[self.table["after"].to_numpy()[rows]]
