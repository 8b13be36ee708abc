"""What a captioner is made of: its ``Config`` from params, and from the data what follows from them."""

from pathlib import Path
from typing import Any

from procap.captioners import captioner_class
from procap.config import Params
from procap.datasets.vocabulary import Vocabulary
from procap.models.caption_decoder import DecoderConfig
from procap.models.encoder_decoder import EncoderDecoderConfig
from procap.models.procedure_encoder import Imagining
from procap.steps.sources import encoder_config


def captioner_config(params: Params, data: Path, captioner: str, vocabulary: Vocabulary) -> Any:
    """The ``Config`` of a captioner."""
    kind = captioner_class(captioner)
    return CONFIGS[kind.Config](params, data, vocabulary, kind.pretrained)


def _encoder_decoder(params: Params, data: Path, vocabulary: Vocabulary, pretrained: bool) -> EncoderDecoderConfig:
    settings = params.caption
    return EncoderDecoderConfig(
        encoder_config(params, data, vocabulary, frames=params.frames if pretrained else 2),
        DecoderConfig(
            len(vocabulary), vocabulary.length, settings.decoder_width, settings.decoder_width,
            settings.decoder_layers, settings.decoder_heads, settings.dropout, settings.decoder,
        ),
        settings.label_smoothing,
        settings.reduction,
        Imagining(settings.between if pretrained else "nothing", **settings.imagining.model_dump()),
        settings.decoding,
    )  # fmt: skip


CONFIGS = {EncoderDecoderConfig: _encoder_decoder}
