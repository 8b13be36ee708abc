"""What the training steps find: tiny corpora, tokenised by a small VQGAN, and parameters to go with them."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flows.presets import merge, nested, read_preset, read_sections
from procap.config import Params, check_params
from procap.datasets.pairs import Pairs
from procap.datasets.vocabulary import Vocabulary, sequence_length
from procap.files import write_json
from procap.procedure.keyframes import sample_keyframes
from procap.steps import interpolate, tokenize
from procap.training.checkpoint import save_tensors
from tests.small import VQGAN_CONFIG, generator, small_vqgan
from tests.toy import toy_prepared

PROJECT = Path(__file__).parents[1]

TINY: dict[str, Any] = {
    "prepare.image_size": VQGAN_CONFIG.image_size,
    "interpolate.method": "crossfade",
    "interpolate.frames": 7,
    "interpolate.measured": 0,
    "sample.kept": 2,
    "pretrain.width": 24,
    "pretrain.layers": 1,
    "pretrain.heads": 2,
    "pretrain.steps": 3,
    "pretrain.batch": 4,
    "caption.decoder_layers": 1,
    "caption.decoder_width": 16,
    "caption.decoder_heads": 2,
    "caption.steps": 3,
    "caption.batch": 4,
    "ccrc.width": 16,
    "ccrc.layers": 1,
    "ccrc.heads": 2,
    "ccrc.fusion_layers": 1,
    "ccrc.mask_width": 16,
    "ccrc.mask_tokens": 2,
    "ccrc.mask_rounds": 1,
    "hardware.device": "cpu",
    "hardware.threads": 1,
}


def preset(name: str) -> dict[str, Any]:
    """The default parameters with a preset over them."""
    raw = read_sections(PROJECT / "params.yaml", "safe")
    merge(raw, read_preset(PROJECT, name))
    return raw


def with_changes(raw: dict[str, Any], changes: Mapping[str, Any]) -> Params:
    """Parameters with ``{"caption.steps": 3}`` changed."""
    merge(raw, nested(changes))
    return check_params(raw, "test")


def tiny_params(**changes: Any) -> Params:
    """The default parameters at test size; ``caption__steps=3`` changes one of them."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return with_changes(read_sections(PROJECT / "params.yaml", "safe"), TINY | named)


def tokenised(data: Path, params: Params, pairs: int = 16) -> None:
    """What all steps up to ``tokenize`` leave; the tokenizer is untrained, keyframes are drawn uniformly."""
    table = toy_prepared(data / "prepare", pairs, params.prepare.image_size)
    captions = [text for texts in table["captions"] for text in texts]
    words = Vocabulary.build(captions, 1, sequence_length(captions, params.prepare.words))
    write_json(data / "prepare" / "vocabulary.json", words.to_json())
    interpolate.run(params, data)
    rows, draws = len(Pairs.read(data / "prepare").split("train", "val")), params.sample.draws
    weights = torch.ones(draws * rows, params.interpolate.frames)
    drawn = sample_keyframes(weights, params.sample.kept, "multinomial", generator=generator())
    (data / "sample").mkdir()
    np.save(data / "sample" / "kept.npy", drawn.reshape(draws, rows, params.sample.kept).numpy().astype(np.int16))
    (data / "tokenizer").mkdir()
    save_tensors(data / "tokenizer" / "vqgan.safetensors", dict(small_vqgan().state_dict()))
    write_json(data / "tokenizer" / "vqgan.json", asdict(VQGAN_CONFIG) | {"features": params.tokenizer.features})
    tokenize.run(params, data)
