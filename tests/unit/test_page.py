import base64
import io
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from procap.datasets.pairs import NO_CHANGE
from procap.evaluation.page import Example, choose, page
from procap.evaluation.scores import TYPES, Told, confusion

NASTY = """<script>alert("x")</script> & <img src=x onerror='y'> {{ 7 * 7 }}"""
SAYS = {"color": "the ball turned red", "move": "the ball moved", "add": "a ball was added", NO_CHANGE: "no change"}


def tell(number: int, actual: str, sentence: str, references: tuple[str, ...] = ("a reference",)) -> Told:
    return Told(f"pair-{number}", f"scene-{number}", actual, sentence, 0.25, references)


TOLD = [tell(n, kind, said) for n, (kind, said) in enumerate((k, s) for k in SAYS for s in (*SAYS.values(), SAYS[k]))]
TABLE = {
    "pairs": len(TOLD),
    "CIDEr": 88.25,
    "CIDEr_interval": [70.0, 99.0],
    "change_accuracy": 0.75,
    "change_accuracy_interval": [0.5, 0.875],
    "per_type": {kind: {"count": 5, "accuracy": 0.4, "CIDEr": 20.0} for kind in SAYS},
    "skipped": {"METEOR": f"because {NASTY}"},
}


class Outline(HTMLParser):
    """Counts elements and collects sources and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.sources, self.words = Counter(), [], []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.sources += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


def shown(examples, table=TABLE, captioner="procap") -> tuple[str, Outline]:
    text = page(captioner, "rendered", "val", table, confusion(TOLD), examples)
    outline = Outline()
    outline.feed(text)
    return text, outline


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_whatever_a_model_or_a_corpus_says_stays_text():
    told = tell(0, "color", NASTY, references=(NASTY, "</ul><h1>"))
    _, harmless = shown([Example(tell(0, "color", "x", ("y", "z")), pixels(0, 8, 8, 3), pixels(1, 8, 8, 3), None)])
    text, outline = shown([Example(told, pixels(0, 8, 8, 3), pixels(1, 8, 8, 3), None)], captioner=NASTY)
    assert outline.tags == harmless.tags
    assert "script" not in outline.tags
    assert "".join(outline.words).count(NASTY) == 5  # heading, title, reason, sentence, reference
    assert "49" not in re.sub(r'base64,[^"]*|<style>.*</style>', "", text, flags=re.DOTALL)


def test_pictures_are_in_the_page_and_nothing_is_fetched():
    before, after, imagined = pixels(0, 12, 12, 3), pixels(1, 12, 12, 3), pixels(2, 2, 8, 8, 3)
    text, outline = shown([Example(TOLD[0], before, after, imagined)])
    found = [np.array(Image.open(io.BytesIO(base64.b64decode(s.partition("base64,")[2])))) for s in outline.sources]
    for one, other in zip(found, [before, *imagined, after], strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    assert "http" not in text
    assert "url(" not in text


def test_a_captioner_that_imagines_nothing_has_two_pictures_a_pair():
    _, outline = shown([Example(TOLD[0], pixels(0, 8, 8, 3), pixels(1, 8, 8, 3), None)])
    assert (outline.tags["article"], outline.tags["img"]) == (1, 2)


@pytest.mark.parametrize(
    ("number", "verdict"),
    [(0, "right"), (1, "says move"), (3, "a change missed"), (15, "a change that is not there"), (18, "right")],
)
def test_the_verdict(number, verdict):
    _, outline = shown([Example(TOLD[number], pixels(0, 8, 8, 3), pixels(1, 8, 8, 3), None)])
    assert verdict in outline.words


def test_numbers_come_from_the_table_and_without_metrics_it_still_works():
    _, outline = shown([])
    assert {"88.3", "88.2"} & set(outline.words)
    assert {"75.0 %", "50.0 – 87.5", "70.0 – 99.0", "40 %"} <= set(outline.words)
    bare = {"pairs": 2, "change_accuracy": 1.0, "change_accuracy_interval": [1.0, 1.0], "skipped": {}}
    _, outline = shown([], table={**bare, "per_type": {NO_CHANGE: {"count": 2, "accuracy": 1.0}}})
    assert "100.0 %" in outline.words


@pytest.mark.parametrize("count", [0, 1, 4, 8, 11, 100])
def test_types_and_right_and_wrong_are_balanced(count):
    chosen = choose(TOLD, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(TOLD))
    kinds = Counter(TOLD[number].actual for number in chosen)
    assert max(kinds.values(), default=0) - min((kinds[k] for k in SAYS), default=0) <= 1
    if count == 8:
        assert Counter((TOLD[n].actual, TOLD[n].right) for n in chosen) == Counter(
            {(kind, right): 1 for kind in SAYS for right in (True, False)}
        )


def test_chosen_pairs_stand_in_the_order_of_types():
    places = [TYPES.index(TOLD[number].actual) for number in choose(TOLD, 12)]
    assert places == sorted(places)
