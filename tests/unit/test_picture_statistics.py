"""What pictures look like in numbers, against what the definitions say plainly."""

import numpy as np
import pytest

from procap.evaluation import picture_statistics
from procap.evaluation.picture_statistics import CERTAIN, FEATURES, SIDE, Looks, doubles, drift, looks

DRAW = np.random.default_rng(0)
PICTURES = DRAW.integers(0, 256, (5, 37, 50, 3), dtype=np.uint8)


def test_thumbnails_are_means_of_fields_that_cover_the_picture():
    height, width = PICTURES.shape[1:3]
    rows, columns = (np.append(np.arange(SIDE) * size // SIDE, size) for size in (height, width))
    small = looks([PICTURES]).thumbnails
    for i, j in ((0, 0), (3, 7), (SIDE - 1, SIDE - 1)):
        field = PICTURES[:, rows[i] : rows[i + 1], columns[j] : columns[j + 1]].mean(axis=(1, 2))
        assert np.abs(small[:, i, j] - field).max() <= 0.51


def test_features_are_called_what_they_are():
    found = dict(zip(FEATURES, looks([PICTURES]).features[2], strict=True))
    assert found["green mean"] == pytest.approx(PICTURES[2, ..., 1].mean() / 255)
    assert found["blue contrast"] == pytest.approx(PICTURES[2, ..., 2].std() / 255)
    assert found["share of red in 32..63"] == pytest.approx((PICTURES[2, ..., 0] // 32 == 1).mean())
    assert sum(found[name] for name in FEATURES if name.startswith("share of blue")) == pytest.approx(1)


def test_shards_of_several_sizes_are_one_row_per_picture():
    both = looks([PICTURES, PICTURES[:2, :20, :20]])
    assert len(both.features) == len(both.thumbnails) == 7
    assert np.array_equal(both.features[:5], looks([PICTURES]).features)


def test_a_hash_has_half_its_bits_and_knows_no_brightness():
    pictures = DRAW.integers(40, 120, (50, SIDE, SIDE, 3), dtype=np.uint8)
    dark, bright = (looks([each]).hashes for each in (pictures, pictures + np.uint8(60)))
    assert np.bitwise_count(dark ^ bright).max() <= 2, "the first bit may differ, and rounding"
    assert all(31 <= count <= 33 for count in np.bitwise_count(dark))
    assert np.bitwise_count(dark[:-1] ^ dark[1:]).min() > 10


@pytest.mark.parametrize("bits", [0, 3, 8])
@pytest.mark.parametrize("at_once", [2**22, 7])
def test_doubles_are_those_of_comparing_all_with_all(bits, at_once, monkeypatch):
    monkeypatch.setattr(picture_statistics, "AT_ONCE", at_once)
    first = DRAW.integers(0, 256, (12, SIDE, SIDE, 3), dtype=np.uint8)
    noise = [np.clip(first + DRAW.normal(0, spread, first.shape), 0, 255) for spread in (0, 2, 8)]
    seen = looks([np.concatenate([first, *noise]).astype(np.uint8)])
    homes = DRAW.integers(0, 3, len(seen.thumbnails))
    apart = np.abs(seen.thumbnails[:, None].astype(int) - seen.thumbnails).mean(axis=(2, 3, 4))
    near = np.bitwise_count(seen.hashes[:, None] ^ seen.hashes) <= bits
    alike = near & (apart <= 3.0) & (homes[:, None] != homes)
    found = doubles(seen, homes, bits, 3.0)
    assert np.array_equal(found >= 0, alike.any(axis=1))
    assert all(alike[one, other] for one, other in enumerate(found) if other >= 0)
    assert 5 < alike.any(axis=1).sum() < len(found)


@pytest.mark.parametrize("bits", [0, 1, 3, 8])
def test_no_hash_within_so_many_bits_is_passed_over(bits):
    draw = np.random.default_rng(bits)
    hashes = draw.integers(0, 2**63, 60, dtype=np.uint64)
    flips = [sum(1 << int(place) for place in draw.permutation(64)[:bits]) for _ in hashes]
    others = hashes ^ np.array(flips, np.uint64)
    homes = np.repeat([0, 1], len(hashes))
    blocks = picture_statistics._within(np.concatenate([hashes, others]), homes, bits)
    found = {pair for block in blocks for pair in zip(*block, strict=True)}
    assert found == {(one, one + len(hashes)) for one in range(len(hashes))}


def test_neither_hashes_nor_pixels_alone_make_a_double():
    flat = 100 + DRAW.integers(0, 2, (2, SIDE, SIDE, 3), dtype=np.uint8)
    seen = looks([np.concatenate([flat, PICTURES[:1, :SIDE, :SIDE] // 2, PICTURES[:1, :SIDE, :SIDE] // 2 + 60])])
    far, near = np.bitwise_count(seen.hashes[0] ^ seen.hashes[1]), np.bitwise_count(seen.hashes[2] ^ seen.hashes[3])
    assert far > 15
    assert near <= 4
    assert (doubles(seen, np.arange(4), 15, 3.0) == -1).all()
    assert doubles(seen, np.arange(4), 4, 60.0).tolist() == [-1, -1, 3, 2]


def test_drift_is_in_deviations_beyond_chance_and_its_bounds_are_where_it_is_what_was_asked():
    features = DRAW.normal([0.5, 0.2], [0.1, 0.02], (900, 2))
    of = np.arange(900) < 300
    between = drift(features, of, ~of)
    assert (between.distances == 0).all(), "the same distribution"
    assert between.chance == pytest.approx(CERTAIN * np.sqrt(1 / 300 + 1 / 600))
    pooled = np.concatenate([features[of] - features[of].mean(0), features[~of] - features[~of].mean(0)])
    assert between.spread == pytest.approx(pooled.std(axis=0))
    for most in (0.0, 0.4):
        for bound in between.bounds(most):
            moved = features.copy()
            moved[of] += bound - between.means
            again = drift(moved, of, ~of)
            assert again.distances == pytest.approx(most, abs=1e-9)
            moved[of] += np.sign(bound - between.base) * 0.1 * between.spread
            assert drift(moved, of, ~of).distances == pytest.approx(most + 0.1, abs=1e-9)
    steady = drift(np.full((10, 1), 0.3), np.arange(10) < 5, np.arange(10) >= 5)
    assert steady.spread == pytest.approx(1 / 255)


def test_looks_of_one_home_have_no_double():
    seen = looks([np.repeat(PICTURES[:1], 3, axis=0)])
    assert (doubles(seen, np.zeros(3, int), 4, 3.0) == -1).all()
    assert isinstance(seen, Looks)
