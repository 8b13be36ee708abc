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


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A committed project with the real parameters and stages, and a stand-in for every file they depend on."""
    import subprocess
    from pathlib import Path

    from flows.lineage import read_yaml

    project = Path(__file__).parents[2]
    for name in ("params.yaml", "dvc.yaml", ".gitignore"):
        shutil.copy(project / name, tmp_path)
    for stage in read_yaml(tmp_path / "dvc.yaml")["stages"].values():
        for dep in (dep for dep in stage["deps"] if dep.endswith(".py") and "$" not in dep):
            (tmp_path / dep).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / dep).write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *words], check=True)
    return tmp_path
