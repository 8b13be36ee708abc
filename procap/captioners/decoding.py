"""From next-word logits to a loss and to sentences: shared by all captioners that write word by word."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from procap.captioners import Batch, Prediction
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from procap.models.caption_decoder import Past
from procap.models.encoder_decoder import EncoderDecoder
from procap.shapes import Float, Scalar, Tensor, Words

Step = Callable[[Tensor, int, Past, Past | None], tuple[Tensor, Past]]
"""(word " b", place, memory, past) -> (logits "b v", past): ``CaptionDecoder.step``."""


def word_loss(
    logits: Float[Tensor, "b l v"], words: Words, smoothing: float, reduction: Literal["mean", "sum"]
) -> Scalar:
    """How far every next word up to and including [EOS] is from its target (Kullback-Leibler divergence).

    The target has 1 - ``smoothing`` on the word and the rest, in equal parts, on the others. The paper has 0, where
    this is the negative log-likelihood; the reference code has 0.1 and ``sum``, over words and pairs.
    """
    targets = words[:, 1:].reshape(-1)
    others = logits.shape[-1] - 1
    loss = F.cross_entropy(
        logits[:, :-1].reshape(len(targets), -1),
        targets,
        ignore_index=PAD,
        label_smoothing=smoothing * (others + 1) / others,  # torch spreads it over the word itself, too
        reduction=reduction,
    )
    if smoothing == 0:
        return loss
    least = -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(smoothing / others)
    return loss - least * ((targets != PAD).sum() if reduction == "sum" else 1)


def caption_loss(network: EncoderDecoder, batch: Batch, generator: torch.Generator) -> dict[str, Scalar]:
    """``word_loss`` of the captions, as the one term of a captioner's loss."""
    logits = network(batch.features, batch.words, generator)
    return {"caption": word_loss(logits, batch.words, network.config.label_smoothing, network.config.reduction)}


@torch.no_grad()
def write_captions(network: EncoderDecoder, features: Float[Tensor, "b t n c"], beams: int) -> list[Prediction]:
    """One sentence per pair, in order."""
    read, length = network.read(features), network.config.decoder.words
    if network.config.decoding == "search":
        return search(network.decoder.step, read, length, beams)
    if beams != 1:
        raise ValueError(f"the reference's decoding is greedy: beams is {beams}, expected 1")
    return cut(*greedy(network.decoder.step, read, length))


@torch.no_grad()
def greedy(step: Step, memory: Past, length: int) -> tuple[Words, Float[Tensor, "b l"]]:
    """(words, log-probability of each), as the reference code decodes.

    [BOS] and the likeliest next word ``length - 1`` times, [EOS] or not; of all marks only [UNK] is never said.
    """
    pairs, device = memory[0][0].shape[0], memory[0][0].device
    words = torch.full((pairs, length), BOS, dtype=torch.long, device=device)
    chances = torch.zeros(pairs, length, device=device)
    past: Past | None = None
    for place in range(length - 1):
        logits, past = step(words[:, place], place, memory, past)
        logits = logits.float().index_fill(1, torch.tensor([UNK], device=device), -torch.inf)
        chances[:, place + 1], words[:, place + 1] = logits.log_softmax(-1).max(1)
    return words, chances


def cut(words: Words, chances: Float[Tensor, "b l"]) -> list[Prediction]:
    """What ``greedy`` found, cut at the first [EOS]."""
    ended = ((words == EOS).cumsum(1) - (words == EOS).long()) > 0
    said = ended.logical_not() & (words >= len(SPECIALS))
    total = chances.masked_fill(ended, 0).sum(1).exp().tolist()
    return [
        Prediction(tuple(row[keep].tolist()), min(1.0, chance))
        for row, keep, chance in zip(words, said, total, strict=True)
    ]


def _silence(logits: Tensor) -> Tensor:
    """Log-probabilities over the words that a sentence may contain: no mark but [EOS]."""
    logits = logits.float().clone()
    logits[:, [mark for mark in range(len(SPECIALS)) if mark != EOS]] = -torch.inf
    return logits.log_softmax(-1)


@torch.no_grad()
def search(step: Step, memory: Past, length: int, beams: int) -> list[Prediction]:
    """Beam search; one beam is greedy decoding. The best sentence maximises the mean log-probability per word.

    Stops when every beam has ended; a sentence has at most ``length - 2`` words.
    """
    pairs, device = memory[0][0].shape[0], memory[0][0].device
    wide = [(k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0)) for k, v in memory]
    word = torch.full((pairs * beams,), BOS, dtype=torch.long, device=device)
    written = torch.full((pairs * beams, 0), PAD, dtype=torch.long, device=device)
    score = torch.full((pairs, beams), -torch.inf, device=device)
    score[:, 0] = 0
    ended = torch.zeros(pairs * beams, dtype=torch.bool, device=device)
    past: Past | None = None
    for place in range(length - 1):
        logits, past = step(word, place, wide, past)
        chances = _silence(logits)
        vocabulary = chances.shape[1]
        chances[ended] = -torch.inf
        chances[ended, PAD] = 0
        if place == length - 2:
            chances[~ended] = chances[~ended].where(
                torch.arange(vocabulary, device=device) == EOS, torch.tensor(-torch.inf, device=device)
            )
        total = (score.reshape(-1, 1) + chances).reshape(pairs, beams * vocabulary)
        score, best = total.topk(beams, dim=1)
        origin = (best // vocabulary + torch.arange(pairs, device=device)[:, None] * beams).reshape(-1)
        word = (best % vocabulary).reshape(-1)
        written = torch.cat([written[origin], word[:, None]], dim=1)
        ended = ended[origin] | (word == EOS)
        if ended.all():
            break
        past = [(k[origin], v[origin]) for k, v in past]
    return _best(written, score, beams)


def _best(written: Tensor, score: Tensor, beams: int) -> list[Prediction]:
    """The most likely sentence of each pair, by mean log-probability per word ([EOS] counts)."""
    lengths = (written != PAD).sum(1).reshape(score.shape)
    winner = (score / lengths).argmax(1)
    rows = torch.arange(len(score), device=score.device)
    sentences = written.reshape(len(score), beams, -1)[rows, winner].tolist()
    chances = score[rows, winner].exp().tolist()
    return [
        Prediction(tuple(i for i in ids if i >= len(SPECIALS)), min(1.0, chance))
        for ids, chance in zip(sentences, chances, strict=True)
    ]
