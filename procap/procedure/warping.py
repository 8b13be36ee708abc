"""Warping: procedures that are not consistent in time, for the consistency loss (paper, section 3.1).

Frame swap and frame shuffle only move cached features about. Colour shift and affine change pictures; they run
where pictures are at hand, once, in the step ``tokenize``.
"""

import itertools

import torch
import torch.nn.functional as F

from procap.shapes import Features, Float, Int, Pictures, Tensor

WARPS = ("frame swap", "frame shuffle", "colour shift", "affine")


def swap_frames(features: Features, generator: torch.Generator) -> Features:
    """One random frame of each pair replaced by a random frame of another pair."""
    b, t = features.shape[:2]
    if b < 2:
        raise ValueError("a frame swap needs another pair in the batch")
    here = torch.randint(t, (b,), generator=generator)
    there = torch.randint(t, (b,), generator=generator)
    other = (torch.arange(b) + torch.randint(1, b, (b,), generator=generator)) % b
    warped = features.clone()
    warped[torch.arange(b), here] = features[other, there]
    return warped


def shuffle_frames(features: Features, generator: torch.Generator) -> Features:
    """The frames of each pair in an order that is not theirs, uniform over all such orders."""
    b, t = features.shape[:2]
    orders = torch.tensor(list(itertools.permutations(range(t)))[1:])
    chosen: Int[Tensor, "b t"] = orders[torch.randint(len(orders), (b,), generator=generator)]
    return features[torch.arange(b)[:, None], chosen]


def shift_colours(pictures: Pictures, generator: torch.Generator) -> Pictures:
    """A constant in [-0.5, 0.5] added to all channels or to one of them, clamped to [0, 1]."""
    b = pictures.shape[0]
    shift = torch.rand(b, generator=generator) - 0.5
    modes = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=pictures.dtype)
    mode = modes[torch.randint(4, (b,), generator=generator)]
    return (pictures + (shift[:, None] * mode)[..., None, None]).clamp(0, 1)


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
