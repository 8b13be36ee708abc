"""The VQGAN of a taming-transformers checkpoint (Esser et al., 2021), whatever its sizes."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from procap.errors import BadInput
from procap.models.build import build
from procap.models.vqgan import VQGAN, VQGANConfig

NEVER_USED = re.compile(r"loss\.")
"""LPIPS and the discriminator that the checkpoint was trained with."""

LEVEL_ATTENTION = re.compile(r"(encoder\.down|decoder\.up)\.\d+\.attn\.")
"""A level has attention only where its side is 16 in a network built for 256 pixels. The published weights were
trained at 256; at 224 the reference code builds no such attention and leaves these keys out, and so do we."""

PICKLE = b"\x80"
"""First byte of a checkpoint written by torch before 1.6; later ones are zip files."""

MOST_CODES = 2**15
"""Tokens are kept as int16."""


def import_vqgan(
    path: Path, image_size: int, precision: str = "float32", features: Literal["normalised", "raw"] = "normalised"
) -> VQGAN:
    """The network in a Lightning file (key ``state_dict``) or a safetensors file, for pictures of this side.

    Its sizes follow from the tensors' shapes; ``precision`` and ``features`` are ``VQGANConfig``'s. Raises
    BadInput for a file that cannot be read without running code from it, and for keys that are missing, unknown or
    of another shape.
    """
    state = {key: value for key, value in _read(path).items() if not NEVER_USED.match(key)}
    config = replace(_sizes(path, state, image_size), precision=precision, features=features)
    vqgan = build(lambda: VQGAN(config), torch.Generator())
    expected = vqgan.state_dict()
    if not any(LEVEL_ATTENTION.match(key) for key in expected):
        state = {key: value for key, value in state.items() if not LEVEL_ATTENTION.match(key)}
    _check_keys(path, state, expected)
    vqgan.load_state_dict(state)
    return vqgan.eval()


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise _refusal(path, "there is no such checkpoint", do="mend tokenizer.checkpoint in params.yaml")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise _refusal(path, f"not a safetensors file ({error})") from error
    if not zipfile.is_zipfile(path) and _first_byte(path) != PICKLE:
        raise _refusal(path, "not a torch checkpoint")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _refusal(
            path,
            "the checkpoint holds more than tensors and numbers, and reading that would run code from it",
            do=_convert(path),
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise _refusal(path, f"not a torch checkpoint ({' '.join(str(error).split())})") from error
    state = found.get("state_dict", found) if isinstance(found, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise _refusal(path, "the checkpoint has no state_dict of tensors")
    return state


def _first_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1)


def _convert(path: Path) -> str:
    return (
        "if you trust the file, convert it once, where pytorch-lightning is installed: "
        'python -c "import torch; from safetensors.torch import save_file; '
        f"s = torch.load('{path.name}', map_location='cpu', weights_only=False)['state_dict']; "
        "save_file({k: v.contiguous() for k, v in s.items() if not k.startswith('loss.')}, "
        f"'{path.stem}.safetensors')\", and name the new file in tokenizer.checkpoint"
    )


def _sizes(path: Path, state: Mapping[str, Tensor], image_size: int) -> VQGANConfig:
    """What the shapes say; the rest of the keys is compared afterwards."""
    first = _shape(path, state, "encoder.conv_in.weight", 4)
    book = _shape(path, state, "quantize.embedding.weight", 2)
    levels = _count(state, r"encoder\.down\.(\d+)\.")
    firsts = [_shape(path, state, f"encoder.down.{level}.block.0.conv1.weight", 4) for level in range(levels)]
    config = VQGANConfig(
        channels=first[0],
        multipliers=tuple(shape[0] // first[0] for shape in firsts),
        blocks=_count(state, r"encoder\.down\.0\.block\.(\d+)\."),
        codes=book[0],
        code_width=book[1],
        image_size=image_size,
    )
    if not levels or first[0] % 32 or 0 in config.multipliers:
        raise _refusal(path, f"these are no sizes of a VQGAN: {config}")
    if image_size % 2 ** (levels - 1):
        raise BadInput(
            f"the checkpoint's network halves the picture {levels - 1} times",
            where="params.yaml: prepare.image_size",
            expected=f"a multiple of {2 ** (levels - 1)}, found {image_size}",
            do="change prepare.image_size",
        )
    if config.codes > MOST_CODES:
        raise _refusal(path, f"a codebook of {config.codes} entries; at most {MOST_CODES} can be used")
    return config


def _shape(path: Path, state: Mapping[str, Tensor], key: str, axes: int) -> tuple[int, ...]:
    if key not in state or state[key].ndim != axes:
        found = f"has shape {tuple(state[key].shape)}" if key in state else "is missing"
        raise _refusal(path, f"not a VQGAN: {key} {found}")
    return tuple(state[key].shape)


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    return 1 + max((int(found[1]) for key in state if (found := re.match(pattern, key))), default=-1)


def _check_keys(path: Path, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    shapes = {key: (tuple(state[key].shape), tuple(expected[key].shape)) for key in expected if key in state}
    problems = {
        "missing": [key for key in expected if key not in state],
        "unknown": [key for key in state if key not in expected],
        "of another shape": [f"{key} {got} for {due}" for key, (got, due) in shapes.items() if got != due],
    }
    if any(problems.values()):
        named = "; ".join(f"{what}: {', '.join(keys)}" for what, keys in problems.items() if keys)
        raise _refusal(path, f"the weights do not fit the network that their sizes ask for ({named})")


def _refusal(
    path: Path, what: str, do: str = "take the VQGAN's own file, or train one: tokenizer.checkpoint: null"
) -> BadInput:
    return BadInput(what, where=str(path), expected="a VQGAN of taming-transformers (.ckpt or .safetensors)", do=do)
