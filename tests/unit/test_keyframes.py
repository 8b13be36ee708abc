import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from procap.procedure.keyframes import confidence, sample_keyframes, spread_keyframes

VECTORS = Path(__file__).parents[2] / ".." / "shared" / "reference" / "official" / "vectors_samplers.npz"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.shared
@pytest.mark.skipif(not VECTORS.exists(), reason="no reference vectors here")
def test_weights_are_those_of_the_reference_code():
    vectors = np.load(VECTORS)
    before, after = (
        torch.from_numpy(np.stack([vectors[f"scores{i}_{end}"].mean(axis=0) for i in range(4)])).float()
        for end in ("before", "after")
    )
    np.testing.assert_allclose(confidence(before, after).numpy(), vectors["weights_confidence"], rtol=1e-5)


def test_the_equidistant_frame_gets_the_largest_weight():
    before = torch.tensor([[1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.0, 0.0]])
    weights = confidence(before, before.flip(1))
    assert weights.shape == (1, 7)
    assert weights.argmax() == 3
    torch.testing.assert_close(weights, weights.flip(1))
    torch.testing.assert_close((1 - weights).sum(dim=1), torch.ones(1))


@pytest.mark.parametrize("draw", ["multinomial", "top"])
@pytest.mark.parametrize("kept", range(8))
def test_kept_frames_are_distinct_inner_frames_in_time_order(draw, kept):
    weights = torch.rand(50, 7, generator=generator()) * (torch.rand(50, 7, generator=generator(1)) < 0.5)
    frames = sample_keyframes(weights, kept, draw, generator=generator(2))
    assert frames.shape == (50, kept)
    assert (frames.diff(dim=1) > 0).all()
    assert ((frames >= 1) & (frames <= 7)).all()


def test_one_frame_with_weight_zero_can_be_drawn():
    weights = confidence(torch.tensor([[1.0, 0.5, 0.2]]), torch.tensor([[0.2, 0.6, 1.0]]))
    assert weights.item() == 0
    assert sample_keyframes(weights, 1, "multinomial", generator=generator()).tolist() == [[1]]


def test_draws_follow_the_weights_and_the_generator():
    weights = torch.tensor([[0.1, 0.6, 0.3]]).expand(20_000, 3).contiguous()
    first = sample_keyframes(weights, 1, "multinomial", generator=generator(5))
    shares = torch.bincount(first.flatten(), minlength=4)[1:] / len(first)
    torch.testing.assert_close(shares, weights[0], atol=0.02, rtol=0)
    assert torch.equal(first, sample_keyframes(weights, 1, "multinomial", generator=generator(5)))
    assert not torch.equal(first, sample_keyframes(weights, 1, "multinomial", generator=generator(6)))


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
