import json
import resource
from pathlib import Path

import numpy as np
import pytest

from procap.config import load_params
from procap.datasets.pairs import Pairs
from procap.datasets.pseudo_sequences import write_pseudo_sequences
from procap.datasets.shards import Shards
from procap.datasets.true_procedure import read_true_pairs
from procap.errors import BadInput
from procap.evaluation.frame_quality import psnr
from procap.files import folder_digest
from procap.report import Silent
from procap.steps import interpolate, prepare
from tests.toy import toy_prepared

PARAMS = load_params(Path(__file__).parents[2] / "params.yaml")


def params(sections: dict) -> object:
    changed = {name: getattr(PARAMS, name).model_copy(update=values) for name, values in sections.items()}
    return PARAMS.model_copy(update=changed)


def crossfade(**more) -> object:
    return params({"interpolate": {"method": "crossfade", "batch": 2, "measured": 0, **more}})


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
    pairs = Pairs.read(data / "prepare").split("train", "val")
    frames = Shards(data / "interpolate" / "frames", "frames")
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
    assert np.array_equal(Shards(data / "interpolate" / "frames", "frames")[:], expected)
    with pytest.raises(BadInput, match="3 frames"):
        interpolate.run(params({"interpolate": {"method": "truth", "frames": 7}}), data)


def test_a_killed_run_goes_on_after_its_last_whole_shard(data, monkeypatch):
    monkeypatch.setattr(interpolate, "PIXELS_PER_SHARD", 4 * 3 * 32 * 32)  # two batches of two pairs
    interpolate.run(crossfade(frames=3), data)
    assert len(Shards(data / "interpolate" / "frames", "frames").paths) == 3
    uninterrupted = folder_digest(data / "interpolate")
    assert json.loads((data / "interpolate" / "metrics.json").read_text()) == {"pairs": {}}
    with pytest.raises(Killed):
        interpolate.run(crossfade(frames=3), data, report=KilledAfter(3))
    heard = Heard()
    interpolate.run(crossfade(frames=3), data, report=heard)
    assert heard.counted == [(6, 2)]
    assert folder_digest(data / "interpolate") == uninterrupted


def test_without_room_nothing_half_written_stays_and_it_goes_on_later(data, monkeypatch):
    monkeypatch.setattr(interpolate, "PIXELS_PER_SHARD", 4 * 3 * 32 * 32)
    interpolate.run(crossfade(frames=3), data)
    uninterrupted, limits = folder_digest(data / "interpolate"), resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filling(Silent):
        def progress(self, items, what, total=None, done=0):
            for number, item in enumerate(items):
                if number == 3:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
                yield item

    try:
        with pytest.raises(OSError, match="File too large") as caught:
            interpolate.run(crossfade(frames=3), data, report=Filling())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename.endswith("frames-00001.npy")
    assert [path.name for path in data.parent.glob(".state/interpolate/*/frames/*")] == ["frames-00000.npy"]
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


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A small rendered corpus with its true procedures of three frames."""
    folder = tmp_path_factory.mktemp("rendered")
    small = {"count": 10, "samples": 1, "splits": (0.5, 0.3, 0.2), "truth": True}
    scenes = PARAMS.prepare.scenes.model_copy(update=small)
    prepare.run(params({"prepare": {"image_size": 32, "scenes": scenes}, "interpolate": {"frames": 3}}), folder)
    return folder


def measured(**more) -> object:
    scenes = PARAMS.prepare.scenes.model_copy(update={"samples": 1})
    return params({"prepare": {"scenes": scenes}, "interpolate": {"frames": 3, "measured": 12, **more}})


def test_the_true_procedure_drawn_again_is_the_one_that_prepare_drew(rendered):
    pairs, truth = Pairs.read(rendered / "prepare"), Shards(rendered / "prepare", "truth")
    again = read_true_pairs(rendered / "prepare" / "scenes.jsonl", pairs.table["id"])
    assert np.array_equal(np.stack([pair.frames(3, 32, 1) for pair in again]), truth[:])


def test_frames_are_measured_against_the_true_ones(rendered):
    pairs = Pairs.read(rendered / "prepare").split("train", "val")
    heard = Heard()
    interpolate.run(measured(method="crossfade"), rendered, report=heard)
    found = json.loads((rendered / "interpolate" / "metrics.json").read_text())
    kinds = pairs.table["change_type"].to_numpy()
    counts = {kind: min(2, int((kinds == kind).sum())) for kind in set(kinds)}
    assert found["pairs"] == counts | {"all": sum(counts.values())}
    assert len(counts) > 3
    assert heard.pictures == ["truth.png", "filmstrips.png"]
    splits = Pairs.read(rendered / "prepare").table["split"]
    truth = Shards(rendered / "prepare", "truth")[np.flatnonzero(splits != "test")]
    made = Shards(rendered / "interpolate" / "frames", "frames")[:]
    rows = np.flatnonzero(kinds == "move")[:2]
    expected = [psnr(made[row], truth[row]).mean() for row in rows]
    assert len(rows) == counts["move"]
    assert found["psnr"]["crossfade"]["move"] == pytest.approx(np.mean(expected), abs=1e-3)
    assert set(found["psnr"]) == set(found["ssim"]) == {"crossfade"}


def test_frames_from_files_come_in_as_they_went_out_and_true_ones_measure_as_true(rendered, tmp_path):
    pairs = Pairs.read(rendered / "prepare").split("train", "val")
    interpolate.run(measured(method="truth"), rendered)
    assert json.loads((rendered / "interpolate" / "metrics.json").read_text()) == {"pairs": {}}
    true = Shards(rendered / "interpolate" / "frames", "frames")[:]
    write_pseudo_sequences(tmp_path / "out", pairs, Shards(rendered / "interpolate" / "frames", "frames"), "rendered")
    interpolate.run(measured(method="h5", h5=str(tmp_path / "out")), rendered)
    assert np.array_equal(Shards(rendered / "interpolate" / "frames", "frames")[:], true)
    found = json.loads((rendered / "interpolate" / "metrics.json").read_text())
    assert found["ssim"]["h5"]["all"] == 1
    assert found["psnr"]["h5"]["all"] > 58 > found["psnr"]["crossfade"]["all"]
    (tmp_path / "out" / "nsc_videos.h5").unlink()
    with pytest.raises(BadInput, match="have no sequence"):
        interpolate.run(measured(method="h5", h5=(str(tmp_path / "out"),)), rendered)
    assert found == json.loads((rendered / "interpolate" / "metrics.json").read_text())


def test_a_checkpoint_that_is_not_there_is_named(data, tmp_path):
    with pytest.raises(BadInput, match="no such checkpoint"):
        interpolate.run(crossfade(method="vfiformer", checkpoint=str(tmp_path / "absent.pth"), frames=1), data)
