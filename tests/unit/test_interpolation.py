import pytest
import torch

from procap.procedure.interpolation import crossfade, in_multiples, interpolate, midpoint_schedule


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


def test_other_sizes_are_filled_up_with_their_edges_and_cut_again():
    seen = []

    def shifted(left, right):
        seen.append((left, right))
        return left + right.roll(1, dims=-1)

    before, after = torch.rand(2, 2, 3, 96, 130, generator=torch.Generator().manual_seed(2))
    made = in_multiples(shifted, 64)(before, after)
    (left, right), ends = seen[0], (before, after)
    assert left.shape == right.shape == (2, 3, 128, 192)
    for filled, given in zip((left, right), ends, strict=True):
        assert torch.equal(filled[..., :96, :130], given)
        assert torch.equal(filled[..., 96:, :130], given[..., 95:, :].expand(2, 3, 32, 130))
        assert torch.equal(filled[..., 130:], filled[..., 129:130].expand(2, 3, 128, 62))
    assert torch.equal(made[..., 1:], before[..., 1:] + after[..., :-1])
    small = before[..., :64], after[..., :64]
    assert torch.equal(in_multiples(shifted, 32)(*small), shifted(*small))
