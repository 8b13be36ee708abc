"""Micro-batches: pairs of several requests go through the model together, in one thread."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8

from flows.serving.refusal import Refusal

Picture = UInt8[np.ndarray, "h w 3"]


@dataclass(frozen=True, eq=False)
class Task:
    """What is asked of a captioner."""

    captioner: Any
    explain: bool = False
    beams: int = 1

    def like(self, other: "Task") -> bool:
        """Whether pairs of both can go together."""
        same = self.explain, self.beams
        return self.captioner is other.captioner and same == (other.explain, other.beams)


@dataclass
class Job:
    """A pair that waits; ``done`` becomes its caption."""

    task: Task
    pair: tuple[Picture, Picture]
    done: "asyncio.Future[Any]"
    came: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class Batched:
    """The captions of a request, in order, and seconds that its slowest pair waited and was worked on."""

    captions: list[Any]
    waited: float
    worked: float


class Batcher:
    """Takes up to ``largest`` pairs that are there, or arrive within ``patience`` seconds, to the model at once.

    A captioner's answer does not depend on the company its pair is in, so batches change speed only.
    """

    def __init__(
        self, largest: int, patience: float, room: int, seen: Callable[[int, float], None] = lambda pairs, seconds: None
    ) -> None:
        self.largest, self.patience, self.room, self.seen = largest, patience, room, seen
        self.waiting: deque[Job] = deque()
        self.arrived = asyncio.Event()
        self.closing = False
        self.thread = ThreadPoolExecutor(1, "model")
        self.worker: asyncio.Task | None = None

    def start(self) -> None:
        """Begin to work; needs a running event loop."""
        self.worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Take nothing new, finish what waits."""
        self.closing = True
        self.arrived.set()
        if self.worker:
            await self.worker
        self.thread.shutdown()

    async def caption(self, task: Task, pairs: Sequence[tuple[Picture, Picture]]) -> Batched:
        """Wait in line for the captions of some pairs; whoever is cancelled leaves the line.

        Raises Refusal where the line is too long (429) or the service is closing (503).
        """
        if self.closing:
            raise closing()
        if len(self.waiting) + len(pairs) > self.room:
            raise Refusal(
                429,
                f"{len(self.waiting)} pairs wait already",
                where="the queue",
                expected=f"at most {self.room} pairs that wait",
                do="try again in a moment",
                later=1,
            )
        loop = asyncio.get_running_loop()
        jobs = [Job(task, pair, loop.create_future()) for pair in pairs]
        self.waiting.extend(jobs)
        self.arrived.set()
        captions = await asyncio.gather(*(job.done for job in jobs))
        return Batched(
            list(captions),
            max(job.started - job.came for job in jobs),
            max(job.ended - job.started for job in jobs),
        )

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := await self._next():
            started = time.perf_counter()
            try:
                captions = await loop.run_in_executor(self.thread, run, batch[0].task, [job.pair for job in batch])
            except Exception as error:
                for job in batch:
                    _settle(job, error=error)
                continue
            ended = time.perf_counter()
            self.seen(len(batch), ended - started)
            for job, caption in zip(batch, captions, strict=True):
                job.started, job.ended = started, ended
                _settle(job, caption)

    async def _next(self) -> list[Job]:
        """The first pair that waits and those of the same task behind it; nothing only when closing."""
        while True:
            while self.waiting and self.waiting[0].done.done():
                self.waiting.popleft()
            if self.waiting:
                break
            if self.closing:
                return []
            self.arrived.clear()
            await self.arrived.wait()
        if self.patience and len(self.waiting) < self.largest and not self.closing:
            await asyncio.sleep(self.patience)
        batch: list[Job] = []
        left: deque[Job] = deque()
        for job in self.waiting:
            if job.done.done():
                continue
            fits = len(batch) < self.largest and (not batch or job.task.like(batch[0].task))
            (batch if fits else left).append(job)
        self.waiting = left
        return batch or await self._next()


def run(task: Task, pairs: Sequence[tuple[Picture, Picture]]) -> list[Any]:
    """The captions of a batch."""
    from procap.captioners import Decoding

    before, after = (list(pictures) for pictures in zip(*pairs, strict=True))
    return task.captioner.caption(before, after, explain=task.explain, decoding=Decoding(task.beams))


def closing() -> Refusal:
    """Said to whoever comes while the service ends."""
    return Refusal(
        503, "the service is closing", where="the service", expected="a service that runs", do="ask another", later=5
    )


def _settle(job: Job, caption: Any = None, error: Exception | None = None) -> None:
    if job.done.done():  # whoever asked is gone
        return
    if error is not None:
        job.done.set_exception(error)
    else:
        job.done.set_result(caption)
