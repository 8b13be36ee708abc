"""What must hold of a corpus before anything is trained on it, judged by Great Expectations.

Great Expectations sees tables only: ``pair_facts`` and ``caption_facts`` look at pictures, masks and words and put
what they find into columns; RULES say which values are allowed.
"""

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SHIFT, SPLITS, UNKNOWN_CHANGE, Pairs
from procap.datasets.shards import Shards
from procap.datasets.vocabulary import tokenize

LISTED = 10
"""Offending rows that a finding names."""


@dataclass(frozen=True)
class Rule:
    """One expectation on one table; a broken critical one stops the pipeline."""

    table: Literal["pairs", "captions", "splits", "types"]
    name: str
    says: str
    expectation: str
    """A class of ``great_expectations.expectations``."""
    arguments: dict[str, Any]
    severity: Literal["critical", "warning"] = "critical"


@dataclass(frozen=True)
class Finding:
    """What became of a rule."""

    rule: Rule
    success: bool
    checked: int
    unexpected: int = 0
    ids: list[str] = field(default_factory=list)
    """Of the first offending rows."""

    def __str__(self) -> str:
        named = ", ".join(self.ids) + (", ..." if self.unexpected > len(self.ids) else "")
        return f"{self.rule.says}; broken by {self.unexpected} of {self.checked}" + (f": {named}" if named else "")


def rules(most_words: int, rarest_change: int | float) -> tuple[Rule, ...]:
    """All rules; a caption has at most ``most_words`` words, a change type this share or more of the changed pairs."""

    def never(table: Literal["pairs", "captions"], column: str, says: str, *severity: Any) -> Rule:
        return Rule(table, column, says, "ExpectColumnValuesToBeInSet", _among(column, [False]), *severity)

    types = [*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE]
    return (
        Rule("pairs", "ids_unique", "ids are unique", "ExpectColumnValuesToBeUnique", {"column": "id"}),
        Rule("pairs", "splits_known", f"a split is train, val, test or {SHIFT}", *_in_set("split", [*SPLITS, SHIFT])),
        Rule("pairs", "types_known", f"a change type is one of {', '.join(types)}", *_in_set("change_type", types)),
        Rule("pairs", "has_caption", "a pair has a caption", *_at_least("captions", 1)),
        never("pairs", "group_leaks", "pairs of one group stay in one split"),
        never("pairs", "picture_leaks", "a picture stays in one split"),
        never("pairs", "picture_missing", "pictures are there"),
        never("pairs", "sizes_differ", "before and after have the same size"),
        never("pairs", "mask_missing", "a mask is there where the table names one"),
        never("pairs", "type_contradicted", "a pair with a change type has two different pictures"),
        never("pairs", "mask_contradicted", "a mask is empty exactly where nothing changed", "warning"),
        Rule("captions", "not_empty", "a caption has a word", *_at_least("words", 1)),
        Rule(
            "captions",
            "short_enough",
            f"a caption has at most {most_words} words (training cuts the rest)",
            "ExpectColumnValuesToBeBetween",
            {"column": "words", "max_value": most_words},
            "warning",
        ),
        never("captions", "repeated", "a pair has no caption twice", "warning"),
        Rule("splits", "filled", "a split has a pair", *_at_least("pairs", 1)),
        Rule(
            "types",
            "balanced",
            f"a change type has at least {rarest_change:g} of the changed pairs",
            *_at_least("share", rarest_change),
            "warning",
        ),
    )


def _among(column: str, values: list) -> dict[str, Any]:
    return {"column": column, "value_set": values}


def _in_set(column: str, values: list) -> tuple[str, dict[str, Any]]:
    return "ExpectColumnValuesToBeInSet", _among(column, values)


def _at_least(column: str, least: int | float) -> tuple[str, dict[str, Any]]:
    return "ExpectColumnValuesToBeBetween", {"column": column, "min_value": least}


def pair_facts(pairs: Pairs) -> Any:
    """One row per pair: what the table says, the number of captions, and as truth values what is wrong with it."""
    table, images = pairs.table, pairs.images
    facts = table[["id", "group", "split", "change_type"]].copy()
    facts["captions"] = table["captions"].map(len)
    digests = [_digests(images, table[end].to_numpy()) for end in ("before", "after")]
    there = [np.array([digest is not None for digest in end], bool) for end in digests]
    facts["picture_missing"] = ~(there[0] & there[1])
    facts["group_leaks"] = _in_several(table["group"], table["split"])
    homes: dict[bytes, set[str]] = {}
    for end in digests:
        for digest, split in zip(end, table["split"], strict=True):
            if digest is not None:
                homes.setdefault(digest, set()).add(split)
    leaky = {digest for digest, splits in homes.items() if len(splits) > 1}
    facts["picture_leaks"] = [bool(leaky & set(pair)) for pair in zip(*digests, strict=True)]
    facts["sizes_differ"] = _sizes_differ(images, table["before"].to_numpy(), table["after"].to_numpy())
    changed = (table["change_type"] != NO_CHANGE).to_numpy()
    equal = np.array([a is not None and a == b for a, b in zip(*digests, strict=True)], bool)
    facts["type_contradicted"] = changed & equal
    facts["mask_missing"], facts["mask_contradicted"] = _mask_facts(pairs, changed)
    return facts


def _digests(images: Shards, rows: np.ndarray) -> list[bytes | None]:
    """Of the bytes of each picture; None where the row number points nowhere."""
    known = {}
    for row in np.unique(rows[(rows >= 0) & (rows < len(images))]):
        shard = _shard_of(images, row)  # shards may differ in size, which reading several rows at once does not allow
        known[row] = sha256(images.arrays[shard][row - images.starts[shard]].tobytes()).digest()
    return [known.get(row) for row in rows]


def _in_several(keys: Any, splits: Any) -> Any:
    return splits.groupby(keys).transform("nunique") > 1


def _sizes_differ(images: Shards, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    height, width = np.array([array.shape[1:3] for array in images.arrays]).T
    here, there = _shard_of(images, before), _shard_of(images, after)
    return (height[here] != height[there]) | (width[here] != width[there])


def _shard_of(images: Shards, rows: Any) -> Any:
    return np.searchsorted(images.starts, np.clip(rows, 0, len(images) - 1), side="right") - 1


def _mask_facts(pairs: Pairs, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mask is missing, mask says the opposite of the change type), per pair."""
    rows = pairs.table["mask"].to_numpy()
    if (rows == -1).all():
        return np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    masks = Shards(pairs.folder, "masks")
    missing = (rows < -1) | (rows >= len(masks))
    marked = np.array([0 <= row < len(masks) and masks[int(row)].any() for row in rows], bool)
    return missing, (rows != -1) & ~missing & (marked != changed)


def caption_facts(pairs: Pairs) -> Any:
    """One row per caption: id of its pair, how many words it has, whether the pair has it twice (case aside)."""
    facts = pairs.table[["id", "split", "change_type", "captions"]].explode("captions", ignore_index=True)
    facts = facts.rename(columns={"captions": "caption"}).dropna(subset="caption", ignore_index=True)
    tokens = [tokenize(caption) for caption in facts["caption"]]
    facts["words"] = [len(words) for words in tokens]
    facts["repeated"] = facts.assign(said=[" ".join(words) for words in tokens]).duplicated(["id", "said"])
    return facts


def split_facts(pairs: Pairs) -> Any:
    """One row per split (as ``id``): its number of pairs."""
    import pandas as pd

    return pd.DataFrame({"id": SPLITS, "pairs": [int((pairs.table["split"] == split).sum()) for split in SPLITS]})


def type_facts(pairs: Pairs) -> Any:
    """One row per change type (as ``id``): its share of the changed pairs. Empty where the corpus knows no types."""
    import pandas as pd

    counts = pairs.table["change_type"].value_counts()
    known = [int(counts.get(kind, 0)) for kind in CHANGE_TYPES]
    kinds = CHANGE_TYPES if sum(known) else ()
    return pd.DataFrame({"id": list(kinds), "share": [count / sum(known) for count in known] if kinds else []})


def judge(tables: dict[str, Any], rules: tuple[Rule, ...], docs: Path) -> list[Finding]:
    """Hold the tables against the rules, and write Data Docs (HTML) to ``docs``; same tables, same bytes."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations import expectations
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.add_data_docs_site("docs", _site(docs))
    source, found = context.data_sources.add_pandas("prepare"), {}
    for name, table in tables.items():
        chosen = [rule for rule in rules if rule.table == name and len(table)]
        if not chosen:
            continue
        suite = gx.ExpectationSuite(name)
        for rule in chosen:
            kind = getattr(expectations, rule.expectation)
            meta = {"rule": rule.name}
            suite.add_expectation(kind(**rule.arguments, severity=rule.severity, notes=rule.says, meta=meta))
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        definition = gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add(suite))
        checkpoint = gx.Checkpoint(
            name=name,
            validation_definitions=[context.validation_definitions.add(definition)],
            actions=[gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=["docs"])],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["id"]},
        )
        run = RunIdentifier(run_name="validate", run_time=datetime(2000, 1, 1, tzinfo=UTC))
        result = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": table}, run_id=run)
        for outcome in next(iter(result.run_results.values())).results:
            config: Any = outcome.expectation_config
            found[name, config.meta["rule"]] = outcome
    _steady(docs)
    return [_finding(rule, found.get((rule.table, rule.name)), len(tables[rule.table])) for rule in rules]


def _site(docs: Path) -> Any:
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.resolve())}
    index = {"class_name": "DefaultSiteIndexBuilder", "show_cta_footer": False}
    return {"class_name": "SiteBuilder", "site_index_builder": index, "store_backend": store}


def _finding(rule: Rule, outcome: Any, rows: int) -> Finding:
    if outcome is None:  # an empty table breaks nothing
        return Finding(rule, True, 0)
    if not outcome.success and "unexpected_count" not in outcome.result:
        raise RuntimeError(f"the rule '{rule.says}' could not be checked: {outcome.exception_info}")
    offending = [str(each["id"]) for each in outcome.result.get("unexpected_index_list") or []]
    return Finding(rule, bool(outcome.success), rows, len(offending), list(dict.fromkeys(offending))[:LISTED])


def _steady(docs: Path) -> None:
    """Take out of the pages what differs from run to run: moments, random identifiers (numbered in the order in
    which they come up), and a logo fetched from its maker's server."""
    numbers: dict[str, str] = {}

    def number(match: re.Match) -> str:
        return numbers.setdefault(match[0], f"00000000-0000-0000-0000-{len(numbers):012d}")

    for page in sorted(docs.rglob("*.html"), key=lambda path: path.relative_to(docs).as_posix()):
        text = _REMOTE_LOGO.sub('src="data:,"', page.read_text(encoding="utf-8"))
        text = _RUN_TIME.sub("2000-01-01 00:00:00 UTC", _MOMENT.sub("20000101T000000.000000Z", text))
        page.write_text(_IDENTIFIER.sub(number, text), encoding="utf-8")


_REMOTE_LOGO = re.compile(r'src="https://great-expectations-web-assets[^"]*"')
_MOMENT = re.compile(r"20\d{6}T\d{6}\.\d+Z")
_RUN_TIME = re.compile(r"(?:1999-12-31|2000-01-01)[T ]\d\d:\d\d:\d\d(?:Z| [-+\w]+)")  # in the zone of this machine
_IDENTIFIER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
