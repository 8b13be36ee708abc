"""The one training loop: for the tokenizer, for stage 1 and for every captioner.

Update ``s`` depends on the weights, the seed and ``s`` alone, so a killed run continues where its last
checkpoint was and ends with the same bytes.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from procap.report import Report
from procap.training.checkpoint import (
    clone_weights,
    load_tensors,
    optimiser_tensors,
    restore_optimiser,
    save_tensors,
    with_prefix,
    without_prefix,
)
from procap.training.optimiser import ScheduleName, schedule_factor
from procap.training.randomness import torch_generator

Terms = Callable[[int, torch.Generator], tuple[Mapping[str, Tensor], Mapping[str, float]]]
"""(update, generator) -> (loss terms to sum, further readings to report)."""

CHECKPOINT_SECONDS = 20.0
REPORT_EVERY = 20


@dataclass(frozen=True)
class Plan:
    """How long and how fast."""

    steps: int
    warmup: float
    """Share of the planned steps in which the learning rate rises."""
    validate_every: int
    seed: int
    schedule: ScheduleName = "cosine"
    planned: int | None = None
    """Updates that the schedule is made for, at least ``steps``; None: ``steps``."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def rate(self, step: int) -> float:
        """Factor of the learning rate at an update, in [0, 1]."""
        return schedule_factor(self.schedule, step, self.planned or self.steps, self.warmup)


@dataclass
class Progress:
    """Where a training is."""

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row per report: step, split (train or val), and numbers."""
    best: float = -math.inf
    best_step: int = 0


def train(
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    terms: Terms,
    plan: Plan,
    *,
    validate: Callable[[], Mapping[str, float]],
    select: str | None,
    state: Path,
    report: Report,
    what: str,
) -> Progress:
    """Train ``module`` in place and leave it with the weights of the best validation.

    ``select`` names the number of ``validate`` that is to be large; None: the last weights count. ``state`` is
    the folder of the resume checkpoint. Raises FloatingPointError as soon as a loss is not finite.
    """
    checkpoint = state / "training.safetensors"
    progress, best = _resume(checkpoint, module, optimiser)
    if progress.step:
        report.note(f"{what}: continuing at update {progress.step} of {plan.steps}")
    base_rates = [group["lr"] for group in optimiser.param_groups]
    saved, sums, count = time.monotonic(), {}, 0  # type: ignore[var-annotated]
    for step in report.progress(range(progress.step, plan.steps), what, plan.steps, progress.step):
        for group, rate in zip(optimiser.param_groups, base_rates, strict=True):
            group["lr"] = rate * plan.rate(step)
        module.train()
        losses, readings = terms(step, torch_generator(plan.seed, what, step))
        total = sum(losses.values(), torch.zeros(()))
        if not torch.isfinite(total):
            raise FloatingPointError(f"{what}: the loss is {float(total)} at update {step}")
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), plan.clip)
        optimiser.step()
        seen = {"loss": total.item(), "gradient_norm": float(norm), **readings}
        sums = {name: sums.get(name, 0.0) + value for name, value in seen.items()}
        count += 1
        progress.step = step + 1
        if progress.step % REPORT_EVERY == 0 or progress.step == plan.steps:
            means = {name: value / count for name, value in sums.items()}
            _record(progress, "train", means | {"rate": plan.rate(step)}, report)
            sums, count = {}, 0
        if progress.step % plan.validate_every == 0 or progress.step == plan.steps:
            module.eval()
            numbers = dict(validate())
            _record(progress, "val", numbers, report)
            quality = float(progress.step) if select is None else numbers[select]
            if quality > progress.best:
                progress.best, progress.best_step, best = quality, progress.step, clone_weights(module)
        on_boundary = count == 0
        if on_boundary and (time.monotonic() - saved > CHECKPOINT_SECONDS or progress.step == plan.steps):
            _save(checkpoint, module, optimiser, progress, best)
            saved = time.monotonic()
    module.load_state_dict(best)
    module.eval()
    return progress


def _record(progress: Progress, split: str, numbers: Mapping[str, float], report: Report) -> None:
    progress.history.append({"step": progress.step, "split": split, **numbers})
    report.metrics({f"{split}_{name}": value for name, value in numbers.items()}, progress.step)


def _save(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, best: dict[str, Tensor]
) -> None:
    tensors = {
        **with_prefix("module/", dict(module.state_dict())),
        **with_prefix("best/", best),
        **with_prefix("optimiser/", optimiser_tensors(optimiser)),
    }
    save_tensors(path, tensors, vars(progress))


def _resume(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor]]:
    if not path.exists():
        return Progress(), clone_weights(module)
    tensors, facts = load_tensors(path)
    module.load_state_dict(without_prefix("module/", tensors))
    restore_optimiser(optimiser, without_prefix("optimiser/", tensors))
    return Progress(**facts), without_prefix("best/", tensors)
