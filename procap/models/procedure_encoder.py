"""The procedure encoder (paper, section 3.1): keyframes, some of them hidden, and the caption, in one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from einops import rearrange
from torch import nn
from torch.utils.checkpoint import checkpoint

from procap.models.layers import Attention, Blocked, EncoderBlock, QuickGELU, start_silent, without_biases
from procap.shapes import Bool, Features, Float, Int, Tensor, Words


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of a procedure encoder, and the choices in which the paper, the reference code and we differ.

    Where a choice has a default, that is ours.
    """

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
    start: Literal["comparison", "usual"] = "comparison"
    """First weights. ``comparison``: the first block compares the ends and has three heads (our formulation);
    ``usual``: random (reference, paper), and ``heads`` in every block."""
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    """``quick_gelu`` is CLIP's (reference, paper)."""
    reserved: bool = False
    """A token [ST1] of no use between caption and e_csy (reference)."""
    special_positions: bool = False
    """e_align, [ST1] and e_csy are a sum of two learned vectors each (reference)."""
    csy_sees: Literal["all", "frames"] = "all"
    """``frames``: e_csy and [ST1] see themselves and what follows, not the caption (reference)."""
    pads: Literal["shared", "placed"] = "shared"
    """``placed``: [PAD] at place j has a vector of its own, row ``vocabulary`` + j of the words (reference)."""
    queries: Literal["shared", "each"] = "shared"
    """``shared``: one vector for every hidden place (reference); ``each``: one per frame and place (paper)."""
    captions: bool = True
    """Stage 1 shows the caption; without it the sequence begins at [ST1] or e_csy."""

    @property
    def hidden(self) -> int:
        """k: frames that stage 2 has to imagine."""
        return self.frames - 2


@dataclass(frozen=True)
class Imagining:
    """What stage 2 shows the encoder besides the two pictures. Where a choice has a default, that is ours."""

    between: Literal["queries", "frames", "nothing"] = "queries"
    """Between the pictures: procedure queries (paper), real frames or nothing (its ablations)."""
    prompt: Literal["none", "full", "without_align"] = "none"
    """Before the pictures: ``full``: e_align, an empty caption, [ST1] if any, e_csy, as in stage 1 (paper);
    ``without_align``: the same without e_align (reference)."""
    prompt_rows: Literal["pads", "first"] = "pads"
    """The empty caption's vectors: those of [PAD], or, by an oversight, the first rows of the words (reference)."""
    mask_rows: Literal["right", "shifted"] = "right"
    """Which rows ``csy_sees: frames`` blocks: theirs, or those that have their numbers in stage 1 (reference)."""


@dataclass(frozen=True)
class Encoded:
    """What the encoder makes of a sequence."""

    align: Float[Tensor, "b d"]
    """At e_align: does the caption fit the procedure?"""
    csy: Float[Tensor, "b d"]
    """At e_csy: is the procedure consistent in time?"""
    frames: Float[Tensor, "b2 t n d"]


OURS = Imagining()
ACTIVATIONS = {"gelu": nn.GELU, "quick_gelu": QuickGELU}
PAD = 0
"""The number of [PAD], as in ``datasets.vocabulary``."""


class AxialPositions(nn.Module):
    """One learned vector per frame, row and column, added up.

    For a comparison they begin at right angles to one another, in the first third of the width.
    """

    def __init__(self, frames: int, grid: int, width: int, start: str) -> None:
        super().__init__()
        vectors, third = torch.zeros(frames + 2 * grid, width), width // 3
        if start == "comparison":
            vectors[:, :third] = nn.init.orthogonal_(torch.empty(len(vectors), third)) * third**0.5
        else:
            vectors.normal_()
        frame, row, column = vectors.split([frames, grid, grid])
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


def _upto(rows: int, gradient: Tensor) -> Tensor:
    """The gradient of the first rows, and none of the others."""
    return torch.cat([gradient[:rows], torch.zeros_like(gradient[rows:])])


class ProcedureEncoder(nn.Module):
    """Sequence: [align] caption [csy] frames, with [ST1] before [csy] where there is one (``EncoderConfig``).

    In stage 2 the frames stand alone, as in the paper's section 3.2, or after a prompt (``Imagining``).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config, self.checkpointing = config, False
        width, n = config.width, config.grid**2
        self.feature_norm = nn.LayerNorm(config.feature_width)
        self.feature_embedding = nn.Linear(config.feature_width, width)
        self.positions = AxialPositions(config.frames, config.grid, width, config.start)
        self.query = nn.Parameter(torch.zeros(width if config.queries == "shared" else (config.frames, n, width)))
        pads = config.words if config.pads == "placed" else 0
        self.word_embedding = nn.Embedding(config.vocabulary + pads, width)
        self.word_positions = nn.Parameter(torch.randn(config.words, width))
        self.align = nn.Parameter(torch.randn(width))
        self.csy = nn.Parameter(torch.randn(width))
        if config.reserved:
            self.reserved = nn.Parameter(torch.randn(width))
        if config.special_positions:
            self.special_positions = nn.Parameter(torch.randn(2 + config.reserved, width))
        comparing = config.start == "comparison"
        self.blocks = nn.ModuleList(
            EncoderBlock(width, 3 if comparing and i == 0 else config.heads, ACTIVATIONS[config.activation])
            for i in range(config.layers)
        )
        self.token_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.codes))
        self.align_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.csy_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        if comparing:
            self.start_comparing()

    @torch.no_grad()
    def start_comparing(self) -> None:
        """First weights: a comparison of the ends, and nothing else that is loud."""
        without_biases(self)
        third = self.config.width // 3
        content = nn.init.orthogonal_(torch.empty(third, self.config.feature_width))
        self.feature_embedding.weight.zero_()
        self.feature_embedding.weight[third : 2 * third] = content * (self.config.feature_width / third) ** 0.5
        self.query[..., third : 2 * third].normal_()
        first: Any = self.blocks[0]
        compare_ends(first.attention, self.positions)
        for block in cast(Any, self.blocks):
            start_silent(block.feed[2])
            if block is not first:
                start_silent(block.attention.out)

    def hold_comparison(self) -> None:
        """Let stage 1 train beside what compares the ends, which stays as it is (our formulation).

        Hidden tokens all look alike; their gradients unlearn the comparison within 150 updates. So what compares is
        fixed, and all that trains writes into the first third of the width alone: what is there and what differs reach
        stage 2 as they would without a stage 1 (docs/log.md).
        """
        first: Any = self.blocks[0]
        for part in (self.feature_norm, self.feature_embedding, self.positions, first.norm_attention, first.attention):
            part.requires_grad_(False)
        third = self.config.width // 3
        for block in cast(Any, self.blocks):
            for linear in (block.feed[2], *([] if block is first else [block.attention.out])):
                for weight in linear.parameters():
                    weight.register_hook(partial(_upto, third))

    def embed_frames(self, features: Features, kept: Bool[Tensor, "b t n"] | None) -> Float[Tensor, "b t n d"]:
        """Frames as vectors; where ``kept`` is False the query stands in for what is hidden."""
        embedded = self.feature_embedding(self.feature_norm(features))
        if kept is not None:
            embedded = torch.where(kept[..., None], embedded, self.query.to(embedded.dtype))
        return embedded + self.positions()

    def embed_caption(self, words: Words) -> Float[Tensor, "b s d"]:
        """What stage 1 puts before the frames: [align] caption [csy] as vectors."""
        if not self.config.captions:
            return self.specials()[1:].expand(len(words), -1, -1)
        return self.surround(self.rows(words))

    def rows(self, words: Words) -> Words:
        """Rows of the words' vectors."""
        if self.config.pads == "shared":
            return words
        places = torch.arange(self.config.words, device=words.device)
        return torch.where(words == PAD, self.config.vocabulary + places, words)

    def specials(self) -> Float[Tensor, "s d"]:
        """[align], [ST1] where there is one, [csy]."""
        reserved = [self.reserved] if self.config.reserved else []
        vectors = torch.stack([self.align, *reserved, self.csy])
        return vectors + self.special_positions if self.config.special_positions else vectors

    def surround(self, rows: Int[Tensor, "b l"]) -> Float[Tensor, "b s d"]:
        """A caption, given as rows of the words' vectors, between [align] and the other special tokens."""
        specials = self.specials().expand(len(rows), -1, -1)
        caption = self.word_embedding(rows) + self.word_positions
        return torch.cat([specials[:, :1], caption, specials[:, 1:]], dim=1)

    def forward(
        self, caption: Float[Tensor, "b s d"], frames: Float[Tensor, "b t n d"], whole: int | None = None
    ) -> Encoded:
        """Encode an embedded caption with embedded frames (stage 1).

        Only the first ``whole`` sequences (None: all) have their frames encoded; of the others nothing but e_align and
        e_csy leaves the last block, which spares most of its work.
        """
        t, s = frames.shape[1], caption.shape[1]
        if whole is None or whole == len(caption):
            x = self.transform(caption, frames, self.unseeing(s))
            return Encoded(x[:, 0], x[:, s - 1], rearrange(x[:, s:], "b (t n) d -> b t n d", t=t))
        x, blocked = self.sequence(caption, frames, self.unseeing(s))
        *earlier, last = self.blocks
        for block in earlier:
            x = self.run(block, x, blocked)
        full, rest = x.split([whole, len(x) - whole])
        full = self.run(last, full, blocked)
        ends = self.run(last, rest, blocked and Blocked(1, blocked.visible[-1:]), (0, s - 1))
        return Encoded(
            torch.cat([full[:, 0], ends[:, 0]]),
            torch.cat([full[:, s - 1], ends[:, 1]]),
            rearrange(full[:, s:], "b (t n) d -> b t n d", t=t),
        )

    def transform(
        self, start: Float[Tensor, "b s d"], frames: Float[Tensor, "b t n d"], first: int
    ) -> Float[Tensor, "b s2 d"]:
        """The blocks' output; with ``csy_sees: frames`` the rows from ``first`` on see what follows them only."""
        x, blocked = self.sequence(start, frames, first)
        for block in self.blocks:
            x = self.run(block, x, blocked)
        return x

    def sequence(
        self, start: Float[Tensor, "b s d"], frames: Float[Tensor, "b t n d"], first: int
    ) -> tuple[Float[Tensor, "b s2 d"], Blocked | None]:
        """What the first block reads, and what ``csy_sees: frames`` blocks in all of them."""
        x = torch.cat([start, rearrange(frames, "b t n d -> b (t n) d")], dim=1)
        blocking = self.config.csy_sees == "frames" and start.shape[1] > 0
        return x, self.blocked(first, torch.arange(x.shape[1], device=x.device)) if blocking else None

    def blocked(self, first: int, places: Int[Tensor, " s"]) -> Blocked:
        """Rows as many as [ST1] and [csy]; each sees its own place and those that follow."""
        rows = slice(first, first + 1 + self.config.reserved)
        return Blocked(first, places >= places[rows, None])

    def run(
        self, block: nn.Module, x: Tensor, blocked: Blocked | None, places: Sequence[int] | None = None
    ) -> Float[Tensor, "b s d"]:
        """One block; with ``checkpointing`` its inner values are computed again when gradients need them."""
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, blocked, places, use_reentrant=False, preserve_rng_state=False)
        return block(x, blocked, places)

    def unseeing(self, s: int) -> int:
        """The first row that ``csy_sees: frames`` blocks, where ``s`` vectors stand before the frames."""
        return s - 1 - self.config.reserved

    def imagine(self, seen: Float[Tensor, "b f n c"], imagining: Imagining = OURS) -> Float[Tensor, "b t n d"]:
        """Encode before (index 0) and after (index -1) with what ``imagining`` puts between them (section 3.2).

        ``between: frames`` reads all of ``seen``, which then has t frames.
        """
        if imagining.between != "frames":
            seen = seen[:, [0, -1]]
        frames, positions = self.feature_embedding(self.feature_norm(seen)), self.positions()
        if imagining.between == "nothing":
            positions = positions[[0, -1]]
        if imagining.between == "queries":
            b, _, n, _ = frames.shape
            query = self.query if self.config.queries == "shared" else self.query[1:-1]
            queries = query.to(frames.dtype).expand(b, self.config.hidden, n, -1)
            frames = torch.cat([frames[:, :1], queries, frames[:, 1:]], dim=1)
        frames = frames + positions
        start = self.prompt(len(seen), imagining)
        s = start.shape[1]
        first = self.unseeing(s) if imagining.mask_rows == "right" else 1 + self.config.words
        x = self.transform(start, frames, first)
        return rearrange(x[:, s:], "b (t n) d -> b t n d", t=frames.shape[1])

    def prompt(self, b: int, imagining: Imagining) -> Float[Tensor, "b s d"]:
        """What stage 2 puts before the frames: nothing, or an empty caption."""
        if imagining.prompt == "none":
            return self.align.new_empty(b, 0, self.config.width)
        rows = torch.arange(self.config.words, device=self.align.device)
        if imagining.prompt_rows == "pads":
            rows = self.rows(torch.full_like(rows, PAD)[None])[0]
        whole = self.surround(rows.expand(b, -1))
        return whole[:, 1:] if imagining.prompt == "without_align" else whole

    def freeze_unimagined(self, imagining: Imagining) -> None:
        """Stop training what ``imagine`` does not read; ``token_head`` stays, to look at what was imagined."""
        unread: list[Any] = [self.token_head, self.align_head, self.csy_head]
        if imagining.prompt != "full":
            unread.append(self.align)
        if imagining.prompt == "none":
            unread += [self.csy, self.word_embedding, self.word_positions]
            unread += [getattr(self, name) for name in ("reserved", "special_positions") if hasattr(self, name)]
        if imagining.between != "queries" or self.config.hidden == 0:
            unread.append(self.query)
        for part in unread:
            part.requires_grad_(False)
