"""Optimisers and schedules: those of the reference code do what it did, number for number."""

import itertools
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from procap import config
from procap.captioners.decoding import word_loss
from procap.datasets.vocabulary import BOS, PAD
from procap.models.layers import UnbiasedNorm
from procap.training.loop import Plan
from procap.training.optimiser import OptimiserName, ScheduleName, make_optimiser, schedule_factor
from tests.small import generator

PROJECT = Path(__file__).parents[2]
GIVEN = json.loads((PROJECT / "tests" / "reference" / "optimisation.json").read_text(encoding="utf-8"))
VECTORS = PROJECT / ".." / "shared" / "reference" / "official" / "vectors_samplers.npz"


@pytest.mark.shared
@pytest.mark.skipif(not VECTORS.exists(), reason="../shared is not there")
def test_the_numbers_here_are_those_of_the_reference():
    there = np.load(VECTORS)
    for name, values in GIVEN.items():
        assert np.array_equal(np.asarray(values, there[name].dtype), there[name])


def test_parameters_and_factories_know_the_same_names():
    assert get_args(get_args(config.Optimiser)[0]) == get_args(OptimiserName)
    assert get_args(get_args(config.Schedule)[0]) == get_args(ScheduleName)


def test_stage_one_warms_up_along_a_logarithm():
    """200 000 updates, 5000 of them rising to 1e-4; where the reference continues a run it does not rise again."""
    rates = [1e-4 * Plan(200_000, 0.025, 1, 0, 1, "log_warmup").rate(step) for step in GIVEN["stage1_steps"]]
    assert rates == pytest.approx(GIVEN["stage1_lr"], rel=1e-9)
    resumed = [1e-4 * Plan(200_000, 0.0, 1, 0, 1, "log_warmup").rate(step) for step in GIVEN["stage1_steps"]]
    assert resumed == pytest.approx(GIVEN["stage1_lr_resumed"], rel=1e-9)


@pytest.mark.parametrize("steps", [1000, 560])
def test_stage_two_rises_and_falls_straight_and_may_stop_early(steps):
    plan = Plan(steps, 0.1, 1, 0, 1, "warmup_linear", planned=1000)
    factors = [plan.rate(step) for step in GIVEN["stage2_steps"]]
    assert factors == pytest.approx(GIVEN["stage2_factor"], abs=1e-9)


@pytest.mark.parametrize("name", get_args(ScheduleName))
def test_no_schedule_leaves_0_to_1_however_short_the_training(name):
    for steps, warmup in itertools.product((1, 2, 3, 50), (0.0, 0.03, 0.5, 1.0)):
        factors = [schedule_factor(name, step, steps, warmup) for step in range(steps)]
        assert all(0 <= factor <= 1 for factor in factors)
        assert steps < 50 or max(factors) > 0.9


def bert_adam(weight: torch.nn.Module, rates: list[float], decay: float):
    parts = [torch.nn.ParameterDict({name: value}) for name, value in weight.items()]
    return make_optimiser("bert_adam", list(zip(parts, rates, strict=True)), decay)


def test_bert_adam_takes_the_reference_steps():
    tensors = {name: torch.tensor(values) for name, values in GIVEN.items() if name.startswith("bertadam")}
    weights = {name: torch.nn.Parameter(tensors[f"bertadam_{name}"].clone()) for name in ("weight", "bias")}
    optimiser = bert_adam(weights, [0.02, 0.05], 0.01)
    base = [group["lr"] for group in optimiser.param_groups]
    for update in range(5):
        for group, rate in zip(optimiser.param_groups, base, strict=True):
            group["lr"] = rate * schedule_factor("warmup_linear", update, 20, 0.1)
        for name, weight in weights.items():
            weight.grad = tensors[f"bertadam_{name}_gradients"][update].clone()
        optimiser.step()
        for name, weight in weights.items():
            torch.testing.assert_close(weight.data, tensors[f"bertadam_{name}_after"][update], rtol=2e-6, atol=2e-6)


def test_every_optimiser_takes_each_weight_once_and_decays_by_its_own_rule():
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), UnbiasedNorm(8))
    module.query = torch.nn.Parameter(torch.zeros(8))
    parts, names = [(module[0], 1.0), (module, 2.0)], {id(p): name for name, p in module.named_parameters()}
    decayed = {}
    for kind in get_args(OptimiserName):
        groups = make_optimiser(kind, parts, 0.1).param_groups
        flat = [(names[id(p)], g["lr"], g["weight_decay"]) for g in groups for p in g["params"]]
        assert sorted(name for name, *_ in flat) == sorted(names.values())
        assert all(rate == (1.0 if name.startswith("0.") else 2.0) for name, rate, _ in flat)
        decayed[kind] = {name for name, _, decay in flat if decay}
    assert decayed["adamw"] == {"0.weight"}
    assert decayed["bert_adam"] == {"0.weight", "1.weight", "2.gamma", "2.beta", "query"}


@pytest.mark.parametrize("kind", get_args(OptimiserName))
def test_every_optimiser_learns(kind):
    layer = torch.nn.Linear(4, 1)
    optimiser, x = make_optimiser(kind, [(layer, 0.05)], 0.0), torch.randn(64, 4, generator=generator())
    losses = []
    for _ in range(100):
        optimiser.zero_grad()
        losses.append((layer(x)[:, 0] - x.sum(1)).square().mean())
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < 0.1 * losses[0]


def place(labels: list[int]) -> torch.Tensor:
    """The reference's labels as ours: 0 is [PAD] here and left out, so class 0 changes places with class 5."""
    return torch.tensor([[BOS, *({-1: PAD, 0: 5}.get(label, label) for label in labels)]])


def test_the_smoothed_loss_is_the_reference_loss():
    logits = torch.tensor(GIVEN["smoothing_logits"])
    logits[:, [0, 5]] = logits[:, [5, 0]]
    logits = torch.cat([logits, torch.zeros(1, 11)])[None]
    words, rows = place(GIVEN["smoothing_labels"]), GIVEN["smoothing_loss_per_row"]
    assert float(word_loss(logits, words, 0.1, "sum")) == pytest.approx(GIVEN["smoothing_loss"], rel=1e-5)
    counted = sum(label >= 0 for label in GIVEN["smoothing_labels"])
    assert float(word_loss(logits, words, 0.1, "mean")) == pytest.approx(sum(rows) / counted, rel=1e-5)


def test_the_smoothed_loss_is_zero_at_its_target_and_nowhere_less():
    words = torch.tensor([[BOS, 5, 6, PAD]])
    target = torch.full((1, 4, 11), 0.1 / 10)
    target[0, 0, 5] = target[0, 1, 6] = 0.9
    assert float(word_loss(target.log(), words, 0.1, "sum")) == pytest.approx(0, abs=1e-5)
    for seed in range(5):
        moved = target.log() + 0.3 * torch.randn(1, 4, 11, generator=generator(seed))
        assert word_loss(moved, words, 0.1, "sum") > 1e-3
