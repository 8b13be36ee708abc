"""The VQGAN and what it is trained with: places stay in order, the game has two sides, the codebook stays alive."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from procap.models.build import build
from procap.models.vqgan import VQGAN, encode_frames, frame_features
from procap.training.vqgan_objective import Adversary, Usage, _Reverse, revive_codes, start_codes
from tests.small import VQGAN_CONFIG, generator, small_vqgan


def pictures(b: int = 4) -> torch.Tensor:
    return torch.rand(b, 3, 32, 32, generator=generator())


def adversary(start: int = 0, weight: float = 0.1) -> Adversary:
    return Adversary(weight, start, VQGAN_CONFIG.codes, generator())


def test_tokens_are_the_nearest_codes_row_by_row():
    vqgan = small_vqgan()
    encoded = vqgan.encode(pictures(2))
    assert encoded.shape == (2, 8, 4, 4)
    codes, book = vqgan.quant_conv(encoded), vqgan.quantize.embedding.weight
    tokens, features = vqgan.tokens(encoded), vqgan.features(encoded, pictures(2))
    for pair in range(2):
        for row in range(4):
            for column in range(4):
                apart = (book - codes[pair, :, row, column]).square().sum(1)
                assert tokens[pair, 4 * row + column] == apart.argmin()
                assert torch.equal(features[pair, 4 * row + column], encoded[pair, :, row, column])
    assert torch.equal(vqgan(pictures(2))[2].flatten(1), tokens), "training and encoding agree"


def test_decoding_puts_every_token_where_it_was():
    vqgan = small_vqgan().requires_grad_(False)
    with torch.no_grad():
        vqgan.quantize.embedding.weight.mul_(50)
    drawn, _, tokens = vqgan(pictures(2))
    decoded = vqgan.decode(tokens.flatten(1))
    assert decoded.shape == (2, 3, 32, 32)
    assert torch.allclose(decoded, ((drawn + 1) / 2).clamp(0, 1), atol=1e-5)
    assert decoded.min() >= 0
    assert decoded.max() <= 1


def test_frames_as_bytes_are_encoded_as_pictures():
    vqgan, device = small_vqgan(), torch.device("cpu")
    frames = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    features, tokens = encode_frames(vqgan, frames, device)
    shown = torch.from_numpy(frames).permute(0, 3, 1, 2) / 255
    encoded = vqgan.encode(shown)
    assert features.dtype == torch.float16
    assert torch.equal(features, vqgan.features(encoded, shown).half())
    assert torch.equal(tokens, vqgan.tokens(encoded))
    vqgan.config = replace(VQGAN_CONFIG, precision="bfloat16")
    rough, _ = encode_frames(vqgan, frames, device)
    assert not torch.equal(rough, features)
    assert torch.allclose(rough.float(), features.float(), atol=0.1)


def test_mean_colours_of_a_patchs_parts_stand_beside_its_feature():
    vqgan, device = small_vqgan(), torch.device("cpu")
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    plain, _ = encode_frames(vqgan, frames, device)
    vqgan.config = replace(VQGAN_CONFIG, colours=2)
    found, _ = encode_frames(vqgan, frames, device)
    assert found.shape == (2, 16, VQGAN_CONFIG.code_width + 12) == (2, 16, vqgan.config.feature_width)
    assert torch.equal(found[..., :8], plain)
    patch = frames[1, 8:16, 16:24] / 127.5 - 1  # row 1, column 2 of the grid: place 6
    expected = [patch[4 * i : 4 * i + 4, 4 * j : 4 * j + 4, c].mean() for c in range(3) for i in (0, 1) for j in (0, 1)]
    assert np.allclose(found[1, 6, 8:].numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("shown", ["normalised", "raw"])
def test_what_features_show_says_nothing_of_tokens(shown):
    vqgan, device = small_vqgan(), torch.device("cpu")
    frames = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    vqgan.config = replace(VQGAN_CONFIG, features=shown)
    features, tokens = encode_frames(vqgan, frames, device)
    picture = torch.from_numpy(frames).permute(0, 3, 1, 2) / 255
    seen = vqgan.encoder(picture if shown == "raw" else 2 * picture - 1)
    assert torch.equal(features, vqgan.features(seen, picture).half())
    assert torch.equal(frame_features(vqgan, frames, device), features)
    assert torch.equal(tokens, vqgan.tokens(vqgan.encode(picture)))


def test_first_weights_depend_on_the_generator_alone():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, same, other = (build(lambda: VQGAN(VQGAN_CONFIG), generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.encoder.conv_in.weight, same.encoder.conv_in.weight)
    assert not torch.equal(one.encoder.conv_in.weight, other.encoder.conv_in.weight)


def test_the_gradient_turns_round():
    x = torch.randn(3, requires_grad=True)
    (_Reverse.apply(x, 0.25) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(x.grad, -0.25 * torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(_Reverse.apply(x, 0.25), x)


def test_the_two_sides_pull_in_opposite_directions():
    """The discriminator's step lowers the adversarial loss, the VQGAN's step raises it."""
    vqgan, game = small_vqgan(), adversary(weight=1.0)
    terms, _ = game.terms(vqgan, pictures(), 0, plain=False)
    terms["adversarial"].backward()

    def after(module: torch.nn.Module, rate: float) -> float:
        weights = [weight for weight in module.parameters() if weight.grad is not None and weight.grad.any()]
        assert weights
        with torch.no_grad():
            for weight in weights:
                weight.sub_(rate * weight.grad)
            value = game.terms(vqgan, pictures(), 0, plain=False)[0]["adversarial"].item()
            for weight in weights:
                weight.add_(rate * weight.grad)
        return value

    before = terms["adversarial"].item()
    game.network.eval()
    start = game.terms(vqgan, pictures(), 0, plain=False)[0]["adversarial"].item()
    game.network.train()
    assert after(game.network, 1e-3) < before
    assert after(vqgan.decoder, 1e-4) > before
    assert start != 0


def test_the_discriminator_joins_when_it_is_told():
    vqgan = small_vqgan()
    assert "adversarial" not in adversary(start=5).terms(vqgan, pictures(), 4, plain=False)[0]
    assert "adversarial" in adversary(start=5).terms(vqgan, pictures(), 5, plain=False)[0]
    assert "adversarial" not in adversary(weight=0.0).terms(vqgan, pictures(), 5, plain=False)[0]


def test_a_plain_update_leaves_the_codebook_alone():
    vqgan, game = small_vqgan(), adversary(start=9)
    terms, readings = game.terms(vqgan, pictures(), 0, plain=True)
    sum(terms.values()).backward()
    assert vqgan.quantize.embedding.weight.grad is None
    assert readings["codebook"] == 0
    assert (game.usage.counts == 1).all()
    terms, _ = game.terms(vqgan, pictures(), 0, plain=False)
    sum(terms.values()).backward()
    assert vqgan.quantize.embedding.weight.grad.any()
    assert game.usage.counts.sum() == pytest.approx(0.98 * 16 + 4 * 16)


def test_a_fresh_codebook_lies_where_the_encoder_writes():
    vqgan = small_vqgan()
    written = vqgan.quant_conv(vqgan.encode(pictures())).permute(0, 2, 3, 1).reshape(-1, 8)
    start_codes(vqgan, pictures(), generator())
    apart = torch.cdist(vqgan.quantize.embedding.weight, written).min(1).values
    assert apart.max() < 0.01
    tokens = vqgan.tokens(vqgan.encode(pictures()))
    assert len(tokens.unique()) > 8


def test_dead_codes_are_revived_and_live_ones_stay():
    vqgan, usage = small_vqgan(), Usage(16)
    usage.counts.copy_(torch.tensor([0.5, 3.0] * 8))
    before = vqgan.quantize.embedding.weight.detach().clone()
    written = vqgan.quant_conv(vqgan.encode(pictures())).permute(0, 2, 3, 1).reshape(-1, 8)
    revive_codes(vqgan, usage, pictures(), generator())
    after = vqgan.quantize.embedding.weight
    assert torch.equal(after[1::2], before[1::2])
    assert torch.cdist(after[::2], written).min(1).values.max() < 0.01
    assert not torch.isclose(after[::2], before[::2]).all(1).any()
    assert (usage.counts >= 1).all(), "they have time to prove themselves"
    assert after.requires_grad
