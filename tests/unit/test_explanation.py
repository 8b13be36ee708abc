"""What is said to be the reason is what the network computed."""

import pytest
import torch

from procap.captioners.explanation import attention, evidence
from procap.captioners.scoring import log_chance_of_any, log_chances, padded
from procap.datasets.vocabulary import EOS, PAD, SPECIALS, UNK
from procap.models import looking
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.looking import looks
from tests.small import decoder_config, encoder_config, features, sentences, shaken, small_captioner, small_decoder

SAID = [(8, 12, 9), (), (17, 11, 11, 10, 19), (10,)]


def small_network(decoding: str = "search", start: str = "usual") -> EncoderDecoder:
    config = EncoderDecoderConfig(encoder_config(start=start), decoder_config(), 0.0, decoding=decoding)
    return shaken(EncoderDecoder(config), 0.3).eval().requires_grad_(False)


@pytest.mark.parametrize("style", ["compact", "reference"])
def test_the_pass_that_looks_says_what_the_decoder_says(style):
    decoder, words = small_decoder(style=style).eval(), sentences(3)
    memory = decoder.read(torch.randn(3, 10, 32, generator=torch.Generator().manual_seed(1)))
    seen, logits = looks(decoder, words, memory)
    torch.testing.assert_close(logits, decoder(words, memory))
    assert seen.shape == (2, 3, 4, 7, 10)
    torch.testing.assert_close(seen.sum(-1), torch.ones(2, 3, 4, 7))


@pytest.mark.parametrize("style", ["compact", "reference"])
def test_the_weights_are_those_that_attention_uses(style):
    attention = small_decoder(style=style).blocks[0].cross_attention
    x, memory = torch.randn(2, 3, 32), torch.randn(2, 5, 32)
    keys, values = attention.keys_values(memory)
    mixed = looking.weights(attention, x, keys) @ values
    torch.testing.assert_close(attention.out(mixed.transpose(1, 2).flatten(2)), attention.attend(x, keys, values))


def test_attention_of_a_pair_does_not_depend_on_its_neighbours():
    network, pairs = small_network(), features(4)
    together = attention(network, pairs, SAID)
    assert together.shape == (4, 6, 4, 16)  # the longest sentence and [EOS], frames, places
    torch.testing.assert_close(together.sum((2, 3)), torch.ones(4, 6))
    for pair, ids, found in zip(pairs, SAID, together, strict=True):
        alone = attention(network, pair[None], [ids])[0]
        torch.testing.assert_close(found[: len(ids) + 1], alone)


def test_attention_finds_the_place_that_tells():
    """Keys that answer to one place alone: that place has all the attention, in its frame."""
    network = small_network()
    memory = network.decoder.read(torch.zeros(1, 64, 32))
    chosen = 2 * 16 + 5
    for keys, _ in memory:
        keys.zero_()
    queries = []
    for block in network.decoder.blocks:
        block.cross_attention.query.weight.zero_()
        block.cross_attention.query.bias.fill_(30.0)
        queries.append(block)
    for keys, _ in memory:
        keys[:, :, chosen] = 30.0
    seen, _ = looks(network.decoder, padded([(9, 10)], torch.device("cpu")), memory)
    assert (seen[..., chosen] > 0.999).all()


@pytest.mark.parametrize("name", ["static", "procap"])
def test_evidence_sums_to_what_the_change_did_to_the_sentence(name):
    network = shaken(small_captioner(name), 0.05).network.requires_grad_(False)
    pairs, unchanged = features(4), features(4)[:, :1].expand(-1, 2, -1, -1)
    words = padded(SAID, pairs.device)
    told, before = (log_chances(network, words, network.read(seen)).sum(1) for seen in (pairs, unchanged))
    found = evidence(network, pairs, SAID)
    assert (told - before).abs().min() > 1e-3, "the change does nothing to one of the sentences: shows nothing"
    torch.testing.assert_close(found.sum(1), told - before, rtol=0.1, atol=2e-3)


def test_evidence_is_nothing_where_nothing_differs():
    network, pairs = small_network(), features(2)
    pairs[:, 1, 3:] = pairs[:, 0, 3:]
    found = evidence(network, pairs, SAID[:2])
    assert (found[:, 3:] == 0).all()
    assert found[:, :3].abs().min() > 0


def test_evidence_in_pieces_is_the_same(monkeypatch):
    from procap.captioners import explanation

    network, pairs = small_network(), features(3)
    whole = evidence(network, pairs, SAID[:3])
    monkeypatch.setattr(explanation, "AT_ONCE", 1)
    torch.testing.assert_close(evidence(network, pairs, SAID[:3]), whole)


@pytest.mark.parametrize("decoding", ["search", "reference"])
def test_all_sentences_of_a_kind_have_a_chance_of_one_in_the_end(decoding):
    """Over everything that can follow a word, the chances sum to one; marks that are never said have none."""
    network, pairs = small_network(decoding), features(2)
    nexts = [i for i in range(20) if i != UNK] if decoding == "reference" else [EOS, *range(len(SPECIALS), 20)]
    memory = network.read(pairs[:1])
    total = 0.0
    for word in nexts:
        chances = log_chances(network, torch.tensor([[4, 9, word]]), memory)[0]
        total += 1.0 if word == PAD else chances[1].exp().item()
    missing = 0.0 if decoding == "search" else 1.0 - _chance_of_pad(network, memory)
    assert total == pytest.approx(1 + missing, rel=1e-4)


def _chance_of_pad(network: EncoderDecoder, memory) -> float:
    logits = network.decoder(torch.tensor([[4, 9]]), memory)[0, 1]
    logits[UNK] = -torch.inf
    return logits.softmax(-1)[PAD].item()


def test_the_chance_of_any_is_the_sum_of_the_chances():
    network, pairs = small_network(), features(3)
    words = padded(SAID, pairs.device)
    together = log_chance_of_any(network, words, network.read(pairs)).exp()
    for pair, found in zip(pairs, together, strict=True):
        alone = [log_chances(network, padded([ids], pair.device), network.read(pair[None])).sum().exp() for ids in SAID]
        assert found == pytest.approx(sum(alone).item(), rel=1e-4)
