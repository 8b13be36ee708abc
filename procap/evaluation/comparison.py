"""Several captioners on the same test pairs: means and deviations over trainings, and differences with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from procap.datasets.pairs import CHANGE_TYPES
from procap.errors import BadInput
from procap.evaluation.bootstrap import difference_interval, interval
from procap.evaluation.metrics import NAMES
from procap.evaluation.scores import MEANS, TYPES
from procap.evaluation.segmentation import OUTLINES

ACCURACIES = {
    "change_accuracy": "change_right",
    "change_type_accuracy": "type_right",
    "referring_accuracy": "referring_right",
}
"""Shares in [0, 1], and what of a prediction each is the mean of."""

MEASURES = (*ACCURACIES, *NAMES, *OUTLINES)
SEED = 0


@dataclass(frozen=True)
class System:
    """A captioner, trained once or several times."""

    name: str
    predictions: Sequence[Mapping[str, Mapping[str, Any]]]
    """``predictions.json`` of each training."""
    metrics: Sequence[Mapping[str, Any]]
    """``metrics.json`` of each training."""
    published: Mapping[str, float]
    """Figures of a paper, by metric."""


@dataclass(frozen=True)
class Cell:
    """What one metric says of one system."""

    values: tuple[float, ...]
    """Of each training."""
    interval: tuple[float, float] | None = None
    """95 % bounds of the difference from the base system; None for the base and where there is none."""
    difference: float | None = None
    published: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """Over trainings; None for one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def differs(self) -> bool:
        """Whether the interval excludes zero: only then is a difference called one."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


Comparison = dict[str, dict[str, Cell]]
"""system -> metric -> cell; a metric that was skipped for a system is absent."""


def compare(systems: Sequence[System], base: str) -> Comparison:
    """Compare all with the system called ``base``.

    Raises BadInput where they were not evaluated on the same pairs.
    """
    (first,) = (system for system in systems if system.name == base)
    for system in systems:
        _same_pairs(first, system)
    return {
        system.name: {
            metric: _cell(metric, system, first)
            for metric in MEASURES
            if all(metric in table for table in system.metrics)
        }
        for system in systems
    }


def per_type(system: System) -> dict[str, tuple[float, float, float]]:
    """Share of the pairs of each change type that is right, mean over trainings, and its 95 % bounds over pairs."""
    first = system.predictions[0]
    shares = {}
    for kind in TYPES:
        names = [name for name, told in first.items() if told["change_type"] == kind]
        if names:
            right = [[float(told[name]["type_right"]) for name in names] for told in system.predictions]
            groups = np.unique([first[name]["group"] for name in names], return_inverse=True)[1]
            bounds = interval(np.mean(right, axis=0), generator=np.random.default_rng(SEED), clusters=groups)
            shares[kind] = (float(np.mean(right)), *bounds)
    return shares


def telling_pairs(systems: Sequence[System], count: int) -> list[str]:
    """Up to ``count`` pairs on which the systems differ most: in being right about the type, then in CIDEr."""
    names = list(systems[0].predictions[0])

    def spread(name: str) -> tuple[float, float]:
        right = [np.mean([told[name]["type_right"] for told in system.predictions]) for system in systems]
        score = [np.mean([told[name]["scores"].get("CIDEr", 0) for told in system.predictions]) for system in systems]
        return float(np.ptp(right)), float(np.ptp(score))

    ranked = sorted(((spread(name), name) for name in names), key=lambda one: (-one[0][0], -one[0][1], one[1]))
    return [name for (right, score), name in ranked[:count] if right or score]


def _same_pairs(base: System, other: System) -> None:
    wanted = base.predictions[0]
    for told in other.predictions:
        if told.keys() != wanted.keys() or any(told[name]["references"] != wanted[name]["references"] for name in told):
            raise BadInput(
                "they were not evaluated on the same pairs",
                where=f"{base.name} and {other.name}",
                expected="one corpus, split and seed for all",
                do="evaluate them on the same data",
            )


def _cell(metric: str, system: System, base: System) -> Cell:
    values = tuple(float(table[metric]) for table in system.metrics)
    published = system.published.get(metric)
    if system is base or not all(metric in table for table in base.metrics):
        return Cell(values, published=published)
    difference = float(np.mean(values) - np.mean([table[metric] for table in base.metrics]))
    if metric not in (*ACCURACIES, *MEANS, *OUTLINES):
        return Cell(values, None, difference, published)
    names = [
        name
        for name, told in base.predictions[0].items()
        if metric != "change_type_accuracy" or told["change_type"] in CHANGE_TYPES
        if metric != "referring_accuracy" or told["referring_right"] is not None
    ]
    groups = np.unique([base.predictions[0][name]["group"] for name in names], return_inverse=True)[1]
    interval = difference_interval(
        _values(metric, base, names),
        _values(metric, system, names),
        generator=np.random.default_rng(SEED),
        clusters=groups,
    )
    return Cell(values, interval, difference, published)


def _values(metric: str, system: System, names: Sequence[str]) -> Float[np.ndarray, "r b"]:
    """A number per training and pair."""
    return np.array(
        [
            [float(told[name][ACCURACIES[metric]] if metric in ACCURACIES else told[name]["scores"][metric])
             for name in names]
            for told in system.predictions
        ]
    )  # fmt: skip
