"""Rows come back from shards as they were appended, in whatever pieces; shards are full but for the last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.datasets import shards as shards_module
from procap.datasets.shards import GrowingShards, Shards, ShardWriter
from procap.errors import BadInput
from procap.files import folder_digest


@pytest.fixture(autouse=True, scope="module")
def _no_wait_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "flush", lambda path: None)
        yield


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=8).filter(sum), st.integers(1, 5))
def test_rows_come_back_in_order_from_full_shards(tmp_path_factory, pieces, size):
    folder = tmp_path_factory.mktemp("shards")
    rows = np.arange(sum(pieces) * 2, dtype=np.int32).reshape(-1, 2)
    with ShardWriter(folder, "rows", (2,), np.int32, rows_per_shard=size) as writer:
        for start, piece in zip(np.cumsum([0, *pieces[:-1]]), pieces, strict=True):
            writer.append(rows[start : start + piece])
    shards = Shards(folder, "rows")
    assert np.array_equal(shards[:], rows)
    assert [len(array) for array in shards.arrays[:-1]] == [size] * (len(shards.arrays) - 1)
    assert 0 < len(shards.arrays[-1]) <= size
    order = np.random.default_rng(size).permutation(len(rows))
    assert np.array_equal(shards[order], rows[order])


def test_rows_of_another_shape_or_type_and_missing_shards_are_refused(tmp_path):
    writer = ShardWriter(tmp_path, "rows", (2,), np.int32)
    for rows in (np.zeros((1, 3), np.int32), np.zeros((1, 2), np.int64)):
        with pytest.raises(ValueError, match="expected"):
            writer.append(rows)
    with pytest.raises(BadInput, match="no shards"):
        Shards(tmp_path, "rows")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 17), st.integers(0, 2**16))
def test_shards_that_grow_in_several_lives_are_those_of_one(tmp_path_factory, size, total, seed):
    """Killed after any rows, of which any number was kept, and begun again, as often as chance wants."""
    one, other = (tmp_path_factory.mktemp(name) for name in ("one", "other"))
    rows, chance = np.arange(total * 2, dtype=np.int16).reshape(-1, 2), np.random.default_rng(seed)
    with ShardWriter(one, "rows", (2,), np.int16, rows_per_shard=size) as writer:
        writer.append(rows)
    kept = written = 0
    while written < total:
        growing = GrowingShards(other, "rows", (2,), np.int16, total, kept, size)
        middle, written = sorted(chance.integers(kept, total + 1, 2).tolist())
        growing.append(rows[kept:middle])
        growing.append(rows[middle:written])
        growing.close()
        kept = int(chance.integers(kept, written + 1))
    assert folder_digest(one) == folder_digest(other)
    assert np.array_equal(Shards(other, "rows")[:], rows)


@pytest.mark.parametrize("kind", ["u1", "i2", "f2", "f4", "i8", "?"])
@pytest.mark.parametrize("shape", [(3,), (2, 5, 7), (0, 4)])
def test_an_array_is_written_as_numpy_writes_it(tmp_path, kind, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    np.save(tmp_path / "theirs.npy", array)
    shards_module.write_array(tmp_path / "ours.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    shards_module.write_array(tmp_path / "ours.npy", np.asfortranarray(array).T.T)
    assert np.array_equal(np.load(tmp_path / "ours.npy"), array)


def test_places_of_rows_are_read_across_shards(tmp_path):
    rows = np.arange(7 * 5 * 2, dtype=np.int16).reshape(7, 5, 2)
    with ShardWriter(tmp_path, "rows", (5, 2), np.int16, rows_per_shard=3) as writer:
        writer.append(rows)
    shards = Shards(tmp_path, "rows")
    numbers, places = np.array([6, 0, 3, 0, -1]), np.array([[4, 0], [1, 1], [0, 2], [3, 4], [2, 3]])
    assert np.array_equal(shards.places(numbers, places), rows[numbers[:, None], places])
    with pytest.raises(IndexError, match="rows up to 7"):
        shards.places(np.array([7]), places[:1])
