"""Signals that ask a training to end, and when they may."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def undisturbed() -> Iterator[list[int]]:
    """Signals that ask this process to end wait for the end of the block, where they act as they would have before.

    Gives the list in which they wait. In a thread, which hears no signals, nothing happens.
    """
    waiting: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield waiting
        return
    former = {number: signal.getsignal(number) for number in ENDING}
    for number in former:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield waiting
    finally:
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for asked in waiting[:1]:
            signal.raise_signal(asked)
