"""The stage-1 objective: what each loss looks at, and that the batched form equals one pair at a time."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.procedure.masking import STRATEGIES, Masking, mask_keyframes
from procap.procedure.objective import (
    Counting,
    Draws,
    ProcedureBatch,
    Weights,
    caption_partners,
    draw,
    inconsistent,
    losses,
    objective,
)
from tests.small import features, generator, sentences, small_encoder

MIXED = Masking((0.4, 0.2, 0.2, 0.2), 0.5)
ONES = Weights(1.0, 1.0, 1.0)


def only(strategy: str, patch_masked: float = 0.5) -> Masking:
    return Masking(tuple(float(name == strategy) for name in STRATEGIES), patch_masked)


def batch(b: int = 8, t: int = 4, seed: int = 0) -> ProcedureBatch:
    draw = generator(seed)
    return ProcedureBatch(
        features(b, t, seed=seed),
        torch.randint(16, (b, t, 16), generator=draw),
        sentences(b, seed=seed),
        features(b, 2, seed=seed + 1),
        torch.randint(t, (b, 2), generator=draw),
    )


def masked(b: int, masking: Masking, seed: int) -> torch.Tensor:
    """What ``objective`` keeps with this seed: masking is the first thing it draws."""
    return mask_keyframes(b, 4, 4, masking, generator(seed))[0]


def test_a_partner_never_says_the_same():
    words = sentences(6)[torch.tensor([0, 1, 1, 2, 0, 3, 0, 4])]
    partners = torch.stack([caption_partners(words, generator(seed))[0] for seed in range(300)])
    assert (words[partners] != words).any(-1).all()
    for row in range(8):
        allowed = {other for other in range(8) if (words[other] != words[row]).any()}
        assert set(partners[:, row].tolist()) == allowed
    assert caption_partners(words, generator())[1].all()


def test_pairs_that_all_say_the_same_have_no_partner_and_no_alignment_loss():
    same = replace(batch(), words=sentences(1).expand(8, -1).contiguous())
    assert not caption_partners(same.words, generator())[1].any()
    terms, readings = objective(small_encoder(), same, MIXED, ONES, generator=generator())
    assert terms["align"] == 0
    assert readings["align_accuracy"] == 0
    assert terms["csy"] > 0


def test_tokens_at_kept_places_do_not_matter():
    encoder, pairs = small_encoder(), batch()
    kept = masked(8, MIXED, 5)
    assert 0.1 < kept.float().mean() < 0.9
    other = (pairs.tokens + 1) % 16
    losses = [
        objective(encoder, replace(pairs, tokens=tokens), MIXED, ONES, generator=generator(5))[0]["msm"]
        for tokens in (pairs.tokens, torch.where(kept, other, pairs.tokens), torch.where(kept, pairs.tokens, other))
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_features_of_hidden_places_are_hidden_from_the_true_pass():
    encoder, pairs = small_encoder(), batch()
    kept = masked(8, MIXED, 5)
    noise = torch.where(kept[..., None], pairs.features, torch.randn(pairs.features.shape, generator=generator(9)))
    terms = [
        objective(encoder, replace(pairs, features=x), MIXED, ONES, generator=generator(5))[0]
        for x in (pairs.features, noise)
    ]
    assert terms[0]["msm"] == terms[1]["msm"]
    assert terms[0]["align"] == terms[1]["align"]


def test_a_gradient_reaches_the_query_and_all_other_weights():
    encoder = small_encoder()
    terms, _ = objective(encoder, batch(), MIXED, ONES, generator=generator())
    sum(terms.values()).backward()
    assert [name for name, weight in encoder.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_nothing_hidden_means_nothing_to_rebuild():
    terms, readings = objective(small_encoder(), batch(), only("random patch", 0.0), ONES, generator=generator())
    assert terms["msm"] == 0
    assert readings["msm_accuracy"] == 0
    assert terms["align"] > 0


def test_pairs_of_which_nothing_is_seen_stay_out_of_the_other_losses():
    terms, _ = objective(small_encoder(), batch(), only("entire"), ONES, generator=generator())
    assert terms["msm"] > 0
    assert terms["align"] == 0
    assert terms["csy"] == 0


def test_terms_are_weighted_and_readings_are_not():
    encoder, pairs = small_encoder(), batch()
    terms, readings = objective(encoder, pairs, MIXED, Weights(7.0, 0.5, 0.25), generator=generator())
    for name, weight in (("msm", 7.0), ("align", 0.5), ("csy", 0.25)):
        assert terms[name].item() == pytest.approx(weight * readings[f"{name}_loss"])


@pytest.mark.parametrize("seed", range(4))
def test_the_batch_equals_one_pair_at_a_time(seed):
    encoder, pairs = small_encoder(), batch(seed=seed)
    pairs = replace(pairs, words=pairs.words[torch.tensor([0, 1, 1, 2, 3, 4, 0, 5])])
    draw = generator(seed)
    kept, strategy = mask_keyframes(8, 4, 4, MIXED, draw)
    partner, found = caption_partners(pairs.words, draw)
    warped, broken = inconsistent(pairs, draw)
    msm, align, csy, right = [], [], [], []
    for row in range(8):

        def read(words, shown, row=row):
            one = slice(row, row + 1)
            return encoder(encoder.embed_caption(words[None]), encoder.embed_frames(shown[None], kept[one]))

        true = read(pairs.words[row], pairs.features[row])
        swapped = read(pairs.words[partner[row]], pairs.features[row])
        bent = read(pairs.words[row], warped[row])
        hidden = ~kept[row]
        logits = encoder.token_head(true.frames[0][hidden])
        msm += list(F.cross_entropy(logits, pairs.tokens[row][hidden], reduction="none"))
        right += (logits.argmax(-1) == pairs.tokens[row][hidden]).tolist()
        seen = STRATEGIES[strategy[row]] != "entire"
        if seen and found[row]:
            align.append(
                -F.logsigmoid(encoder.align_head(true.align)) - F.logsigmoid(-encoder.align_head(swapped.align))
            )
        if seen and broken[row]:
            csy.append(-F.logsigmoid(encoder.csy_head(true.csy)) - F.logsigmoid(-encoder.csy_head(bent.csy)))
    terms, readings = objective(encoder, pairs, MIXED, ONES, generator=generator(seed))
    assert 0 < len(align) < 8, "no pair is left out here"
    for name, of in (("msm", msm), ("align", align), ("csy", csy)):
        assert terms[name].item() == pytest.approx(float(sum(of).detach()) / len(of), rel=1e-4)
    assert readings["msm_accuracy"] == pytest.approx(sum(right) / len(right))


def test_inconsistent_procedures_are_the_four_kinds_equally_often():
    b, t = 2000, 4
    shown = torch.arange(b * t, dtype=torch.float32).reshape(b, t, 1, 1).expand(b, t, 2, 2).clone()
    warped = -1.0 - torch.arange(2.0).reshape(1, 2, 1, 1).expand(b, 2, 2, 2)
    at = torch.randint(t, (b, 2), generator=generator(3))
    pairs = ProcedureBatch(shown, torch.zeros(b, t, 2, dtype=torch.long), sentences(b), warped, at)
    got, found = inconsistent(pairs, generator())
    assert found.all()
    changed = (got != shown).flatten(2).any(-1)
    rows = torch.arange(b)
    colour, affine = ((got == value).all((2, 3)) for value in (-1.0, -2.0))
    for number, kind in enumerate((colour, affine)):
        of = kind.any(1)
        assert of.float().mean() == pytest.approx(0.25, abs=0.03)
        assert (changed[of].sum(1) == 1).all()
        assert kind[rows, at[:, number]][of].all(), "the warped frame comes where its number says"
    pictured = (colour | affine).any(1)
    own = (got[..., 0, 0].long() // t == rows[:, None]).all(1)
    assert (own & ~pictured).float().mean() == pytest.approx(0.25, abs=0.03), "shuffled: own frames only"
    assert (changed[~own & ~pictured].sum(1) == 1).all(), "swapped: one frame of another pair"


def test_a_warp_that_changes_nothing_is_not_counted():
    same = torch.ones(400, 4, 2, 2)
    pairs = ProcedureBatch(
        same, torch.zeros(400, 4, 2, dtype=torch.long), sentences(400), 2 * torch.ones(400, 2, 2, 2),
        torch.zeros(400, 2, dtype=torch.long),
    )  # fmt: skip
    got, found = inconsistent(pairs, generator())
    assert torch.equal(found, (got != same).flatten(1).any(1))
    assert found.float().mean() == pytest.approx(0.5, abs=0.1), "swapping and shuffling equal frames is no warp"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), b=st.integers(2, 9), different=st.integers(1, 3))
def test_negatives_are_negative_or_left_out(seed, b, different):
    """Few different captions and frames, so that many a partner or warp would be none."""
    of = torch.randint(different, (b,), generator=generator(seed))
    shown = features(different, 3, seed=seed)[:, :1].expand(-1, 3, -1, -1)[of].contiguous()
    pairs = replace(
        batch(b, 3), features=shown, words=sentences(different)[of], warped=shown[:, :2].contiguous(),
        warped_frame=torch.zeros(b, 2, dtype=torch.long),
    )  # fmt: skip
    draws = draw(pairs, 4, MIXED, Counting(), generator(seed))
    said_differently = (pairs.words[draws.partner] != pairs.words).any(-1)
    assert torch.equal(draws.misaligned, said_differently)
    assert torch.equal(draws.misaligned, (of[:, None] != of[None]).any(1)), "where there is a negative it is found"
    assert torch.equal(draws.inconsistent, (draws.warped != pairs.features).flatten(1).any(1))


@pytest.mark.parametrize("b", [6, 7])
def test_unchecked_negatives_come_from_half_a_batch_further_and_all_count(b):
    pairs = replace(batch(b), words=sentences(1).expand(b, -1).contiguous())
    draws = draw(pairs, 4, MIXED, Counting("unchecked"), generator())
    assert draws.partner.tolist() == [(row + b // 2) % b for row in range(b)]
    assert draws.misaligned.all()
    assert draws.inconsistent.all()


def given_draws(seed: int = 0) -> Draws:
    """Of eight pairs two are hidden entirely, one has no partner and one no warp."""
    kept = torch.rand(8, 4, 16, generator=generator(seed)) < torch.linspace(0.1, 0.9, 8)[:, None, None]
    kept[[2, 6]] = False
    misaligned, inconsistent_ = torch.ones(2, 8, dtype=torch.bool)
    misaligned[1], inconsistent_[5] = False, False
    partner = torch.arange(8).roll(3)
    return Draws(kept, kept.flatten(1).any(1), partner, misaligned, features(8, 4, seed=9), inconsistent_)


@pytest.mark.parametrize("msm_mean", ["places", "pairs"])
@pytest.mark.parametrize("unseen", ["left_out", "denominator", "counted"])
@torch.no_grad()
def test_what_is_counted_and_by_what_it_is_divided(unseen, msm_mean):
    encoder, pairs, draws = small_encoder(), batch(), given_draws()
    msm, align, csy = [], [], []
    for row in range(8):
        shown, kept = pairs.features[[row]], draws.kept[[row]]
        own, other = (encoder.embed_caption(pairs.words[[at]]) for at in (row, int(draws.partner[row])))
        true = encoder(own, encoder.embed_frames(shown, kept))
        swapped = encoder(other, encoder.embed_frames(shown, kept))
        bent = encoder(own, encoder.embed_frames(draws.warped[[row]], kept))
        logits = encoder.token_head(true.frames[~kept])
        msm.append(F.cross_entropy(logits, pairs.tokens[[row]][~kept], reduction="none").tolist())
        fits, not_ = encoder.align_head(true.align), encoder.align_head(swapped.align)
        align.append(float(-F.logsigmoid(fits) - F.logsigmoid(-not_)))
        runs, broken = encoder.csy_head(true.csy), encoder.csy_head(bent.csy)
        csy.append(float(-F.logsigmoid(runs) - F.logsigmoid(-broken)))
    hidden, partnerless, warpless = {2, 6}, {1}, {5}
    everyone = set(range(8))
    counted = everyone if unseen == "counted" else everyone - hidden
    summed = everyone if unseen == "denominator" else counted
    flat = [loss for of in msm for loss in of]
    expected = {
        "msm": sum(flat) / len(flat) if msm_mean == "places" else sum(sum(of) / len(of) for of in msm) / 8,
        "align": sum(align[row] for row in counted - partnerless) / len(counted - partnerless),
        "csy": sum(csy[row] for row in summed - warpless) / len(counted - warpless),
    }
    found, accuracies = losses(encoder, pairs, draws, Counting(unseen=unseen, msm_mean=msm_mean))
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-4)
    assert all(0 <= float(value) <= 1 for value in accuracies.values())


@pytest.mark.parametrize("name", ["msm", "align", "csy"])
def test_each_loss_may_be_alone(name):
    weights = Weights(*(float(name == other) for other in ("msm", "align", "csy")))
    encoder = small_encoder()
    terms, _ = objective(encoder, batch(), MIXED, weights, generator=generator())
    assert [other for other, value in terms.items() if value != 0] == [name]
    sum(terms.values()).backward()
    heads = {"msm": encoder.token_head, "align": encoder.align_head, "csy": encoder.csy_head}
    assert [other for other, head in heads.items() if head[1].weight.grad.any()] == [name]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_masking_may_be_alone(strategy):
    terms, _ = objective(small_encoder(), batch(), only(strategy), ONES, generator=generator())
    assert all(torch.isfinite(value) for value in terms.values())
    assert terms["msm"] > 0


def test_stage_1_without_captions_has_no_alignment():
    encoder, pairs = small_encoder(captions=False), batch()
    terms, readings = objective(encoder, pairs, MIXED, ONES, generator=generator())
    assert terms["align"] == 0
    assert readings["align_accuracy"] == 0
    assert terms["msm"] > 0
    assert terms["csy"] > 0
    sum(terms.values()).backward()
    assert encoder.word_embedding.weight.grad is None
    assert encoder.csy.grad.any()
