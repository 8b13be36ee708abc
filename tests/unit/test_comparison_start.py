"""Training starts as a comparison: before the first update the network already looks where the pictures differ."""

import pytest
import torch

from procap.models.build import build
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.training.optimiser import make_optimiser
from tests.small import decoder_config, encoder_config, generator

PLACES = [0, 5, 15]


def network(frames: int) -> EncoderDecoder:
    config = EncoderDecoderConfig(encoder_config(frames, feature_width=16, width=48), decoder_config(), 0.0)
    return build(lambda: EncoderDecoder(config), generator(3))


def ends(place: int, b: int = 6) -> torch.Tensor:
    """Pairs that differ at one place of the 4 x 4 grid and nowhere else."""
    before = torch.randn(b, 16, 16, generator=generator(1))
    after = before.clone()
    after[:, place] = torch.randn(b, 16, generator=generator(2))
    return torch.stack([before, after], dim=1)


@pytest.mark.parametrize("frames", [2, 4])
@pytest.mark.parametrize("place", PLACES)
def test_the_first_block_writes_the_difference_where_it_is(frames, place):
    difference = network(frames).encoder.imagine(ends(place))[..., 32:].norm(dim=-1)
    elsewhere = [n for n in range(16) if n != place]
    assert (difference[:, :, place].amin(-1) > 2 * difference[:, :, elsewhere].amax((1, 2))).all()


@pytest.mark.parametrize("frames", [2, 4])
def test_every_head_of_the_decoder_looks_at_the_place_that_differs_and_hardly_elsewhere(frames):
    net = network(frames)
    keys, _ = net.read(ends(5))[0]
    attention = net.decoder.blocks[0].cross_attention
    query = attention.split(attention.query(torch.zeros(6, 1, 32)))  # a word that says nothing yet
    looks = ((query * keys).sum(-1) / query.shape[-1] ** 0.5).softmax(-1).reshape(6, 4, frames, 16)
    assert (looks[..., 5].sum(-1) > 0.99).all()


def test_stage_one_trains_beside_the_comparison():
    """Stage 2 finds what is there and what differs as if there had been no stage 1, and more in the first third."""
    encoder, seen = network(2).encoder, ends(5)
    start = encoder.imagine(seen).detach()
    encoder.hold_comparison()
    optimiser = make_optimiser("adamw", [(encoder, 1e-2)], weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        encoder.token_head(encoder.imagine(seen)).square().mean().backward()
        optimiser.step()
    trained = encoder.imagine(seen)
    assert torch.equal(trained[..., 16:], start[..., 16:])
    assert (trained[..., :16] - start[..., :16]).abs().mean() > 0.01
