"""Every layout that can be imported: read whole, written as one form, prepared like any other."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from ruamel.yaml import YAML

from procap.config import CorpusName, check_params
from procap.datasets import raw
from procap.datasets.corpora import CORPORA
from procap.datasets.corpus import clean
from procap.datasets.grouping import connect, draw_splits
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards
from procap.errors import BadInput
from procap.files import folder_digest
from procap.steps import prepare
from procap.steps.corpus import limited, read_corpus, write_raw
from tests import layouts

ROOT = Path(__file__).parents[2]
SHARED = ROOT / ".." / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared is not there")


def params(name: str, **changes):
    raw_params = YAML(typ="safe").load(ROOT / "params.yaml")
    raw_params["dataset"].update({"name": name, **changes.pop("dataset", {})})
    raw_params["prepare"].update({"image_size": 32, **changes})
    return check_params(raw_params, where="test")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every layout, small."""
    folder = tmp_path_factory.mktemp("layouts")
    return {name: make(folder / name) for name, make in layouts.LAYOUTS.items()}


def test_params_help_and_documentation_know_the_same_corpora():
    assert {*CORPORA, "rendered"} == set(get_args(CorpusName)) == {*layouts.LAYOUTS, "rendered"}
    for name, corpus in CORPORA.items():
        page = (ROOT / "docs" / "corpora" / f"{name}.md").read_text(encoding="utf-8")
        assert corpus.tree.strip() in page, f"another tree than that of `procap import {name} --help`"
        for count in corpus.published.values():
            assert f"{count:,}" in page


@pytest.mark.parametrize("name", CORPORA)
def test_every_layout_is_read_imported_and_prepared_alike(made, name, tmp_path):
    reading = read_corpus(made[name], name)
    each = 2 if name == "clevr_change" else 1
    assert Counter(pair.split for pair in reading.pairs) == {"train": 4 * each, "val": each, "test": each}
    done = write_raw(CORPORA[name], made[name], tmp_path / "raw" / name)
    assert done.counts == {"train": 4 * each, "val": each, "test": each}
    again = raw.read(tmp_path / "raw" / name).pairs
    assert [(pair.id, pair.captions, pair.change_type) for pair in again] == [
        (pair.id, pair.captions, pair.change_type) for pair in reading.pairs
    ]
    for theirs, ours in zip(reading.pairs, again, strict=True):
        assert ours.before.read_bytes() == theirs.before.read_bytes()
        assert ours.after.read_bytes() == theirs.after.read_bytes()
    published = tmp_path / "as published" / "raw"
    published.mkdir(parents=True)
    (published / name).symlink_to(made[name])
    prepare.run(params(name), published.parent)
    prepare.run(params(name), tmp_path)
    for file in ("pairs.parquet", "images-00000.npy", "vocabulary.json", "summary.json"):
        assert (tmp_path / "prepare" / file).read_bytes() == (published.parent / "prepare" / file).read_bytes(), file


def test_an_import_gives_the_same_bytes_again(made, tmp_path):
    for place in ("a", "b"):
        write_raw(CORPORA["spot_the_diff"], made["spot_the_diff"], tmp_path / place)
    assert folder_digest(tmp_path / "a") == folder_digest(tmp_path / "b")


def test_annotators_are_merged_and_junk_is_left_out_and_counted(made):
    reading = read_corpus(made["spot_the_diff"], "spot_the_diff")
    assert reading.pairs[0].captions == ("the red cube number 0 is gone", "a man 0 walks")
    assert reading.counts == {"train": 5, "val": 1, "test": 1}, "pair 99 is listed, but has nothing to say"
    assert reading.left_out == {
        "empty sentences": 7, "sentences without a word": 6, "sentences of fewer than 2 words": 7,
        "sentences that the pair has already": 6, "pairs without a sentence": 1,
    }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("aé1 \n'.", max_size=8), max_size=5), st.integers(1, 3))
def test_cleaning_keeps_or_counts_every_sentence(sentences, fewest):
    kept, left_out = clean(sentences, fewest)
    assert len(kept) + left_out.total() == len(sentences)
    assert clean(kept, fewest) == (kept, Counter())
    assert all(len(each.split()) >= fewest and each == " ".join(each.split()) for each in kept)
    assert len({each.lower() for each in kept}) == len(kept)


def test_captions_tell_whether_anything_changed_where_the_corpus_does_not(made):
    for name in ("clevr_dc", "table"):
        assert [pair.change_type for pair in read_corpus(made[name], name).pairs] == ["unknown", "none"] * 3
    said = {pair.change_type for pair in read_corpus(made["clevr_change"], "clevr_change").pairs}
    assert said == {"material", "none"}, "where it does, its word counts"
    assert [pair.change_type for pair in read_corpus(made["levir_cc"], "levir_cc").pairs] == ["unknown", "none"] * 3


def test_clevr_dc_is_read_in_both_forms_and_with_types(made, tmp_path):
    folder = shutil.copytree(made["clevr_dc"], tmp_path / "renamed")
    for old, new in (("bef", "images"), ("aft", "sc_images")):
        (folder / old).rename(folder / new)
        for path in list((folder / new).iterdir()):
            path.rename(path.with_name(f"{int(path.stem):06d}.png"))
    captions = json.loads((folder / "captions.json").read_text())
    layouts.write(folder / "change_captions.json", {f"{int(k):06d}.png": v for k, v in captions.items()})
    (folder / "captions.json").unlink()
    (folder / "split.json").rename(folder / "splits.json")
    assert [p.captions for p in read_corpus(folder, "clevr_dc").pairs] == [
        p.captions for p in read_corpus(made["clevr_dc"], "clevr_dc").pairs
    ]
    layouts.write(folder / "type_mapping.json", {"texture": ["000000.png"], "nothing": ["000001.png", "000003.png"]})
    kinds = [pair.change_type for pair in read_corpus(folder, "clevr_dc").pairs]
    assert kinds == ["material", "none", "unknown", "none", "unknown", "unknown"]


def test_masks_of_two_kinds_of_change_reach_the_shards(made, tmp_path):
    write_raw(CORPORA["levir_mci"], made["levir_mci"], tmp_path / "raw" / "levir_mci")
    prepare.run(params("levir_mci"), tmp_path)
    masks = Shards(tmp_path / "prepare", "masks")[Pairs.read(tmp_path / "prepare").table["mask"].to_numpy()]
    assert set(np.unique(masks)) == {0, 128, 255}
    assert masks.any(axis=(1, 2)).tolist() == [True, False] * 3
    assert (masks[0] == 128).sum() == (masks[0] == 255).sum()


@pytest.mark.parametrize("kind", ["csv", "excel", "tsv", "jsonl", "parquet", "captions.csv"])
def test_a_table_may_be_written_in_many_ways(made, kind, tmp_path):
    folder = tmp_path / "own"
    found = layouts.rows(folder)
    more = {**found[0], "caption": "a cube, now gone"}
    if kind == "csv":
        layouts.write(folder / "pairs.csv", layouts.csv([*found, more]).replace(more["caption"], '"a cube, now gone"'))
    elif kind == "excel":
        layouts.write(folder / "Pairs.CSV", "\ufeff" + layouts.csv([*found, more], ";", "\r\n"))
    elif kind == "tsv":
        layouts.write(folder / "pairs.tsv", layouts.csv([*found, more], "\t"))
    elif kind == "jsonl":
        layouts.write(folder / "pairs.jsonl", "".join(json.dumps(row) + "\n" for row in [*found, more]))
    else:
        said = [[row.pop("caption")] for row in found]
        said[0].append("a cube, now gone")
        if kind == "parquet":
            import pandas as pd

            pd.DataFrame([{**row, "captions": each} for row, each in zip(found, said, strict=True)]).to_parquet(
                folder / "p.parquet"
            )
        else:
            merged = [{**row, "captions": " | ".join(each)} for row, each in zip(found, said, strict=True)]
            layouts.write(folder / "pairs.tsv", layouts.csv(merged, "\t"))
    pairs = read_corpus(folder, "table").pairs
    assert len(pairs) == layouts.PAIRS
    assert pairs[0].captions == (layouts.sentence(0), "a cube, now gone")
    assert [p.captions for p in pairs[1:]] == [p.captions for p in read_corpus(made["table"], "table").pairs[1:]]


def test_a_table_may_have_masks_types_and_ids(tmp_path):
    found = layouts.rows(tmp_path)
    for number, row in enumerate(found):
        row |= {"mask": "", "change_type": "texture" if number == 0 else "", "id": f"p{number}"}
    mask = np.zeros((16, 20), np.uint8)
    mask[:8] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks" / "0.png")
    found[0]["mask"] = "masks\\0.png"
    layouts.write(tmp_path / "pairs.csv", layouts.csv(found))
    pairs = read_corpus(tmp_path, "table").pairs
    assert [pair.id for pair in pairs] == [f"p{number}" for number in range(6)]
    assert [pair.change_type for pair in pairs] == ["material", "none", "unknown", "none", "unknown", "none"]
    write_raw(CORPORA["table"], tmp_path, tmp_path / "data" / "raw" / "table")
    prepare.run(params("table"), tmp_path / "data")
    rows = Pairs.read(tmp_path / "data" / "prepare").table["mask"].to_numpy()
    assert rows.tolist() == [0, 1, -1, 2, -1, 3], "an empty mask where nothing changed, none where it is not known"
    assert Shards(tmp_path / "data" / "prepare", "masks")[0][:16].all()


def test_names_with_accents_are_found_however_the_disk_writes_them(tmp_path):
    import unicodedata

    found = layouts.rows(tmp_path)
    name = "vor\u00e4/\u90fd\u5e02 1.jpg"
    there = tmp_path / unicodedata.normalize("NFD", name)
    there.parent.mkdir()
    (tmp_path / found[0]["before"]).rename(there)
    found[0]["before"] = name
    layouts.write(tmp_path / "pairs.csv", layouts.csv(found))
    write_raw(CORPORA["table"], tmp_path, tmp_path / "out" / "table")
    assert raw.read(tmp_path / "out" / "table").pairs[0].before.is_file()


def test_pairs_that_share_a_picture_under_any_name_stay_in_one_split(tmp_path):
    found = layouts.rows(tmp_path, splits=False)
    found += [{**found[0], "after": found[1]["after"]}]  # by name
    shutil.copy(tmp_path / found[2]["after"], tmp_path / "after" / "copy.jpg")
    found += [{**found[3], "before": "after/copy.jpg"}]  # by content
    layouts.write(tmp_path / "pairs.csv", layouts.csv(found))
    splits = set()
    for seed in range(6):
        done = write_raw(CORPORA["table"], tmp_path, tmp_path / f"out{seed}", seed=seed)
        assert min(done.counts.values()) > 0
        pairs = raw.read(tmp_path / f"out{seed}").pairs
        groups = [pair.group for pair in pairs]
        assert groups[0] == groups[1] == groups[6]
        assert groups[2] == groups[3] == groups[7]
        assert len(set(groups)) == 4
        assert len({(pair.group, pair.split) for pair in pairs}) == 4, "a split per group"
        splits.add(tuple(pair.split for pair in pairs))
    assert len(splits) > 1, "the seed decides"
    write_raw(CORPORA["table"], tmp_path, tmp_path / "again", seed=3)
    assert folder_digest(tmp_path / "again") == folder_digest(tmp_path / "out3")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=8))
def test_connecting_is_reachability_over_shared_keys(keys):
    reach = np.array([[i == j or bool(set(a) & set(b)) for j, b in enumerate(keys)] for i, a in enumerate(keys)])
    for _ in keys:
        reach = reach @ reach > 0 if len(keys) else reach
    assert connect(keys) == [int(np.argmax(row)) for row in reach]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=40), st.integers(0, 99))
def test_drawn_splits_are_full_near_their_shares_and_of_the_seed_alone(sizes, seed):
    groups = {f"g{number}": size for number, size in enumerate(sizes)}
    found = draw_splits(groups, (0.6, 0.2, 0.2), seed)
    assert set(found.values()) == {"train", "val", "test"}
    assert found == draw_splits(dict(reversed(groups.items())), (0.6, 0.2, 0.2), seed)
    for split, share in (("train", 0.6), ("val", 0.2), ("test", 0.2)):
        held = sum(size for name, size in groups.items() if found[name] == split)
        assert abs(held - share * sum(sizes)) <= 2 * max(sizes)


def test_too_few_groups_cannot_fill_the_splits():
    with pytest.raises(BadInput, match="2 groups"):
        draw_splits({"a": 5, "b": 1}, (0.8, 0.1, 0.1), 0)
    assert set(draw_splits({"a": 5, "b": 1}, (0.8, 0.2, 0.0), 0).values()) == {"train", "val"}


@pytest.mark.parametrize("limit", [3, 4, 5, 6, None])
def test_a_limit_keeps_all_splits_and_the_order(made, limit):
    pairs = read_corpus(made["table"], "table").pairs
    kept = limited(pairs, limit)
    assert len(kept) == (limit or 6)
    assert {pair.split for pair in kept} == {"train", "val", "test"}
    assert [pair.id for pair in kept] == sorted(pair.id for pair in kept)


def test_published_leaks_and_other_counts_are_told_and_not_refused(made, tmp_path):
    folder = shutil.copytree(made["image_editing_request"], tmp_path / "ier")
    shutil.copy(folder / "images" / "a.com_0_0.jpg", folder / "images" / "a.com_5_0.jpg")
    done = write_raw(CORPORA["image_editing_request"], folder, tmp_path / "out")
    assert any(each.startswith("1 pictures are in several splits") for each in done.warnings)
    assert any("4 train / 1 val / 1 test; the published one 3061 train" in each for each in done.warnings)


def test_pairs_that_cannot_be_used_are_set_aside_on_request_in_import_and_prepare(made, tmp_path):
    folder = shutil.copytree(made["table"], tmp_path / "own")
    (folder / "after" / "1.jpg").write_bytes(b"no picture")
    done = write_raw(CORPORA["table"], folder, tmp_path / "out", skip=True)
    assert done.counts["train"] == 3
    assert done.left_out == {"pairs with a file that cannot be used": 1}
    assert any("1.jpg" in each for each in done.warnings)
    (tmp_path / "data" / "raw").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "table").symlink_to(folder)
    with pytest.raises(BadInput, match="whatever its name says"):
        prepare.run(params("table"), tmp_path / "data")
    prepare.run(params("table", dataset={"on_error": "skip"}), tmp_path / "data")
    assert json.loads((tmp_path / "data" / "prepare" / "summary.json").read_text())["set_aside"] == 1
    (line,) = (tmp_path / "data" / "prepare" / "set_aside.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "000001"
    assert len(Pairs.read(tmp_path / "data" / "prepare")) == 5


def test_long_captions_and_unknown_words_are_listed(made, tmp_path):
    write_raw(CORPORA["birds_to_words"], made["birds_to_words"], tmp_path / "raw" / "birds_to_words")
    prepare.run(params("birds_to_words", words=8, min_count=5), tmp_path)
    folder = tmp_path / "prepare"
    long = [json.loads(line) for line in (folder / "long_captions.jsonl").read_text().splitlines()]
    assert len(long) == 12
    assert long[0] == {
        "id": "100-101", "split": "train", "words": 10,
        "caption": 'Animal 1 has a "white" breast, animal two has none.',
    }  # fmt: skip
    assert json.loads((folder / "unknown_words.json").read_text()) == {"1": 6, "2": 6}, "four times each in training"
    text = json.loads((folder / "summary.json").read_text())["text"]
    assert text["train"]["captions"] == 8
    assert text["val"]["words_in_the_longest"] == 10


def test_a_released_vocabulary_is_used_as_it_is(made, tmp_path):
    from procap.datasets.vocabulary import SPECIALS, Vocabulary

    words = {**{mark: number for number, mark in enumerate(SPECIALS)}, "the": 8, "gone": 9, "cube": 10}
    layouts.write(tmp_path / "words.json", words)
    write_raw(CORPORA["table"], made["table"], tmp_path / "raw" / "table")
    prepare.run(params("table", vocabulary=str(tmp_path / "words.json")), tmp_path)
    found = Vocabulary.from_json(json.loads((tmp_path / "prepare" / "vocabulary.json").read_text()))
    assert found.words == ("the", "gone", "cube")
    assert found.length == 24
    text = json.loads((tmp_path / "prepare" / "summary.json").read_text())["text"]["train"]
    assert text["words"] == 2 * 7 + 2 * 3
    assert text["unknown_words"] == text["words"] - 2 * 3, "all but the, cube and gone, twice"


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    ("name", "sample", "pairs", "captions", "left_out"),
    [
        ("spot_the_diff", "spot_the_diff_annotations", (8566, 1493, 1270), 22924, 235),
        ("image_editing_request", "image_editing_request_annotations", (3061, 383, 495), 5663, 32),
    ],
)
def test_published_annotations_are_read_whole(name, sample, pairs, captions, left_out, tmp_path):
    entries = sum(len(json.loads(path.read_text())) for path in (SHARED / sample).glob("*.json"))
    assert entries == {"spot_the_diff": 12_562, "image_editing_request": 3_939}[name]
    for path in (SHARED / sample).glob("*.json"):
        shutil.copy(path, tmp_path)
    reading = CORPORA[name].read(tmp_path)
    assert tuple(reading.counts.values()) == pairs == tuple(CORPORA[name].published.values())
    assert sum(len(pair.captions) for pair in reading.pairs) == captions
    assert sum(reading.left_out.values()) == left_out
    for number, pair in enumerate(limited(reading.pairs, 50)):
        for seed, path in enumerate((pair.before, pair.after)):
            layouts.picture(path, 2 * number + seed, (12, 12), format="PNG")
    done = write_raw(CORPORA[name], tmp_path, tmp_path / "out" / "raw" / name, limit=50)
    assert sum(done.counts.values()) == 50
    assert min(done.counts.values()) > 1
    prepare.run(params(name), tmp_path / "out")
    assert len(Pairs.read(tmp_path / "out" / "prepare")) == 50


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(("name", "pairs", "shares"), [("clevr_change", 402, None), ("levir_cc", 3, (0.4, 0.3, 0.3))])
def test_real_pictures_are_imported_and_validated_as_they_are(name, pairs, shares, tmp_path):
    from procap.steps import validate

    write_raw(
        CORPORA[name], SHARED / f"{name}_sample", tmp_path / "raw" / name, shares=shares, place=os.symlink
    )
    prepare.run(params(name), tmp_path)
    validate.run(params(name), tmp_path)
    assert len(Pairs.read(tmp_path / "prepare")) == pairs
    assert json.loads((tmp_path / "validate" / "report.json").read_text())["critical"] == 0
