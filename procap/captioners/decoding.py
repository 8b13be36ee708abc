"""From next-word logits to a loss and to sentences: shared by all captioners that write word by word."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from procap.captioners import GREEDY, Batch, Decoding, Prediction
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from procap.models.caption_decoder import Past
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.shapes import Bool, Float, Int, Scalar, Tensor, Words

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


class WordByWord(nn.Module):
    """A captioner whose network says how likely each next word is."""

    Config = EncoderDecoderConfig
    pretrained = False

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.network = EncoderDecoder(config)

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """``word_loss`` of the captions, as the one term."""
        logits, config = self.network(batch.features, batch.words, generator), self.network.config
        return {"caption": word_loss(logits, batch.words, config.label_smoothing, config.reduction)}

    def caption(
        self, features: Float[Tensor, "b t n c"], *, decoding: Decoding, generator: torch.Generator
    ) -> list[Prediction]:
        """One prediction per pair, in order; nothing is drawn, so the generator stays as it is."""
        return write_captions(self.network, features, decoding)


@torch.no_grad()
def write_captions(
    network: EncoderDecoder, features: Float[Tensor, "b t n c"], decoding: Decoding
) -> list[Prediction]:
    """One sentence per pair, in order; see ``search``."""
    read, length = network.read(features), network.config.decoder.words
    if network.config.decoding == "search":
        return search(network.decoder.step, read, length, decoding)
    if decoding.beams != 1:
        raise ValueError(f"the reference's decoding is greedy: beams is {decoding.beams}, expected 1")
    return cut(*greedy(network.decoder.step, read, length, stop=True))


@torch.no_grad()
def greedy(step: Step, memory: Past, length: int, stop: bool = False) -> tuple[Words, Float[Tensor, "b l"]]:
    """(words, log-probability of each), as the reference code decodes.

    [BOS] and the likeliest next word ``length - 1`` times, [EOS] or not; of all marks only [UNK] is never said.
    With ``stop`` not once every sentence has its [EOS].
    """
    pairs, device = memory[0][0].shape[0], memory[0][0].device
    words = torch.full((pairs, length), BOS, dtype=torch.long, device=device)
    chances = torch.zeros(pairs, length, device=device)
    past: Past | None = None
    for place in range(length - 1):
        logits, past = step(words[:, place], place, memory, past)
        logits = logits.float().index_fill(1, torch.tensor([UNK], device=device), -torch.inf)
        chances[:, place + 1], words[:, place + 1] = logits.log_softmax(-1).max(1)
        if stop and (words == EOS).any(1).all():
            break
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


def silence(logits: Tensor) -> Tensor:
    """Log-probabilities over the words that a sentence may contain: no mark but [EOS]."""
    logits = logits.float().clone()
    logits[:, [mark for mark in range(len(SPECIALS)) if mark != EOS]] = -torch.inf
    return logits.log_softmax(-1)


@torch.no_grad()
def search(step: Step, memory: Past, length: int, decoding: Decoding = GREEDY) -> list[Prediction]:
    """Beam search; one beam is greedy decoding.

    The best sentence maximises its log-probability over words ** ``length_penalty`` ([EOS] counts). A pair is done when
    all its beams have ended, and leaves the batch; a sentence has at most ``length - 2`` words.
    """
    beams, no_repeat = decoding.beams, decoding.no_repeat
    pairs, device = memory[0][0].shape[0], memory[0][0].device
    found: list[Prediction | None] = [None] * pairs
    places = torch.arange(pairs, device=device)
    word = torch.full((pairs * beams,), BOS, dtype=torch.long, device=device)
    written = torch.full((pairs * beams, 0), PAD, dtype=torch.long, device=device)
    score = torch.full((pairs, beams), -torch.inf, device=device)
    score[:, 0] = 0
    ended = torch.zeros(pairs * beams, dtype=torch.bool, device=device)
    past: Past | None = None
    for place in range(length - 1):
        logits, past = step(word, place, memory, past)
        chances = silence(logits)
        if no_repeat:
            chances[_repeating(written, chances.shape[1], no_repeat)] = -torch.inf
        if place == length - 2:
            chances[:, :EOS] = chances[:, EOS + 1 :] = -torch.inf
        chances[ended] = -torch.inf
        chances[ended, PAD] = 0
        total = (score.reshape(-1, 1) + chances).reshape(len(score), -1)
        score, best = total.topk(beams, dim=1)
        first = torch.arange(len(score), device=device)[:, None] * beams
        origin = (best // chances.shape[1] + first).reshape(-1)
        word = (best % chances.shape[1]).reshape(-1)
        written = torch.cat([written[origin], word[:, None]], dim=1)
        ended = ended[origin] | (word == EOS)
        done = (ended.reshape(score.shape) | score.isneginf()).all(1)
        if 4 * done.sum() < len(done):
            past = [(k[origin], v[origin]) for k, v in past]
            continue
        said = _best(written.unflatten(0, score.shape)[done], score[done], decoding.length_penalty)
        for pair, prediction in zip(places[done].tolist(), said, strict=True):
            found[pair] = prediction
        if done.all():
            break
        stay = done.logical_not()
        rows = stay.repeat_interleave(beams)
        past = [(k[origin[rows]], v[origin[rows]]) for k, v in past]
        memory = [(k[stay], v[stay]) for k, v in memory]
        places, score, word, written, ended = places[stay], score[stay], word[rows], written[rows], ended[rows]
    return [prediction for prediction in found if prediction is not None]


def _repeating(written: Int[Tensor, "rows said"], vocabulary: int, n: int) -> Bool[Tensor, "rows v"]:
    """True for the words that would say the same ``n`` words in a row again."""
    barred = torch.zeros(len(written), vocabulary, dtype=torch.bool, device=written.device)
    if written.shape[1] < n:
        return barred
    runs = written.unfold(1, n, 1)
    last = written[:, written.shape[1] - n + 1 :]
    again = (runs[..., :-1] == last[:, None]).all(-1)
    row, run = again.nonzero(as_tuple=True)
    barred[row, runs[row, run, -1]] = True
    return barred


def _best(
    written: Int[Tensor, "b beams said"], score: Float[Tensor, "b beams"], length_penalty: float
) -> list[Prediction]:
    """The best sentence of each pair."""
    lengths = (written != PAD).sum(-1)
    winner = (score / lengths**length_penalty).argmax(1)
    rows = torch.arange(len(score), device=score.device)
    return [
        Prediction(tuple(i for i in ids if i >= len(SPECIALS)), min(1.0, chance))
        for ids, chance in zip(written[rows, winner].tolist(), score[rows, winner].exp().tolist(), strict=True)
    ]
