"""Work on all cores whose results are taken in order, a bounded number of them waiting in memory."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

WAITING = 64


def in_order(
    work: Callable[[Any], Any], items: Iterable[Any], threads: int | None = None, waiting: int = WAITING
) -> Iterator[Any]:
    """``work`` of every item, in threads: for work that lets go of the interpreter lock, as decoding and kernels do.

    ``threads`` None means one per core; at most ``waiting`` results are held.
    """
    source = iter(items)
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        while batch := list(islice(source, waiting)):
            yield from pool.map(work, batch)
