"""What a corpus module gives: pairs as sentences and names of files, before any picture is opened.

A corpus is one module here and one line in ``CORPORA`` (``procap/datasets/corpora.py``).
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from procap.errors import BadInput

SPLITS = ("train", "val", "test")
SHIFT = "test_shift"
"""A further split of rendered scenes that differ from all others (``prepare.scenes.shift``); most corpora lack it."""

CHANGE_TYPES = ("color", "material", "add", "drop", "move")
NO_CHANGE = "none"
UNKNOWN_CHANGE = "unknown"
"""A pair that differs, in a corpus that does not say how."""

TYPE_NAMES = {name: name for name in CHANGE_TYPES} | {"texture": "material"}
"""What corpora call the types."""

COMPLETE = "complete the corpus, or prune it"

SHOWN = 10
"""Names that a complaint lists."""


@dataclass(frozen=True)
class PairFiles:
    """One pair, its files and what is said of it; nothing was decoded yet."""

    id: str
    group: str
    """Pairs of one group share a picture."""
    split: str | None
    """None: the corpus has no splits."""
    change_type: str | None
    """None: the corpus does not say whether anything changed."""
    captions: tuple[str, ...]
    before: Path
    after: Path
    mask: Path | None = None
    classes: int = 1
    """Kinds of change that the mask tells apart, 1 or 2."""


@dataclass(frozen=True)
class Reading:
    """What a corpus holds, in its order."""

    pairs: tuple[PairFiles, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Sentences and pairs that cannot be used, counted by reason."""
    listed: Mapping[str, int] | None = None
    """Pairs by split as the files list them; None: those of ``pairs``."""

    @property
    def counts(self) -> dict[str, int]:
        """Pairs by split, as listed."""
        found = self.listed if self.listed is not None else Counter(pair.split for pair in self.pairs)
        return {split: found.get(split, 0) for split in SPLITS}


@dataclass(frozen=True)
class Corpus:
    """A layout on disk, how to read it, and what is known of the published data."""

    name: str
    title: str
    tree: str
    """Files and folders, as they have to lie in the folder."""
    read: Callable[[Path], Reading]
    """The pairs of a folder. Raises BadInput."""
    published: Mapping[str, int] = field(default_factory=dict)
    """Pairs by split of the whole corpus; empty where we know of no count."""
    own: bool = False
    """Made by the user, who can mend it: a picture in two splits is refused, which in a published corpus is told."""


def read_json(path: Path, form: str) -> Any:
    """The content of a JSON file; ``form`` describes it in complaints. Raises BadInput."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise bad_form(path, "the file is not there", form) from None
    except (ValueError, OSError, RecursionError) as error:
        raise bad_form(path, f"this is not JSON ({error})", form) from None


def read_entries(path: Path, form: str) -> list[dict[str, Any]]:
    """The objects of a JSON list. Raises BadInput."""
    content = read_json(path, form)
    if not isinstance(content, list):
        raise bad_form(path, f"a {type(content).__name__} at the top", form)
    for number, entry in enumerate(content, 1):
        if not isinstance(entry, dict):
            raise bad_form(path, f"entry {number} is a {type(entry).__name__}", form)
    return content


def sentences_of(value: Any, path: Path, what: str, form: str) -> tuple[str, ...]:
    """A list of sentences; ``what`` names the entry. Raises BadInput for anything else."""
    if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
        raise bad_form(path, f"the captions of {what} are no list of sentences", form)
    return tuple(value)


def text_of(entry: Mapping[str, Any], key: str, path: Path, number: int, form: str) -> str:
    """The text under a key of the ``number``-th entry. Raises BadInput where there is none."""
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise bad_form(path, f"entry {number} has {value!r} as '{key}'", form)
    return value.strip()


def bad_form(path: Path, what: str, expected: str) -> BadInput:
    """A file that says something else than it should."""
    return BadInput(what, where=str(path), expected=expected, do="mend the file, or take it from the corpus anew")


def refuse(names: Sequence[Any], what: str, where: Path, expected: str, do: str = COMPLETE) -> None:
    """Raise BadInput that counts and lists ``names``, if there are any."""
    if names:
        shown = ", ".join(map(str, names[:SHOWN])) + (" ..." if len(names) > SHOWN else "")
        raise BadInput(f"{len(names)} {what}: {shown}", where=str(where), expected=expected, do=do)


def first_there(folder: Path, names: Iterable[str], expected: str) -> Path:
    """The first of these files or folders that exists. Raises BadInput where none does."""
    names = tuple(names)
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise BadInput(
        "the corpus is not there" if not folder.is_dir() else f"there is no {' and no '.join(names)}",
        where=str(folder),
        expected=expected,
        do="unpack the corpus there; `procap import <corpus> --help` shows every file",
    )


def inside(folder: Path, name: Any, where: str) -> Path:
    """The file that a corpus calls ``name``, which must not lead out of ``folder``; it need not be there.

    Backslashes are taken as slashes, and a name with accents is found in whichever way the disk writes them.
    """
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise BadInput(
            f"{name!r} is no name of a file", where=where, expected="a path below the folder", do="mend that row"
        )
    relative = PurePosixPath(name.strip().replace("\\", "/"))
    if relative.is_absolute() or ".." in relative.parts or re.match(r"^[A-Za-z]:", relative.as_posix()):
        raise BadInput(
            f"'{name}' leads out of the folder",
            where=where,
            expected=f"a path below {folder}",
            do="put the picture into the folder and name it relative to it",
        )
    if name.isascii():
        return folder / relative
    ways = (folder / unicodedata.normalize(form, relative.as_posix()) for form in ("NFC", "NFD"))
    return next((way for way in (folder / relative, *ways) if way.exists()), folder / relative)


def clean(sentences: Iterable[str], fewest_words: int = 1) -> tuple[tuple[str, ...], Counter[str]]:
    """Sentences that say something, spaces tidied; and how many were left out, by reason.

    Left out are, in this order: empty ones; those without a word of two letters ("1", "p"); those of fewer than
    ``fewest_words`` words; what an earlier one of the list says, case aside.
    """
    kept: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    for sentence in sentences:
        tidy = " ".join(sentence.split())
        if not tidy:
            left_out["empty sentences"] += 1
        elif not _WORD.search(tidy):
            left_out["sentences without a word"] += 1
        elif len(tidy.split()) < fewest_words:
            left_out[f"sentences of fewer than {fewest_words} words"] += 1
        elif tidy.lower() in kept:
            left_out["sentences that the pair has already"] += 1
        else:
            kept[tidy.lower()] = tidy
    return tuple(kept.values()), left_out


_WORD = re.compile(r"[^\W\d_]{2}")


def says_nothing(sentence: str) -> bool:
    """Whether a sentence has no word and no number, as "" and "!!!"."""
    return not any(map(str.isalnum, sentence))
