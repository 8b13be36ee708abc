"""The one training loop: for the tokenizer, for stage 1 and for every captioner.

Update ``s`` depends on the weights, the seed and ``s`` alone, so a killed run continues where its last
state was and ends with the same bytes.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from procap.errors import FULL, BadInput
from procap.report import Report
from procap.training.checkpoint import (
    clone_weights,
    newest_state,
    optimiser_tensors,
    restore_optimiser,
    save_state,
    with_prefix,
    without_prefix,
)
from procap.training.interruption import undisturbed
from procap.training.optimiser import ScheduleName, schedule_factor
from procap.training.randomness import torch_generator
from procap.training.team import Team, alone

Terms = Callable[
    [int, torch.Generator, Sequence[slice]], Iterable[tuple[Mapping[str, Tensor], Mapping[str, float]]]
]
"""(update, generator, shares) -> for each share of the update's batch: (loss terms to sum, further readings).

Terms and readings of all shares of a batch add up to those of the batch; what chance decides is decided for the
whole batch, whoever computes which share.
"""

STATE_SECONDS = 20.0
"""A running training writes its state so often, ..."""
STATE_COST = 20
"""... but leaves so many times as long between two as one takes."""
REPORT_EVERY = 20
BAD_IN_A_ROW = 10
"""So many updates left out one after another end the training."""


@dataclass(frozen=True)
class Plan:
    """How long and how fast."""

    steps: int
    warmup: float
    """Share of the planned steps in which the learning rate rises."""
    validate_every: int
    seed: int
    batch: int
    """Pairs (or pictures) per update, of all processes together."""
    schedule: ScheduleName = "cosine"
    planned: int | None = None
    """Updates that the schedule is made for, at least ``steps``; None: ``steps``."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    accumulate: int = 1
    """Parts in which each process computes its share of a batch, one after another."""
    patience: int | None = None
    """So many looks at the validation split without a better one end the training; None: it goes to its end."""
    on_bad_loss: Literal["stop", "skip"] = "stop"
    spike: float | None = None
    """A loss so many times the mean of the last ``REPORT_EVERY`` is bad, as is one that is not finite."""

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
    readings: dict[str, list[float]] = field(default_factory=dict)
    """Sum and number of each since the last report; not all updates have all of them."""
    losses: list[float] = field(default_factory=list)
    """The last ones, which say what a spike is."""
    skipped: int = 0
    skipped_in_a_row: int = 0

    @property
    def validated(self) -> bool:
        """Whether the weights of this update were looked at."""
        return any(row["split"] == "val" for row in self.history[-2:] if row["step"] == self.step)

    def out_of_patience(self, patience: int | None) -> bool:
        """Whether so many looks at the validation split brought nothing better."""
        if patience is None:
            return False
        return sum(row["split"] == "val" and row["step"] > self.best_step for row in self.history) >= patience


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
    team: Team = alone,
    names: Callable[[int], Sequence[str]] | None = None,
    learned: Callable[[Mapping[str, float]], None] | None = None,
) -> Progress:
    """Train ``module`` in place and leave it with the weights of the best validation.

    ``select`` names the number of ``validate`` that is to be large; None: the last weights count. ``state`` is
    the folder of the resume states, ``names`` gives the ids of an update's batch, ``learned`` hears the readings
    of the whole batch after an update and may change buffers. Whatever ends the training early, the last finished
    update is kept. Raises BadInput for a loss that is not finite, a spike, a full disk.
    """
    training = _Training(module, optimiser, terms, plan, validate, select, state, report, what, team, names, learned)
    if team.size == 1:
        return training.run()
    with undisturbed() as signals:  # all processes must stop after the same update
        training.signals = signals
        return training.run()


@dataclass
class _Training:
    module: nn.Module
    optimiser: torch.optim.Optimizer
    terms: Terms
    plan: Plan
    validate: Callable[[], Mapping[str, float]]
    select: str | None
    state: Path
    report: Report
    what: str
    team: Team
    names: Callable[[int], Sequence[str]] | None
    learned: Callable[[Mapping[str, float]], None] | None
    signals: list[int] = field(default_factory=list)

    def run(self) -> Progress:
        self.shares = self.team.shares(self.plan.batch, self.plan.accumulate)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.weights = [weight for group in self.optimiser.param_groups for weight in group["params"]]
        self.progress, self.best = self._resume()
        self.saved, self.saved_at, self.cost = self.progress.step, time.monotonic(), 0.0
        self.seconds, self.stopping = 0.0, False
        self.versions: list[int] | None = self._versions()
        try:
            self._work()
        except BaseException:
            if self.versions == self._versions() and self.saved < self.progress.step:
                self._save()
            raise
        self.module.load_state_dict(self.best)
        self.module.eval()
        return self.progress

    def _work(self) -> None:
        self.first = first = self.progress.step
        if first and not self._over():
            self.report.note(f"{self.what}: continuing at update {first} of {self.plan.steps}")
            self._look()
        last = first if self._over() else self.plan.steps
        for step in self.report.progress(range(first, last), self.what, self.plan.steps, first):
            begun = time.monotonic()
            self._update(step)
            self.seconds += time.monotonic() - begun
            self.report.now(self._now())
            if self.stopping:
                break
            self._look()
            if time.monotonic() - self.saved_at > max(STATE_SECONDS, STATE_COST * self.cost):
                self._save()
            if self._over():
                break
        if self.saved < self.progress.step:
            self._save()
        if self.stopping and not self.signals:
            self.signals.append(signal.SIGTERM)  # another process of the team was asked to end
        if self.progress.step < self.plan.steps and self._over():
            self.report.note(f"{self.what}: ends at update {self.progress.step}, for nothing better came any more")

    def _over(self) -> bool:
        done = self.progress.step >= self.plan.steps and self.progress.validated
        return done or self.progress.out_of_patience(self.plan.patience)

    def _update(self, step: int) -> None:
        """One update of the weights, unless the batch is bad and left out."""
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.plan.rate(step)
        self.module.train()
        self.optimiser.zero_grad(set_to_none=True)
        seen: dict[str, float] = {}
        for losses, readings in self.terms(step, torch_generator(self.plan.seed, self.what, step), self.shares):
            total = sum(losses.values(), torch.zeros(()))
            total.backward()
            for name, value in {"loss": total.item(), **readings}.items():
                seen[name] = seen.get(name, 0.0) + value
        seen = self.team.add_up(self.weights, seen | {"stopping": float(bool(self.signals))})
        self.stopping = seen.pop("stopping") > 0
        seen["gradient_norm"] = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.plan.clip))
        problem = self._problem(seen["loss"], seen["gradient_norm"])
        if problem:
            self._complain(problem, step)
        with undisturbed():
            self.versions = None
            if not problem:
                self.optimiser.step()
                if self.learned is not None:
                    self.learned(seen)
            self._count(None if problem else seen)
            self.versions = self._versions()

    def _problem(self, loss: float, norm: float) -> str | None:
        recent, spike = self.progress.losses, self.plan.spike
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the norm of the gradient is {norm}"
        if spike and len(recent) == REPORT_EVERY and loss > spike * sum(recent) / len(recent):
            return f"the loss is {loss:.4g}, over {spike:g} times the mean of the last {len(recent)}"
        return None

    def _complain(self, problem: str, step: int) -> None:
        """Say that an update is left out; raises BadInput where none may be, or too many were."""
        batch = f"update {step}" + (f", pairs {', '.join(self.names(step))}" if self.names else "")
        in_a_row = self.progress.skipped_in_a_row + 1
        if self.plan.on_bad_loss == "skip" and in_a_row < BAD_IN_A_ROW:
            return self.report.note(f"{self.what}: {problem}; left out: {batch}")
        raise BadInput(
            f"{self.what}: {problem} at update {step}" + (f", the {in_a_row}th in a row" if in_a_row > 1 else ""),
            where=batch,
            expected="a finite loss" + (" that is no spike" if self.plan.spike else ""),
            do="look at these pairs, or lower the learning rate; on_bad_loss: skip leaves such batches out",
        )

    def _count(self, seen: Mapping[str, float] | None) -> None:
        progress = self.progress
        progress.step += 1
        if seen is None:
            progress.skipped += 1
            progress.skipped_in_a_row += 1
            return
        for name, value in seen.items():
            before, count = progress.readings.get(name, (0.0, 0.0))
            progress.readings[name] = [before + value, count + 1]
        progress.losses = [*progress.losses, seen["loss"]][-REPORT_EVERY:]
        progress.skipped_in_a_row = 0

    def _now(self) -> dict[str, float]:
        rate = max(group["lr"] for group in self.optimiser.param_groups)
        return {"loss": (self.progress.losses or [math.nan])[-1], "rate": rate, "pairs/s": self._speed()}

    def _speed(self) -> float:
        return (self.progress.step - self.first) * self.plan.batch / max(self.seconds, 1e-9)

    def _look(self) -> None:
        """Report and validate where it is time to."""
        progress, last = self.progress, self.progress.step == self.plan.steps
        if progress.readings and (progress.step % REPORT_EVERY == 0 or last):
            means = {name: total / count for name, (total, count) in progress.readings.items()}
            means["rate"] = self.plan.rate(progress.step - 1)
            with undisturbed():
                self._record("train", means | ({"skipped": float(progress.skipped)} if progress.skipped else {}))
                progress.readings = {}
        if (progress.step % self.plan.validate_every == 0 or last) and not progress.validated:
            self.module.eval()
            numbers = self.team.told(dict(self.validate()) if self.team.leads else None)
            quality = float(progress.step) if self.select is None else numbers[self.select]
            with undisturbed():
                if quality > progress.best:
                    progress.best, progress.best_step = quality, progress.step
                    self.best = clone_weights(self.module)
                self._record("val", numbers)

    def _record(self, split: str, numbers: Mapping[str, float]) -> None:
        self.progress.history.append({"step": self.progress.step, "split": split, **numbers})
        told = {f"{split}_{name}": value for name, value in numbers.items()}
        if split == "train":
            told["train_pairs_per_second"] = self._speed()
        self.report.metrics(told, self.progress.step)

    def _versions(self) -> list[int]:
        """They differ as soon as anything changed a weight or a buffer."""
        return [tensor._version for tensor in (*self.module.parameters(), *self.module.buffers())]

    def _save(self) -> None:
        begun, versions = time.monotonic(), self.versions
        self.versions = None  # a state that cannot be written is not tried again
        if self.team.leads:
            tensors = {
                **with_prefix("module/", dict(self.module.state_dict())),
                **with_prefix("best/", self.best),
                **with_prefix("optimiser/", optimiser_tensors(self.optimiser)),
            }
            try:
                save_state(self.state, self.progress.step, tensors, vars(self.progress))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                raise self._no_room(error, tensors) from None
        self.saved, self.versions = self.progress.step, versions
        self.saved_at = time.monotonic()
        self.cost = self.saved_at - begun

    def _no_room(self, error: OSError, tensors: Mapping[str, Tensor]) -> BadInput:
        needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        return BadInput(
            f"{self.what}: the state after update {self.progress.step} cannot be written: {error.strerror}",
            where=str(error.filename),
            expected=f"room for {needed / 1e6:.1f} MB; {shutil.disk_usage(self.state).free / 1e6:.1f} MB are free",
            do=f"make room and run it again: it continues at update {self.saved}",
        )

    def _resume(self) -> tuple[Progress, dict[str, Tensor]]:
        tensors, facts, damaged = newest_state(self.state)
        known = {one.name for one in fields(Progress)}
        progress = Progress(**{name: value for name, value in (facts or {}).items() if name in known})
        if self.team.told(progress.step) != progress.step:
            raise BadInput(
                f"{self.what}: the processes of a team found different states",
                where=str(self.state),
                expected="one folder that all of them see",
                do="put the project on a disk that all machines share",
            )
        for path in damaged:
            self.report.note(f"{self.what}: {path.name} is damaged and left out")
        if self.team.leads:
            for path in (*damaged, *self.state.glob("*.partial")):
                path.unlink(missing_ok=True)
        if facts is None:
            return progress, clone_weights(self.module)
        self.module.load_state_dict(without_prefix("module/", tensors))
        restore_optimiser(self.optimiser, without_prefix("optimiser/", tensors))
        return progress, without_prefix("best/", tensors)
