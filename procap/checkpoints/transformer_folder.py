"""Image and text towers from a local folder that the transformers library can read: DINO-type ViTs, CLIP and its kin.

Nothing is fetched: what is not in the folder is an error. Weights are safetensors, or a pickle of which torch reads
the tensors alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from procap.errors import BadInput
from procap.shapes import Float, Pictures, Tensor

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
"""Mean and deviation of pixels, where the folder has no preprocessor_config.json to tell."""


class ImageTower(nn.Module):
    """Pictures as the folder's network wants them, and its vector for each. Frozen."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, net: Any, side: int, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.net, self.side = net.eval().requires_grad_(False), side
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).reshape(3, 1, 1))

    @torch.inference_mode()
    def forward(self, pictures: Pictures) -> Float[Tensor, "b d"]:
        """Pictures in [0, 1], any size: resized (bicubic, aspect ignored) to what the network was trained with."""
        resized = nn.functional.interpolate(
            pictures, (self.side, self.side), mode="bicubic", antialias=True, align_corners=False
        )
        numbers = (resized.clamp(0, 1) - self.mean) / self.deviation
        if hasattr(self.net, "get_image_features"):
            return self.net.get_image_features(pixel_values=numbers).pooler_output
        return self.net(pixel_values=numbers).last_hidden_state[:, 0]


class TextTower(nn.Module):
    """Sentences to vectors in the space of the images. Frozen."""

    def __init__(self, net: Any, tokenizer: Any) -> None:
        super().__init__()
        self.net, self.tokenizer = net.eval().requires_grad_(False), tokenizer

    @torch.inference_mode()
    def forward(self, sentences: Sequence[str]) -> Float[Tensor, "b d"]:
        """What is longer than the network takes is cut."""
        longest = self.net.config.text_config.max_position_embeddings
        tokens = self.tokenizer(
            list(sentences), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        ).to(self.net.device)
        return self.net.get_text_features(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
        ).pooler_output


def load_image_tower(folder: Path, device: torch.device, key: str) -> ImageTower:
    """A ViT (its class token) or the image side of a CLIP; ``key`` is named in complaints. Raises BadInput."""
    return _image_tower(folder, load_pretrained(folder, "AutoModel", key), key).to(device)


def load_both_towers(folder: Path, device: torch.device, key: str) -> tuple[ImageTower, TextTower]:
    """Both sides of a CLIP-type checkpoint, its tokenizer included. Raises BadInput."""
    net = load_pretrained(folder, "AutoModel", key)
    if not (hasattr(net, "get_text_features") and hasattr(net, "get_image_features")):
        raise BadInput(
            f"a {type(net).__name__} has no text side",
            where=f"{folder} ({key})",
            expected="a checkpoint of pictures and text, such as CLIP",
            do=f"name another folder, or set {key}: null to train a small two-tower model here",
        )
    tokenizer = load_pretrained(folder, "AutoTokenizer", key)
    return _image_tower(folder, net, key).to(device), TextTower(net, tokenizer).to(device)


def _image_tower(folder: Path, net: Any, key: str) -> ImageTower:
    config = getattr(net.config, "vision_config", net.config)
    if not isinstance(getattr(config, "image_size", None), int):
        raise BadInput(
            f"a {type(net).__name__} reads no square pictures",
            where=f"{folder} ({key})",
            expected="a vision transformer with image_size in its config.json, such as DINO or CLIP",
            do="name another folder",
        )
    mean, deviation = CLIP if config is not net.config else IMAGENET
    path = folder / "preprocessor_config.json"
    if path.exists():
        stated = json.loads(path.read_text(encoding="utf-8"))
        mean, deviation = stated.get("image_mean", mean), stated.get("image_std", deviation)
    return ImageTower(net, config.image_size, mean, deviation)


def load_pretrained(folder: Path, kind: str, key: str) -> Any:
    """What transformers' class ``kind`` reads from a folder; ``key`` is named in complaints. Raises BadInput."""
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadInput(
            f"the folder cannot be read as a pre-trained network: {str(error).strip().splitlines()[0]}",
            where=f"{folder} ({key})",
            expected="config.json and weights as the transformers library saves them"
            + (", and the tokenizer's files" if kind == "AutoTokenizer" else ""),
            do=f"mend {key} in params.yaml, or set it to null",
        ) from error
