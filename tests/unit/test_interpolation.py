import pytest
import torch

from procap.procedure.interpolation import crossfade, interpolate, midpoint_schedule


@pytest.mark.parametrize("frames", [1, 3, 7, 15])
def test_every_frame_is_made_once_half_way_between_known_ones(frames):
    known = {0, frames + 1}
    for level in midpoint_schedule(frames):
        assert all({left, right} <= known and 2 * middle == left + right for left, right, middle in level)
        made = [middle for _, _, middle in level]
        assert not known & set(made)
        known |= set(made)
    assert known == set(range(frames + 2))


@pytest.mark.parametrize("frames", [0, 2, 6, 8])
def test_other_numbers_of_frames_are_refused(frames):
    with pytest.raises(ValueError, match="halving"):
        midpoint_schedule(frames)


@pytest.mark.parametrize("frames", [1, 3, 7])
def test_crossfade_moves_evenly_from_before_to_after(frames):
    before, after = torch.rand(2, 3, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    share = torch.linspace(0, 1, frames + 2)[1:-1].view(1, -1, 1, 1, 1)
    expected = before[:, None] * (1 - share) + after[:, None] * share
    torch.testing.assert_close(interpolate(before, after, crossfade, frames), expected)


def test_a_pair_gets_the_same_frames_alone_and_in_a_batch_and_a_level_is_one_call():
    calls = []

    def later(left, right):  # not symmetric, so that a swap of left and right shows
        calls.append(len(left))
        return left * 0.25 + right * 0.75

    before, after = torch.rand(2, 4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    together = interpolate(before, after, later, 7)
    assert calls == [4, 8, 16]
    for row in range(4):
        alone = interpolate(before[row : row + 1], after[row : row + 1], later, 7)
        torch.testing.assert_close(together[row : row + 1], alone)
