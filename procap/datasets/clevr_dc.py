"""CLEVR-DC (Kim et al., 2021): one pair per scene, the camera anywhere in the picture after.

Published as numbered pictures, ``bef/17.png`` and ``aft/17.png``; also read in the form into which later code renames
them, ``images/000017.png`` and ``sc_images/000017.png``.
"""

import re
from pathlib import Path
from typing import Any

from procap.datasets.clevr_change import read_captions, read_splits, read_types
from procap.datasets.corpus import (
    NO_CHANGE,
    TYPE_NAMES,
    UNKNOWN_CHANGE,
    Corpus,
    PairFiles,
    Reading,
    bad_form,
    first_there,
    refuse,
)

TREE = """\
bef/               0.png ...    before   (or images/     000000.png ...)
aft/               0.png ...    after    (or sc_images/  000000.png ...)
captions.json      {"0": ["a sentence", ...], ...}
                   (or change_captions.json; names with .png are taken too)
split.json         {"train": [0, ...], "val": [...], "test": [...]}
                   (or splits.json)
type_mapping.json  {"color": ["000000.png", ...], ..., "nothing": [...]}
                   optional
"""

NOTHING = dict.fromkeys(("nothing", "none", "no_change", "no-change", "distractor"), NO_CHANGE)
"""What the corpus and its users call a pair that did not change."""

_FORM = "{number of the scene: [sentence, ...]}"


def read(folder: Path) -> Reading:
    """Every pair in order of scene; without a ``type_mapping.json`` its captions say whether anything changed."""
    captions = first_there(folder, ["captions.json", "change_captions.json"], "captions and what belongs to them")
    splits_file = first_there(folder, ["split.json", "splits.json"], "the splits")
    ends = [first_there(folder, names, "pictures") for names in (("bef", "images"), ("aft", "sc_images"))]
    said, splits = read_captions(captions, _FORM, _scene), read_splits(splits_file)
    types = read_types(folder / "type_mapping.json", TYPE_NAMES | NOTHING, _scene)
    refuse(
        [scene for scene in said if scene not in splits],
        "scenes with captions are in no split",
        splits_file,
        "the number of every scene in train, val or test",
    )
    pairs = []
    for scene in sorted(said):
        kind = types.get(scene, UNKNOWN_CHANGE) if types else None
        name = f"{scene:06d}"
        before, after = (end / (f"{scene}.png" if end.name in ("bef", "aft") else f"{name}.png") for end in ends)
        pairs.append(PairFiles(name, name, splits[scene], kind, said[scene], before, after))
    return Reading(tuple(pairs))


CORPUS = Corpus(
    "clevr_dc",
    "CLEVR-DC: rendered scenes under extreme changes of viewpoint",
    TREE,
    read,
    {"train": 40_800, "val": 2_400, "test": 4_800},
)


def _scene(name: Any, path: Path) -> int:
    match = re.match(r"^(\d+)(?:\.png)?$", str(name))
    if not match:
        raise bad_form(path, f"{name!r} is no number of a scene", "numbers, or names like 000017.png")
    return int(match[1])
