"""Both stages from pictures to losses and words, against the numbers that the public code computed."""

import json

import numpy as np
import pytest
import torch

from procap.captioners.decoding import cut, greedy, word_loss
from procap.datasets.vocabulary import EOS, PAD, SPECIALS, UNK
from procap.procedure.objective import Counting, Draws, ProcedureBatch, losses
from tests.formula import captioner_shapes, encoder_shapes, formula_pictures
from tests.reference.warps import kept_places, warped_pictures
from tests.released import (
    OFFICIAL,
    TEXT,
    raw_features,
    relative,
    released_captioner,
    released_encoder,
    released_vqgan,
)

pytestmark = [
    pytest.mark.shared,
    pytest.mark.slow,
    pytest.mark.skipif(not OFFICIAL.exists(), reason="../shared is not there"),
]

CLOSE = 2e-5
UNSURE = 0.02
"""A token whose two nearest codes are nearer than this to being as near may be either."""


def vectors(name: str) -> dict[str, np.ndarray]:
    with np.load(OFFICIAL / f"vectors_{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def vqgan():
    return released_vqgan()


@pytest.fixture(scope="module")
def stage1(vqgan):
    """(encoder, expected, pictures, features)."""
    pictures = torch.stack([formula_pictures(*(f"stage1/{b}/{t}" for t in range(4))) for b in range(4)])
    with torch.no_grad():
        return released_encoder(), vectors("stage1"), pictures, raw_features(vqgan, pictures)


def test_the_names_and_shapes_of_the_checkpoints(vqgan):
    made = {f"vae.model.{key}" for key in vqgan.state_dict()}
    for name, shapes in (
        ("stage1_n2", encoder_shapes(2, TEXT + 25)),
        ("stage1_n12", encoder_shapes(12, TEXT + 25)),
        ("stage2_clevr_n2", captioner_shapes(2, 2, 80)),
        ("stage2_spot", captioner_shapes(4, 3, 834)),
    ):
        keys = json.loads((OFFICIAL / f"keys_{name}.json").read_text(encoding="utf-8"))
        read = {
            key: tuple(facts["shape"])
            for key, facts in keys.items()
            if key.removeprefix("intermediate_generator.") not in made
            and "vae.model.loss." not in key
            and not key.endswith(("attn_mask", "one_hot"))
        }
        assert read == shapes


def test_features_and_tokens(stage1, vqgan):
    _, expected, pictures, features = stage1
    assert relative(features[:, :, expected["feature_positions"]], expected["features"]) < CLOSE
    with torch.no_grad():
        found = torch.cat([vqgan.tokens(vqgan.encode(one[None])) for one in pictures.flatten(0, 1)]).reshape(4, -1)
    sure = expected["token_margin"] >= UNSURE
    assert sure.mean() > 0.99
    assert np.array_equal(found.numpy()[sure], expected["tokens"][sure])


def test_which_rows_of_the_attention_are_blocked(stage1):
    encoder, expected, *_ = stage1
    blocked = encoder.blocked(encoder.unseeing(27), torch.arange(811))
    whole = torch.zeros(811, 811, dtype=torch.bool)
    whole[blocked.first : blocked.first + len(blocked.visible)] = ~blocked.visible
    assert np.array_equal(whole[expected["attention_rows"]].numpy(), expected["attention_blocked"])
    assert int(whole.sum()) == 25 + 26


@pytest.mark.parametrize("case", ["a", "b"])
def test_stage_1_from_pictures_to_losses(stage1, vqgan, case):
    encoder, expected, pictures, features = stage1
    kept = kept_places(expected, case)
    assert np.array_equal(kept.flatten(1).numpy(), expected[f"{case}_keep"])
    bent = warped_pictures(expected, case, pictures)
    assert relative(bent[..., 4::8, 4::8], expected[f"{case}_warped"]) < CLOSE
    warped, new = features.clone(), torch.zeros(4, 4, dtype=torch.bool)
    for b, t in torch.cartesian_prod(torch.arange(4), torch.arange(4)).tolist():
        same = (pictures == bent[b, t]).flatten(2).all(-1).nonzero()
        new[b, t] = len(same) == 0
        warped[b, t] = raw_features(vqgan, bent[b, t][None])[0] if new[b, t] else features[tuple(same[0])]
    assert new.sum() == 2, "a colour shift and an affine warp"
    partner = torch.from_numpy(expected["alignment_partner"])
    words, tokens = (torch.from_numpy(expected[name]).long() for name in ("text_ids", "tokens"))
    everyone = torch.ones(4, dtype=torch.bool)
    seen = torch.from_numpy(expected[f"{case}_not_fully_masked"]).bool()
    draws = Draws(kept, seen, partner, everyone, warped, everyone)
    unused = (torch.zeros(4, 2, 196, 256), torch.zeros(4, 2, dtype=torch.long))
    batch = ProcedureBatch(features, tokens.unflatten(1, (4, 196)), words, *unused)

    caption, frames = encoder.embed_caption(words), encoder.embed_frames(features, kept)
    bent_frames = encoder.embed_frames(warped, kept)
    at, places = expected["positions"], expected["msm_positions"]
    passes = {
        "": (caption, frames, slice(None)),
        "_negative_alignment": (caption[partner], frames, slice(0, 8)),
        "_negative_consistency": (caption, bent_frames, slice(8, None)),
    }
    heads = {}
    with torch.no_grad():
        for name, (start, shown, stored) in passes.items():
            sequence = torch.cat([start, shown.flatten(1, 2)], dim=1)
            assert relative(sequence[:, at[stored]], expected[f"{case}_sequence{name}"]) < CLOSE
            hidden = encoder.transform(start, shown, encoder.unseeing(27))
            assert relative(hidden[:, at], expected[f"{case}_hidden{name}"]) < CLOSE
            encoded = encoder(start, shown)
            heads[name] = encoder.align_head(encoded.align), encoder.csy_head(encoded.csy)
            if not name:
                logits = encoder.token_head(encoded.frames.flatten(1, 2)[:, places])
                assert relative(logits, expected[f"{case}_msm_logits"]) < CLOSE
        align = torch.cat([heads[""][0], heads["_negative_alignment"][0]], dim=1)
        csy = torch.cat([heads[""][1], heads["_negative_consistency"][1]], dim=1)
        assert relative(align, expected[f"{case}_alignment_logits"]) < CLOSE
        assert relative(csy, expected[f"{case}_consistency_logits"]) < CLOSE
        found, _ = losses(encoder, batch, draws, Counting("unchecked", "denominator", "places"))
    got = [float(value) for value in found.values()]
    got.append(7 * got[0] + 0.5 * got[1] + 0.5 * got[2])
    assert got == pytest.approx(expected[f"{case}_losses"].tolist(), rel=CLOSE)


@pytest.fixture(scope="module")
def stage2(vqgan):
    """(network, expected, features)."""
    pictures = torch.stack([formula_pictures(f"stage2/{b}/before", f"stage2/{b}/after") for b in range(2)])
    return released_captioner(), vectors("stage2"), raw_features(vqgan, pictures)


@torch.no_grad()
def test_stage_2_from_pictures_to_the_loss(stage2):
    network, expected, features = stage2
    encoder, imagining, at = network.encoder, network.config.imagining, expected["positions"]
    start = encoder.prompt(2, imagining)
    encoder.blocks, blocks = torch.nn.ModuleList(), encoder.blocks
    sequence = torch.cat([start, network.imagine(features).flatten(1, 2)], dim=1)
    encoder.blocks = blocks
    assert sequence.shape[1] == 810
    assert relative(sequence[:, :28], expected["sequence_start"]) < CLOSE
    assert relative(network.imagine(features).flatten(1, 2)[:, at], expected["hidden"]) < CLOSE
    assert relative(network.memory(features)[:, at], expected["memory"]) < CLOSE
    words = torch.from_numpy(expected["ids"]).long()
    logits = network(features, words)
    assert relative(logits, expected["logits"]) < CLOSE
    labels = torch.where(words[:, 1:] == PAD, -1, words[:, 1:])
    assert np.array_equal(labels.numpy(), expected["labels"][:, :-1])
    per_pair = [float(word_loss(logits[[b]], words[[b]], 0.1, "sum")) for b in range(2)]
    assert per_pair == pytest.approx(expected["loss_per_pair"].tolist(), rel=CLOSE)
    assert float(word_loss(logits, words, 0.1, "sum")) == pytest.approx(float(expected["loss"]), rel=CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    ("mark", "raised", "name"), [(EOS, 0.0, "greedy"), (EOS, 1.0, "greedy_eos_raised"), (UNK, 10.0, "greedy")]
)
def test_greedy_decoding_word_for_word(stage2, mark, raised, name):
    network, expected, features = stage2
    bias = network.decoder.bias.clone()
    network.decoder.bias[mark] += raised
    words, chances = greedy(network.decoder.step, network.read(features), 24)
    network.decoder.bias.copy_(bias)
    assert np.array_equal(words.numpy(), expected[name])
    for row, prediction in zip(words.tolist(), cut(words, chances), strict=True):
        said = row[1 : row.index(EOS)] if EOS in row else row[1:]
        assert prediction.ids == tuple(word for word in said if word >= len(SPECIALS))
    if raised == 0:
        logits = network(features, words)
        assert relative(logits, expected["greedy_logits"]) < CLOSE
        best = logits.index_fill(2, torch.tensor([UNK]), -torch.inf).topk(2).values
        margin = best[..., 0] - best[..., 1]
        assert margin.numpy() == pytest.approx(expected["greedy_margin"], abs=1e-3)
