"""One HTML page that shows how a captioner did: numbers on top, test pairs with pictures below. Needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from procap.captioners.explanation import Explanation
from procap.datasets.images import overlaid
from procap.datasets.pairs import UNKNOWN_CHANGE
from procap.evaluation.explained import explained
from procap.evaluation.metrics import NAMES, SCALE
from procap.evaluation.page_template import TEMPLATE
from procap.evaluation.scores import TYPES, Told


@dataclass(frozen=True)
class Example:
    """A pair to show."""

    told: Told
    before: UInt8[np.ndarray, "h w 3"]
    after: UInt8[np.ndarray, "h w 3"]
    words: tuple[str, ...]
    chances: tuple[float, ...]
    """Of the words, each after those before it; empty where nobody knows."""
    change: float | None
    """The probability that anything changed, as the captioner has it."""
    why: Explanation | None
    drawn: Bool[np.ndarray, "h w"] | None = None
    """What was outlined; None: nothing, or the captioner never does."""
    true: Bool[np.ndarray, "h w"] | None = None
    """What would have been right to outline, of captioners that do."""

    @property
    def ends(self) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w 3"]]:
        """Both pictures, outlines on them."""
        if self.drawn is None and self.true is None:
            return self.before, self.after
        before, after = (overlaid(picture, self.drawn, self.true) for picture in (self.before, self.after))
        return before, after


LABELS = {"scene_graph_f1": "scene graph F1", "sentence_similarity": "similarity"}
GALLERIES = {
    "Best": "The types in turn, of each the pair whose sentence is nearest to its references.",
    "Worst": "The types in turn, of each the pair whose sentence is furthest from its references.",
    "Random": "Drawn by the seed from all that remain.",
}


OUTLINED = " Blue is what was outlined, white the edge of what should have been."


def choose(
    told: Sequence[Told], scores: Mapping[str, float], count: int, generator: np.random.Generator
) -> dict[str, list[int]]:
    """Numbers of up to ``count`` different pairs, a third for each of GALLERIES.

    ``scores`` (CIDEr by pair, where it is known) orders pairs after whether they are right, and before probability.
    """
    worst_first = sorted(
        range(len(told)), key=lambda n: (told[n].right, scores.get(told[n].id, 0.0), told[n].probability)
    )
    best = _in_turn(told, worst_first[::-1])[: (count + 2) // 3]
    worst = _in_turn(told, [n for n in worst_first if n not in best])[: (count + 1) // 3]
    rest = [n for n in range(len(told)) if n not in {*best, *worst}]
    drawn = generator.choice(rest, min(len(rest), count // 3), replace=False).tolist() if rest else []
    return dict(zip(GALLERIES, (best, worst, sorted(drawn)), strict=True))


def _in_turn(told: Sequence[Told], order: Sequence[int]) -> list[int]:
    """Pairs in this order, but the change types by turns."""
    columns = [[n for n in order if told[n].actual == kind] for kind in TYPES]
    return [n for turn in zip_longest(*columns) for n in turn if n is not None]


def page(
    captioner: str,
    corpus: str,
    selection: str,
    table: Mapping[str, Any],
    confusion: Mapping[str, Mapping[str, int]],
    galleries: Mapping[str, Sequence[Example]],
) -> str:
    """The page of ``metrics.json`` (``table``), how often each type was taken for which, and GALLERIES of pairs.

    ``selection`` is the split that picked the weights.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    outlined = OUTLINED if "segmentation" in table else ""
    return environment.from_string(TEMPLATE).render(
        captioner=captioner,
        corpus=corpus,
        selection=selection,
        pairs=table["pairs"],
        tiles=_tiles(table),
        scale=SCALE,
        types=_types(table),
        referring=_referring(table),
        confusion=_confusion(confusion),
        skipped=sorted(table["skipped"].items()),
        galleries=[
            {"name": name, "about": GALLERIES[name] + outlined, "cards": [_card(one) for one in examples]}
            for name, examples in galleries.items()
        ],
    )


def _tiles(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """The numbers in large type, with their bootstrap bounds where there are any."""
    tiles = []
    for key, label in (
        ("change_accuracy", "change / none"),
        ("change_type_accuracy", "change type"),
        ("referring_accuracy", "right object"),
    ):
        if key in table:
            low, high = (f"{100 * bound:.1f}" for bound in table[f"{key}_interval"])
            tiles.append({"label": label, "value": f"{100 * table[key]:.1f} %", "bounds": f"{low} – {high}"})
    outlines = table.get("segmentation", {})
    for key, label in (("segmentability_accuracy", "outline / none"), ("gIoU_changed", "gIoU, changed")):
        if key in outlines:
            low, high = (f"{100 * bound:.1f}" for bound in outlines[f"{key}_interval"])
            tiles.append({"label": label, "value": f"{100 * outlines[key]:.1f} %", "bounds": f"{low} – {high}"})
    for name in reversed(NAMES):
        if name in table:
            bounds = table.get(f"{name}_interval")
            text = f"{bounds[0]:.1f} – {bounds[1]:.1f}" if bounds else ""
            tiles.append({"label": LABELS.get(name, name), "value": f"{table[name]:.1f}", "bounds": text})
    return tiles


def _types(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per change type: how many, how often right, CIDEr; bars are per cent of the longest."""
    of = {kind: table["per_type"][kind] for kind in TYPES if kind in table["per_type"]}
    most = max((row.get("CIDEr", 0) for row in of.values()), default=0) or 1
    rows = []
    for kind, row in of.items():
        low, high = (f"{100 * bound:.0f}" for bound in row["accuracy_interval"])
        text = f"{100 * row['accuracy']:.0f} % [{low}, {high}]"
        bars = [{"text": text, "width": f"{100 * row['accuracy']:.1f}"}]
        if "CIDEr" in row:
            bars.append({"text": f"{row['CIDEr']:.1f}", "width": f"{100 * row['CIDEr'] / most:.1f}"})
        rows.append({"name": kind, "count": row["count"], "bars": bars})
    return rows


def _referring(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per part of what sentences say of a changed object: how many say it, how often it is true."""
    return [
        {"name": "new colour or material" if name == "becomes" else name, "count": of["count"],
         "text": f"{100 * of['accuracy']:.0f} %", "width": f"{100 * of['accuracy']:.1f}"}
        for name, of in table.get("referring", {}).items()
    ]  # fmt: skip


def _confusion(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Cells with their share of the row as a shade."""
    rows = []
    for actual, row in counts.items():
        total = sum(row.values())
        cells = [
            {
                "number": number,
                "shade": f"{number / total:.2f}",
                "look": f"{'same ' * (actual == stated)}{'deep' * (number > 0.55 * total)}".strip(),
            }
            for stated, number in row.items()
        ]
        rows.append({"name": actual, "cells": cells})
    return {"stated": list(next(iter(counts.values()))), "rows": rows}


def _card(one: Example) -> dict[str, Any]:
    told = one.told
    verdict, mark = _verdict(told)
    return {
        "id": told.id,
        "actual": "some change" if told.actual == UNKNOWN_CHANGE else told.actual,
        "verdict": verdict,
        "mark": mark,
        "probability": f"{told.probability:.3g}",
        "change": None if one.change is None else f"{one.change:.3g}",
        "references": told.references,
        "view": explained(*one.ends, one.words, one.chances, one.why),
    }


def _verdict(told: Told) -> tuple[str, str]:
    """In words, and as a badge's look."""
    if told.right:
        return "right", "right"
    if told.detected:
        return f"says {told.parsed}", "half"
    return "a change missed" if told.actual != "none" else "a change that is not there", "wrong"


def sheet(examples: Sequence[Example], side: int = 128) -> Any:
    """A PIL image with a line per pair: before, what was imagined, after; what is said of it, and a reference."""
    from PIL import Image, ImageDraw

    between = [() if one.why is None else one.why.frames[1:-1] for one in examples]
    strips = [[one.ends[0], *frames, one.ends[1]] for one, frames in zip(examples, between, strict=True)]
    width = max(map(len, strips), default=2) * (side + 2)
    picture = Image.new("RGB", (width + 420, max(1, len(examples)) * (side + 4)), "white")
    draw = ImageDraw.Draw(picture)
    for number, (one, strip) in enumerate(zip(examples, strips, strict=True)):
        top = number * (side + 4)
        for column, pixels in enumerate(strip):
            large = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
            picture.paste(large, (column * (side + 2), top))
        change = "" if one.change is None else f"   any change: {one.change:.2f}"
        lines = [
            f"{one.told.id}  {one.told.actual}{change}",
            f"{_verdict(one.told)[0]}: {one.told.sentence}",
            *one.told.references[:3],
        ]
        draw.multiline_text((width + 10, top + 4), "\n".join(lines), fill="black", spacing=5)
    return picture
