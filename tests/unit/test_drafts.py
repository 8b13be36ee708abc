"""Sentences on their way out of noise, and captions of which not everything can be shown: pages, films, answers."""

import numpy as np
import pytest
from PIL import Image

from flows.serving.answers import explained
from procap.captioners.explanation import Draft, Explanation
from procap.captioning.captioner import About, Caption
from procap.captioning.page import explanation_page, write_film
from procap.evaluation.explained import explained as view_of

FRAMES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
DRAFTS = (Draft("", 0.1), Draft("the <b> was", 0.4), Draft("the ball was red", 0.9))
ABOUT = About("bundle", None, "0" * 64, "mct_ccdiff", 16, None)


def caption(**shown) -> Caption:
    parts = {"attention_before": None, "attention_after": None, "attention_frames": None, "change_map": None} | shown
    why = Explanation(frames=FRAMES, drafts=DRAFTS, **parts)
    words = tuple(DRAFTS[-1].text.split())
    return Caption(DRAFTS[-1].text, words, (), None, 0.9, None, explanation=why)


def test_what_is_not_known_is_not_shown():
    view = view_of(*FRAMES, caption().words, (), caption().explanation)
    assert view["changes"] is None
    assert not view["looks"]
    assert all(not frame["looks"] and not frame["shares"] for frame in view["frames"])
    assert [draft["text"] for draft in view["drafts"]] == ["(no words)", "the <b> was", "the ball was red"]
    answer = explained(caption())
    assert answer.explanation.change_map is answer.explanation.attention_before is None
    assert [draft.probability for draft in answer.explanation.drafts] == [0.1, 0.4, 0.9]
    assert answer.word_probabilities == []


def test_a_map_for_both_pictures_is_shown_without_shares_of_frames():
    looks = np.random.default_rng(1).random((4, 16, 16))
    said = caption(attention_before=looks, attention_after=looks, change_map=looks[0])
    view = view_of(*FRAMES, said.words, (), said.explanation)
    assert view["frames"][0]["looks"] == view["frames"][1]["looks"]
    assert len(view["frames"][0]["looks"]) == 4
    assert view["changes"]
    assert view["frames"][0]["shares"] == []
    assert len(explained(said).explanation.attention_before) == 4


@pytest.mark.parametrize("drafts", [True, False])
def test_a_page_tells_the_drafts_one_after_another(drafts):
    said = caption() if drafts else Caption("a", ("a",), (0.5,), 1.0, 0.5, 0.5)
    page = explanation_page(ABOUT, *FRAMES, said)
    assert page.count("--number:") == (3 if drafts else 0)
    assert ("@keyframes draft-3" in page) == drafts
    assert page.count("--name: said-3") == (1 if drafts else 0)
    assert ("2. the &lt;b&gt; was (40 %)" in page) == drafts
    assert "Point at a word" not in page


def test_a_film_shows_the_drafts_on_the_picture_after(tmp_path):
    write_film(tmp_path / "film.gif", caption())
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 1 + 2 + 1
        shown, texts = [], []
        for number in range(film.n_frames):
            film.seek(number)
            card = np.array(film.convert("RGB"))
            shown.append(card[:320].astype(int))
            texts.append(card[320:])
    assert np.abs(shown[1] - shown[-1]).mean() < 6
    assert np.abs(shown[0] - shown[-1]).mean() > 20
    assert not np.array_equal(texts[1], texts[2])
