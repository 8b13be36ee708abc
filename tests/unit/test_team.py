"""Two processes that share every batch do what one does with the whole; one that dies or stops takes all with it."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from procap.errors import BadInput
from procap.steps import caption, pretrain
from procap.training.checkpoint import load_tensors, newest_state
from procap.training.team import Team, alone, is_member
from tests.steps import tiny_params, tokenised
from tests.team_member import PAIRS, gradients


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 30))
def test_shares_are_the_batch_in_order_and_differ_by_one_at_most(size, parts, more):
    batch = size * parts + more
    shares = [share for number in range(size) for share in Team(number, size).shares(batch, parts)]
    rows = [row for share in shares for row in range(batch)[share]]
    assert rows == list(range(batch))
    sizes = {share.stop - share.start for share in shares}
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 1


def test_a_batch_smaller_than_its_parts_is_refused():
    with pytest.raises(BadInput, match="a batch of 5 cannot be shared by 2 processes in 3 parts"):
        Team(0, 2).shares(5, 3)
    with pytest.raises(BadInput, match=r"caption.batch: 4 pairs cannot be shared by hardware.devices = 2 in 3 parts"):
        tiny_params(hardware__devices=2, caption__accumulate=3)
    assert alone.shares(5, 1) == [slice(0, 5)]
    assert not is_member({})


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        told = partial("{}: {}".format, name)
        torch.testing.assert_close(value, other[name], atol=1e-6, rtol=1e-5, msg=told)


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_one_after_another_give_the_gradients_of_the_whole(parts):
    whole = gradients(alone)
    assert max(float(value.abs().max()) for value in whole.values()) > 0.1
    close(gradients(alone, parts), whole)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(folder, ended process) of a team of two; its last training dies in the second process.

    That it ends at all is a part of the test: nobody waits for the dead.
    """
    folder = tmp_path_factory.mktemp("team")
    (folder / "dying").mkdir()
    tokenised(folder / "data", tiny_params())
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.team_member"]
    done = subprocess.run(
        [sys.executable, *words, str(folder)], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=1200,
    )  # fmt: skip
    return folder, done


def test_two_processes_have_the_gradients_of_one(ran):
    folder, done = ran
    whole = gradients(alone)
    for parts in (1, 3):
        found = [torch.load(folder / f"gradients-{parts}-{number}.pt") for number in range(2)]
        assert found[0].keys() == whole.keys(), done.stderr[-3000:]
        close(found[0], whole)
        assert all(torch.equal(found[0][name], found[1][name]) for name in whole), "both make the same update"
    assert PAIRS % 2, "shares of different sizes"
    assert json.loads((folder / "told-1.json").read_text()) == ["from 0", 2]


def test_the_steps_of_two_processes_write_once_what_one_writes(ran, tmp_path):
    folder, _ = ran
    params = tiny_params(pretrain__batch=5, caption__batch=5)
    data = tmp_path / "data"
    data.mkdir()
    for step in ("prepare", "interpolate", "sample", "tokenizer", "tokenize"):
        (data / step).symlink_to(folder / "data" / step)
    pretrain.run(params, data)
    caption.run(params, data, captioner="procap")
    for inside in ("pretrain/encoder.safetensors", "caption/procap/bundle/captioner.safetensors"):
        one, two = (load_tensors(place / inside)[0] for place in (data, folder / "data"))
        assert one.keys() == two.keys()
        apart = torch.cat([(one[name] - two[name]).abs().flatten().float() for name in one])
        assert apart.max() < 3e-3, "where a gradient is nothing but rounding, three updates go that far at most"
        assert apart.quantile(0.98) < 2e-5, inside
    for step in ("pretrain", "caption/procap"):
        assert {p.name for p in (data / step).iterdir()} == {p.name for p in (folder / "data" / step).iterdir()}
    mine, theirs = (
        (place / "pretrain" / "history.csv").read_text().splitlines() for place in (data, folder / "data")
    )
    for line, other in zip(mine[1:], theirs[1:], strict=True):
        assert line.rsplit(",", 1)[0] == other.rsplit(",", 1)[0]
        assert float(line.rsplit(",", 1)[1]) == pytest.approx(float(other.rsplit(",", 1)[1]), rel=2e-3, abs=2e-3)


def test_one_that_is_asked_to_end_ends_all_after_the_same_update(ran):
    folder, _ = ran
    assert [(folder / "stopped" / f"stopped-{number}").read_text() for number in range(2)] == ["6", "6"]
    _, facts, _ = newest_state(folder / "stopped")
    assert facts["step"] == 6


def test_one_that_dies_ends_the_run_with_its_error(ran):
    folder, done = ran
    assert done.returncode != 0
    assert "ValueError: the second process cannot go on" in done.stderr
    _, facts, _ = newest_state(folder / "dying")
    assert facts["step"] == 3, "the first one keeps what all had done"
