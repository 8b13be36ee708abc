"""Your own pairs: a table (CSV, TSV, JSONL or parquet) and the pictures it names.

Rows with the same two pictures are one pair with several captions.
"""

import csv
import difflib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from procap.datasets.corpus import (
    CHANGE_TYPES,
    NO_CHANGE,
    SPLITS,
    TYPE_NAMES,
    UNKNOWN_CHANGE,
    Corpus,
    PairFiles,
    Reading,
    inside,
    refuse,
    says_nothing,
)
from procap.errors import BadInput

COLUMNS = {
    "before": "the earlier picture, a path below the folder",
    "after": "the later one, of the same size",
    "caption": "a sentence; several sentences of a pair are several rows",
    "captions": "or all sentences at once: a list, in CSV with | between",
    "split": f"{', '.join(SPLITS)}; without it they are drawn",
    "change_type": f"{', '.join((*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE))} (texture is material)",
    "mask": "a picture, white where something changed; empty: unknown",
    "id": "a name of the pair; without it pairs are numbered",
}
"""What a table may have; before, after and one of caption and captions are needed."""

EXAMPLE = """\
before,after,caption,split,change_type
before/1.jpg,after/1.jpg,the red mug is gone,train,drop
before/1.jpg,after/1.jpg,someone took the red mug,train,drop
before/2.jpg,after/2.jpg,nothing has changed,val,none
"""

TREE = """\
pairs.csv         the only .csv, .tsv, .jsonl or .parquet file, whatever its
                  name
before/1.jpg ...  pictures, wherever the table says: PNG or JPEG, or still
after/1.jpg ...   GIF, WebP, BMP or TIFF
"""

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_TYPES = TYPE_NAMES | {kind: kind for kind in (NO_CHANGE, UNKNOWN_CHANGE)}
_DO = "mend the table; `procap import table --help` shows an example and explains each column"


def read(folder: Path) -> Reading:
    """Every pair in order of its first row. Raises BadInput that names the row."""
    path = _table(folder)
    rows = [(where, whole(row)) for where, row in table_rows(path)]
    if not rows:
        raise BadInput("the table has no rows", where=str(path), expected="a row per caption", do=_DO)
    columns = dict.fromkeys(column for _, row in rows for column in row)
    _check_columns(list(columns), path)
    found: dict[Any, tuple[str, PairFiles]] = {}
    ids: dict[str, str] = {}
    for where, row in rows:
        pair = _pair(folder, row, where, len(found))
        key = pair.before, pair.after
        if key in found:
            pair = _merged(found[key][1], pair, "id" in columns, where)
        elif pair.id in ids:
            raise BadInput(
                f"the id '{pair.id}' is there twice",
                where=f"{where}, first in {ids[pair.id]}",
                expected="an id per pair of pictures",
                do=_DO,
            )
        ids.setdefault(pair.id, where)
        found[key] = found.get(key, (where, pair))[0], pair
    split = [(where, pair) for where, pair in found.values() if pair.split is not None]
    if split and len(split) < len(found):
        refuse(
            [where for where, pair in found.values() if pair.split is None], "pairs have no split", path,
            "a split in every row, or in none", _DO,
        )  # fmt: skip
    return Reading(tuple(pair for _, pair in found.values()))


CORPUS = Corpus("table", "your own pairs: a table and pictures", TREE, read, own=True)


def _table(folder: Path) -> Path:
    if not folder.is_dir():
        raise BadInput("there is no such folder", where=str(folder), expected="a folder with a table", do=_DO)
    tables = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES and path.is_file()]
    if len(tables) != 1:
        names = ", ".join(path.name for path in tables) or "none"
        raise BadInput(
            f"{len(tables)} tables are there: {names}",
            where=str(folder),
            expected="one file that ends in " + ", ".join(SUFFIXES),
            do="leave only the one to import; `procap import table --help` shows an example",
        )
    return tables[0]


def _check_columns(columns: list[str], path: Path) -> None:
    for column in columns:
        if column not in COLUMNS:
            near = difflib.get_close_matches(column, COLUMNS, 1)
            raise BadInput(
                f"unknown column '{column}'" + (f"; did you mean '{near[0]}'?" if near else ""),
                where=str(path),
                expected="some of " + ", ".join(COLUMNS),
                do=_DO,
            )
    missing = [column for column in ("before", "after") if column not in columns]
    if missing or ("caption" in columns) == ("captions" in columns):
        raise BadInput(
            f"there is no column {' and no '.join(missing)}"
            if missing
            else "there has to be a caption",
            where=f"{path}, whose columns are {', '.join(columns)}",
            expected="before, after, and either caption or captions",
            do=_DO,
        )


def _pair(folder: Path, row: Mapping[str, Any], where: str, number: int) -> PairFiles:
    split, kind, mask = (_text(row, column, where) for column in ("split", "change_type", "mask"))
    for value, allowed, what in ((split, SPLITS, "split"), (kind, tuple(_TYPES), "change type")):
        if value is not None and value not in allowed:
            raise BadInput(f"unknown {what} '{value}'", where=where, expected="one of " + ", ".join(allowed), do=_DO)
    return PairFiles(
        _text(row, "id", where) or f"{number:06d}",
        f"{number:06d}",
        split,
        _TYPES[kind] if kind else None,
        _captions(row, where),
        inside(folder, row.get("before"), where),
        inside(folder, row.get("after"), where),
        inside(folder, mask, where) if mask else None,
    )


def _captions(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    value = row.get("captions", row.get("caption"))
    if isinstance(value, str):
        value = value.split("|") if "captions" in row else [value]
    if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
        raise BadInput(f"the caption is {value!r}", where=where, expected="a sentence in words", do=_DO)
    captions = tuple(" ".join(sentence.split()) for sentence in value)
    if not captions or not all(captions):
        raise BadInput("a caption is empty", where=where, expected="a sentence in words", do=_DO)
    if mute := next(filter(says_nothing, captions), None):
        raise BadInput(f"the caption '{mute}' has no word", where=where, expected="a sentence in words", do=_DO)
    return captions


def _merged(first: PairFiles, more: PairFiles, named: bool, where: str) -> PairFiles:
    """One pair of two rows with the same pictures, which must not contradict each other."""
    for what in ("split", "change_type", "mask", *(["id"] if named else [])):
        if getattr(first, what) != getattr(more, what):
            raise BadInput(
                f"a row with the same pictures has another {what}: {getattr(more, what)}, not {getattr(first, what)}",
                where=where,
                expected="the same in all rows of a pair",
                do=_DO,
            )
    captions = tuple(dict.fromkeys((*first.captions, *more.captions)))
    return PairFiles(
        first.id, first.group, first.split, first.change_type, captions, first.before, first.after, first.mask
    )


def _text(row: Mapping[str, Any], column: str, where: str) -> str | None:
    """None where the cell is empty."""
    value = row.get(column)
    if value is None or value == "":
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise BadInput(f"{column} is {value!r}", where=where, expected="a text", do=_DO)
    return str(value).strip() or None


Row = dict[str, Any] | BadInput
"""Cells by column, or what is wrong with a row that has none."""


def whole(row: Row) -> dict[str, Any]:
    """The row; raises what is wrong with it."""
    if isinstance(row, BadInput):
        raise row
    return row


def table_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(where it stands, the row) of a .csv, .tsv, .jsonl or .parquet file.

    Raises BadInput where the file itself cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"the table is not UTF-8 (byte {error.start})",
            where=str(path),
            expected="UTF-8, with or without a byte order mark",
            do="save it as 'CSV UTF-8', or convert it: iconv -f WINDOWS-1252 -t UTF-8",
        ) from None
    yield from (_jsonl if suffix == ".jsonl" else _csv)(path, text)


def _csv(path: Path, text: str) -> Iterator[tuple[str, Row]]:
    """Comma, semicolon or tab: whichever the first line has most of."""
    separator = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [column.strip().lower() for column in next(rows, [])]
        if len(set(header)) < len(header):
            raise BadInput(f"a column is there twice: {', '.join(header)}", where=str(path), expected="once", do=_DO)
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                yield where, BadInput(
                    f"the row has {len(row)} cells, the first line {len(header)}",
                    where=where,
                    expected="as many cells as columns; a sentence with a comma needs quotes around it",
                    do=_DO,
                )
            else:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise BadInput(f"no CSV: {error}", where=f"{path}, line {rows.line_num}", expected="CSV", do=_DO) from None


def _jsonl(path: Path, text: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            problem = None if isinstance(row, dict) else f"a {type(row).__name__}"
        except (ValueError, RecursionError) as error:
            problem = f"no JSON: {error}"
        yield where, BadInput(problem, where=where, expected="an object per line", do=_DO) if problem else row


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(f"no parquet file: {first}", where=str(path), expected="a parquet table", do=_DO) from None
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row
