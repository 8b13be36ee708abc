"""The caption decoder: words so far and the memory of a pair in, the next word out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from procap.models.layers import Attention, FeedForward, UnbiasedNorm, dropout
from procap.shapes import Float, Int, Tensor, Words


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a caption decoder."""

    vocabulary: int
    """v."""
    words: int
    """l."""
    memory_width: int
    width: int
    layers: int
    heads: int
    dropout: float
    style: Literal["compact", "reference"] = "compact"
    """A name in STYLES."""


@dataclass(frozen=True)
class Style:
    """What a decoder block and the embedding of its words are made of."""

    norm: Callable[[int], nn.Module]
    norm_after: bool
    """The norm follows the sum of a residual branch, rather than opening the branch; then no norm ends the decoder."""
    activation: Callable[[], nn.Module]
    attention_biases: bool
    scores_by_width: bool
    """Scores are divided by sqrt(width of the decoder), not of a head."""
    drops_weights: bool
    """Dropout on attention weights too."""
    sinusoids: bool
    """Positions are fixed waves, not learned; words are scaled by sqrt(width) to be seen beside them."""


STYLES = {
    "compact": Style(nn.LayerNorm, False, nn.GELU, True, False, False, False),
    "reference": Style(UnbiasedNorm, True, nn.ReLU, False, True, True, True),
}
"""Ours and the reference code's. The paper says nothing of it, so that its presets take the reference's, too."""


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the memory, feed-forward."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        style = STYLES[config.style]
        self.dropout, self.norm_after, width = config.dropout, style.norm_after, config.width
        choices: dict[str, Any] = {
            "bias": style.attention_biases,
            "scale": width**-0.5 if style.scores_by_width else None,
            "weight_dropout": config.dropout if style.drops_weights else 0.0,
        }
        self.norm_self = style.norm(width)
        self.self_attention = Attention(width, config.heads, **choices)
        self.norm_cross = style.norm(width)
        self.cross_attention = Attention(width, config.heads, config.memory_width, **choices)
        self.norm_feed = style.norm(width)
        self.feed = FeedForward(width, style.activation)

    def enter(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What a residual branch reads."""
        return x if self.norm_after else norm(x)

    def leave(self, norm: nn.Module, x: Tensor, branch: Tensor, generator: torch.Generator | None) -> Tensor:
        """The branch's result and what went past it."""
        x = x + dropout(branch, self.dropout, generator)
        return norm(x) if self.norm_after else x

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        memory: tuple[Tensor, Tensor],
        past: tuple[Tensor, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "b s d"], tuple[Tensor, Tensor]]:
        """``past`` holds keys and values of earlier words; then ``x`` is one new word.

        Where ``x`` has several rows for one of ``memory`` (beams), they stand next to one another.
        """
        y = self.enter(self.norm_self, x)
        keys, values = self.self_attention.keys_values(y)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        causal = past is None and x.shape[1] > 1
        attended = self.self_attention.attend(y, keys, values, causal=causal, generator=generator)
        x = self.leave(self.norm_self, x, attended, generator)
        asked = self.enter(self.norm_cross, x).reshape(len(memory[0]), -1, x.shape[-1])
        attended = self.cross_attention.attend(asked, *memory, generator=generator).reshape(x.shape)
        x = self.leave(self.norm_cross, x, attended, generator)
        return self.leave(self.norm_feed, x, self.feed(self.enter(self.norm_feed, x)), generator), (keys, values)


Past = list[tuple[Tensor, Tensor]]


def waves(places: Tensor, width: int) -> Float[Tensor, "*any d"]:
    """Sine at even and cosine at odd places of the width, slower towards its end (Vaswani et al., 2017)."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=places.device) / width)
    angles = places[..., None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class CaptionDecoder(nn.Module):
    """Transformer decoder whose output matrix is its word embedding."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, style = config, STYLES[config.style]
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
        self.embedding_scale = config.width**0.5 if style.sinusoids else 1.0
        self.positions: Tensor
        if style.sinusoids:
            self.register_buffer("positions", waves(torch.arange(config.words), config.width), persistent=False)
        else:
            self.positions = nn.Parameter(torch.randn(config.words, config.width) * config.width**-0.5)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = nn.Identity() if style.norm_after else style.norm(config.width)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def read(self, memory: Float[Tensor, "b m d2"]) -> Past:
        """Keys and values of the memory, per block: computed once per pair, whatever the number of words."""
        return [block.cross_attention.keys_values(memory) for block in self.blocks]

    def forward(self, words: Words, memory: Past, generator: torch.Generator | None = None) -> Float[Tensor, "b l v"]:
        """Logits of the word after each word, all at once; a generator means training (dropout)."""
        x = dropout(self.embed(words), self.config.dropout, generator)
        for block, read in zip(self.blocks, memory, strict=True):
            x, _ = block(x, read, generator=generator)
        return self.logits(x)

    def step(
        self, word: Int[Tensor, " b"], place: int, memory: Past, past: Past | None
    ) -> tuple[Float[Tensor, "b v"], Past]:
        """Logits after one more word at ``place``, and what the next step needs of the past."""
        x = self.embed(word[:, None], place)
        grown = []
        for number, (block, read) in enumerate(zip(self.blocks, memory, strict=True)):
            x, kept = block(x, read, past[number] if past else None)
            grown.append(kept)
        return self.logits(x)[:, 0], grown

    def embed(self, words: Int[Tensor, "b s"], first: int = 0) -> Float[Tensor, "b s d"]:
        """Words as vectors, the first of them at place ``first``."""
        return self.embedding(words) * self.embedding_scale + self.positions[first : first + words.shape[1]]

    def logits(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s v"]:
        return (self.norm(x) @ self.embedding.weight.T).float() + self.bias
