"""``procap export-frames`` writes what ``interpolate.method: h5`` reads."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards, write_array
from procap.errors import BadInput
from tests.toy import toy_prepared

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path, monkeypatch):
    toy_prepared(tmp_path / "data" / "prepare", pairs=8, truth=3)
    rows = np.flatnonzero(Pairs.read(tmp_path / "data" / "prepare").table["split"] != "test")
    (tmp_path / "data" / "interpolate" / "frames").mkdir(parents=True)
    write_array(
        tmp_path / "data" / "interpolate" / "frames" / "frames-00000.npy",
        Shards(tmp_path / "data" / "prepare", "truth")[rows],
    )
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_pair_of_train_and_val_is_written_with_its_ends(project):
    done = CliRunner().invoke(app, ["export-frames", "out"])
    assert done.exit_code == 0
    assert done.output == "written: out/rendered_videos.h5 (6 pairs of train and val)\n"
    pairs = Pairs.read(project / "data" / "prepare").split("train", "val")
    with h5py.File("out/rendered_videos.h5") as file:
        assert sorted(file) == sorted(pairs.table["id"])
        assert {each.shape for each in file.values()} == {(5, 3, 32, 32)}


def test_a_folder_with_something_in_it_is_left_alone(project):
    (project / "out").mkdir()
    (project / "out" / "mine").touch()
    done = CliRunner().invoke(app, ["export-frames", "out"])
    assert isinstance(done.exception, BadInput)
    assert [path.name for path in (project / "out").iterdir()] == ["mine"]
