"""Optimisers by name, each with its rule of what decays, and the schedules of the learning rate."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimiserName = Literal["adamw", "adam", "bert_adam"]
ScheduleName = Literal["cosine", "log_warmup", "warmup_linear"]

SMALLEST_RATE = 0.01
"""Where ``log_warmup`` begins, as a share of the learning rate."""


def make_optimiser(
    name: OptimiserName, parts: Sequence[tuple[nn.Module, float]], weight_decay: float
) -> torch.optim.Optimizer:
    """One optimiser over modules with a learning rate each; a weight counts for the first module that has it.

    adamw: ours; matrices decay, vectors (biases, norms, learned single vectors) do not.
    adam: stage 1 of the reference code; ``weight_decay`` (there 0) is part of every gradient.
    bert_adam: stage 2 of the reference code; all decays (norms and embeddings, too) but what is called a bias.
    """
    match name:
        case "adamw":
            groups = _groups(parts, weight_decay, lambda _, weight: weight.ndim >= 2)
            return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, fused=True)
        case "adam":
            groups = _groups(parts, weight_decay, lambda *_: True)
            return torch.optim.Adam(groups, betas=(0.9, 0.999), eps=1e-8, fused=True)
        case "bert_adam":
            return BertAdam(_groups(parts, weight_decay, lambda path, _: "bias" not in path))


def _groups(
    parts: Sequence[tuple[nn.Module, float]], weight_decay: float, decays: Callable[[str, Tensor], bool]
) -> list[dict[str, Any]]:
    """Parameter groups; ``decays`` takes a weight's name within its module, and the weight."""
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()
    for module, rate in parts:
        chosen: dict[bool, list[Tensor]] = {True: [], False: []}
        for path, weight in module.named_parameters():
            if weight.requires_grad and id(weight) not in seen:
                seen.add(id(weight))
                chosen[decays(path, weight)].append(weight)
        for decay, weights in zip((weight_decay, 0.0), chosen.values(), strict=True):
            if weights:
                groups.append({"params": weights, "lr": rate, "weight_decay": decay})
    return groups


class BertAdam(torch.optim.Optimizer):
    """Adam as BERT's first code had it: no bias correction, each gradient clipped to norm 1, decoupled decay.

    Betas 0.9 and 0.999, eps 1e-6 (reference code, stage 2).
    """

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
                    update = _bert_update(weight.grad, state["mean"], state["square"])
                    weight.sub_(group["lr"] * (update + group["weight_decay"] * weight))


def _bert_update(gradient: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    gradient = gradient * (1 / (gradient.norm() + 1e-6)).clamp(max=1)
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    return mean / (square.sqrt() + 1e-6)


def schedule_factor(name: ScheduleName, step: int, steps: int, warmup: float) -> float:
    """Factor of the learning rate at an update, in [0, 1]; it rises for ``warmup``, a share of ``steps``.

    cosine: ours; straight up, then along a cosine to almost zero.
    log_warmup: stage 1 of the reference code; from a hundredth along a logarithm, then constant (``warmup`` 0:
    constant from the start, as where the reference continues a run).
    warmup_linear: stage 2 of the reference code; straight up from 0 at the first update, then straight down to 0.
    """
    match name:
        case "cosine":
            rising = max(1, round(warmup * steps))
            if step < rising:
                return (step + 1) / rising
            return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
        case "log_warmup":
            rising = round(warmup * steps)
            if step >= rising:
                return 1.0
            return SMALLEST_RATE + (1 - SMALLEST_RATE) * math.log(max(step, 1)) / math.log(max(rising, 2))
        case "warmup_linear":
            done = step / steps
            return done / warmup if done < warmup else max(0.0, (1 - done) / (1 - warmup))
