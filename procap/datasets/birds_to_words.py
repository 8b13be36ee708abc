"""Birds-to-Words (Forbes et al., 2019): two photographs of birds and paragraphs on how the birds differ.

The published file names pictures by their addresses; on disk a picture is called by the number of its photograph,
``https://.../photos/647514/large.jpg`` is ``images/647514.jpg``. The paragraphs of one pair become its captions.
"""

import csv
import re
from collections import Counter
from pathlib import Path

from procap.datasets.corpus import SPLITS, UNKNOWN_CHANGE, Corpus, PairFiles, Reading, bad_form, clean, first_there
from procap.errors import BadInput

FILE = "birds-to-words-v1.0.tsv"
COLUMNS = ("img1ImgURL", "img2ImgURL", "split", "description")
"""What is read of its eleven columns."""

TREE = f"""\
{FILE}
          as published: tab-separated, and among its eleven columns
          {", ".join(COLUMNS)}
images/   647514.jpg ...   the number in the picture's address,
          .../photos/647514/...; .jpg, .jpeg or .png
"""

_FORM = "a tab-separated table with the columns " + ", ".join(COLUMNS)


def read(folder: Path) -> Reading:
    """Every pair in order of its first paragraph."""
    path = first_there(folder, [FILE], f"{FILE} and images/")
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if missing := [column for column in COLUMNS if column not in (rows.fieldnames or ())]:
                raise bad_form(path, f"there is no column {', '.join(missing)}", _FORM)
            for number, row in enumerate(rows, 2):
                if any(row[column] is None for column in COLUMNS):
                    raise bad_form(path, f"line {number} is cut short", _FORM)
                ends = _photo(row["img1ImgURL"], path, number), _photo(row["img2ImgURL"], path, number)
                split, said = found.setdefault(ends, (row["split"], []))
                if row["split"] not in SPLITS or row["split"] != split:
                    raise bad_form(path, f"line {number} has the split '{row['split']}'", "train, val or test per pair")
                said.append(row["description"])
    except UnicodeDecodeError as error:
        raise bad_form(path, f"this is not UTF-8 ({error})", _FORM) from None
    known = {each.stem: each for each in sorted((folder / "images").glob("*.*")) if each.suffix in _SUFFIXES}
    pairs, left_out = [], Counter[str]()
    for (before, after), (split, said) in found.items():
        captions, reasons = clean(said)
        left_out.update(reasons)
        if not captions:
            left_out["pairs without a sentence"] += 1
            continue
        first, second = (known.get(end, folder / "images" / f"{end}.jpg") for end in (before, after))
        name = f"{before}-{after}"
        pairs.append(PairFiles(name, name, split, UNKNOWN_CHANGE, captions, first, second))
    return Reading(tuple(pairs), left_out, Counter(split for split, _ in found.values()))


_SUFFIXES = (".jpg", ".jpeg", ".png")

CORPUS = Corpus("birds_to_words", "Birds-to-Words: how the birds of two photographs differ, in paragraphs", TREE, read)


def _photo(address: str, path: Path, line: int) -> str:
    match = re.search(r"/photos/(\d+)/", address)
    if not match:
        raise BadInput(
            f"'{address}' names no photograph",
            where=f"{path}, line {line}",
            expected="an address with /photos/<number>/ in it",
            do="take the file from the release anew",
        )
    return match[1]
