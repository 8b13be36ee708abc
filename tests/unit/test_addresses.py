"""Models by their address in a real MLflow store."""

import shutil
from pathlib import Path

import pytest

from procap.errors import BadInput
from procap.training.bundle import bundle_digest, write_bundle
from tests.small import captioner_config, small_captioner, small_vqgan

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def bundle(tmp_path) -> Path:
    from procap.datasets.vocabulary import Vocabulary

    vocabulary = Vocabulary(tuple(f"w{number:02d}" for number in range(12)), 7)
    write_bundle(
        tmp_path / "bundle", "static", small_captioner("static"), captioner_config("static"), small_vqgan(), vocabulary,
        {"no_change": ["w01 w02"]},
    )  # fmt: skip
    return tmp_path / "bundle"


def test_a_registered_model_is_found_by_alias_version_and_run(store, tmp_path, bundle):
    from flows.addresses import fetch
    from flows.registry import register
    from flows.store import experiment_id

    run = store.create_run(experiment_id(store, tmp_path, "procap/test")).info.run_id
    made = register(store, run, bundle, "procap", {"captioner": "static"}, "champion")
    store.update_model_version("procap", "1", description="# What it is")
    for address in ("models:/procap@champion", "models:/procap/1"):
        found = fetch(address)
        assert (found.version, found.card) == ("1", "# What it is")
        assert bundle_digest(found.folder) == made["digest"]
    by_run = fetch(f"runs:/{run}/procap-static")
    assert (by_run.version, bundle_digest(by_run.folder)) == (None, made["digest"])
    for nothing in ("models:/procap@nobody", "models:/procap/9", "models:/other/1", f"runs:/{run}/other"):
        with pytest.raises(BadInput, match="nothing was found there") as caught:
            fetch(nothing)
        assert nothing in caught.value.where


def test_a_model_from_elsewhere_is_downloaded_once(bundle, tmp_path, monkeypatch):
    from types import SimpleNamespace

    from flows import addresses

    asked = []

    def downloaded(address: str, target: Path | None = None) -> Path:
        asked.append(address)
        shutil.copytree(bundle, target / "bundle")
        return target / "bundle"

    monkeypatch.setattr(addresses, "_downloaded", downloaded)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client = SimpleNamespace(get_model_version_download_uri=lambda *_: "mlflow-artifacts:/1/models/m-1/artifacts")
    version = SimpleNamespace(name="procap", version="3", tags={"procap.bundle": bundle_digest(bundle)})
    kept = [addresses._kept(client, version) for _ in range(2)]
    assert asked == ["models:/procap/3"]
    assert kept == [tmp_path / "cache" / "procap" / bundle_digest(bundle)] * 2
    assert sorted(path.name for path in kept[0].iterdir()) == sorted(path.name for path in bundle.iterdir())


def test_asking_makes_no_store(tmp_path, monkeypatch):
    from flows.addresses import fetch

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(BadInput, match="no MLflow store"):
        fetch("models:/procap@champion")
    assert not list(tmp_path.iterdir())


def test_the_packages_own_addresses_lead_here():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    points = project["project"]["entry-points"]["procap.addresses"]
    assert points == dict.fromkeys(("models", "runs"), "flows.addresses:fetch")
