"""The true procedures of rendered pairs, drawn from what ``prepare`` keeps of each scene (``scenes.jsonl``)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from procap.datasets.scenes.change import Change, procedure
from procap.datasets.scenes.scene import Scene
from procap.shapes import UInt8


@dataclass(frozen=True)
class TruePair:
    before: Scene
    after: Scene
    change: Change | None
    """None: only camera and lamps differ."""

    def frames(self, count: int, size: int, samples: int) -> UInt8[np.ndarray, "l h w 3"]:
        """The frames between, ``size`` pixels a side, from ``samples`` rays per pixel side."""
        from procap.datasets.scenes.raytrace import render

        views = procedure(self.before, self.after, self.change, count)
        return np.stack([render(view, size, samples).rgb for view in views])


def read_true_pairs(path: Path, ids: Iterable[str]) -> list[TruePair]:
    """Of the pairs with these ids, in this order."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    at = {name: (line, which) for line in lines for which, name in enumerate(line["ids"])}
    return [_true_pair(*at[name]) for name in ids]


def _true_pair(line: dict[str, Any], which: int) -> TruePair:
    """``which``: 0 the changed pair of the scene, 1 its distractor."""
    from pydantic import TypeAdapter

    scene, change = TypeAdapter(Scene), TypeAdapter(Change)
    before, after = (scene.validate_python(line[name]) for name in ("before", ("changed", "distractor")[which]))
    return TruePair(before, after, None if which else change.validate_python(line["change"]))
