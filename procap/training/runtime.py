"""What the machine is asked for: device, threads, precision, determinism."""

import contextlib
import os
from dataclasses import dataclass

import torch

from procap.training.device import choose_device


@dataclass(frozen=True)
class Runtime:
    """Where and how products are computed."""

    device: torch.device
    precision: torch.dtype

    def autocast(self) -> contextlib.AbstractContextManager:
        """Matrix products in ``precision``; nothing happens for float32."""
        if self.precision == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.precision)


def start_runtime(device: str, threads: int, precision: str) -> Runtime:
    """Set up this process: number of threads, deterministic algorithms; say where tensors go.

    ``device`` auto takes a GPU where there is one; ``threads`` 0 means all cores.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    return Runtime(choose_device(device, threads), getattr(torch, precision))
