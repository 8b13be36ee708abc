"""Multi-granularity masking (paper, section 3.1): which places of the keyframes stage 1 hides.

True means kept. Every function works on the whole batch at once and masks the frames of a pair alike, or, for
random patches, place by place.
"""

import torch
from einops import repeat

from procap.shapes import Bool, Float, Int, Tensor

STRATEGIES = ("random patch", "entire", "in-block", "out-of-block")


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
    places = torch.arange(grid)
    rows = (places >= top) & (places < top + height)
    columns = (places >= left) & (places < left + width)
    inside = rows[:, :, None] & columns[:, None, :] & fits.any(1)[:, None, None]
    return inside.reshape(b, grid * grid)


def mask_keyframes(
    b: int, t: int, grid: int, probabilities: tuple[float, ...], patch_masked: float, generator: torch.Generator
) -> tuple[Bool[Tensor, "b t n"], Int[Tensor, " b"]]:
    """(kept, strategy): one of STRATEGIES per pair, drawn with these probabilities.

    ``entire`` hides all frames; ``in-block`` hides one rectangle in all frames, ``out-of-block`` all but one.
    """
    n = grid * grid
    chances: Float[Tensor, "4"] = torch.tensor(probabilities, dtype=torch.float32)
    strategy = torch.multinomial(chances, b, replacement=True, generator=generator)
    block = repeat(rectangles(b, grid, generator), "b n -> b t n", t=t)
    patches = random_patches(b, t, n, patch_masked, generator)
    choices = torch.stack([patches, torch.zeros_like(patches), ~block, block])
    return choices[strategy, torch.arange(b)], strategy
