"""The form of CCRC's answers: a reasoning line, a caption, one decision. Words, grammar, and what is taught.

An answer is type, object (up to ``OBJECT_WORDS`` words), place, [BOS], the caption's words, then <seg> or <noseg>.
The words of the structure have the numbers after those of the vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from procap.captioners import Batch, Reasoning, Truth
from procap.datasets.corpus import CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE
from procap.datasets.vocabulary import EOS, PAD, SPECIALS, UNK
from procap.shapes import Bool, Float, Int, Tensor, Words

KINDS = (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE)
OBJECT_WORDS = 4
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "middle", "right")
CELLS = tuple("middle" if row == column else f"{row} {column}" for row in ROWS for column in COLUMNS)
"""Of a 3 x 3 grid, row by row."""
PLACES = (*CELLS, "nowhere", "unknown")
NOWHERE, UNKNOWN_PLACE = len(CELLS), len(CELLS) + 1
REASONING = 1 + OBJECT_WORDS + 1
"""Numbers of a reasoning line; it has always so many."""
STRUCTURE = (*KINDS, *PLACES, "nothing more", "outline", "no outline")
"""The words of the structure; the last three fill an object's places that no word takes, and decide."""


@dataclass(frozen=True)
class Grammar:
    """Which number may follow which, for a vocabulary of ``words``, marks included."""

    words: int

    @property
    def size(self) -> int:
        """Of the vocabulary with the structure."""
        return self.words + len(STRUCTURE)

    @property
    def kind(self) -> int:
        """Number of the first of KINDS."""
        return self.words

    @property
    def place(self) -> int:
        """Number of the first of PLACES."""
        return self.words + len(KINDS)

    @property
    def nothing(self) -> int:
        return self.place + len(PLACES)

    @property
    def seg(self) -> int:
        return self.nothing + 1

    @property
    def noseg(self) -> int:
        return self.nothing + 2

    def allowed(self, place: int, last: Int[Tensor, " b"], device: torch.device) -> Bool[Tensor, "b v"]:
        """What may stand at a ``place`` of the reasoning line after ``last``, the number before it."""
        may = torch.zeros(len(last), self.size, dtype=torch.bool, device=device)
        if place == 0:
            may[:, self.kind : self.place] = True
        elif place == REASONING - 1:
            may[:, self.place : self.nothing] = True
        else:
            more = (last != self.nothing) & (last != UNK)
            may[:, len(SPECIALS) : self.words] = more[:, None]
            may[:, UNK] = place == 1
            may[:, self.nothing] = True
        return may

    def caption_logits(self, logits: Float[Tensor, "b v"]) -> Float[Tensor, "b v2"]:
        """Logits over the vocabulary alone, [EOS] standing for either decision."""
        ends = logits[:, self.seg : self.noseg + 1].logsumexp(1, keepdim=True)
        return torch.cat([logits[:, :EOS], ends, logits[:, EOS + 1 : self.words]], dim=1)

    def read(self, line: list[int]) -> Reasoning:
        """A reasoning line as it is told."""
        words = tuple(number for number in line[1:-1] if number != self.nothing)
        return Reasoning(KINDS[line[0] - self.kind], words, PLACES[line[-1] - self.place])

    def lines(self, truth: Truth) -> Int[Tensor, "b r"]:
        """The reasoning lines that pairs train."""
        objects = truth.objects.where(truth.objects != PAD, self.nothing)
        ends = truth.kinds + self.kind, places(truth) + self.place
        return torch.cat([ends[0][:, None], objects, ends[1][:, None]], dim=1)

    def answers(self, batch: Batch) -> Words:
        """The whole answers that pairs train: line, [BOS], words, decision, [PAD]; no [EOS]."""
        truth = taught(batch)
        decision = torch.where(segmentable(truth), self.seg, self.noseg)
        words = torch.where(batch.words == EOS, decision[:, None], batch.words)
        return torch.cat([self.lines(truth), words], dim=1)


def taught(batch: Batch) -> Truth:
    """What is known of a batch's changes."""
    if batch.truth is None:
        raise ValueError("ccrc is taught what is known of the changes: batch.truth is None")
    return batch.truth


def segmentable(truth: Truth) -> Bool[Tensor, " b"]:
    """Pairs that train <seg>: those that changed and whose mask shows it; a mask alone does not outvote the words."""
    return truth.masked & truth.masks.flatten(1).any(1) & (truth.kinds != KINDS.index(NO_CHANGE))


def places(truth: Truth) -> Int[Tensor, " b"]:
    """Numbers in PLACES: the cell that holds most of the mask; unknown without one, nowhere without a change."""
    cells = F.adaptive_avg_pool2d(truth.masks[:, None].float(), 3).flatten(1).argmax(1)
    cells = cells.where(segmentable(truth), UNKNOWN_PLACE)
    return cells.masked_fill(truth.kinds == KINDS.index(NO_CHANGE), NOWHERE)
