"""The frozen image tokenizer: a VQGAN put together from taming-transformers' own modules (Esser et al., 2021)."""

import contextlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.shapes import Float, Int, Pictures, Scalar, Tensor, UInt8


@dataclass(frozen=True)
class VQGANConfig:
    """Sizes of a VQGAN; the published f16-1024 one is ``VQGANConfig(128, (1, 1, 2, 2, 4), 2, 1024, 256, 224)``."""

    channels: int
    multipliers: tuple[int, ...]
    """Of ``channels``, one per level; every level but the last halves the picture."""
    blocks: int
    codes: int
    code_width: int
    image_size: int
    precision: str = "float32"
    """Of products when frozen frames are encoded: float32 or bfloat16."""
    features: Literal["normalised", "raw"] = "normalised"
    """What features show: the picture in [-1, 1], as tokens do (ours, paper), or in [0, 1] (reference)."""
    colours: int = 0
    """Beside the encoder's output a feature has the mean colours of ``colours`` x ``colours`` parts of its patch."""

    @property
    def grid(self) -> int:
        """Tokens per side."""
        return self.image_size // 2 ** (len(self.multipliers) - 1)

    @property
    def feature_width(self) -> int:
        """Numbers of a feature."""
        return self.code_width + 3 * self.colours**2


class VQGAN(nn.Module):
    """Pictures to tokens and features and back. Attribute names are the public checkpoints' names."""

    def __init__(self, config: VQGANConfig) -> None:
        from taming.modules.diffusionmodules import model as parts
        from taming.modules.vqvae.quantize import VectorQuantizer2

        parts.nonlinearity = F.silu  # the same function, in one kernel rather than two
        super().__init__()
        self.config = config
        sizes = {
            "ch": config.channels,
            "out_ch": 3,
            "ch_mult": config.multipliers,
            "num_res_blocks": config.blocks,
            "attn_resolutions": [16] if config.image_size == 256 else [],
            "dropout": 0.0,
            "in_channels": 3,
            "resolution": config.image_size,
            "z_channels": config.code_width,
            "double_z": False,
        }
        self.encoder = parts.Encoder(**sizes)
        self.decoder = parts.Decoder(**sizes)
        self.quantize = VectorQuantizer2(config.codes, config.code_width, beta=0.25, sane_index_shape=True)
        self.quant_conv = nn.Conv2d(config.code_width, config.code_width, 1)
        self.post_quant_conv = nn.Conv2d(config.code_width, config.code_width, 1)

    def encode(self, pictures: Pictures) -> Float[Tensor, "b c h2 w2"]:
        """Features of pictures in [0, 1], before ``quant_conv``."""
        return self.encoder(2 * pictures - 1)

    def features(self, encoded: Float[Tensor, "b c h2 w2"], pictures: Pictures) -> Float[Tensor, "b n c2"]:
        """``encode``'s result as a sequence, row by row, and beside it the mean colours in [-1, 1] (our formulation).

        A tokenizer of few updates draws the right shapes in pale colours, and its features hardly tell colours apart.
        """
        found, parts = rearrange(encoded, "b c h w -> b (h w) c"), self.config.colours
        if not parts:
            return found
        means = F.adaptive_avg_pool2d(2 * pictures - 1, parts * self.config.grid).to(found.dtype)
        beside = rearrange(means, "b c (h i) (w j) -> b (h w) (c i j)", i=parts, j=parts)
        return torch.cat([found, beside], dim=-1)

    def tokens(self, encoded: Float[Tensor, "b c h2 w2"]) -> Int[Tensor, "b n"]:
        """Index of the nearest code at each place of ``encode``'s result."""
        codes = rearrange(self.quant_conv(encoded), "b c h w -> b (h w) c").float()
        return torch.cdist(codes, self.quantize.embedding.weight[None].float()).argmin(-1)

    def decode(self, tokens: Int[Tensor, "b n"]) -> Pictures:
        """Pictures in [0, 1] that these tokens stand for."""
        codes = rearrange(self.quantize.embedding(tokens), "b (h w) c -> b c h w", h=self.config.grid)
        return self._picture(codes)

    def _picture(self, codes: Float[Tensor, "b c h2 w2"]) -> Pictures:
        return ((self.decoder(self.post_quant_conv(codes)) + 1) / 2).float().clamp(0, 1)

    def forward(self, pictures: Pictures) -> tuple[Float[Tensor, "b 3 h w"], Scalar, Int[Tensor, "b h2 w2"]]:
        """(reconstruction in about [-1, 1], codebook loss, tokens): what training needs."""
        codes, loss, (_, _, tokens) = self.quantize(self.quant_conv(self.encode(pictures)).float())
        return self.decoder(self.post_quant_conv(codes)).float(), loss, tokens


@torch.no_grad()
def encode_frames(
    vqgan: VQGAN, frames: UInt8[np.ndarray, "b h w 3"], device: torch.device
) -> tuple[Float[Tensor, "b n c"], Int[Tensor, "b n"]]:
    """(features, tokens) of pictures as bytes; features are float16 values, so that a cache of them changes nothing."""
    return encode_pictures(vqgan, _pictures(frames, device))


@torch.no_grad()
def encode_pictures(vqgan: VQGAN, pictures: Pictures) -> tuple[Float[Tensor, "b n c"], Int[Tensor, "b n"]]:
    """(features, tokens) of pictures in [0, 1], as ``encode_frames``."""
    with _precision(vqgan, pictures):
        encoded = vqgan.encode(pictures)
        tokens = vqgan.tokens(encoded)
        if vqgan.config.features == "raw":
            encoded = vqgan.encoder(pictures)
    return vqgan.features(encoded.float(), pictures).half(), tokens


@torch.no_grad()
def frame_features(vqgan: VQGAN, frames: UInt8[np.ndarray, "b h w 3"], device: torch.device) -> Float[Tensor, "b n c"]:
    """``encode_frames`` without tokens."""
    pictures = _pictures(frames, device)
    with _precision(vqgan, pictures):
        encoded = vqgan.encoder(pictures) if vqgan.config.features == "raw" else vqgan.encode(pictures)
    return vqgan.features(encoded.float(), pictures).half()


def _pictures(frames: UInt8[np.ndarray, "b h w 3"], device: torch.device) -> Pictures:
    return torch.from_numpy(frames).to(device).permute(0, 3, 1, 2).float() / 255


def _precision(vqgan: VQGAN, pictures: Pictures) -> contextlib.AbstractContextManager:
    return torch.autocast(pictures.device.type, torch.bfloat16, enabled=vqgan.config.precision == "bfloat16")
