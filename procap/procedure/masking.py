"""Multi-granularity masking (paper, section 3.1): which places of the keyframes stage 1 hides.

True means kept. Every function works on the whole batch at once and masks the frames of a pair alike, or, for
random patches, place by place.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from einops import repeat

from procap.shapes import Bool, Float, Int, Tensor

STRATEGIES = ("random patch", "entire", "in-block", "out-of-block")


@dataclass(frozen=True)
class Masking:
    """How stage 1 hides places. Where a choice has a default, that is ours."""

    probabilities: tuple[float, float, float, float]
    """Of STRATEGIES, in order."""
    patch_masked: float
    """Share of the places that ``random patch`` hides."""
    entire: Literal["sequence", "frames"] = "sequence"
    """``entire`` hides all frames (reference), or one to all of them, each number equally likely (paper)."""


def random_patches(b: int, t: int, n: int, masked: float, generator: torch.Generator) -> Bool[Tensor, "b t n"]:
    """Every place is kept on its own with probability 1 - ``masked``."""
    return torch.rand(b, t, n, generator=generator) >= masked


def rectangles(b: int, grid: int, generator: torch.Generator, tries: int = 10) -> Bool[Tensor, "b n"]:
    """One rectangle per pair, True inside: area 0.2 to 0.8 of the frame, aspect 1/2 to 2, place uniform.

    The first of ``tries`` draws that is smaller than the frame on both sides counts; a pair for which none is
    has no rectangle.
    """
    u = torch.rand(4, b, tries, generator=generator)
    area = grid**2 * (0.2 + 0.6 * u[0])
    aspect = torch.exp((2 * u[1] - 1) * torch.log(torch.tensor(2.0)))
    height, width = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (height < grid) & (width < grid)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    height, width = height.gather(1, first), width.gather(1, first)
    top = (u[2].gather(1, first) * (grid - height + 1)).floor()
    left = (u[3].gather(1, first) * (grid - width + 1)).floor()
    return rectangle(grid, top, left, height, width) & fits.any(1)[:, None]


def rectangle(grid: int, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Bool[Tensor, "b n"]:
    """True inside; the sides of each pair's rectangle are (b, 1)."""
    places = torch.arange(grid)
    rows = (places >= top) & (places < top + height)
    columns = (places >= left) & (places < left + width)
    return (rows[:, :, None] & columns[:, None, :]).flatten(1)


def block_mask(inside: Bool[Tensor, "b n"], t: int) -> Bool[Tensor, "b t n"]:
    """What ``in-block`` keeps: all but the rectangle, in every frame; ``out-of-block`` keeps the opposite."""
    return repeat(~inside, "b n -> b t n", t=t)


def whole_frames(b: int, t: int, n: int, generator: torch.Generator) -> Bool[Tensor, "b t n"]:
    """One to all frames of a pair hidden, each number equally likely, and each frame."""
    rank = torch.rand(b, t, generator=generator).argsort(1).argsort(1)
    hidden = torch.randint(1, t + 1, (b, 1), generator=generator)
    return repeat(rank >= hidden, "b t -> b t n", n=n)


def mask_keyframes(
    b: int, t: int, grid: int, masking: Masking, generator: torch.Generator
) -> tuple[Bool[Tensor, "b t n"], Int[Tensor, " b"]]:
    """(kept, strategy): one of STRATEGIES per pair, drawn with the probabilities of ``masking``."""
    n = grid * grid
    chances: Float[Tensor, "4"] = torch.tensor(masking.probabilities, dtype=torch.float32)
    strategy = torch.multinomial(chances, b, replacement=True, generator=generator)
    block = block_mask(rectangles(b, grid, generator), t)
    patches = random_patches(b, t, n, masking.patch_masked, generator)
    entire = torch.zeros_like(patches) if masking.entire == "sequence" else whole_frames(b, t, n, generator)
    choices = torch.stack([patches, entire, block, ~block])
    return choices[strategy, torch.arange(b)], strategy
