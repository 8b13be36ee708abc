"""Both stages against numbers of the public code that the project keeps (``tests/reference/make_released.py``)."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from procap.captioners.decoding import cut, greedy, word_loss
from procap.datasets.vocabulary import EOS, SPECIALS
from procap.models.procedure_encoder import Imagining
from procap.procedure.objective import Counting, Draws, ProcedureBatch, losses
from tests.released import STORED, relative, released_captioner, released_encoder

CLOSE = 1e-4
"""The features are stored as 16-bit integers, which alone is 4e-5."""

REFERENCE = Counting("unchecked", "denominator", "places")


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(STORED, allow_pickle=False) as file:
        return dict(file)


def features(stored: dict[str, np.ndarray], name: str) -> torch.Tensor:
    return torch.from_numpy(stored[name].astype(np.float32) * stored[f"{name}_scale"])


@pytest.fixture(scope="module")
def encoder():
    return released_encoder()


@pytest.fixture(scope="module")
def procedures(stored) -> tuple[ProcedureBatch, Draws]:
    """Case a: a random mask and a swap, all hidden and shuffled, a rectangle and a colour, all but one and a turn."""
    kept, shown = torch.from_numpy(stored["a_keep"]), torch.from_numpy(stored["a_shown"])
    given = torch.zeros(4, 4, 196, 256)
    given[kept] = features(stored, "a_features")
    warped = given.clone()
    warped[shown] = features(stored, "a_warped_features")
    words, tokens = (torch.from_numpy(stored[name]).long() for name in ("text_ids", "tokens"))
    everyone, seen = torch.ones(4, dtype=torch.bool), torch.from_numpy(stored["a_not_fully_masked"]).bool()
    partner = torch.from_numpy(stored["alignment_partner"])
    batch = ProcedureBatch(
        given, tokens.unflatten(1, (4, 196)), words, torch.zeros(4, 2, 196, 256), torch.zeros(4, 2, dtype=torch.long)
    )
    return batch, Draws(kept, seen, partner, everyone, warped, everyone)


@torch.no_grad()
def test_stage_1_from_features_to_logits(stored, encoder, procedures):
    batch, draws = procedures
    caption, frames = encoder.embed_caption(batch.words), encoder.embed_frames(batch.features, draws.kept)
    bent = encoder.embed_frames(draws.warped, draws.kept)
    sequence = torch.cat([caption, frames.flatten(1, 2)], dim=1)
    assert sequence.shape[1] == 811
    assert relative(sequence[:, stored["positions"]], stored["a_sequence"]) < CLOSE
    starts, shown = torch.cat([caption, caption[draws.partner], caption]), torch.cat([frames, frames, bent])
    hidden = encoder.transform(starts, shown, encoder.unseeing(27))
    for got, name in zip(
        hidden.chunk(3), ("a_hidden", "a_hidden_negative_alignment", "a_hidden_negative_consistency"), strict=True
    ):
        assert relative(got[:, stored["positions"]], stored[name]) < CLOSE
    logits = encoder.token_head(hidden[:4, 27:][:, stored["msm_positions"]])
    assert relative(logits, stored["a_msm_logits"]) < CLOSE
    true, swapped, _ = encoder.align_head(hidden[:, 0]).chunk(3)
    assert relative(torch.cat([true, swapped], 1), stored["a_alignment_logits"]) < CLOSE
    whole, _, broken = encoder.csy_head(hidden[:, 26]).chunk(3)
    assert relative(torch.cat([whole, broken], 1), stored["a_consistency_logits"]) < CLOSE


@torch.no_grad()
def test_stage_1_losses(stored, encoder, procedures):
    found, _ = losses(encoder, *procedures, REFERENCE)
    msm, align, csy, total = stored["a_losses"].tolist()
    got = {name: float(value) for name, value in found.items()}
    assert got == pytest.approx({"msm": msm, "align": align, "csy": csy}, rel=CLOSE)
    assert 7 * got["msm"] + 0.5 * got["align"] + 0.5 * got["csy"] == pytest.approx(total, rel=CLOSE)


@pytest.fixture(scope="module")
def captioner():
    return released_captioner()


@pytest.fixture
def seen(stored) -> torch.Tensor:
    return features(stored, "stage2_features").reshape(1, 2, 196, 256)


@torch.no_grad()
def test_stage_2_from_features_to_the_loss(stored, captioner, seen):
    start = captioner.encoder.prompt(1, captioner.config.imagining)
    assert start.shape[1] == 26
    assert relative(start[:, 20:], stored["stage2_sequence_start"][:, :6]) < CLOSE
    at, words = stored["stage2_positions"], torch.from_numpy(stored["stage2_ids"]).long()
    assert relative(captioner.imagine(seen).flatten(1, 2)[:, at], stored["stage2_hidden"]) < CLOSE
    assert relative(captioner.memory(seen)[:, at], stored["stage2_memory"]) < CLOSE
    logits = captioner(seen, words)
    assert relative(logits, stored["stage2_logits"]) < CLOSE
    assert float(word_loss(logits, words, 0.1, "sum")) == pytest.approx(
        float(stored["stage2_loss_per_pair"][0]), rel=CLOSE
    )


@torch.no_grad()
def test_greedy_decoding_word_for_word(stored, captioner, seen):
    read = captioner.read(seen)
    words, chances = greedy(captioner.decoder.step, read, 24)
    assert np.array_equal(words.numpy(), stored["stage2_greedy"])
    assert relative(captioner(seen, words), stored["stage2_greedy_logits"]) < CLOSE
    bias = captioner.decoder.bias.clone()
    captioner.decoder.bias[EOS] += 1
    raised, _ = greedy(captioner.decoder.step, read, 24)
    captioner.decoder.bias.copy_(bias)
    assert np.array_equal(raised.numpy(), stored["stage2_greedy_eos_raised"])
    row = raised[0].tolist()
    assert 0 < row.index(EOS) < 22, "decoding goes on after [EOS]"
    (prediction,) = cut(raised, chances)
    assert prediction.ids == tuple(word for word in row[: row.index(EOS)] if word >= len(SPECIALS))


@torch.no_grad()
@pytest.mark.parametrize(
    "change", [{"prompt": "full"}, {"prompt": "none"}, {"mask_rows": "right"}, {"between": "nothing"}]
)
def test_each_choice_of_stage_2_shows(stored, captioner, seen, change):
    """Rows of the prompt are the same here: this encoder has no words."""
    imagining = replace(captioner.config.imagining, **change)
    other = captioner.encoder.imagine(seen, imagining)
    same = captioner.imagine(seen)[:, [0, -1]]
    assert relative(other[:, [0, -1]], same) > 1e-3


@torch.no_grad()
def test_first_rows_and_pad_rows_are_different_prompts(encoder, captioner):
    first = encoder.prompt(1, captioner.config.imagining)
    pads = encoder.prompt(1, Imagining(prompt="without_align"))
    table = encoder.word_embedding.weight
    assert torch.allclose((first - pads)[0, :24], table[:24] - table[49408:49432], atol=1e-6)
    assert torch.equal(first[0, 24:], pads[0, 24:])
