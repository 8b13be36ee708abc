"""The registry takes each bundle once, and gives an alias only to what was seen to work."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from procap.errors import BadInput

mlflow = pytest.importorskip("mlflow")


class StubBundle:
    """Says how red the first picture is."""

    def __init__(self, folder: Path, load_midpoint: object = None) -> None:
        self.facts = json.loads((folder / "manifest.json").read_text())
        if self.facts.get("broken"):
            raise ValueError("weights are missing")

    def caption(self, before: np.ndarray, after: np.ndarray, **_: object) -> list:
        assert before.dtype == np.uint8
        assert before.ndim == 4
        return [SimpleNamespace(text=f"{self.facts['word']} {before[0, 16, 16, 0]}", probability=0.5)]


@pytest.fixture
def client(tmp_path, monkeypatch, store):
    import sys

    stub = SimpleNamespace(
        load_bundle=StubBundle, bundle_digest=lambda folder: str(hash((folder / "manifest.json").read_text()))
    )
    monkeypatch.setitem(sys.modules, "procap.training.bundle", stub)
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


@pytest.mark.parametrize(
    "text", ["", "no base64!", "aGVsbG8=", None], ids=["empty", "not base64", "not a picture", "missing"]
)
def test_a_request_that_is_no_picture_is_named(text):
    from flows.serving.model import decode_picture

    with pytest.raises(ValueError, match="row 3, before: not a PNG or JPEG"):
        decode_picture(text, "row 3, before")


def example():
    from flows.registry import example_input

    return example_input()
