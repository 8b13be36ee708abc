import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from procap.config import load_params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards, write_array
from procap.errors import BadInput
from procap.evaluation.quality import caption_facts, pair_facts, rules, type_facts
from procap.files import folder_digest
from procap.report import Silent
from procap.steps import validate
from tests.toy import toy_prepared

PARAMS = load_params(Path(__file__).parents[2] / "params.yaml")

WRONG = ("picture_missing", "group_leaks", "picture_leaks", "sizes_differ", "type_contradicted", "mask_missing")


@pytest.fixture
def folder(tmp_path):
    toy_prepared(tmp_path / "data" / "prepare", pairs=40)
    return tmp_path / "data" / "prepare"


def spoil(folder: Path, row: int, column: str, value: object) -> None:
    """Change one cell of the table on disk."""
    table = pd.read_parquet(folder / "pairs.parquet")
    table.at[row, column] = value
    table.to_parquet(folder / "pairs.parquet", index=False)


def broken(folder: Path, column: str) -> list[int]:
    facts = pair_facts(Pairs.read(folder))
    return np.flatnonzero(facts[column]).tolist()


def test_nothing_is_wrong_with_a_good_corpus(folder):
    facts = pair_facts(Pairs.read(folder))
    assert not facts[[*WRONG, "mask_contradicted"]].to_numpy().any()
    assert not caption_facts(Pairs.read(folder))["repeated"].any()
    assert type_facts(Pairs.read(folder))["share"].sum() == pytest.approx(1)


def test_a_group_in_two_splits_leaks(folder):
    spoil(folder, 0, "split", "test")  # row 1 is the distractor of the same scene
    assert broken(folder, "group_leaks") == [0, 1]


def test_the_same_bytes_in_two_splits_leak_whatever_the_groups_say(folder):
    table, images = pd.read_parquet(folder / "pairs.parquet"), np.load(folder / "images-00000.npy")
    test_row = int(np.flatnonzero(table["split"] == "test")[0])
    assert broken(folder, "picture_leaks") == []
    images[table.at[test_row, "after"]] = images[table.at[0, "before"]]
    write_array(folder / "images-00000.npy", images)
    assert broken(folder, "picture_leaks") == [0, 1, test_row]


@pytest.mark.parametrize("row", [-1, 10_000])
def test_pictures_and_masks_that_are_not_there(folder, row):
    spoil(folder, 3, "after", row)
    spoil(folder, 4, "mask", row if row > 0 else -2)
    assert broken(folder, "picture_missing") == [3]
    assert broken(folder, "mask_missing") == [4]


def test_sizes_within_a_pair(folder):
    count = len(Shards(folder, "images"))
    write_array(folder / "images-00001.npy", np.zeros((1, 16, 16, 3), np.uint8))
    spoil(folder, 2, "after", count)
    assert broken(folder, "sizes_differ") == [2]


def test_change_types_that_pictures_and_masks_contradict(folder):
    table = pd.read_parquet(folder / "pairs.parquet")
    spoil(folder, 0, "after", table.at[0, "before"])
    spoil(folder, 1, "change_type", "move")
    assert broken(folder, "type_contradicted") == [0]
    assert broken(folder, "mask_contradicted") == [1]


def test_captions_are_counted_and_compared_as_words(folder):
    spoil(folder, 0, "captions", ["The ball moved.", "the ball moved", "?!"])
    facts = caption_facts(Pairs.read(folder)).query("id == '000000-change'")
    assert facts["words"].tolist() == [3, 3, 0]
    assert facts["repeated"].tolist() == [False, True, False]


def test_types_count_only_where_a_corpus_knows_them(folder):
    table = pd.read_parquet(folder / "pairs.parquet")
    table.loc[table["change_type"] == "drop", "change_type"] = "add"
    shares = type_facts(Pairs(folder, table)).set_index("id")["share"]
    assert shares["drop"] == 0
    assert shares["add"] == pytest.approx(0.4)
    table["change_type"] = "unknown"
    assert not len(type_facts(Pairs(folder, table)))


def test_rule_names_are_unique():
    names = [(rule.table, rule.name) for rule in rules(22, 0.05)]
    assert len(set(names)) == len(names)


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


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
        table = pd.read_parquet(folder / "pairs.parquet")
        masks = np.load(folder / "masks-00000.npy")
        masks[table.at[16, "mask"]] = 0
        write_array(folder / "masks-00000.npy", masks)
        write_array(folder / "images-00001.npy", np.zeros((1, 16, 16, 3), np.uint8))
        table.at[2, "id"] = table.at[0, "id"]
        table.at[1, "split"] = "trian"
        table.loc[table["split"] == "val", "split"] = "train"
        table.at[3, "change_type"] = "colour"
        table.at[4, "captions"] = []
        table.at[5, "captions"] = ["...", "word " * 30, "no change", "No change."]
        table.at[8, "after"] = 10_000
        table.at[9, "after"] = len(Shards(folder, "images")) - 1
        table.at[10, "mask"] = 10_000
        table.at[12, "after"] = table.at[12, "before"]
        table.loc[table["change_type"] == "drop", "change_type"] = "add"
        table.to_parquet(folder / "pairs.parquet", index=False)
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
        assert ids["not_empty"] == ids["short_enough"] == ids["repeated"] == [table.at[5, "id"]]
        assert ids["picture_missing"] == [table.at[8, "id"]]
        assert table.at[9, "id"] in ids["sizes_differ"]
        assert ids["mask_missing"] == [table.at[10, "id"]]
        assert ids["type_contradicted"] == [table.at[12, "id"]]
        assert ids["balanced"] == ["drop"]
        assert "ids are unique" in str(raised.value)
        assert "balanced" not in str(raised.value)
        assert "at least 0.05" not in str(raised.value)
        assert any(note.startswith("warning") and "drop" in note for note in notes.notes)
