"""The baseline without a procedure: before and after, nothing between (k = 0), no stage 1."""

import torch
from torch import nn

from procap.captioners import Batch, Prediction
from procap.captioners.decoding import caption_loss, write_captions
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.shapes import Float, Scalar, Tensor


class Static(nn.Module):
    """The two pictures go through the same kind of encoder and decoder as ProCap's, trained from scratch."""

    Config = EncoderDecoderConfig
    pretrained = False

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        if config.encoder.hidden:
            raise ValueError(f"static has no procedure: encoder.frames is {config.encoder.frames}, expected 2")
        self.network = EncoderDecoder(config)

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """Negative log-likelihood of the caption."""
        return caption_loss(self.network, batch, generator)

    def caption(
        self,
        features: Float[Tensor, "b 2 n c"],
        *,
        beams: int,
        generator: torch.Generator,
        length_penalty: float = 1.0,
        no_repeat: int = 0,
    ) -> list[Prediction]:
        """One prediction per pair, in order; nothing is drawn, so the generator stays as it is."""
        return write_captions(self.network, features, beams, length_penalty, no_repeat)
