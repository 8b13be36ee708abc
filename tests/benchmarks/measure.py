"""Seconds, matrix product rates and memory of this machine."""

import gc
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SQUARE = 2048


@dataclass(frozen=True)
class Taken:
    """What a call took."""

    seconds: float
    cpu: float
    """Seconds of all threads together: other load on the machine hardly shows in it."""


def taken(call: Callable[[], Any]) -> Taken:
    start, cpu = time.perf_counter(), time.process_time()
    call()
    return Taken(time.perf_counter() - start, time.process_time() - cpu)


def seconds(call: Callable[[], Any]) -> float:
    return taken(call).seconds


def alternate(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Taken]]:
    """What each way took, one after another, round by round: other load on the machine then meets all of them."""
    found: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            gc.collect()
            found[name].append(taken(call))
    return found


def median(several: list[Taken]) -> Taken:
    return Taken(*(statistics.median(getattr(one, name) for one in several) for name in ("seconds", "cpu")))


def matmul_rate(dtype: torch.dtype, rounds: int = 6) -> float:
    """Operations per second of the best of some products of two square matrices."""
    a, b = (torch.randn(SQUARE, SQUARE, dtype=dtype) for _ in range(2))
    torch.mm(a, b)
    return 2 * SQUARE**3 / min(seconds(lambda: torch.mm(a, b)) for _ in range(rounds))


def copy_rate(rounds: int = 5) -> float:
    """Bytes per second read and written by a copy that no cache holds."""
    a = torch.zeros(2**27)
    b = torch.empty_like(a)
    return 2 * a.nbytes / min(seconds(lambda: b.copy_(a)) for _ in range(rounds))


def peak_memory() -> float:
    """GiB that this process had in memory at most. (``ru_maxrss`` would count what its parent had.)"""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "this system does not tell"
    return int(found[1]) / 2**20


def in_another_process(*words: str) -> dict[str, Any]:
    """What ``python -m tests.benchmarks <words>`` prints as JSON: its peak of memory is its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *words], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ] if Path("/proc/cpuinfo").exists() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "amx": torch.cpu._is_amx_tile_supported(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
