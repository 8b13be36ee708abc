"""Warping: each way to break a procedure breaks what it says and nothing else."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.procedure.warping import (
    affine_matrices,
    draw_orders,
    draw_shifts,
    draw_swaps,
    shift_colours,
    shuffle_frames,
    swap_frames,
    transform,
)
from tests.small import generator


def numbered(b: int, t: int) -> torch.Tensor:
    """Features that say which frame of which pair they are."""
    return torch.arange(b * t, dtype=torch.float32).reshape(b, t, 1, 1).expand(b, t, 3, 2).clone()


def test_a_swap_changes_one_frame_and_takes_it_from_another_pair():
    b, t = 500, 4
    before = numbered(b, t)
    after = swap_frames(before, draw_swaps(b, t, generator()))
    changed = (after != before).flatten(2).any(-1)
    assert (changed.sum(1) == 1).all()
    assert (after == after[..., :1, :1]).all(), "a frame moves as a whole"
    source = after[changed][:, 0, 0].long()
    assert (source // t != torch.arange(b)).all()
    for places in (changed.long().argmax(1), source % t):
        assert torch.bincount(places, minlength=t).float().div(b).sub(1 / t).abs().max() < 0.08
    assert torch.equal(before, numbered(b, t)), "its input stays"


def test_every_other_pair_may_lend_a_frame():
    lenders = Counter()
    for seed in range(200):
        after = swap_frames(numbered(3, 2), draw_swaps(3, 2, generator(seed)))
        lenders.update(
            (pair, int(frame) // 2) for pair in range(3) for frame in after[pair, :, 0, 0] if int(frame) // 2 != pair
        )
    assert set(lenders) == set(itertools.permutations(range(3), 2))
    assert min(lenders.values()) > 60


def test_a_swap_with_nobody_is_refused():
    with pytest.raises(ValueError, match="another pair"):
        draw_swaps(1, 4, generator())


@pytest.mark.parametrize("t", [2, 3, 4])
def test_a_shuffle_is_any_other_order_equally_often(t):
    b = 4000
    before = numbered(b, t)
    orders = (shuffle_frames(before, draw_orders(b, t, generator()))[..., 0, 0] - before[:, :1, 0, 0]).long()
    counted = Counter(map(tuple, orders.tolist()))
    assert set(counted) == set(itertools.permutations(range(t))) - {tuple(range(t))}
    assert np.array(list(counted.values())) / b == pytest.approx(1 / len(counted), abs=0.04)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), b=st.integers(1, 30), t=st.integers(2, 17))
def test_an_order_is_one_and_not_theirs_however_many_frames(seed, b, t):
    orders = draw_orders(b, t, generator(seed))
    assert torch.equal(orders.sort(1).values, torch.arange(t).expand(b, t))
    assert (orders != torch.arange(t)).any(1).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), b=st.integers(2, 6), t=st.integers(2, 6))
def test_frames_that_are_not_swapped_stay(seed, b, t):
    frames, swaps = numbered(b, t), draw_swaps(b, t, generator(seed))
    after = swap_frames(frames, swaps)
    assert (swaps.pair != torch.arange(b)).all()
    for pair, frame in itertools.product(range(b), range(t)):
        moved = frame == swaps.frame[pair]
        source = (int(swaps.pair[pair]), int(swaps.source[pair])) if moved else (pair, frame)
        assert torch.equal(after[pair, frame], frames[source])


def test_a_colour_shift_adds_one_constant_and_clamps():
    b = 2000
    pictures = torch.full((b, 3, 2, 2), 0.5)
    pictures[..., 0, 0], pictures[..., 1, 1] = 0.02, 0.98
    shifted = shift_colours(pictures, draw_shifts(b, generator()))
    assert shifted.min() >= 0
    assert shifted.max() <= 1
    shift = (shifted - pictures)[:, :, 0, 1]
    expected = (pictures + shift[..., None, None]).clamp(0, 1)
    assert torch.allclose(shifted, expected, atol=1e-6), "clamping aside, one constant per channel"
    moved = shift != 0
    assert set(map(tuple, moved.tolist())) == {
        (True,) * 3,
        (True, False, False),
        (False, True, False),
        (False, False, True),
    }
    assert (moved.sum(1) == 3).float().mean() == pytest.approx(0.25, abs=0.04)
    together = shift[moved.all(1)]
    assert torch.equal(together, together[:, :1].expand(-1, 3))
    largest = shift.flatten().abs().sort().values
    assert 0.49 < largest[-1] <= 0.5
    assert abs(float(shift.sum(1).clamp(-0.5, 0.5).mean())) < 0.03, "as often darker as brighter"


def test_affine_matrices_stay_within_what_they_promise():
    matrices = affine_matrices(4000, generator())
    turn, shift = matrices[..., :2], matrices[..., 2]
    scale = torch.linalg.det(turn).sqrt()
    angle = torch.atan2(turn[:, 1, 0], turn[:, 0, 0]).rad2deg()
    assert torch.allclose(turn @ turn.mT, (scale**2)[:, None, None] * torch.eye(2), atol=1e-6), "turn and scale only"
    for values, low, high in ((scale, 0.9, 1.1), (angle, -30, 30), (shift[:, 0], -0.1, 0.1), (shift[:, 1], -0.1, 0.1)):
        assert low - 1e-5 <= values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() <= high + 1e-5
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))


def test_the_published_matrix():
    """theta = [[s cos a, -s sin a, tx], [s sin a, s cos a, ty]]."""
    matrix = affine_matrices(1, generator())[0]
    assert matrix[0, 0] == matrix[1, 1]
    assert matrix[0, 1] == -matrix[1, 0]


def mirrored(at: float, size: int) -> float:
    """A coordinate in pixels, reflected at the outer edges of the picture until it is inside."""
    low, high = -0.5, size - 0.5
    while not low <= at <= high:
        at = 2 * low - at if at < low else 2 * high - at
    return min(max(at, 0.0), size - 1.0)


def transformed(picture: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """``transform`` of one picture (c, h, w), pixel by pixel."""
    _, h, w = picture.shape
    out = np.empty_like(picture)
    for row, column in itertools.product(range(h), range(w)):
        x, y = matrix @ [(2 * column + 1) / w - 1, (2 * row + 1) / h - 1, 1]
        x, y = mirrored(((x + 1) * w - 1) / 2, w), mirrored(((y + 1) * h - 1) / 2, h)
        left, top = int(x), int(y)
        right, bottom = min(left + 1, w - 1), min(top + 1, h - 1)
        a, b = x - left, y - top
        upper = (1 - a) * picture[:, top, left] + a * picture[:, top, right]
        lower = (1 - a) * picture[:, bottom, left] + a * picture[:, bottom, right]
        out[:, row, column] = (1 - b) * upper + b * lower
    return out


@pytest.mark.parametrize("side", [9, 16])
def test_transform_equals_the_same_thing_pixel_by_pixel(side):
    pictures = torch.rand(4, 3, side, side, generator=generator())
    matrices = affine_matrices(4, generator(1))
    matrices[0, :, 2] = torch.tensor([0.7, -0.6])  # far out, so that the mirror shows
    got = transform(pictures, matrices).numpy()
    for number in range(4):
        expected = transformed(pictures[number].double().numpy(), matrices[number].double().numpy())
        assert got[number] == pytest.approx(expected, abs=1e-4)


def test_no_transform_changes_nothing():
    pictures = torch.rand(2, 3, 8, 8, generator=generator())
    same = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).expand(2, 2, 3)
    assert torch.allclose(transform(pictures, same), pictures, atol=1e-5)
