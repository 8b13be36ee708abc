"""The rules that a corpus is held against: those of every corpus, and what each corpus promises besides."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SHIFT, SPLITS, UNKNOWN_CHANGE

Severity = Literal["critical", "warning"]
Table = Literal["pairs", "captions", "splits", "types", "drift"]


@dataclass(frozen=True)
class Rule:
    """One expectation on one table; a broken critical one stops the pipeline."""

    table: Table
    name: str
    says: str
    expectation: str
    """A class of ``great_expectations.expectations``."""
    arguments: dict[str, Any]
    severity: Severity = "critical"
    detail: str = ""
    """Column of the table that is listed beside the id of an offending row."""


@dataclass(frozen=True)
class Thresholds:
    """``params.validate``, and the longest caption in words."""

    most_words: int
    rarest_change: float
    duplicate_bits: int
    duplicate_difference: float
    drift: float
    largest_mask: float


@dataclass(frozen=True)
class Promise:
    """What is known of a corpus beforehand."""

    types: tuple[str, ...] = (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE)
    captions: int = 1
    """The fewest of a pair; fewer are a warning, none is critical."""
    severities: Mapping[str, Severity | None] = field(default_factory=dict)
    """By rule, where they differ from those of other corpora; None: the rule does not hold and is not asked."""


_UNTOLD = (NO_CHANGE, UNKNOWN_CHANGE)
_OURS: Mapping[str, Severity] = dict.fromkeys(
    ("mask_contradicted", "contradicts_label", "contradicts_mask"), "critical"
)

PROMISES: Mapping[str, Promise] = {
    "rendered": Promise(captions=2, severities=_OURS),
    "clevr_change": Promise(),
    "clevr_dc": Promise(),
    "spot_the_diff": Promise(types=_UNTOLD),
    "image_editing_request": Promise(types=_UNTOLD, severities={"picture_leaks": "warning"}),  # 161, as published
    "birds_to_words": Promise(types=_UNTOLD, severities={"picture_leaks": "warning"}),  # the pictures are few
    "levir_cc": Promise(types=_UNTOLD, captions=5, severities={"repeated": None}),  # the references of published scores
    "levir_mci": Promise(types=_UNTOLD, captions=5, severities={"repeated": None}),
    "table": Promise(),
}


def rules(corpus: str, limits: Thresholds) -> tuple[Rule, ...]:
    """What is asked of a corpus."""
    promise = PROMISES[corpus]
    found = (*_of_pairs(promise, limits), *_of_captions(limits), *_of_the_whole(limits))
    severities = {rule.name: promise.severities.get(rule.name, rule.severity) for rule in found}
    return tuple(replace(rule, severity=severity) for rule in found if (severity := severities[rule.name]))


def _of_pairs(promise: Promise, limits: Thresholds) -> tuple[Rule, ...]:
    return (
        Rule("pairs", "ids_unique", "ids are unique", "ExpectColumnValuesToBeUnique", {"column": "id"}),
        Rule("pairs", "splits_known", f"a split is train, val, test or {SHIFT}", *_in_set("split", [*SPLITS, SHIFT])),
        Rule(
            "pairs",
            "types_known",
            f"a change type is one of {', '.join(promise.types)}",
            *_in_set("change_type", list(promise.types)),
            detail="change_type",
        ),
        Rule("pairs", "has_caption", "a pair has a caption", *_at_least("captions", 1)),
        Rule(
            "pairs",
            "enough_captions",
            f"a pair has {promise.captions} captions or more",
            *_at_least("captions", promise.captions),
            "warning",
        ),
        _never("pairs", "group_leaks", "pairs of one group stay in one split"),
        _never("pairs", "picture_leaks", "a picture stays in one split"),
        _never(
            "pairs",
            "nearly_leaks",
            f"no picture has a double in another split (hashes within {limits.duplicate_bits} bits, pixels within "
            f"{limits.duplicate_difference:g})",
            "warning",
            detail="double",
        ),
        _never("pairs", "picture_missing", "pictures are there"),
        _never("pairs", "sizes_differ", "before and after have the same size"),
        _never("pairs", "type_contradicted", "a pair with a change type has two different pictures"),
        _never("pairs", "mask_missing", "a mask is there where the table names one"),
        _never("pairs", "mask_size", "a mask has the size of its pictures"),
        _never("pairs", "mask_values", "a mask has no values but 0, 128 and 255"),
        _never("pairs", "mask_contradicted", "a mask is empty exactly where nothing changed", "warning"),
        Rule(
            "pairs",
            "mask_large",
            f"a mask marks at most {limits.largest_mask:g} of the picture",
            *_at_most("mask_share", limits.largest_mask),
            "warning",
            detail="mask_share",
        ),
    )


def _of_captions(limits: Thresholds) -> tuple[Rule, ...]:
    return (
        Rule("captions", "not_empty", "a caption has a word", *_at_least("words", 1)),
        Rule(
            "captions",
            "short_enough",
            f"a caption has at most {limits.most_words} words (training cuts the rest)",
            *_at_most("words", limits.most_words),
            "warning",
            detail="caption",
        ),
        _never("captions", "repeated", "a pair has no caption twice", "warning", detail="caption"),
        _never(
            "captions",
            "contradicts_label",
            "a caption says that nothing changed exactly where the label does",
            "warning",
            detail="caption",
        ),
        _never(
            "captions",
            "contradicts_mask",
            "a caption says that nothing changed exactly where the mask is empty",
            "warning",
            detail="caption",
        ),
    )


def _of_the_whole(limits: Thresholds) -> tuple[Rule, ...]:
    return (
        Rule("splits", "filled", "a split has a pair", *_at_least("pairs", 1)),
        Rule(
            "types",
            "balanced",
            f"a change type has at least {limits.rarest_change:g} of the changed pairs",
            *_at_least("share", limits.rarest_change),
            "warning",
            detail="share",
        ),
        Rule(
            "drift",
            "alike",
            f"pictures of val and test are like those of train (within {limits.drift:g} standard deviations)",
            *_at_most("distance", limits.drift),
            "warning",
            detail="seen",
        ),
    )


def _never(table: Table, column: str, says: str, severity: Severity = "critical", detail: str = "") -> Rule:
    return Rule(table, column, says, *_in_set(column, [False]), severity, detail)


def _in_set(column: str, values: list) -> tuple[str, dict[str, Any]]:
    return "ExpectColumnValuesToBeInSet", {"column": column, "value_set": values}


def _at_least(column: str, least: int | float) -> tuple[str, dict[str, Any]]:
    return "ExpectColumnValuesToBeBetween", {"column": column, "min_value": least}


def _at_most(column: str, most: int | float) -> tuple[str, dict[str, Any]]:
    return "ExpectColumnValuesToBeBetween", {"column": column, "max_value": most}
