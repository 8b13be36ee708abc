"""From sentences to the table that ``evaluate`` writes: scores, accuracies, per change type, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE
from procap.datasets.scenes.language import grammatical
from procap.evaluation.bootstrap import interval
from procap.evaluation.change_words import change_type, says_change
from procap.evaluation.java import Meteor
from procap.evaluation.metrics import NAMES, Scores, score
from procap.evaluation.referring import PARTS, Referred
from procap.evaluation.similarity import Embed

MEANS = ("CIDEr", "ROUGE-L", "scene_graph_f1", "SPICE", "sentence_similarity")
"""Caption metrics that are means over pairs; BLEU and METEOR are not, so no interval is given for them."""
TYPES = (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE)


@dataclass(frozen=True)
class Told:
    """What a captioner said of one pair, beside the truth."""

    id: str
    group: str
    actual: str
    """The true change type."""
    sentence: str
    probability: float
    references: tuple[str, ...]
    referred: Referred | None = None
    """How well it points at what changed; None where nothing did, or the true scenes are not known."""

    @property
    def parsed(self) -> str:
        """The change type that the sentence states."""
        return change_type(self.sentence)

    @property
    def detected(self) -> bool:
        """Whether it is right about change or no change; a sentence without words is wrong."""
        return says_change(self.sentence) is (self.actual != NO_CHANGE)

    @property
    def right(self) -> bool:
        """Whether the stated type is the true one; where that is unknown, whether it says that there is a change."""
        return self.detected if self.actual == UNKNOWN_CHANGE else self.parsed == self.actual


def score_all(told: Sequence[Told], *, embed: Embed | None = None, meteor: Meteor | None = None) -> Scores:
    """Caption metrics of the pairs, with groups ``changed``, ``unchanged`` and one per change type that occurs."""
    return score(
        {one.id: one.sentence for one in told},
        {one.id: one.references for one in told},
        groups={name: [one.id for one in members] for name, members in _groups(told).items()},
        embed=embed,
        meteor=meteor,
    )


def with_pairs(scores: Scores, more: Mapping[str, Mapping[str, float]], told: Sequence[Told]) -> Scores:
    """Scores with further ones of every pair (metric -> pair -> score), and their means."""
    def means(members: Sequence[Told]) -> dict[str, float]:
        return {metric: float(np.mean([of[one.id] for one in members])) for metric, of in more.items()}

    groups = {name: {**scores.groups[name], **means(members)} for name, members in _groups(told).items()}
    pairs = scores.pairs | {metric: dict(of) for metric, of in more.items()}
    return Scores({**scores.corpus, **means(told)}, pairs, groups, scores.skipped)


def summary(told: Sequence[Told], scores: Scores, *, generator: np.random.Generator) -> dict[str, Any]:
    """What ``metrics.json`` holds.

    change_accuracy       share of all pairs whose sentence is right about change or no change
    change_type_accuracy  share of the changed pairs of a known type whose sentence states that type; one that says
                          "no change" or cannot be parsed is wrong
    referring_accuracy    share of the changed pairs of known scenes whose sentence points at what changed and nothing
                          else; ``referring``: of PARTS, how many sentences say one, and how often it is true
    grammatical           share of the sentences about rendered scenes that their captions' grammar can write
    ..._interval          95 % bootstrap bounds, pairs that share a picture drawn together
    per_type, changed, unchanged   the metrics of that group, its count, and as ``accuracy`` the share that is right:
                          about the type in per_type, about change or no change in the other two
    skipped               what is missing here or was done in another way, and why
    """
    skipped = dict(scores.skipped)
    table: dict[str, Any] = {"pairs": len(told), **scores.corpus}
    typed = [one for one in told if one.actual in CHANGE_TYPES]
    table["change_accuracy"] = np.mean([one.detected for one in told])
    table["change_accuracy_interval"] = _interval(told, [one.detected for one in told], generator)
    if typed:
        table["change_type_accuracy"] = np.mean([one.right for one in typed])
        table["change_type_accuracy_interval"] = _interval(typed, [one.right for one in typed], generator)
    else:
        skipped["change_type_accuracy"] = "no pair of this split has a known change type"
    table |= _mean_intervals(told, scores, ("CIDEr",), generator) | _referring(told, generator, skipped)
    groups = _groups(told)
    for name in ("changed", "unchanged"):
        if name in groups:
            right = [one.detected for one in groups[name]]
            table[name] = _group(groups[name], right, scores.groups[name], generator)
    table["per_type"] = {
        name: _group(members, [one.right for one in members], scores.groups[name], generator)
        for name, members in groups.items()
        if name in TYPES
    }
    # last, so that one which a machine lacks moves no other's draws
    table |= _mean_intervals(told, scores, MEANS[1:], generator)
    return rounded({**table, "skipped": skipped})


def _mean_intervals(
    told: Sequence[Told], scores: Scores, names: Sequence[str], generator: np.random.Generator
) -> dict[str, list[float]]:
    return {
        f"{name}_interval": _interval(told, [scores.pairs[name][one.id] for one in told], generator)
        for name in names
        if name in scores.pairs
    }


def _group(
    members: Sequence[Told], right: Sequence[bool], scores: Mapping[str, float], generator: np.random.Generator
) -> dict[str, Any]:
    accuracy = {"accuracy": np.mean(right), "accuracy_interval": _interval(members, right, generator)}
    return {"count": len(members), **accuracy, **scores}


def _referring(told: Sequence[Told], generator: np.random.Generator, skipped: dict[str, str]) -> dict[str, Any]:
    known = [(one, one.referred) for one in told if one.referred is not None]
    if not known:
        skipped["referring_accuracy"] = "the true scenes are known of rendered pairs only"
        return {}
    right = [referred.right for _, referred in known]
    parts = {name: [referred.parts[name] for _, referred in known if name in referred.parts] for name in PARTS}
    return {
        "referring_accuracy": np.mean(right),
        "referring_accuracy_interval": _interval([one for one, _ in known], right, generator),
        "referring": {
            name: {"count": len(true), "accuracy": np.mean(true)} for name, true in parts.items() if true
        },
        "grammatical": np.mean([grammatical(one.sentence) for one in told]),
    }  # fmt: skip


def type_rows(table: Mapping[str, Any]) -> list[list[Any]]:
    """``per_type.csv``: a heading, then a row per change type, in the order of TYPES."""
    names = [name for name in NAMES if name in table]
    rows: list[list[Any]] = [["change_type", "count", "accuracy", "low", "high", *names]]
    for kind in TYPES:
        if kind in table["per_type"]:
            of = table["per_type"][kind]
            rows.append([kind, of["count"], of["accuracy"], *of["accuracy_interval"], *(of[name] for name in names)])
    return rows


def confusion(told: Sequence[Told]) -> dict[str, dict[str, int]]:
    """How many pairs of each true type (outer key) were given each type (inner key); only types that occur."""
    actual = [kind for kind in TYPES if any(one.actual == kind for one in told)]
    shown = [kind for kind in TYPES if kind in actual or any(one.parsed == kind for one in told)]
    counts = {kind: dict.fromkeys(shown, 0) for kind in actual}
    for one in told:
        counts[one.actual][one.parsed] += 1
    return counts


def predictions(told: Sequence[Told], scores: Scores) -> dict[str, dict[str, Any]]:
    """What ``predictions.json`` holds per pair: enough to score, compare and resample again without a model."""
    return {
        one.id: {
            "sentence": one.sentence,
            "probability": rounded(one.probability),
            "references": list(one.references),
            "group": one.group,
            "change_type": one.actual,
            "parsed": one.parsed,
            "change_right": one.detected,
            "type_right": one.right,
            "referring_right": None if one.referred is None else one.referred.right,
            "scores": rounded({metric: pairs[one.id] for metric, pairs in scores.pairs.items()}),
        }
        for one in told
    }


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of nested tables under names like ``per_type/color/CIDEr``; bounds and texts are left out."""
    out: dict[str, float] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            out.update(flat(value, f"{prefix}{name}/"))
        elif isinstance(value, int | float):
            out[prefix + name] = float(value)
    return out


def rounded(value: Any) -> Any:
    """Numbers as plain Python ones, 6 digits after the point, in nested tables and lists."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(float(value), 6) if isinstance(value, float | np.floating) else value


def _groups(told: Sequence[Told]) -> dict[str, list[Told]]:
    """The groups that have members."""
    groups = {
        "changed": [one for one in told if one.actual != NO_CHANGE],
        "unchanged": [one for one in told if one.actual == NO_CHANGE],
        **{kind: [one for one in told if one.actual == kind] for kind in TYPES},
    }
    return {name: members for name, members in groups.items() if members}


def _interval(told: Sequence[Told], values: Sequence[float | bool], generator: np.random.Generator) -> list[float]:
    clusters = np.unique([one.group for one in told], return_inverse=True)[1]
    return list(interval(np.asarray(values, np.float64), generator=generator, clusters=clusters))
