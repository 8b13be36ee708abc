"""Masking: how much each strategy hides, and where."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.procedure.masking import STRATEGIES, Masking, mask_keyframes, random_patches, rectangles, whole_frames
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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), b=st.integers(1, 5), t=st.integers(2, 6), grid=st.integers(2, 14))
def test_whatever_the_size_each_strategy_hides_what_it_says(seed, b, t, grid):
    drawn = {}
    for name in STRATEGIES:
        chances = tuple(float(name == other) for other in STRATEGIES)
        drawn[name], strategy = mask_keyframes(b, t, grid, Masking(chances, 0.8), generator(seed))
        assert drawn[name].shape == (b, t, grid * grid)
        assert (strategy == STRATEGIES.index(name)).all()
    assert not drawn["entire"].any()
    assert torch.equal(drawn["in-block"], ~drawn["out-of-block"])
    inside = ~drawn["in-block"].reshape(b, t, grid, grid)
    assert (inside == inside[:, :1]).all(), "one rectangle for all frames"
    rows, columns = inside[:, 0].any(2), inside[:, 0].any(1)
    assert torch.equal(inside[:, 0], rows[:, :, None] & columns[:, None])
    assert (rows.sum(1) < grid).all()
    assert (columns.sum(1) < grid).all()


def erased(grid: int, draw: torch.Generator) -> tuple[int, int]:
    """Height and width of one rectangle, drawn and redrawn as torchvision's RandomErasing does."""
    for _ in range(10):
        area, log_aspect = (float(torch.rand((), generator=draw)) for _ in range(2))
        aspect = math.exp(math.log(0.5) + log_aspect * math.log(4))
        height = round(math.sqrt(grid**2 * (0.2 + 0.6 * area) * aspect))
        width = round(math.sqrt(grid**2 * (0.2 + 0.6 * area) / aspect))
        if height < grid and width < grid:
            return height, width
    return 0, 0


@pytest.mark.parametrize("grid", [4, 14])
def test_rectangles_are_as_large_as_random_erasing_makes_them(grid):
    draw = generator(5)
    naive = torch.tensor([erased(grid, draw) for _ in range(B)])
    inside = rectangles(B, grid, generator()).reshape(-1, grid, grid)
    ours = torch.stack([inside.any(2).sum(1), inside.any(1).sum(1)], 1)
    for got, expected in zip(ours.T, naive.T, strict=True):
        shares = [torch.bincount(sizes, minlength=grid) / B for sizes in (got, expected)]
        assert (shares[0].cumsum(0) - shares[1].cumsum(0)).abs().max() < 0.045  # Kolmogorov-Smirnov at 0.5 %


def test_whole_frames_are_hidden_one_to_all():
    kept = whole_frames(B, 4, 9, generator())
    assert (kept == kept[..., :1]).all(), "a frame is hidden as a whole"
    hidden = (~kept[..., 0]).sum(1)
    assert (torch.bincount(hidden, minlength=5) / B).tolist() == pytest.approx([0, 0.25, 0.25, 0.25, 0.25], abs=0.03)
    assert (~kept[..., 0]).float().mean(0).tolist() == pytest.approx([0.625] * 4, abs=0.03)
    some, _ = mask_keyframes(B, 4, 3, Masking((0.0, 1.0, 0.0, 0.0), 0.8, "frames"), generator())
    assert some.flatten(1).any(1).float().mean() == pytest.approx(0.75, abs=0.03)
