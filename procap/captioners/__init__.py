"""The captioners behind one interface: two verbs, ``loss`` and ``caption``.

A captioner is one file here and one line in ``CAPTIONERS``; ``tests/contract`` says what it promises.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch

from procap.shapes import Bool, Float, Scalar, Tensor, Words


@dataclass(frozen=True)
class Batch:
    """Pairs with one reference caption each, for training."""

    features: Float[Tensor, "b t n c"]
    """Frozen features of before (0) and after (-1), and of real frames between, for a captioner that takes them."""
    words: Words
    """[BOS] w ... w [EOS] [PAD] ..."""


@dataclass(frozen=True)
class Prediction:
    """What a captioner says of one pair."""

    ids: tuple[int, ...]
    """Words, marks left out."""
    probability: float
    """Of the whole sentence given the pair, in [0, 1]."""
    change_mask: Bool[Tensor, "h w"] | None = None
    """Only captioners that segment fill this in; True where something changed."""


class Captioner(Protocol):
    """Both verbs touch no file, clock or global generator; networks and their weights are ordinary ``nn.Module``s."""

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """Named terms; their sum is what training minimises."""

    def caption(
        self,
        features: Float[Tensor, "b t n c"],
        *,
        beams: int,
        generator: torch.Generator,
        length_penalty: float = 1.0,
        no_repeat: int = 0,
    ) -> list[Prediction]:
        """One prediction per pair, in order. Same generator state, same words.

        ``beams`` 1 is greedy; ``length_penalty`` and ``no_repeat`` are those of ``decoding.search``.
        """


CAPTIONERS = {"static": "procap.captioners.static:Static", "procap": "procap.captioners.procap:ProCap"}


def captioner_class(name: str) -> Any:
    """The class behind a name; its ``Config`` is a frozen dataclass, and the class takes one."""
    if name not in CAPTIONERS:
        raise ValueError(f"no captioner '{name}'; there are {', '.join(CAPTIONERS)}")
    module, _, attribute = CAPTIONERS[name].partition(":")
    return getattr(import_module(module), attribute)


__all__: Sequence[str] = ("CAPTIONERS", "Batch", "Captioner", "Prediction", "captioner_class")
