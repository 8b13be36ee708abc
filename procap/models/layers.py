"""Transformer parts that the procedure encoder and the caption decoder share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.shapes import Bool, Float, Tensor


def dropout(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose randomness is an argument; without a generator (evaluation) nothing is dropped."""
    if generator is None or rate == 0:
        return x
    kept = torch.rand(x.shape, generator=generator, device=generator.device).to(x.device) >= rate
    return x * kept / (1 - rate)


@dataclass(frozen=True)
class Blocked:
    """Neighbouring rows of an attention matrix that do not see everything; all other rows do."""

    first: int
    visible: Bool[Tensor, "rows m"]
    """True where a place may look."""


class Attention(nn.Module):
    """Multi-head attention by ``F.scaled_dot_product_attention``: no matrix of weights is materialised.

    ``scale`` multiplies the scores; None is 1 / sqrt(width of a head).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        memory_width: int | None = None,
        *,
        bias: bool = True,
        scale: float | None = None,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.scale, self.weight_dropout = heads, scale, weight_dropout
        self.query = nn.Linear(width, width, bias)
        self.key_value = nn.Linear(memory_width or width, 2 * width, bias)
        self.out = nn.Linear(width, width, bias)

    def split(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b heads s d2"]:
        return rearrange(x, "b s (heads d2) -> b heads s d2", heads=self.heads)

    def keys_values(self, memory: Float[Tensor, "b m d2"]) -> tuple[Tensor, Tensor]:
        """What ``attend`` reads; compute it once where the memory stays the same."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self.split(keys), self.split(values)

    @torch.no_grad()
    def start_looking(self, at: int) -> None:
        """First weights: every head takes number ``at`` of the memory as its score (our formulation)."""
        width = self.query.out_features
        score = torch.arange(0, width, width // self.heads)
        self.key_value.weight[score] = 0
        self.key_value.weight[score, at] = 2
        self.query.weight[score] = 0
        self.query.bias[score] = 2

    def attend(
        self,
        x: Float[Tensor, "b s d"],
        keys: Float[Tensor, "b heads m d2"],
        values: Float[Tensor, "b heads m d2"],
        *,
        causal: bool = False,
        blocked: Blocked | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b s d"]:
        """A generator means training: then weights are dropped, where this attention drops any."""
        queries = self.split(self.query(x))
        if generator is not None and self.weight_dropout:
            attended = self._attend_dropping(queries, keys, values, causal, generator)
        else:
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal, scale=self.scale)
        if blocked is not None:
            rows = slice(blocked.first, blocked.first + len(blocked.visible))
            again = F.scaled_dot_product_attention(
                queries[:, :, rows], keys, values, attn_mask=blocked.visible, scale=self.scale
            )
            attended = torch.cat([attended[:, :, : rows.start], again, attended[:, :, rows.stop :]], dim=2)
        return self.out(rearrange(attended, "b heads s d2 -> b s (heads d2)"))

    def _attend_dropping(
        self, queries: Tensor, keys: Tensor, values: Tensor, causal: bool, generator: torch.Generator
    ) -> Tensor:
        """With dropout on the weights, which torch's own attention would draw from the global generator."""
        scores = queries @ keys.mT * (self.scale or queries.shape[-1] ** -0.5)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return dropout(scores.softmax(-1), self.weight_dropout, generator) @ values


class QuickGELU(nn.Module):
    """GELU as CLIP computes it: x sigmoid(1.702 x)."""

    SLOPE = 1.702

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.SLOPE * x) / self.SLOPE


class FeedForward(nn.Sequential):
    """Two layers with an activation between."""

    def __init__(self, width: int, activation: Callable[[], nn.Module] = nn.GELU, factor: int = 4) -> None:
        super().__init__(nn.Linear(width, factor * width), activation(), nn.Linear(factor * width, width))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """QuickGELU's slope goes into the weights, which are fewer than the values between them."""
        if not isinstance(self[1], QuickGELU):
            return super().forward(x)
        first, second, slope = cast(nn.Linear, self[0]), cast(nn.Linear, self[2]), QuickGELU.SLOPE
        inner = F.silu(F.linear(x, slope * first.weight, slope * first.bias))
        return F.linear(inner, second.weight / slope, second.bias)


class UnbiasedNorm(nn.Module):
    """gamma (x - mean) / (std + 1e-6) + beta, the std being that of N - 1: the norm of the reference's decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.beta


class EncoderBlock(nn.Module):
    """Pre-norm self-attention and feed-forward, without dropout, as in CLIP's visual transformer."""

    def __init__(self, width: int, heads: int, activation: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = FeedForward(width, activation)

    def forward(
        self, x: Float[Tensor, "b s d"], blocked: Blocked | None = None, places: Sequence[int] | None = None
    ) -> Float[Tensor, "b s2 d"]:
        """With ``places``, only those leave the block, and ``blocked`` counts rows among them."""
        y = self.norm_attention(x)
        keys, values = self.attention.keys_values(y)
        if places is not None:
            x, y = x[:, places], y[:, places]
        x = x + self.attention.attend(y, keys, values, blocked=blocked)
        return x + self.feed(self.norm_feed(x))


def start_silent(linear: nn.Linear) -> None:
    """Let a residual branch begin as nothing, so that what is there already passes through unchanged."""
    nn.init.zeros_(linear.weight)


def without_biases(module: nn.Module) -> None:
    """All linear layers begin without a bias, so that nothing in gives nothing out."""
    for part in module.modules():
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
