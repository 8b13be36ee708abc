"""Which frames of a dense procedure survive: confidence sampling (paper section 3.1, equation 2)."""

from typing import Literal

import torch

from procap.shapes import Float, Int, Tensor

TEXT_SHARE = 0.7
"""Of the visual-text part in a mixed imbalance (reference implementation)."""

SMALLEST_WEIGHT = 1e-9
"""Keeps a frame drawable; equation 2 gives 0 where one frame takes the whole softmax, as it does for l = 1."""


def imbalance(similarity_before: Float[Tensor, "b t"], similarity_after: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """How far each frame is from being equidistant: (s_bef - s_aft)^2, in double precision."""
    return (similarity_before.double() - similarity_after.double()).square()


def mixed_imbalance(
    visual_text: Float[Tensor, "b t"],
    visual: Float[Tensor, "b t"],
    visual_text_range: tuple[float, float],
    visual_range: tuple[float, float],
) -> Float[Tensor, "b t"]:
    """0.7 of the visual-text and 0.3 of the visual imbalance, each scaled to [0, 1] by its range over the corpus."""

    def scaled(values: Tensor, low: float, high: float) -> Tensor:
        return (values - low) / (high - low if high > low else 1.0)

    return TEXT_SHARE * scaled(visual_text, *visual_text_range) + (1 - TEXT_SHARE) * scaled(visual, *visual_range)


def confidence(imbalance: Float[Tensor, "b t"]) -> Float[Tensor, "b l"]:
    """Weights of the l inner frames by equation 2: 1 - softmax(imbalance), in [0, 1], not normalised.

    Differences of real similarities are small (up to some 0.1), their squares smaller still: the weights are nearly
    equal, and what they say is in their order. ``temperature`` below brings it out.
    """
    return 1 - imbalance[:, 1:-1].softmax(dim=1)


def chances(weights: Float[Tensor, "b l"], temperature: float) -> Float[Tensor, "b l"]:
    """How likely each frame is to be drawn first: w^(1/T), normalised; temperature T > 0.

    T = 1 is the reference implementation, T to infinity draws uniformly, T to 0 takes the largest weight. For small
    imbalances s this is softmax(-s / (l T)). (Dividing s by T inside equation 2 instead could do no more than rule one
    frame out, since no weight exceeds 1 and they sum to l - 1.) Our formulation.
    """
    return _log_tempered(weights, temperature).softmax(dim=1)


def sample_keyframes(
    weights: Float[Tensor, "b l"],
    kept: int,
    draw: Literal["multinomial", "top"],
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b k"]:
    """Numbers (1 to l) of the ``kept`` frames that survive, in time order; before (0) and after are not among them.

    ``multinomial`` draws without replacement, each time by the ``chances`` of what is left; ``top`` takes the largest
    weights, of equals the earlier: what ``multinomial`` comes to as the temperature falls to 0.
    """
    frames = weights.shape[1]
    if not 0 <= kept <= frames:
        raise ValueError(f"kept={kept} must lie in [0, {frames}], the number of inner frames")
    keys = weights
    if draw == "multinomial":  # Gumbel's top k: exact at every temperature, where powers of weights underflow
        uniform = torch.rand(weights.shape, generator=generator, dtype=torch.float64, device=weights.device)
        keys = _log_tempered(weights, temperature) - uniform.log().neg().log()
    chosen = keys.sort(dim=1, descending=True, stable=True).indices[:, :kept]
    return chosen.sort(dim=1).values + 1


def spread_keyframes(frames: int, kept: int) -> tuple[int, ...]:
    """``kept`` of the inner frames 1 to ``frames``, as evenly spread as they can be: 3 and 5 of 7 (reference code)."""
    return tuple(round(number * (frames + 1) / (kept + 1)) for number in range(1, kept + 1))


def _log_tempered(weights: Float[Tensor, "b l"], temperature: float) -> Float[Tensor, "b l"]:
    return weights.double().clamp_min(SMALLEST_WEIGHT).log() / temperature
