"""Keyframes: equation 2 against the reference implementation's numbers, and what every draw promises."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.procedure.keyframes import (
    chances,
    confidence,
    imbalance,
    mixed_imbalance,
    sample_keyframes,
    spread_keyframes,
)

STORED = Path(__file__).parents[1] / "reference" / "samplers.npz"
VECTORS = Path(__file__).parents[2] / ".." / "shared" / "reference" / "official" / "vectors_samplers.npz"
DRAWS = ("multinomial", "top")

some_weights = st.tuples(st.integers(1, 6), st.integers(1, 15), st.integers(0, 2**31)).map(
    lambda size: (torch.rand(*size[:2], generator=generator(size[2])) - 0.2).clamp_min(0)
)
temperatures = st.floats(1e-6, 1e3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def squares(vectors: dict, kind: str) -> torch.Tensor:
    """Imbalance of the four examples; rows, one per caption, averaged."""
    before, after = (
        torch.from_numpy(np.stack([np.atleast_2d(vectors[f"{kind}{i}_{end}"]).mean(axis=0) for i in range(4)]))
        for end in ("before", "after")
    )
    return imbalance(before, after)


def test_weights_are_those_of_the_reference_code():
    stored = np.load(STORED)
    text, visual = squares(stored, "scores"), squares(stored, "visual")
    low, high, visual_low, visual_high = stored["mixed_minmax"].tolist()
    for weights, expected in (
        (confidence(text), "weights_confidence"),
        (confidence(visual), "weights_visual"),
        (confidence(mixed_imbalance(text, visual, (low, high), (visual_low, visual_high))), "weights_mixed"),
    ):
        np.testing.assert_allclose(weights.numpy(), stored[expected], rtol=2e-6, err_msg=expected)


@pytest.mark.shared
@pytest.mark.skipif(not VECTORS.exists(), reason="no reference vectors here")
def test_the_stored_numbers_are_those_of_the_reference():
    stored, vectors = np.load(STORED), np.load(VECTORS)
    assert all(np.array_equal(stored[name], vectors[name]) for name in stored.files)


def test_the_equidistant_frame_gets_the_largest_weight():
    before = torch.tensor([[1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.0, 0.0]])
    weights = confidence(imbalance(before, before.flip(1)))
    assert weights.shape == (1, 7)
    assert weights.argmax() == 3
    torch.testing.assert_close(weights, weights.flip(1))
    torch.testing.assert_close((1 - weights).sum(dim=1), torch.ones(1, dtype=torch.float64))


@given(st.integers(3, 17), st.integers(0, 2**31), st.floats(0.1, 4), st.floats(-1, 1))
@settings(max_examples=50, deadline=None)
def test_confidence_looks_at_the_difference_of_inner_frames_alone(frames, seed, factor, shift):
    before, after = (torch.rand(4, frames, generator=generator(seed + end), dtype=torch.float64) for end in (0, 1))
    weights = confidence(imbalance(before, after))
    torch.testing.assert_close(weights, confidence(imbalance(after, before)))
    torch.testing.assert_close(weights, confidence(imbalance(before + shift, after + shift)))
    torch.testing.assert_close(imbalance(factor * before, factor * after), factor**2 * imbalance(before, after))
    order = torch.cat([torch.tensor([0]), 1 + torch.randperm(frames - 2, generator=generator(seed))])
    order = torch.cat([order, torch.tensor([frames - 1])])
    torch.testing.assert_close(weights[:, order[1:-1] - 1], confidence(imbalance(before[:, order], after[:, order])))
    other_ends = before.clone()
    other_ends[:, [0, -1]] = 0.5
    torch.testing.assert_close(weights, confidence(imbalance(other_ends, after)))
    assert torch.equal(
        imbalance(before, after)[:, 1:-1].argsort(dim=1, stable=True), (-weights).argsort(dim=1, stable=True)
    )


@given(st.integers(0, 2**31), st.floats(0.1, 10), st.floats(-3, 3), st.floats(0.1, 10), st.floats(-3, 3))
@settings(max_examples=50, deadline=None)
def test_mixing_ignores_the_scales_of_its_parts(seed, a, b, c, d):
    text, visual = torch.rand(2, 5, 9, generator=generator(seed), dtype=torch.float64)

    def mixed(text, visual):
        ranges = ((float(x.min()), float(x.max())) for x in (text, visual))
        return mixed_imbalance(text, visual, *ranges)

    torch.testing.assert_close(mixed(text, visual), mixed(a * text + b, c * visual + d))
    assert mixed(text, text).min() == 0
    torch.testing.assert_close(mixed(text, text).max(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(mixed(text, torch.zeros_like(visual)), 0.7 * mixed(text, text))


@given(some_weights, st.sampled_from(DRAWS), temperatures, st.data())
@settings(max_examples=150, deadline=None)
def test_kept_frames_are_distinct_inner_frames_in_time_order(weights, draw, temperature, data):
    kept = data.draw(st.integers(0, weights.shape[1]))
    frames = sample_keyframes(weights, kept, draw, temperature=temperature, generator=generator(2))
    assert frames.shape == (len(weights), kept)
    assert (frames.diff(dim=1) > 0).all()
    assert ((frames >= 1) & (frames <= weights.shape[1])).all()


@given(some_weights, temperatures)
@settings(max_examples=50, deadline=None)
def test_chances_are_a_distribution_in_the_order_of_the_weights(weights, temperature):
    found = chances(weights, temperature)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(weights), dtype=torch.float64))
    better = weights[:, :, None] > weights[:, None, :]
    assert (found[:, :, None] >= found[:, None, :])[better].all()
    positive = weights.double() + 0.01
    torch.testing.assert_close(chances(positive, temperature), chances(3 * positive, temperature), atol=1e-6, rtol=1e-4)


@given(st.integers(1, 15), temperatures)
@settings(max_examples=30, deadline=None)
def test_equal_scores_are_drawn_uniformly_at_every_temperature(frames, temperature):
    same = torch.full((2, frames + 2), 0.3)
    found = chances(confidence(imbalance(same, same + 0.1)), temperature)
    torch.testing.assert_close(found, torch.full_like(found, 1 / frames))


def test_temperature_one_is_the_weights_and_its_limits_are_uniform_and_the_best():
    weights = torch.tensor([[0.5, 0.8, 0.2], [0.1, 0.1, 0.3]], dtype=torch.float64)
    torch.testing.assert_close(chances(weights, 1.0), weights / weights.sum(dim=1, keepdim=True))
    torch.testing.assert_close(chances(weights, 1e6), torch.full_like(weights, 1 / 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(chances(weights, 1e-3).argmax(dim=1), torch.tensor([1, 2]))
    assert chances(weights, 1e-3).amax(dim=1).min() > 1 - 1e-9


@given(st.integers(2, 15), st.integers(0, 2**31), st.data())
@settings(max_examples=50, deadline=None)
def test_a_cold_draw_is_the_best_by_score_whatever_the_seed(frames, seed, data):
    """As small as real imbalances are, where equation 2 is flat: their order decides."""
    kept = data.draw(st.integers(1, frames))
    scores = torch.stack([torch.randperm(frames, generator=generator(seed + row)) for row in range(4)])
    weights = confidence(torch.nn.functional.pad(scores * 1e-4, (1, 1)).double())
    cold = sample_keyframes(weights, kept, "multinomial", temperature=1e-9, generator=generator(seed))
    assert torch.equal(cold, sample_keyframes(weights, kept, "top"))
    assert torch.equal(cold, scores.argsort(dim=1)[:, :kept].sort(dim=1).values + 1)


def test_small_imbalances_are_drawn_like_a_softmax_of_their_own():
    small = torch.rand(5, 9, generator=generator(), dtype=torch.float64) * 1e-3
    expected = (-small[:, 1:-1] / (7 * 1e-4)).softmax(dim=1)
    torch.testing.assert_close(chances(confidence(small), 1e-4), expected, atol=2e-3, rtol=0.3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_without_replacement_follow_the_weights(temperature):
    """Of all pairs of frames; expected: first by the chances, then by the chances of the rest."""
    weights = torch.tensor([[0.1, 0.6, 0.3, 0.4]]).expand(40_000, 4).contiguous()
    p = chances(weights[:1], temperature)[0]
    drawn = sample_keyframes(weights, 2, "multinomial", temperature=temperature, generator=generator(5))
    for i in range(4):
        for j in range(i + 1, 4):
            expected = p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j])
            share = (drawn == torch.tensor([i + 1, j + 1])).all(dim=1).double().mean()
            torch.testing.assert_close(share, expected, atol=0.01, rtol=0)


def test_draws_follow_the_generator_and_not_the_other_pairs():
    weights = torch.rand(50, 7, generator=generator(3))
    first = sample_keyframes(weights, 2, "multinomial", generator=generator(5))
    assert torch.equal(first, sample_keyframes(weights, 2, "multinomial", generator=generator(5)))
    assert not torch.equal(first, sample_keyframes(weights, 2, "multinomial", generator=generator(6)))
    for rows in (1, 7, 33):
        assert torch.equal(first[:rows], sample_keyframes(weights[:rows], 2, "multinomial", generator=generator(5)))


def test_one_frame_with_weight_zero_can_be_drawn():
    weights = confidence(imbalance(torch.tensor([[1.0, 0.5, 0.2]]), torch.tensor([[0.2, 0.6, 1.0]])))
    assert weights.item() == 0
    assert sample_keyframes(weights, 1, "multinomial", generator=generator()).tolist() == [[1]]


def test_top_takes_the_largest_and_of_equals_the_earlier():
    weights = torch.tensor([[0.1, 0.9, 0.5, 0.9, 0.2], [0.3, 0.3, 0.3, 0.3, 0.3]])
    assert sample_keyframes(weights, 2, "top").tolist() == [[2, 4], [1, 2]]


def test_more_frames_than_there_are_cannot_be_kept():
    with pytest.raises(ValueError, match="kept=4"):
        sample_keyframes(torch.ones(1, 3), 4, "top")


@pytest.mark.parametrize("frames", [1, 3, 7, 15])
def test_evenly_spread_frames_are_different_inner_and_symmetric(frames):
    for kept in range(frames + 1):
        spread = spread_keyframes(frames, kept)
        assert len(spread) == kept
        assert all(a < b for a, b in itertools.pairwise((0, *spread, frames + 1)))
        gaps = [b - a for a, b in itertools.pairwise((0, *spread, frames + 1))]
        assert max(gaps) - min(gaps) <= 1
    assert spread_keyframes(7, 2) == (3, 5), "as the reference code"
