"""CLEVR-Change (Park et al., 2019): three folders of pictures, captions by the name of the picture before.

``images/CLEVR_default_000017.png`` is before, ``sc_images/CLEVR_semantic_000017.png`` changed and
``nsc_images/CLEVR_nonsemantic_000017.png`` a distractor. ``masks/`` and ``type_mapping.json`` may be there or not.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from procap.datasets.corpus import (
    NO_CHANGE,
    SPLITS,
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
images/                  CLEVR_default_000000.png ...      before
sc_images/               CLEVR_semantic_000000.png ...     changed
nsc_images/              CLEVR_nonsemantic_000000.png ...  camera, light only
change_captions.json     {"CLEVR_default_000000.png": ["a sentence", ...],
                         ...}
no_change_captions.json  likewise
splits.json              {"train": [0, ...], "val": [...], "test": [...]}
type_mapping.json        {"color": ["CLEVR_default_000000.png", ...], ...}
                         optional
masks/                   CLEVR_mask_000000.png ...
                         optional, not in the published data
"""

_NAME = re.compile(r"^CLEVR_default_(\d+)\.png$")
_FORM = "{name of the picture before: [sentence, ...]}"


def read(folder: Path) -> Reading:
    """Every pair in order of scene, changed before distractor; BadInput also for pictures without captions."""
    first_there(folder, ["change_captions.json"], "change_captions.json and what belongs to it")
    changed, unchanged = (
        read_captions(folder / f"{kind}_captions.json", _FORM, _scene) for kind in ("change", "no_change")
    )
    splits, types = read_splits(folder / "splits.json"), read_types(folder / "type_mapping.json", TYPE_NAMES, _scene)
    scenes = sorted(changed.keys() | unchanged.keys())
    refuse(
        [scene for scene in scenes if scene not in splits],
        "scenes with captions are in no split",
        folder / "splits.json",
        "the number of every scene in train, val or test",
    )
    pairs = tuple(_pairs(folder, scenes, changed, unchanged, splits, types))
    _refuse_strangers(folder, pairs)
    return Reading(pairs)


CORPUS = Corpus(
    "clevr_change",
    "CLEVR-Change: rendered scenes, one change or none, small moves of camera and light",
    TREE,
    read,
    {"train": 67_660, "val": 3_976, "test": 7_970},
)


def _pairs(
    folder: Path,
    scenes: list[int],
    changed: dict[int, tuple[str, ...]],
    unchanged: dict[int, tuple[str, ...]],
    splits: dict[int, str],
    types: dict[int, str],
) -> Iterator[PairFiles]:
    masked = (folder / "masks").is_dir()
    for scene in scenes:
        group = f"{scene:06d}"
        before = folder / "images" / f"CLEVR_default_{group}.png"
        if scene in changed:
            after = folder / "sc_images" / f"CLEVR_semantic_{group}.png"
            mask = folder / "masks" / f"CLEVR_mask_{group}.png" if masked else None
            kind = types.get(scene, UNKNOWN_CHANGE)
            yield PairFiles(f"{group}c", group, splits[scene], kind, changed[scene], before, after, mask)
        if scene in unchanged:
            after = folder / "nsc_images" / f"CLEVR_nonsemantic_{group}.png"
            yield PairFiles(f"{group}nc", group, splits[scene], NO_CHANGE, unchanged[scene], before, after)


def _refuse_strangers(folder: Path, pairs: tuple[PairFiles, ...]) -> None:
    """Pictures that belong to no pair hint at captions that were lost."""
    known = {path for pair in pairs for path in (pair.before, pair.after)}
    found = [path for part in ("images", "sc_images", "nsc_images") for path in sorted((folder / part).glob("*.*"))]
    refuse(
        [path.relative_to(folder).as_posix() for path in found if path not in known and not path.name.startswith(".")],
        "pictures have no captions",
        folder,
        "captions for every picture",
    )


SceneOf = Callable[[Any, Path], int]
"""(name in a file, the file) -> number of the scene; raises BadInput for a name that is none."""


def read_captions(path: Path, form: str, scene_of: SceneOf) -> dict[int, tuple[str, ...]]:
    """The sentences of every scene. Raises BadInput."""
    content = read_json(path, form)
    if not isinstance(content, dict):
        raise bad_form(path, f"a {type(content).__name__} at the top", form)
    found = {}
    for name, sentences in content.items():
        scene = scene_of(name, path)
        if scene in found:
            raise bad_form(path, f"scene {scene} is there twice", form)
        found[scene] = sentences_of(sentences, path, f"'{name}'", form)
    return found


def read_splits(path: Path) -> dict[int, str]:
    """The split of every scene. Raises BadInput."""
    form = '{"train": [number of a scene, ...], "val": [...], "test": [...]}'
    content = read_json(path, form)
    if not isinstance(content, dict) or set(content) != set(SPLITS):
        raise bad_form(path, "these are not the three splits", form)
    found: dict[int, str] = {}
    for split in SPLITS:
        for scene in content[split] if isinstance(content[split], list) else [None]:
            if type(scene) is not int:
                raise bad_form(path, f"split '{split}' has {scene!r}", form)
            if scene in found:
                raise bad_form(path, f"scene {scene} is in '{found[scene]}' and in '{split}'", "every scene once")
            found[scene] = split
    return found


def read_types(path: Path, types: Mapping[str, str], scene_of: SceneOf) -> dict[int, str]:
    """Change types by scene, as ``types`` calls them; empty where the corpus does not tell. Raises BadInput."""
    if not path.exists():
        return {}
    form = "{change type: [picture, ...], ...} with " + ", ".join(types)
    content = read_json(path, form)
    if not isinstance(content, dict):
        raise bad_form(path, f"a {type(content).__name__} at the top", form)
    found = {}
    for kind, names in content.items():
        if kind not in types or not isinstance(names, list):
            raise bad_form(path, f"'{kind}' is no change type with a list of pictures", form)
        for name in names:
            found[scene_of(name, path)] = types[kind]
    return found


def _scene(name: Any, path: Path) -> int:
    match = _NAME.match(name) if isinstance(name, str) else None
    if not match:
        raise bad_form(path, f"{name!r} is no name of a picture before", "names like CLEVR_default_000017.png")
    return int(match[1])
