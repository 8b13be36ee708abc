"""The released networks with weights by formula, and what the public code computes with them."""

from pathlib import Path

import numpy as np
import torch

from procap.checkpoints.procap_released import captioner_weights, encoder_weights
from procap.models.build import frozen
from procap.models.caption_decoder import DecoderConfig
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.procedure_encoder import EncoderConfig, Imagining, ProcedureEncoder
from procap.models.vqgan import VQGAN, VQGANConfig
from tests.formula import captioner_shapes, encoder_shapes, formula_weights

OFFICIAL = Path(__file__).parents[1] / ".." / "shared" / "reference" / "official"
STORED = Path(__file__).parent / "reference" / "released.npz"
TEXT = 49408
"""Byte pairs of stage 1's text."""


def encoder_config(vocabulary: int) -> EncoderConfig:
    """The released encoder with two blocks."""
    return EncoderConfig(
        4, 14, 256, 1024, vocabulary, 24, 768, layers=2, heads=12, start="usual", activation="quick_gelu",
        reserved=True, special_positions=True, csy_sees="frames", pads="placed",
    )  # fmt: skip


def released_encoder() -> ProcedureEncoder:
    """Stage 1."""
    encoder = ProcedureEncoder(encoder_config(TEXT))
    encoder.load_state_dict(encoder_weights(formula_weights(encoder_shapes(2, TEXT + 25)), encoder.config))
    return encoder


def released_captioner() -> EncoderDecoder:
    """Stage 2 for CLEVR-Change."""
    config = EncoderDecoderConfig(
        encoder_config(0), DecoderConfig(80, 24, 512, 512, 2, 8, 0.1, "reference"), 0.1, "sum",
        Imagining(prompt="without_align", prompt_rows="first", mask_rows="shifted"), "reference",
    )  # fmt: skip
    network = EncoderDecoder(config)
    network.load_state_dict(captioner_weights(formula_weights(captioner_shapes(2, 2, 80)), config))
    return network


def released_vqgan() -> VQGAN:
    """The frozen tokenizer of both stages."""
    vqgan = VQGAN(VQGANConfig(128, (1, 1, 2, 2, 4), 2, 1024, 256, 224, features="raw"))
    shapes = {f"vae.model.{key}": tuple(value.shape) for key, value in vqgan.state_dict().items()}
    made = formula_weights(shapes)
    vqgan.load_state_dict({key.removeprefix("vae.model."): value for key, value in made.items()})
    return frozen(vqgan)


@torch.no_grad()
def raw_features(vqgan: VQGAN, pictures: torch.Tensor) -> torch.Tensor:
    """Features of pictures (..., 3, h, w), one after another, in full precision: (..., n, c)."""
    flat = pictures.flatten(0, -4)
    found = [vqgan.features(vqgan.encoder(one), one) for one in flat.split(1)]
    return torch.cat(found).unflatten(0, pictures.shape[:-3])


def relative(got: torch.Tensor, expected: np.ndarray | torch.Tensor) -> float:
    """|got - expected| / |expected|."""
    truth = torch.as_tensor(expected, dtype=torch.float64)
    return float((got.detach().double() - truth).norm() / truth.norm())
