"""Sequences go out in the released form and come back as they were; what does not fit its pair is refused by name."""

import h5py
import numpy as np
import pytest

from procap.datasets.pairs import Pairs
from procap.datasets.pseudo_sequences import PseudoSequences, place_of, write_pseudo_sequences
from procap.datasets.shards import Shards
from procap.errors import BadInput
from tests.toy import toy_prepared


@pytest.fixture
def prepared(tmp_path):
    """(pairs with CLEVR-Change's ids, their frames)"""
    table = toy_prepared(tmp_path / "prepare", pairs=16, truth=3)
    table["id"] = [f"{row // 2:06d}{'nc' if row % 2 else 'c'}" for row in range(len(table))]
    table.to_parquet(tmp_path / "prepare" / "pairs.parquet")
    return Pairs.read(tmp_path / "prepare"), Shards(tmp_path / "prepare", "truth")


def renamed(pairs: Pairs, ids: list[str]) -> Pairs:
    return Pairs(pairs.folder, pairs.table.assign(id=ids))


def test_scenes_have_two_files_as_released_and_other_pairs_one():
    assert place_of("000123c") == ("sc_videos", "000123.png")
    assert place_of("000123nc") == ("nsc_videos", "000123.png")
    assert place_of("1018") == (None, "1018")
    assert place_of("a000123c") == (None, "a000123c")


def test_what_was_exported_is_imported_unchanged(prepared, tmp_path):
    pairs, frames = prepared
    assert write_pseudo_sequences(tmp_path / "out", pairs, frames, "any") == ["nsc_videos.h5", "sc_videos.h5"]
    with h5py.File(tmp_path / "out" / "nsc_videos.h5") as file:
        whole = file["000003.png"][:]
    assert whole.dtype == np.uint8
    assert np.array_equal(whole[0].transpose(1, 2, 0), pairs.before(np.array([7]))[0])
    assert np.array_equal(whole[-1].transpose(1, 2, 0), pairs.after(np.array([7]))[0])
    rows = np.array([5, 0, 7])
    with PseudoSequences([tmp_path / "out"], pairs, 3) as sequences:
        assert np.array_equal(sequences.read(rows), frames[rows])
    names = [tmp_path / "out" / f"{name}_videos.h5" for name in ("sc", "nsc")]
    with PseudoSequences(names, pairs, 3) as sequences:
        assert np.array_equal(sequences.read(rows), frames[rows])


def test_pairs_that_are_no_scenes_are_found_in_any_file(prepared, tmp_path):
    pairs, frames = prepared
    pairs = renamed(pairs, [f"pair-{row}" for row in range(len(pairs))])
    assert write_pseudo_sequences(tmp_path / "out", pairs, frames, "spot_the_diff") == ["spot_the_diff_videos.h5"]
    (tmp_path / "out" / "spot_the_diff_videos.h5").rename(tmp_path / "out" / "spot_videos.h5")
    with PseudoSequences([tmp_path / "out"], pairs, 3) as sequences:
        assert np.array_equal(sequences.read(np.arange(16)), frames[:])


def test_larger_sequences_are_made_as_large_as_the_pictures(prepared, tmp_path):
    pairs, frames = prepared
    write_pseudo_sequences(tmp_path / "out", pairs, frames, "any")
    with h5py.File(tmp_path / "out" / "sc_videos.h5", "r+") as file:
        large = file["000002.png"][:].repeat(2, axis=2).repeat(3, axis=3)
        del file["000002.png"]
        file["000002.png"] = large
    with PseudoSequences([tmp_path / "out"], pairs, 3) as sequences:
        made = sequences.read(np.array([4]))
    assert made.shape == (1, 3, 32, 32, 3)
    assert np.abs(made.astype(int) - frames[np.array([4])]).mean() < 5


def spoil(path, change) -> None:
    with h5py.File(path, "r+") as file:
        for key in ("000001.png", "000002.png"):
            whole = file[key][:]
            del file[key]
            if (spoiled := change(whole)) is not None:
                file[key] = spoiled


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda whole: None, "2 pairs have no sequence: 000001c, 000002c"),
        (lambda whole: whole[1:], "2 pairs have a sequence of another form: 000001c, 000002c"),
        (lambda whole: whole.transpose(0, 2, 3, 1), "another form"),
        (lambda whole: whole.astype(np.float32), "another form"),
        (lambda whole: whole[:, :, :0], "another form"),
    ],
)
def test_missing_and_misshapen_sequences_are_named_before_anything_is_read(prepared, tmp_path, change, what):
    pairs, frames = prepared
    write_pseudo_sequences(tmp_path / "out", pairs, frames, "any")
    spoil(tmp_path / "out" / "sc_videos.h5", change)
    with pytest.raises(BadInput, match=what):
        PseudoSequences([tmp_path / "out"], pairs, 3)


@pytest.mark.parametrize("end", [0, -1])
def test_a_sequence_of_other_pictures_is_refused(prepared, tmp_path, end):
    pairs, frames = prepared
    write_pseudo_sequences(tmp_path / "out", pairs, frames, "any")

    def other(whole: np.ndarray) -> np.ndarray:
        whole[end] = np.clip(whole[end].astype(int) + 4, 0, 255)
        return whole

    spoil(tmp_path / "out" / "sc_videos.h5", other)
    with PseudoSequences([tmp_path / "out"], pairs, 3) as sequences:
        assert np.array_equal(sequences.read(np.array([0, 1])), frames[np.array([0, 1])])
        with pytest.raises(BadInput) as caught:
            sequences.read(np.array([0, 4]))
    assert caught.value.what == "1 pairs begin or end with another picture than the pair: 000002c"
    assert str(tmp_path / "out") in caught.value.where


def test_files_that_are_not_there_or_not_hdf5(prepared, tmp_path):
    pairs, _ = prepared
    with pytest.raises(BadInput, match=r"no .*absent\.h5"):
        PseudoSequences([tmp_path / "absent.h5"], pairs, 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"there is no \.h5 file"):
        PseudoSequences([tmp_path / "empty"], pairs, 3)
    (tmp_path / "empty" / "a.h5").write_bytes(b"not that")
    with pytest.raises(BadInput, match="not an HDF5 file"):
        PseudoSequences([tmp_path / "empty"], pairs, 3)
