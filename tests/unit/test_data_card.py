"""The data card shows what the tables and findings say."""

import re
from collections import Counter
from pathlib import Path

import pytest

from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SHIFT, UNKNOWN_CHANGE, Pairs
from procap.evaluation.data_card import DOUBTFUL, PER_TYPE, card
from procap.evaluation.quality import Finding, all_facts
from procap.evaluation.rules import Thresholds, rules
from tests.toy import CAPTIONS, toy_prepared

LIMITS = Thresholds(22, 0.05, 4, 3.0, 0.5, 0.9)
SPLITS = ("train", "val", "test", SHIFT)
CLEANED = {"empty sentences": 1234}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """(pairs, facts, page) of a corpus of 40 pairs, the last four of test_shift, whose first pair breaks two rules."""
    folder: Path = tmp_path_factory.mktemp("prepare")
    table = toy_prepared(folder, pairs=40)
    table.loc[36:, "split"] = SHIFT
    table.at[0, "captions"] = ["<b>red</b> & blue", "no change"]
    table.at[7, "mask"] = -1
    table.at[39, "change_type"] = UNKNOWN_CHANGE
    pairs = Pairs(folder, table)
    facts = all_facts(pairs, LIMITS)
    ids = table["id"].tolist()
    broken = {"repeated": dict.fromkeys(ids[10:22], "said twice"), "picture_leaks": {ids[0]: ""}}
    findings = [
        Finding(rule, rule.name not in broken, 40, len(broken.get(rule.name, ())), broken.get(rule.name, {}))
        for rule in rules("rendered", LIMITS)
    ]
    return pairs, facts, card("rendered", pairs, facts, findings, CLEANED)


def articles(page: str, heading: str) -> list[str]:
    """The pairs below a heading."""
    part = page.partition(f"<h2>{heading}</h2>")[2].partition("<h2>")[0]
    return re.findall(r"<article.*?</article>", part, re.DOTALL)


def bars(page: str, title: str) -> dict[str, int]:
    """Counts of a histogram by label, and how high the bars are, checked against each other."""
    part = page.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
    found = re.findall(r'title="([^"]*): (\d+)"><i style="height: ([\d.]+)%"', part)
    most = max(int(count) for _, count, _ in found)
    assert all(float(height) == pytest.approx(100 * int(count) / most, abs=0.06) for _, count, height in found)
    return {label: int(count) for label, count, _ in found if int(count)}


def test_counts_are_those_of_the_table(shown):
    pairs, _, page = shown
    assert re.findall(r"<tr><th>.*?</tr>", page, re.DOTALL)[0].count("number") == len(SPLITS)
    for kind in (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE):
        (row,) = re.findall(rf"<tr><td>{kind}</td>.*?</tr>", page, re.DOTALL)
        of_kind = pairs.table[pairs.table["change_type"] == kind]["split"]
        assert list(map(int, re.findall(r'number">(\d+)<', row))) == [(of_kind == split).sum() for split in SPLITS]
    tiles = dict(re.findall(r'tile"><span>(.*?)</span><b>(.*?)</b>', page))
    splits = Counter(pairs.table["split"])
    assert {split: int(tiles[split]) for split in SPLITS} == splits
    assert (tiles["pairs"], tiles["unchanged"], tiles["with a mask"]) == ("40", "48 %", "98 %")
    assert (tiles["captions"], tiles["critical"], tiles["warnings"]) == ("80", "1", "1")


def test_histograms_count_words_captions_and_masks(shown):
    pairs, facts, page = shown
    words = Counter(str(len(each.split())) for said in pairs.table["captions"][1:] for each in said) + Counter("42")
    assert bars(page, "Words per caption") == words, '"<b>red</b> & blue" is b red b blue'
    assert bars(page, "Captions per pair") == {"2": 40}
    assert sum(bars(page, "Part of the picture that masks mark").values()) == (facts["pairs"]["mask_share"] > 0).sum()


def test_pairs_are_shown_with_pictures_masks_and_escaped_words(shown):
    pairs, _, page = shown
    examples = articles(page, "Training pairs of each type")
    assert len(examples) == PER_TYPE * (1 + len(CHANGE_TYPES))
    assert all("train, <b>" in each for each in examples)
    for each in examples:
        kind = re.search(r"train, <b>(\w+)</b>", each)[1]
        assert kind == "color" or all(caption in each for caption in CAPTIONS[kind])
        assert len(re.findall(r'src="data:image/png;base64,.{50}', each)) == each.count("<img")
    masks = [re.search(r"<span>(.*?)</span>", each)[1] for each in examples if 'alt="mask"' in each]
    known = pairs.table.set_index("id")["mask"]
    assert masks == [name for each in examples if known[name := re.search(r"<span>(.*?)</span>", each)[1]] >= 0]
    assert "<li>&lt;b&gt;red&lt;/b&gt; &amp; blue</li>" in page
    assert "<b>red</b>" not in page


def test_broken_rules_and_what_was_left_out_before_are_told(shown):
    _, _, page = shown
    doubtful = articles(page, "Pairs that break a rule")
    assert len(doubtful) == DOUBTFUL
    why = [re.search(r'ids">(.*?)<', each)[1] for each in doubtful]
    assert why.count("not so: a picture stays in one split") == 1
    assert why.count("not so: a pair has no caption twice (said twice)") == DOUBTFUL - 1
    table = page.partition('<table class="broken">')[2].partition("</table>")[0]
    first, second = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    assert "critical" in first
    assert "a picture stays in one split" in first
    assert "12 of 40" in second
    assert "000009-distractor\n..." in second, "ten of twelve are named"
    assert re.search(r"empty sentences</td><td class=\"number\">1,234<", page)
