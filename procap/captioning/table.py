"""Captions of all pairs of a table, a JSON line each; what is wrong with a row is said in its line."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from procap.captioners import GREEDY, Decoding
from procap.captioning.captioner import Caption, PictureCaptioner
from procap.captioning.pairs import read_pair
from procap.datasets.images import resize
from procap.datasets.parallel import in_order
from procap.datasets.table import table_rows
from procap.errors import BadInput
from procap.evaluation.embedded import picture
from procap.files import write_text
from procap.shapes import Bool


@dataclass(frozen=True)
class Row:
    """One pair of a table."""

    number: int
    """From 1."""
    where: str
    before: str
    """As the table has it; a path below the table's folder."""
    after: str
    problem: BadInput | None = None


def read_rows(path: Path) -> list[Row]:
    """The rows of a .csv, .tsv, .jsonl or .parquet table with columns before and after; other columns are passed over.

    Raises BadInput where the file cannot be read or lacks the columns.
    """
    if not path.is_file():
        raise _refused("there is no such table", path)
    if path.suffix.lower() not in (".csv", ".tsv", ".jsonl", ".parquet"):
        raise _refused(f"a table of the kind '{path.suffix}'", path)
    rows = []
    for number, (where, row) in enumerate(table_rows(path), 1):
        if isinstance(row, BadInput):
            rows.append(Row(number, where, "", "", row))
            continue
        if missing := {"before", "after"} - set(row):
            raise _refused(f"there is no column {' and no '.join(sorted(missing))}", path)
        before, after = (row[end].strip() if isinstance(row[end], str) else "" for end in ("before", "after"))
        problem = None if before and after else _empty(where)
        rows.append(Row(number, where, before, after, problem))
    if not rows:
        raise _refused("the table has no rows", path)
    return rows


def caption_rows(
    captioner: PictureCaptioner, folder: Path, rows: Iterable[Row], *, batch: int = 16, decoding: Decoding = GREEDY
) -> Iterator[dict[str, Any]]:
    """A line per row, in order: ``row``, ``before``, ``after``, and ``record``'s values or an ``error``."""
    side = captioner.about.image_size

    def read(row: Row) -> tuple[Row, tuple[np.ndarray, ...] | BadInput]:
        try:
            if row.problem:
                raise row.problem
            before, after = read_pair(folder / row.before, folder / row.after)
            return row, (resize(before, side), resize(after, side))
        except BadInput as complaint:
            return row, complaint

    waiting: list[tuple[Row, tuple[np.ndarray, ...] | BadInput]] = []
    for each in in_order(read, rows):
        waiting.append(each)
        if len(waiting) == batch:
            yield from _lines(captioner, waiting, decoding)
            waiting = []
    yield from _lines(captioner, waiting, decoding)


def _lines(
    captioner: PictureCaptioner, rows: Sequence[tuple[Row, tuple[np.ndarray, ...] | BadInput]], decoding: Decoding
) -> Iterator[dict[str, Any]]:
    good = [pair for _, pair in rows if not isinstance(pair, BadInput)]
    said = iter(captioner.caption(*map(list, zip(*good, strict=True)), decoding=decoding)) if good else iter(())
    for row, pair in rows:
        line: dict[str, Any] = {"row": row.number, "before": row.before, "after": row.after}
        if isinstance(pair, BadInput):
            yield line | {"error": {"what": pair.what, "where": pair.where}}
        else:
            yield line | {"model": captioner.about.digest} | record(next(said))


def record(caption: Caption) -> dict[str, Any]:
    """A caption as plain JSON values, 6 digits after the point; a mask as PNG in base64, white where it is True."""
    line: dict[str, Any] = {
        "caption": caption.text,
        "probability": _rounded(caption.probability),
        "change_probability": _rounded(caption.change_probability),
        "words": list(caption.words),
        "word_probabilities": [_rounded(chance) for chance in caption.word_probabilities],
        "end_probability": _rounded(caption.end_probability),
    }
    if caption.reasoning is not None:
        line["reasoning"] = asdict(caption.reasoning)
        line["change_mask"] = None if caption.change_mask is None else _png(caption.change_mask)
    return line


def _png(mask: Bool[np.ndarray, "h w"]) -> str:
    return picture(mask.astype(np.uint8) * 255).partition(",")[2]


@contextmanager
def resumed(out: Path, rows: Sequence[Row], digest: str) -> Iterator[tuple[TextIO, set[int]]]:
    """Open a file of lines to continue it: (where to write, numbers of the rows that are done).

    Rows that had an error, and a line that was cut short, are done again. In the end lines stand in the table's order.
    Raises BadInput where the file has captions of another table or model.
    """
    done: dict[int, str] = {}
    by_number = {row.number: row for row in rows}
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        number = told.get("row") if isinstance(told, Mapping) else None
        row = by_number.get(number) if isinstance(number, int) else None
        if row is None or (told.get("before"), told.get("after")) != (row.before, row.after):
            raise _another("has captions of another table", out)
        if "caption" in told and told.get("model") != digest:
            raise _another("has captions of another model", out)
        if "caption" in told:
            done[row.number] = line
    write_text(out, "".join(f"{line}\n" for line in done.values()))
    try:
        with out.open("a", encoding="utf-8", newline="\n") as file:
            yield file, set(done)
    finally:
        lines = [line for line in out.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        write_text(out, "".join(sorted(lines, key=lambda line: json.loads(line)["row"])))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _refused(what: str, path: Path) -> BadInput:
    return BadInput(
        what,
        where=str(path),
        expected="a .csv, .tsv, .jsonl or .parquet table with the columns before and after, paths of pictures",
        do="mend the table",
    )


def _empty(where: str) -> BadInput:
    return BadInput("a picture is not named", where=where, expected="two paths", do="name both pictures")


def _another(what: str, out: Path) -> BadInput:
    return BadInput(f"that file {what}", where=str(out), expected="the file of an earlier run", do="name another")
