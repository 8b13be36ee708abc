"""What every captioner promises, whoever wrote it."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from procap.captioners import CAPTIONERS, GREEDY, Decoding, captioner_class
from procap.captioners.diffusion import DiffusionCaptioner
from procap.datasets.vocabulary import SPECIALS, Vocabulary
from procap.errors import BadInput
from procap.models.build import frozen
from procap.training.bundle import Bundle, load_bundle, write_bundle
from procap.training.optimiser import make_optimiser
from tests.small import (
    VQGAN_CONFIG,
    batch_of,
    captioner_config,
    features,
    generator,
    sentences,
    shaken,
    small_captioner,
    small_vqgan,
)

SAMPLING = {name for name in CAPTIONERS if issubclass(captioner_class(name), DiffusionCaptioner)}
"""They search for nothing."""


@pytest.fixture(params=sorted(CAPTIONERS))
def name(request):
    return request.param


@cache
def learned(name: str) -> torch.nn.Module:
    """A captioner that was shown four pairs until it knew them."""
    captioner, batch = small_captioner(name).train(), batch_of(name, 4)
    optimiser = make_optimiser("adamw", [(captioner, 3e-3)], weight_decay=0.0)
    for step in range(120):
        optimiser.zero_grad()
        sum(captioner.loss(batch, generator=generator(step)).values()).backward()
        optimiser.step()
        if hasattr(captioner, "updated"):
            captioner.updated()
    return frozen(captioner)


def said(captioner: torch.nn.Module, pairs: torch.Tensor, beams: int = 1) -> list[tuple[int, ...]]:
    return [p.ids for p in captioner.caption(pairs, decoding=Decoding(beams), generator=generator())]


def alike(some: list, others: list) -> bool:
    """Whether masks, where there are any, are the same."""
    return all(
        (one is None) == (other is None) and (one is None or torch.equal(one, other))
        for one, other in zip(some, others, strict=True)
    )


def per_word(prediction) -> float:
    """Mean log-probability, [EOS] counted, of a sentence that ended."""
    return math.log(prediction.probability) / (len(prediction.ids) + 1)


def test_same_seed_same_words(name):
    captioner, pairs = learned(name), features(6)
    before = torch.random.get_rng_state()
    once, twice = (captioner.caption(pairs, decoding=Decoding(2), generator=generator(3)) for _ in range(2))
    assert once == twice
    assert alike([p.change_mask for p in once], [p.change_mask for p in twice])
    assert len({p.ids for p in once}) > 1, "the sentences are all alike, so this shows nothing"
    assert torch.equal(torch.random.get_rng_state(), before)


def test_same_seed_same_loss(name):
    captioner, batch = small_captioner(name).train(), batch_of(name, 4)
    before = torch.random.get_rng_state()
    once, twice = (captioner.loss(batch, generator=generator(3)) for _ in range(2))
    assert all(torch.equal(once[term], twice[term]) for term in once | twice)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_pair_reads_the_same_alone_or_in_a_batch(name, beams):
    captioner, pairs = learned(name), features(5)
    together = captioner.caption(pairs, decoding=Decoding(beams), generator=generator())
    assert len(together) == 5
    for pair, prediction in zip(pairs, together, strict=True):
        (alone,) = captioner.caption(pair[None], decoding=Decoding(beams), generator=generator())
        assert alone.ids == prediction.ids
        assert alone.probability == pytest.approx(prediction.probability, rel=1e-3)


def test_before_and_after_are_not_the_same_to_it(name):
    captioner, batch = shaken(small_captioner(name)).eval(), batch_of(name, 4)
    turned = replace(batch, features=batch.features.flip(1))
    losses = [sum(captioner.loss(b, generator=generator()).values()) for b in (batch, turned)]
    assert not torch.isclose(*losses, rtol=1e-5)


def test_every_trainable_weight_gets_a_gradient(name):
    captioner = shaken(small_captioner(name)).train()
    sum(captioner.loss(batch_of(name, 6), generator=generator()).values()).backward()
    silent = {
        part for part, w in captioner.named_parameters() if w.requires_grad and (w.grad is None or not w.grad.any())
    }
    assert not silent


def test_it_can_overfit_four_pairs(name):
    captioner, pairs = learned(name), features(4)
    words = [tuple(i for i in row.tolist() if i >= len(SPECIALS)) for row in sentences(4)]
    assert said(captioner, pairs) == words
    assert said(captioner, pairs.flip(0)) == words[::-1]
    assert min(p.probability for p in captioner.caption(pairs, decoding=GREEDY, generator=generator())) > 0.5


@pytest.mark.parametrize("beams", [1, 4])
def test_sentences_are_words_and_their_chance_is_one(name, beams):
    captioner = shaken(small_captioner(name, words=5), 0.3)
    for prediction in captioner.caption(features(8), decoding=Decoding(beams), generator=generator()):
        assert 0 <= prediction.probability <= 1
        assert len(prediction.ids) <= 5 - 2
        assert all(len(SPECIALS) <= i < 20 for i in prediction.ids)


@pytest.mark.parametrize("name", sorted(set(CAPTIONERS) - SAMPLING))
def test_a_search_wide_enough_for_everything_never_does_worse_than_greedy(name):
    """Fewer beams may: the greedy start can be crowded out by starts that end badly."""
    captioner, pairs = small_captioner(name, vocabulary=len(SPECIALS) + 3, words=4), features(16)
    captioner = shaken(captioner, 0.05 if name == "ccrc" else 0.3)  # the surer it is, the less greedy misses
    ways = Decoding(1), Decoding(1 + 3 + 9)
    greedy, wide = (captioner.caption(pairs, decoding=way, generator=generator()) for way in ways)
    assert all(per_word(w) >= per_word(g) - 1e-5 for w, g in zip(wide, greedy, strict=True))
    assert any(w.ids != g.ids for w, g in zip(wide, greedy, strict=True)), "greedy is optimal here: shows nothing"


@pytest.fixture
def saved(name, tmp_path):
    """(the bundle in memory, its folder)."""
    captioner, vqgan = learned(name), small_vqgan().requires_grad_(False)
    vocabulary = Vocabulary(tuple(f"w{number:02d}" for number in range(12)), 7)
    config, origin = captioner_config(name), {"seed": 1}
    write_bundle(tmp_path / "bundle", name, captioner, config, vqgan, vocabulary, origin)
    return Bundle(name, captioner, vqgan, vocabulary, origin), tmp_path / "bundle"


def photographs(b: int = 4, side: int = VQGAN_CONFIG.image_size) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return tuple(draw.integers(0, 256, (b, side, side, 3), dtype=np.uint8) for _ in range(2))


@pytest.mark.parametrize("side", [VQGAN_CONFIG.image_size, 50])
def test_a_saved_bundle_says_the_same(saved, side):
    bundle, folder = saved
    loaded, pictures = load_bundle(folder), photographs(side=side)
    said, before = (one.caption(*pictures, decoding=Decoding(2)) for one in (loaded, bundle))
    assert said == before
    assert alike([one.change_mask for one in said], [one.change_mask for one in before])
    assert loaded.provenance == bundle.provenance
    imagined, before = loaded.imagine(*pictures), bundle.imagine(*pictures)
    assert (imagined is None) == (before is None)
    assert imagined is None or np.array_equal(imagined, before)
    assert not any(weight.requires_grad for weight in loaded.captioner.parameters())


def test_a_bundle_has_the_same_bytes_every_time(saved, tmp_path):
    bundle, folder = saved
    config = captioner_config(bundle.name)
    again = tmp_path / "again"
    write_bundle(
        again,
        bundle.name,
        bundle.captioner,
        config,
        bundle.vqgan,
        bundle.vocabulary,
        bundle.provenance,
    )
    assert (again / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_a_changed_byte_is_refused(saved):
    _, folder = saved
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        with pytest.raises(BadInput, match="not what was written") as caught:
            load_bundle(folder)
        assert caught.value.where == str(path)
        path.unlink()
        with pytest.raises(BadInput, match=r"not what was written|not a bundle"):
            load_bundle(folder)
        path.write_bytes(whole)
    load_bundle(folder)


def test_a_manifest_must_name_every_file(saved):
    _, folder = saved
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["config.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="manifest is not what was written"):
        load_bundle(folder)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="no captioner 'difusion'; there are static, procap, ccrc"):
        captioner_class("difusion")


def test_a_bundle_of_another_version_is_refused(saved, tmp_path):
    bundle, _ = saved
    other = small_captioner(bundle.name)
    other.of_another_version = torch.nn.Linear(1, 1)
    parts = bundle.vqgan, bundle.vocabulary, bundle.provenance
    write_bundle(tmp_path / "other", bundle.name, other, captioner_config(bundle.name), *parts)
    with pytest.raises(BadInput, match="of_another_version"):
        load_bundle(tmp_path / "other")
