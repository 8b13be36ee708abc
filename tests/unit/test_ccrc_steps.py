"""CCRC in the steps: what it is taught, how a batch in parts and a continued training come out."""

import numpy as np
import pytest
import torch

from procap.captioners.answers import KINDS
from procap.datasets.object_words import object_words
from procap.datasets.pairs import Pairs
from procap.datasets.vocabulary import PAD, UNK, Vocabulary
from procap.files import folder_digest
from procap.report import Silent
from procap.steps import caption
from procap.steps.known import Known
from procap.steps.sources import read_vocabulary
from procap.training.checkpoint import load_tensors
from procap.training.runtime import start_runtime
from tests.small import generator
from tests.steps import tiny_params, tokenised
from tests.toy import toy_prepared

PARAMS = tiny_params(
    captioners=["static", "procap", "ccrc"], caption__steps=6, caption__validate_every=3
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    data = tmp_path_factory.mktemp("corpus") / "data"
    tokenised(data, PARAMS)
    return data


@pytest.fixture
def data(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(caption, "draw_history", lambda *_: None)
    (tmp_path / "data").mkdir()
    for step in ("prepare", "tokenize", "tokenizer"):
        (tmp_path / "data" / step).symlink_to(corpus / step)
    return tmp_path / "data"


def bundle(data):
    return data / "caption" / "ccrc" / "bundle"


class Stop(Silent):
    """Ends a training after so many updates, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def now(self, readings):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_stopped_training_continues_with_the_same_bytes(data, tmp_path):
    caption.run(PARAMS, data, captioner="ccrc")
    whole, weights = folder_digest(bundle(data)), load_tensors(bundle(data) / "captioner.safetensors")[0]
    assert weights["updates"] > 0
    assert (weights["means"] != 1).all()
    cells = (data / "caption" / "ccrc" / "history.csv").read_text().replace("\n", ",").split(",")
    assert {"caption", "bce", "dice", "CIDEr", "gIoU"} <= set(cells)
    (data / "caption").rename(tmp_path / "first")
    with pytest.raises(KeyboardInterrupt):
        caption.run(PARAMS, data, captioner="ccrc", report=Stop(4))
    assert not bundle(data).exists()
    caption.run(PARAMS, data, captioner="ccrc")
    assert folder_digest(bundle(data)) == whole


def test_a_batch_in_parts_is_the_same_batch(data):
    trained = []
    for parts in (1, 2):
        changed = PARAMS.caption.model_copy(update={"accumulate": parts, "steps": 2})
        caption.run(PARAMS.model_copy(update={"caption": changed}), data, captioner="ccrc")
        trained.append(load_tensors(bundle(data) / "captioner.safetensors")[0])
    for name, weight in trained[0].items():
        assert torch.allclose(weight.float(), trained[1][name].float(), rtol=1e-3, atol=2e-4), name


def test_what_is_known_of_pairs(tmp_path):
    table = toy_prepared(tmp_path, pairs=8, side=16)
    table.loc[2, ["change_type", "mask"]] = ["unknown", -1]
    table.at[4, "captions"] = ["something happened"]
    table.to_parquet(tmp_path / "pairs.parquet", index=False)
    words = Vocabulary(("a", "ball", "blue", "cube", "green", "red", "the"), 9)
    pairs = Pairs.read(tmp_path)
    rows = np.array([0, 1, 2, 4])
    known, number = Known(pairs, words, torch.from_numpy), words.numbers
    for which, first in ((0, [number["red"], number["ball"], PAD, PAD]), (-1, [number["ball"], PAD, PAD, PAD])):
        said = np.stack([words.encode(table["captions"][row][which], cut=True) for row in rows])
        truth = known.of(rows, said)
        assert [KINDS[kind] for kind in truth.kinds] == ["color", "none", "unknown", "add"]
        assert truth.objects.tolist() == [first, [PAD] * 4, [number["ball"], PAD, PAD, PAD], [UNK, PAD, PAD, PAD]]
    assert truth.masked.tolist() == [True, True, False, True]
    assert [bool(mask.any()) for mask in truth.masks] == [True, False, False, True]


def test_the_object_that_is_taught_is_that_of_the_caption_beside_it(corpus):
    vocabulary, runtime = read_vocabulary(corpus), start_runtime("cpu", 1, "float32")
    source = caption._Training(corpus, vocabulary, None, True, False, runtime)
    batch = source.batch(np.repeat(source.train, 8), generator())
    taught = zip(batch.truth.kinds, batch.truth.objects, batch.words, strict=True)
    told = {
        (vocabulary.decode(words.numpy()), vocabulary.decode(objects[objects > UNK].numpy()))
        for kind, objects, words in taught
        if KINDS[kind] != "none"
    }
    assert len({len(object.split()) for _, object in told}) > 1, "else this shows nothing"
    assert all(object == " ".join(object_words(text)) for text, object in told)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("the red cube turned blue", "red cube"),
        ("the color of the small metal sphere is now red", "small metal sphere"),
        ("there is a new cylinder behind the blue cube", "cylinder"),
        ("someone moved the large cube", "large cube"),
        ("the sphere has a metal surface now", "sphere"),
        ("nothing changed", ""),
        ("the two pictures show the same scene", ""),
        ("a row of houses has been built on the bareland", "row"),
    ],
)
def test_the_object_is_read_off_a_caption(caption, expected):
    assert " ".join(object_words(caption)) == expected
