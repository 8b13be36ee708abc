"""CCS, the chain of change segmenting: a change-aware token refiner and the mask (CCRC; our formulation)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.models.change_fusion import Fused
from procap.models.layers import Attention, FeedForward
from procap.shapes import Float, Tensor

FAINT = 1e-3
"""Added to a prior before its logarithm is a bias, so that no place is lost for good."""


@dataclass(frozen=True)
class MaskConfig:
    """Sizes of the segmenting chain."""

    side: int
    """h = w of a mask: that of the pictures as the captioner sees them."""
    width: int
    tokens: int
    rounds: int
    """In which the tokens look at both scales."""
    heads: int
    priors: bool = True
    """Takes the gated attention map and the hidden state of <seg>; False: an ablation."""
    refiner: bool = True
    """False: an ablation, in which the tokens look at nothing."""


class TokenRefiner(nn.Module):
    """One round: mask tokens look at one scale of the features, biased by the prior, and at each other."""

    def __init__(self, config: MaskConfig) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(3))
        self.look = Attention(config.width, config.heads)
        self.talk = Attention(config.width, config.heads)
        self.feed = FeedForward(config.width)
        self.strength = nn.Parameter(torch.ones(config.heads)) if config.priors else None

    def forward(
        self, tokens: Float[Tensor, "b k d"], places: Float[Tensor, "b m d"], prior: Float[Tensor, "b m"]
    ) -> Float[Tensor, "b k d"]:
        keys, values = self.look.keys_values(places)
        queries = self.look.split(self.look.query(self.norms[0](tokens)))
        bias = None
        if self.strength is not None:
            bias = self.strength[:, None, None] * (prior + FAINT).log()[:, None, None]
            bias = bias.expand(-1, -1, tokens.shape[1], -1).to(queries.dtype)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        tokens = tokens + self.look.out(rearrange(seen, "b heads k d2 -> b k (heads d2)"))
        x = self.norms[1](tokens)
        tokens = tokens + self.talk.attend(x, *self.talk.keys_values(x))
        return tokens + self.feed(self.norms[2](tokens))


class MaskDecoder(nn.Module):
    """Mask tokens, refined at the grid's scale and at twice as fine a one, times upsampled features, then smoothed.

    With the default tokenizer these are 1/8 and 1/4 of the picture. The frozen features hold a patch of the picture
    each, so that finer scales are read off them (sub-pixel convolution): no picture is needed.
    """

    def __init__(
        self, config: MaskConfig, grid: int, feature_width: int, token_width: int, hidden_width: int | None
    ) -> None:
        super().__init__()
        if config.side % (2 * grid):
            raise ValueError(f"a mask of {config.side} pixels is no multiple of twice the grid ({grid})")
        self.config, self.grid, width = config, grid, config.width
        up = config.side // (2 * grid)
        self.fine_width = max(8, width // 4)
        self.coarse = nn.Sequential(
            nn.Conv2d(3 * feature_width + token_width, width, 3, padding=1), nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
        )  # fmt: skip
        self.fine = nn.Sequential(
            nn.Conv2d(width, 4 * (width // 2), 1), nn.PixelShuffle(2),
            nn.Conv2d(width // 2, width, 3, padding=1), nn.GELU(),
        )  # fmt: skip
        self.finest = nn.Sequential(nn.Conv2d(width, up**2 * self.fine_width, 1), nn.PixelShuffle(up))
        self.tokens = nn.Parameter(torch.randn(config.tokens, width) * width**-0.5)
        self.from_hidden = nn.Linear(hidden_width, width) if config.priors and hidden_width else None
        rounds = 2 * config.rounds if config.refiner else 0
        self.rounds = nn.ModuleList(TokenRefiner(config) for _ in range(rounds))
        self.to_mask = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, self.fine_width))
        seen = self.fine_width + config.tokens
        self.boundary = nn.Sequential(
            nn.Conv2d(seen, self.fine_width, 3, padding=1), nn.GELU(), nn.Conv2d(self.fine_width, 1, 3, padding=1)
        )

    def forward(
        self, features: Float[Tensor, "b 2 n c"], fused: Fused, hidden: Float[Tensor, "b d2"] | None
    ) -> Float[Tensor, "b h w"]:
        """Logits of the mask; ``hidden`` is the state of <seg>, None where no chain of words is there."""
        before, after = F.layer_norm(features, features.shape[-1:]).unbind(1)
        seen = torch.cat([before, after, after - before, fused.tokens], dim=-1)
        coarse = self.coarse(rearrange(seen, "b (h w) c -> b c h w", h=self.grid))
        fine = self.fine(coarse)
        tokens = self.tokens.expand(len(features), -1, -1)
        if self.from_hidden is not None and hidden is not None:
            tokens = tokens + self.from_hidden(hidden)[:, None]
        scales = [(coarse, fused.prior), (fine, self._finer(fused.prior))]
        for number, block in enumerate(self.rounds):
            places, prior = scales[number % 2]
            tokens = block(tokens, rearrange(places, "b d h w -> b (h w) d"), prior)
        finest = self.finest(fine)
        masks = torch.einsum("bkd,bdhw->bkhw", self.to_mask(tokens), finest) * self.fine_width**-0.5
        refined = self.boundary(torch.cat([finest, masks], dim=1)) + masks.mean(1, keepdim=True)
        return refined[:, 0].float()

    def _finer(self, prior: Float[Tensor, "b n"]) -> Float[Tensor, "b n4"]:
        square = rearrange(prior, "b (h w) -> b 1 h w", h=self.grid)
        wide = F.interpolate(square, scale_factor=2, mode="bilinear", align_corners=False)
        return wide.flatten(1).clamp(0, 1)


def mask_losses(
    logits: Float[Tensor, "b h w"], masks: Float[Tensor, "b h w"]
) -> dict[str, Float[Tensor, " b"]]:
    """Per pair: binary cross-entropy (mean over pixels), and Dice loss with one pixel added above and below."""
    bce = F.binary_cross_entropy_with_logits(logits, masks, reduction="none").mean((1, 2))
    chance = logits.sigmoid()
    overlap, total = (chance * masks).sum((1, 2)), chance.sum((1, 2)) + masks.sum((1, 2))
    return {"bce": bce, "dice": 1 - (2 * overlap + 1) / (total + 1)}


__all__ = ["MaskConfig", "MaskDecoder", "TokenRefiner", "mask_losses"]
