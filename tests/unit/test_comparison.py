"""Captioners compared on made-up predictions: what is called a difference, what is refused, what is shown."""

import csv
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from flows.comparison import compare_paths
from procap.datasets.pairs import NO_CHANGE
from procap.errors import BadInput
from procap.evaluation.comparison import System, compare, per_type, telling_pairs
from procap.evaluation.comparison_page import findings, markdown, rows
from tests.toy import toy_prepared

PAIRS = 120


def told(right, scores, kinds=("add", "move", NO_CHANGE)):
    """``predictions.json``: a pair per number, two of which share a picture."""
    return {
        f"p{n:03}": {
            "sentence": f"sentence {n}", "probability": 0.5, "references": ["a reference"], "group": f"g{n // 2}",
            "change_type": kinds[n % len(kinds)], "parsed": "add", "change_right": bool(right[n]),
            "type_right": bool(right[n]), "scores": {"CIDEr": float(scores[n]), "BLEU-4": 1.0},
        }
        for n in range(len(right))
    }  # fmt: skip


def metrics(predictions):
    """``metrics.json`` of them, as ``evaluate`` would sum them up."""
    typed = [one["type_right"] for one in predictions.values() if one["change_type"] != NO_CHANGE]
    kinds = dict.fromkeys(one["change_type"] for one in predictions.values())
    right = {k: [one["type_right"] for one in predictions.values() if one["change_type"] == k] for k in kinds}
    return {
        "change_accuracy": np.mean([one["change_right"] for one in predictions.values()]),
        "change_type_accuracy": np.mean(typed),
        "CIDEr": np.mean([one["scores"]["CIDEr"] for one in predictions.values()]),
        "BLEU-4": 40.0,
        "per_type": {
            kind: {"count": len(of), "accuracy": np.mean(of), "accuracy_interval": [0.0, 1.0]}
            for kind, of in right.items()
        },
    }


def system(name, trainings, published=None):
    return System(name, trainings, [metrics(one) for one in trainings], published or {})


@pytest.fixture
def draw():
    return np.random.default_rng(7)


@pytest.fixture
def three(draw):
    """A base, the same with other noise, and one that is better by 5 CIDEr."""
    hard, right = 40 * draw.normal(size=PAIRS), draw.random(PAIRS) < 0.7

    def trained(shift, times=3):
        return [told(right, 100 + hard + shift + draw.normal(size=PAIRS)) for _ in range(times)]

    return [system("base", trained(0), {"CIDEr": 106.2}), system("same", trained(0)), system("better", trained(5))]


def test_a_difference_is_called_one_only_where_the_interval_excludes_zero(three):
    found = compare(three, "base")
    assert not found["same"]["CIDEr"].differs
    better = found["better"]["CIDEr"]
    assert better.differs
    assert better.interval[0] < 5 < better.interval[1]
    assert better.difference == pytest.approx(better.mean - found["base"]["CIDEr"].mean)
    assert better.deviation == pytest.approx(np.std(better.values, ddof=1))
    assert found["base"]["CIDEr"].interval is found["base"]["CIDEr"].difference is None
    assert found["better"]["change_accuracy"].interval == (0, 0)
    assert not found["better"]["change_accuracy"].differs
    assert found["better"]["BLEU-4"].interval is None, "BLEU is no mean over pairs"
    said = findings(found, "base")
    assert any(one.startswith("CIDEr: better differs from base: +5.") for one in said)
    assert any(one.startswith("CIDEr: same is not shown to differ from base") for one in said)
    turned = compare(three, "better")["base"]["CIDEr"]
    assert turned.differs
    assert turned.difference == -better.difference


def test_change_type_accuracy_is_compared_over_pairs_of_a_known_type(draw):
    right = np.zeros(PAIRS, bool)
    unchanged_only = np.arange(PAIRS) % 3 == 2
    scores = np.ones(PAIRS)
    found = compare([system("a", [told(right, scores)]), system("b", [told(unchanged_only, scores)])], "a")
    assert found["b"]["change_accuracy"].differs
    assert found["b"]["change_type_accuracy"].interval == (0, 0)
    assert found["b"]["CIDEr"].deviation is None


def test_other_pairs_or_other_references_are_refused(three):
    fewer = dict(list(three[0].predictions[0].items())[:-1])
    other = json.loads(json.dumps(three[0].predictions[0]))
    other["p000"]["references"] = ["another"]
    for wrong in (fewer, other):
        with pytest.raises(BadInput, match="not evaluated on the same pairs"):
            compare([three[0], system("wrong", [wrong])], "base")


def test_the_pairs_shown_are_those_on_which_they_differ_most():
    right, scores = np.zeros(6, bool), np.zeros(6)
    one, two = told(right, scores), told(right, scores)
    two["p003"]["type_right"] = True
    two["p004"]["scores"]["CIDEr"] = 90.0
    two["p001"]["scores"]["CIDEr"] = 30.0
    assert telling_pairs([system("a", [one]), system("b", [two])], 6) == ["p003", "p004", "p001"]
    assert telling_pairs([system("a", [one]), system("b", [two])], 1) == ["p003"]
    share, low, high = per_type(system("b", [one, two]))["add"]
    assert (low, share, high) == (0, 0.25, 0.5), "two pairs, of which one is right in one of two trainings"


def test_markdown_and_numbers_say_the_same(three):
    found = compare(three, "base")
    text = markdown("Title", "about it", found, "base", ["better / 3"])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert lines[0].endswith("| CIDEr | CIDEr, paper |")
    assert "| 106.2 |" in lines[2]
    assert lines[2].startswith("| base (base) |")
    cell = found["better"]["CIDEr"]
    low, high = cell.interval
    assert f"{cell.mean:.1f} ± {cell.deviation:.1f}<br>{cell.difference:+.1f} [{low:+.1f}, {high:+.1f}] *" in lines[4]
    assert "Missing: better / 3" in text
    table = [dict(zip(rows(found)[0], row, strict=True)) for row in rows(found)[1:]]
    (row,) = [row for row in table if (row["system"], row["metric"]) == ("better", "CIDEr")]
    assert (row["mean"], row["low"], row["differs"]) == (round(cell.mean, 6), round(low, 6), True)
    assert row["trainings"] == 3


class Outline(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources, self.words, self.open = [], [], []

    def handle_starttag(self, tag, attributes):
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())


NASTY = "<b>bold</b> & {{ 1 }}"


@pytest.fixture
def evaluated(tmp_path, draw):
    """``data/`` with two evaluated captioners, their histories and the pictures."""
    data = tmp_path / "data"
    table = toy_prepared(data / "prepare", 24)
    ids = list(table["id"][table["split"] == "test"])
    for name, shift in (("static", 0), ("procap", 1)):
        of = told(draw.random(len(ids)) < 0.5, draw.random(len(ids)) + shift)
        of = {pair: one | {"sentence": f"{name} {NASTY}"} for pair, one in zip(ids, of.values(), strict=True)}
        for folder, files in {
            f"evaluate/{name}": {"predictions.json": json.dumps(of), "metrics.json": json.dumps(metrics(of))},
            f"caption/{name}": {"history.csv": "step,split,name,value\n1,val,CIDEr,3\n2,val,CIDEr,5\n2,train,loss,1\n"},
        }.items():
            (data / folder).mkdir(parents=True)
            for file, text in files.items():
                (data / folder / file).write_text(text)
    return data / "evaluate"


def test_the_page_needs_no_network_and_shows_pictures_and_sentences(evaluated, tmp_path):
    written = compare_paths([evaluated / "static", evaluated / "procap" / "predictions.json"], tmp_path / "out")
    assert written.base == "static"
    outline = Outline()
    outline.feed(written.page.read_text())
    assert not outline.open
    assert len(outline.sources) >= 1 + 2 * 2, "curves, and two pictures of some pairs"
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    text = " ".join(outline.words)
    assert f"procap {NASTY}" in text
    assert "static (base)" in text
    with (tmp_path / "out" / "comparison.csv").open() as file:
        assert {row["system"] for row in csv.DictReader(file)} == {"static", "procap"}
    again = compare_paths([evaluated / "static", evaluated / "procap"], tmp_path / "again")
    assert again.page.read_bytes() == written.page.read_bytes(), "the same bytes each time"


def test_what_cannot_be_compared_is_refused(evaluated, tmp_path):
    for paths, base, complaint in (
        ([evaluated / "nothing"], None, "cannot be read"),
        ([evaluated / "static", evaluated / "static"], None, "named twice"),
        ([evaluated / "static"], "procap", "nothing is called 'procap'"),
    ):
        with pytest.raises(BadInput, match=complaint):
            compare_paths(paths, tmp_path / "out", base)
    assert not (tmp_path / "out").exists(), "nothing half-written"
