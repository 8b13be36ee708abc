"""The procedure encoder (paper, section 3.1): keyframes, some of them hidden, and the caption, in one sequence."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from einops import rearrange
from torch import nn

from procap.models.layers import Attention, EncoderBlock, start_silent, without_biases
from procap.shapes import Bool, Features, Float, Tensor, Words


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of a procedure encoder."""

    frames: int
    """t: before, the kept frames, after."""
    grid: int
    """Tokens per side of a frame; n = grid * grid."""
    feature_width: int
    """c of the frozen features."""
    codes: int
    """Entries of the frozen tokenizer's codebook."""
    vocabulary: int
    """v."""
    words: int
    """l."""
    width: int
    layers: int
    heads: int

    @property
    def hidden(self) -> int:
        """k: frames that stage 2 has to imagine."""
        return self.frames - 2


@dataclass(frozen=True)
class Encoded:
    """What the encoder makes of a sequence."""

    align: Float[Tensor, "b d"]
    """At e_align: does the caption fit the procedure?"""
    csy: Float[Tensor, "b d"]
    """At e_csy: is the procedure consistent in time?"""
    frames: Float[Tensor, "b t n d"]


class AxialPositions(nn.Module):
    """One learned vector per frame, row and column, added up.

    They begin at right angles to one another, in the first third of the width.
    """

    def __init__(self, frames: int, grid: int, width: int) -> None:
        super().__init__()
        start = torch.zeros(frames + 2 * grid, width)
        third = width // 3
        start[:, :third] = nn.init.orthogonal_(torch.empty(len(start), third)) * third**0.5
        frame, row, column = start.split([frames, grid, grid])
        self.frame = nn.Parameter(frame.reshape(frames, 1, 1, width).clone())
        self.row = nn.Parameter(row.reshape(1, grid, 1, width).clone())
        self.column = nn.Parameter(column.reshape(1, 1, grid, width).clone())

    def forward(self) -> Float[Tensor, "t n d"]:
        return rearrange(self.frame + self.row + self.column, "t row column d -> t (row column) d")


SHARPNESS = 8.0
"""Score that a matching row, column or frame adds, before the softmax."""


def compare_ends(attention: Attention, positions: AxialPositions) -> None:
    """Let the first block begin as a comparison of the two real pictures (our formulation).

    A vector's first third says where it is, the second what is there, the third is empty. The first head looks
    from every place at the same place of the before frame, the second at that of the after frame; together they
    write after minus before into the third third. Training may change all of it. Without such a start, finding
    out that equal places must be compared takes a small model thousands of updates. In the spirit of the
    "mimetic" initialisation (Trockman & Kolter, 2023).
    """
    width = attention.query.weight.shape[0]
    third = width // 3
    place, content, difference = (slice(i * third, (i + 1) * third) for i in range(3))
    identity = torch.eye(third)
    scale = (SHARPNESS / third**0.5) ** 0.5
    with torch.no_grad():
        keys, values = attention.key_value.weight[:width], attention.key_value.weight[width:]
        for head, frame, sign in ((place, 0, -1.0), (content, -1, 1.0)):
            for weight in (attention.query.weight, keys, values):
                weight[head] = 0
            attention.query.weight[head, place] = scale * identity
            keys[head, place] = scale * identity
            attention.query.bias[head] = 2 * scale * positions.frame[frame, 0, 0, place]
            values[head, content] = identity
            attention.out.weight[:, head] = 0
            attention.out.weight[difference, head] = sign * identity
        attention.out.weight[:, difference] *= 0.1


class ProcedureEncoder(nn.Module):
    """Sequence: [align] caption [csy] frames. In stage 2 the frames stand alone, as in the paper's section 3.2."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.feature_norm = nn.LayerNorm(config.feature_width)
        self.feature_embedding = nn.Linear(config.feature_width, width)
        self.positions = AxialPositions(config.frames, config.grid, width)
        self.query = nn.Parameter(torch.zeros(width))
        self.word_embedding = nn.Embedding(config.vocabulary, width)
        self.word_positions = nn.Parameter(torch.randn(config.words, width))
        self.align = nn.Parameter(torch.randn(width))
        self.csy = nn.Parameter(torch.randn(width))
        self.blocks = nn.ModuleList(EncoderBlock(width, config.heads if i else 3) for i in range(config.layers))
        self.token_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.codes))
        self.align_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.csy_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.start()

    @torch.no_grad()
    def start(self) -> None:
        """First weights: a comparison of the ends, and nothing else that is loud."""
        without_biases(self)
        third = self.config.width // 3
        content = nn.init.orthogonal_(torch.empty(third, self.config.feature_width))
        self.feature_embedding.weight.zero_()
        self.feature_embedding.weight[third : 2 * third] = content * (self.config.feature_width / third) ** 0.5
        self.query[third : 2 * third].normal_()
        first: Any = self.blocks[0]
        compare_ends(first.attention, self.positions)
        for block in cast(Any, self.blocks):
            start_silent(block.feed[2])
            if block is not first:
                start_silent(block.attention.out)

    def embed_frames(self, features: Features, kept: Bool[Tensor, "b t n"] | None) -> Float[Tensor, "b t n d"]:
        """Frames as vectors; where ``kept`` is False the query stands in for what is hidden."""
        embedded = self.feature_embedding(self.feature_norm(features))
        if kept is not None:
            embedded = torch.where(kept[..., None], embedded, self.query.to(embedded.dtype))
        return embedded + self.positions()

    def embed_caption(self, words: Words) -> Float[Tensor, "b s d"]:
        """[align] caption [csy] as vectors."""
        b = words.shape[0]
        caption = self.word_embedding(words) + self.word_positions
        return torch.cat([self.align.expand(b, 1, -1), caption, self.csy.expand(b, 1, -1)], dim=1)

    def forward(self, caption: Float[Tensor, "b s d"], frames: Float[Tensor, "b t n d"]) -> Encoded:
        """Encode an embedded caption with embedded frames (stage 1)."""
        t = frames.shape[1]
        x = torch.cat([caption, rearrange(frames, "b t n d -> b (t n) d")], dim=1)
        for block in self.blocks:
            x = block(x)
        s = caption.shape[1]
        return Encoded(x[:, 0], x[:, s - 1], rearrange(x[:, s:], "b (t n) d -> b t n d", t=t))

    def imagine(self, ends: Float[Tensor, "b 2 n c"]) -> Float[Tensor, "b t n d"]:
        """Encode before and after with procedure queries between them (stage 2, section 3.2)."""
        b, _, n, _ = ends.shape
        hidden = self.config.hidden
        embedded = self.feature_embedding(self.feature_norm(ends))
        queries = self.query.to(embedded.dtype).expand(b, hidden, n, -1)
        frames = torch.cat([embedded[:, :1], queries, embedded[:, 1:]], dim=1) + self.positions()
        x = rearrange(frames, "b t n d -> b (t n) d")
        for block in self.blocks:
            x = block(x)
        return rearrange(x, "b (t n) d -> b t n d", t=hidden + 2)
