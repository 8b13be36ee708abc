"""Weights and pictures made from names alone: what a network computes with them can be kept without a checkpoint.

A name is that of the released checkpoint. The numbers that the public code computes from these weights and pictures
are in ``tests/reference/released.npz``; ``tests/reference/make_released.py`` says which.
"""

import re
import zlib
from collections.abc import Mapping

import numpy as np
import torch

Shape = tuple[int, ...]
TABLES = r"(text_emb|text_pos_emb|image_emb|special_emb|special_pos_emb|text_decoder\.decoder\.out)\.weight"
SMALL = re.compile(rf"{TABLES}|target_pos_emb\.weights\.\d|image_mask")
SLOPES = re.compile(r"(flownet|refinenet)\..*\.weight")
SHARP = re.compile(r"text_decoder\..*\.attention\.layer\.w[qk]\.weight")


def formula_weights(shapes: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    """A number for every place of every tensor, the same wherever the module stands."""
    return {key: torch.from_numpy(_weight(key, tuple(shape))) for key, shape in shapes.items()}


def _draw(name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))


def _weight(key: str, shape: Shape) -> np.ndarray:
    name = key.removeprefix("intermediate_generator.").removeprefix("vae.model.")
    x = _draw(name).standard_normal(shape, dtype=np.float32)
    if name == "quantize.embedding.weight":
        return x
    if SMALL.fullmatch(name):
        return np.float32(0.02) * x
    if len(shape) > 1:
        return np.float32((3 if SHARP.fullmatch(name) else 1) / np.sqrt(np.prod(shape[1:]))) * x
    if SLOPES.fullmatch(name):
        return np.float32(0.25) + np.float32(0.1) * x
    if name.endswith(".gamma"):
        return np.float32(2) * x
    if name.endswith(".weight"):
        return np.float32(1) + np.float32(0.1) * x
    return np.float32(0.02) * x


def formula_pictures(*names: str, side: int = 224) -> torch.Tensor:
    """(b, 3, side, side) in [0, 1], one per name: three quarters a smooth field, one quarter noise."""
    knots = side // 16 + 1
    along = np.arange(side) * (knots - 1) / (side - 1)
    tents = np.maximum(0, 1 - np.abs(along[:, None] - np.arange(knots)))
    pictures = []
    for name in names:
        draw = _draw(name)
        coarse, noise = draw.random((3, knots, knots)), draw.random((3, side, side))
        pictures.append((0.75 * (tents @ coarse @ tents.T) + 0.25 * noise).astype(np.float32))
    return torch.from_numpy(np.stack(pictures))


def formula_kept(name: str, places: int, kept: float) -> np.ndarray:
    """Which places a random-patch mask keeps."""
    return _draw(name).random(places) < kept


def encoder_shapes(blocks: int, words: int) -> dict[str, Shape]:
    """Names and shapes of a released procedure encoder, the VQGAN and what is never read left out."""
    shapes: dict[str, Shape] = {
        "image_mask": (768,), "text_emb.weight": (words, 768), "text_pos_emb.weight": (24, 768),
        "image_emb.weight": (1026, 768), "special_emb.weight": (5, 768), "special_pos_emb.weight": (5, 768),
        "target_pos_emb.weights.0": (1, 4, 1, 1, 768), "target_pos_emb.weights.1": (1, 1, 14, 1, 768),
        "target_pos_emb.weights.2": (1, 1, 1, 14, 768),
        **_layer("conv_to_embedding.0", 256), **_layer("conv_to_embedding.1", 768, 256),
    }  # fmt: skip
    for i in range(blocks):
        block = f"transformer.transformer.resblocks.{i}."
        shapes |= {f"{block}attn.in_proj_weight": (2304, 768), f"{block}attn.in_proj_bias": (2304,)}
        shapes |= _layer(f"{block}attn.out_proj", 768, 768) | _layer(f"{block}ln_1", 768) | _layer(f"{block}ln_2", 768)
        shapes |= _layer(f"{block}mlp.c_fc", 3072, 768) | _layer(f"{block}mlp.c_proj", 768, 3072)
    for head, out in (("to_logits", 1024), ("to_logits_rel", 1), ("to_logits_vid", 1)):
        shapes |= _layer(f"{head}.0", 768) | _layer(f"{head}.1", out, 768)
    return shapes


def captioner_shapes(blocks: int, layers: int, vocabulary: int) -> dict[str, Shape]:
    """Names and shapes of a released captioner, as ``encoder_shapes``."""
    shapes = {f"intermediate_generator.{key}": shape for key, shape in encoder_shapes(blocks, 25).items()}
    shapes |= _layer("mlp.0", 768, 768) | _layer("mlp.2", 512, 768) | _layer("mlp.3", 512)
    for j in range(layers):
        for part in ("selfattn", "attention", "feedforward"):
            layer = f"text_decoder.decoder.layers.{j}.{part}."
            shapes |= {f"{layer}layernorm.gamma": (512,), f"{layer}layernorm.beta": (512,)}
            if part == "feedforward":
                shapes |= _layer(f"{layer}layer.linear1", 2048, 512) | _layer(f"{layer}layer.linear2", 512, 2048)
            else:
                shapes |= {f"{layer}layer.{w}.weight": (512, 512) for w in ("wq", "wk", "wv", "wo")}
    return shapes | _layer("text_decoder.decoder.out", vocabulary, 512)


def _layer(name: str, *shape: int) -> dict[str, Shape]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
