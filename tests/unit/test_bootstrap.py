import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.evaluation.bootstrap import difference_interval, interval


def by_hand(values, clusters, seed, resamples, level):
    """The same draws, one resample and one cluster at a time."""
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(clusters == label) for label in np.unique(clusters)]
    means = []
    while len(means) < resamples:
        for drawn in generator.integers(len(members), size=(min(64, resamples - len(means)), len(members))):
            means.append(np.mean([values[row] for cluster in drawn for row in members[cluster]]))
    return np.quantile(means, (1 - level) / 2), np.quantile(means, (1 + level) / 2)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_it_is_the_bootstrap_done_by_hand(level):
    values = np.random.default_rng(1).random(23)
    clusters = np.random.default_rng(2).integers(9, size=23) * 7
    found = interval(values, generator=np.random.default_rng(3), clusters=clusters, resamples=150, level=level)
    assert found == pytest.approx(by_hand(values, clusters, 3, 150, level))


def test_without_clusters_every_value_is_its_own():
    values = np.random.default_rng(1).random(17)
    alone = interval(values, generator=np.random.default_rng(3))
    assert alone == interval(values, generator=np.random.default_rng(3), clusters=np.arange(17))


def test_pairs_that_share_a_picture_widen_it():
    values = np.repeat(np.random.default_rng(0).random(40) < 0.7, 2).astype(float)
    low, high = interval(values, generator=np.random.default_rng(1))
    wide_low, wide_high = interval(values, generator=np.random.default_rng(1), clusters=np.repeat(np.arange(40), 2))
    assert 1.2 < (wide_high - wide_low) / (high - low) < 1.7  # the square root of 2, about


def test_it_covers_the_mean_as_often_as_it_says():
    generator = np.random.default_rng(5)
    samples = (generator.random((200, 60)) < 0.6).astype(float)
    bounds = [interval(sample, generator=generator, resamples=300) for sample in samples]
    assert 0.88 < np.mean([low <= 0.6 <= high for low, high in bounds]) <= 1


def test_one_value_has_no_spread_and_none_is_refused():
    assert interval(np.array([0.25]), generator=np.random.default_rng(0)) == (0.25, 0.25)
    with pytest.raises(ValueError, match="no values"):
        interval(np.array([]), generator=np.random.default_rng(0))


def differ(base, other, seed=0, **options):
    return difference_interval(base, other, generator=np.random.default_rng(seed), **{"resamples": 400, **options})


def two_systems(seed, pairs, replicates):
    draw = np.random.default_rng(seed)
    hardness = draw.normal(size=pairs)
    return hardness + 0.3 * draw.normal(size=(replicates, pairs)), draw


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_equal_systems_do_not_differ(seed, pairs, replicates):
    values, _ = two_systems(seed, pairs, replicates)
    low, high = differ(values, values)
    assert low <= 0 <= high
    if replicates == 1:
        assert low == high == 0


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.floats(-9, 9))
@settings(max_examples=30, deadline=None)
def test_a_shift_of_every_pair_moves_the_interval_by_it(seed, r, s, shift):
    values, _ = two_systems(seed, 30, max(r, s))
    base, other, uneven = values[:r], values[:s], np.minimum(np.arange(30) // 4, 4)
    low, high = differ(base, other + shift, seed, clusters=uneven)
    flat_low, flat_high = differ(base, other, seed, clusters=uneven)
    assert (low, high) == pytest.approx((flat_low + shift, flat_high + shift), abs=1e-9)
    assert differ(-base, -other - shift, seed, clusters=uneven) == pytest.approx((-high, -low), abs=1e-9)


def test_pairing_finds_what_unpaired_pairs_hide():
    values, draw = two_systems(3, 200, 1)
    better = values + 0.1 + 0.05 * draw.normal(size=values.shape)
    low, high = differ(values, better)
    assert 0 < low < 0.1 < high
    low, high = differ(values, better[:, draw.permutation(200)])
    assert low < 0 < high


def test_one_lucky_training_is_no_difference():
    values, _ = two_systems(4, 400, 3)
    lucky = values + np.array([[0.0], [0.0], [0.6]])
    assert differ(values.mean(0)[None], lucky.mean(0)[None])[0] > 0, "over pairs alone it would be one"
    low, high = differ(values, lucky)
    assert low <= 0 < high


def test_pairs_that_share_a_picture_are_drawn_together():
    values, draw = two_systems(5, 40, 1)
    other = values + draw.normal(size=values.shape)
    low, high = differ(values, other)
    twice_low, twice_high = differ(
        np.repeat(values, 2, axis=1), np.repeat(other, 2, axis=1), clusters=np.repeat(np.arange(40), 2)
    )
    assert (twice_low, twice_high) == pytest.approx((low, high))


def test_a_null_difference_is_called_one_about_as_often_as_it_says():
    draw = np.random.default_rng(6)
    found = [differ(*draw.normal(size=(2, 1, 60)), seed, resamples=300) for seed in range(200)]
    assert 0.01 < np.mean([low > 0 or high < 0 for low, high in found]) < 0.12
