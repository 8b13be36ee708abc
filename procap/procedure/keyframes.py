"""Which frames of a dense procedure survive: confidence sampling (paper section 3.1, equation 2)."""

from typing import Literal

import torch

from procap.shapes import Float, Int, Tensor

SMALLEST_WEIGHT = 1e-9
"""Keeps a frame drawable; equation 2 gives 0 where one frame takes the whole softmax, as it does for l = 1."""


def confidence(similarity_before: Float[Tensor, "b t"], similarity_after: Float[Tensor, "b t"]) -> Float[Tensor, "b l"]:
    """How equidistant each of the l inner frames is from before and after: 1 - softmax((s_bef - s_aft)^2).

    Weights lie in [0, 1] and are not normalised. For similarities as they really are (differences up to some
    0.1) the softmax is nearly flat, so drawing by these weights is close to drawing uniformly; its order is
    what carries information, and only ``top`` uses that.
    """
    distance = (similarity_before - similarity_after).square()
    return 1 - distance[:, 1:-1].softmax(dim=1)


def sample_keyframes(
    weights: Float[Tensor, "b l"],
    kept: int,
    draw: Literal["multinomial", "top"],
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b k"]:
    """Numbers (1 to l) of the ``kept`` frames that survive, in time order; before (0) and after are not among them.

    ``multinomial`` draws without replacement by ``weights``; ``top`` takes the largest, of equals the earlier.
    """
    b, frames = weights.shape
    if not 0 <= kept <= frames:
        raise ValueError(f"kept={kept} must lie in [0, {frames}], the number of inner frames")
    if kept == 0:
        return torch.empty(b, 0, dtype=torch.int64, device=weights.device)
    if draw == "multinomial":
        chosen = torch.multinomial(weights.clamp_min(SMALLEST_WEIGHT), kept, generator=generator)
    else:
        chosen = weights.sort(dim=1, descending=True, stable=True).indices[:, :kept]
    return chosen.sort(dim=1).values + 1


def spread_keyframes(frames: int, kept: int) -> tuple[int, ...]:
    """``kept`` of the inner frames 1 to ``frames``, as evenly spread as they can be: 3 and 5 of 7 (reference code)."""
    return tuple(round(number * (frames + 1) / (kept + 1)) for number in range(1, kept + 1))
