"""A training that is killed, stopped, torn or without room goes on as if nothing had been; bad losses are named."""

import os
import random
import resource
import signal

import pytest
import torch

from procap import files
from procap.errors import BadInput
from procap.training import loop
from procap.training.checkpoint import newest_state
from tests.unit.test_loop import Killed, Training

STEPS = 50


def same(one: Training, other: Training) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    training = Training(tmp_path_factory.mktemp("whole"), STEPS, validate_every=7)
    training.progress = training.run()
    return training


@pytest.fixture
def always_save(monkeypatch):
    monkeypatch.setattr(loop, "STATE_SECONDS", -1.0)
    monkeypatch.setattr(loop, "STATE_COST", -1.0)


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch):
    monkeypatch.setattr(files, "flush", lambda path: None)


class Moments:
    """Counts what a training does - batches, updates, validations, states half and wholly written - and kills it.

    As after ``kill -9``, nothing can be written any more.
    """

    def __init__(self, training: Training, at: int, patch: pytest.MonkeyPatch) -> None:
        self.at, self.count = at, 0
        for place, name in ((training, "terms"), (training.optimiser, "step"), (training, "validate")):
            setattr(place, name, self.watched(getattr(place, name)))
        save, replace = loop.save_state, type(training.state).replace
        patch.setattr(loop, "save_state", self.watched(save))
        patch.setattr(type(training.state), "replace", self.watched(replace))

    def watched(self, act):
        def counted(*arguments, **named):
            self.count += 1
            if self.count >= self.at:
                raise Killed
            return act(*arguments, **named)

        return counted


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_moment_it_ends_the_same(tmp_path, always_save, whole, seed):
    at = random.Random(seed).randint(2, 4 * STEPS)
    with pytest.MonkeyPatch.context() as patch:
        killed = Training(tmp_path, STEPS, validate_every=7)
        moments = Moments(killed, at, patch)
        with pytest.raises(Killed):
            killed.run()
    assert moments.count >= at
    again = Training(tmp_path, STEPS, validate_every=7)
    assert again.run() == whole.progress
    assert same(again, whole)
    assert len(again.modes) < len(whole.modes) or at < 8
    assert len(list(tmp_path.iterdir())) <= 2, "two states, and nothing half-written"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("place", ["terms", "step", "validate"])
def test_a_signal_keeps_the_last_finished_update(tmp_path, whole, number, place):
    """With states far apart in time, so that the one found afterwards was written because of the signal."""

    class Stopped(BaseException):
        pass

    def stop(*_):
        raise Stopped

    training = Training(tmp_path, STEPS, validate_every=7)
    holder = training.optimiser if place == "step" else training
    act, calls = getattr(holder, place), []

    def signalled(*arguments, **named):
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), number)
        return act(*arguments, **named)

    setattr(holder, place, signalled)
    former = signal.signal(number, stop)
    try:
        with pytest.raises(Stopped):
            training.run()
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, former)
    _, facts, _ = newest_state(tmp_path)
    assert facts["step"] == {"terms": 3, "step": 4, "validate": 28}[place]
    again = Training(tmp_path, STEPS, validate_every=7)
    assert again.run() == whole.progress
    assert same(again, whole)


def tear(path, how: str) -> None:
    content = path.read_bytes()
    middle = len(content) - 100
    torn = {
        "cut": content[:middle],
        "empty": b"",
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "zeros": b"\0" * len(content),
        "other facts": content.replace(b'best_step\\": 3', b'best_step\\": 4', 1),
    }[how]
    assert torn != content
    path.write_bytes(torn)


@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "zeros", "other facts"])
def test_where_the_last_state_is_torn_the_one_before_is_taken(tmp_path, always_save, whole, how):
    with pytest.raises(Killed):
        Training(tmp_path, STEPS, kill=38, validate_every=7).run()
    older, newer = sorted(tmp_path.iterdir())
    assert [older.name, newer.name] == ["state-000000037.safetensors", "state-000000038.safetensors"]
    tear(newer, how)
    again = Training(tmp_path, STEPS, validate_every=7)
    assert again.run() == whole.progress
    assert same(again, whole)
    assert again.report.notes == [
        "test: state-000000038.safetensors is damaged and left out",
        "test: continuing at update 37 of 50",
    ]


def test_where_all_states_are_torn_it_begins_anew(tmp_path, always_save, whole):
    with pytest.raises(Killed):
        Training(tmp_path, STEPS, kill=38, validate_every=7).run()
    for path in tmp_path.iterdir():
        tear(path, "cut")
    again = Training(tmp_path, STEPS, validate_every=7)
    assert again.run() == whole.progress
    assert same(again, whole)


def test_without_room_the_state_before_stays_and_nothing_half_written(tmp_path, always_save, whole):
    """The system's own limit on the size of files: a real refusal, in the middle of the file."""
    training = Training(tmp_path, STEPS, validate_every=7)
    limits, terms = resource.getrlimit(resource.RLIMIT_FSIZE), training.terms

    def full_from_30(step, draw, shares):
        if step == 30:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        return terms(step, draw, shares)

    training.terms = full_from_30
    try:
        with pytest.raises(BadInput, match=r"state after update 31 cannot be written") as caught:
            training.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.where == str(tmp_path / "state-000000031.safetensors")
    assert caught.value.do.endswith("it continues at update 30")
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "state-000000029.safetensors", "state-000000030.safetensors",
    ]  # fmt: skip
    again = Training(tmp_path, STEPS, validate_every=7)
    assert again.run() == whole.progress
    assert same(again, whole)


def spoil(training: Training, bad: dict[int, float]) -> None:
    terms = training.terms

    def spoiled(step, draw, shares):
        for losses, readings in terms(step, draw, shares):
            yield {name: loss * bad.get(step, 1.0) for name, loss in losses.items()}, readings

    training.terms = spoiled


def test_a_bad_batch_is_left_out_and_counted(tmp_path):
    training = Training(tmp_path, STEPS, on_bad_loss="skip")
    spoil(training, {7: float("nan"), 33: float("inf")})
    weights = {}
    step, validate = training.optimiser.step, training.validate
    training.optimiser.step = lambda: (step(), weights.update({len(weights): 1}))
    progress = training.run()
    training.validate = validate
    assert progress.skipped == 2
    assert len(weights) == STEPS - 2
    assert [row["skipped"] for row in progress.history if row["split"] == "train"] == [1, 2, 2]
    assert [note for note in training.report.notes if "left out" in note] == [
        "test: the loss is nan; left out: update 7, pairs pair 7, another",
        "test: the loss is inf; left out: update 33, pairs pair 33, another",
    ]
    assert all(weight.isfinite().all() for weight in training.module.parameters())


def test_too_many_bad_batches_in_a_row_end_it(tmp_path):
    training = Training(tmp_path, STEPS, on_bad_loss="skip")
    spoil(training, dict.fromkeys(range(20, 50), float("nan")))
    with pytest.raises(BadInput, match="the loss is nan at update 29, the 10th in a row"):
        training.run()


def test_a_spike_is_bad_only_where_asked(tmp_path):
    for name, plan, skipped in (("a", {}, 0), ("b", {"spike": 8.0}, 1), ("c", {"spike": 1e6}, 0)):
        (tmp_path / name).mkdir()
        training = Training(tmp_path / name, STEPS, on_bad_loss="skip", **plan)
        spoil(training, {30: 100.0})
        assert training.run().skipped == skipped, plan
    training = Training(tmp_path, STEPS, spike=8.0)
    spoil(training, {30: 100.0})
    with pytest.raises(BadInput, match=r"over 8 times the mean of the last 20 at update 30"):
        training.run()


def test_a_gradient_that_is_no_number_is_bad_too(tmp_path):
    training = Training(tmp_path, STEPS)
    training.module[0].weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(BadInput, match=r"the norm of the gradient is (nan|inf) at update 0"):
        training.run()


def test_patience_ends_it_and_a_finished_one_stays_finished(tmp_path):
    def patient(scores):
        training = Training(tmp_path, STEPS, validate_every=4, patience=3)
        training.validate = lambda: {"good": next(scores)}
        return training

    training = patient(iter([1.0, 3.0, 2.0, 4.0, 4.0, 3.0, 2.0, 9.0]))
    progress = training.run()
    assert (progress.step, progress.best, progress.best_step) == (28, 4.0, 16)
    assert training.report.notes == ["test: ends at update 28, for nothing better came any more"]
    again = patient(iter(()))
    assert again.run() == progress
    assert again.modes == []


def test_parts_of_a_batch_one_after_another_give_the_same(tmp_path, whole):
    parts = Training(tmp_path, STEPS, validate_every=7, accumulate=5)
    progress = parts.run()
    for mine, theirs in zip(parts.module.parameters(), whole.module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    for row, other in zip(progress.history, whole.progress.history, strict=True):
        assert row.pop("split") == other["split"]
        assert row == pytest.approx({name: other[name] for name in row}, rel=1e-4, abs=1e-5)


def test_whoever_watches_sees_loss_rate_and_speed_of_every_update(whole):
    assert len(whole.report.nows) == STEPS
    assert all(list(values) == ["loss", "rate", "pairs/s"] for values in whole.report.nows)
    assert whole.report.nows[-1]["rate"] == pytest.approx(3e-2 * whole.plan.rate(STEPS - 1))
    assert all(values["pairs/s"] > 0 for values in whole.report.nows)
