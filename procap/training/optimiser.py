"""AdamW with the usual exceptions from weight decay."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def adamw(parts: Sequence[tuple[nn.Module, float]], weight_decay: float) -> torch.optim.AdamW:
    """One optimiser over modules with a learning rate each; a weight counts for the first module that has it.

    Matrices decay; vectors (biases, norms, learned single vectors) do not.
    """
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()
    for module, rate in parts:
        fresh = [p for p in module.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(map(id, fresh))
        for decay, chosen in (
            (weight_decay, [p for p in fresh if p.ndim >= 2]),
            (0.0, [p for p in fresh if p.ndim < 2]),
        ):
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8)
