"""Transformer parts that the procedure encoder and the caption decoder share."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.shapes import Bool, Float, Tensor


def dropout(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose randomness is an argument; without a generator (evaluation) nothing is dropped."""
    if generator is None or rate == 0:
        return x
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return x * kept / (1 - rate)


class Attention(nn.Module):
    """Multi-head attention by ``F.scaled_dot_product_attention``: no matrix of weights is materialised."""

    def __init__(self, width: int, heads: int, memory_width: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(memory_width or width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b heads s d2"]:
        return rearrange(x, "b s (heads d2) -> b heads s d2", heads=self.heads)

    def keys_values(self, memory: Float[Tensor, "b m d2"]) -> tuple[Tensor, Tensor]:
        """What ``attend`` reads; compute it once where the memory stays the same."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self.split(keys), self.split(values)

    def attend(
        self,
        x: Float[Tensor, "b s d"],
        keys: Float[Tensor, "b heads m d2"],
        values: Float[Tensor, "b heads m d2"],
        *,
        causal: bool = False,
        visible: Bool[Tensor, "s m"] | None = None,
    ) -> Float[Tensor, "b s d"]:
        """``visible`` is True where a place may look."""
        attended = F.scaled_dot_product_attention(
            self.split(self.query(x)), keys, values, attn_mask=visible, is_causal=causal
        )
        return self.out(rearrange(attended, "b heads s d2 -> b s (heads d2)"))


class FeedForward(nn.Sequential):
    """Two layers with GELU between."""

    def __init__(self, width: int, factor: int = 4) -> None:
        super().__init__(nn.Linear(width, factor * width), nn.GELU(), nn.Linear(factor * width, width))


class EncoderBlock(nn.Module):
    """Pre-norm self-attention and feed-forward, without dropout, as in CLIP's visual transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = FeedForward(width)

    def forward(
        self, x: Float[Tensor, "b s d"], visible: Bool[Tensor, "s s"] | None = None
    ) -> Float[Tensor, "b s d"]:
        y = self.norm_attention(x)
        x = x + self.attention.attend(y, *self.attention.keys_values(y), visible=visible)
        return x + self.feed(self.norm_feed(x))


def start_silent(linear: nn.Linear) -> None:
    """Let a residual branch begin as nothing, so that what is there already passes through unchanged."""
    nn.init.zeros_(linear.weight)


def without_biases(module: nn.Module) -> None:
    """All linear layers begin without a bias, so that nothing in gives nothing out."""
    for part in module.modules():
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
