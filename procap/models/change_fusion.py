"""CCC's eyes: multi-head change-aware attention between two pictures (CCRC; our formulation, the text gives none)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn

from procap.models.layers import Attention, FeedForward
from procap.shapes import Bool, Float, Int, Tensor

USUAL_DISTANCE = 0.1
"""Between features of a place that only light changed, at most; where gates open at first (measured on our scenes)."""
SHARPNESS = 4
"""Power of the distance by which places count in the two pictures' averages."""


@dataclass(frozen=True)
class FusionConfig:
    """Sizes of the visual side."""

    grid: int
    """Places per side of a picture; n = grid * grid."""
    feature_width: int
    """c of the frozen features."""
    width: int
    layers: int
    heads: int
    gate: bool = True
    """Each head weighs places by how much they differ; False: an ablation."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads ({self.heads})")


@dataclass(frozen=True)
class Fused:
    """What the fusion makes of a pair."""

    tokens: Float[Tensor, "b n d"]
    """Of every place: the change there, and both pictures."""
    prior: Float[Tensor, "b n"]
    """The gated attention map: how much the heads look at a place; the greatest of a pair is 1."""
    distance: Float[Tensor, "b n"]
    """How far a place's features are apart; see ``distances``."""
    averages: Float[Tensor, "b 2 c"]
    """The features of before and after, averaged over the places by ``shares``."""

    def most_different(self, count: int) -> tuple[Float[Tensor, "b k d"], Int[Tensor, "b k"]]:
        """(tokens of the places that differ most, the most different first; which places these are)."""
        places = self.distance.topk(min(count, self.distance.shape[1]), dim=1).indices
        return self.tokens.gather(1, places[..., None].expand(-1, -1, self.tokens.shape[2])), places

    def of(self, rows: Bool[Tensor, " b"]) -> "Fused":
        """The same of some of the pairs."""
        return Fused(self.tokens[rows], self.prior[rows], self.distance[rows], self.averages[rows])


def distances(features: Float[Tensor, "b 2 n c"]) -> Float[Tensor, "b n"]:
    """How far a place's feature after is from the one before: root mean square, each normalised; at most 2."""
    before, after = F.layer_norm(features, features.shape[-1:]).unbind(1)
    return (after - before).square().mean(-1).add(1e-8).sqrt()


def shares(distance: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """What each place has of a pair's averages; those that hardly differ have next to nothing. The sum is 1."""
    return (SHARPNESS * distance.log()).softmax(1)


class ChangeAwareAttention(nn.Module):
    """Queries from after - before look at both pictures; a gate per head re-weights places that differ.

    A head's gate at a place is x^s / (1 + x^s), x the distance there in units of the head's threshold, s its slope;
    it multiplies the attention before that is normalised.
    """

    def __init__(self, width: int, heads: int, gate: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.gate = gate
        if gate:
            self.slope = nn.Parameter(torch.linspace(-0.7, 0.7, heads) if heads > 1 else torch.zeros(1))
            self.threshold = nn.Parameter(torch.full((heads,), USUAL_DISTANCE).log())

    def openness(self, distance: Float[Tensor, "b n"]) -> Float[Tensor, "b heads n"]:
        """Logarithm of the gates."""
        apart = distance.log()[:, None] - self.threshold[:, None]
        return F.logsigmoid(self.slope.exp()[:, None] * apart)

    def forward(
        self, x: Float[Tensor, "b n d"], pictures: Float[Tensor, "b n2 d"], distance: Float[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b heads n n"]]:
        """(what was seen, attention per query and place, both pictures together); ``pictures``: before, then after."""
        queries = self.attention.split(self.attention.query(x))
        keys, values = self.attention.keys_values(pictures)
        scores = (queries @ keys.mT).float() * queries.shape[-1] ** -0.5
        if self.gate:
            scores = scores + self.openness(distance).repeat(1, 1, 2)[:, :, None]
        weights = scores.softmax(-1)
        seen = rearrange(weights.to(values.dtype) @ values, "b heads n d2 -> b n (heads d2)")
        return self.attention.out(seen), rearrange(weights, "b heads n (two m) -> b heads n m two", two=2).sum(-1)


class FusionBlock(nn.Module):
    """Pre-norm change-aware attention and feed-forward."""

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = ChangeAwareAttention(config.width, config.heads, config.gate)
        self.norm_feed = nn.LayerNorm(config.width)
        self.feed = FeedForward(config.width)

    def forward(
        self, x: Float[Tensor, "b n d"], pictures: Float[Tensor, "b n2 d"], distance: Float[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b heads n n"]]:
        seen, weights = self.attention(self.norm_attention(x), pictures, distance)
        x = x + seen
        return x + self.feed(self.norm_feed(x)), weights


class ChangeFusion(nn.Module):
    """From the frozen features of before and after to a token per place, and the map of where the heads look."""

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.picture = nn.Linear(config.feature_width, width)
        self.difference = nn.Linear(config.feature_width, width)
        self.places = nn.Parameter(torch.randn(config.grid**2, width) * width**-0.5)
        self.roles = nn.Parameter(torch.randn(2, width) * width**-0.5)
        self.norm_pictures = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(FusionBlock(config) for _ in range(config.layers))
        self.out = nn.Sequential(nn.LayerNorm(3 * width), nn.Linear(3 * width, width))

    def forward(self, features: Float[Tensor, "b 2 n c"]) -> Fused:
        """Index 0 of ``features`` is before, -1 is after."""
        normalised, distance = F.layer_norm(features, features.shape[-1:]), distances(features)
        ends = self.picture(normalised) + self.places + self.roles[:, None]
        pictures = self.norm_pictures(rearrange(ends, "b two n d -> b (two n) d"))
        x = self.difference(normalised[:, 1] - normalised[:, 0]) + self.places
        seen = []
        for block in self.blocks:
            x, weights = block(x, pictures, distance)
            seen.append(weights)
        tokens = self.out(torch.cat([x, ends[:, 0], ends[:, 1]], dim=-1))
        averages = torch.einsum("bn,btnc->btc", shares(distance), normalised)
        return Fused(tokens, self._prior(torch.stack(seen), distance), distance, averages)

    def _prior(self, weights: Float[Tensor, "layers b heads n n"], distance: Float[Tensor, "b n"]) -> Tensor:
        """What all heads look at, each place's look counting by how open its gate is there."""
        if self.config.gate:
            asking = torch.stack([block.attention.openness(distance).exp() for block in self.blocks])
        else:
            asking = repeat(torch.ones_like(distance), "b n -> l b h n", l=len(weights), h=weights.shape[2])
        looked = torch.einsum("lbhq,lbhqm->bm", asking, weights)
        return looked / looked.amax(1, keepdim=True).clamp(min=1e-12)
