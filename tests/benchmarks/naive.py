"""A naive formulation of the same mathematics, on the weights of the networks that it is compared with.

What is naive: the frozen tokenizer runs in every step, three times per frame in stage 1; attention builds its matrix
of weights; the three sequences of stage 1 go through the whole encoder one after another; for every word the decoder
reads the memory and the whole sentence again. The reference code does the same.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from procap.captioners.decoding import word_loss
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS
from procap.models.caption_decoder import CaptionDecoder
from procap.models.encoder_decoder import EncoderDecoder
from procap.models.layers import Attention
from procap.models.procedure_encoder import ProcedureEncoder
from procap.models.vqgan import VQGAN
from procap.procedure.objective import Draws, Weights

Tensor = torch.Tensor


def attend(attention: Attention, x: Tensor, memory: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Attention by its definition; ``hidden`` is True where a row may not look."""

    def split(y: Tensor) -> Tensor:
        return y.reshape(*y.shape[:2], attention.heads, -1).transpose(1, 2)

    keys, values = attention.key_value(memory).chunk(2, dim=-1)
    queries = split(attention.query(x))
    scores = queries @ split(keys).mT * (attention.scale or queries.shape[-1] ** -0.5)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return attention.out((scores.softmax(-1) @ split(values)).transpose(1, 2).flatten(2))


def encode(encoder: ProcedureEncoder, start: Tensor, frames: Tensor, first: int) -> Tensor:
    """All places through all blocks; ``csy_sees: frames`` blocks rows from ``first`` on."""
    x, hidden = torch.cat([start, frames.flatten(1, 2)], dim=1), None
    if encoder.config.csy_sees == "frames" and start.shape[1]:
        places, rows = torch.arange(x.shape[1]), slice(first, first + 1 + encoder.config.reserved)
        hidden = torch.zeros(len(places), len(places), dtype=torch.bool)
        hidden[rows] = places < places[rows, None]
    for block in encoder.blocks:
        y = block.norm_attention(x)
        x = x + attend(block.attention, y, y, hidden)
        x = x + block.feed(block.norm_feed(x))
    return x


@torch.no_grad()
def tokens(vqgan: VQGAN, pictures: Tensor) -> Tensor:
    """(b, t, n) of pictures (b, t, 3, h, w)."""
    return vqgan.tokens(vqgan.encode(pictures.flatten(0, 1))).unflatten(0, pictures.shape[:2])


@torch.no_grad()
def features(vqgan: VQGAN, pictures: Tensor) -> Tensor:
    """(b, t, n, c) of pictures (b, t, 3, h, w), rounded as a cache rounds them."""
    flat = pictures.flatten(0, 1)
    encoded = vqgan.encoder(flat) if vqgan.config.features == "raw" else vqgan.encode(flat)
    return vqgan.features(encoded, flat).half().float().unflatten(0, pictures.shape[:2])


def stage_1(
    encoder: ProcedureEncoder,
    vqgan: VQGAN,
    pictures: Tensor,
    warped: Tensor,
    words: Tensor,
    draws: Draws,
    weights: Weights,
) -> Iterator[Tensor]:
    """What keyframes (b, t, 3, h, w), and the same after a warp, lose in each pass; ``draws.warped`` is not read."""
    targets = tokens(vqgan, pictures)
    yield from stage_1_of_features(
        encoder, features(vqgan, pictures), features(vqgan, warped), targets, words, draws, weights
    )


def stage_1_of_features(
    encoder: ProcedureEncoder,
    shown: Tensor,
    warped: Tensor,
    targets: Tensor,
    words: Tensor,
    draws: Draws,
    weights: Weights,
) -> Iterator[Tensor]:
    """Pass after pass: of the pairs, of swapped captions, of warped frames. What is counted is ``Counting()``."""
    kept, aligned, consistent = draws.kept, draws.seen & draws.misaligned, draws.seen & draws.inconsistent

    def passed(said: Tensor, given: Tensor) -> tuple[Tensor, int]:
        start = encoder.embed_caption(said)
        s = start.shape[1]
        return encode(encoder, start, encoder.embed_frames(given, kept), encoder.unseeing(s)), s

    def judged(logits: Tensor, truth: float, counted: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth), reduction="none")
        return (losses * counted).sum() / counted.sum().clamp(min=1)

    x, s = passed(words, shown)
    places = x[:, s:].unflatten(1, kept.shape[1:])
    msm = F.cross_entropy(encoder.token_head(places[~kept]).float(), targets[~kept])
    align = judged(encoder.align_head(x[:, 0]).float()[:, 0], 1.0, aligned)
    csy = judged(encoder.csy_head(x[:, s - 1]).float()[:, 0], 1.0, consistent)
    yield weights.msm * msm + weights.align * align + weights.csy * csy
    x, s = passed(words[draws.partner], shown)
    yield weights.align * judged(encoder.align_head(x[:, 0]).float()[:, 0], 0.0, aligned)
    x, s = passed(words, warped)
    yield weights.csy * judged(encoder.csy_head(x[:, s - 1]).float()[:, 0], 0.0, consistent)


def imagine(network: EncoderDecoder, seen: Tensor) -> Tensor:
    """(b, t, n, d): what the encoder makes of before, its queries, and after."""
    encoder, imagining = network.encoder, network.config.imagining
    frames = encoder.feature_embedding(encoder.feature_norm(seen))
    b, _, n, _ = frames.shape
    queries = encoder.query.expand(b, encoder.config.hidden, n, -1)
    frames = torch.cat([frames[:, :1], queries, frames[:, -1:]], dim=1) + encoder.positions()
    start = encoder.prompt(b, imagining)
    s = start.shape[1]
    first = encoder.unseeing(s) if imagining.mask_rows == "right" else 1 + encoder.config.words
    return encode(encoder, start, frames, first)[:, s:].unflatten(1, (-1, n))


def say(decoder: CaptionDecoder, words: Tensor, memory: Tensor) -> Tensor:
    """Logits of the word after each word, everything computed anew."""
    x = decoder.embed(words)
    later = torch.ones(words.shape[1], words.shape[1], dtype=torch.bool).triu(1)
    for block in decoder.blocks:
        y = block.enter(block.norm_self, x)
        x = block.leave(block.norm_self, x, attend(block.self_attention, y, y, later), None)
        y = block.enter(block.norm_cross, x)
        x = block.leave(block.norm_cross, x, attend(block.cross_attention, y, memory), None)
        x = block.leave(block.norm_feed, x, block.feed(block.enter(block.norm_feed, x)), None)
    return decoder.logits(x)


def stage_2(network: EncoderDecoder, vqgan: VQGAN, pictures: Tensor, words: Tensor) -> Tensor:
    """The loss of pairs of pictures (b, 2, 3, h, w)."""
    memory = network.projection(imagine(network, features(vqgan, pictures)).flatten(1, 2))
    logits = say(network.decoder, words, memory)
    return word_loss(logits, words, network.config.label_smoothing, network.config.reduction)


@torch.no_grad()
def decode(network: EncoderDecoder, imagined: Tensor) -> list[tuple[int, ...]]:
    """Greedy sentences from the encoder's output (b, t, n, d): a whole pass of the decoder for every word."""
    memory, length = network.projection(imagined.flatten(1, 2)), network.config.decoder.words
    words = torch.full((len(memory), length), PAD)
    words[:, 0] = BOS
    barred = [mark for mark in range(len(SPECIALS)) if mark != EOS]
    for place in range(length - 1):
        logits = say(network.decoder, words, memory)[:, place].float()
        logits[:, barred] = -torch.inf
        words[:, place + 1] = logits.argmax(-1)
    found = []
    for row in words[:, 1:-1].tolist():
        ends = row.index(EOS) if EOS in row else len(row)
        found.append(tuple(row[:ends]))
    return found


@torch.no_grad()
def caption(network: EncoderDecoder, vqgan: VQGAN, pictures: Tensor) -> list[tuple[int, ...]]:
    """Greedy sentences of pairs of pictures (b, 2, 3, h, w)."""
    return decode(network, imagine(network, features(vqgan, pictures)))
