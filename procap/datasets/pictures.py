"""Pictures as bytes, as numbers, and side by side to look at."""

from typing import Any

import numpy as np
import torch

from procap.shapes import Float, Tensor, UInt8


def to_numbers(pictures: UInt8[np.ndarray, "*b h w c"]) -> Float[Tensor, "*b c h w"]:
    """Bytes to [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(pictures)).movedim(-1, -3).float().div_(255)


def to_bytes(pictures: Float[Tensor, "*b c h w"]) -> UInt8[np.ndarray, "*b h w c"]:
    """[0, 1] to the nearest byte; what lies outside is clamped."""
    rounded = pictures.detach().float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return np.ascontiguousarray(rounded.movedim(-3, -1).cpu().numpy())


def contact_sheet(rows: UInt8[np.ndarray, "r t h w 3"], scale: int = 1, gap: int = 2) -> Any:
    """A PIL image with one line per row, its pictures from left to right, each pixel ``scale`` pixels large."""
    from PIL import Image

    large = rows.repeat(scale, axis=2).repeat(scale, axis=3)
    framed = np.pad(large, ((0, 0), (0, 0), (0, gap), (0, gap), (0, 0)), constant_values=255)
    return Image.fromarray(np.concatenate([np.concatenate(list(row), axis=1) for row in framed], axis=0))
