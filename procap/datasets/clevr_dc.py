"""CLEVR-DC (Kim et al., 2021): one pair per scene, the camera anywhere in the picture after.

Published as numbered pictures, ``bef/17.png`` and ``aft/17.png``; also read in the form into which later code renames
them, ``images/000017.png`` and ``sc_images/000017.png``.
"""

import re
from pathlib import Path
from typing import Any

from procap.datasets.clevr_change import read_splits
from procap.datasets.corpus import (
    NO_CHANGE,
    TYPE_NAMES,
    UNKNOWN_CHANGE,
    Corpus,
    PairFiles,
    Reading,
    bad_form,
    first_there,
    read_json,
    refuse,
    sentences_of,
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
    said, splits = _captions(captions), read_splits(splits_file)
    types = _types(folder / "type_mapping.json")
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


def _captions(path: Path) -> dict[int, tuple[str, ...]]:
    content = read_json(path, _FORM)
    if not isinstance(content, dict):
        raise bad_form(path, f"a {type(content).__name__} at the top", _FORM)
    found = {}
    for name, sentences in content.items():
        scene = _scene(name, path)
        if scene in found:
            raise bad_form(path, f"scene {scene} is there twice", _FORM)
        found[scene] = sentences_of(sentences, path, f"'{name}'", _FORM)
    return found


def _types(path: Path) -> dict[int, str]:
    if not path.exists():
        return {}
    names = TYPE_NAMES | NOTHING
    form = "{change type: [picture, ...]} with " + ", ".join(names)
    content = read_json(path, form)
    if not isinstance(content, dict):
        raise bad_form(path, f"a {type(content).__name__} at the top", form)
    found = {}
    for kind, scenes in content.items():
        if kind not in names or not isinstance(scenes, list):
            raise bad_form(path, f"'{kind}' is no change type with a list of pictures", form)
        for scene in scenes:
            found[_scene(scene, path)] = names[kind]
    return found


def _scene(name: Any, path: Path) -> int:
    match = re.match(r"^(\d+)(?:\.png)?$", str(name))
    if not match:
        raise bad_form(path, f"{name!r} is no number of a scene", "numbers, or names like 000017.png")
    return int(match[1])
