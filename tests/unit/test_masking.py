"""Masking: how much each strategy hides, and where."""

import pytest
import torch

from procap.procedure.masking import STRATEGIES, Masking, mask_keyframes, random_patches, rectangles
from tests.small import generator

B = 3000


def masks(strategy: str, b: int = 200, t: int = 4, grid: int = 14) -> torch.Tensor:
    """What this strategy keeps, (b, t, n)."""
    chances = tuple(float(name == strategy) for name in STRATEGIES)
    kept, drawn = mask_keyframes(b, t, grid, Masking(chances, 0.8), generator())
    assert (drawn == STRATEGIES.index(strategy)).all()
    return kept


def test_random_patches_are_hidden_one_by_one():
    kept = random_patches(300, 4, 196, 0.8, generator()).float()
    assert kept.mean() == pytest.approx(0.2, abs=0.003)
    assert kept.mean((0, 2)).sub(0.2).abs().max() < 0.01, "frames are alike"
    assert kept.mean((0, 1)).sub(0.2).abs().max() < 0.06, "so are places"
    same = (kept[:, 0] == kept[:, 1]).float().mean()
    assert same == pytest.approx(0.2**2 + 0.8**2, abs=0.01), "a place in one frame says nothing of the next frame"


def test_entire_hides_all_and_nothing_else_does():
    assert not masks("entire").any()
    assert masks("in-block").flatten(1).any(1).all()
    assert masks("out-of-block").flatten(1).any(1).all()


@pytest.mark.parametrize("strategy", ["in-block", "out-of-block"])
def test_one_rectangle_is_shared_by_all_frames(strategy):
    kept = masks(strategy)
    assert (kept == kept[:, :1]).all()
    for hidden in ~kept[:, 0].reshape(-1, 14, 14):
        inside = hidden if strategy == "in-block" else ~hidden
        rows, columns = inside.any(1), inside.any(0)
        assert torch.equal(inside, rows[:, None] & columns[None])
        for side in (rows, columns):
            at = side.nonzero().flatten()
            assert len(at) == at[-1] - at[0] + 1, "no gaps"
            assert len(at) < 14


def test_out_of_block_is_the_complement_of_in_block():
    assert torch.equal(masks("in-block"), ~masks("out-of-block"))


def test_blocks_hide_what_was_published():
    """Of the reference implementation, measured: mean 0.44, from 0.18 to 0.80."""
    share = rectangles(B, 14, generator()).float().mean(1)
    assert share.mean() == pytest.approx(0.44, abs=0.01)
    assert 0.17 < share.min() < 0.22
    assert 0.75 < share.max() < 0.85


def test_rectangles_lie_everywhere():
    inside = rectangles(B, 14, generator()).float().mean(0).reshape(14, 14)
    assert inside.sub(inside.flip(0)).abs().max() < 0.05
    assert inside.sub(inside.flip(1)).abs().max() < 0.05
    assert inside.sub(inside.T).abs().max() < 0.05, "as often tall as wide"
    assert inside[0, 0] > 0.03


def test_strategies_come_as_often_as_asked():
    asked = (0.5, 0.2, 0.3, 0.0)
    _, strategy = mask_keyframes(B, 1, 4, Masking(asked, 0.8), generator())
    assert (torch.bincount(strategy, minlength=4) / B).tolist() == pytest.approx(asked, abs=0.03)


@pytest.mark.parametrize("grid", [2, 4, 8])
def test_small_grids_have_rectangles_too(grid):
    share = rectangles(500, grid, generator()).float().mean(1)
    assert (share < 1).all()
    assert (share > 0).float().mean() > 0.95
