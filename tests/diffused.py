"""A toy world for the diffusion captioners: four places, one of which may change, and sentences about it."""

from functools import cache
from typing import Any

import torch

from procap.captioners import Batch
from procap.captioners.decider import Decider
from procap.captioners.mct_ccdiff import MCTCCDiff
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS
from procap.models.build import build, frozen
from procap.training.optimiser import make_optimiser
from tests.small import decider_config, generator, mct_ccdiff_config

LENGTH = 7
THE, THING, IS, NOW, WAS, MADE, ALL, SAME = range(len(SPECIALS), len(SPECIALS) + 8)
KINDS = list(range(SAME + 1, SAME + 5))
"""Words for what a place becomes."""
VOCABULARY = KINDS[-1] + 1
PLACES, WIDTH = 16, 8


def sentence(*words: int) -> list[int]:
    return [BOS, *words, EOS, *[PAD] * (LENGTH - len(words) - 2)]


def ways(kind: int | None) -> list[list[int]]:
    """Both captions of a pair."""
    if kind is None:
        return [sentence(ALL, IS, SAME), sentence(THE, SAME, IS, NOW)]
    return [sentence(THE, THING, IS, KINDS[kind], NOW), sentence(KINDS[kind], THING, WAS, MADE)]


def world(pairs: int, seed: int = 0) -> tuple[Batch, torch.Tensor]:
    """(pairs, true changes as (b, n)); every second pair is unchanged but for a little noise."""
    draw = generator(seed)
    kinds = torch.eye(WIDTH)[: len(KINDS)] * 3
    before = torch.randn(pairs, PLACES, WIDTH, generator=draw)
    after = before + 0.02 * torch.randn(before.shape, generator=draw)
    mask = torch.zeros(pairs, PLACES, dtype=torch.bool)
    captions = []
    for row in range(pairs):
        kind = None if row % 2 else int(torch.randint(len(KINDS), (), generator=draw))
        if kind is not None:
            place = int(torch.randint(PLACES, (), generator=draw))
            after[row, place] = kinds[kind]
            mask[row, place] = True
        captions.append(ways(kind))
    told = torch.tensor(captions)
    which = torch.randint(2, (pairs,), generator=draw)
    return Batch(torch.stack([before, after], 1), told[torch.arange(pairs), which], told), mask


def train(captioner: torch.nn.Module, updates: int, pairs: int = 24, rate: float = 4e-3) -> torch.nn.Module:
    """A new draw of the world at every update, the same ones for every captioner."""
    optimiser = make_optimiser("adamw", [(captioner, rate)], weight_decay=0.01)
    captioner.train()
    for step in range(updates):
        batch, _ = world(pairs, seed=1000 + step)
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - step / updates)
        optimiser.zero_grad()
        sum(captioner.loss(batch, generator=generator(step)).values()).backward()
        torch.nn.utils.clip_grad_norm_(captioner.parameters(), 1.0)
        optimiser.step()
        captioner.updated()
    return frozen(captioner)


@cache
def mct_ccdiff(updates: int = 150, **changes: Any) -> MCTCCDiff:
    config = mct_ccdiff_config(vocabulary=VOCABULARY, words=LENGTH, **changes)
    return train(build(lambda: MCTCCDiff(config), generator(0)), updates)


@cache
def decider(updates: int = 150, **changes: Any) -> Decider:
    config = decider_config(vocabulary=VOCABULARY, words=LENGTH, **changes)
    return train(build(lambda: Decider(config), generator(0)), updates)
