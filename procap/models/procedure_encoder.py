"""The procedure encoder (paper, section 3.1): keyframes, some of them hidden, and the caption, in one sequence."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import nn

from procap.models.layers import EncoderBlock, place_matching
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
    """One learned vector per frame, row and column, added up."""

    def __init__(self, frames: int, grid: int, width: int) -> None:
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, 1, 1, width) * 0.5)
        self.row = nn.Parameter(torch.randn(1, grid, 1, width))
        self.column = nn.Parameter(torch.randn(1, 1, grid, width))

    def forward(self) -> Float[Tensor, "t n d"]:
        return rearrange(self.frame + self.row + self.column, "t row column d -> t (row column) d")


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
        self.blocks = nn.ModuleList(EncoderBlock(width, config.heads) for _ in range(config.layers))
        for block in self.blocks:
            place_matching(block.attention)
        self.token_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.codes))
        self.align_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.csy_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

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
