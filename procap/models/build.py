"""Making networks whose first weights come from a generator that is handed in."""

import contextlib
import io
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def build(make: Callable[[], M], generator: torch.Generator) -> M:
    """Call ``make`` so that its weights depend on ``generator`` alone; the global generator stays as it was."""
    seed = int(torch.randint(2**31, (), generator=generator))
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(seed)
        return make()


def frozen(module: M) -> M:
    """The module in evaluation mode, without gradients."""
    return module.requires_grad_(False).eval()


def count_weights(module: nn.Module) -> int:
    """Number of trainable weights."""
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
