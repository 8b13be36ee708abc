"""What must hold of a corpus before anything is trained on it, judged by Great Expectations.

Great Expectations sees tables only: ``all_facts`` looks at pictures, masks and words and puts what it finds into
columns; ``rules`` say which values are allowed.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SPLITS, Pairs
from procap.datasets.shards import Shards
from procap.datasets.vocabulary import tokenize
from procap.evaluation.change_words import says_change
from procap.evaluation.picture_statistics import FEATURES, Looks, doubles, drift, looks
from procap.evaluation.rules import Rule, Thresholds

LISTED = 10
"""Offending rows that a finding names when it is printed."""
MASK_VALUES = (0, 128, 255)


@dataclass(frozen=True)
class Finding:
    """What became of a rule."""

    rule: Rule
    success: bool
    checked: int
    unexpected: int = 0
    offenders: Mapping[str, str] = field(default_factory=dict)
    """The detail of each offending row by its id."""

    @property
    def ids(self) -> list[str]:
        """Of the first offending rows."""
        return list(self.offenders)[:LISTED]

    @property
    def named(self) -> list[str]:
        """The first offending rows to read: pairs by their id, facts of the whole corpus with what was seen."""
        if self.rule.table in ("pairs", "captions"):
            return self.ids
        return [f"{name} ({seen})" if (seen := self.offenders[name]) else name for name in self.ids]

    def __str__(self) -> str:
        named = ", ".join(self.named) + (", ..." if len(self.offenders) > LISTED else "")
        return f"{self.rule.says}; broken by {self.unexpected} of {self.checked}" + (f": {named}" if named else "")


def all_facts(pairs: Pairs, limits: Thresholds) -> dict[str, Any]:
    """Every table, by its name in ``Rule.table``."""
    seen = looks(pairs.images.arrays)
    facts = pair_facts(pairs, seen, limits.duplicate_bits, limits.duplicate_difference)
    return {
        "pairs": facts,
        "captions": caption_facts(pairs, facts),
        "splits": split_facts(pairs),
        "types": type_facts(pairs),
        "drift": drift_facts(pairs, seen, limits.drift),
    }


def pair_facts(pairs: Pairs, seen: Looks, bits: int, difference: float) -> Any:
    """One row per pair: what the table says, the number of captions, and as truth values what is wrong with it.

    ``double`` names a picture in another split that looks like one of the pair's, ``mask_share`` how much of the
    picture a mask marks (0 without a mask). ``bits`` and ``difference`` are those of ``doubles``.
    """
    table, images = pairs.table, pairs.images
    facts = table[["id", "group", "split", "change_type"]].copy()
    facts["captions"] = table["captions"].map(len)
    ends = [table[end].to_numpy() for end in ("before", "after")]
    digests = _digests(images, ends)
    facts["picture_missing"] = ~np.all([_there(images, rows) for rows in ends], axis=0)
    facts["group_leaks"] = _in_several(table["group"], table["split"])
    facts["picture_leaks"] = _leaks(digests, table["split"])
    facts["double"] = _doubles(pairs, ends, digests, seen, bits, difference)
    facts["nearly_leaks"] = facts["double"] != ""
    facts["sizes_differ"] = (_sizes(images, ends[0]) != _sizes(images, ends[1])).any(axis=1)
    changed = (table["change_type"] != NO_CHANGE).to_numpy()
    equal = np.array([a is not None and a == b for a, b in zip(*digests, strict=True)], bool)
    facts["type_contradicted"] = changed & equal
    for name, values in _mask_facts(pairs).items():
        facts[name] = values
    facts["mask_contradicted"] = facts["masked"] & ((facts["mask_share"] > 0) != changed)
    return facts


def _there(images: Shards, rows: np.ndarray) -> np.ndarray:
    return (rows >= 0) & (rows < len(images))


def _digests(images: Shards, ends: list[np.ndarray]) -> list[list[bytes | None]]:
    """Of the bytes of each picture; None where the row number points nowhere."""
    known = {}
    for row in np.unique(np.concatenate([rows[_there(images, rows)] for rows in ends])):
        known[row] = sha256(row_of(images, row).tobytes()).digest()
    return [[known.get(row) for row in rows] for rows in ends]


def _in_several(keys: Any, splits: Any) -> Any:
    return splits.groupby(keys).transform("nunique") > 1


def _leaks(digests: list[list[bytes | None]], splits: Any) -> list[bool]:
    homes: dict[bytes, set[str]] = {}
    for end in digests:
        for digest, split in zip(end, splits, strict=True):
            if digest is not None:
                homes.setdefault(digest, set()).add(split)
    leaky = {digest for digest, found in homes.items() if len(found) > 1}
    return [bool(leaky & set(pair)) for pair in zip(*digests, strict=True)]


def _doubles(
    pairs: Pairs, ends: list[np.ndarray], digests: list[list[bytes | None]], seen: Looks, bits: int, difference: float
) -> list[str]:
    """For each pair one of another split with a picture that looks the same under other bytes, or an empty text."""
    first: dict[tuple[str, bytes], tuple[int, int]] = {}  # (row of the picture, pair) of all bytes in a split
    for end, found in zip(ends, digests, strict=True):
        for pair, (row, digest, split) in enumerate(zip(end, found, pairs.table["split"], strict=True)):
            if digest is not None:
                first.setdefault((split, digest), (int(row), pair))
    keys, places = list(first), np.array(list(first.values()), int).reshape(-1, 2)
    _, homes = np.unique([split for split, _ in keys], return_inverse=True)
    chosen = Looks(seen.thumbnails[places[:, 0]], seen.features[places[:, 0]])
    partner = doubles(chosen, homes, bits, difference)
    twins = {
        key: str(pairs.table["id"].iat[places[other, 1]])
        for key, other in zip(keys, partner, strict=True)
        if other >= 0 and keys[other][1] != key[1]
    }
    return [
        next((twins[split, digest] for digest in pair if digest is not None and (split, digest) in twins), "")
        for *pair, split in zip(*digests, pairs.table["split"], strict=True)
    ]


def _sizes(shards: Shards, rows: np.ndarray) -> np.ndarray:
    """Height and width, per row number."""
    return np.array([array.shape[1:3] for array in shards.arrays])[_shard_of(shards, rows)]


def row_of(shards: Shards, row: Any) -> np.ndarray:
    """One row, of whatever size: shards that differ in size cannot be read several rows at once."""
    shard = _shard_of(shards, row)
    return shards.arrays[shard][row - shards.starts[shard]]


def _shard_of(shards: Shards, rows: Any) -> Any:
    return np.searchsorted(shards.starts, np.clip(rows, 0, len(shards) - 1), side="right") - 1


def _mask_facts(pairs: Pairs) -> dict[str, np.ndarray]:
    """Per pair: whether it has a mask or lacks one that it names, what is wrong with it, and the share it marks."""
    rows = pairs.table["mask"].to_numpy()
    facts = {name: np.zeros(len(rows), bool) for name in ("masked", "mask_missing", "mask_size", "mask_values")}
    facts["mask_share"] = np.zeros(len(rows))
    if (rows == -1).all():
        return facts
    masks = Shards(pairs.folder, "masks")
    facts["masked"] = _there(masks, rows)
    facts["mask_missing"] = ~facts["masked"] & (rows != -1)
    facts["mask_size"] = facts["masked"] & (
        _sizes(masks, rows) != _sizes(pairs.images, pairs.table["before"].to_numpy())
    ).any(axis=1)
    for pair in np.flatnonzero(facts["masked"]):
        mask = row_of(masks, rows[pair])
        facts["mask_values"][pair] = not np.isin(mask, MASK_VALUES).all()
        facts["mask_share"][pair] = np.count_nonzero(mask) / mask.size
    return facts


def caption_facts(pairs: Pairs, facts: Any) -> Any:
    """One row per caption: id of its pair, how many words it has, and as truth values what is wrong with it.

    ``facts`` are those of the pairs. A caption is repeated where the pair has it before, case aside.
    """
    known = pairs.table[["id", "split", "change_type", "captions"]].assign(
        masked=facts["masked"], marked=facts["mask_share"] > 0
    )
    found = known.explode("captions", ignore_index=True).rename(columns={"captions": "caption"})
    found = found.dropna(subset="caption", ignore_index=True)
    tokens = [tokenize(caption) for caption in found["caption"]]
    found["words"] = [len(words) for words in tokens]
    found["repeated"] = found.assign(said=[" ".join(words) for words in tokens]).duplicated(["id", "said"])
    says = [says_change(caption) for caption in found["caption"]]
    told, changed = np.array([said is not None for said in says], bool), np.array([said is True for said in says], bool)
    found["contradicts_label"] = told & (changed != (found["change_type"] != NO_CHANGE))
    found["contradicts_mask"] = told & found["masked"] & (changed != found["marked"])
    return found


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


def drift_facts(pairs: Pairs, seen: Looks, most: float) -> Any:
    """One row per feature of the pictures before in val and in test (as ``id``): how far from train they are.

    ``seen`` of a row is what to read: both means, and between which ones the distance would be ``most`` or less.
    """
    import pandas as pd

    rows = pairs.table["before"].to_numpy()
    of = {
        split: np.isin(np.arange(len(seen.features)), rows[(pairs.table["split"] == split).to_numpy()])
        for split in SPLITS
    }
    found = []
    for split in SPLITS[1:]:
        if of[split].any() and of["train"].any():
            between = drift(seen.features, of[split], of["train"])
            columns = between.distances, between.means, between.base, *between.bounds(most)
            for feature, distance, mean, base, low, high in zip(FEATURES, *columns, strict=True):
                said = f"{mean:.3f} against {base:.3f} in train, {max(0.0, low):.3f} to {min(1.0, high):.3f} expected"
                found.append({"id": f"{split}: {feature}", "distance": round(float(distance), 4), "seen": said})
    return pd.DataFrame(found, columns=["id", "distance", "seen"])


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
            result_format={
                "result_format": "COMPLETE",
                "unexpected_index_column_names": ["id", *sorted({rule.detail for rule in chosen if rule.detail})],
            },
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
    rejected = outcome.result.get("unexpected_index_list") or []
    offenders: dict[str, list[str]] = {}
    for each in rejected:
        offenders.setdefault(str(each["id"]), []).extend([str(each[rule.detail])] if rule.detail else [])
    joined = {name: " | ".join(details) for name, details in offenders.items()}
    return Finding(rule, bool(outcome.success), rows, len(rejected), joined)


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
