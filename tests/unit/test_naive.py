"""The fast path against a naive formulation of the same mathematics: losses, gradients, sentences, operations."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from procap.captioners.decoding import search, word_loss
from procap.datasets.vocabulary import EOS
from procap.models.build import build, frozen
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.procedure_encoder import EncoderConfig, Imagining
from procap.models.vqgan import encode_pictures
from procap.procedure.masking import Masking
from procap.procedure.objective import OURS, ProcedureBatch, Weights, draw, losses
from tests.benchmarks import naive, operations
from tests.small import (
    VQGAN_CONFIG,
    decoder_config,
    encoder_config,
    features,
    generator,
    sentences,
    shaken,
    small_encoder,
    small_vqgan,
)

REFERENCE = {
    "start": "usual", "activation": "quick_gelu", "reserved": True, "special_positions": True, "csy_sees": "frames",
    "pads": "placed",
}  # fmt: skip
SHIFTED = Imagining(prompt="without_align", prompt_rows="first", mask_rows="shifted")
CONFIGURATIONS = {"ours": {}, "reference": REFERENCE, "one layer": REFERENCE | {"layers": 1}}
WEIGHTS = Weights(7.0, 0.5, 0.5)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=CONFIGURATIONS)
def choices(request):
    return CONFIGURATIONS[request.param]


@pytest.fixture(params=["normalised", "raw"])
def vqgan(request):
    vqgan = frozen(small_vqgan())
    vqgan.config = replace(VQGAN_CONFIG, features=request.param)
    return vqgan


def photographs(b: int, t: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(b, t, 3, 32, 32, generator=generator(seed))


def cached(vqgan, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found, codes = encode_pictures(vqgan, pictures.flatten(0, 1))
    return found.float().unflatten(0, pictures.shape[:2]), codes.unflatten(0, pictures.shape[:2])


def gradients(module: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad(set_to_none=True)
    loss.backward()
    return {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}


def same_gradients(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **CLOSE, msg=name)


def prepared(vqgan, b: int = 6):
    """(batch, draws, pictures, pictures after a warp)."""
    pictures, words = photographs(b, 4), sentences(b)
    shown, codes = cached(vqgan, pictures)
    other = torch.randn(b, 2, *shown.shape[2:], generator=generator(1))
    batch = ProcedureBatch(shown, codes, words, other, torch.zeros(b, 2, dtype=torch.long))
    drawn = draw(batch, 4, Masking((0.4, 0.2, 0.2, 0.2), 0.5), OURS, generator(2))
    warped = photographs(b, 4, seed=3)
    return batch, replace(drawn, warped=cached(vqgan, warped)[0]), pictures, warped


def test_one_pass_over_cached_features_equals_three_over_pictures(choices, vqgan):
    encoder = small_encoder(**choices)
    batch, draws, pictures, warped = prepared(vqgan)
    assert draws.misaligned.any()
    assert not draws.seen.all()
    found, _ = losses(encoder, batch, draws)
    fast = sum(getattr(WEIGHTS, name) * value for name, value in found.items())
    slow = sum(naive.stage_1(encoder, vqgan, pictures, warped, batch.words, draws, WEIGHTS))
    torch.testing.assert_close(fast, slow, **CLOSE)
    same_gradients(gradients(encoder, fast), gradients(encoder, slow))


def test_checkpointing_changes_no_bit(choices):
    batch, draws, *_ = prepared(frozen(small_vqgan()))
    results = []
    for kept in (False, True):
        encoder = small_encoder(**choices)
        encoder.checkpointing = kept
        loss = sum(losses(encoder, batch, draws)[0].values())
        results.append((loss.detach(), gradients(encoder, loss)))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])


def captioner(choices: dict[str, object], style: str, imagining: Imagining) -> EncoderDecoder:
    config = EncoderDecoderConfig(encoder_config(**choices), decoder_config(style=style), 0.1, "sum", imagining)
    return shaken(build(lambda: EncoderDecoder(config), generator(4)), 0.3)


CAPTIONERS = {
    "ours": ({}, "compact", Imagining()),
    "reference": (REFERENCE, "reference", SHIFTED),
}


@pytest.fixture(params=CAPTIONERS)
def network(request):
    return captioner(*CAPTIONERS[request.param])


def test_stage_2_equals_its_naive_form(network, vqgan):
    pictures, words = photographs(5, 2), sentences(5)
    fast = word_loss(network(cached(vqgan, pictures)[0], words), words, 0.1, "sum")
    slow = naive.stage_2(network, vqgan, pictures, words)
    torch.testing.assert_close(fast, slow, **CLOSE)
    one, other = gradients(network, fast), gradients(network, slow)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5 * float(one[name].abs().max()) + 1e-5)


@torch.no_grad()
def test_sentences_with_a_cache_are_those_without(network):
    seen = features(32)
    if network.config.decoder.style == "compact":
        network.decoder.bias[EOS] -= 3  # else it says nothing
    said = [found.ids for found in search(network.decoder.step, network.read(seen), 7)]
    assert said == naive.decode(network, naive.imagine(network, seen))
    assert len({len(ids) for ids in said}) > 1, "all end at once: nothing leaves the batch"
    assert len(set(said)) > 3


@torch.no_grad()
def test_sentences_from_pictures_are_those_from_cached_features(network, vqgan):
    pictures = photographs(3, 2)
    said = [found.ids for found in search(network.decoder.step, network.read(cached(vqgan, pictures)[0]), 7)]
    assert said == naive.caption(network, vqgan, pictures)


def counted(call) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops()


def test_operations_are_what_torch_counts(choices):
    encoder, vqgan = small_encoder(**choices), frozen(small_vqgan())
    batch, draws, *_ = prepared(vqgan)
    hidden = int((~draws.kept).sum())

    def slow() -> None:
        for part in naive.stage_1_of_features(
            encoder, batch.features, draws.warped, batch.tokens, batch.words, draws, WEIGHTS
        ):
            part.backward()

    assert counted(slow) == operations.stage_1(encoder.config, 6, hidden, naive=True)
    fast = counted(lambda: sum(losses(encoder, batch, draws)[0].values()).backward())
    assert fast == operations.stage_1(encoder.config, 6, hidden)


def test_operations_of_captioning_are_what_torch_counts(network):
    seen, words = features(3), sentences(3)
    start, config = network.encoder.prompt(1, network.config.imagining).shape[1], network.config
    network.requires_grad_(True)
    fast = counted(lambda: network(seen, words).sum().backward())
    assert fast == operations.stage_2(config, 3, start)
    imagined = torch.randn(3, 4, 16, 48, generator=generator())
    assert counted(lambda: naive.decode(network, imagined)) == operations.decode(config, 3, naive=True)


def test_operations_of_the_published_tokenizer():
    from procap.models.vqgan import VQGANConfig

    published = operations.tokenizer(VQGANConfig(128, (1, 1, 2, 2, 4), 2, 1024, 256, 224))
    assert published == pytest.approx(2 * 53e9, rel=0.02)


def test_the_clevr_encoder_needs_what_its_sizes_say():
    config = EncoderConfig(4, 14, 256, 1024, 80, 24, 768, 12, 12, **REFERENCE)
    assert operations.encoder(config, 1) == pytest.approx(2 * 81e9, rel=0.01)
