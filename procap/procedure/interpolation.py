"""A dense procedure between two pictures: midpoints of midpoints (paper section 3.1)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from procap.shapes import Float, Pictures, Tensor

Midpoint = Callable[[Tensor, Tensor], Tensor]
"""Two batches of pictures ``b 3 h w`` in, the batch half-way between them out."""


def midpoint_schedule(frames: int) -> list[list[tuple[int, int, int]]]:
    """Which frames are made from which, level by level, as (left, right, middle).

    Frame 0 is before, ``frames + 1`` is after; ``frames`` is 2^levels - 1. Frames of one level need only
    frames of the levels above.
    """
    if frames < 1 or (frames + 1) & frames:
        raise ValueError(f"{frames} frames cannot be made by halving; it takes 2^levels - 1, such as 1, 3, 7 or 15")
    levels, step = [], frames + 1
    while step > 1:
        levels.append([(left, left + step, left + step // 2) for left in range(0, frames + 1, step)])
        step //= 2
    return levels


def interpolate(before: Pictures, after: Pictures, midpoint: Midpoint, frames: int) -> Float[Tensor, "b l 3 h w"]:
    """The frames between, in time order; ``l`` counts them here. Each level is one call of ``midpoint``."""
    known = {0: before, frames + 1: after}
    for level in midpoint_schedule(frames):
        lefts = torch.cat([known[left] for left, _, _ in level])
        rights = torch.cat([known[right] for _, right, _ in level])
        middles = midpoint(lefts, rights).split(len(before))
        known |= {middle: made for (_, _, middle), made in zip(level, middles, strict=True)}
    return torch.stack([known[frame] for frame in range(1, frames + 1)], dim=1)


def crossfade(before: Pictures, after: Pictures) -> Pictures:
    """Half of each: the interpolation that knows nothing of motion."""
    return (before + after) / 2


def in_multiples(midpoint: Midpoint, side: int) -> Midpoint:
    """The same for pictures of any size: edges are repeated up to multiples of ``side`` and cut off afterwards."""

    def of_any_size(before: Pictures, after: Pictures) -> Pictures:
        h, w = before.shape[-2:]
        wider = (0, -w % side, 0, -h % side)
        ends = (F.pad(pictures, wider, mode="replicate") for pictures in (before, after))
        return midpoint(*ends)[..., :h, :w]

    return of_any_size
