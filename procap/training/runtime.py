"""What the machine is asked for: device, threads, precision, memory, determinism."""

import contextlib
import ctypes
import os
from dataclasses import dataclass

import numpy as np
import torch

from procap.errors import BadInput
from procap.training.team import is_member


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

    def send(self, array: np.ndarray) -> torch.Tensor:
        """An array on the device; to a GPU from pinned memory, and nobody waits for it."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)


def start_runtime(device: str, threads: int, precision: str, deterministic: bool = True) -> Runtime:
    """Set up this process: number of threads, memory, deterministic algorithms; say where tensors go.

    ``device`` auto takes a GPU where there is one; ``threads`` 0 means all cores. Without ``deterministic``, a GPU may
    use faster algorithms that give other bits each time; a CPU's are the same.
    """
    keep_freed_memory()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # use_deterministic_algorithms also loads the compiler, for a second
    torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    torch.backends.cudnn.benchmark = not deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time only
    return Runtime(choose_device(device, threads), getattr(torch, precision))


MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2
"""Numbers of ``mallopt``, from glibc's malloc.h."""


def keep_freed_memory() -> None:
    """Let glibc keep what tensors free for the next ones, which otherwise get fresh pages from the kernel.

    Nothing happens elsewhere, or where the user has set a MALLOC_ variable.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(MMAP_THRESHOLD, 2**31 - 1):
            mallopt(MMAP_THRESHOLD, 2**25)  # the most that glibc before 2.35 takes
        mallopt(TRIM_THRESHOLD, -1)
        mallopt(TOP_PAD, 2**28)


def choose_device(device: str, threads: int) -> torch.device:
    """Turn ``hardware.device`` (auto, cpu or cuda) and ``hardware.threads`` (0: all cores) into a device to use.

    Sets the number of CPU threads of this process.
    """
    if threads:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "no CUDA device was found",
            where="params.yaml: hardware.device",
            expected="a GPU that torch can use",
            do="set hardware.device to auto or cpu, or install a torch build for your GPU",
        )
    return _gpu() if device == "cuda" else torch.device(device)


def _gpu() -> torch.device:
    """Each process of a team has its own, and torch's choice is another process' otherwise."""
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_member() else torch.device("cuda")
