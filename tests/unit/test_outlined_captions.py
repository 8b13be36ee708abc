"""What a captioner that reasons and outlines gives to people: masks in their pictures' size, a line, pages, answers."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from flows.serving.answers import captioned, explained
from procap.captioners.ccrc import CCRC
from procap.captioning.captioner import load_captioner
from procap.captioning.page import explanation_page
from procap.captioning.table import record
from procap.datasets.images import OUTLINE, overlaid
from procap.datasets.vocabulary import Vocabulary
from procap.models.build import build
from procap.training.bundle import write_bundle
from tests.small import ccrc_config, generator, shaken, small_vqgan

HIGH, WIDE = 40, 64


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    """One that outlines the upper left quarter of every pair, as long as it writes <seg>."""
    folder = tmp_path_factory.mktemp("ccrc") / "bundle"
    model = shaken(build(lambda: CCRC(ccrc_config()), generator()), 0.15)
    vocabulary = Vocabulary(tuple(f"w{number:02d}" for number in range(12)), 7)
    write_bundle(folder, "ccrc", model, ccrc_config(), small_vqgan(), vocabulary, {"no_change": ["w01 w02"]})
    opened = load_captioner(folder, "cpu")

    def quarter(features, *_):
        logits = torch.full((len(features), 16, 16), -1.0)
        logits[:, :8, :8] = 1.0
        return logits

    opened.bundle.captioner.outline.forward = quarter
    return opened


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return list(draw.integers(0, 256, (count, HIGH, WIDE, 3), dtype=np.uint8))


def decide(captioner, seg: bool) -> None:
    model = captioner.bundle.captioner
    with torch.no_grad():
        model.language.out.bias[model.grammar.seg] = 100.0 if seg else -100.0


def test_a_mask_has_the_pictures_size_and_lies_where_it_was_drawn(captioner):
    decide(captioner, True)
    (said, *_) = captioner.caption(pictures(2), pictures(2, 1))
    expected = np.zeros((HIGH, WIDE), bool)
    expected[: HIGH // 2, : WIDE // 2] = True
    assert said.change_mask.dtype == bool
    assert np.array_equal(said.change_mask, expected)


def test_a_line_and_probabilities_come_with_a_caption(captioner):
    said = captioner.caption(pictures(3), pictures(3, 1))
    for one in said:
        assert one.reasoning.change in ("color", "material", "add", "drop", "move", "none", "unknown")
        assert set(one.reasoning.object.split()) <= {*captioner.bundle.vocabulary.words, "[UNK]"}
        assert len(one.word_probabilities) == len(one.words)
        assert np.prod([*one.word_probabilities, one.end_probability]) == pytest.approx(one.probability, rel=1e-3)
        assert 0 <= one.change_probability <= 1


def test_why_is_where_it_looks_and_where_it_sees_a_change(captioner):
    for one in captioner.caption(pictures(3), pictures(3, 1), explain=True):
        why = one.explanation
        assert why.change_map.shape == (HIGH, WIDE)
        assert why.change_map.max() <= one.change_probability + 1e-5
        assert why.attention_before.shape == (len(one.words), HIGH, WIDE)
        assert len(why.frames) == 2


@pytest.mark.parametrize("seg", [True, False])
def test_lines_and_answers_have_the_mask_where_there_is_one(captioner, seg):
    decide(captioner, seg)
    said = captioner.caption(pictures(1)[0], pictures(1, 1)[0], explain=True)
    for mask, line in (
        (record(said)["change_mask"], record(said)["reasoning"]),
        (captioned(said).change_mask, captioned(said).reasoning.model_dump()),
        (explained(said).change_mask, explained(said).reasoning.model_dump()),
    ):
        assert (mask is not None) is seg
        if seg:
            pixels = np.array(Image.open(io.BytesIO(base64.b64decode(mask))))
            assert np.array_equal(pixels, said.change_mask.astype(np.uint8) * 255)
        assert line == {
            "change": said.reasoning.change, "object": said.reasoning.object, "where": said.reasoning.where,
        }  # fmt: skip


def test_the_page_shows_the_line_and_the_outline(captioner):
    decide(captioner, True)
    before, after = pictures(1)[0], pictures(1, 1)[0]
    said = captioner.caption(before, after, explain=True)
    page = explanation_page(captioner.about, before, after, said)
    assert said.reasoning.where in page
    decide(captioner, False)
    without = explanation_page(captioner.about, before, after, captioner.caption(before, after, explain=True))
    assert "nothing that could be outlined" not in page
    assert "nothing that could be outlined" in without


def test_an_overlay_tints_what_was_drawn_and_edges_what_is_true():
    black, drawn, true = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), bool), np.zeros((8, 8), bool)
    drawn[:4], true[2:6, 2:6] = True, True
    shown = overlaid(black, drawn, true)
    assert shown.shape == (256, 256, 3)
    assert np.allclose(shown[8, 8], 0.45 * np.array(OUTLINE), atol=1)
    assert (shown[-8, -8] == 0).all()
    assert (shown[2 * 32, 3 * 32] == 255).all()
    assert not overlaid(black, None, None).any()
