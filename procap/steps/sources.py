"""What several steps read in the same way: words, captions as numbers, sizes that follow from data."""

import json
from pathlib import Path

import numpy as np
import torch

from procap.config import Caption, Params, Pretrain
from procap.datasets.pairs import Pairs
from procap.datasets.vocabulary import PAD, Vocabulary
from procap.models.procedure_encoder import EncoderConfig
from procap.models.vqgan import VQGANConfig
from procap.training.loop import Plan


def read_vocabulary(data: Path) -> Vocabulary:
    """The vocabulary that ``prepare`` built from the training captions."""
    return Vocabulary.from_json(json.loads((data / "prepare" / "vocabulary.json").read_text(encoding="utf-8")))


def tokenizer_config(data: Path) -> VQGANConfig:
    """Sizes of the tokenizer, and so of the frozen features."""
    sizes = json.loads((data / "tokenizer" / "vqgan.json").read_text(encoding="utf-8"))
    return VQGANConfig(**sizes | {"multipliers": tuple(sizes["multipliers"])})


def encoder_config(params: Params, data: Path, vocabulary: Vocabulary, frames: int) -> EncoderConfig:
    """Sizes of the procedure encoder: chosen ones from params, the others from the tokenizer and the words."""
    tokenizer = tokenizer_config(data)
    return EncoderConfig(
        frames=frames,
        grid=tokenizer.grid,
        feature_width=tokenizer.feature_width,
        codes=tokenizer.codes,
        vocabulary=len(vocabulary),
        words=vocabulary.length,
        width=params.pretrain.width,
        layers=params.pretrain.layers,
        heads=params.pretrain.heads,
        **params.pretrain.encoder.model_dump(),
    )


def make_plan(settings: Pretrain | Caption, seed: int) -> Plan:
    """How long, how fast and how carefully a stage trains."""
    return Plan(
        settings.steps, settings.warmup, settings.validate_every, seed, settings.batch,
        settings.schedule, settings.planned_steps, accumulate=settings.accumulate, patience=settings.patience,
        on_bad_loss=settings.on_bad_loss, spike=settings.spike,
    )  # fmt: skip


class CaptionIds:
    """All captions of the pairs as word numbers."""

    def __init__(self, ids: list[np.ndarray]) -> None:
        self.ids = np.concatenate(ids)
        self.counts = np.array([len(each) for each in ids])
        self.starts = np.cumsum(self.counts) - self.counts

    def draw(self, rows: np.ndarray, generator: torch.Generator) -> torch.Tensor:
        """One caption per row, uniformly, as (b, l)."""
        u = torch.rand(len(rows), generator=generator, dtype=torch.float64).numpy()
        return torch.from_numpy(self.ids[self.starts[rows] + (u * self.counts[rows]).astype(int)])

    def all(self, rows: np.ndarray) -> np.ndarray:
        """All captions of each row, as (b, o, l); rows of [PAD] where one has fewer than the most."""
        out = np.full((len(rows), self.counts.max(initial=0), self.ids.shape[1]), PAD, np.int64)
        for number, row in enumerate(rows):
            out[number, : self.counts[row]] = self.ids[self.starts[row] : self.starts[row] + self.counts[row]]
        return out


def caption_ids(pairs: Pairs, vocabulary: Vocabulary) -> CaptionIds:
    """Encode the captions of these pairs; what is longer than the models take is cut (``validate`` lists it)."""
    return CaptionIds(
        [
            np.array([vocabulary.encode(text, vocabulary.length, cut=True) for text in captions], np.int64)
            for captions in pairs.table["captions"]
        ]
    )
