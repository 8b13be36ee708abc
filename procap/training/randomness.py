"""Generators from a seed and a place in the work, so that a resumed run draws what an uninterrupted one draws."""

import hashlib
import json
from functools import lru_cache

import numpy as np
import torch


def derived_seed(*parts: int | str) -> int:
    """One 63-bit seed from a seed and the names or numbers of what it is for."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big") >> 1


def torch_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator for this place in the work."""
    return torch.Generator().manual_seed(derived_seed(*parts))


@lru_cache(maxsize=4)
def _order(rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(rows)


def batch_rows(step: int, rows: int, batch: int, seed: int) -> np.ndarray:
    """Row numbers of update ``step``: shuffled epochs one after another, no row left out."""
    places = np.arange(step * batch, (step + 1) * batch)
    return np.array([_order(rows, seed, int(place // rows))[place % rows] for place in places])
