"""Several processes that train one model, each with a share of every batch; torchrun starts them.

Gradients and losses of the shares are parts of the whole batch's, so they are added up and every process makes the
same update; the number of processes changes no batch, only the order in which numbers are added.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from procap.errors import BadInput

PATIENCE = timedelta(hours=12)
"""The others wait so long for the first one's validation; torchrun ends them all where one dies."""


@dataclass(frozen=True)
class Team:
    """Which of how many processes this one is."""

    number: int = 0
    size: int = 1
    device: torch.device | None = None

    @property
    def leads(self) -> bool:
        """Whether this one writes files, validates and reports."""
        return self.number == 0

    def shares(self, batch: int, parts: int) -> list[slice]:
        """This process' shares of a batch that every process computes in ``parts`` parts, one after another.

        Sizes differ by one at most. Raises BadInput where the batch is smaller than all parts.
        """
        total = self.size * parts
        if batch < total:
            raise BadInput(
                f"a batch of {batch} cannot be shared by {self.size} processes in {parts} parts each",
                where="params.yaml: batch, accumulate, hardware.devices",
                expected=f"a batch of at least {total}",
                do="raise batch, or lower accumulate or hardware.devices",
            )
        ends = np.linspace(0, batch, total + 1).round().astype(int).tolist()
        mine = range(self.number * parts, (self.number + 1) * parts)
        return [slice(ends[place], ends[place + 1]) for place in mine]

    def add_up(self, weights: Sequence[Tensor], numbers: Mapping[str, float]) -> dict[str, float]:
        """Add up the gradients of all processes, in place, and these numbers, which all of them name alike.

        A weight that has no gradient anywhere keeps none.
        """
        if self.size == 1:
            return dict(numbers)
        from torch import distributed

        names = sorted(numbers)
        told = [numbers[name] for name in names] + [float(weight.grad is not None) for weight in weights]
        sums = torch.tensor(told, dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        there = [weight for weight, count in zip(weights, sums[len(names) :].tolist(), strict=True) if count]
        for kind in {weight.dtype for weight in there}:
            group = [weight for weight in there if weight.dtype == kind]
            for weight in group:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            flat = torch.cat([weight.grad.reshape(-1) for weight in group])  # type: ignore[union-attr]
            distributed.all_reduce(flat)
            for weight, summed in zip(group, flat.split([weight.numel() for weight in group]), strict=True):
                weight.grad.copy_(summed.view_as(weight))  # type: ignore[union-attr]
        return dict(zip(names, sums.tolist(), strict=False))

    def told(self, value: Any) -> Any:
        """What the first process has for ``value``."""
        if self.size == 1:
            return value
        from torch import distributed

        values = [value]
        distributed.broadcast_object_list(values, src=0, device=self.device)
        return values[0]


alone = Team()


@contextmanager
def join_team(device: torch.device) -> Iterator[Team]:
    """The team that torchrun made this process a part of; without torchrun, this process is alone."""
    if not is_member():
        yield alone
        return
    from torch import distributed

    first = not distributed.is_initialized()
    if first:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    yield Team(distributed.get_rank(), distributed.get_world_size(), device)
    if first:  # and no error: it might wait for those who died
        distributed.destroy_process_group()


def is_member(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in environment


def member(environment: Mapping[str, str] = os.environ) -> int:
    """Its number in the whole team, 0 without one."""
    return int(environment["RANK"]) if is_member(environment) else 0
