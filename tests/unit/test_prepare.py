"""The step ``prepare``: the same table, pictures and words from both kinds of corpus, whole or not at all."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML

from procap.config import Params, check_params
from procap.datasets.pairs import COLUMNS, Pairs
from procap.datasets.rendered import write_official_layout
from procap.datasets.shards import Shards
from procap.datasets.true_procedure import read_true_pairs
from procap.datasets.vocabulary import SPECIALS, Vocabulary, tokenize
from procap.errors import BadInput
from procap.files import folder_digest
from procap.report import Silent
from procap.steps import prepare

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / ".." / "shared" / "data" / "clevr_change_sample"


def params(dataset: str = "rendered", scenes: dict | None = None, **changes) -> Params:
    """The default parameters, small: ten scenes of 32 pixels."""
    raw = YAML(typ="safe").load(ROOT / "params.yaml")
    raw["dataset"]["name"] = dataset
    raw["prepare"]["scenes"].update({"count": 10, "samples": 1, **(scenes or {})})
    raw["prepare"].update({"image_size": 32, **changes})
    return check_params(raw, where="test")


class Listener(Silent):
    """Keeps what it is told."""

    def __init__(self):
        self.pictures, self.notes = {}, []

    def picture(self, name, image):
        self.pictures[name] = image

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Ten rendered scenes with their true procedures, prepared."""
    data = tmp_path_factory.mktemp("data")
    prepare.run(params(scenes={"truth": True}), data)
    return data


def test_the_outputs_are_what_later_steps_read(prepared):
    folder = prepared / "prepare"
    pairs = Pairs.read(folder)
    table = pairs.table
    assert tuple(table.columns) == COLUMNS
    assert table["id"].tolist()[:3] == ["000000c", "000000nc", "000001c"]
    assert table["id"].is_unique
    assert (table.groupby("group")["split"].nunique() == 1).all()
    assert pairs.images.shape == (30, 32, 32, 3)
    assert (table["before"].to_numpy()[::2] == table["before"].to_numpy()[1::2]).all(), "scenes store before once"
    assert sorted({*table["before"], *table["after"]}) == list(range(30))
    masks = Shards(folder, "masks")[table["mask"].to_numpy()]
    assert set(np.unique(masks)) == {0, 255}
    assert (masks.any(axis=(1, 2)) == (table["change_type"] != "none")).all()
    truth = Shards(folder, "truth")
    assert truth.shape == (20, params().interpolate.frames, 32, 32, 3)
    start, end = pairs.before().astype(int), pairs.after().astype(int)
    first, last = truth[:][:, 0].astype(int), truth[:][:, -1].astype(int)
    changed = (table["change_type"] != "none").to_numpy()
    far = np.abs(start - end).sum(axis=(1, 2, 3))[changed]
    assert (np.abs(first - start).sum(axis=(1, 2, 3))[changed] < far).all()
    assert (np.abs(last - end).sum(axis=(1, 2, 3))[changed] < far).all()


def test_descriptions_and_counts_agree_with_the_table(prepared):
    table = Pairs.read(prepared / "prepare").table
    lines = [json.loads(line) for line in (prepared / "prepare" / "scenes.jsonl").read_text().splitlines()]
    assert [each for line in lines for each in line["ids"]] == table["id"].tolist()
    assert [line["changes"][0]["kind"] for line in lines] == table["change_type"].tolist()[::2]
    summary = json.loads((prepared / "prepare" / "summary.json").read_text())
    assert sum(counts["all"] for counts in summary["pairs"].values()) == len(table)
    for split, counts in summary["pairs"].items():
        assert counts.pop("all") == sum(counts.values()) == (table["split"] == split).sum()


def test_shifted_scenes_are_a_split_of_their_own_and_the_masks_can_be_had_apart(tmp_path):
    shift = {"count": 3, "objects": [9, 9], "aside": 60.0}
    prepare.run(params(scenes={"shift": shift, "changes": [2, 2], "hidden": 0.6}), tmp_path)
    pairs = Pairs.read(tmp_path / "prepare")
    table = pairs.table
    assert table["split"].value_counts()["test_shift"] == 6
    summary = json.loads((tmp_path / "prepare" / "summary.json").read_text())
    assert summary["pairs"]["test_shift"]["all"] == summary["pairs"]["test_shift"]["none"] * 2 == 6
    assert summary["text"]["test_shift"]["captions"] == 6 * 5
    assert all(" and " in caption for each in table["captions"][::2] for caption in each)
    true = read_true_pairs(tmp_path / "prepare" / "scenes.jsonl", table["id"])
    masks = np.stack([pair.masks(32, 1) for pair in true])
    assert np.array_equal(masks.any(axis=1) * 255, Shards(tmp_path / "prepare", "masks")[table["mask"].to_numpy()])
    assert (masks[:, 0] != masks[:, 1]).any()


def test_only_training_captions_give_words_and_training_and_validation_the_length(prepared):
    table = Pairs.read(prepared / "prepare").table
    vocabulary = Vocabulary.from_json(json.loads((prepared / "prepare" / "vocabulary.json").read_text()))
    said = {
        split: [c for each in table.loc[table["split"] == split, "captions"] for c in each]
        for split in ("train", "val")
    }
    assert set(vocabulary.words) == {word for caption in said["train"] for word in tokenize(caption)}
    assert vocabulary.length == 2 + max(len(tokenize(caption)) for caption in said["train"] + said["val"])
    assert len(vocabulary) == len(SPECIALS) + len(vocabulary.words)


def test_the_same_parameters_give_the_same_bytes_and_the_official_layout_the_same_corpus(prepared, tmp_path):
    chosen = params(scenes={"truth": True})
    prepare.run(chosen, tmp_path / "again")
    assert folder_digest(tmp_path / "again" / "prepare") == folder_digest(prepared / "prepare")
    write_official_layout(tmp_path / "disk" / "raw" / "clevr_change", prepare.corpus_settings(params()))
    prepare.run(params("clevr_change"), tmp_path / "disk")
    for name in ("pairs.parquet", "images-00000.npy", "masks-00000.npy", "vocabulary.json", "summary.json"):
        assert (tmp_path / "disk" / "prepare" / name).read_bytes() == (prepared / "prepare" / name).read_bytes(), name


def test_a_scene_looks_the_same_however_many_there_are(prepared, tmp_path):
    prepare.run(params(scenes={"count": 13}), tmp_path)
    more, fewer = Pairs.read(tmp_path / "prepare"), Pairs.read(prepared / "prepare")
    assert np.array_equal(more.images[:30], fewer.images[:])
    assert more.table["captions"][:20].map(list).tolist() == fewer.table["captions"].map(list).tolist()
    assert more.table["split"][:20].tolist() == fewer.table["split"].tolist()


def test_pictures_of_another_size_are_resized_and_a_pair_of_two_sizes_is_refused(tmp_path):
    raw = tmp_path / "raw" / "clevr_change"
    write_official_layout(raw, prepare.corpus_settings(params(image_size=48)))
    prepare.run(params("clevr_change"), tmp_path)
    before = folder_digest(tmp_path / "prepare")
    assert Pairs.read(tmp_path / "prepare").images.shape[1:] == (32, 32, 3)
    path = raw / "sc_images" / "CLEVR_semantic_000003.png"
    Image.open(path).resize((40, 48)).save(path)
    with pytest.raises(BadInput, match=r"'000003c' differ in size: 48 x 48 and 40 x 48"):
        prepare.run(params("clevr_change"), tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match=path.name):
        prepare.run(params("clevr_change"), tmp_path)
    assert folder_digest(tmp_path / "prepare") == before, "the earlier output is still there"
    assert {p.name for p in tmp_path.iterdir()} == {"raw", "prepare"}, "and nothing half-written beside it"


def test_an_empty_split_is_refused(tmp_path):
    write_official_layout(tmp_path / "raw" / "clevr_change", prepare.corpus_settings(params()))
    path = tmp_path / "raw" / "clevr_change" / "splits.json"
    splits = json.loads(path.read_text())
    path.write_text(json.dumps({"train": splits["train"] + splits["val"], "val": [], "test": splits["test"]}))
    with pytest.raises(BadInput, match="'val' has no pairs"):
        prepare.run(params("clevr_change"), tmp_path)
    assert not (tmp_path / "prepare").exists()


def test_the_listener_gets_a_picture_and_is_told_of_captions_that_are_too_long(tmp_path):
    listener = Listener()
    prepare.run(params(words=6), tmp_path, report=listener)
    assert listener.pictures["pairs.png"].size[1] > 1000
    assert "longer than prepare.words" in listener.notes[0]
    assert Vocabulary.from_json(json.loads((tmp_path / "prepare" / "vocabulary.json").read_text())).length == 6


@pytest.mark.shared
@pytest.mark.skipif(not SAMPLE.exists(), reason="../shared is not there")
def test_the_real_sample_is_prepared_without_masks(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "clevr_change").symlink_to(SAMPLE.resolve())
    prepare.run(params("clevr_change"), tmp_path)
    pairs = Pairs.read(tmp_path / "prepare")
    assert len(pairs) == 402
    assert (pairs.table["mask"] == -1).all()
    assert not list((tmp_path / "prepare").glob("masks-*"))
    assert pairs.images.shape == (603, 32, 32, 3)
    assert not (tmp_path / "prepare" / "scenes.jsonl").exists()
