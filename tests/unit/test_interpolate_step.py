from pathlib import Path

import numpy as np
import pytest

from procap.config import load_params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards
from procap.errors import BadInput
from procap.files import folder_digest
from procap.report import Silent
from procap.steps import interpolate, sample
from tests.toy import toy_prepared

PARAMS = load_params(Path(__file__).parents[2] / "params.yaml")


def params(sections: dict) -> object:
    changed = {name: getattr(PARAMS, name).model_copy(update=values) for name, values in sections.items()}
    return PARAMS.model_copy(update=changed)


def crossfade(**more) -> object:
    return params({"interpolate": {"method": "crossfade", "batch": 2, **more}})


class Heard(Silent):
    def __init__(self) -> None:
        self.counted: list[tuple] = []
        self.pictures: list[str] = []

    def progress(self, items, what, total=None, done=0):
        self.counted.append((total, done))
        yield from items

    def picture(self, name, image) -> None:
        self.pictures.append(name)


class Killed(BaseException):
    """Like SIGKILL: nothing is tidied."""


class KilledAfter(Silent):
    def __init__(self, items: int) -> None:
        self.items = items

    def progress(self, items, what, total=None, done=0):
        for number, item in enumerate(items):
            if number == self.items:
                raise Killed
            yield item


@pytest.fixture
def data(tmp_path):
    toy_prepared(tmp_path / "data" / "prepare", pairs=16, truth=3)
    return tmp_path / "data"


def test_rows_are_the_pairs_of_train_and_val_in_table_order(data):
    heard = Heard()
    interpolate.run(crossfade(frames=1), data, report=heard)
    pairs, frames = Pairs.read(data / "prepare").split("train", "val"), Shards(data / "interpolate", "frames")
    assert frames.shape == (12, 1, 32, 32, 3)
    expected = np.rint((pairs.before().astype(np.float64) + pairs.after()) / 2)
    assert np.abs(frames[:][:, 0] - expected).max() <= 1e-9 + 0.5  # halves may round either way
    assert heard.counted == [(6, 0)]
    assert heard.pictures == ["filmstrips.png"]
    assert not list((data.parent / ".state" / "interpolate").iterdir())


def test_truth_is_copied_for_its_own_pairs(data):
    interpolate.run(params({"interpolate": {"method": "truth", "frames": 3}}), data)
    splits = Pairs.read(data / "prepare").table["split"]
    expected = Shards(data / "prepare", "truth")[np.flatnonzero(splits != "test")]
    assert np.array_equal(Shards(data / "interpolate", "frames")[:], expected)
    with pytest.raises(BadInput, match="3 frames"):
        interpolate.run(params({"interpolate": {"method": "truth", "frames": 7}}), data)


def test_a_killed_run_goes_on_after_its_last_whole_shard(data, monkeypatch):
    monkeypatch.setattr(interpolate, "PIXELS_PER_SHARD", 4 * 3 * 32 * 32)  # two batches of two pairs
    interpolate.run(crossfade(frames=3), data)
    assert len(Shards(data / "interpolate", "frames").paths) == 3
    uninterrupted = folder_digest(data / "interpolate")
    with pytest.raises(Killed):
        interpolate.run(crossfade(frames=3), data, report=KilledAfter(3))
    heard = Heard()
    interpolate.run(crossfade(frames=3), data, report=heard)
    assert heard.counted == [(6, 2)]
    assert folder_digest(data / "interpolate") == uninterrupted


def test_a_changed_setting_does_not_go_on_from_the_old_state(data, monkeypatch):
    monkeypatch.setattr(interpolate, "PIXELS_PER_SHARD", 1)
    with pytest.raises(Killed):
        interpolate.run(crossfade(frames=3), data, report=KilledAfter(3))
    heard = Heard()
    interpolate.run(crossfade(frames=1), data, report=heard)
    assert heard.counted == [(6, 0)]


@pytest.mark.parametrize("kept", [0, 2])
def test_sample_draws_for_each_pair_and_gives_the_same_bytes_again(data, kept):
    interpolate.run(crossfade(frames=3), data)
    chosen = params({"sample": {"kept": kept, "draws": 3, "batch": 16}})
    heard = Heard()
    sample.run(chosen, data, report=heard)
    digest = folder_digest(data / "sample")
    weights, drawn = np.load(data / "sample" / "weights.npy"), np.load(data / "sample" / "kept.npy")
    assert weights.shape == (12, 3)
    assert weights.dtype == np.float32
    assert drawn.shape == (3, 12, kept)
    assert drawn.dtype == np.int16
    assert heard.pictures == ["confidence.png"]
    if kept:
        assert not np.array_equal(drawn[0], drawn[1])
    sample.run(chosen, data)
    assert folder_digest(data / "sample") == digest


def test_a_frame_is_most_similar_to_the_end_it_lies_next_to(data):
    interpolate.run(crossfade(frames=7), data)
    before, after = sample._similarities(params({"sample": {"batch": 64}}), data, Silent())
    np.testing.assert_allclose(before[:, 0], 1, atol=1e-5)
    np.testing.assert_allclose(after[:, -1], 1, atol=1e-5)
    assert (before[:, 1] > after[:, 1]).float().mean() > 0.8
    assert (before[:, -2] < after[:, -2]).float().mean() > 0.8
