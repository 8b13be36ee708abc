"""interpolate, tokenize, pretrain, caption: killed at random moments, they end with an undisturbed run's bytes."""

import random
from collections.abc import Callable

import pytest

from procap import files
from procap.datasets import shards
from procap.files import folder_digest
from procap.steps import caption, interpolate, pretrain, tokenize
from procap.training import loop
from tests.steps import tiny_params, tokenised

STEPS = ("interpolate", "tokenize", "pretrain", "caption")
PARAMS = tiny_params(
    interpolate__batch=2, tokenize__batch=9, pretrain__steps=25, pretrain__validate_every=10, caption__steps=25,
    caption__validate_every=10,
)  # fmt: skip


class Killed(BaseException):
    """Like ``kill -9``: nothing is written any more."""


def run(step: str, data) -> None:
    match step:
        case "interpolate":
            interpolate.run(PARAMS, data)
        case "tokenize":
            tokenize.run(PARAMS, data)
        case "pretrain":
            pretrain.run(PARAMS, data)
        case "caption":
            caption.run(PARAMS, data, captioner="procap")


class Clock:
    """Counts moments - pieces of work, and files about to take their place - and kills at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, at: float = float("inf")) -> None:
        self.count, self.at, self.patch = 0, at, patch
        for place, name in (
            (interpolate, "write_array"), (tokenize, "encode_pictures"), (shards.GrowingShards, "append"),
            (loop, "torch_generator"), (loop, "save_state"), (files.Path, "replace"), (files.Path, "rename"),
        ):  # fmt: skip
            patch.setattr(place, name, self.watched(getattr(place, name)))

    def watched(self, act: Callable) -> Callable:
        def counted(*arguments, **named):
            self.count += 1
            if self.count >= self.at:
                self.patch.setattr(tokenize._Growing, "__exit__", lambda *_: None)
                raise Killed
            return act(*arguments, **named)

        return counted


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(data of a whole run, moments of each step); states are written whenever they may be."""
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in (
            (loop, "STATE_SECONDS", -1.0), (loop, "STATE_COST", -1.0), (tokenize, "KEPT_SECONDS", -1.0),
            (interpolate, "PIXELS_PER_SHARD", 1), (files, "flush", lambda path: None),
            (shards, "flush", lambda path: None), (pretrain, "draw_history", lambda *_: None),
            (caption, "draw_history", lambda *_: None),
        ):  # fmt: skip
            patch.setattr(place, name, value)
        data = tmp_path_factory.mktemp("whole") / "data"
        tokenised(data, PARAMS)
        moments = {}
        for step in STEPS:
            with pytest.MonkeyPatch.context() as inner:
                clock = Clock(inner)
                run(step, data)
                moments[step] = clock.count
        yield data, moments


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_random_moment_it_ends_with_the_same_bytes(undisturbed, tmp_path, step, seed):
    whole, moments = undisturbed
    data = tmp_path / "data"
    (data / "caption").mkdir(parents=True)
    for name in ("prepare", "sample", "tokenizer", *STEPS[: STEPS.index(step)]):
        (data / name).symlink_to(whole / name)
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch, random.Random(f"{step} {seed}").randint(1, moments[step]))
        with pytest.raises(Killed):
            run(step, data)
    run(step, data)
    inside = "caption/procap" if step == "caption" else step
    assert folder_digest(data / inside) == folder_digest(whole / inside)
    assert not list((data.parent / ".state").glob("*/*")), "the state of a step that is done goes"
