"""Interpolation that a trained captioner can run by itself."""

from functools import partial

import torch

from procap.procedure.interpolation import Midpoint, crossfade


def load_midpoint(method: str, device: torch.device) -> Midpoint:
    """``rife`` or ``crossfade``."""
    match method:
        case "rife":
            from procap.checkpoints.rife import load_rife, midpoint

            return partial(midpoint, load_rife(device))
        case "crossfade":
            return crossfade
    raise ValueError(f"no interpolation '{method}' that needs nothing but two pictures")
