import base64
import io
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from procap.captioners.explanation import Explanation
from procap.datasets.pairs import NO_CHANGE
from procap.evaluation.page import GALLERIES, Example, choose, page, sheet
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
    "per_type": {kind: {"count": 5, "accuracy": 0.4, "accuracy_interval": [0.2, 0.6], "CIDEr": 20.0} for kind in SAYS},
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
    text = page(captioner, "rendered", "val", table, confusion(TOLD), {"Best": examples})
    outline = Outline()
    outline.feed(text)
    return text, outline


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def example(told: Told, side: int = 8, why: Explanation | None = None) -> Example:
    words = tuple(told.sentence.split())
    return Example(told, pixels(0, side, side, 3), pixels(1, side, side, 3), words, (0.5,) * len(words), 0.25, why)


def explanation(words: int, side: int = 8, between: int = 2) -> Explanation:
    draw = np.random.default_rng(3)
    maps = draw.random((2, words, side, side), dtype=np.float32)
    shares = np.full((words, between + 2), 1 / (between + 2), np.float32)
    frames = pixels(2, between + 2, side, side, 3)
    return Explanation(*maps, shares, draw.random((side, side), dtype=np.float32), frames)


def test_whatever_a_model_or_a_corpus_says_stays_text():
    told = tell(0, "color", NASTY, references=(NASTY, "</ul><h1>"))
    _, harmless = shown([example(tell(0, "color", "x " * len(NASTY.split()), ("y", "z")))])
    text, outline = shown([example(told)], captioner=NASTY)
    assert outline.tags == harmless.tags
    assert "script" not in outline.tags
    assert "".join(outline.words).count(NASTY) == 4  # heading, title, reason, reference
    assert set(NASTY.split()) <= set(outline.words)  # the sentence, word by word
    assert "49" not in re.sub(r'base64,[^"]*|<style>.*</style>', "", text, flags=re.DOTALL)


def test_pictures_are_in_the_page_and_nothing_is_fetched():
    told, why = TOLD[0], explanation(words=4)
    text, outline = shown([example(told, why=why)])
    found = [Image.open(io.BytesIO(base64.b64decode(source.partition("base64,")[2]))) for source in outline.sources]
    pictures = [np.array(one) for one in found if one.mode == "RGB"]
    for one, other in zip(pictures, [pixels(0, 8, 8, 3), *why.frames[1:-1], pixels(1, 8, 8, 3)], strict=True):
        np.testing.assert_array_equal(one, other)
    maps = [np.array(one.convert("RGBA"))[..., 3] for one in found if one.mode == "P"]
    assert len(maps) == 2 * (4 + 1)  # of before and after each a look per word and the change
    true = [*why.attention_before, why.change_map, *why.attention_after, why.change_map]
    for alpha, values in zip(maps, true, strict=True):
        assert np.corrcoef(alpha.ravel(), values.ravel())[0, 1] > 0.98
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    assert "http" not in text
    assert "url(" not in text


def test_each_word_has_its_own_look():
    told = TOLD[0]
    text, outline = shown([example(told, why=explanation(words=4))])
    assert outline.tags["button"] == 4 == len(told.sentence.split())
    for number, word in enumerate(told.sentence.split()):
        assert len(re.findall(rf'<img class="l{number}"', text)) == 2
        assert re.search(rf'class="word s{number}"[^>]*aria-label="{word}, 50 %"', text)
        assert f".explained:has(.s{number}:is(:hover, :focus)) .stack img.l{number} " in text
    assert outline.tags["input"] == 1


def test_a_captioner_that_imagines_nothing_has_two_pictures_a_pair():
    _, outline = shown([example(TOLD[0])])
    assert (outline.tags["article"], outline.tags["img"], outline.tags["input"]) == (1, 2, 0)


@pytest.mark.parametrize(
    ("number", "verdict"),
    [(0, "right"), (1, "says move"), (3, "a change missed"), (15, "a change that is not there"), (18, "right")],
)
def test_the_verdict(number, verdict):
    _, outline = shown([example(TOLD[number])])
    assert verdict in outline.words


def test_numbers_come_from_the_table_and_without_metrics_it_still_works():
    _, outline = shown([])
    assert {"88.3", "88.2"} & set(outline.words)
    assert {"75.0 %", "50.0 – 87.5", "70.0 – 99.0", "40 % [20, 60]"} <= set(outline.words)
    bare = {"pairs": 2, "change_accuracy": 1.0, "change_accuracy_interval": [1.0, 1.0], "skipped": {}}
    none = {"count": 2, "accuracy": 1.0, "accuracy_interval": [1.0, 1.0]}
    _, outline = shown([], table={**bare, "per_type": {NO_CHANGE: none}})
    assert "100.0 %" in outline.words


def chosen(count: int, seed: int = 0) -> dict[str, list[int]]:
    scores = {one.id: 10.0 * number for number, one in enumerate(TOLD)}
    return choose(TOLD, scores, count, np.random.default_rng(seed))


@pytest.mark.parametrize("count", [0, 1, 4, 8, 11, 100])
def test_galleries_share_what_is_shown_and_no_pair_is_in_two(count):
    galleries = chosen(count)
    numbers = [number for those in galleries.values() for number in those]
    assert list(galleries) == list(GALLERIES)
    assert len(numbers) == len(set(numbers)) == min(count, len(TOLD))
    if count < len(TOLD):
        assert max(map(len, galleries.values())) - min(map(len, galleries.values())) <= 1


def test_best_are_right_and_near_worst_are_wrong_and_far_of_each_type():
    galleries = chosen(24)
    for name, right, pick in (("Best", True, max), ("Worst", False, min)):
        first = galleries[name][: len(SAYS)]
        assert Counter(TOLD[n].actual for n in first) == Counter(dict.fromkeys(SAYS, 1))
        assert [TYPES.index(TOLD[n].actual) for n in first] == sorted(TYPES.index(kind) for kind in SAYS)
        for number in first:
            kind = TOLD[number].actual
            alike = [n for n, one in enumerate(TOLD) if one.actual == kind and one.right == right]
            assert number == pick(alike)


def test_the_seed_draws_the_random_ones():
    assert chosen(9)["Random"] == chosen(9)["Random"]
    assert len({tuple(chosen(9, seed)["Random"]) for seed in range(6)}) > 1


def test_a_sheet_has_a_line_per_pair_and_what_was_imagined():
    one, plain = example(TOLD[0], why=explanation(4)), example(TOLD[1])
    both, alone = sheet([one, plain], side=16), sheet([plain], side=16)
    assert both.height == 2 * alone.height
    assert both.width - alone.width == 2 * (16 + 2)
    imagined = Image.fromarray(one.why.frames[1]).resize((16, 16), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(np.array(both)[:16, 18:34], np.array(imagined))
