"""What ``evaluate`` says of a captioner that outlines changes, where the corpus has masks. No step of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from procap.datasets.pairs import Pairs
from procap.evaluation.metrics import Scores
from procap.evaluation.scores import Told, with_pairs
from procap.evaluation.segmentation import Outline, difference, pair_scores, segmentation

Drawn = Sequence[Any]
"""Per pair a mask (h w), as a tensor or an array, or None."""


@dataclass(frozen=True)
class Outlines:
    """Measures the outlines of a bundle."""

    bundle: Any
    seed: int

    def add(self, pairs: Pairs, told: Sequence[Told], drawn: Drawn, scores: Scores) -> Scores:
        """The scores, and IoU and boundary F of every pair, where each has a mask."""
        outlines = self._outlines(pairs, told, drawn)
        return with_pairs(scores, pair_scores(outlines), told) if len(outlines) == len(told) else scores

    def of(self, pairs: Pairs, told: Sequence[Told], drawn: Drawn) -> dict[str, Any]:
        """``segmentation`` of the pairs that have masks, and as ``difference`` that of the thresholded difference."""
        outlines = self._outlines(pairs, told, drawn)
        if not outlines:
            return {}
        naive = self._outlines(pairs, told, list(map(difference, pairs.before(), pairs.after())))
        found, baseline = (segmentation(some, generator=np.random.default_rng(self.seed)) for some in (outlines, naive))
        return {"segmentation": {**found, "difference": baseline}}

    def _outlines(self, pairs: Pairs, told: Sequence[Told], drawn: Drawn) -> list[Outline]:
        if not getattr(self.bundle.captioner, "segments", False):
            return []
        masked = np.flatnonzero(pairs.table["mask"] >= 0)
        true = pairs.changed(masked)
        return [
            Outline(told[row].id, told[row].group, told[row].actual, _sized(drawn[row], mask.shape), mask)
            for row, mask in zip(masked.tolist(), true, strict=True)
        ]


def _sized(mask: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """A mask in the size of the true one."""
    from PIL import Image

    if mask is None:
        return None
    plain = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask, bool)
    return plain if plain.shape == shape else np.array(Image.fromarray(plain).resize(shape[::-1]))
