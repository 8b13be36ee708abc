"""Interpolation that a trained captioner can run by itself."""

from functools import partial
from pathlib import Path

import torch

from procap.procedure.interpolation import Midpoint, crossfade


def load_midpoint(method: str, device: torch.device, weights: Path | None = None) -> Midpoint:
    """``rife``, with these weights or those of its package, or ``crossfade``."""
    match method:
        case "rife":
            from procap.checkpoints.rife import load_rife, midpoint

            return partial(midpoint, load_rife(device, weights))
        case "crossfade":
            return crossfade
    raise ValueError(f"no interpolation '{method}' that needs nothing but two pictures")
