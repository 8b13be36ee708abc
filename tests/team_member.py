"""What each process of a team does in ``tests/unit/test_team.py``; torchrun starts it with a folder to write in."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from flows.stage import end_with_those_above
from procap.captioners import Batch
from procap.procedure.masking import Masking
from procap.procedure.objective import Counting, ProcedureBatch, Weights, draw, losses, weigh
from procap.steps import caption, pretrain
from procap.training.team import Team, join_team
from tests.small import features, generator, sentences, small_captioner, small_encoder
from tests.steps import tiny_params
from tests.unit.test_loop import Training

PAIRS = 7
COUNTINGS = {"ours": Counting(), "others": Counting("unchecked", "denominator", "pairs")}


def gradients(team: Team, parts: int = 1) -> dict[str, torch.Tensor]:
    """Of one batch of stage 1, counted in two ways, and of stage 2; and the numbers that go with them."""
    pairs = ProcedureBatch(
        features(PAIRS, 4),
        torch.randint(16, (PAIRS, 4, 16), generator=generator()),
        sentences(PAIRS),
        features(PAIRS, 2, seed=1),
        torch.randint(4, (PAIRS, 2), generator=generator(1)),
    )
    found = {}
    for name, counting in COUNTINGS.items():
        encoder = small_encoder()
        draws = draw(pairs, 4, Masking((0.4, 0.3, 0.2, 0.1), 0.5), counting, generator(3))
        terms = (
            weigh(*losses(encoder, pairs, draws, counting, share), Weights(7.0, 0.5, 0.5))
            for share in team.shares(PAIRS, parts)
        )
        found |= _gathered(f"stage 1, {name}", team, encoder, terms)
    captioner, batch = small_captioner("procap"), Batch(features(PAIRS), sentences(PAIRS))
    found |= _gathered("stage 2", team, captioner, _caption_terms(captioner, batch, team.shares(PAIRS, parts)))
    return found


def _caption_terms(captioner, batch, shares):
    for share in shares:
        part = Batch(batch.features[share], batch.words[share])
        weight = caption.part_of(batch.words, share)
        yield {n: weight * v for n, v in captioner.loss(part, generator=generator()).items()}, {}


def _gathered(name: str, team: Team, module: torch.nn.Module, terms) -> dict[str, torch.Tensor]:
    numbers: dict[str, float] = {}
    for found, readings in terms:
        sum(found.values()).backward()
        for key, value in ({key: value.item() for key, value in found.items()} | readings).items():
            numbers[key] = numbers.get(key, 0.0) + value
    numbers = team.add_up(list(module.parameters()), numbers)
    weights = {f"{name}: {key}": w.grad for key, w in module.named_parameters() if w.grad is not None}
    return weights | {f"{name}: {key}": torch.tensor(value) for key, value in numbers.items()}


class Stopped(BaseException):
    pass


def stopped(folder: Path, team: Team) -> None:
    """The second process alone is asked to end, in the middle of update 5: all end after it."""

    def stop(*_):
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    training = Training(folder, team=team)
    terms = training.terms

    def asked(step, draw, shares):
        if step == 5 and not team.leads:
            os.kill(os.getpid(), signal.SIGTERM)
        return terms(step, draw, shares)

    training.terms = asked
    try:
        training.run()
    except Stopped:
        (folder / f"stopped-{team.number}").write_text(str(len(training.modes)))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(folder: Path) -> None:
    end_with_those_above()
    torch.set_num_threads(1)
    params = tiny_params(pretrain__batch=5, caption__batch=5, hardware__devices=2)
    with join_team(torch.device("cpu")) as team:
        pretrain.run(params, folder / "data")
        team.told(None)  # the first has written; a stage is a process of its own and need not wait
        caption.run(params, folder / "data", captioner="procap")
        for parts in (1, 3):
            found = gradients(team, parts)
            torch.save(found, folder / f"gradients-{parts}-{team.number}.pt")
        (folder / "stopped").mkdir(exist_ok=True)
        stopped(folder / "stopped", team)
        told = [team.told(f"from {team.number}"), team.size]
        (folder / f"told-{team.number}.json").write_text(json.dumps(told))
        training = Training(folder / "dying", team=team)
        terms = training.terms

        def dying(step, draw, shares):
            if step == 3 and team.number == 1:
                raise ValueError("the second process cannot go on")
            return terms(step, draw, shares)

        training.terms = dying
        training.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
