"""The true procedures of rendered pairs, drawn from what ``prepare`` keeps of each scene (``scenes.jsonl``)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from procap.datasets.scenes.change import Change, change_masks, procedure
from procap.datasets.scenes.scene import Scene
from procap.shapes import Bool, UInt8


@dataclass(frozen=True)
class TruePair:
    before: Scene
    after: Scene
    changes: tuple[Change, ...]
    """Without any, only camera and lamps differ."""

    def frames(self, count: int, size: int, samples: int) -> UInt8[np.ndarray, "l h w 3"]:
        """The frames between, ``size`` pixels a side, from ``samples`` rays per pixel side."""
        from procap.datasets.scenes.raytrace import render

        views = procedure(self.before, self.after, self.changes, count)
        return np.stack([render(view, size, samples).rgb for view in views])

    def masks(self, size: int, samples: int) -> Bool[np.ndarray, "2 h w"]:
        """Where each of the two pictures shows a changed object; ``masks`` of ``prepare`` unites them."""
        from procap.datasets.scenes.raytrace import render

        before, after = (render(scene.view(), size, samples) for scene in (self.before, self.after))
        return change_masks(self.changes, before, after)


def read_true_pairs(path: Path, ids: Iterable[str]) -> list[TruePair]:
    """Of the pairs with these ids, in this order."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    at = {name: (line, which) for line in lines for which, name in enumerate(line["ids"])}
    return [_true_pair(*at[name]) for name in ids]


def _true_pair(line: dict[str, Any], which: int) -> TruePair:
    """``which``: 0 the changed pair of the scene, 1 its distractor."""
    from pydantic import TypeAdapter

    scene, changes = TypeAdapter(Scene), TypeAdapter(tuple[Change, ...])
    before, after = (scene.validate_python(line[name]) for name in ("before", ("changed", "distractor")[which]))
    return TruePair(before, after, () if which else changes.validate_python(line["changes"]))
