"""Networks small enough for a test, with weights from a seed."""

from typing import Any, TypeVar

import torch

from procap.captioners import Batch, Truth, captioner_class
from procap.captioners.answers import Grammar
from procap.captioners.ccrc import CCRCConfig
from procap.captioners.decider import DeciderConfig
from procap.captioners.mct_ccdiff import MCTCCDiffConfig
from procap.models.build import build
from procap.models.caption_decoder import CaptionDecoder, DecoderConfig
from procap.models.change_fusion import FusionConfig
from procap.models.difference_encoder import DifferenceConfig
from procap.models.encoder_decoder import EncoderDecoderConfig
from procap.models.language import LanguageConfig, small_body
from procap.models.mask_decoder import MaskConfig
from procap.models.procedure_encoder import EncoderConfig, ProcedureEncoder
from procap.models.text_diffusion import TextDiffusionConfig
from procap.models.vqgan import VQGAN, VQGANConfig

M = TypeVar("M", bound=torch.nn.Module)

VQGAN_CONFIG = VQGANConfig(32, (1, 1, 2, 1), 1, 16, 8, 32)
"""A grid of 4 x 4 tokens, 16 codes of width 8."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shaken(module: M, strength: float = 0.15, seed: int = 0) -> M:
    """The module with noise on every weight, so that none is zero or special as first weights may be."""
    draw = generator(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(strength * torch.randn(weight.shape, generator=draw))
    return module


def encoder_config(frames: int = 4, **changes: Any) -> EncoderConfig:
    sizes = {
        "frames": frames, "grid": 4, "feature_width": 8, "codes": 16, "vocabulary": 20, "words": 7,
        "width": 48, "layers": 2, "heads": 4,
    }  # fmt: skip
    return EncoderConfig(**(sizes | changes))


def decoder_config(
    vocabulary: int = 20, words: int = 7, dropout: float = 0.0, style: str = "compact"
) -> DecoderConfig:
    return DecoderConfig(vocabulary, words, memory_width=32, width=32, layers=2, heads=4, dropout=dropout, style=style)


def small_encoder(seed: int = 0, **changes: Any) -> ProcedureEncoder:
    return shaken(build(lambda: ProcedureEncoder(encoder_config(**changes)), generator(seed)), seed=seed)


def small_decoder(seed: int = 0, **changes: Any) -> CaptionDecoder:
    return shaken(build(lambda: CaptionDecoder(decoder_config(**changes)), generator(seed)), 0.3, seed)


def small_vqgan(seed: int = 0) -> VQGAN:
    return build(lambda: VQGAN(VQGAN_CONFIG), generator(seed)).eval()


def captioner_config(name: str, vocabulary: int = 20, words: int = 7) -> Any:
    if name == "ccrc":
        return ccrc_config(vocabulary, words)
    if name == "mct_ccdiff":
        return mct_ccdiff_config(vocabulary=vocabulary, words=words)
    if name == "decider":
        return decider_config(vocabulary=vocabulary, words=words)
    frames = 4 if captioner_class(name).pretrained else 2
    return EncoderDecoderConfig(
        encoder_config(frames, vocabulary=vocabulary, words=words), decoder_config(vocabulary, words), 0.0
    )


def ccrc_config(
    vocabulary: int = 20, words: int = 7, learns: str = "both", lora: int = 0, gate: bool = True,
    mask_weight: float = 1.0, mask_every: int = 1, **mask: Any,
) -> CCRCConfig:
    language = LanguageConfig(small_body(32, 1, 2, 40), Grammar(vocabulary).size, prompt=1, lora=lora)
    fusion = FusionConfig(grid=4, feature_width=8, width=32, layers=1, heads=2, gate=gate)
    sizes = {"side": 16, "width": 16, "tokens": 2, "rounds": 1, "heads": 2} | mask
    return CCRCConfig(
        fusion, language, MaskConfig(**sizes), vocabulary, words, places=6, mask_weight=mask_weight,
        mask_every=mask_every, learns=learns,
    )  # fmt: skip


def truth(b: int, side: int = 16, seed: int = 0) -> Truth:
    """Types in turn, objects of one or two words; the mask is a rectangle, and where nothing changed, empty."""
    from procap.captioners.answers import KINDS, OBJECT_WORDS

    draw = generator(seed)
    kinds = torch.arange(b) % (len(KINDS) - 1)
    changed = kinds != KINDS.index("none")
    objects = torch.zeros(b, OBJECT_WORDS, dtype=torch.long)
    objects[:, 0] = torch.randint(8, 11, (b,), generator=draw)
    objects[::2, 1] = 9
    objects[~changed] = 0
    masks = torch.zeros(b, side, side, dtype=torch.bool)
    for row in changed.nonzero()[:, 0].tolist():
        top, left = torch.randint(0, side // 2, (2,), generator=draw).tolist()
        masks[row, top : top + 2 + row % 3, left : left + side // 2] = True
    return Truth(kinds, objects, masks, torch.ones(b, dtype=torch.bool))


def batch_of(name: str, b: int, **changes: int) -> Batch:
    """Pairs with sentences, and with the truth for captioners that are taught it."""
    taught = getattr(captioner_class(name), "taught", False)
    return Batch(features(b), sentences(b, **changes), truth=truth(b) if taught else None)


def text_config(memory_width: int, vocabulary: int = 20, words: int = 7, **changes: Any) -> TextDiffusionConfig:
    sizes = {"embedding": 16, "width": 32, "layers": 2, "heads": 4, "mediators": 0}
    return TextDiffusionConfig(vocabulary, words, memory_width, **(sizes | changes))


def mct_ccdiff_config(grid: int = 4, vocabulary: int = 20, words: int = 7, **changes: Any) -> MCTCCDiffConfig:
    parts = {"draws": 2, "average": 0.9, "tecl": 0.1, "context": 0.5, "mediators": 3} | changes
    text = text_config(32, vocabulary, words, mediators=parts.pop("mediators"))
    return MCTCCDiffConfig(DifferenceConfig(grid, 8, 32, 1, 4, 32), text, **parts)


def decider_config(grid: int = 4, vocabulary: int = 20, words: int = 7, **changes: Any) -> DeciderConfig:
    parts = {
        "draws": 2, "average": 0.9, "bottleneck": 0.001, "warmup": 20, "cross_modal": 0.1, "contrast": 0.1,
        "contrasted": 24, "negatives": 2, "temperature": 0.1, "positive": 1.0, "negative": 1.0,
    } | changes  # fmt: skip
    return DeciderConfig(DifferenceConfig(grid, 8, 32, 1, 4, 48), text_config(24, vocabulary, words), **parts)


def small_captioner(name: str, seed: int = 0, **changes: int) -> torch.nn.Module:
    return build(lambda: captioner_class(name)(captioner_config(name, **changes)), generator(seed))


def features(b: int, t: int = 2, n: int = 16, c: int = 8, seed: int = 0) -> torch.Tensor:
    """Every pair has something that shows at all its places, so that pairs differ on average, too."""
    draw = generator(seed)
    return torch.randn(b, t, n, c, generator=draw) + 2 * torch.randn(b, 1, 1, c, generator=draw)


def sentences(b: int, vocabulary: int = 20, words: int = 7, seed: int = 0) -> torch.Tensor:
    """[BOS], one to ``words - 2`` words, [EOS], [PAD]; no two alike at the start."""
    from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS

    draw = generator(seed)
    out = torch.full((b, words), PAD)
    for row in range(b):
        length = int(torch.randint(1, words - 1, (), generator=draw))
        out[row, 1 : length + 1] = torch.randint(len(SPECIALS), vocabulary, (length,), generator=draw)
        out[row, 1] = len(SPECIALS) + row % (vocabulary - len(SPECIALS))
        out[row, 0], out[row, length + 1] = BOS, EOS
    return out
