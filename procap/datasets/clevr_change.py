"""A corpus laid out as CLEVR-Change is: three folders of pictures, captions by the name of the picture before.

``images/CLEVR_default_000017.png`` is before, ``sc_images/CLEVR_semantic_000017.png`` changed and
``nsc_images/CLEVR_nonsemantic_000017.png`` a distractor. ``masks/`` and ``type_mapping.json`` may be there or not.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SPLITS, UNKNOWN_CHANGE
from procap.errors import BadInput

TYPE_NAMES = {name: name for name in CHANGE_TYPES} | {"texture": "material"}
"""What CLEVR-Change calls the types."""

_NAME = re.compile(r"^CLEVR_default_(\d+)\.png$")
_FORM = "{name of the picture before: [sentence, ...]}"


@dataclass(frozen=True)
class PairFiles:
    """One pair, its files and what is said of it; nothing was decoded yet."""

    id: str
    group: str
    split: str
    change_type: str
    captions: tuple[str, ...]
    before: Path
    after: Path
    mask: Path | None
    """None for a distractor, whose mask is empty, and in a corpus without masks."""


def read_pairs(folder: Path, limit: int | None = None) -> list[PairFiles]:
    """Every pair in order of scene, changed before distractor; ``limit``: only the first pairs.

    Raises BadInput that names the files that are missing, or that no caption or split speaks of.
    """
    if not folder.is_dir():
        raise BadInput(
            "the corpus is not there",
            where=str(folder),
            expected="images/ sc_images/ nsc_images/ change_captions.json no_change_captions.json splits.json",
            do="unpack CLEVR-Change there, or set dataset.name: rendered",
        )
    changed, unchanged = (_captions(folder / f"{kind}_captions.json") for kind in ("change", "no_change"))
    splits, types = _splits(folder / "splits.json"), _types(folder / "type_mapping.json")
    scenes = sorted(changed.keys() | unchanged.keys())
    _complain(
        [scene for scene in scenes if scene not in splits],
        "scenes with captions are in no split",
        folder / "splits.json",
        "the number of every scene in train, val or test",
    )
    pairs = list(_pairs(folder, scenes, changed, unchanged, splits, types))[:limit]
    missing = [path for pair in pairs for path in (pair.before, pair.after) if not path.is_file()]
    _complain(
        [path.relative_to(folder).as_posix() for path in dict.fromkeys(missing)],
        "pictures are missing",
        folder,
        "both pictures of every pair that has captions",
    )
    if limit is None:
        _refuse_strangers(folder, pairs)
    return pairs


def has_masks(folder: Path) -> bool:
    """Whether the corpus says where the changes are."""
    return (folder / "masks").is_dir()


def _pairs(
    folder: Path,
    scenes: list[int],
    changed: dict[int, tuple[str, ...]],
    unchanged: dict[int, tuple[str, ...]],
    splits: dict[int, str],
    types: dict[int, str],
) -> Iterator[PairFiles]:
    for scene in scenes:
        group = f"{scene:06d}"
        before = folder / "images" / f"CLEVR_default_{group}.png"
        if scene in changed:
            after = folder / "sc_images" / f"CLEVR_semantic_{group}.png"
            mask = folder / "masks" / f"CLEVR_mask_{group}.png" if has_masks(folder) else None
            kind = types.get(scene, UNKNOWN_CHANGE)
            yield PairFiles(f"{group}c", group, splits[scene], kind, changed[scene], before, after, mask)
        if scene in unchanged:
            after = folder / "nsc_images" / f"CLEVR_nonsemantic_{group}.png"
            yield PairFiles(f"{group}nc", group, splits[scene], NO_CHANGE, unchanged[scene], before, after, None)


def _refuse_strangers(folder: Path, pairs: list[PairFiles]) -> None:
    """Pictures that belong to no pair hint at captions that were lost."""
    known = {path for pair in pairs for path in (pair.before, pair.after)}
    found = [path for part in ("images", "sc_images", "nsc_images") for path in sorted((folder / part).glob("*.*"))]
    _complain(
        [path.relative_to(folder).as_posix() for path in found if path not in known and not path.name.startswith(".")],
        "pictures have no captions",
        folder,
        "captions for every picture",
    )


def _captions(path: Path) -> dict[int, tuple[str, ...]]:
    content = _read(path, _FORM)
    if not isinstance(content, dict):
        raise _form(path, f"a {type(content).__name__} at the top", _FORM)
    found = {}
    for name, sentences in content.items():
        scene = _scene(name, path)
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise _form(path, f"the captions of '{name}' are no list of sentences", _FORM)
        if scene in found:
            raise _form(path, f"scene {scene} is there twice", _FORM)
        found[scene] = tuple(sentences)
    return found


def _splits(path: Path) -> dict[int, str]:
    form = '{"train": [number of a scene, ...], "val": [...], "test": [...]}'
    content = _read(path, form)
    if not isinstance(content, dict) or set(content) != set(SPLITS):
        raise _form(path, "these are not the three splits", form)
    found: dict[int, str] = {}
    for split in SPLITS:
        for scene in content[split] if isinstance(content[split], list) else [None]:
            if type(scene) is not int:
                raise _form(path, f"split '{split}' has {scene!r}", form)
            if scene in found:
                raise _form(path, f"scene {scene} is in '{found[scene]}' and in '{split}'", "every scene once")
            found[scene] = split
    return found


def _types(path: Path) -> dict[int, str]:
    """Change types by scene; empty where the corpus does not tell."""
    form = '{"color": [name of the picture before, ...], ...} with ' + ", ".join(TYPE_NAMES)
    if not path.exists():
        return {}
    content = _read(path, form)
    if not isinstance(content, dict):
        raise _form(path, f"a {type(content).__name__} at the top", form)
    found = {}
    for kind, names in content.items():
        if kind not in TYPE_NAMES or not isinstance(names, list):
            raise _form(path, f"'{kind}' is no change type with a list of pictures", form)
        for name in names:
            found[_scene(name, path)] = TYPE_NAMES[kind]
    return found


def _scene(name: Any, path: Path) -> int:
    match = _NAME.match(name) if isinstance(name, str) else None
    if not match:
        raise _form(path, f"{name!r} is no name of a picture before", "names like CLEVR_default_000017.png")
    return int(match[1])


def _read(path: Path, form: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _form(path, "the file is not there", form) from None
    except (ValueError, OSError) as error:
        raise _form(path, f"this is not JSON ({error})", form) from None


def _form(path: Path, what: str, expected: str) -> BadInput:
    return BadInput(what, where=str(path), expected=expected, do="mend the file, or take it from the corpus anew")


def _complain(names: list[Any], what: str, where: Path, expected: str) -> None:
    if names:
        shown = ", ".join(map(str, names[:10])) + (" ..." if len(names) > 10 else "")
        raise BadInput(
            f"{len(names)} {what}: {shown}", where=str(where), expected=expected, do="complete the corpus, or prune it"
        )
