"""What is known of the changes in the training pairs: types, objects, masks. No step of its own."""

from collections.abc import Callable

import numpy as np
import torch

from procap.captioners import Truth
from procap.captioners.answers import KINDS, OBJECT_WORDS
from procap.datasets.object_words import object_words
from procap.datasets.pairs import NO_CHANGE, Pairs
from procap.datasets.vocabulary import PAD, UNK, Vocabulary

Send = Callable[[np.ndarray], torch.Tensor]
"""An array to the device."""


class Known:
    """The truth behind these pairs, as far as the corpus tells it; masks are read when they are asked for."""

    def __init__(self, pairs: Pairs, vocabulary: Vocabulary, send: Send) -> None:
        table = pairs.table
        self.pairs, self.send = pairs, send
        self.kinds = np.array([KINDS.index(kind) for kind in table["change_type"]], np.int64)
        told = zip(table["change_type"], table["captions"], strict=True)
        self.objects = np.array([_object(kind, list(captions), vocabulary) for kind, captions in told], np.int64)
        self.masks = table["mask"].to_numpy()

    def of(self, rows: np.ndarray) -> Truth:
        masks = self.pairs.changed(rows)
        known = self.kinds[rows], self.objects[rows], masks, self.masks[rows] >= 0
        return Truth(*(self.send(each) for each in known))


def _object(kind: str, captions: list[str], vocabulary: Vocabulary) -> list[int]:
    """Numbers of the object's last words, then [PAD]; [UNK] where no caption tells it."""
    if kind == NO_CHANGE:
        return [PAD] * OBJECT_WORDS
    words = [number for word in object_words(captions) if (number := vocabulary.numbers.get(word))]
    words = words[-OBJECT_WORDS:] or [UNK]
    return words + [PAD] * (OBJECT_WORDS - len(words))
