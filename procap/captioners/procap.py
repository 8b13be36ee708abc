"""ProCap: imagines the procedure between before and after, then describes it (paper, section 3.2)."""

import torch
from torch import nn

from procap.captioners import Batch, Prediction
from procap.captioners.decoding import caption_loss, write_captions
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.shapes import Float, Scalar, Tensor


class ProCap(nn.Module):
    """Implicit procedure captioning; stage 1 (step ``pretrain``) gives its encoder the first weights."""

    Config = EncoderDecoderConfig
    pretrained = True
    """Starts from stage 1's encoder and keeps its frames."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.network = EncoderDecoder(config)

    def loss(self, batch: Batch, *, generator: torch.Generator) -> dict[str, Scalar]:
        """Negative log-likelihood of the caption."""
        return caption_loss(self.network, batch, generator)

    def caption(
        self,
        features: Float[Tensor, "b t n c"],
        *,
        beams: int,
        generator: torch.Generator,
        length_penalty: float = 1.0,
        no_repeat: int = 0,
    ) -> list[Prediction]:
        """One prediction per pair, in order; nothing is drawn, so the generator stays as it is."""
        return write_captions(self.network, features, beams, length_penalty, no_repeat)

    def imagine_tokens(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b k n v"]:
        """What stage 1's head reads off the queries: logits over the codebook for the frames nobody saw."""
        with torch.no_grad():
            return self.network.encoder.token_head(self.network.imagine(features)[:, 1:-1])
