"""What several unit tests need: an MLflow store of their own, at the price of copying a file."""

import shutil

import pytest


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory):
    """A fresh MLflow database; making its tables takes seconds, so it is made once."""
    pytest.importorskip("mlflow")
    from flows.store import connect

    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        connect(folder)
    return folder / "mlflow.db"


@pytest.fixture
def store(mlflow_template, tmp_path, monkeypatch):
    """A client of an empty store in ``tmp_path``, which becomes the current folder."""
    from flows.store import connect

    shutil.copy(mlflow_template, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return connect(tmp_path)
