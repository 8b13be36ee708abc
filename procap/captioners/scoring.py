"""How likely given sentences are: the words that were said, and all the ways to say that nothing changed."""

from collections.abc import Sequence

import torch

from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from procap.models.caption_decoder import Past
from procap.models.encoder_decoder import EncoderDecoder
from procap.shapes import Float, Int, Tensor, Words

Ids = tuple[int, ...]
"""Words, marks left out."""


def padded(sentences: Sequence[Ids], device: torch.device) -> Words:
    """[BOS] word ... word [EOS] [PAD] ..., as long as the longest."""
    length = max(map(len, sentences), default=0) + 2
    rows = [[BOS, *ids, EOS, *[PAD] * (length - len(ids) - 2)] for ids in sentences]
    return torch.tensor(rows, dtype=torch.long, device=device).reshape(len(sentences), length)


def log_chances(network: EncoderDecoder, words: Words, memory: Past) -> Float[Tensor, "b l-1"]:
    """Log-probability of every word but [BOS] after those before it, among the words that decoding chooses from.

    0 at [PAD]. Their sum is the log-probability of the sentence.
    """
    silent = [UNK] if network.config.decoding == "reference" else [i for i in range(len(SPECIALS)) if i != EOS]
    logits = network.decoder(words[:, :-1], memory).float()
    logits = logits.index_fill(2, torch.tensor(silent, device=logits.device), -torch.inf)
    following = words[:, 1:]
    chances = logits.log_softmax(-1).gather(2, following[..., None])[..., 0]
    return chances.where(following != PAD, 0.0)


def log_chance_of_any(network: EncoderDecoder, sentences: Int[Tensor, "ways l"], memory: Past) -> Float[Tensor, " b"]:
    """For each pair the log-probability that one of these sentences, all different, is said of it."""
    b, s = memory[0][0].shape[0], len(sentences)
    wide = [(keys.repeat_interleave(s, 0), values.repeat_interleave(s, 0)) for keys, values in memory]
    chances = log_chances(network, sentences.repeat(b, 1), wide).sum(1)
    return chances.reshape(b, s).logsumexp(1)
