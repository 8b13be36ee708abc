"""How near a sentence is to its references in meaning: cosine of sentence embeddings, whoever makes these."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from procap.shapes import Float

Embed = Callable[[Sequence[str]], Float[np.ndarray, "b d"]]
"""Sentences to vectors of length 1."""


def similarities(
    sentences: Mapping[str, str], references: Mapping[str, Sequence[str]], embed: Embed
) -> dict[str, float]:
    """Cosine of each sentence to the reference it is nearest to, at least 0; a sentence without words has 0."""
    texts = sorted({text for name, said in sentences.items() for text in (said, *references[name])})
    vectors = dict(zip(texts, embed(texts), strict=True))
    return {
        name: max(0.0, *(float(vectors[said] @ vectors[text]) for text in references[name])) if said.strip() else 0.0
        for name, said in sentences.items()
    }
