"""How near the chosen frames come to the semantic midpoint, where a corpus knows it.

Rendered scenes do: their true procedure changes evenly in time, so its middle frame shows the half-changed scene.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer, UInt8

from procap.evaluation.bootstrap import interval


def distance_to(
    picture: UInt8[np.ndarray, "b h w 3"], frames: UInt8[np.ndarray, "b l h w 3"]
) -> Float[np.ndarray, "b l"]:
    """Root mean square error of each frame's pixels, in [0, 1]."""
    difference = frames.astype(np.float32) - picture[:, None]
    return np.sqrt(np.square(difference / 255).mean(axis=(2, 3, 4), dtype=np.float64))


def nearness(
    distance: Float[np.ndarray, "b l"],
    kept: Int[np.ndarray, "draws b k"],
    clusters: Integer[np.ndarray, " b"],
    generator: np.random.Generator,
) -> dict[str, Any]:
    """Mean distance of the ``chosen`` frames, of ``random`` ones (exactly, not by a draw) and of the k ``middle`` ones.

    ``nearer`` is random less chosen, with a 95 % bootstrap ``interval`` over the clusters; k > 0.
    """
    pair = np.arange(len(distance))[None, :, None]
    chosen, random = distance[pair, kept.astype(np.int64) - 1].mean(axis=(0, 2)), distance.mean(axis=1)
    from_middle = np.abs(np.arange(distance.shape[1]) - (distance.shape[1] - 1) / 2)
    middle = distance[:, np.argsort(from_middle, kind="stable")[: kept.shape[2]]]
    bounds = interval(random - chosen, generator=generator, clusters=clusters)
    means = {"chosen": chosen, "random": random, "middle": middle, "nearer": random - chosen}
    rounded = {name: round(float(values.mean()), 6) for name, values in means.items()}
    return {**rounded, "interval": [round(bound, 6) for bound in bounds]}
