"""The caption decoder: words so far and the memory of a pair in, the next word out."""

from dataclasses import dataclass

import torch
from torch import nn

from procap.models.layers import Attention, FeedForward, dropout
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


class DecoderBlock(nn.Module):
    """Pre-norm causal self-attention, cross-attention to the memory, feed-forward."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.norm_self = nn.LayerNorm(config.width)
        self.self_attention = Attention(config.width, config.heads)
        self.norm_cross = nn.LayerNorm(config.width)
        self.cross_attention = Attention(config.width, config.heads, config.memory_width)
        self.norm_feed = nn.LayerNorm(config.width)
        self.feed = FeedForward(config.width)

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        memory: tuple[Tensor, Tensor],
        past: tuple[Tensor, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "b s d"], tuple[Tensor, Tensor]]:
        """``past`` holds keys and values of earlier words; then ``x`` is one new word."""
        y = self.norm_self(x)
        keys, values = self.self_attention.keys_values(y)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        attended = self.self_attention.attend(y, keys, values, causal=past is None and x.shape[1] > 1)
        x = x + dropout(attended, self.dropout, generator)
        x = x + dropout(self.cross_attention.attend(self.norm_cross(x), *memory), self.dropout, generator)
        return x + dropout(self.feed(self.norm_feed(x)), self.dropout, generator), (keys, values)


Past = list[tuple[Tensor, Tensor]]


class CaptionDecoder(nn.Module):
    """Transformer decoder whose output matrix is its word embedding."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
        self.positions = nn.Parameter(torch.randn(config.words, config.width) * config.width**-0.5)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def read(self, memory: Float[Tensor, "b m d2"]) -> Past:
        """Keys and values of the memory, per block: computed once per pair, whatever the number of words."""
        return [block.cross_attention.keys_values(memory) for block in self.blocks]

    def forward(
        self, words: Words, memory: Past, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b l v"]:
        """Logits of the word after each word, all at once; a generator means training (dropout)."""
        x = self.embedding(words) + self.positions[: words.shape[1]]
        x = dropout(x, self.config.dropout, generator)
        for block, read in zip(self.blocks, memory, strict=True):
            x, _ = block(x, read, generator=generator)
        return self.logits(x)

    def step(
        self, word: Int[Tensor, " b"], place: int, memory: Past, past: Past | None
    ) -> tuple[Float[Tensor, "b v"], Past]:
        """Logits after one more word at ``place``, and what the next step needs of the past."""
        x = (self.embedding(word) + self.positions[place])[:, None]
        grown = []
        for number, (block, read) in enumerate(zip(self.blocks, memory, strict=True)):
            x, kept = block(x, read, past[number] if past else None)
            grown.append(kept)
        return self.logits(x)[:, 0], grown

    def logits(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s v"]:
        return (self.norm(x) @ self.embedding.weight.T).float() + self.bias
