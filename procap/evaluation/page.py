"""One HTML page that shows how a captioner did: numbers on top, test pairs with pictures below. Needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from jaxtyping import UInt8

from procap.datasets.pairs import UNKNOWN_CHANGE
from procap.evaluation.embedded import picture
from procap.evaluation.metrics import NAMES
from procap.evaluation.page_template import TEMPLATE
from procap.evaluation.scores import TYPES, Told


@dataclass(frozen=True)
class Example:
    """A pair to show."""

    told: Told
    before: UInt8[np.ndarray, "h w 3"]
    after: UInt8[np.ndarray, "h w 3"]
    imagined: UInt8[np.ndarray, "k h2 w2 3"] | None
    """What the captioner imagines between them."""


def choose(told: Sequence[Told], count: int) -> list[int]:
    """Numbers of up to ``count`` pairs: the types in turn, of each right and wrong ones in turn, first ones first."""
    columns = []
    for kind in TYPES:
        of = [(number, one.right) for number, one in enumerate(told) if one.actual == kind]
        halves = zip_longest([n for n, right in of if right], [n for n, right in of if not right])
        columns.append([number for number in chain.from_iterable(halves) if number is not None])
    turns = [number for turn in zip_longest(*columns) for number in turn if number is not None]
    return sorted(turns[:count], key=lambda number: (TYPES.index(told[number].actual), number))


def page(
    captioner: str,
    corpus: str,
    selection: str,
    table: Mapping[str, Any],
    confusion: Mapping[str, Mapping[str, int]],
    examples: Sequence[Example],
) -> str:
    """The page of ``metrics.json`` (``table``), how often each type was taken for which, and the chosen pairs.

    ``selection`` is the split that picked the weights.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(
        captioner=captioner,
        corpus=corpus,
        selection=selection,
        pairs=table["pairs"],
        tiles=_tiles(table),
        types=_types(table),
        confusion=_confusion(confusion),
        skipped=sorted(table["skipped"].items()),
        examples=[_card(one) for one in examples],
    )


def _tiles(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """The numbers in large type, with their bootstrap bounds where there are any."""
    tiles = []
    for key, label in (("change_accuracy", "change / none"), ("change_type_accuracy", "change type")):
        if key in table:
            low, high = (f"{100 * bound:.1f}" for bound in table[f"{key}_interval"])
            tiles.append({"label": label, "value": f"{100 * table[key]:.1f} %", "bounds": f"{low} – {high}"})
    for name in reversed(NAMES):
        if name in table:
            bounds = table.get(f"{name}_interval")
            text = f"{bounds[0]:.1f} – {bounds[1]:.1f}" if bounds else ""
            tiles.append({"label": name, "value": f"{table[name]:.1f}", "bounds": text})
    return tiles


def _types(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per change type: how many, how often right, CIDEr; bars are per cent of the longest."""
    of = {kind: table["per_type"][kind] for kind in TYPES if kind in table["per_type"]}
    most = max((row.get("CIDEr", 0) for row in of.values()), default=0) or 1
    rows = []
    for kind, row in of.items():
        bars = [{"text": f"{100 * row['accuracy']:.0f} %", "width": f"{100 * row['accuracy']:.1f}"}]
        if "CIDEr" in row:
            bars.append({"text": f"{row['CIDEr']:.1f}", "width": f"{100 * row['CIDEr'] / most:.1f}"})
        rows.append({"name": kind, "count": row["count"], "bars": bars})
    return rows


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
    if told.right:
        verdict, mark = "right", "right"
    elif told.detected:
        verdict, mark = f"says {told.parsed}", "half"
    else:
        verdict, mark = "a change missed" if told.actual != "none" else "a change that is not there", "wrong"
    imagined = [] if one.imagined is None else list(one.imagined)
    return {
        "id": told.id,
        "actual": "some change" if told.actual == UNKNOWN_CHANGE else told.actual,
        "verdict": verdict,
        "mark": mark,
        "sentence": told.sentence,
        "probability": f"{told.probability:.3g}",
        "references": told.references,
        "before": picture(one.before),
        "imagined": [picture(frame) for frame in imagined],
        "after": picture(one.after),
    }
