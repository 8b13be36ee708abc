"""``data/raw/<name>`` as ``procap import`` writes it, the same for every corpus.

``pairs.jsonl`` has a line per pair (PAIR_KEYS, files relative to ``pictures/``), ``pictures/`` the files under the
names that they had, ``import.json`` what was counted on the way.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from procap.datasets.corpus import CHANGE_TYPES, NO_CHANGE, SPLITS, UNKNOWN_CHANGE, PairFiles, Reading, bad_form, inside
from procap.files import write_text

TABLE = "pairs.jsonl"
SUMMARY = "import.json"
"""Tells an imported folder from a published one."""
PICTURES = "pictures"
PAIR_KEYS = ("id", "group", "split", "change_type", "captions", "before", "after", "mask", "classes")


def write_pairs(folder: Path, pairs: Iterable[PairFiles], source: Path) -> None:
    """Write the table; files of the pairs lie below ``source``, and will below ``folder/pictures``."""
    lines = [json.dumps(_row(pair, source), ensure_ascii=False) + "\n" for pair in pairs]
    write_text(folder / TABLE, "".join(lines))


def read(folder: Path) -> Reading:
    """Every pair of an imported corpus. Raises BadInput."""
    path, pairs = folder / TABLE, []
    form = "lines as `procap import` writes them"
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            row = json.loads(line)
            if not isinstance(row, dict) or tuple(row) != PAIR_KEYS:
                raise bad_form(path, f"line {number} is no pair", form)
            if row["split"] not in SPLITS or row["change_type"] not in (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE):
                raise bad_form(path, f"line {number}: split '{row['split']}', type '{row['change_type']}'", form)
            files = {end: inside(folder / PICTURES, row[end], f"{path}, line {number}") for end in ("before", "after")}
            mask = inside(folder / PICTURES, row["mask"], f"{path}, line {number}") if row["mask"] else None
            pairs.append(PairFiles(**{**row, **files, "mask": mask, "captions": tuple(row["captions"])}))
    except ValueError as error:
        raise bad_form(path, f"this is not JSON ({error})", form) from None
    return Reading(tuple(pairs))


def _row(pair: PairFiles, source: Path) -> dict[str, Any]:
    files = {
        end: path.relative_to(source).as_posix() if path else None
        for end, path in (("before", pair.before), ("after", pair.after), ("mask", pair.mask))
    }
    return {
        key: files[key] if key in files else list(pair.captions) if key == "captions" else getattr(pair, key)
        for key in PAIR_KEYS
    }
