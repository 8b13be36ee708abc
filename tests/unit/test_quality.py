import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.presets import apply_overrides
from procap.config import CorpusName, load_params
from procap.datasets.corpora import CORPORA
from procap.datasets.pairs import CHANGE_TYPES, Pairs
from procap.datasets.shards import Shards, write_array
from procap.errors import BadInput
from procap.evaluation.quality import all_facts, type_facts
from procap.evaluation.rules import PROMISES, Thresholds, rules
from procap.files import folder_digest
from procap.report import Silent
from procap.steps import validate
from procap.steps.corpus import write_raw
from tests import layouts
from tests.toy import toy_prepared

PARAMS = load_params(Path(__file__).parents[2] / "params.yaml")
LIMITS = Thresholds(22, 0.05, 4, 3.0, 0.5, 0.9)


@pytest.fixture
def folder(tmp_path):
    toy_prepared(tmp_path / "data" / "prepare", pairs=40)
    return tmp_path / "data" / "prepare"


class Prepared:
    """A prepared corpus on disk whose table, pictures and masks are arrays to be spoilt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table = folder, pd.read_parquet(folder / "pairs.parquet")
        self.images, self.masks = (np.load(folder / f"{name}-00000.npy") for name in ("images", "masks"))

    def rows(self, split: str) -> list[int]:
        return np.flatnonzero(self.table["split"] == split).tolist()

    def save(self) -> None:
        self.table.to_parquet(self.folder / "pairs.parquet", index=False)
        for name in ("images", "masks"):
            write_array(self.folder / f"{name}-00000.npy", getattr(self, name))

    def another_size(self, name: str) -> int:
        """Add a shard with a row of 16 x 16; its number."""
        rest = (3,) if name == "images" else ()
        write_array(self.folder / f"{name}-00001.npy", np.zeros((1, 16, 16, *rest), np.uint8))
        return len(Shards(self.folder, name)) - 1

    def set(self, row: int, column: str, value: object) -> list[int]:
        self.table.at[row, column] = value
        return [row]


def group_in_two_splits(at: Prepared) -> list[int]:
    at.set(0, "split", "test")
    return [0, 1]  # row 1 is the distractor of the same scene


def same_bytes_in_two_splits(at: Prepared) -> list[int]:
    row = at.rows("test")[0]
    at.images[at.table.at[row, "after"]] = at.images[at.table.at[0, "before"]]
    return [0, 1, row]


def recompressed_in_two_splits(at: Prepared) -> list[int]:
    """Another picture's noise, a little lighter: other bytes, the same picture."""
    row = at.rows("test")[0]
    noise = np.random.default_rng(1).integers(0, 5, at.images[0].shape, dtype=np.uint8)
    at.images[at.table.at[row, "after"]] = np.minimum(at.images[at.table.at[2, "after"]], 250) + noise
    return [2, row]


def identical_but_changed(at: Prepared) -> list[int]:
    return at.set(0, "after", at.table.at[0, "before"])


def mask_of_another_size(at: Prepared) -> list[int]:
    return at.set(0, "mask", at.another_size("masks"))


def picture_of_another_size(at: Prepared) -> list[int]:
    return at.set(2, "after", at.another_size("images"))


def mask_with_gray(at: Prepared) -> list[int]:
    at.masks[at.table.at[4, "mask"], 3, 3] = 77
    return [4]


def mask_of_everything(at: Prepared) -> list[int]:
    at.masks[at.table.at[4, "mask"]] = 255
    return [4]


def empty_mask_of_a_change(at: Prepared) -> list[int]:
    at.masks[at.table.at[4, "mask"]] = 0
    return [4]


def full_mask_of_no_change(at: Prepared) -> list[int]:
    at.masks[at.table.at[5, "mask"], :4] = 128
    return [5]


def captions(row: int, *said: str) -> Callable[[Prepared], list[int]]:
    return lambda at: at.set(row, "captions", list(said))


def cell(row: int, column: str, value: object) -> Callable[[Prepared], list[int]]:
    return lambda at: at.set(row, column, value)


FAULTS = [
    ("pairs", "group_leaks", group_in_two_splits),
    ("pairs", "picture_leaks", same_bytes_in_two_splits),
    ("pairs", "nearly_leaks", recompressed_in_two_splits),
    ("pairs", "picture_missing", cell(3, "after", -1)),
    ("pairs", "picture_missing", cell(3, "after", 10_000)),
    ("pairs", "sizes_differ", picture_of_another_size),
    ("pairs", "type_contradicted", identical_but_changed),
    ("pairs", "mask_missing", cell(4, "mask", -2)),
    ("pairs", "mask_missing", cell(4, "mask", 10_000)),
    ("pairs", "mask_size", mask_of_another_size),
    ("pairs", "mask_values", mask_with_gray),
    ("pairs", "mask_large", mask_of_everything),
    ("pairs", "mask_contradicted", empty_mask_of_a_change),
    ("pairs", "mask_contradicted", full_mask_of_no_change),
    ("pairs", "mask_contradicted", cell(1, "change_type", "move")),
    ("captions", "contradicts_mask", empty_mask_of_a_change),
    ("captions", "contradicts_mask", full_mask_of_no_change),
    ("captions", "contradicts_mask", captions(0, "the ball moved", "no change")),
    ("captions", "contradicts_label", captions(0, "the ball moved", "there is no difference")),
    ("captions", "contradicts_label", captions(2, "the scene is the same as before")),
    ("captions", "contradicts_label", captions(1, "no change", "many houses are built beside the road")),
    ("captions", "repeated", captions(0, "The ball moved.", "the ball moved")),
]


@pytest.mark.parametrize(("table", "rule", "fault"), FAULTS, ids=[f"{r}-{n}" for n, (_, r, _) in enumerate(FAULTS)])
def test_a_fault_is_found_in_the_pairs_that_have_it_and_in_no_others(folder, table, rule, fault):
    at = Prepared(folder)
    offenders = fault(at)
    at.save()
    facts = all_facts(Pairs.read(folder), LIMITS)[table]
    wrong = facts["mask_share"] > LIMITS.largest_mask if rule == "mask_large" else facts[rule]
    assert set(facts.loc[wrong, "id"]) == set(at.table.loc[offenders, "id"])


def test_nothing_is_wrong_with_a_good_corpus(folder):
    facts = all_facts(Pairs.read(folder), LIMITS)
    for table, rule, _ in FAULTS:
        assert rule == "mask_large" or not facts[table][rule].any(), rule
    assert facts["pairs"]["mask_share"].max() < LIMITS.largest_mask
    assert facts["drift"]["distance"].max() < LIMITS.drift
    assert facts["types"]["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda pictures: pictures // 2, "red mean"),
        (lambda pictures: 100 + pictures // 50, "red contrast"),
        (lambda pictures: pictures * np.array([1, 1, 0], np.uint8), "share of blue in 0..31"),
    ],
)
def test_a_split_that_looks_different_drifts(folder, spoil, expected):
    at = Prepared(folder)
    rows = at.table.loc[at.rows("test"), "before"].unique()
    at.images[rows] = spoil(at.images[rows])
    at.save()
    facts = all_facts(Pairs.read(folder), LIMITS)["drift"]
    drifted = facts.loc[facts["distance"] > LIMITS.drift, "id"].tolist()
    assert f"test: {expected}" in drifted
    said = facts.set_index("id").at[f"test: {expected}", "seen"]
    mean, base, low, high = map(float, re.findall(r"\d\.\d+", said))
    assert not low <= mean <= high
    assert low <= base <= high
    assert not [name for name in drifted if name.startswith("val")]


def test_a_distractor_may_show_the_same_picture(folder):
    at = Prepared(folder)
    at.set(1, "after", at.table.at[1, "before"])
    at.save()
    assert not all_facts(Pairs.read(folder), LIMITS)["pairs"]["type_contradicted"].any()


def test_what_import_and_prepare_left_out_is_counted_together(tmp_path):
    assert validate.left_out(tmp_path, tmp_path) == {}
    (tmp_path / "import.json").write_text(json.dumps({"left_out": {"empty sentences": 3}}))
    (tmp_path / "summary.json").write_text(json.dumps({"set_aside": 2}))
    assert validate.left_out(tmp_path, tmp_path) == {
        "empty sentences": 3, "pairs set aside (dataset.on_error: skip)": 2,
    }  # fmt: skip


def test_a_double_is_named(folder):
    at = Prepared(folder)
    first, second = (at.table.at[row, "id"] for row in recompressed_in_two_splits(at))
    at.save()
    doubles = all_facts(Pairs.read(folder), LIMITS)["pairs"].set_index("id")["double"]
    assert (doubles[first], doubles[second]) == (second, first)


def test_captions_are_counted_as_words(folder):
    at = Prepared(folder)
    at.set(0, "captions", ["The ball moved.", "?!"])
    at.save()
    facts = all_facts(Pairs.read(folder), LIMITS)["captions"].query("id == '000000-change'")
    assert facts["words"].tolist() == [3, 0]
    assert not facts["contradicts_label"].any()


def test_types_count_only_where_a_corpus_knows_them(folder):
    table = pd.read_parquet(folder / "pairs.parquet")
    table.loc[table["change_type"] == "drop", "change_type"] = "add"
    shares = type_facts(Pairs(folder, table)).set_index("id")["share"]
    assert shares["drop"] == 0
    assert shares["add"] == pytest.approx(0.4)
    table["change_type"] = "unknown"
    assert not len(type_facts(Pairs(folder, table)))


@pytest.mark.parametrize("corpus", PROMISES)
def test_rule_names_are_unique(corpus):
    names = [(rule.table, rule.name) for rule in rules(corpus, LIMITS)]
    assert len(set(names)) == len(names)


CRITICAL = {
    "ids_unique", "splits_known", "types_known", "has_caption", "group_leaks", "picture_leaks", "picture_missing",
    "sizes_differ", "type_contradicted", "mask_missing", "mask_size", "mask_values", "not_empty", "filled",
}  # fmt: skip
WARNINGS = {
    "enough_captions", "nearly_leaks", "mask_contradicted", "mask_large", "short_enough", "repeated",
    "contradicts_label", "contradicts_mask", "balanced", "alike",
}  # fmt: skip


def test_what_a_corpus_promises():
    from typing import get_args

    assert set(PROMISES) == set(get_args(CorpusName))
    severity = {corpus: {rule.name: rule.severity for rule in rules(corpus, LIMITS)} for corpus in PROMISES}
    assert severity["rendered"]["contradicts_label"] == "critical"
    assert severity["levir_mci"]["contradicts_label"] == "warning"
    assert severity["image_editing_request"]["picture_leaks"] == "warning"
    assert severity["table"]["picture_leaks"] == "critical"
    assert severity["table"] == dict.fromkeys(CRITICAL, "critical") | dict.fromkeys(WARNINGS, "warning")
    assert {name for name in severity["rendered"] if severity["rendered"][name] != severity["table"][name]} == {
        "mask_contradicted", "contradicts_label", "contradicts_mask",
    }  # fmt: skip
    asked = {corpus: {rule.name: rule.arguments for rule in rules(corpus, LIMITS)} for corpus in PROMISES}
    for corpus in ("levir_cc", "levir_mci"):
        assert "repeated" not in severity[corpus], "the references of published scores"
        assert asked[corpus]["enough_captions"]["min_value"] == 5
    bounds = {name: asked["table"][name].get("max_value") for name in ("short_enough", "alike", "mask_large")}
    assert bounds == {"short_enough": LIMITS.most_words, "alike": LIMITS.drift, "mask_large": LIMITS.largest_mask}
    assert asked["table"]["balanced"]["min_value"] == LIMITS.rarest_change
    for corpus in PROMISES:
        assert "test_shift" in asked[corpus]["splits_known"]["value_set"]
        known = set(asked[corpus]["types_known"]["value_set"])
        typed = corpus in ("rendered", "clevr_change", "clevr_dc", "table")
        assert known == ({*CHANGE_TYPES} if typed else set()) | {"none", "unknown"}


@pytest.mark.parametrize(
    "sentence",
    [
        "there is no difference", "the scene is the same as before", "the two scenes seem identical",
        "no change has occurred", "almost nothing has changed",
    ],
)  # fmt: skip
def test_how_levir_says_that_nothing_changed(sentence):
    from procap.evaluation.change_words import says_change

    assert says_change(f" {sentence} .") is False


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.kept: list[str] = []
        self.numbers: dict[str, float] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def artifact(self, path: Path) -> None:
        assert path.exists()
        self.kept.append(path.name)

    def picture(self, name: str, image: object) -> None:
        self.kept.append(name)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        self.numbers |= values


@pytest.fixture
def elsewhere(monkeypatch):
    """Move this process to another time zone."""

    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


class TestWithGreatExpectations:
    def test_a_good_corpus_passes_and_gives_the_same_bytes_in_every_time_zone(self, folder, tmp_path, elsewhere):
        data = tmp_path / "data"
        validate.run(PARAMS, data)
        first = folder_digest(data / "validate")
        summary = json.loads((data / "validate" / "report.json").read_text())
        assert (summary["critical"], summary["warnings"]) == (0, 0)
        assert all(rule["success"] and rule["checked"] for rule in summary["rules"].values())
        assert (data / "validate" / "docs" / "index.html").exists()
        elsewhere("America/Caracas")
        validate.run(PARAMS, data)
        assert folder_digest(data / "validate") == first

    def test_each_rule_is_seen_broken(self, folder, tmp_path):
        at = Prepared(folder)
        table = at.table
        recompressed_in_two_splits(at)
        full_mask_of_no_change(at)
        at.masks[table.at[20, "mask"]] = 77
        at.masks[table.at[16, "mask"]] = 0
        at.set(21, "mask", at.another_size("masks"))
        tests = table.loc[at.rows("test"), "before"].unique()
        at.images[tests] //= 2
        table.at[2, "id"] = table.at[0, "id"]
        table.at[1, "split"] = "trian"
        table.loc[table["split"] == "val", "split"] = "train"
        table.at[3, "change_type"] = "colour"
        table.at[4, "captions"] = []
        table.at[17, "captions"] = ["...", "word " * 23, "no change", "No change."]
        table.at[8, "after"] = 10_000
        table.at[9, "after"] = at.another_size("images")
        table.at[10, "mask"] = 10_000
        table.at[12, "after"] = table.at[12, "before"]
        table.loc[table["change_type"] == "drop", "change_type"] = "add"
        at.save()
        notes = Notes()
        with pytest.raises(BadInput) as raised:
            validate.run(PARAMS, tmp_path / "data", report=notes)
        found = json.loads((tmp_path / "data" / "validate" / "report.json").read_text())["rules"]
        assert [name for name, rule in found.items() if rule["success"]] == []
        ids = {name.partition(".")[2]: rule["ids"] for name, rule in found.items()}
        assert ids["filled"] == ["val"]
        assert ids["ids_unique"] == [table.at[0, "id"]]
        assert ids["splits_known"] == [table.at[1, "id"]]
        assert table.at[0, "id"] in ids["group_leaks"]
        assert ids["types_known"] == [table.at[3, "id"]]
        assert ids["has_caption"] == [table.at[4, "id"]]
        assert table.at[4, "id"] in ids["enough_captions"]
        assert ids["not_empty"] == ids["short_enough"] == ids["repeated"] == [table.at[17, "id"]]
        assert table.at[17, "id"] in ids["contradicts_label"]
        assert table.at[5, "id"] in ids["contradicts_mask"]
        assert table.at[at.rows("test")[0], "id"] in ids["nearly_leaks"]
        assert ids["mask_size"] == [table.at[21, "id"]]
        assert ids["mask_values"] == ids["mask_large"] == [table.at[20, "id"]]
        assert {"test: red mean", "test: green mean"} <= set(ids["alike"])
        (printed,) = (note for note in notes.notes if "standard deviations" in note)
        assert re.search(r"test: red mean \(0\.\d+ against 0\.\d+ in train, 0\.\d+ to 0\.\d+ expected\)", printed)
        assert "drop (0.0)" in next(note for note in notes.notes if "at least 0.05" in note)
        listed = pd.read_csv(tmp_path / "data" / "validate" / "findings.csv", keep_default_na=False)
        for name, rule in found.items():
            assert listed.loc[listed["rule"] == name, "id"].tolist()[:10] == rule["ids"], name
        saying = listed[(listed["rule"] == "captions.contradicts_label") & (listed["id"] == table.at[17, "id"])]
        assert saying["detail"].item() == "word " * 23
        counts = [sum(r["severity"] == kind for r in found.values()) for kind in ("critical", "warning")]
        assert notes.numbers == dict(zip(("critical", "warnings"), counts, strict=True))
        assert set(notes.kept) == {"card.html", "findings.csv", "docs", "captions.png"}
        card = (tmp_path / "data" / "validate" / "card.html").read_text()
        assert "no picture has a double in another split" in card
        assert "not so: ids are unique" in card
        assert "test: red mean (0." in card
        assert ids["picture_missing"] == [table.at[8, "id"]]
        assert table.at[9, "id"] in ids["sizes_differ"]
        assert ids["mask_missing"] == [table.at[10, "id"]]
        assert ids["type_contradicted"] == [table.at[12, "id"]]
        assert ids["balanced"] == ["drop"]
        assert "ids are unique" in str(raised.value)
        assert "balanced" not in str(raised.value)
        assert "at least 0.05" not in str(raised.value)
        assert any(note.startswith("warning") and "drop" in note for note in notes.notes)


class TestWithoutThePipeline:
    """``procap validate``, the judgement of Great Expectations apart."""

    @pytest.fixture(autouse=True)
    def judged_by_hand(self, monkeypatch):
        """Break the rule that ids are unique where the folder has two pairs of one id, and no other."""
        from procap.evaluation.quality import Finding

        def judge(tables, asked, docs):
            twice = tables["pairs"].loc[tables["pairs"]["id"].duplicated(), "id"]
            return [
                Finding(rule, not (rule.name == "ids_unique" and len(twice)), 1, len(twice), dict.fromkeys(twice, ""))
                for rule in asked
            ]

        monkeypatch.setattr(validate, "judge", judge)

    @pytest.mark.parametrize("layout", ["table", "clevr_change", "clevr_dc", "levir_cc", "levir_mci"])
    def test_a_corpus_is_known_by_its_files(self, layout, workspace, tmp_path):
        source = getattr(layouts, layout)(tmp_path / "source")
        before = folder_digest(source)
        done = CliRunner().invoke(app, ["validate", str(source), "--out", str(tmp_path / "out")])
        assert done.exit_code == 0, done.output
        assert f"{layout}: " in done.output
        assert "rules hold" in done.output
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"card.html", "findings.csv", "report.json"}
        assert folder_digest(source) == before

    def test_an_imported_and_a_rendered_corpus_are_known_by_theirs(self, workspace, folder, tmp_path):
        source = layouts.clevr_dc(tmp_path / "source")
        write_raw(CORPORA["clevr_dc"], source, tmp_path / "imported")
        assert "clevr_dc: " in CliRunner().invoke(app, ["validate", str(tmp_path / "imported")]).output
        (folder / "scenes.jsonl").write_text("")
        assert "rendered: " in CliRunner().invoke(app, ["validate", str(folder)]).output

    def test_what_cannot_be_used_is_told_splits_are_drawn_and_no_limit_holds(self, workspace, tmp_path):
        apply_overrides(workspace / "params.yaml", {"prepare.limit": 3})
        source = layouts.table(tmp_path / "source")
        (source / "after" / "1.jpg").write_bytes(b"")
        words = ["validate", str(source), "--splits", "0.2,0.4,0.4", "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "left out: 1 pairs with a file that cannot be used" in done.output
        assert "LOOK: set aside: " in done.output
        card = (tmp_path / "out" / "card.html").read_text()
        tiles = dict(re.findall(r'tile"><span>(.*?)</span><b>(.*?)</b>', card))
        assert (tiles["pairs"], tiles["train"]) == ("5", "1")
        assert "pairs with a file that cannot be used" in card

    def test_a_critical_finding_is_status_1(self, workspace, folder):
        assert CliRunner().invoke(app, ["validate", str(folder)]).exit_code == 0
        spoilt = Prepared(folder)
        spoilt.set(2, "id", spoilt.table.at[0, "id"])
        spoilt.save()
        done = CliRunner().invoke(app, ["validate", str(folder)])
        assert done.exit_code == 1, done.output
        assert "ids are unique" in done.output

    def test_no_corpus_is_bad_input(self, workspace, tmp_path):
        (tmp_path / "empty").mkdir()
        for words in (["empty"], ["nowhere"], ["empty", "--corpus", "clevr"], ["empty", "--corpus", "levir_cc"]):
            done = CliRunner().invoke(app, ["validate", str(tmp_path / words[0]), *words[1:]])
            assert isinstance(done.exception, BadInput), words
