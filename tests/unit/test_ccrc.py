"""CCRC: the form of its answers, its gate and priors, its masks, and how its losses are balanced."""

from dataclasses import replace

import pytest
import torch

from procap.captioners import Decoding
from procap.captioners.answers import KINDS, OBJECT_WORDS, PLACES, REASONING, Grammar, places, segmentable
from procap.captioners.ccrc import CCRC
from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from procap.models.build import build
from procap.models.change_fusion import ChangeAwareAttention, Fused, distances, shares
from procap.models.mask_decoder import MaskDecoder
from tests.small import batch_of, ccrc_config, features, generator, shaken, truth

GRAMMAR = Grammar(20)


def captioner(strength: float = 0.15, **changes) -> CCRC:
    return shaken(build(lambda: CCRC(ccrc_config(**changes)), generator()), strength).eval()


class Babble(torch.nn.Module):
    """A language model whose every logit is drawn."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size, self.width, self.draw = size, width, generator(5)

    def opening(self, visual):
        return visual

    def rows(self, numbers):
        return torch.zeros(*numbers.shape, self.width)

    def forward(self, inputs, past=None):
        empty = torch.zeros(len(inputs), 1, 0, 1)
        return torch.zeros(*inputs.shape[:2], self.width), [(empty, empty)]

    def logits(self, hidden):
        return 4 * torch.randn(*hidden.shape[:-1], self.size, generator=self.draw)


def test_ten_thousand_answers_of_random_logits_all_have_the_form(monkeypatch):
    model = captioner()
    model.language = Babble(GRAMMAR.size, 32)
    monkeypatch.setattr(model.outline, "forward", lambda pairs, *_: torch.zeros(len(pairs), 16, 16))
    nothing = Fused(torch.zeros(1000, 1, 32), torch.zeros(1000, 1), torch.ones(1000, 1), torch.zeros(1000, 2, 8))
    monkeypatch.setattr(model.fusion, "forward", lambda pairs: nothing)
    said = [
        one
        for _ in range(10)
        for one in model.caption(features(1000), decoding=Decoding(), generator=generator())
    ]
    assert len(said) == 10_000
    for one in said:
        assert one.reasoning.kind in KINDS
        assert one.reasoning.place in PLACES
        words = one.reasoning.object_ids
        assert len(words) <= OBJECT_WORDS
        assert words == (UNK,) or all(len(SPECIALS) <= word < 20 for word in words)
        assert len(one.ids) <= model.config.words - 2
        assert all(len(SPECIALS) <= word < 20 for word in one.ids)
        assert len(one.word_probabilities) == len(one.ids) + 1
        assert one.change_mask is None or one.change_mask.shape == (16, 16)
    assert {one.reasoning.kind for one in said} == set(KINDS)
    assert {one.reasoning.place for one in said} == set(PLACES)
    assert {len(one.reasoning.object_ids) for one in said} == set(range(OBJECT_WORDS + 1))
    assert 0.45 < sum(one.change_mask is None for one in said) / len(said) < 0.55


@pytest.mark.parametrize("segments", [True, False])
def test_there_is_a_mask_exactly_where_seg_was_written(segments, monkeypatch):
    model, pairs = captioner(), features(6)
    with torch.no_grad():
        model.language.out.bias[GRAMMAR.seg if segments else GRAMMAR.noseg] += 100
    if not segments:
        monkeypatch.setattr(model.outline, "forward", lambda *_: pytest.fail("segmenting ran without <seg>"))
    said = model.caption(pairs, decoding=Decoding(), generator=generator())
    assert all((one.change_mask is not None) is segments for one in said)


def test_a_mask_is_the_same_alone_and_among_others():
    model, pairs = captioner(), features(6)
    together = model.caption(pairs, decoding=Decoding(), generator=generator())
    assert {one.change_mask is None for one in together} == {True, False}, "this shows nothing"
    for pair, one in zip(pairs, together, strict=True):
        (alone,) = model.caption(pair[None], decoding=Decoding(), generator=generator())
        assert (alone.change_mask is None) == (one.change_mask is None)
        assert one.change_mask is None or (alone.change_mask == one.change_mask).float().mean() > 0.99


def test_what_pairs_train_is_an_answer():
    batch = batch_of("ccrc", 6)
    rows, lines = GRAMMAR.answers(batch), GRAMMAR.lines(batch.truth)
    assert rows.shape == (6, REASONING + 7)
    for row, line, words, seg in zip(rows, lines, batch.words, segmentable(batch.truth), strict=True):
        last = torch.tensor([BOS])
        for place, number in enumerate(line):
            assert GRAMMAR.allowed(place, last, torch.device("cpu"))[0, number]
            last = number[None]
        caption = row[REASONING:].tolist()
        end = words.tolist().index(EOS)
        assert caption[end] == (GRAMMAR.seg if seg else GRAMMAR.noseg)
        assert caption[:end] + caption[end + 1 :] == words.tolist()[:end] + words.tolist()[end + 1 :]
        assert EOS not in row
        assert sum(number in (GRAMMAR.seg, GRAMMAR.noseg) for number in row.tolist()) == 1


def test_a_mask_that_contradicts_the_pair_trains_no_outline():
    known = truth(6)
    unchanged = KINDS.index("none")
    assert segmentable(known).tolist() == (known.kinds != unchanged).tolist()
    contradicted = replace(known, kinds=torch.full((6,), unchanged))
    assert not segmentable(contradicted).any()
    assert not segmentable(replace(known, masked=torch.zeros(6, dtype=torch.bool))).any()
    assert not segmentable(replace(known, masks=torch.zeros_like(known.masks))).any()
    assert {PLACES[number] for number in places(contradicted)} == {"nowhere"}


def test_a_place_is_the_cell_that_holds_most_of_the_mask():
    known = truth(2)
    for row, name in ((0, "top left"), (7, "middle"), (15, "bottom right")):
        known.masks[0] = False
        known.masks[0, row, row] = True
        assert PLACES[places(known)[0]] == name
    assert PLACES[places(replace(known, masked=known.masked & False))[0]] == "unknown"


def test_the_gate_turns_attention_to_what_differs():
    pair = features(1, n=16)
    pair[:, 1] = pair[:, 0] + 0.01 * torch.randn(pair[:, 0].shape, generator=generator(1))
    pair[0, 1, 5] = -pair[0, 0, 5]
    with_gate, without = (captioner(0.05, gate=gate).fusion(pair).prior[0].detach() for gate in (True, False))
    assert with_gate.argmax() == 5
    assert with_gate[5] / with_gate.mean() > 4 * without[5] / without.mean()


def test_the_language_model_reads_the_places_that_differ_most():
    distance = torch.tensor([[0.1, 0.9, 0.2, 0.5], [0.4, 0.3, 0.2, 0.1]])
    tokens = torch.arange(8.0).reshape(2, 4, 1)
    fused = Fused(tokens, torch.zeros(2, 4), distance, torch.zeros(2, 2, 1))
    read, places = fused.most_different(2)
    assert places.tolist() == [[1, 3], [0, 1]]
    assert read[..., 0].tolist() == [[1, 3], [4, 5]]
    everything, _ = fused.most_different(9)
    assert everything.shape == (2, 4, 1)


def test_it_reads_both_pictures_where_they_differ():
    model, pair = captioner(), features(1)
    pair[:, 1] = pair[:, 0]
    pair[0, 1, 5] = -pair[0, 0, 5]
    fused = model.fusion(pair)
    assert shares(fused.distance)[0, 5] > 0.99
    normalised = torch.nn.functional.layer_norm(pair, pair.shape[-1:])
    assert torch.allclose(fused.averages[0], normalised[0, :, 5], atol=1e-3)
    opening, places = model._opening(fused)
    other, _ = model._opening(replace(fused, averages=fused.averages.flip(1)))
    differ = (opening != other).any(-1)[0].tolist()
    assert differ == [False] * places.shape[1] + [True, True, False], "places, before, after, prompt"


def test_words_look_at_the_places_that_were_read_and_at_others_by_their_share_of_the_averages():
    model, pairs = captioner(), features(3)
    with torch.no_grad():
        model.language.out.bias[GRAMMAR.seg :] -= 100
    said = model.caption(pairs, decoding=Decoding(), generator=generator())
    assert all(one.ids for one in said), "this shows nothing"
    told = model.why(pairs, said, decoding=Decoding(), generator=generator())
    _, places = model.fusion(pairs).most_different(model.config.places)
    for pair, one, reason, read in zip(pairs, said, told, places, strict=True):
        assert reason.attention.shape == (len(one.ids), 16)
        others = [place for place in range(16) if place not in read]
        parts = shares(distances(pair[None]))[0]
        averages = reason.attention[:, others].sum(1, keepdim=True) / parts[others].sum()
        assert torch.allclose(reason.attention[:, others], averages * parts[others], atol=1e-6)
        assert (reason.attention[:, read] > averages * parts[read]).all()


def test_attention_of_a_closed_gate_is_nothing():
    attention = shaken(ChangeAwareAttention(32, 2, gate=True))
    distance = torch.full((1, 16), 1e-6)
    distance[0, 3] = 1.0
    _, weights = attention(torch.randn(1, 16, 32, generator=generator()), torch.zeros(1, 32, 32), distance)
    assert weights.sum(-1).allclose(torch.ones(1, 2, 16))
    assert weights[..., 3].min() > 0.95


@pytest.mark.parametrize("changes", [{"gate": False}, {"priors": False}, {"refiner": False}])
def test_what_an_ablation_leaves_out_is_gone_and_the_rest_trains(changes):
    whole, less = captioner(), captioner(**changes)
    assert sum(w.numel() for w in less.parameters()) < sum(w.numel() for w in whole.parameters())
    sum(less.train().loss(batch_of("ccrc", 6), generator=generator()).values()).backward()
    assert all(w.grad is not None and w.grad.any() for w in less.parameters())


def test_without_priors_the_mask_knows_nothing_of_the_language_model():
    model, pairs = captioner(priors=False), features(2)
    fused = model.fusion(pairs)
    masks = [model.outline(pairs, fused, torch.full((2, 32), value)) for value in (0.0, 3.0)]
    assert torch.equal(*masks)
    model = captioner()
    masks = [model.outline(pairs, fused, torch.full((2, 32), value)) for value in (0.0, 3.0)]
    assert not torch.allclose(*masks)


@pytest.mark.parametrize("learns", ["captions", "masks"])
def test_either_half_alone(learns):
    model = captioner(learns=learns).train()
    found = model.loss(batch_of("ccrc", 6), generator=generator())
    trained = {name for name, value in found.items() if value > 0}
    assert trained == ({"caption"} if learns == "captions" else {"bce", "dice"})
    sum(found.values()).backward()
    assert all(w.grad is not None and w.grad.any() for w in model.parameters())
    said = model.eval().caption(features(6), decoding=Decoding(), generator=generator())
    if learns == "captions":
        assert all(one.change_mask is None for one in said)
        assert any(one.ids for one in said)
    else:
        assert not any(one.ids for one in said)
        assert all(one.change_mask is None or one.change_mask.any() for one in said)
    assert model.selected_by == ("CIDEr" if learns == "captions" else "gIoU")


def test_each_term_is_divided_by_its_own_mean():
    model, batch = captioner().train(), batch_of("ccrc", 6)
    raw = model.loss(batch, generator=generator())
    model.remember(model.readings(raw))
    balanced = model.loss(batch, generator=generator())
    assert {name: value.item() for name, value in balanced.items()} == pytest.approx(dict.fromkeys(raw, 1.0))
    assert model.readings(balanced) == pytest.approx({name: value.item() for name, value in raw.items()})
    for _ in range(400):
        model.remember({"caption": 7.0, "bce": 0.5, "dice": 0.0})
    assert model.means.tolist() == pytest.approx([7.0, 0.5, raw["dice"].item()], rel=0.05)
    fresh = captioner(strength=0)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.means, model.means)
    assert fresh.updates == 401


def test_masks_are_trained_in_their_turn_and_by_their_weight():
    model, batch = captioner(mask_weight=0.25, mask_every=3).train(), batch_of("ccrc", 6)
    plain = captioner().train().loss(batch, generator=generator())
    turns = []
    for _ in range(4):
        found = model.loss(batch, generator=generator())
        turns.append({name for name, value in found.items() if value > 0})
        assert set(model.readings(found)) == turns[-1]
        if len(turns) == 1:
            assert found["caption"].item() == pytest.approx(plain["caption"].item())
            assert found["dice"].item() == pytest.approx(plain["dice"].item() / 4)
            assert model.readings(found)["dice"] == pytest.approx(plain["dice"].item())
        model.remember(model.readings(found))
    assert turns == [{"caption", "bce", "dice"}, {"caption"}, {"caption"}, {"caption", "bce", "dice"}]


def test_shares_of_a_batch_add_up_to_the_batch():
    model, batch = captioner().train(), batch_of("ccrc", 7)
    whole = model.loss(batch, generator=generator())
    sums = dict.fromkeys(whole, 0.0)
    for share in (slice(0, 3), slice(3, 7)):
        found, part = model.loss(batch.part(share), generator=generator()), model.parts(batch, share)
        sums = {name: sums[name] + part[name] * value.item() for name, value in found.items()}
    assert sums == pytest.approx({name: value.item() for name, value in whole.items()}, rel=1e-4)


def test_the_chance_of_a_change_is_that_of_the_first_word():
    model, pairs = captioner(), features(4)
    with torch.no_grad():
        model.language.out.bias[GRAMMAR.kind + KINDS.index("none")] = -100
    said = model.caption(pairs, decoding=Decoding(), generator=generator())
    assert all(one.change_probability == pytest.approx(1) for one in said)
    for one in said:
        assert torch.tensor(one.word_probabilities).prod().item() == pytest.approx(one.probability, rel=1e-3)


def test_a_mask_lies_as_the_places_lie():
    """A place's feature moves the mask most in its own quarter of the picture."""
    config = replace(ccrc_config(refiner=False).mask, priors=False)
    decoder = shaken(build(lambda: MaskDecoder(config, 4, 8, 32, None), generator()), 0.1)
    pair = features(1)
    fused = Fused(torch.zeros(1, 16, 32), torch.zeros(1, 16), torch.ones(1, 16), torch.zeros(1, 2, 8))
    with torch.no_grad():
        plain = decoder(pair, fused, None)
        for place in (0, 3, 12, 15):
            other = pair.clone()
            other[0, :, place] *= -1
            moved = (decoder(other, fused, None) - plain)[0].abs()
            row, column = divmod(place, 4)
            quadrant = moved.reshape(2, 8, 2, 8).sum((1, 3))
            assert quadrant.argmax() == 2 * (row // 2) + column // 2


def test_no_caption_is_asked_of_pads():
    """What follows the decision trains nothing."""
    model, batch = captioner().train(), batch_of("ccrc", 4)
    longer = replace(batch, words=torch.nn.functional.pad(batch.words, (0, 3), value=PAD))
    losses = [model.loss(each, generator=generator())["caption"] for each in (batch, longer)]
    assert torch.allclose(*losses)
