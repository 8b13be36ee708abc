"""Tensors and numbers in one file that is there whole or not at all, without pickle; states of a running training."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from procap.errors import FULL
from procap.files import replacing

STATES = 2
"""As many are kept: where the last one is torn, the one before is taken."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Any = None, *, durable: bool = False) -> None:
    """Write tensors and JSON-able facts; bytes depend on their values alone. ``durable`` as in ``replacing``."""
    ordered = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    with replacing(path, durable=durable) as partial:
        try:
            save_file(ordered, partial, {"facts": json.dumps(facts, sort_keys=True)})
        except SafetensorError as error:  # it tells of the system's errors in words alone
            for number in (number for number in FULL if f"os error {number})" in str(error)):
                raise OSError(number, os.strerror(number), str(path)) from None
            raise


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """(tensors, facts) that ``save_tensors`` wrote."""
    with safe_open(path, "pt") as file:
        facts = json.loads((file.metadata() or {}).get("facts", "null"))
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 - not a mapping


def save_state(folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Any) -> None:
    """Write the state after update ``step``, with its digest; it and the one before stay."""
    told = {"facts": facts, "digest": _digest(tensors, facts)}
    save_tensors(folder / f"state-{step:09d}.safetensors", tensors, told, durable=True)
    for older in _states(folder)[STATES:]:
        older.unlink(missing_ok=True)


def newest_state(folder: Path) -> tuple[dict[str, Tensor], Any, list[Path]]:
    """(tensors, facts, damaged files) of the newest state that is what was written; facts are None without one."""
    damaged: list[Path] = []
    for path in _states(folder):
        try:
            tensors, told = load_tensors(path)
            if told["digest"] == _digest(tensors, told["facts"]):
                return tensors, told["facts"], damaged
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            pass
        damaged.append(path)
    return {}, None, damaged


def _states(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("state-*.safetensors"), reverse=True)


def _digest(tensors: Mapping[str, Tensor], facts: Any) -> str:
    """sha256 of names, types, shapes and bytes, and of the facts as JSON has them."""
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors by parameter number and name."""
    state = optimiser.state_dict()["state"]
    return {f"{number}.{name}": torch.as_tensor(value) for number, s in state.items() for name, value in s.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Undo ``optimiser_tensors``; learning rates stay as the optimiser has them."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def clone_weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's weights that later updates do not touch."""
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
