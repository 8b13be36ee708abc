"""Warping: procedures that are not consistent in time, for the consistency loss (paper, section 3.1).

Frame swap and frame shuffle only move cached features about. Colour shift and affine change pictures; they run
where pictures are at hand, once, in the step ``tokenize``. What is drawn and what is done with it are two functions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from procap.shapes import Float, Int, Pictures, Tensor

WARPS = ("frame swap", "frame shuffle", "colour shift", "affine")
Frames = Float[Tensor, "b t *rest"]
"""Features or pictures: whatever moves as a whole."""


@dataclass(frozen=True)
class Swaps:
    """Per pair, which of its frames gives way to which frame of which other pair."""

    frame: Int[Tensor, " b"]
    pair: Int[Tensor, " b"]
    source: Int[Tensor, " b"]


def draw_swaps(b: int, t: int, generator: torch.Generator) -> Swaps:
    """Each of the other pairs and each frame equally likely."""
    if b < 2:
        raise ValueError("a frame swap needs another pair in the batch")
    here = torch.randint(t, (b,), generator=generator)
    there = torch.randint(t, (b,), generator=generator)
    other = (torch.arange(b) + torch.randint(1, b, (b,), generator=generator)) % b
    return Swaps(here, other, there)


def swap_frames(frames: Frames, swaps: Swaps) -> Frames:
    """One frame of each pair replaced by a frame of another pair."""
    warped = frames.clone()
    warped[torch.arange(len(frames)), swaps.frame] = frames[swaps.pair, swaps.source]
    return warped


def draw_orders(b: int, t: int, generator: torch.Generator) -> Int[Tensor, "b t"]:
    """Orders of t frames that are not theirs, uniform over all such orders: new frame i is old frame ``order[i]``."""
    rank = torch.randint(math.factorial(t) - 1, (b,), generator=generator) + 1
    order = torch.empty(b, t, dtype=torch.long)
    for place in reversed(range(t)):  # the digits of a rank, in alphabetical order, count what is left to choose from
        digit = rank // math.factorial(t - 1 - place) % (t - place)
        order[:, place] = digit
        order[:, place + 1 :] += order[:, place + 1 :] >= digit[:, None]
    return order


def shuffle_frames(frames: Frames, orders: Int[Tensor, "b t"]) -> Frames:
    """The frames of each pair in this order."""
    return frames[torch.arange(len(frames))[:, None], orders]


def draw_shifts(b: int, generator: torch.Generator) -> Float[Tensor, "b 3"]:
    """A constant in [-0.5, 0.5] for all channels or for one of them, equally often."""
    shift = torch.rand(b, generator=generator) - 0.5
    modes = torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    return shift[:, None] * modes[torch.randint(4, (b,), generator=generator)]


def shift_colours(pictures: Pictures, shifts: Float[Tensor, "b 3"]) -> Pictures:
    """A constant added to each channel, clamped to [0, 1]."""
    return (pictures + shifts[..., None, None]).clamp(0, 1)


def affine_matrices(b: int, generator: torch.Generator) -> Float[Tensor, "b 2 3"]:
    """Turn by up to 30 degrees, shift by up to a tenth (normalised units), scale by 0.9 to 1.1; output to input."""
    u = torch.rand(4, b, generator=generator)
    angle = (2 * u[0] - 1) * torch.pi / 6
    scale = 0.9 + 0.2 * u[1]
    x, y = (2 * u[2:] - 1) * 0.1
    cos, sin = scale * angle.cos(), scale * angle.sin()
    return torch.stack([torch.stack([cos, -sin, x], -1), torch.stack([sin, cos, y], -1)], 1)


def transform(pictures: Pictures, matrices: Float[Tensor, "b 2 3"]) -> Pictures:
    """Apply affine matrices: bilinear, mirrored at the borders."""
    grid = F.affine_grid(matrices, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
