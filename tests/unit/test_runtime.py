"""What ``start_runtime`` asks of the machine."""

import subprocess
import sys

import pytest
import torch

from procap.training.runtime import start_runtime

FAULTS = """
import resource, sys
import torch
from procap.training.runtime import keep_freed_memory

def faults(tensors):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.empty(2**23).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults(6)
keep_freed_memory()
faults(48)  # small objects that lie between two tensors cost fresh pages until the heap has settled: up to a dozen
print(first, faults(6))
"""


def test_results_are_deterministic_and_new_tensors_are_not_filled():
    start_runtime("cpu", 1, "float32")
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has mallopt")
@pytest.mark.parametrize(("environment", "kept"), [({}, True), ({"MALLOC_TOP_PAD_": "131072"}, False)])
def test_freed_memory_is_kept_unless_the_user_says_otherwise(environment, kept, monkeypatch):
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, later = map(int, done.stdout.split())
    assert first > 6 * 2**25 / 4096 / 2, "each tensor had fresh pages, or this shows nothing"
    assert (later < first / 2) == kept
