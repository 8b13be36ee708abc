"""The training loop: killed and continued it ends with the same bytes; the best weights are what it leaves."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from procap import files
from procap.errors import BadInput
from procap.report import Silent
from procap.training import loop
from procap.training.checkpoint import (
    clone_weights,
    load_tensors,
    optimiser_tensors,
    restore_optimiser,
    save_tensors,
)
from procap.training.loop import Plan, train
from procap.training.optimiser import make_optimiser
from procap.training.team import Team, alone
from tests.small import generator


class Killed(BaseException):
    """As a signal would end the process."""


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.nows: list[dict] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def now(self, values) -> None:
        self.nows.append(dict(values))


class Training:
    """A small network that learns noisy sums; every update draws from its generator."""

    def __init__(
        self, state, steps: int = 100, kill: int = -1, validate_every: int = 30, select: str | None = "good",
        optimiser: str = "adamw", team: Team = alone, **plan,
    ):  # fmt: skip
        self.module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            for weight in self.module.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator(1)) * 0.3)
        self.optimiser = make_optimiser(optimiser, [(self.module[0], 1e-2), (self.module, 3e-2)], 0.1)
        self.state, self.kill, self.select = state, kill, select
        self.plan = Plan(steps, 0.1, validate_every, seed=3, batch=16, **plan)
        self.report, self.team = Notes(), team
        self.validated: list[dict[str, torch.Tensor]] = []
        self.modes: list[bool] = []

    def terms(self, step: int, draw: torch.Generator, shares):
        if step == self.kill:
            raise Killed
        self.modes.append(self.module.training)
        x = torch.randn(16, 4, generator=draw)
        for share in shares:
            part = len(x[share]) / len(x)
            error = part * F.mse_loss(self.module(x[share])[:, 0], x[share].sum(1))
            size = part * 1e-3 * self.module[0].weight.square().sum()
            yield {"error": error, "size": size}, {"draw": part * float(x[0, 0])}

    def validate(self):
        self.modes.append(self.module.training)
        self.validated.append(clone_weights(self.module))
        x = torch.randn(64, 4, generator=generator(9))
        with torch.no_grad():
            return {"good": -float(F.mse_loss(self.module(x)[:, 0], x.sum(1)))}

    def run(self):
        return train(
            self.module, self.optimiser, self.terms, self.plan, validate=self.validate, select=self.select,
            state=self.state, report=self.report, what="test", names=lambda step: [f"pair {step}", "another"],
            team=self.team,
        )  # fmt: skip


@pytest.fixture
def always_save(monkeypatch):
    """A state after every update."""
    monkeypatch.setattr(files, "flush", lambda path: None)  # it waits for the disk
    monkeypatch.setattr(loop, "STATE_SECONDS", -1.0)
    monkeypatch.setattr(loop, "STATE_COST", -1.0)


@pytest.mark.parametrize(
    ("kills", "optimiser"),
    [([45], "adamw"), ([21, 61], "adamw"), ([99], "adamw"), ([5], "adamw"), ([45], "adam"), ([45], "bert_adam")],
)
def test_killed_and_continued_equals_uninterrupted(tmp_path, always_save, kills, optimiser):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = Training(tmp_path / "whole", optimiser=optimiser)
    expected = whole.run()
    for kill in kills:
        with pytest.raises(Killed):
            Training(tmp_path / "parts", kill=kill, optimiser=optimiser).run()
    parts = Training(tmp_path / "parts", optimiser=optimiser)
    got = parts.run()
    assert got == expected
    assert all(torch.equal(a, b) for a, b in zip(whole.module.parameters(), parts.module.parameters(), strict=True))
    saved = [(tmp_path / name / "state-000000100.safetensors").read_bytes() for name in ("whole", "parts")]
    assert saved[0] == saved[1]
    assert len(parts.modes) < len(whole.modes), "it began anew"


def test_a_state_with_facts_of_another_version_is_continued(tmp_path, always_save, monkeypatch):
    with pytest.raises(Killed):
        Training(tmp_path, kill=45).run()
    newest = loop.newest_state

    def older(state):
        tensors, facts, damaged = newest(state)
        return tensors, facts | {"count": 5}, damaged

    monkeypatch.setattr(loop, "newest_state", older)
    again = Training(tmp_path)
    assert again.run().step == 100
    assert again.report.notes[0] == "test: continuing at update 45 of 100"


def test_a_finished_training_is_not_repeated(tmp_path):
    Training(tmp_path).run()
    again = Training(tmp_path)
    progress = again.run()
    assert again.modes == []
    assert progress.step == 100


def test_a_reading_of_some_updates_is_told_as_the_mean_of_those(tmp_path):
    training = Training(tmp_path, steps=20)
    terms = training.terms

    def rare(step, draw, shares):
        for losses, readings in terms(step, draw, shares):
            yield losses, readings | ({"rare": float(step)} if step % 4 == 0 else {})

    training.terms = rare
    (told,) = (row for row in training.run().history if row["split"] == "train")
    assert told["rare"] == (0 + 4 + 8 + 12 + 16) / 5


def test_the_best_weights_are_restored(tmp_path):
    training = Training(tmp_path, validate_every=10)
    scores = iter([1.0, 5.0, 3.0, 5.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    validate = training.validate
    training.validate = lambda: validate() | {"good": next(scores)}
    progress = training.run()
    assert (progress.best, progress.best_step) == (5.0, 20), "of equals the first"
    assert len(training.validated) == 10
    assert all(torch.equal(training.module.state_dict()[name], w) for name, w in training.validated[1].items())
    assert not training.module.training


def test_without_selection_the_last_weights_count(tmp_path):
    training = Training(tmp_path, steps=35, select=None)
    progress = training.run()
    assert progress.best_step == 35
    assert [row["step"] for row in progress.history if row["split"] == "val"] == [30, 35]
    assert all(torch.equal(training.module.state_dict()[name], w) for name, w in training.validated[-1].items())


def test_it_learns_in_training_mode_and_validates_in_evaluation_mode(tmp_path):
    training = Training(tmp_path)
    progress = training.run()
    validated = [place for place, mode in enumerate(training.modes) if not mode]
    assert validated == [30, 61, 92, 103]
    scores = [row["good"] for row in progress.history if row["split"] == "val"]
    assert scores[-1] > scores[0] > -4
    losses = [row["loss"] for row in progress.history if row["split"] == "train"]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_it_at_once(tmp_path, value):
    training = Training(tmp_path)
    terms = training.terms
    before = []

    def spoiled(step, draw, shares):
        for losses, readings in terms(step, draw, shares):
            if step == 7:
                before.append(clone_weights(training.module))
                losses["error"] = losses["error"] * value
            yield losses, readings

    training.terms = spoiled
    with pytest.raises(BadInput, match=r"test: the loss is (nan|inf) at update 7\n.*update 7, pairs pair 7, another"):
        training.run()
    assert all(torch.equal(training.module.state_dict()[name], weight) for name, weight in before[0].items())


def test_the_learning_rate_rises_and_falls():
    plan = Plan(200, 0.1, 50, 0, 1)
    rates = [plan.rate(step) for step in range(200)]
    assert rates[:3] == pytest.approx([1 / 20, 2 / 20, 3 / 20])
    assert max(rates) == rates[19] == rates[20] == 1
    assert rates[110] == pytest.approx(0.5)
    assert all(a > b for a, b in itertools.pairwise(rates[20:]))
    assert 0 < rates[-1] < 1e-3
    plans = [Plan(n, share, 1, 0, 1) for n in (1, 2, 3) for share in (0.0, 0.5, 1.0)]
    assert all(0 < plan.rate(step) <= 1 for plan in plans for step in range(plan.steps))


def test_each_part_learns_at_its_own_rate(tmp_path):
    training = Training(tmp_path, steps=20)
    rates = []
    terms = training.terms

    def watched(step, draw, shares):
        rates.append([group["lr"] for group in training.optimiser.param_groups])
        return terms(step, draw, shares)

    training.terms = watched
    training.run()
    base = torch.tensor([1e-2, 1e-2, 3e-2, 3e-2])
    assert torch.allclose(torch.tensor(rates), torch.tensor([[training.plan.rate(s)] for s in range(20)]) * base)


def test_a_checkpoint_gives_back_every_bit(tmp_path):
    training = Training(tmp_path, steps=20)
    training.run()
    tensors = optimiser_tensors(training.optimiser) | {"half": torch.randn(3, generator=generator()).half()}
    facts = {"a": [1, 2.5, -float("inf")], "b": "ü"}
    for name in ("one", "two"):
        save_tensors(tmp_path / name, dict(reversed(tensors.items())) if name == "two" else tensors, facts)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    read, told = load_tensors(tmp_path / "one")
    assert told == facts
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in tensors.items())
    fresh = Training(tmp_path).optimiser
    restore_optimiser(fresh, {name: value for name, value in read.items() if name != "half"})
    assert fresh.state_dict()["state"].keys() == training.optimiser.state_dict()["state"].keys()
    for number, state in training.optimiser.state_dict()["state"].items():
        assert all(torch.equal(fresh.state_dict()["state"][number][name], value) for name, value in state.items())
    assert [group["lr"] for group in fresh.param_groups] == [1e-2, 1e-2, 3e-2, 3e-2], "rates are the plan's"
    assert not list(tmp_path.glob("*.partial"))
