"""The masks and warps of the published numbers of stage 1, made by our own functions from what is said of them."""

import json

import numpy as np
import torch

from procap.procedure.masking import STRATEGIES, block_mask, rectangle
from procap.procedure.warping import Swaps, shift_colours, shuffle_frames, swap_frames, transform
from tests.formula import formula_kept

CHANNELS = torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
PATCH, ENTIRE, IN, OUT = range(1, 5)
"""Numbers of the masking strategies."""


def warped_pictures(expected: dict[str, np.ndarray], case: str, pictures: torch.Tensor) -> torch.Tensor:
    """Each procedure with its own warp."""
    warps, theta = json.loads(str(expected[f"{case}_warp"])), torch.from_numpy(expected[f"{case}_warp_theta"])
    frame, pair, source = (
        torch.tensor([warp.get(key, 0) for warp in warps]) for key in ("frame", "source", "source_frame")
    )
    orders = torch.tensor([warp.get("perm", [0, 1, 2, 3]) for warp in warps])
    shifts = torch.stack([warp.get("shift", 0.0) * CHANNELS[warp.get("mode", 0)] for warp in warps])
    rows = torch.arange(4)
    swapped, shuffled = swap_frames(pictures, Swaps(frame, pair, source)), shuffle_frames(pictures, orders)
    coloured, turned = pictures.clone(), pictures.clone()
    coloured[rows, frame] = shift_colours(pictures[rows, frame], shifts)
    turned[rows, frame] = transform(pictures[rows, frame], theta)
    kinds = torch.tensor([warp["kind"] for warp in warps])
    return torch.stack([swapped, shuffled, coloured, turned])[kinds, rows]


def kept_places(expected: dict[str, np.ndarray], case: str) -> torch.Tensor:
    """(b, t, n), True where a place is kept."""
    inside = rectangle(14, *torch.from_numpy(expected[f"{case}_mask_rectangle"]).T[..., None])
    masks = {
        PATCH: torch.from_numpy(np.stack([formula_kept(f"stage1/{case}/keep/{b}", 784, 0.2) for b in range(4)])),
        ENTIRE: torch.zeros(4, 784, dtype=torch.bool),
        IN: block_mask(inside, 4).flatten(1),
        OUT: ~block_mask(inside, 4).flatten(1),
    }
    strategy = expected[f"{case}_mask_strategy"].tolist()
    assert [STRATEGIES[number - 1] for number in (PATCH, ENTIRE, IN, OUT)] == list(STRATEGIES)
    return torch.stack([masks[number][b] for b, number in enumerate(strategy)]).unflatten(1, (4, 196))
