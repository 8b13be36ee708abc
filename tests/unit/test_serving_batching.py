"""Pairs of several requests go through the model together, and no request feels it but by the clock."""

import asyncio
import threading

import numpy as np
import pytest

from flows.serving.batching import Batcher, Task
from flows.serving.refusal import Refusal
from tests.serving import SIDE, Teller

GRAY = np.full((SIDE, SIDE, 3), 128, np.uint8)


def pair(shade: int):
    return np.full((SIDE, SIDE, 3), shade, np.uint8), GRAY


async def started(largest: int = 4, patience: float = 0.0, room: int = 20) -> Batcher:
    batcher = Batcher(largest, patience, room)
    batcher.start()
    return batcher


async def held(batcher: Batcher, teller: Teller) -> asyncio.Task:
    """Keep the model busy with one pair until the teller's gate opens."""
    teller.gate = threading.Event()
    first = asyncio.create_task(batcher.caption(Task(teller), [pair(0)]))
    while not teller.batches:
        await asyncio.sleep(0.001)
    return first


def shades(batched) -> list[int]:
    return [int(caption.text.split()[1]) for caption in batched.captions]


def test_what_waits_goes_together_and_everybody_gets_their_own():
    async def scene():
        batcher, teller = await started(), Teller()
        first = await held(batcher, teller)
        others = [asyncio.create_task(batcher.caption(Task(teller), [pair(s), pair(s + 1)])) for s in (10, 20, 30)]
        await asyncio.sleep(0.01)
        teller.gate.set()
        said = await asyncio.gather(first, *others)
        await batcher.close()
        return teller.batches, [shades(one) for one in said]

    batches, said = asyncio.run(scene())
    assert batches == [1, 4, 2]
    assert said == [[0], [10, 11], [20, 21], [30, 31]]


def test_patience_collects_what_comes_a_little_later():
    async def scene(patience: float):
        batcher, teller = await started(patience=patience), Teller()

        async def late(shade: int):
            await asyncio.sleep(0.02 * shade)
            return await batcher.caption(Task(teller), [pair(shade)])

        await asyncio.gather(*(late(shade) for shade in range(3)))
        await batcher.close()
        return teller.batches

    assert asyncio.run(scene(0.5)) == [3]
    assert asyncio.run(scene(0.0)) == [1, 1, 1]


def test_other_models_and_other_questions_are_not_mixed():
    async def scene():
        batcher, old, new = await started(largest=8), Teller("old"), Teller("new")
        first = await held(batcher, old)
        tasks = [Task(old), Task(new), Task(old, explain=True), Task(old), Task(new), Task(old, beams=2)]
        others = [asyncio.create_task(batcher.caption(task, [pair(9)])) for task in tasks]
        await asyncio.sleep(0.01)
        old.gate.set()
        said = await asyncio.gather(first, *others)
        await batcher.close()
        return old.batches, new.batches, [one.captions[0] for one in said]

    old, new, said = asyncio.run(scene())
    assert (old, new) == ([1, 2, 1, 1], [2])
    assert [one.text.split(":")[0] for one in said[1:]] == ["old", "new", "old", "old", "new", "old"]
    assert [one.explanation is not None for one in said] == [False, False, False, True, False, False, False]


def test_who_leaves_is_not_worked_for():
    async def scene():
        batcher, teller = await started(), Teller()
        first = await held(batcher, teller)
        ahead, staying, behind = (
            asyncio.create_task(batcher.caption(Task(teller), pairs))
            for pairs in ([pair(1), pair(2)], [pair(3)], [pair(4)])
        )
        await asyncio.sleep(0.01)
        ahead.cancel()
        behind.cancel()
        teller.gate.set()
        said = await asyncio.gather(first, staying)
        await batcher.close()
        return teller.batches, shades(said[1])

    assert asyncio.run(scene()) == ([1, 1], [3])


def test_a_model_that_fails_fails_this_batch_alone():
    async def scene():
        batcher, good = await started(), Teller()
        bad = Teller(error=RuntimeError("no memory"))
        with pytest.raises(RuntimeError, match="no memory"):
            await batcher.caption(Task(bad), [pair(1), pair(2)])
        said = await batcher.caption(Task(good), [pair(3)])
        await batcher.close()
        return shades(said)

    assert asyncio.run(scene()) == [3]


def test_the_line_has_an_end():
    async def scene():
        batcher, teller = await started(room=3), Teller()
        first = await held(batcher, teller)
        others = asyncio.create_task(batcher.caption(Task(teller), [pair(1), pair(2)]))
        await asyncio.sleep(0.01)
        with pytest.raises(Refusal) as refused:
            await batcher.caption(Task(teller), [pair(3), pair(4)])
        teller.gate.set()
        await asyncio.gather(first, others)
        await batcher.close()
        return refused.value

    refusal = asyncio.run(scene())
    assert (refusal.status, refusal.later) == (429, 1)


def test_closing_finishes_what_waits_and_takes_nothing_new():
    async def scene():
        batcher, teller = await started(), Teller()
        first = await held(batcher, teller)
        other = asyncio.create_task(batcher.caption(Task(teller), [pair(5)]))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.01)
        with pytest.raises(Refusal) as refused:
            await batcher.caption(Task(teller), [pair(6)])
        teller.gate.set()
        await closing
        return refused.value.status, shades(await first), shades(await other)

    assert asyncio.run(scene()) == (503, [0], [5])
