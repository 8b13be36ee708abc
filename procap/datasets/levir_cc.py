"""LEVIR-CC (Liu et al., 2022): aerial pictures of one place, years apart, and five sentences on what was built.

Sentences stay as published, repetitions too: they are the five references of the published scores.
"""

from pathlib import Path
from typing import Any

from procap.datasets.corpus import (
    NO_CHANGE,
    SPLITS,
    UNKNOWN_CHANGE,
    Corpus,
    PairFiles,
    Reading,
    bad_form,
    first_there,
    inside,
    read_entries,
    read_json,
    sentences_of,
    text_of,
)

TREE = """\
LevirCCcaptions.json  {"images": [{"filename": "train_000016.png",
                        "split": "train", "changeflag": 1,
                        "sentences": [{"raw": "a sentence", ...}, ...]}, ...]}
images/train/A/       train_000016.png ...   before; likewise val/A, test/A
images/train/B/       train_000016.png ...   after

or, for a few pairs:
index.json            [{"a": "train_000016_A.png", "b": "train_000016_B.png",
                        "captions": ["a sentence", ...]}, ...]
                      beside the pictures; a name begins with its split
"""

PUBLISHED = {"train": 6_815, "val": 1_333, "test": 1_929}

_FORM = '{"images": [{"filename": ..., "split": ..., "changeflag": 0 or 1, "sentences": [{"raw": ...}, ...]}, ...]}'
_PARTS = ("A", "B", "label")
_INDEX = '[{"a": "train_000016_A.png", "b": "train_000016_B.png", "captions": ["a sentence", ...]}, ...]'


def read(folder: Path) -> Reading:
    """Every pair in order of the file."""
    path = first_there(folder, ["LevirCCcaptions.json", "index.json"], "LevirCCcaptions.json and images/")
    return Reading(tuple(_indexed(path) if path.name == "index.json" else read_published(path, masked=False)))


def read_published(path: Path, masked: bool) -> list[PairFiles]:
    """The pairs of ``LevirCCcaptions.json``; ``masked``: with those of LEVIR-MCI. Raises BadInput."""
    content = read_json(path, _FORM)
    entries = content.get("images") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise bad_form(path, "there is no list 'images'", _FORM)
    pairs: dict[str, PairFiles] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise bad_form(path, f"entry {number} is a {type(entry).__name__}", _FORM)
        file = text_of(entry, "filename", path, number, _FORM)
        split = _split(entry.get("split", file.partition("_")[0]), path, number)
        name = Path(file).stem
        if name in pairs:
            raise bad_form(path, f"'{file}' is there twice", "every picture once")
        where = f"{path}, entry {number}"
        before, after, mask = (inside(path.parent, f"images/{split}/{part}/{file}", where) for part in _PARTS)
        captions = _raw(entry.get("sentences"), path, number)
        flag = entry.get("changeflag")
        kind = {0: NO_CHANGE, 1: UNKNOWN_CHANGE}.get(flag) if type(flag) is int else None
        masks = (mask, 2) if masked else (None, 1)
        pairs[name] = PairFiles(name, name, split, kind, captions, before, after, *masks)
    return list(pairs.values())


CORPUS = Corpus("levir_cc", "LEVIR-CC: aerial pictures, five sentences each", TREE, read, PUBLISHED)


def _indexed(path: Path) -> list[PairFiles]:
    pairs: dict[str, PairFiles] = {}
    for number, entry in enumerate(read_entries(path, _INDEX), 1):
        ends = [text_of(entry, key, path, number, _INDEX) for key in ("a", "b")]
        name = Path(ends[0]).stem.removesuffix("_A")
        if name in pairs:
            raise bad_form(path, f"'{ends[0]}' is there twice", "every picture once")
        split = _split(name.partition("_")[0], path, number)
        captions = sentences_of(entry.get("captions"), path, f"'{ends[0]}'", _INDEX)
        before, after = (inside(path.parent, end, f"{path}, entry {number}") for end in ends)
        pairs[name] = PairFiles(name, name, split, None, captions, before, after)
    return list(pairs.values())


def _split(value: Any, path: Path, number: int) -> str:
    if value not in SPLITS:
        raise bad_form(path, f"entry {number} has the split '{value}'", "train, val or test")
    return value


def _raw(sentences: Any, path: Path, number: int) -> tuple[str, ...]:
    if not isinstance(sentences, list) or not all(isinstance(each, dict) for each in sentences):
        raise bad_form(path, f"entry {number} has no list of sentences", _FORM)
    said = [each.get("raw") for each in sentences]
    return tuple(" ".join(each.split()) for each in sentences_of(said, path, f"entry {number}", _FORM))
