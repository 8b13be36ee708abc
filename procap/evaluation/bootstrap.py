"""How far a mean over test pairs could have come out otherwise: percentile bootstrap (Efron 1979)."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Integer

RESAMPLES_AT_ONCE = 64


def interval(
    values: Float[np.ndarray, " b"],
    *,
    generator: np.random.Generator,
    clusters: Integer[np.ndarray, " b"] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Bounds that hold ``level`` of the means of ``resamples`` draws, with replacement, of all the values.

    Values with one number in ``clusters`` (pairs that share a picture) are drawn together: they are not independent,
    and drawing them one by one would make the interval too narrow.
    """
    sums, counts = _sums(values[None], clusters)
    means = []
    for drawn in _draws(len(counts), resamples, generator):
        means.append(sums[0][drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    return _bounds(np.concatenate(means), level)


def difference_interval(
    base: Float[np.ndarray, "r b"],
    other: Float[np.ndarray, "s b"],
    *,
    generator: np.random.Generator,
    clusters: Integer[np.ndarray, " b"] | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Bounds of mean(other) - mean(base) for two systems that met the same ``b`` values (pairs).

    Each draw takes the same values for both systems, so that what makes a pair hard for both cancels. The
    trainings of a system (``r`` and ``s`` replicates) are drawn too, each system's by themselves, so that one lucky
    training does not pass for a better system; with few of them their share of the interval is too small.
    """
    sums, counts = _sums(np.concatenate([base, other]), clusters)
    differences = []
    for drawn in _draws(len(counts), resamples, generator):
        rows = np.arange(len(drawn))[:, None]
        times = np.bincount((rows * len(counts) + drawn).ravel(), minlength=len(drawn) * len(counts))
        times = times.reshape(len(drawn), len(counts))
        means = times @ sums.T / (times @ counts)[:, None]
        of_base, of_other = (
            side[rows, generator.integers(side.shape[1], size=side.shape)].mean(axis=1)
            for side in (means[:, : len(base)], means[:, len(base) :])
        )
        differences.append(of_other - of_base)
    return _bounds(np.concatenate(differences), level)


def _sums(
    values: Float[np.ndarray, "n b"], clusters: Integer[np.ndarray, " b"] | None
) -> tuple[Float[np.ndarray, "n c"], Integer[np.ndarray, " c"]]:
    """Sum of the values of each cluster, and how many it has."""
    if not values.shape[1]:
        raise ValueError("no values to resample")
    labels = np.arange(values.shape[1]) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    return np.stack([np.bincount(labels, weights=row) for row in values]), np.bincount(labels)


def _draws(clusters: int, resamples: int, generator: np.random.Generator) -> Iterator[Integer[np.ndarray, "n c"]]:
    """Numbers of clusters, with replacement, as many as there are; a bounded number of draws at once."""
    for start in range(0, resamples, RESAMPLES_AT_ONCE):
        yield generator.integers(clusters, size=(min(RESAMPLES_AT_ONCE, resamples - start), clusters))


def _bounds(means: Float[np.ndarray, " n"], level: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
