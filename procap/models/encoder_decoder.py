"""Procedure encoder, projection and caption decoder in one network: what `static` and `procap` both are."""

from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from torch import nn

from procap.models.caption_decoder import CaptionDecoder, DecoderConfig, Past
from procap.models.layers import without_biases
from procap.models.procedure_encoder import OURS, EncoderConfig, Imagining, ProcedureEncoder
from procap.shapes import Float, Tensor, Words


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Sizes of the whole network, and how it is asked for words and judged by them."""

    encoder: EncoderConfig
    decoder: DecoderConfig
    label_smoothing: float
    """Share of the target that is spread over the other words, in [0, 1)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Of the words' losses."""
    imagining: Imagining = OURS
    decoding: Literal["search", "reference"] = "search"
    """``search``: beam search, one beam being greedy (ours); ``reference``: greedy as the reference code has it."""

    def __post_init__(self) -> None:
        if self.encoder.start == "comparison" and self.decoder.style != "compact":
            raise ValueError("a decoder in the reference's style has no biases to start a comparison with: start usual")


class EncoderDecoder(nn.Module):
    """Before and after in, logits of the next word out (paper, section 3.2)."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        width, out = config.encoder.width, config.decoder.memory_width
        self.encoder = ProcedureEncoder(config.encoder)
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out), nn.LayerNorm(out))
        self.decoder = CaptionDecoder(config.decoder)
        if config.encoder.start == "comparison":
            self.start_comparing()
        self.encoder.freeze_unimagined(config.imagining)

    @torch.no_grad()
    def start_comparing(self) -> None:
        """First weights: the decoder looks where the encoder's first block found the two pictures to differ.

        The projection turns the size of the difference into one number of the memory, which every head of the
        decoder takes as a score (our formulation; see ``compare_ends``).
        """
        without_biases(self.projection)
        without_biases(self.decoder)
        third = self.config.encoder.width // 3
        first, second = self.projection[0].weight, self.projection[2].weight
        first[: 2 * third] = 0
        first[:third, 2 * third : 3 * third] = torch.eye(third)
        first[third : 2 * third, 2 * third : 3 * third] = -torch.eye(third)
        second[0] = 0
        second[0, : 2 * third] = 6 / third
        self.projection[2].bias[0] = -1
        for block in self.decoder.blocks:
            block.cross_attention.start_looking(0)

    def imagine(self, features: Float[Tensor, "b f n c"]) -> Float[Tensor, "b t n d"]:
        """The procedure as the encoder sees it, every place of every frame; index 0 is before, -1 is after."""
        return self.encoder.imagine(features, self.config.imagining)

    def memory(self, features: Float[Tensor, "b f n c"]) -> Float[Tensor, "b m d"]:
        """The imagined procedure as the decoder reads it."""
        return self.projection(rearrange(self.imagine(features), "b t n d -> b (t n) d"))

    def forward(
        self, features: Float[Tensor, "b f n c"], words: Words, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b l v"]:
        """Logits of the word after each word; a generator means training (dropout)."""
        return self.decoder(words, self.decoder.read(self.memory(features)), generator)

    def read(self, features: Float[Tensor, "b f n c"]) -> Past:
        """What decoding word by word needs of the pairs."""
        return self.decoder.read(self.memory(features))
