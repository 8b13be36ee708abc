"""The doctor sees what is wrong, says what to do, mends what loses nothing, and makes nothing where nothing was."""

import json
import os
import subprocess
import sys
import time

import pytest

from flows.doctor import examine
from flows.lineage import is_dead, process_facts


def findings(root, fix=False):
    return {finding.what: finding for finding in examine(root, fix)}


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)


def test_in_a_folder_that_is_no_project_it_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = findings(tmp_path)
    assert not found["pipeline"].well
    assert not list(tmp_path.iterdir())


def test_in_a_project_that_ran_nothing_it_makes_no_database(workspace):
    before = {path.name for path in workspace.iterdir()}
    found = findings(workspace)
    assert found["mlflow store"].well
    assert "made by the first run" in found["mlflow store"].seen
    assert {path.name for path in workspace.iterdir()} == before


def test_its_findings_can_be_read_by_programs_and_its_status_tells(workspace, monkeypatch):
    from typer.testing import CliRunner

    from flows import doctor
    from flows.cli import app

    monkeypatch.setattr(doctor, "_mlflow", lambda *_: iter(()))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    told = {one["what"]: one for one in json.loads(done.stdout)}
    assert told["git"]["well"]
    assert done.exit_code == int(any(not one["well"] and one["needed"] for one in told.values()))
    monkeypatch.setattr(doctor, "SPARE_GB", 1e9)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "-> make room" in done.stdout


def lock_file(root, text):
    path = root / ".dvc" / "tmp" / "rwlock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["another program's", "gone", "cut off"])
def test_a_dvc_lock_that_nobody_holds_is_cleared(workspace, kind):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    if kind == "gone":
        other.kill()
        other.wait()
    held = json.dumps({"write": {"data/prepare": {"pid": other.pid, "cmd": "dvc repro"}}, "read": {}})
    path = lock_file(workspace, held[:-9] if kind == "cut off" else held)
    try:
        assert not findings(workspace)["dvc locks"].well
        assert path.read_text(), "only --fix changes anything"
        assert "--fix" in findings(workspace)["dvc locks"].do
        assert findings(workspace, fix=True)["dvc locks"].well
        assert findings(workspace)["dvc locks"].seen == "none held"
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("end", [None, -9], ids=["whole", "half written"])
def test_a_dvc_lock_of_a_working_dvc_is_left_alone(workspace, end):
    working = subprocess.Popen([sys.executable, "-c", "input()", "dvc", "repro"], stdin=subprocess.PIPE)
    held = json.dumps({"write": {}, "read": {"data": [{"pid": working.pid, "cmd": "dvc repro"}]}})
    path = lock_file(workspace, held[:end])
    try:
        assert findings(workspace, fix=True)["dvc locks"].well
        assert path.read_text() == held[:end]
    finally:
        working.kill()
        working.wait()


def test_a_lock_is_cleared_though_its_number_is_that_of_a_dvc_in_another_workspace(workspace, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / ".dvc").mkdir()
    working = subprocess.Popen([sys.executable, "-c", "input()", "dvc", "repro"], stdin=subprocess.PIPE, cwd=other)
    lock_file(workspace, json.dumps({"write": {"data": {"pid": working.pid, "cmd": "dvc repro"}}, "read": {}}))
    try:
        assert not findings(workspace)["dvc locks"].well
    finally:
        working.kill()
        working.wait()


def test_a_half_written_dvc_lock_is_named(workspace):
    (workspace / "dvc.lock").write_text("schema: '2.0'\nstages:\n  prepare:\n    cmd: 'pyth")
    found = findings(workspace)["pipeline"]
    assert not found.well
    assert "git checkout dvc.lock" in found.do


def test_credentials_under_git_are_found(workspace):
    folder = workspace / ".dvc"
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("/config.local\n")
    (folder / "config").write_text("['remote \"team\"']\n    url = s3://bucket/x\n    endpointurl = http://127.0.0.1:9\n")
    (folder / "config.local").write_text("['remote \"team\"']\n    secret_access_key = hidden\n")
    found = findings(workspace)
    assert "dvc secrets" not in found
    assert not found["remote team"].well, "nothing listens at port 9"
    assert "hidden" not in str(found)
    (folder / "config").write_text("['remote \"team\"']\n    url = s3://bucket/x\n    secret_access_key = shown\n")
    assert "secret_access_key" in findings(workspace)["dvc secrets"].seen
    (folder / "config").write_text("['remote \"team\"']\n    url = https://me:shown@example.org/x\n")
    found = findings(workspace)
    assert not found["dvc secrets"].well
    assert "shown" not in str(found)
    (folder / "config").write_text("['remote \"near\"']\n    url = ../store\n")
    assert not findings(workspace)["remote near"].well
    (workspace / "store").mkdir()
    assert findings(workspace)["remote near"].well


def test_halves_of_dead_processes_and_old_states_are_removed_and_no_others(workspace):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = workspace / "data" / f"prepare.{gone.pid}.partial"
    alive = workspace / "data" / f"sample.{os.getpid()}.partial"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    old, new = workspace / ".state" / "pretrain" / ("a" * 24), workspace / ".state" / "caption" / "procap" / ("b" * 24)
    for folder in (old, new):
        folder.mkdir(parents=True)
    month = time.time() - 30 * 86400
    os.utime(old, (month, month))
    found = findings(workspace)
    assert not found["leftovers"].well
    assert "pretrain" in found["state"].seen
    findings(workspace, fix=True)
    assert (dead.exists(), alive.exists(), old.exists(), new.exists()) == (False, True, False, True)
    assert "to be continued: caption/procap" in findings(workspace)["state"].seen


def test_a_promotion_that_died_is_found_and_undone(workspace, store, monkeypatch):
    from flows.promotion import MOVE, _lock_name

    store.create_registered_model("procap")
    for _ in range(2):
        store.create_model_version("procap", "file:///nowhere")
    store.set_registered_model_alias("procap", "champion", "1")
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    facts = process_facts(gone.pid)
    gone.kill()
    gone.wait()
    intent = {"before": {"champion": "1", "previous": None}, "after": {"champion": "2", "previous": "1"},
              "facts": {"id": "x", "action": "promote"}}  # fmt: skip
    store.create_registered_model(_lock_name("procap"), tags=facts | {MOVE: json.dumps(intent)})
    store.set_registered_model_alias("procap", "previous", "1")
    assert not findings(workspace)["promotion"].well
    assert "version 1 serves as before" in findings(workspace, fix=True)["promotion"].seen
    assert store.get_registered_model("procap").aliases == {"champion": 1}
    assert "promotion" not in findings(workspace)


def test_a_process_is_known_again_when_somebody_sets_the_clock(monkeypatch):
    import psutil

    mine = process_facts()
    began = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: began(self) + 3600)
    assert not is_dead(mine)


def test_a_prefect_server_that_is_not_there_is_named(workspace, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    found = findings(workspace)["prefect server"]
    assert not found.well
    assert "procap up" in found.do
