"""What a captioner is made of: its ``Config`` from params, and from the data what follows from them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from procap.captioners import captioner_class
from procap.captioners.answers import REASONING, STRUCTURE, Grammar
from procap.captioners.ccrc import CCRCConfig
from procap.captioners.decider import DeciderConfig
from procap.captioners.mct_ccdiff import MCTCCDiffConfig
from procap.checkpoints.language_model import language_model_config, load_language_model, refuse_short
from procap.config import CCRC, Diffusion, Own, Params
from procap.datasets.vocabulary import SPECIALS, Vocabulary
from procap.models.caption_decoder import DecoderConfig
from procap.models.change_fusion import FusionConfig
from procap.models.difference_encoder import DifferenceConfig
from procap.models.encoder_decoder import EncoderDecoderConfig
from procap.models.language import LanguageConfig, small_body
from procap.models.mask_decoder import MaskConfig
from procap.models.procedure_encoder import Imagining
from procap.models.text_diffusion import TextDiffusionConfig
from procap.steps.sources import encoder_config, tokenizer_config


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


def _ccrc(params: Params, data: Path, vocabulary: Vocabulary, pretrained: bool) -> CCRCConfig:
    own, sizes, words = params.own("ccrc"), tokenizer_config(data), Grammar(len(vocabulary)).size
    assert isinstance(own, CCRC)
    length = min(own.places, sizes.grid**2) + 2 + REASONING + vocabulary.length + 1
    if own.language_model:
        body, prompt = language_model_config(own.language_model)
        refuse_short(own.language_model, body, prompt + length)
        language = LanguageConfig(body, words, prompt, own.lora)
    else:
        language = LanguageConfig(small_body(own.width, own.layers, own.heads, 1 + length), words, 1)
    return CCRCConfig(
        FusionConfig(sizes.grid, sizes.feature_width, own.width, own.fusion_layers, own.heads, own.gate),
        language,
        MaskConfig(
            sizes.image_size, own.mask_width, own.mask_tokens, own.mask_rounds, own.heads, own.priors, own.refiner
        ),
        len(vocabulary), vocabulary.length, own.places, own.mask_weight, own.mask_every, own.learns,
    )  # fmt: skip


def start_from_elsewhere(own: Own, model: Any, vocabulary: Vocabulary) -> None:
    """Give a captioner the weights that its own section names, if it names any."""
    if isinstance(own, CCRC) and own.language_model:
        model.language.adopt(*load_language_model(own.language_model, [*SPECIALS, *vocabulary.words, *STRUCTURE]))


def files_from_elsewhere(own: Own) -> list[Path]:
    """Files and folders that a captioner's own section names and that are there."""
    named = own.language_model if isinstance(own, CCRC) else None
    return [Path(named)] if named and Path(named).exists() else []


def _difference(settings: Diffusion, data: Path, out: int) -> DifferenceConfig:
    seen = tokenizer_config(data)
    return DifferenceConfig(seen.grid, seen.feature_width, settings.width, settings.encoder_layers, settings.heads, out)


def _text(settings: Diffusion, vocabulary: Vocabulary, memory_width: int, mediators: int) -> TextDiffusionConfig:
    return TextDiffusionConfig(
        len(vocabulary), vocabulary.length, memory_width, settings.embedding, settings.width, settings.layers,
        settings.heads, mediators, noise=settings.noise, lead=settings.lead, shuffled=settings.shuffled,
        self_conditioning=settings.self_conditioning, clamping=settings.clamping,
    )  # fmt: skip


def _mct_ccdiff(params: Params, data: Path, vocabulary: Vocabulary, pretrained: bool) -> MCTCCDiffConfig:
    own: Any = params.own("mct_ccdiff")
    return MCTCCDiffConfig(
        _difference(own, data, own.width),
        _text(own, vocabulary, own.width, own.mediators),
        **_chosen(own, MCTCCDiffConfig),
    )


def _decider(params: Params, data: Path, vocabulary: Vocabulary, pretrained: bool) -> DeciderConfig:
    own: Any = params.own("decider")
    return DeciderConfig(
        _difference(own, data, 2 * own.code),
        _text(own, vocabulary, own.code, mediators=0),
        **_chosen(own, DeciderConfig),
    )


def _chosen(own: Diffusion, kind: type) -> dict[str, Any]:
    """What a captioner's ``Config`` takes from its section as it is."""
    return own.model_dump(include={field.name for field in fields(kind)})


CONFIGS = {
    EncoderDecoderConfig: _encoder_decoder,
    CCRCConfig: _ccrc,
    MCTCCDiffConfig: _mct_ccdiff,
    DeciderConfig: _decider,
}
