"""How far a mean over test pairs could have come out otherwise: percentile bootstrap (Efron 1979)."""

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
    if not len(values):
        raise ValueError("no values to resample")
    labels = np.arange(len(values)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    sums, counts = np.bincount(labels, weights=values), np.bincount(labels)
    means = []
    for start in range(0, resamples, RESAMPLES_AT_ONCE):
        size = (min(RESAMPLES_AT_ONCE, resamples - start), len(sums))
        drawn = generator.integers(len(sums), size=size)
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
