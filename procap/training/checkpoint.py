"""The state of a running training in one file that is there whole or not at all: tensors and numbers, no pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: Any = None) -> None:
    """Write tensors and JSON-able facts; bytes depend on their values alone."""
    partial = path.with_suffix(".partial")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    save_file(tensors, partial, {"facts": json.dumps(facts, sort_keys=True)})
    partial.replace(path)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """(tensors, facts) that ``save_tensors`` wrote."""
    with safe_open(path, "pt") as file:
        facts = json.loads((file.metadata() or {}).get("facts", "null"))
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 - not a mapping


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
