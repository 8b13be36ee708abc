"""How many operations the networks need: two per multiply-add of every matrix product, everything else left out.

Gradients of a product cost two more products of its size. What an implementation
computes twice (attention's scores in its backward pass, checkpointed blocks) counts once.
"""

import contextlib
import io

from procap.models.encoder_decoder import EncoderDecoderConfig
from procap.models.procedure_encoder import EncoderConfig
from procap.models.vqgan import VQGANConfig


def block(width: int, s: int, places: int | None = None, blocked: int = 0) -> int:
    """One sequence of ``s`` places through an encoder block, of which ``places`` leave it; ``blocked`` rows again."""
    places = s if places is None else places
    projections = 2 * s * width**2 + 2 * places * width**2
    attention = 2 * (places + blocked) * s * width
    feed = 8 * places * width**2
    return 2 * (projections + attention + feed)


def embedding(config: EncoderConfig, frames: int) -> int:
    """Features of this many frames to vectors."""
    return 2 * frames * config.grid**2 * config.feature_width * config.width


def stage_1(config: EncoderConfig, b: int, hidden: int, *, naive: bool = False) -> int:
    """Forward and backward of ``b`` pairs, of which ``hidden`` places are rebuilt; the tokenizer is not in it."""
    d, s = config.width, 2 + config.reserved + config.words + config.frames * config.grid**2
    rows = (1 + config.reserved) * (config.csy_sees == "frames")
    whole = block(d, s) if naive else block(d, s, blocked=rows)
    last = whole if naive else block(d, s, places=2, blocked=min(rows, 1))
    blocks = 3 * b * (config.layers - 1) * whole + b * (whole + 2 * last)
    heads = 2 * hidden * d * config.codes + (4 if naive else 6) * b * 2 * d
    return 3 * (blocks + heads + embedding(config, (3 if naive else 2) * b * config.frames))


def encoder(config: EncoderConfig, b: int) -> int:
    """The blocks of stage 1, forward, all places of ``b`` sequences."""
    s = 2 + config.reserved + config.words + config.frames * config.grid**2
    rows = (1 + config.reserved) * (config.csy_sees == "frames")
    return b * config.layers * block(config.width, s, blocked=rows)


def imagining(config: EncoderDecoderConfig, b: int, prompt: int, *, naive: bool = False) -> int:
    """The encoder's forward pass of stage 2, the embedding of the two frames left out."""
    encoder = config.encoder
    s = prompt + encoder.frames * encoder.grid**2
    rows = (1 + encoder.reserved) * (encoder.csy_sees == "frames" and prompt > 0)
    return b * encoder.layers * block(encoder.width, s, blocked=0 if naive else rows)


def projecting(config: EncoderDecoderConfig, b: int) -> int:
    m = config.encoder.frames * config.encoder.grid**2
    return 2 * b * m * config.encoder.width * (config.encoder.width + config.decoder.memory_width)


def reading(config: EncoderDecoderConfig, b: int) -> int:
    """Keys and values of the memory, in every block of the decoder."""
    m, decoder = config.encoder.frames * config.encoder.grid**2, config.decoder
    return 2 * b * m * decoder.layers * 2 * decoder.memory_width * decoder.width


def saying(config: EncoderDecoderConfig, b: int, words: int, seen: float) -> int:
    """``words`` places of each sentence through the decoder, each of which looks at ``seen`` words on average."""
    decoder, m = config.decoder, config.encoder.frames * config.encoder.grid**2
    d = decoder.width
    per_place = 4 * d**2 + 2 * seen * d + 2 * d**2 + 2 * m * d + 8 * d**2
    return round(2 * b * words * (decoder.layers * per_place + d * decoder.vocabulary))


def stage_2(config: EncoderDecoderConfig, b: int, prompt: int, *, naive: bool = False) -> int:
    """Forward and backward of ``b`` pairs; the tokenizer is not in it."""
    words = config.decoder.words
    rest = projecting(config, b) + reading(config, b) + saying(config, b, words, words)
    return 3 * (imagining(config, b, prompt, naive=naive) + rest + embedding(config.encoder, 2 * b))


def decode(config: EncoderDecoderConfig, b: int, *, naive: bool = False) -> int:
    """Sentences of full length from the encoder's output."""
    words = config.decoder.words
    if naive:
        said = (words - 1) * (reading(config, b) + saying(config, b, words, words))
    else:
        said = reading(config, b) + saying(config, b, words - 1, words / 2)
    return projecting(config, b) + said


def tokenizer(config: VQGANConfig) -> int:
    """One picture through the VQGAN's encoder, as torch counts it."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from procap.models.vqgan import VQGAN

    with contextlib.redirect_stdout(io.StringIO()), torch.device("meta"):
        vqgan = VQGAN(config)
        picture = torch.empty(1, 3, config.image_size, config.image_size)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            vqgan.encode(picture)
    return counter.get_total_flops()
