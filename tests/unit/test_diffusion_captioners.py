"""Each part of MCT-CCDiff and DECIDER does what its name promises, on captioners trained on a toy world."""

import math

import pytest
import torch

from procap.captioners import GREEDY, Batch, Decoding
from procap.captioners.contrast import alike, another, info_nce, pooled, temperature
from procap.captioners.decider import caption_errors, contrastive_loss, hard_negative, hard_positive
from procap.datasets.vocabulary import PAD, SPECIALS
from procap.models.text_diffusion import context_bound, draw_levels, draw_noise, word_bound
from tests.diffused import decider, mct_ccdiff, world
from tests.small import generator, small_captioner

PLAIN = {"tecl": 0.0, "context": 0.0}


def right(captioner, batch: Batch, decoding: Decoding = GREEDY) -> float:
    """Share of the pairs of which one of their captions is said."""
    said = captioner.caption(batch.features, decoding=decoding, generator=generator(1))
    known = [{tuple(i for i in row if i >= len(SPECIALS)) for row in rows} for rows in batch.captions.tolist()]
    return sum(one.ids in rows for one, rows in zip(said, known, strict=True)) / len(said)


def spread(captioner, batch: Batch) -> float:
    """Mean cosine of the embeddings of captions that say different things."""
    embed, words = captioner.average.module.text.embed, batch.words[:, 1:]
    vectors = pooled(embed(words), words)
    return (vectors @ vectors.T)[~alike(batch)].mean().item()


def test_tecl_drives_different_captions_apart_at_no_loss_of_words():
    batch, _ = world(64, seed=5)
    plain, contrasted = mct_ccdiff(**PLAIN), mct_ccdiff(**PLAIN | {"tecl": 0.1})
    assert spread(contrasted, batch) < spread(plain, batch) - 0.08
    assert right(contrasted, batch) >= right(plain, batch) - 0.05
    assert right(plain, batch) > 0.9


def test_mediators_say_as_much_as_direct_attention():
    batch, _ = world(64, seed=5)
    assert right(mct_ccdiff(**PLAIN), batch) >= right(mct_ccdiff(**PLAIN | {"mediators": 0}), batch) - 0.05


def bounds(captioner, batch: Batch) -> torch.Tensor:
    """Of -log p(w), per pair: by the diffusion and by the neighbours."""
    network, words = captioner.average.module, batch.words[:, 1:]
    condition = network.text.denoiser.read(network.memory(batch.features))
    ways = word_bound, context_bound
    return torch.stack([bound(network.text, words, condition, 16, generator(3)) for bound in ways])


def test_the_context_term_makes_the_bound_tighter():
    """The estimate of -log p(w) is the lower one of the two; log 2 is what the pair leaves open."""
    batch, _ = world(64, seed=5)
    plain, helped = (bounds(mct_ccdiff(**PLAIN | {"context": weight}), batch) for weight in (0.0, 0.5))
    assert helped.min(0).values.mean() < plain.min(0).values.mean() - 0.5
    assert helped[1].mean() > 0.6
    assert right(mct_ccdiff(**PLAIN | {"context": 0.5}), batch) > 0.8


def test_negatives_say_something_else():
    batch, _ = world(24)
    same = alike(batch)
    for one in range(24):
        for other in range(24):
            shared = {tuple(row) for row in batch.captions[one].tolist()} & {
                tuple(row) for row in batch.captions[other].tolist()
            }
            assert same[one, other] == bool(shared)
    alone = Batch(batch.features, batch.words)
    assert torch.equal(alike(alone), (batch.words[:, None] == batch.words[None]).all(-1))
    assert alike(alone).float().mean() < same.float().mean()


def test_rows_of_pads_make_no_two_pairs_alike():
    batch, _ = world(6)
    captions = torch.cat([batch.captions, torch.full_like(batch.captions[:, :1], PAD)], 1)
    assert torch.equal(alike(Batch(batch.features, batch.words, captions)), alike(batch))


def test_another_caption_is_the_pairs_own_and_not_the_same():
    batch, _ = world(24)
    other = another(batch, generator())
    assert (other != batch.words).any(1).all()
    assert all(row.tolist() in rows.tolist() for row, rows in zip(other, batch.captions, strict=True))
    assert torch.equal(another(Batch(batch.features, batch.words), generator()), batch.words)
    single = Batch(batch.features, batch.words, batch.words[:, None])
    assert torch.equal(another(single, generator()), batch.words)


def test_info_nce_counts_the_negatives_that_are_none():
    vectors = torch.nn.functional.normalize(torch.randn(5, 8, generator=generator()), dim=-1)
    nothing = torch.zeros(5, 5, dtype=torch.bool)
    assert info_nce(vectors, vectors, ~nothing, torch.tensor(0.1)) == pytest.approx(0, abs=1e-6)
    assert info_nce(torch.ones(5, 8), torch.ones(5, 8), nothing, torch.tensor(1.0)) == pytest.approx(math.log(5))
    near, far = (info_nce(vectors, others, nothing, torch.tensor(0.1)) for others in (vectors, -vectors))
    assert near < far
    for sharpness in (-50.0, 0.0, 50.0):
        assert 0.0499 < temperature(torch.tensor(sharpness)) <= 1


def test_the_code_tells_more_where_something_changed():
    batch, mask = world(64, seed=5)
    told = decider().average.module.code(batch.features).divergence()
    changed, unchanged = told[::2], told[1::2]
    assert changed.mean() > 1.1 * unchanged.mean()
    ranks = told[::2].argsort(1).argsort(1)[mask[::2]].float()
    assert ranks.mean() > 14, "of 16 places, the changed one tells most; chance is 7.5"


def test_without_a_bottleneck_nothing_holds_the_code_back():
    batch, _ = world(64, seed=5)
    free, held = (
        decider(60, bottleneck=beta, contrast=0.0).average.module.code(batch.features).divergence().mean()
        for beta in (0.0, 0.01)
    )
    assert held < 0.8 * free


def adversaries(captioner, batch: Batch, length: float):
    """Errors of captions under codes, clean and after the adversarial steps, all under one noise."""
    network = captioner.network
    text, z, words = network.text, network.code(batch.features).mean, batch.words[:, 1:]
    t = draw_levels(text.config, words, generator(2)).clamp(min=300)
    noise = draw_noise(torch.Size((*words.shape, text.config.embedding)), generator(3), torch.device("cpu"))
    x_0 = text.embed(words)
    other = x_0.roll(1, 0)
    far, near = hard_positive(text, x_0, t, noise, z, length), hard_negative(text, other, t, noise, z, length)
    with torch.no_grad():
        errors = [
            caption_errors(text, x[:, None], t, noise, code)[:, 0]
            for x, code in ((x_0, z), (x_0, far), (other, z), (near, z))
        ]
    return errors, (far - z).norm(dim=(1, 2)), (near - other).norm(dim=(1, 2))


def test_hard_samples_are_harder_than_clean_ones():
    batch, _ = world(48, seed=5)
    (clean, positive, foreign, negative), far, near = adversaries(decider(), batch, 0.1)
    torch.testing.assert_close(far, torch.full((48,), 0.1), rtol=1e-3, atol=0)
    torch.testing.assert_close(near, torch.full((48,), 0.1), rtol=1e-3, atol=0)
    assert (positive >= clean - 1e-6).float().mean() > 0.9
    assert (negative <= foreign + 1e-6).float().mean() > 0.9
    assert positive.mean() > clean.mean()
    assert negative.mean() < foreign.mean()


def test_an_adversarial_step_goes_along_the_gradient():
    """Along it the loss changes by length times the gradient's norm, to first order."""
    batch, _ = world(24, seed=5)
    steps = [adversaries(decider(), batch, length)[0] for length in (1e-3, 2e-3)]
    (clean, once, _, _), (_, twice, _, _) = steps
    rise, double = (once - clean).double(), (twice - clean).double()
    steep = rise > rise.median()
    assert (rise[steep] > 0).all()
    torch.testing.assert_close(double[steep] / rise[steep], torch.full_like(rise[steep], 2.0), rtol=0.3, atol=0)


def test_the_adversary_leaves_no_gradient_behind():
    captioner = small_captioner("decider").train()
    batch, z = world(6)[0], torch.randn(6, 16, 24, generator=generator(), requires_grad=True)
    text = captioner.network.text
    words = batch.words[:, 1:].clamp(max=19)
    t, noise = torch.full((6, 6), 500.0), torch.randn(6, 6, 16, generator=generator())
    far = hard_positive(text, text.embed(words), t, noise, z, 1.0)
    far.sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z)), "the step itself is a constant"
    assert all(weight.grad is None for weight in text.denoiser.parameters())


def test_the_contrast_is_a_bound_of_the_information_between_caption_and_code():
    """log(options) - loss never exceeds log(options), and is 0 or less where scores know nothing of the pair."""
    draw = generator()
    for positives in (1, 2):
        for scale in (0.1, 3.0, 100.0):
            scores = scale * torch.randn(500, 6, generator=draw)
            everything = torch.ones(500, 6, dtype=torch.bool)
            assert math.log(6) - contrastive_loss(scores, everything, positives) <= 1e-5
            scores[:, :positives] = scores.max() + 1000
            bound = math.log(6) - contrastive_loss(scores, everything, positives)
            assert bound == pytest.approx(math.log(6) - math.log(positives), abs=1e-4)
            assert bound <= math.log(6)


def test_a_trained_code_knows_its_caption():
    batch, _ = world(48, seed=5)
    scores, allowed = decider().candidates(
        decider().network.code(batch.features).mean, batch.words[:, 1:], alike(batch), generator(4)
    )
    options = allowed.sum(1).float().log().mean()
    assert 0.2 < options - contrastive_loss(scores, allowed, 2) <= options
    guess = contrastive_loss(torch.zeros_like(scores), allowed, 2)
    assert options - guess == pytest.approx(0, abs=1e-5)


def test_beta_rises_with_the_updates():
    captioner = small_captioner("decider").train()
    batch = world(6)[0]
    batch = Batch(batch.features, batch.words.clamp(max=19))
    terms = []
    for _ in range(30):
        terms.append(captioner.loss(batch, generator=generator(3))["bottleneck"].item())
        captioner.updated()
    assert terms[9] == pytest.approx(10 * terms[0], rel=1e-4)
    assert terms[19] == pytest.approx(terms[29], rel=1e-6)
    assert terms[19] == pytest.approx(20 * terms[0], rel=1e-4)


def test_the_average_follows_and_is_what_speaks():
    captioner = mct_ccdiff(**PLAIN)
    batch, _ = world(8, seed=5)
    before = captioner.caption(batch.features, decoding=GREEDY, generator=generator())
    kept = {name: weight.clone() for name, weight in captioner.network.state_dict().items()}
    try:
        with torch.no_grad():
            for weight in captioner.network.parameters():
                weight.mul_(0)
        assert captioner.caption(batch.features, decoding=GREEDY, generator=generator()) == before
    finally:
        captioner.network.load_state_dict(kept)
    assert captioner.updates == 150


def test_a_captioner_tells_how_its_sentence_came_about():
    batch, _ = world(12, seed=5)
    maps = []
    for captioner in (mct_ccdiff(**PLAIN), decider()):
        for decoding in (Decoding(steps=6), Decoding(steps=6, candidates=3)):
            said = captioner.caption(batch.features, decoding=decoding, generator=generator())
            why = captioner.why(batch.features, said, decoding=decoding, generator=generator())
            for one, reason in zip(said, why, strict=True):
                assert len(reason.drafts) == 6
                assert reason.drafts[-1] == one
                assert reason.attention.shape == (len(one.ids), 16)
                torch.testing.assert_close(reason.attention.sum(1), torch.ones(len(one.ids)))
        maps.append([reason.change_map for reason in why])
    assert any(reason.drafts[0].ids != reason.drafts[-1].ids for reason in why)
    assert maps[0] == [None] * 12
    told = torch.stack(maps[1])
    assert ((told >= 0) & (told <= 1)).all()
    assert told.max() > 0.2


def test_words_look_where_something_changed():
    batch, mask = world(32, seed=5)
    captioner = mct_ccdiff(**PLAIN)
    said = captioner.caption(batch.features, decoding=GREEDY, generator=generator())
    why = captioner.why(batch.features, said, decoding=GREEDY, generator=generator())
    looks = torch.stack([reason.attention.mean(0) for reason in why])[::2]
    assert looks[mask[::2]].mean() > 3 / 16, "chance is 1/16"
