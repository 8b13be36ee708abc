"""The VQGAN of a taming-transformers checkpoint (Esser et al., 2021), whatever its sizes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from procap.checkpoints.reader import ForeignState, read_state
from procap.errors import BadInput
from procap.models.build import build
from procap.models.vqgan import VQGAN, VQGANConfig

NEVER_USED = re.compile(r"loss\.")
"""LPIPS and the discriminator that the checkpoint was trained with."""

LEVEL_ATTENTION = re.compile(r"(encoder\.down|decoder\.up)\.\d+\.attn\.")
"""A level has attention only where its side is 16 in a network built for 256 pixels. The published weights were
trained at 256; at 224 the reference code builds no such attention and leaves these keys out, and so do we."""

MOST_CODES = 2**15
"""Tokens are kept as int16."""


def import_vqgan(
    path: Path,
    image_size: int,
    precision: str = "float32",
    features: Literal["normalised", "raw"] = "normalised",
    colours: int = 0,
) -> VQGAN:
    """The network in a Lightning file (key ``state_dict``) or a safetensors file, for pictures of this side.

    ``path`` may be a folder that `procap import-weights` wrote. The sizes follow from the tensors' shapes;
    ``precision``, ``features`` and ``colours`` are ``VQGANConfig``'s. Raises BadInput for a file that is no checkpoint,
    and for keys that are missing, unknown or of another shape.
    """
    return vqgan_from_state(open_vqgan(path), image_size, precision=precision, features=features, colours=colours)


def import_as_trained(path: Path) -> VQGAN:
    """``import_vqgan`` with whatever attention the checkpoint has, so that nothing of it is lost."""
    state = open_vqgan(path)
    if any(LEVEL_ATTENTION.match(key) for key in state.tensors):
        return vqgan_from_state(state, 256)
    return vqgan_from_state(state, 14 * 2 ** halvings(state))


def open_vqgan(path: Path) -> ForeignState:
    """What ``import_vqgan`` reads, before a look at it."""
    return read_state(
        path / "vqgan.safetensors" if path.is_dir() else path,
        expected="a VQGAN of taming-transformers",
        do="take the VQGAN's own file, or train one: tokenizer.checkpoint: null",
        under=("state_dict",),
    )


def halvings(state: ForeignState) -> int:
    """How often the network halves a picture."""
    return state.count(r"encoder\.down\.(\d+)\.") - 1


def vqgan_from_state(state: ForeignState, image_size: int, **choices: Any) -> VQGAN:
    """``import_vqgan`` of tensors that were read already; ``choices`` are fields of ``VQGANConfig``."""
    state = state.without(NEVER_USED)
    config = replace(_sizes(state, image_size), **choices)
    vqgan = build(lambda: VQGAN(config), torch.Generator())
    expected = {key: tuple(value.shape) for key, value in vqgan.state_dict().items()}
    if not any(LEVEL_ATTENTION.match(key) for key in expected):
        state = state.without(LEVEL_ATTENTION)
    state.check(expected)
    vqgan.load_state_dict(state.tensors)
    return vqgan.eval()


def _sizes(state: ForeignState, image_size: int) -> VQGANConfig:
    """What the shapes say; the rest of the keys is compared afterwards."""
    first = state.shape("encoder.conv_in.weight", 4)
    book = state.shape("quantize.embedding.weight", 2)
    levels = halvings(state) + 1
    firsts = [state.shape(f"encoder.down.{level}.block.0.conv1.weight", 4) for level in range(levels)]
    config = VQGANConfig(
        channels=first[0],
        multipliers=tuple(shape[0] // first[0] for shape in firsts),
        blocks=state.count(r"encoder\.down\.0\.block\.(\d+)\."),
        codes=book[0],
        code_width=book[1],
        image_size=image_size,
    )
    if not levels or first[0] % 32 or 0 in config.multipliers:
        raise state.refusal(f"these are no sizes of a VQGAN: {config}")
    if image_size % 2 ** (levels - 1):
        raise BadInput(
            f"the checkpoint's network halves the picture {levels - 1} times",
            where="params.yaml: prepare.image_size",
            expected=f"a multiple of {2 ** (levels - 1)}, found {image_size}",
            do="change prepare.image_size",
        )
    if config.codes > MOST_CODES:
        raise state.refusal(f"a codebook of {config.codes} entries; at most {MOST_CODES} can be used")
    return config
