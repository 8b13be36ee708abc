"""Writing values into ``params.yaml`` so that its comments, order and layout survive."""

import io
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from flows.watching import watch
from procap.errors import BadInput
from procap.files import write_text

FOLDER = Path("infra/presets")


def preset_names(root: Path) -> list[str]:
    """The presets that this workspace has. Raises BadInput where it has none."""
    found = sorted(path.stem for path in (root / FOLDER).glob("*.yaml"))
    if not found:
        raise BadInput(
            "no presets are here", where=str(root / FOLDER), expected="the project's folder", do="run it there"
        )
    return found


def describe_preset(root: Path, name: str) -> str:
    """The comment at the head of a preset, or nothing."""
    lines = (root / FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    head = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").strip() for line in lines[:head])


def apply_preset(root: Path, name: str) -> list[str]:
    """Write a preset over ``params.yaml``; says which keys changed. Nothing is written unless all is valid."""
    return write_params(root / "params.yaml", read_preset(root, name), source=name)


def read_preset(root: Path, name: str) -> Any:
    """The values of a preset, in their sections."""
    if name not in preset_names(root):
        raise BadInput(
            f"no preset '{name}'",
            where=str(root / FOLDER),
            expected="one of " + ", ".join(preset_names(root)),
            do="list them with `procap preset list`",
        )
    return read_sections(root / FOLDER / f"{name}.yaml", "safe")


def apply_overrides(path: Path, overrides: Mapping[str, Any]) -> list[str]:
    """Write ``{"caption.steps": 10}`` into a parameter file; says which keys changed."""
    return write_params(path, nested(overrides), source="overrides")


def nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    values: dict[str, Any] = {}
    for dotted, value in overrides.items():
        *sections, key = dotted.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise _twice(dotted, section)
        if isinstance(place.get(key), dict) and isinstance(value, Mapping):
            merge(place[key], value)
        elif key in place:
            raise _twice(dotted, key)
        else:
            place[key] = deepcopy(value)
    return values


def _twice(dotted: str, key: str) -> BadInput:
    return BadInput(
        f"'{key}' is given a value, and again by '{dotted}'",
        where=f"overrides: {dotted}",
        expected="each parameter once",
        do="leave one of them out",
    )


def write_params(path: Path, values: Mapping[str, Any], source: str) -> list[str]:
    """Merge nested ``values`` into a parameter file, if what results is valid; says which keys changed.

    ``source`` is named in complaints.
    """
    from ruamel.yaml import YAML

    from procap.config import check_params

    document = read_sections(path, "rt")
    changed = merge(document, values)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    text = io.StringIO()
    yaml.dump(document, text)
    check_params(YAML(typ="safe").load(text.getvalue()), where=f"{path} with {source}")
    if changed:
        write_text(path, text.getvalue())
    watch(path.parent, document)
    return changed


def read_sections(path: Path, kind: str) -> Any:
    """A YAML file with a mapping at the top; ``kind`` is ruamel's: safe, or rt to keep comments."""
    from ruamel.yaml import YAML, YAMLError

    try:
        values = YAML(typ=kind).load(path.read_text(encoding="utf-8")) or {}
        if not isinstance(values, Mapping):
            raise YAMLError(f"a {type(values).__name__} at the top")
    except (OSError, YAMLError, UnicodeDecodeError) as error:
        raise BadInput(
            f"cannot be read: {' '.join(str(error).split())}",
            where=str(path),
            expected="sections",
            do="mend that file, or run from the project's folder",
        ) from None
    return values


def merge(document: Any, values: Mapping[str, Any], above: str = "") -> list[str]:
    """Put ``values`` into a round-trip document; lists are filled in place, which keeps their comments and form."""
    changed = []
    for key, value in values.items():
        name = f"{above}{key}"
        old = document.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            changed += merge(old, value, name + ".")
        elif key not in document or old != value:
            if isinstance(value, list | tuple) and isinstance(old, list):
                old[:] = list(value)
            else:
                document[key] = value
            changed.append(name)
    return changed
