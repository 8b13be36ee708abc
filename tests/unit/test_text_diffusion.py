"""The forward process, its reversal and the losses do what their formulas say."""

import math

import pytest
import torch

from procap.captioners import Prediction
from procap.captioners.diffusion import barred_words, chosen
from procap.datasets.vocabulary import EOS, PAD, SPECIALS
from procap.models.build import build
from procap.models.caption_decoder import waves
from procap.models.mediator import DirectAttention, MediatorAttention
from procap.models.text_diffusion import (
    SPREAD,
    Estimate,
    TextDiffusion,
    context_bound,
    context_loss,
    draw_levels,
    noised,
    place_levels,
    rounding_error,
    squared_error,
    word_bound,
)
from tests.small import generator, sentences, shaken, text_config


def small(seed: int = 0, **changes) -> TextDiffusion:
    return shaken(build(lambda: TextDiffusion(text_config(8, **changes)), generator(seed))).eval()


def condition(diffusion: TextDiffusion, pairs: int = 3, seed: int = 0):
    return diffusion.denoiser.read(torch.randn(pairs, 5, 8, generator=generator(seed)))


def test_noise_grows_from_almost_none_to_all():
    diffusion = small(noise=1.0)
    kept = diffusion.kept(torch.arange(0.0, 1001))
    assert kept[0] == pytest.approx(0.99)
    assert kept[-1] == 0
    assert (kept.diff() < 0)[:-1].all()
    assert kept[250] == pytest.approx(1 - math.sqrt(0.2501), abs=1e-6)


def test_the_noise_factor_is_one_on_the_noise():
    """x_t is as clear as if the plain schedule had F times the noise."""
    levels = torch.arange(0.0, 1001)
    plain, more = small(noise=1.0).signal(levels), small(noise=3.0).signal(levels)
    torch.testing.assert_close(more, plain / 9)


def test_the_first_places_leave_the_noise_first():
    config, sentences_at = text_config(8, lead=1.0), torch.tensor([1000.0, 500.0, 0.0])
    levels = place_levels(config, sentences_at)
    assert levels[0].tolist() == [1000] * 6
    assert levels[2].tolist() == [0] * 6
    torch.testing.assert_close(levels[1], torch.tensor([0.0, 200, 400, 600, 800, 1000]))
    together = place_levels(text_config(8, lead=0.0), sentences_at)
    assert torch.equal(together, sentences_at[:, None].expand(3, 6))


def test_each_place_knows_what_its_own_vector_tells():
    """A denoiser that adds nothing leaves p(w | x_t) of Gaussian noise around equally likely words."""
    diffusion = build(lambda: TextDiffusion(text_config(8)), generator()).eval()
    torch.nn.init.zeros_(diffusion.denoiser.leave.weight)
    torch.nn.init.zeros_(diffusion.denoiser.leave.bias)
    x_t, t = torch.randn(3, 6, 16, generator=generator(3)), torch.full((3, 6), 300.0)
    kept = diffusion.kept(t[0, 0])
    noise = torch.distributions.Normal(kept.sqrt() * diffusion.table, (1 - kept).sqrt())
    chances = noise.log_prob(x_t[:, :, None]).sum(-1).log_softmax(-1)
    found = diffusion.predict_x0(x_t, t, condition(diffusion)).logits.log_softmax(-1)
    torch.testing.assert_close(found, chances, atol=1e-4, rtol=1e-4)
    at_last = diffusion.predict_x0(x_t, torch.full((3, 6), 1000.0), condition(diffusion)).logits
    assert (at_last == 0).all(), "pure noise tells nothing"


def test_shuffled_rows_have_the_same_levels_in_another_order():
    config, words = text_config(8, lead=4.0, shuffled=0.5), torch.arange(3, 9)[None].repeat(400, 1)
    t = draw_levels(config, words, generator())
    ordered = (t.diff(dim=1) >= 0).all(1)
    assert 0.45 < ordered.float().mean() < 0.75, "half of them, and those in which no or all places are clean"
    rows = t[~ordered].sort(1).values
    on_its_way = (rows > 0) & (rows < 1000)
    assert on_its_way.sum(1).max() <= 2, "as many as are on their way at once in order"
    assert {int(place) for place in t[~ordered].argmin(1)} == {0, 1, 2, 3, 4, 5}
    assert (draw_levels(text_config(8, lead=4.0), words, generator()).diff(dim=1) >= 0).all()


@pytest.mark.parametrize("t", [0.0, 40.0, 500.0, 1000.0])
def test_x_t_has_the_mean_and_the_variance_of_its_level(t):
    diffusion, x_0 = small(), torch.full((20_000, 1, 2), 3.0)
    noise = torch.randn(x_0.shape, generator=generator())
    x_t = diffusion.q_sample(x_0, torch.full((20_000, 1), t), noise)
    kept = diffusion.kept(torch.tensor(t))
    assert x_t.mean().item() == pytest.approx(3 * kept.sqrt().item(), abs=0.02)
    assert x_t.var().item() == pytest.approx(1 - kept.item(), rel=0.02)


@pytest.mark.parametrize(("t", "s"), [(1000.0, 700.0), (700.0, 20.0), (20.0, 0.0)])
def test_a_ddim_step_with_the_true_x_0_is_exact(t, s):
    diffusion = small()
    x_0, noise = (torch.randn(4, 6, 16, generator=generator(seed)) for seed in (1, 2))
    levels = [torch.full((4, 6), level) for level in (t, s)]
    x_t, x_s = (diffusion.q_sample(x_0, level, noise) for level in levels)
    torch.testing.assert_close(diffusion.p_sample(x_t, x_0, torch.tensor(t), torch.tensor(s)), x_s, atol=1e-4, rtol=0)


@pytest.mark.parametrize("lead", [0.0, 2.0])
@pytest.mark.parametrize("clamping", [0.0, 0.5, 1.0])
def test_sampling_with_a_denoiser_that_knows_ends_with_its_words(clamping, lead, monkeypatch):
    """Every x_t on the way is what q_sample makes of the true x_0 and the noise it began with."""
    diffusion, words = small(clamping=clamping, lead=lead), sentences(3)[:, 1:]
    seen, x_0 = [], diffusion.embed(words)
    logits = torch.nn.functional.one_hot(words, 20) * 50.0

    def knows(x_t, t, condition, previous, barred):
        seen.append((x_t, t))
        return Estimate(x_0, logits)

    monkeypatch.setattr(diffusion, "predict_x0", knows)
    noise = torch.randn(3, 6, 16, generator=generator(4))
    *_, last = diffusion.sample([], noise, 5, barred_words(diffusion.config, torch.device("cpu")))
    assert torch.equal(last.logits.argmax(-1), words)
    levels = [1000, 800, 600, 400, 200] if lead == 0 else [1000, 1000, 1000, 1000, 600]
    assert [round(t[0, -1].item()) for _, t in seen] == levels
    for x_t, t in seen:
        torch.testing.assert_close(x_t, diffusion.q_sample(x_0, t, noise), atol=1e-4, rtol=0)


def test_clamping_rounds_the_last_estimates_only(monkeypatch):
    diffusion = small(clamping=0.5, lead=0.0)
    met = []
    step = diffusion.p_sample
    monkeypatch.setattr(diffusion, "p_sample", lambda x_t, x_0, t, s: met.append(x_0) or step(x_t, x_0, t, s))
    noise = torch.randn(3, 6, 16, generator=generator(4))
    list(diffusion.sample(condition(diffusion), noise, 4, barred_words(diffusion.config, torch.device("cpu"))))
    distance = [torch.cdist(x_0.flatten(0, 1), diffusion.table).min(1).values.max().item() for x_0 in met]
    assert min(distance[:2]) > 0.1
    assert max(distance[2:]) < 1e-3


def test_at_level_0_the_words_themselves_are_to_be_found():
    diffusion, words = small(), sentences(4)[:, 1:]
    t = torch.tensor([0.0, 0.0, 300.0, 300.0])[:, None].expand(4, 6)
    one = noised(diffusion, words, t, generator())
    means = diffusion.embed(words)
    assert torch.equal(one.target[:2], means[:2])
    assert torch.equal(one.target[2:], one.x_0[2:])
    assert (one.x_0 - means).std().item() == pytest.approx(SPREAD, rel=0.1)


def test_levels_are_spread_over_the_rows():
    words = sentences(50)[:, 1:]
    t = draw_levels(text_config(8, lead=0.0), words, generator())
    assert t.shape == (50, 6)
    assert torch.equal(t, t[:, :1].expand(50, 6))
    assert sorted((t[:, 0] // 20).tolist()) == list(range(50))


def test_no_row_is_spent_on_padding():
    """Whatever the level, a word or the end of the sentence is under noise, and they are met at all levels."""
    words = torch.tensor([[7, 8, EOS, PAD, PAD, PAD], [7, 8, 9, 7, 8, EOS]]).repeat(200, 1)
    t = draw_levels(text_config(8, lead=4.0), words, generator())
    said = t.where(words != PAD, torch.zeros(()))
    assert (said.amax(1) > 0).float().mean() > 0.98, "but for the rows of level 0"
    for row, last in ((0, 2), (1, 5)):
        assert t[row::2, last].min() < 50
        assert t[row::2, 0].max() > 900


def test_embeddings_learn_to_be_told_apart():
    """All words start at one point, where rounding x_0 is a guess; the rounding term drives them apart."""
    diffusion = small(embedding=8)
    with torch.no_grad():
        diffusion.embedding.copy_(torch.ones(20, 8) + 0.01 * torch.randn(20, 8, generator=generator()))
    words = torch.arange(20).repeat(8)[: 6 * 26].reshape(26, 6)

    def right() -> float:
        one = noised(diffusion, words, torch.zeros(26, 6), generator(1))
        return ((one.x_0 @ diffusion.table.T).argmax(-1) == words).float().mean().item()

    assert right() < 0.5
    optimiser = torch.optim.Adam([diffusion.embedding], lr=0.05)
    for step in range(60):
        optimiser.zero_grad()
        one = noised(diffusion, words, torch.zeros(26, 6), generator(step))
        rounding_error(one.x_0 @ diffusion.table.T, words).mean().backward()
        optimiser.step()
    assert right() > 0.99
    torch.testing.assert_close(diffusion.table.norm(dim=-1), torch.full((20,), 8**0.5))


def test_the_estimate_is_a_mean_of_embeddings():
    diffusion = small()
    x_t = torch.randn(3, 6, 16, generator=generator(3))
    found = diffusion.predict_x0(x_t, torch.full((3, 6), 400.0), condition(diffusion))
    torch.testing.assert_close(found.x_0, found.logits.softmax(-1) @ diffusion.table)
    assert (found.x_0.norm(dim=-1) < 4).all(), "inside the ball on which the embeddings lie"


def test_rows_of_a_pair_do_not_see_one_another():
    for mediators in (0, 3):
        diffusion = small(mediators=mediators)
        read = condition(diffusion)
        x_t, t = torch.randn(6, 6, 16, generator=generator(3)), torch.full((6, 6), 400.0)
        together = diffusion.predict_x0(x_t, t, read).x_0
        for row in range(6):
            pair = [(keys[row // 2, None], values[row // 2, None]) for keys, values in read]
            alone = diffusion.predict_x0(x_t[row, None], t[:1], pair).x_0
            torch.testing.assert_close(together[row, None], alone, atol=1e-5, rtol=1e-4)


def test_mediators_are_two_attentions_one_after_the_other():
    """softmax(Q M^T) softmax(M K^T) V, written out with matrices."""
    attention = shaken(MediatorAttention(8, 2, 5, 3), 0.5).eval()
    x, memory = torch.randn(2, 4, 8, generator=generator(1)), torch.randn(2, 7, 5, generator=generator(2))
    keys, values = attention.keys_values(memory)
    heads = []
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        q, pool = attention.query(x)[..., part], attention.pool[..., part]
        mediators = (pool @ q.mT / 2).softmax(-1) @ q
        weights = (q @ mediators.mT / 2).softmax(-1) @ (mediators @ keys[:, head].mT / 2).softmax(-1)
        torch.testing.assert_close(attention.weights(x, keys)[:, head], weights)
        heads.append(weights @ values[:, head])
    torch.testing.assert_close(attention.attend(x, keys, values), attention.out(torch.cat(heads, -1)))


@pytest.mark.parametrize("kind", [lambda: MediatorAttention(8, 2, 5, 3), lambda: DirectAttention(8, 2, 5)])
def test_what_words_look_at_sums_to_one(kind):
    attention = shaken(kind(), 0.5)
    keys, _ = attention.keys_values(torch.randn(2, 7, 5, generator=generator(2)))
    seen = attention.weights(torch.randn(2, 4, 8, generator=generator(1)), keys)
    torch.testing.assert_close(seen.sum(-1), torch.ones(2, 2, 4))


def test_the_context_term_scores_hidden_words_and_shows_nothing_of_them(monkeypatch):
    diffusion, words = small(), sentences(6)[:, 1:]
    one = noised(diffusion, words, torch.full((6, 6), 100.0), generator())
    seen = {}
    predict = diffusion.predict_x0

    def watch(x_t, t, condition):
        seen.update(x_t=x_t, t=t, found=predict(x_t, t, condition))
        return seen["found"]

    monkeypatch.setattr(diffusion, "predict_x0", watch)
    loss = context_loss(diffusion, one, condition(diffusion, 6), generator(7))
    away = seen["t"] == 1000
    assert sorted(away.sum(1).tolist()) == [1, 2, 3, 4, 5, 6], "from one place to all"
    assert torch.equal(seen["t"][~away], one.t[~away])
    assert torch.equal(seen["x_t"][~away], one.x_t[~away])
    error = squared_error(seen["found"], one.x_0) + rounding_error(seen["found"].logits, one.words)
    torch.testing.assert_close(loss, torch.stack([row[here].mean() for row, here in zip(error, away, strict=True)]))
    shown = seen["x_t"]
    other = noised(diffusion, words.flip(0), torch.full((6, 6), 100.0), generator())
    context_loss(diffusion, other, condition(diffusion, 6), generator(7))
    assert torch.equal(seen["x_t"][away], shown[away]), "whatever the words are"
    assert not torch.isclose(seen["x_t"], shown)[~away].all()


@pytest.mark.parametrize("bound", [word_bound, context_bound])
def test_a_bound_of_a_guess_is_the_guess_and_of_a_sure_denoiser_almost_nothing(bound, monkeypatch):
    diffusion, words = small(), sentences(6)[:, 1:]
    read = condition(diffusion, 6)
    one_hot = torch.nn.functional.one_hot(words, 20) * 100.0

    def says(logits):
        monkeypatch.setattr(
            diffusion, "predict_x0", lambda x_t, t, condition: Estimate(logits.softmax(-1) @ diffusion.table, logits)
        )
        return bound(diffusion, words, read, 40, generator(1))

    sure, guess = says(one_hot.repeat_interleave(40, 0)), says(torch.zeros(240, 6, 20))
    assert (sure < guess).all()
    if bound is context_bound:
        torch.testing.assert_close(guess, torch.full((6,), 6 * math.log(20)))
        assert sure.max() < 1e-3
    else:
        assert (guess > 6 * math.log(20)).all(), "a bound from above"


def test_only_words_are_sampled_and_the_last_place_ends_a_sentence():
    barred = barred_words(text_config(8), torch.device("cpu"))
    assert barred.shape == (6, 20)
    assert (~barred[:-1]).sum(1).tolist() == [20 - len(SPECIALS) + 2] * 5
    assert (~barred[-1]).nonzero()[:, 0].tolist() == sorted([PAD, EOS])


def test_the_candidate_that_agrees_with_the_others_is_said():
    said = [(1, 2, 3, 4), (1, 2, 3, 4, 5), (9, 8, 7, 6, 5), (1, 2, 3, 4, 6)]
    assert chosen([Prediction(ids, 0.5) for ids in said]) in (0, 1, 3)
    assert chosen([Prediction(ids, 0.5) for ids in (said[2], said[0], said[0])]) == 1
    assert chosen([Prediction(said[0], 0.5)]) == 0


def test_waves_are_the_same_for_whole_and_broken_numbers():
    torch.testing.assert_close(waves(torch.arange(5), 6), waves(torch.arange(5.0), 6))
    between = waves(torch.tensor([2.5]), 6)
    assert between[0, 0] == pytest.approx(math.sin(2.5))
