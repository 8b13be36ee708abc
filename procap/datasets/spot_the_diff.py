"""Spot-the-Diff (Jhamtani and Berg-Kirkpatrick, 2018): frames of surveillance cameras, what changed in free sentences.

Several annotators described some pairs; what they say becomes one list. Left out: empty sentences, those without a
word of two letters ("1"), those of a single word ("none", "car"), repetitions within a pair, and pairs of which no
sentence remains.
"""

from collections import Counter
from pathlib import Path

from procap.datasets.corpus import (
    SPLITS,
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
annotations/      train.json, val.json, test.json
                  [{"img_id": "76", "sentences": ["a sentence", ...]}, ...]
                  an id may come several times; also read without the folder
resized_images/   76.png, 76_2.png ...   before and after
                  (or images/, or all in one folder)
"""

FEWEST_WORDS = 2

_FORM = '[{"img_id": "76", "sentences": ["a sentence", ...]}, ...]'


def read(folder: Path) -> Reading:
    """Every pair in order of the files."""
    first_there(folder, ["annotations/train.json", "train.json"], "annotations/train.json, val.json and test.json")
    notes = folder / "annotations" if (folder / "annotations" / "train.json").exists() else folder
    pictures = first_there(folder, ["resized_images", "images", "."], "resized_images/")
    said: dict[str, tuple[str, list[str]]] = {}
    left_out: Counter[str] = Counter()
    listed: Counter[str] = Counter()
    for split in SPLITS:
        path = notes / f"{split}.json"
        for number, entry in enumerate(read_entries(path, _FORM), 1):
            name = text_of(entry, "img_id", path, number, _FORM)
            sentences = sentences_of(entry.get("sentences"), path, f"entry {number} ('{name}')", _FORM)
            if name not in said:
                said[name] = split, []
                listed[split] += 1
            elif said[name][0] != split:
                raise bad_form(path, f"'{name}' is in '{said[name][0]}' and in '{split}'", "every pair in one split")
            said[name][1].extend(sentences)
    pairs = []
    for name, (split, found) in said.items():
        captions, reasons = clean(found, FEWEST_WORDS)
        left_out.update(reasons)
        if not captions:
            left_out["pairs without a sentence"] += 1
            continue
        before, after = (inside(pictures, f"{name}{end}.png", str(notes)) for end in ("", "_2"))
        pairs.append(PairFiles(name, name, split, None, captions, before, after))
    return Reading(tuple(pairs), left_out, listed)


CORPUS = Corpus(
    "spot_the_diff",
    "Spot-the-Diff: frames of surveillance cameras, free sentences of several annotators",
    TREE,
    read,
    {"train": 8_566, "val": 1_493, "test": 1_270},
)
