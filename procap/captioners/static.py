"""The baseline without a procedure: before and after, nothing between (k = 0), no stage 1."""

from procap.captioners.decoding import WordByWord
from procap.models.encoder_decoder import EncoderDecoderConfig


class Static(WordByWord):
    """The two pictures go through the same kind of encoder and decoder as ProCap's, trained from scratch."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        if config.encoder.hidden:
            raise ValueError(f"static has no procedure: encoder.frames is {config.encoder.frames}, expected 2")
        super().__init__(config)
