"""The captioners behind one interface: two verbs, ``loss`` and ``caption``.

A captioner is one file here and one line in ``CAPTIONERS``; ``tests/contract`` says what it promises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch

from procap.shapes import Bool, Float, Int, Scalar, Tensor, Words


@dataclass(frozen=True)
class Truth:
    """What is known of the changes in a batch."""

    kinds: Int[Tensor, " b"]
    """Numbers in ``answers.KINDS``."""
    objects: Int[Tensor, "b o"]
    """Words of what changed, then [PAD]; [UNK] where that is not known, nothing where nothing changed."""
    masks: Bool[Tensor, "b h w"]
    """True where the change shows."""
    masked: Bool[Tensor, " b"]
    """Whether the corpus has a mask; where it has none, ``masks`` says nothing."""

    def part(self, share: slice) -> "Truth":
        """The same of some of the pairs."""
        return Truth(self.kinds[share], self.objects[share], self.masks[share], self.masked[share])


@dataclass(frozen=True)
class Batch:
    """Pairs with one reference caption each, for training."""

    features: Float[Tensor, "b t n c"]
    """Frozen features of before (0) and after (-1), and of real frames between, for a captioner that takes them."""
    words: Words
    """[BOS] w ... w [EOS] [PAD] ..."""
    captions: Int[Tensor, "b o l"] | None = None
    """All captions of each pair, rows of [PAD] where it has fewer; for captioners with ``paraphrases``."""
    truth: Truth | None = None
    """For captioners that are ``taught``."""

    def part(self, share: slice) -> "Batch":
        """Some of the pairs."""
        captions = None if self.captions is None else self.captions[share]
        return Batch(self.features[share], self.words[share], captions, self.truth and self.truth.part(share))


@dataclass(frozen=True)
class Reasoning:
    """What an answer says before its caption."""

    kind: str
    """A change type, none or unknown."""
    object_ids: tuple[int, ...]
    """Words of the vocabulary; [UNK]: unknown."""
    place: str
    """A cell of a 3 x 3 grid, such as "top left", or nowhere, or unknown."""


@dataclass(frozen=True)
class Prediction:
    """What a captioner says of one pair."""

    ids: tuple[int, ...]
    """Words, marks left out."""
    probability: float
    """Of the whole sentence given the pair, in [0, 1]."""
    change_mask: Bool[Tensor, "h w"] | None = field(default=None, compare=False)
    """Only captioners that segment fill this in; True where something changed."""
    reasoning: Reasoning | None = None
    """Only of captioners that say one before the caption."""
    change_probability: float | None = None
    """That anything changed, where a captioner says so apart from its sentence."""
    word_probabilities: tuple[float, ...] = ()
    """Of each word after those before it, then of the end, where a captioner tells."""


@dataclass(frozen=True)
class Decoding:
    """How a sentence is looked for."""

    beams: int = 1
    """Sentences that a search keeps; 1 is greedy."""
    length_penalty: float = 1.0
    """A sentence's score is its log-probability over words to this power; 0: none, 1: the mean per word."""
    no_repeat: int = 0
    """So many words in a row are not said twice; 0: no such rule."""
    steps: int = 20
    """From noise to a sentence, of captioners that sample; the numbers above are those of a search word by word."""
    candidates: int = 1
    """Sampled sentences, of which the one is said that agrees most with the others."""


GREEDY = Decoding()


@dataclass(frozen=True)
class Reason:
    """What a captioner itself tells of how it came to a sentence; n are places of a square grid, row by row."""

    attention: Float[Tensor, "words n"] | None = None
    """How much each word takes from each place, in both pictures."""
    change_map: Float[Tensor, " n"] | None = None
    """Where it sees a change, in [0, 1]."""
    drafts: tuple[Prediction, ...] = ()
    """The sentence as it was at each step of its sampling, the last one as it is."""


@runtime_checkable
class Balanced(Protocol):
    """A captioner whose loss has terms with means of their own, which it balances by what they were before."""

    def parts(self, batch: Batch, share: slice) -> Mapping[str, float]:
        """What each term's mean over a share has of the mean over the whole batch."""

    def readings(self, found: Mapping[str, Scalar]) -> Mapping[str, float]:
        """The terms before they were balanced."""

    def remember(self, readings: Mapping[str, float]) -> None:
        """Take note of the readings of a whole batch, after the update."""


class Captioner(Protocol):
    """Both verbs touch no file, clock or global generator; networks and their weights are ordinary ``nn.Module``s."""

    Config: Any
    """A frozen dataclass; the class takes one."""
    pretrained: bool
    """True: ``network.encoder`` is a procedure encoder that starts from stage 1's weights and keeps its frames."""

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """Named terms; their sum is what training minimises."""

    def caption(
        self, features: Float[Tensor, "b t n c"], *, decoding: Decoding, generator: torch.Generator
    ) -> list[Prediction]:
        """One prediction per pair, in order. Same generator state, same words."""

    # What a captioner may have besides:
    # paraphrases = True: its batches have all captions of a pair
    # taught = True: its batches have what is known of the changes
    # segments = True: it outlines changes
    # selected_by: the number of validation that picks its weights, CIDEr or gIoU
    # the methods of Balanced
    # updated(): is called after every update of its weights
    # why(features, predictions, *, decoding, generator) -> list[Reason], as ``caption`` said them with such a generator


CAPTIONERS = {
    "static": "procap.captioners.static:Static",
    "procap": "procap.captioners.procap:ProCap",
    "ccrc": "procap.captioners.ccrc:CCRC",
    "mct_ccdiff": "procap.captioners.mct_ccdiff:MCTCCDiff",
    "decider": "procap.captioners.decider:Decider",
}


def captioner_class(name: str) -> Any:
    """The class behind a name."""
    if name not in CAPTIONERS:
        raise ValueError(f"no captioner '{name}'; there are {', '.join(CAPTIONERS)}")
    module, _, attribute = CAPTIONERS[name].partition(":")
    return getattr(import_module(module), attribute)


__all__: Sequence[str] = (
    "CAPTIONERS", "GREEDY", "Balanced", "Batch", "Captioner", "Decoding", "Prediction", "Reason", "Reasoning", "Truth",
    "captioner_class",
)  # fmt: skip
