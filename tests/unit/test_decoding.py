"""Decoding against trying every sentence, on vocabularies where that can be done."""

import itertools
import math

import pytest
import torch

from procap.captioners import GREEDY, Decoding
from procap.captioners.decoding import search, word_loss
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from tests.small import generator, sentences, small_decoder

WORDS = tuple(range(len(SPECIALS), len(SPECIALS) + 3))
LENGTH = 5
ALL = [ids for count in range(LENGTH - 1) for ids in itertools.product(WORDS, repeat=count)]


@pytest.fixture(params=range(3))
def decoder(request):
    return small_decoder(request.param, vocabulary=len(SPECIALS) + 3, words=LENGTH)


@pytest.fixture
def read(decoder):
    return decoder.read(torch.randn(6, 10, 32, generator=generator(8)))


def chances(decoder, read) -> torch.Tensor:
    """Log-probability of every sentence of ALL for every pair, by teacher forcing: (sentences, pairs)."""
    out = []
    for ids in ALL:
        words = torch.tensor([BOS, *ids, EOS]).expand(read[0][0].shape[0], -1)
        logits = decoder(words, read)
        logits[..., [mark for mark in range(len(SPECIALS)) if mark != EOS]] = -torch.inf
        logs = logits.log_softmax(-1)[:, :-1].gather(2, words[:, 1:, None])[..., 0]
        out.append(logs.sum(1))
    return torch.stack(out).detach()


def test_a_search_wide_enough_finds_the_best_of_all_sentences(decoder, read):
    logs = chances(decoder, read)
    per_word = logs / torch.tensor([len(ids) + 1.0 for ids in ALL])[:, None]
    found = search(decoder.step, read, LENGTH, Decoding(len(ALL)))
    for pair, prediction in enumerate(found):
        best = int(per_word[:, pair].argmax())
        assert prediction.ids == ALL[best]
        assert prediction.probability == pytest.approx(float(logs[best, pair].exp()), rel=1e-3)


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_what_is_found_has_the_probability_it_claims(decoder, read, beams):
    logs = chances(decoder, read)
    for pair, prediction in enumerate(search(decoder.step, read, LENGTH, Decoding(beams))):
        assert prediction.probability == pytest.approx(float(logs[ALL.index(prediction.ids), pair].exp()), rel=1e-3)


def test_one_beam_is_greedy(decoder, read):
    allowed = [EOS, *WORDS]
    for pair, prediction in enumerate(search(decoder.step, read, LENGTH, GREEDY)):
        words, one = [BOS], [(k[pair : pair + 1], v[pair : pair + 1]) for k, v in read]
        while len(words) < LENGTH - 1 and words[-1] != EOS:
            logits = decoder(torch.tensor([words]), one)[0, -1]
            words.append(max(allowed, key=lambda word, logits=logits: float(logits[word])))
        assert prediction.ids == tuple(word for word in words[1:] if word != EOS)


def table(after: dict[int, dict[int, float]]):
    """A step that looks up how likely each word is after the last one."""

    def step(word, place, memory, past):
        logits = torch.full((len(word), 20), -50.0)
        for row, last in enumerate(word.tolist()):
            for following, chance in after.get(last, {EOS: 1.0}).items():
                logits[row, following] = math.log(chance)
        return logits, [(torch.zeros(len(word), 1, 1, 1),) * 2]

    return step


NOTHING = [(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))]


def test_two_beams_find_what_greedy_misses():
    after = {BOS: {10: 0.6, 11: 0.4}, 10: {12: 0.35, 13: 0.33, EOS: 0.32}, 11: {14: 1.0}}
    greedy, two = (search(table(after), NOTHING, 7, Decoding(beams))[0] for beams in (1, 2))
    assert greedy.ids == (10, 12)
    assert two.ids == (11, 14)
    assert two.probability == pytest.approx(0.4, rel=1e-4)


def test_the_best_sentence_is_best_per_word():
    after = {BOS: {EOS: 0.5, 10: 0.5}, 10: {11: 0.9, EOS: 0.1}, 11: {12: 1.0}}
    assert search(table(after), NOTHING, 7, Decoding(2))[0].ids == (10, 11, 12)


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0, 2.0])
def test_the_length_penalty_is_a_power_of_the_words(decoder, read, power):
    logs = chances(decoder, read)
    scores = logs / torch.tensor([len(ids) + 1.0 for ids in ALL])[:, None] ** power
    found = search(decoder.step, read, LENGTH, Decoding(len(ALL), length_penalty=power))
    assert [prediction.ids for prediction in found] == [ALL[int(best)] for best in scores.argmax(0)]


def test_length_penalties_choose_differently(decoder, read):
    ways = [Decoding(len(ALL), length_penalty=x) for x in (0.0, 2.0)]
    said = [[p.ids for p in search(decoder.step, read, LENGTH, way)] for way in ways]
    assert sum(map(len, said[0])) < sum(map(len, said[1]))


@pytest.mark.parametrize("n", [1, 2])
def test_the_best_of_all_sentences_that_say_nothing_twice(decoder, read, n):
    logs = chances(decoder, read)
    runs = [[ids[i : i + n] for i in range(len(ids) - n + 1)] for ids in ALL]
    repeats = torch.tensor([len(set(each)) < len(each) for each in runs])
    per_word = logs / torch.tensor([len(ids) + 1.0 for ids in ALL])[:, None]
    best = per_word.masked_fill(repeats[:, None], -torch.inf).argmax(0)
    found = search(decoder.step, read, LENGTH, Decoding(len(ALL), no_repeat=n))
    assert [prediction.ids for prediction in found] == [ALL[int(at)] for at in best]
    for pair, prediction in enumerate(found):
        assert prediction.probability == pytest.approx(float(logs[best[pair], pair].exp()), rel=1e-3)


def test_what_may_not_be_repeated_is_not():
    after = {word: {10: 0.6, 11: 0.3, EOS: 0.1} for word in (BOS, 10, 11)}
    for n, ids in ((0, (10, 10, 10, 10, 10)), (1, (10, 11)), (2, (10, 10, 11, 10)), (3, (10, 10, 10, 11, 10))):
        assert search(table(after), NOTHING, 7, Decoding(no_repeat=n))[0].ids == ids


@pytest.mark.parametrize("beams", [1, 3])
def test_pairs_leave_the_batch_when_they_are_done(beams):
    """Each pair, known by its memory, ends after as many words as its number says."""
    b, asked = 8, []

    def step(word, place, memory, past):
        asked.append(len(word))
        number = memory[0][0][:, 0, 0, 0].repeat_interleave(beams)
        logits = torch.full((len(word), 20), -50.0)
        logits[:, 10:12] = torch.tensor([-0.1, -3.0])
        logits[number == place, EOS] = 50.0
        return logits, [(torch.zeros(len(word), 1, 1, 1),) * 2]

    memory = [(torch.arange(b).float().reshape(b, 1, 1, 1),) * 2]
    found = search(step, memory, 12, Decoding(beams))
    assert [prediction.ids for prediction in found] == [(10,) * number for number in range(b)]
    assert asked == sorted(asked, reverse=True)
    assert len(set(asked)) > 3, "nobody leaves"
    assert asked[-1] <= 2 * beams


def test_marks_are_never_said():
    after = {BOS: {UNK: 0.9, PAD: 0.05, 10: 0.05}}
    prediction = search(table(after), NOTHING, 7, GREEDY)[0]
    assert prediction.ids == (10,)
    assert prediction.probability == pytest.approx(1, rel=1e-4), "of what may be said"


def test_a_sentence_ends_where_the_model_does():
    endless = {word: {10: 0.99, EOS: 0.01} for word in (BOS, 10)}
    prediction = search(table(endless), NOTHING, 6, GREEDY)[0]
    assert prediction.ids == (10,) * (6 - 2)
    assert prediction.probability == pytest.approx(0.99**4 * 0.01, rel=1e-3)


def test_the_loss_counts_words_up_to_the_end():
    words, v = sentences(4), 20
    logits = torch.randn(4, 7, v, generator=generator())
    logs, terms = logits.log_softmax(-1), []
    for row, place in itertools.product(range(4), range(6)):
        target = int(words[row, place + 1])
        if target != PAD:
            terms.append(-float(logs[row, place, target]))
    assert float(word_loss(logits, words, 0.0, "mean")) == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    logits[:, -1] += 100 * torch.randn(4, v, generator=generator())
    assert float(word_loss(logits, words, 0.0, "mean")) == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert float(word_loss(logits, words, 0.0, "sum")) == pytest.approx(sum(terms), rel=1e-5)
