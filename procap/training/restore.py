"""What was written as JSON and weights, as settings and networks again."""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch

from procap.errors import BadInput
from procap.models.build import frozen
from procap.models.vqgan import VQGAN, VQGANConfig
from procap.training.checkpoint import load_tensors


def read_vqgan(weights: Path, config: Mapping[str, Any]) -> VQGAN:
    """A frozen VQGAN from its weights and sizes."""
    with contextlib.redirect_stdout(io.StringIO()):
        vqgan = VQGAN(from_json(VQGANConfig, config))
    vqgan.load_state_dict(load_tensors(weights)[0])
    return frozen(vqgan).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def from_json(kind: Any, values: Mapping[str, Any], where: str = "config.json") -> Any:
    """Undo ``asdict`` for nested frozen dataclasses; lists become tuples, what is left out takes its default.

    Raises BadInput, naming ``where``, for a field or a value that this version does not know.
    """
    from pydantic import TypeAdapter, ValidationError

    known = get_type_hints(kind)
    if unknown := sorted(set(values) - set(known)):
        raise _unknown(f"unknown options of {kind.__name__}: {', '.join(unknown)}", where, ", ".join(known))
    made = {}
    for item in fields(kind):
        if item.name not in values and item.default is not MISSING:
            continue
        value, due = values.get(item.name), known[item.name]
        if is_dataclass(due) and isinstance(value, Mapping):
            value = from_json(due, value, where)
        try:
            value = tuple(value) if isinstance(value, list) else value
            made[item.name] = TypeAdapter(due).validate_python(value, strict=True)
        except ValidationError:
            raise _unknown(f"{kind.__name__}.{item.name} is {value!r}", where, str(due)) from None
    return kind(**made)


def _unknown(what: str, where: str, expected: str) -> BadInput:
    return BadInput(what, where=where, expected=expected, do="use the version of procap that wrote it")
