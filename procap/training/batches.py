"""Frozen networks over many batches: on a CPU a core per batch, which leaves no core waiting between operations."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from procap.datasets.parallel import in_order


def each_batch(work: Callable[[Any], Any], batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """``work`` of every batch, in order, with as many batches at once as this process has CPU threads.

    On other devices one at a time. ``work`` draws nothing and changes nothing.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield from map(work, batches)
        return
    torch.set_num_threads(1)
    try:
        yield from in_order(work, batches, threads, 2 * threads)
    finally:
        torch.set_num_threads(threads)
