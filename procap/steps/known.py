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
        self.masks = table["mask"].to_numpy()

        texts = {text for captions in table["captions"] for text in captions}
        self.objects = {
            tuple(vocabulary.encode(text, cut=True).tolist()): _object(text, vocabulary) for text in sorted(texts)
        }

    def of(self, rows: np.ndarray, captions: np.ndarray) -> Truth:
        """Of these pairs, the object as one caption of each calls it, given as numbers."""
        kinds = self.kinds[rows]
        objects = np.array([self.objects[tuple(caption)] for caption in captions.tolist()], np.int64)
        objects[kinds == KINDS.index(NO_CHANGE)] = PAD
        known = kinds, objects, self.pairs.changed(rows), self.masks[rows] >= 0
        return Truth(*(self.send(each) for each in known))


def _object(caption: str, vocabulary: Vocabulary) -> list[int]:
    """Numbers of the object's last words, then [PAD]; [UNK] where the caption does not tell it."""
    words = [number for word in object_words(caption) if (number := vocabulary.numbers.get(word))]
    words = words[-OBJECT_WORDS:] or [UNK]
    return words + [PAD] * (OBJECT_WORDS - len(words))
