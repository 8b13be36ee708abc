"""The caption decoder: word by word with a cache, or all at once, it says the same."""

import pytest
import torch

from procap.models.caption_decoder import STYLES
from tests.small import generator, sentences, small_decoder


def memory(b: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(b, 10, 32, generator=generator(seed))


@pytest.fixture(params=sorted(STYLES))
def decoder(request):
    return small_decoder(style=request.param)


def test_step_by_step_equals_all_at_once(decoder):
    words = sentences(3)
    read, past, stepped = decoder.read(memory()), None, []
    for place in range(words.shape[1]):
        logits, past = decoder.step(words[:, place], place, read, past)
        stepped.append(logits)
        assert all(kept.shape[2] == place + 1 for pair in past for kept in pair)
    assert torch.allclose(torch.stack(stepped, 1), decoder(words, read), atol=1e-4)


def test_a_word_does_not_know_later_words(decoder):
    words = sentences(3)
    read = decoder.read(memory())
    other = words.clone()
    other[:, 4] = (other[:, 4] + 1) % 20
    before, after = decoder(words, read), decoder(other, read)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert not torch.isclose(before[:, 4:], after[:, 4:], atol=1e-3).all(-1).any()


def test_order_and_memory_matter(decoder):
    first = decoder(torch.tensor([[4, 9, 10, 11]]), decoder.read(memory(1)))
    turned = decoder(torch.tensor([[4, 10, 9, 11]]), decoder.read(memory(1)))
    elsewhere = decoder(torch.tensor([[4, 9, 10, 11]]), decoder.read(memory(1, seed=5)))
    assert not torch.allclose(first[:, -1], turned[:, -1], atol=1e-3)
    assert not torch.allclose(first[:, 0], elsewhere[:, 0], atol=1e-3)


@pytest.mark.parametrize("style", sorted(STYLES))
def test_dropout_needs_a_generator_and_follows_it(style):
    decoder, words = small_decoder(dropout=0.3, style=style), sentences(3)
    read = decoder.read(memory())
    assert torch.equal(decoder(words, read), decoder(words, read))
    one, same, other = (decoder(words, read, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other, atol=1e-3)
    assert not torch.allclose(one, decoder(words, read), atol=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    from procap.models.layers import dropout

    dropped = dropout(torch.ones(200_000), rate, generator())
    assert (dropped == 0).float().mean() == pytest.approx(rate, abs=0.01)
    assert dropped.mean() == pytest.approx(1, abs=0.01)
