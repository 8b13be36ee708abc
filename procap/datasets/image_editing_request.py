"""Image-Editing-Request (Tan et al., 2019): photographs before and after an edit, and the request that led to it.

Left out: empty sentences, those without a word, repetitions within a pair, and pairs of which no sentence remains.
"""

from collections import Counter
from pathlib import Path

from procap.datasets.corpus import (
    Corpus,
    PairFiles,
    Reading,
    bad_form,
    clean,
    first_there,
    inside,
    read_entries,
    sentences_of,
    text_of,
)

TREE = """\
train.json        [{"uid": "Zhopped_2", "img0": "a.jpg", "img1": "b.jpg",
                    "sents": ["a sentence", ...]}, ...]
valid.json        likewise (or val.json)
test.json         likewise
images/           the pictures that img0 and img1 name
                  (or all in one folder)
"""

_FORM = '[{"uid": "...", "img0": "a.jpg", "img1": "b.jpg", "sents": ["a sentence", ...]}, ...]'
_FILES = {"train": ("train.json",), "val": ("valid.json", "val.json"), "test": ("test.json",)}


def read(folder: Path) -> Reading:
    """Every pair in order of the files."""
    expected = "train.json, valid.json, test.json and images/"
    notes = {split: first_there(folder, names, expected) for split, names in _FILES.items()}
    pictures = first_there(folder, ["images", "."], "images/")
    pairs: dict[str, PairFiles] = {}
    left_out: Counter[str] = Counter()
    listed: Counter[str] = Counter()
    for split, path in notes.items():
        for number, entry in enumerate(read_entries(path, _FORM), 1):
            name, *ends = (text_of(entry, key, path, number, _FORM) for key in ("uid", "img0", "img1"))
            if name in pairs:
                raise bad_form(path, f"uid '{name}' is there twice", "every uid once")
            captions, reasons = clean(sentences_of(entry.get("sents"), path, f"'{name}'", _FORM))
            left_out.update(reasons)
            listed[split] += 1
            if captions:
                before, after = (inside(pictures, end, f"{path}, entry {number}") for end in ends)
                pairs[name] = PairFiles(name, name, split, None, captions, before, after)
            else:
                left_out["pairs without a sentence"] += 1
    return Reading(tuple(pairs.values()), left_out, listed)


CORPUS = Corpus(
    "image_editing_request",
    "Image-Editing-Request: photographs before and after an edit, and what was asked for",
    TREE,
    read,
    {"train": 3_061, "val": 383, "test": 495},
)
