import numpy as np
import pytest

from procap.evaluation.bootstrap import interval


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
