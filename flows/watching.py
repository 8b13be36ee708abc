"""Files that ``params.yaml`` names and no stage makes: a line of ``dvc.yaml`` lets the stage that reads one watch it.

DVC cannot fill in a path that may be null. So these lines are written whenever a command writes parameters or starts
the pipeline, each with the parameter that it stands for, and a stage refuses to read what is not watched.
"""

import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from procap.errors import BadInput
from procap.files import write_text

_SIGN = "# params.yaml: "
_LINE = re.compile(rf"^ *- .* {re.escape(_SIGN)}.*\n", re.MULTILINE)


@cache
def keys() -> dict[str, tuple[str, ...]]:
    """{section: its keys that name files or folders from elsewhere}."""
    from procap.config import Elsewhere, Params

    sections = {field.alias or name: field.annotation for name, field in Params.model_fields.items()}
    return {
        name: found
        for name, section in sections.items()
        if (
            found := tuple(
                key
                for key, field in getattr(section, "model_fields", {}).items()
                if Elsewhere in get_args(field.annotation)
            )
        )
    }


@cache
def reader(section: str) -> str:
    """The step that reads a section: the one of that name; ``caption`` for those of the captioners."""
    from procap.captioners import CAPTIONERS

    return "caption" if section in CAPTIONERS else section


def elsewhere(root: Path, step: str, params: Mapping[str, Any]) -> dict[str, str]:
    """{dotted key: path} of what a step's parameters name and what is there; what is not, the step complains of.

    Whatever captioner it runs for: the stages of one step watch the same files.
    """
    found: dict[str, str] = {}
    for section, key in ((section, key) for section, some in keys().items() for key in some if reader(section) == step):
        value = params.get(section, {}).get(key)
        many = {f".{number}": each for number, each in enumerate(value)} if isinstance(value, list | tuple) else {}
        named = many or {"": value}
        found |= {f"{section}.{key}{place}": each for place, each in named.items() if each and (root / each).exists()}
    return found


def watch(root: Path, params: Mapping[str, Any]) -> None:
    """Let the stages of ``dvc.yaml`` watch what these parameters name, and nothing that earlier ones named."""
    path = root / "dvc.yaml"
    if path.exists():
        text = path.read_text(encoding="utf-8")
        wanted = without(text)
        for step in dict.fromkeys(map(reader, keys())):
            wanted = _with(wanted, step, elsewhere(root, step, params))
        if wanted != text:
            write_text(path, wanted)


def without(text: str) -> str:
    """A ``dvc.yaml`` that watches nothing from elsewhere."""
    return _LINE.sub("", text)


def _with(text: str, step: str, files: Mapping[str, str]) -> str:
    lines = "".join(f"      - {_quoted(path)}  {_SIGN}{key}\n" for key, path in files.items())
    head = re.compile(rf"^  {step}:\n(?:(?:    .*)?\n)*?    deps:\n", re.MULTILINE)
    return head.sub(lambda found: found[0] + lines, text, count=1)


def _quoted(path: str) -> str:
    return json.dumps(path.replace("${", "\\${"), ensure_ascii=False)


def refuse_unwatched(root: Path, step: str, params: Mapping[str, Any], deps: Collection[str]) -> None:
    """Raise BadInput where a step's parameters name a file that is not among the ``deps`` of its stage."""
    for key, path in elsewhere(root, step, params).items():
        if path.replace("${", "\\${") not in deps:
            raise BadInput(
                f"DVC would not notice changes of {path}",
                where=f"params.yaml: {key}",
                expected=f"the file among the deps of the stage '{step}' in dvc.yaml",
                do=f"run `procap repro {step}` instead of `dvc repro`, this once: it puts it there",
            )
