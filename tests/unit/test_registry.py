"""The registry takes each bundle once, and gives an alias only to what was seen to work."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from procap.captioners import Decoding
from procap.captioning.pairs import read_picture
from procap.errors import BadInput

mlflow = pytest.importorskip("mlflow")


class StubCaptioner:
    """Says how red the first picture is."""

    def __init__(self, folder: str) -> None:
        self.facts = json.loads((Path(folder) / "manifest.json").read_text())
        if self.facts.get("broken"):
            raise ValueError("weights are missing")

    def stream(self, pairs: list, batch: int, decoding: Decoding) -> Iterator:
        for before, _ in pairs:
            red = read_picture(before, "row 0, before")[16, 16, 0]
            text = f"{self.facts['word']} {red}" + (f" by {decoding.beams} beams" if decoding.beams > 1 else "")
            yield SimpleNamespace(
                text=text, probability=0.5, change_probability=None, words=text.split(), word_probabilities=(0.5, 1.0)
            )


@pytest.fixture
def client(tmp_path, monkeypatch, store):
    import sys

    bundles = SimpleNamespace(bundle_digest=lambda folder: str(hash((folder / "manifest.json").read_text())))
    monkeypatch.setitem(sys.modules, "procap.training.bundle", bundles)
    monkeypatch.setitem(sys.modules, "procap.captioning.captioner", SimpleNamespace(load_captioner=StubCaptioner))
    return store


def make_bundle(folder: Path, **facts: object) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(facts))
    return folder


def new_run(client, tmp_path) -> str:
    from flows.store import experiment_id

    return client.create_run(experiment_id(client, tmp_path, "procap/test")).info.run_id


def test_a_bundle_is_registered_once_and_answers(client, tmp_path):
    from flows.registry import register

    bundle, run = make_bundle(tmp_path / "bundle", word="redness"), new_run(client, tmp_path)
    first = register(client, run, bundle, "procap", {"captioner": "static"}, None)
    again = register(client, run, bundle, "procap", {"captioner": "static"}, "challenger")

    assert first["version"] == again["version"] == 1
    assert client.get_model_version_by_alias("procap", "challenger").version == 1
    answer = mlflow.pyfunc.load_model("models:/procap@challenger").predict(example())
    assert answer["caption"].tolist() == ["redness 200"]
    assert answer["words"].tolist() == [["redness", "200"]]
    assert answer["word_probabilities"].tolist() == [[0.5, 1.0]]
    assert answer["change_probability"].tolist() == [None]
    more = mlflow.pyfunc.load_model("models:/procap@challenger").predict(example(), params={"beams": 3})
    assert more["caption"].tolist() == ["redness 200 by 3 beams"]
    info = mlflow.models.get_model_info("models:/procap/1")
    assert info.signature.inputs.input_names() == ["before", "after"]
    stored = Path(mlflow.artifacts.download_artifacts("models:/procap/1"))
    assert not list(stored.rglob("*.pkl"))
    assert (stored / "code" / "procap" / "errors.py").exists()


def test_a_model_that_does_not_load_gets_no_alias(client, tmp_path):
    from flows.registry import register

    run = new_run(client, tmp_path)
    register(client, run, make_bundle(tmp_path / "good", word="good"), "procap", {}, "challenger")
    broken = make_bundle(tmp_path / "bad", word="bad", broken=True)
    for _ in range(2):  # asking again does not help it either
        with pytest.raises(BadInput, match="weights are missing"):
            register(client, run, broken, "procap", {}, "challenger")
    assert client.get_model_version_by_alias("procap", "challenger").version == 1


@pytest.fixture
def served(client, tmp_path):
    from flows.registry import register

    register(client, new_run(client, tmp_path), make_bundle(tmp_path / "bundle", word="redness"), "procap", {}, None)
    return mlflow.pyfunc.load_model("models:/procap/1")


def test_a_store_that_is_away_is_waited_for_and_not_taken_for_a_broken_model(client, monkeypatch):
    from mlflow.exceptions import MlflowException

    from flows.pipeline import StepFailed
    from flows.registry import ask
    from flows.store import PATIENCE

    seen = []

    def away(_):
        seen.append({name: os.environ.get(name) for name in PATIENCE})
        raise MlflowException("API request failed: Max retries exceeded with url: /api (Read timed out)")

    monkeypatch.setattr(mlflow.pyfunc, "load_model", away)
    assert {name: os.environ.get(name) for name in PATIENCE} == PATIENCE
    with pytest.raises(MlflowException) as caught:
        ask("models:/procap/1")
    assert seen == [dict.fromkeys(PATIENCE)], "MLflow's own patience"
    assert {name: os.environ.get(name) for name in PATIENCE} == PATIENCE
    assert StepFailed("register", 255, [str(caught.value), "failed to run: ..., exited with 1"]).transient


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "no picture of ours"), ("no base64!", "row 0, before"), ("aGVsbG8=", "whatever its name says")],
    ids=["empty", "not base64", "not a picture"],
)
def test_a_request_that_is_no_picture_is_named(served, text, what):
    request = example()
    request.loc[0, "before"] = text
    with pytest.raises(mlflow.exceptions.MlflowException, match=what) as caught:
        served.predict(request)
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_paths_are_taken_only_below_the_folder_that_is_served(served, tmp_path, monkeypatch):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for file in ("pictures/a.png", "secret.png"):
        Image.new("RGB", (32, 32), (77, 0, 0)).save(tmp_path / file)

    def ask(path: str):
        import pandas as pd

        return served.predict(pd.DataFrame({"before": [path], "after": [path]}), params={"paths": True})

    monkeypatch.delenv("PROCAP_PICTURES", raising=False)
    with pytest.raises(mlflow.exceptions.MlflowException, match="paths are not taken here"):
        ask("a.png")
    monkeypatch.setenv("PROCAP_PICTURES", str(tmp_path / "pictures"))
    assert ask("a.png")["caption"].tolist() == ["redness 77"]
    (tmp_path / "pictures" / "link.png").symlink_to(tmp_path / "secret.png")
    for outside in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        with pytest.raises(mlflow.exceptions.MlflowException, match="leads out of the folder"):
            ask(outside)


def example():
    from flows.registry import example_input

    return example_input()
