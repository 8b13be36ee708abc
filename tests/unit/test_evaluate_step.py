import csv
import json
import sys
from collections.abc import Iterator
from itertools import cycle as cycle_over
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from procap.captioners import Decoding
from procap.captioners.explanation import Explanation
from procap.config import load_params
from procap.datasets.pairs import CHANGE_TYPES, NO_CHANGE, SHIFT, Pairs
from procap.errors import BadInput
from procap.evaluation import java
from procap.files import file_digest
from procap.report import Silent
from procap.steps import evaluate
from procap.training.runtime import Runtime
from tests.small import captioner_config, small_captioner, small_vqgan
from tests.toy import CAPTIONS, toy_prepared
from tests.unit.test_scene_graph import few_stories

FILES = {"metrics.json", "per_type.csv", "confusion.csv", "predictions.json", "page.html"}
SENTENCES = ["the red ball turned blue", "nothing has changed", "the ball is in another place", "the red ball moved"]


class StubCaptioner:
    """Says ``sentences`` in turn, whatever it sees, and remembers what it was asked; explains what it imagines."""

    name = "procap"

    def __init__(self, sentences: Iterator[str], frames: int, masks: list | None) -> None:
        self.sentences, self.frames, self.asked = sentences, frames, []
        self.captioner = SimpleNamespace(segments=masks is not None)
        self.masks = repeat(None) if masks is None else cycle_over(masks)
        self.provenance: dict[str, str] = {}
        self.bundle = self
        self.explained = 0

    def caption(self, before, after, *, decoding):
        assert before.dtype == after.dtype == np.uint8
        self.asked.append((before, after, decoding))
        return [
            SimpleNamespace(text=next(self.sentences), probability=0.1234567, change_mask=next(self.masks))
            for _ in before
        ]

    def stream(self, pairs, batch, *, explain, decoding):
        assert (batch, explain, decoding) == (7, True, Decoding(3, 0.5, 2))
        for before, after in pairs:
            self.explained += 1
            maps = np.ones((2, 2, 16, 16), np.float32)
            frames = np.stack([before, *[before] * self.frames, after])
            why = Explanation(*maps, np.ones((2, len(frames)), np.float32), maps[0, 0], frames)
            yield SimpleNamespace(
                words=("two", "words"), word_probabilities=(0.5, 0.5), change_probability=None, explanation=why,
                change_mask=None,
            )  # fmt: skip


class Listener(Silent):
    def __init__(self) -> None:
        self.numbers, self.notes, self.files, self.pictures = {}, [], [], []

    def metrics(self, values, step=None):
        self.numbers.update(values)

    def note(self, text):
        self.notes.append(text)

    def artifact(self, path):
        self.files.append(path.name)

    def picture(self, name, image):
        self.pictures.append(name)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    toy_prepared(folder / "prepare", pairs=80, side=16)
    return folder


@pytest.fixture
def params():
    params = load_params(Path(__file__).parents[2] / "params.yaml")
    how = {"beams": 3, "length_penalty": 0.5, "no_repeat": 2}
    changed = params.evaluate.model_copy(update={"batch": 7, "pictures": 9} | how)
    hardware = params.hardware.model_copy(update={"device": "cpu", "threads": 1})
    return params.model_copy(update={"evaluate": changed, "hardware": hardware})


@pytest.fixture
def no_java(monkeypatch):
    monkeypatch.setattr(java, "why_no_java", lambda: "there is no java in this test")


@pytest.fixture(autouse=True)
def no_installed_model(monkeypatch):
    from procap.checkpoints import sentence_encoder

    monkeypatch.setattr(sentence_encoder, "PACKAGE", "nobody_has_this_package")


@pytest.fixture
def bundled(monkeypatch, params):
    """Put a stub in the place of the trained bundle."""

    def put(sentences, frames=0, masks=None) -> StubCaptioner:
        bundle = StubCaptioner(iter(sentences), frames, masks)
        stub = SimpleNamespace(load_captioner=lambda folder, device: bundle)
        monkeypatch.setitem(sys.modules, "procap.captioning.captioner", stub)
        runtime = SimpleNamespace(start_runtime=lambda **_: Runtime(torch.device("cpu"), torch.float32))
        monkeypatch.setitem(sys.modules, "procap.training.runtime", runtime)
        return bundle

    return put


def opened(data):
    return Pairs.read(data / "prepare").split("test")


def cycle(count: int) -> list[str]:
    return [SENTENCES[n % len(SENTENCES)] for n in range(count)]


def read(folder: Path):
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def test_without_java_everything_else_is_there(data, params, bundled, no_java):
    pairs = opened(data)
    bundle, listener = bundled(cycle(len(pairs)), frames=2), Listener()
    evaluate.run(params, data, captioner="procap", report=listener)
    out = data / "evaluate" / "procap"
    table = read(out)
    assert {path.name for path in out.iterdir()} == FILES == set(listener.files)
    assert set(table) == {
        *("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "scene_graph_f1", "pairs", "skipped"),
        *("ROUGE-L_interval", "CIDEr_interval", "scene_graph_f1_interval"),
        *("change_accuracy", "change_accuracy_interval", "change_type_accuracy", "change_type_accuracy_interval"),
        *("changed", "unchanged", "per_type"),
    }
    assert set(table["skipped"]) == {"METEOR", "SPICE", "PTBTokenizer", "sentence_similarity", "referring_accuracy"}
    assert any("METEOR" in note for note in listener.notes)
    assert listener.numbers["per_type/move/accuracy"] == table["per_type"]["move"]["accuracy"]
    assert listener.pictures == ["confusion.png", "best.png", "worst.png", "random.png"]
    assert bundle.explained == params.evaluate.pictures
    assert [len(before) for before, _, _ in bundle.asked] == [7, 7, 6]
    assert {how for _, _, how in bundle.asked} == {Decoding(3, 0.5, 2)}
    np.testing.assert_array_equal(np.concatenate([after for _, after, _ in bundle.asked]), pairs.after())


def test_outlines_are_measured_by_the_masks_pair_by_pair(data, params, bundled, no_java, tmp_path):
    pairs = opened(data)
    true = pairs.changed(np.arange(len(pairs)))
    halved = true & (np.arange(16) < 8)  # what lies in the left half
    drawn = [None if n == 0 else torch.from_numpy(mask) for n, mask in enumerate(halved)]
    bundled(cycle(len(pairs)), masks=drawn)
    listener = Listener()
    evaluate.run(params, data, captioner="procap", report=listener)
    out = data / "evaluate" / "procap"
    table, told = read(out), json.loads((out / "predictions.json").read_text())
    halved[0] = False
    unions = true.sum((1, 2))
    ious = np.where(unions, halved.sum((1, 2)) / np.maximum(unions, 1), 1.0)
    found = table["segmentation"]
    assert found["gIoU"] == pytest.approx(ious.mean(), abs=1e-6)
    assert found["gIoU_changed"] == pytest.approx(ious[unions > 0].mean(), abs=1e-6)
    assert found["cIoU"] == pytest.approx(halved.sum() / true.sum(), abs=1e-6)
    decided = [(mask is not None) == bool(union) for mask, union in zip(drawn, unions, strict=True)]
    assert found["segmentability_accuracy"] == pytest.approx(np.mean(decided), abs=1e-6)
    assert [told[name]["scores"]["IoU"] for name in pairs.table["id"]] == pytest.approx(100 * ious, abs=1e-4)
    assert table["IoU"] == pytest.approx(100 * found["gIoU"], abs=1e-4)
    assert table["per_type"]["move"]["IoU"] == pytest.approx(100 * found["per_type"]["move"]["gIoU"], abs=1e-4)
    assert listener.numbers["segmentation/difference/gIoU"] == found["difference"]["gIoU"]
    assert "outline / none" in (out / "page.html").read_text()


def test_pairs_without_a_mask_are_left_out_of_outlines(params, bundled, no_java, tmp_path):
    table = toy_prepared(tmp_path / "prepare", pairs=80, side=16)
    test = table.index[table["split"] == "test"]
    table.loc[test[::2], "mask"] = -1
    table.to_parquet(tmp_path / "prepare" / "pairs.parquet", index=False)
    pairs = opened(tmp_path)
    known = pairs.table["mask"].to_numpy() >= 0
    true = pairs.changed(np.arange(len(pairs)))
    assert not true[~known].any()
    bundled(cycle(len(pairs)), masks=[torch.from_numpy(mask) if mask.any() else None for mask in true])
    evaluate.run(params, tmp_path, captioner="procap")
    found = read(tmp_path / "evaluate" / "procap")
    assert found["segmentation"]["pairs"] == known.sum()
    assert found["segmentation"]["gIoU"] == found["segmentation"]["segmentability_accuracy"] == 1
    assert "IoU" not in found


def test_the_split_test_shift_is_scored_beside_test_and_not_with_it(data, params, bundled, no_java, tmp_path):
    sentences = cycle(len(opened(data)))
    bundled(sentences)
    evaluate.run(params, data, captioner="procap")
    alone = read(data / "evaluate" / "procap")
    table = toy_prepared(tmp_path / "prepare", pairs=80, side=16)
    table.loc[table["split"] == "val", "split"] = SHIFT
    table.to_parquet(tmp_path / "prepare" / "pairs.parquet", index=False)
    shifted = Pairs.read(tmp_path / "prepare").split(SHIFT)
    right = [captions[0] for captions in shifted.table["captions"]]
    bundled([*sentences, *right])
    listener = Listener()
    evaluate.run(params, tmp_path, captioner="procap", report=listener)
    together = read(tmp_path / "evaluate" / "procap")
    shift = together.pop("shift")
    assert together == alone
    assert set(shift) == set(alone)
    assert (shift["pairs"], shift["change_accuracy"]) == (len(shifted), 1)
    assert shift["change_accuracy"] > alone["change_accuracy"]
    assert listener.numbers["shift/CIDEr"] == shift["CIDEr"]


def test_the_accuracies_are_what_one_counts_by_hand(data, params, bundled, no_java):
    pairs = opened(data)
    bundled(cycle(len(pairs)))
    evaluate.run(params, data, captioner="procap")
    table, actual = read(data / "evaluate" / "procap"), list(pairs.table["change_type"])
    stated = [("color", "none", "move", "move")[n % 4] for n in range(len(actual))]
    detected = [(a == NO_CHANGE) == (s == NO_CHANGE) for a, s in zip(actual, stated, strict=True)]
    typed = [a == s for a, s in zip(actual, stated, strict=True) if a in CHANGE_TYPES]
    assert table["change_accuracy"] == pytest.approx(np.mean(detected), abs=1e-6)
    assert table["change_type_accuracy"] == pytest.approx(np.mean(typed), abs=1e-6)
    for name, row in table["per_type"].items():
        of = [s == a for a, s in zip(actual, stated, strict=True) if a == name]
        assert (row["count"], row["accuracy"]) == (len(of), pytest.approx(np.mean(of)))
    for key in ("change_accuracy", "change_type_accuracy", "CIDEr"):
        low, high = table[f"{key}_interval"]
        assert low < table[key] < high
    confused = list(csv.reader((data / "evaluate" / "procap" / "confusion.csv").open()))
    assert confused == [["actual", "predicted"], *map(list, zip(actual, stated, strict=True))]


def test_a_perfect_captioner_is_seen_as_one(data, params, bundled, no_java):
    bundled([CAPTIONS[kind][0] for kind in opened(data).table["change_type"]])
    evaluate.run(params, data, captioner="static")
    table = read(data / "evaluate" / "static")
    assert (table["change_accuracy"], table["change_type_accuracy"]) == (1, 1)
    assert table["change_type_accuracy_interval"] == [1, 1]
    assert table["ROUGE-L"] == pytest.approx(100)
    rows = list(csv.DictReader((data / "evaluate" / "static" / "per_type.csv").open()))
    assert [row["change_type"] for row in rows] == [*CHANGE_TYPES, NO_CHANGE]
    assert all(float(row["accuracy"]) == 1 for row in rows)


def test_a_captioner_without_words_is_never_right(data, params, bundled, no_java):
    bundled([""] * len(opened(data)))
    evaluate.run(params, data, captioner="static")
    table = read(data / "evaluate" / "static")
    assert (table["change_accuracy"], table["change_type_accuracy"], table["unchanged"]["accuracy"]) == (0, 0, 0)


def test_the_same_bytes_twice(data, params, bundled, no_java):
    found = []
    for _ in range(2):
        bundled(cycle(len(opened(data))), frames=2)
        evaluate.run(params, data, captioner="procap")
        out = data / "evaluate" / "procap"
        found.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert found[0] == found[1]


def test_predictions_allow_scoring_again(data, params, bundled, no_java):
    pairs = opened(data)
    bundled(cycle(len(pairs)))
    evaluate.run(params, data, captioner="procap")
    told = json.loads((data / "evaluate" / "procap" / "predictions.json").read_text(encoding="utf-8"))
    table = read(data / "evaluate" / "procap")
    assert set(told) == set(pairs.table["id"])
    assert np.mean([one["scores"]["CIDEr"] for one in told.values()]) == pytest.approx(table["CIDEr"], abs=1e-5)
    assert np.mean([one["change_right"] for one in told.values()]) == pytest.approx(table["change_accuracy"])
    assert {one["probability"] for one in told.values()} == {0.123457}


def test_weights_that_these_pairs_picked_are_told_and_others_are_not(data, params, bundled, no_java):
    digest = file_digest(data / "prepare" / "pairs.parquet")
    for split, pairs, flattered in (("test", digest, True), ("test", "others", False), ("val", digest, False)):
        bundle, listener = bundled(cycle(len(opened(data)))), Listener()
        bundle.provenance = {"selected_on": split, "pairs_sha256": pairs}
        evaluate.run(params, data, captioner="procap", report=listener)
        assert any("flatter" in note for note in listener.notes) == flattered
        assert f"selected on the split {split}" in (data / "evaluate" / "procap" / "page.html").read_text("utf-8")


def test_another_corpus_is_scored_where_one_wants(data, params, bundled, no_java, tmp_path):
    table = toy_prepared(tmp_path / "other", pairs=16, side=16, seed=5)
    bundled(cycle(len(table)))
    evaluate.evaluate_bundle(params, data / "bundle", tmp_path / "other", tmp_path / "out" / "here", corpus="elsewhere")
    told = json.loads((tmp_path / "out" / "here" / "predictions.json").read_text(encoding="utf-8"))
    assert set(told) == set(table["id"][table["split"] == "test"])
    assert "elsewhere" in (tmp_path / "out" / "here" / "page.html").read_text("utf-8")


def test_the_command_scores_a_real_bundle_on_another_corpus(workspace, no_java):
    """``workspace`` is a project's folder; the captioner is untrained, so only the form of its scores is known."""
    from typer.testing import CliRunner

    from flows.cli import app
    from procap.datasets.vocabulary import Vocabulary
    from procap.training.bundle import write_bundle

    vocabulary, config = Vocabulary(tuple(f"w{n:02d}" for n in range(12)), 7), captioner_config("procap")
    write_bundle(
        workspace / "mine", "procap", small_captioner("procap"), config, small_vqgan(), vocabulary, {"seed": 1}
    )
    toy_prepared(workspace / "theirs", pairs=16, side=40)
    for _ in range(2):
        done = CliRunner().invoke(app, ["evaluate", "mine", "theirs", "--out", "scores"])
        assert done.exit_code == 0, done.output
        assert "ROUGE-L" in done.stdout
        assert read(workspace / "scores")["pairs"] == 4
    (workspace / "infra").mkdir()
    refused = CliRunner().invoke(app, ["evaluate", "mine", "theirs", "--out", "infra"])
    assert isinstance(refused.exception, BadInput)
    assert not list((workspace / "infra").iterdir())


def test_a_folder_without_pairs_is_named(data, params, tmp_path):
    with pytest.raises(BadInput, match="no pairs") as caught:
        evaluate.evaluate_bundle(params, data / "bundle", tmp_path, tmp_path / "out", corpus="x")
    assert caught.value.where == str(tmp_path / "pairs.parquet")


def test_no_test_pairs_is_said(tmp_path, data, params, bundled):
    table = Pairs.read(data / "prepare").split("train").table
    (tmp_path / "prepare").mkdir()
    table.to_parquet(tmp_path / "prepare" / "pairs.parquet")
    with pytest.raises(BadInput, match="nothing to evaluate on"):
        evaluate.run(params, tmp_path, captioner="procap")
    assert not (tmp_path / "evaluate").exists()


@pytest.mark.slow
@pytest.mark.skipif(java.why_no_java() is not None, reason="needs Java")
def test_with_java_meteor_is_there_for_all_and_for_each_group(data, params, bundled):
    bundled(cycle(len(opened(data))))
    evaluate.run(params, data, captioner="procap")
    table = read(data / "evaluate" / "procap")
    assert set(table["skipped"]) <= {"SPICE", "sentence_similarity", "referring_accuracy"}
    groups = [table, table["changed"], table["unchanged"], *table["per_type"].values()]
    assert all(0 < group["METEOR"] < 100 for group in groups)


def test_what_it_points_at_is_judged_by_the_true_scenes(data, params, bundled, no_java, tmp_path):
    table = toy_prepared(tmp_path / "prepare", pairs=80, side=16)
    ids = list(table["id"])
    with (tmp_path / "prepare" / "scenes.jsonl").open("w", encoding="utf-8") as file:
        for number, story in enumerate(few_stories(40)):
            line = {
                "before": story.pair.before.describe(), "changed": story.pair.after.describe(),
                "distractor": story.pair.before.describe(), "ids": ids[2 * number : 2 * number + 2],
                "changes": [change.describe() for change in story.pair.changes],
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")
    said = {ids[2 * number]: story.captions[0] for number, story in enumerate(few_stories(40))}
    test = Pairs.read(tmp_path / "prepare").split("test").table
    changed = [name for name in test["id"] if name in said]
    wrong = set(changed[::2])
    listener = Listener()
    bundled(["the car moved" if name in wrong else said.get(name, "nothing changed") for name in test["id"]])
    evaluate.run(params, tmp_path, captioner="procap", report=listener)
    found = read(tmp_path / "evaluate" / "procap")
    assert found["referring_accuracy"] == pytest.approx(1 - len(wrong) / len(changed), abs=1e-6)
    low, high = found["referring_accuracy_interval"]
    assert 0 <= low < found["referring_accuracy"] < high <= 1
    assert found["referring"]["shape"] == {"count": len(changed) - len(wrong), "accuracy": 1}
    assert listener.numbers["referring/shape/accuracy"] == 1
    assert found["grammatical"] == pytest.approx(1 - len(wrong) / len(test), abs=1e-6), "no car is in a scene"
    told = json.loads((tmp_path / "evaluate" / "procap" / "predictions.json").read_text(encoding="utf-8"))
    assert {name: one["referring_right"] for name, one in told.items()} == {
        name: None if name not in said else name not in wrong for name in test["id"]
    }
    assert "What it says of the object that changed" in (tmp_path / "evaluate" / "procap" / "page.html").read_text()


def test_a_named_sentence_model_is_used_and_a_folder_that_is_none_is_an_error(data, params, bundled, no_java, tmp_path):
    def named(folder):
        changed = params.evaluate.model_copy(update={"sentence_model": str(folder)})
        return params.model_copy(update={"evaluate": changed})

    small_sentence_model(tmp_path / "model")
    pairs = opened(data)
    bundled([captions[0] for captions in pairs.table["captions"]])
    evaluate.run(named(tmp_path / "model"), data, captioner="static")
    table = read(data / "evaluate" / "static")
    assert table["sentence_similarity"] == pytest.approx(100, abs=1e-3)
    assert "sentence_similarity" not in table["skipped"]
    bundled(cycle(len(pairs)))
    evaluate.run(named(tmp_path / "model"), data, captioner="static")
    assert 0 <= read(data / "evaluate" / "static")["sentence_similarity"] < 100
    bundled(cycle(len(pairs)))
    with pytest.raises(BadInput, match="cannot be read as a pre-trained network") as caught:
        evaluate.run(named(tmp_path), data, captioner="static")
    assert "evaluate.sentence_model" in caught.value.where


def small_sentence_model(folder: Path) -> None:
    """An untrained BERT of one small layer, saved as transformers saves one."""
    transformers = pytest.importorskip("transformers")
    own = sorted({word for captions in CAPTIONS.values() for caption in captions for word in caption.split()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *own]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(folder)
