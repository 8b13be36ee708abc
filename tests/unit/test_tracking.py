"""A step's run has the right status, tags and numbers, and a failing store never ends a training."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from procap.config import load_params
from procap.errors import BadInput


@pytest.fixture
def tracked(store, workspace, monkeypatch):
    """``tracked(step)`` in a workspace whose store is ready."""
    from flows import tracking

    monkeypatch.setenv("PROCAP_REBUILD", "this rebuild")
    params = load_params(workspace / "params.yaml")
    return lambda step="sample": tracking.tracked(step, None, params, workspace, None)


def only_run(store, name="sample"):
    (run,) = [run for run in all_runs(store) if run.info.run_name == name]
    return run


def all_runs(store):
    return store.search_runs([e.experiment_id for e in store.search_experiments()])


def test_a_finished_step_leaves_numbers_parameters_tags_and_pictures(store, tracked, tmp_path):
    from PIL import Image

    with tracked() as tracker:
        tracker.metrics({"loss": 2.0, "odd (name)": 1.0}, step=1)
        tracker.metrics({"loss": 1.0}, step=2)
        tracker.picture("look.png", Image.new("RGB", (4, 4)))
        tracker.artifact(tmp_path / "params.yaml")
        tracker.note("a word")
    run = only_run(store)
    assert run.info.status == "FINISHED"
    assert [(m.step, m.value) for m in store.get_metric_history(run.info.run_id, "loss")] == [(1, 2.0), (2, 1.0)]
    assert "odd _name_" in run.data.metrics
    assert run.data.params["sample.kept"] == "2"
    assert "caption.steps" not in run.data.params
    for tag in ("git.commit", "git.dirty", "procap.stage", "procap.config_sha256", "seed", "procap.pid"):
        assert tag in run.data.tags
    kept = {file.path for file in store.list_artifacts(run.info.run_id)}
    assert kept == {"params.yaml", "pictures", "notes.txt"}


def test_steps_of_one_rebuild_share_a_parent(store, tracked, monkeypatch):
    for step in ("sample", "tokenize"):
        with tracked(step):
            pass
    monkeypatch.setenv("PROCAP_REBUILD", "the next one")
    with tracked("pretrain"):
        pass
    parents = {run.info.run_name: run.data.tags.get("mlflow.parentRunId") for run in all_runs(store)}
    assert parents["sample"] == parents["tokenize"] != parents["pretrain"]
    assert {store.get_run(p).info.status for p in parents.values() if p} == {"FINISHED"}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_ends_the_run_and_goes_on(store, tracked, error):
    def fail():
        with tracked() as tracker:
            tracker.metrics({"loss": 1.0}, step=1)
            raise error

    with pytest.raises(type(error)):
        fail()
    run = only_run(store)
    assert run.info.status == ("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
    assert run.data.metrics == {"loss": 1.0}, "what was said before the end is kept"
    parent = store.get_run(run.data.tags["mlflow.parentRunId"])
    assert parent.info.status == run.info.status


def test_the_second_attempt_names_the_first(store, tracked):
    with pytest.raises(ValueError, match="no"), tracked():
        raise ValueError("no")
    first = only_run(store).info.run_id
    with tracked():
        pass
    with tracked():
        pass
    resumed = sorted((r.info.start_time, r.data.tags.get("procap.resumed_from")) for r in all_runs(store)
                     if r.info.run_name == "sample")  # fmt: skip
    assert [name for _, name in resumed] == [None, first, None]


def test_a_store_that_fails_costs_one_warning(store, tracked, capsys, monkeypatch):
    with tracked() as tracker:
        monkeypatch.setattr(tracker.client, "log_batch", lambda *_, **__: (_ for _ in ()).throw(OSError("gone")))
        for step in range(3):
            tracker.metrics({"loss": 1.0}, step=step)
            tracker.flush()
        assert len(tracker.waiting) == 3, "kept for later"
        monkeypatch.undo()
        tracker.paused_until = 0.0
        tracker.flush()
        assert not tracker.waiting
    assert capsys.readouterr().err.count("MLflow keeps nothing for now") == 1
    assert only_run(store).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [("file:///tmp/mlruns", "folder of files"), ("./mlruns", "folder of files"), ("http://127.0.0.1:9", "answer")],
)
def test_a_store_that_cannot_be_used_is_refused_at_once(tmp_path, monkeypatch, uri, complaint):
    from flows.store import connect

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    start = time.monotonic()
    with pytest.raises(BadInput, match=complaint):
        connect(tmp_path)
    assert time.monotonic() - start < 60, "without MLflow's own patience of minutes"


def test_a_password_in_the_address_is_not_shown(tmp_path, monkeypatch):
    from flows.store import connect

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with pytest.raises(BadInput) as caught:
        connect(tmp_path)
    assert "secret" not in str(caught.value)


STAND_IN = """
import signal, sys, time, types
from pathlib import Path
step = types.ModuleType("procap.steps.sample")
def run(params, data, *, report):
    report.metrics({"loss": 1.0}, 1)
    Path("started").touch()
    time.sleep(600)
step.run = run
sys.modules["procap.steps.sample"] = step
from flows.stage import main
sys.exit(main(["sample"]))
"""


def stand_in_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "MLFLOW", "DVC"))}
    return kept | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONSAFEPATH": "1"}


def wait_for(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def start_stand_in(workspace: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", STAND_IN], cwd=workspace, env=stand_in_environment())
    wait_for(workspace / "started", process)
    return process


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_as_killed(store, workspace, number, status):
    process = start_stand_in(workspace)
    process.send_signal(number)
    assert process.wait(300) == status
    run = only_run(store)
    assert run.info.status == "KILLED"
    assert run.data.metrics == {"loss": 1.0}


FULL = """
import errno, sys, types
step = types.ModuleType("procap.steps.sample")
def run(params, data, *, report):
    raise OSError(errno.ENOSPC, "No space left on device", "data/sample/kept.npy")
step.run = run
sys.modules["procap.steps.sample"] = step
from flows.stage import main
sys.exit(main(["sample"]))
"""


def test_a_full_disk_is_a_complaint_and_status_2(store, workspace):
    done = subprocess.run([sys.executable, "-c", FULL], env=stand_in_environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "data/sample/kept.npy" in done.stderr
    assert "Traceback" not in done.stderr
    assert only_run(store).info.status == "FAILED"


def test_a_stage_whose_dvc_is_gone_ends_as_after_a_signal(store, workspace):
    """The words `dvc` and the mark of a stage are all that it looks for; a shell stands in for the command."""
    (workspace / "dvc").write_text(f"#!/bin/sh\n{sys.executable} -c '{STAND_IN}' &\necho $! > pid\nwait\n")
    (workspace / "dvc").chmod(0o755)
    environment = stand_in_environment() | {"DVC_STAGE": "sample"}
    dvc = subprocess.Popen(["/bin/sh", str(workspace / "dvc")], cwd=workspace, env=environment)
    wait_for(workspace / "started", dvc)
    stage = psutil.Process(int((workspace / "pid").read_text()))
    dvc.kill()
    dvc.wait()
    end = time.monotonic() + 300
    while stage.is_running() and stage.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert only_run(store).info.status == "KILLED"


def test_the_doctor_closes_what_kill_9_leaves(store, workspace):
    from flows.doctor import examine

    process = start_stand_in(workspace)
    found = {finding.what: finding for finding in examine(workspace, fix=True)}
    assert found["mlflow runs"].well, "a run that works is left alone"
    process.kill()
    process.wait()
    assert only_run(store).info.status == "RUNNING"
    found = {finding.what: finding for finding in examine(workspace, fix=False)}
    assert not found["mlflow runs"].well
    assert "sample" in found["mlflow runs"].seen
    list(examine(workspace, fix=True))
    assert {run.info.status for run in all_runs(store)} == {"KILLED"}


def test_finalize_wants_a_clean_tree_and_tags_what_was_committed(store, tracked, workspace):
    from flows.upkeep import finalize
    from tests.unit.test_lineage import write_lock

    with tracked("prepare"):
        pass
    write_lock(workspace, prepare={"data/prepare": "p.dir"}, sample={"data/sample/kept.npy": "k"})
    with pytest.raises(BadInput, match="no commit holds"):
        finalize(workspace)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "built"], check=True)
    tagged = dict(finalize(workspace))
    run = only_run(store, "prepare")
    assert tagged == {"prepare": run.info.run_id, "sample": None}
    run = only_run(store, "prepare")
    assert run.data.tags["dvc.outs.prepare"] == "p.dir"
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert run.data.tags["procap.commit"] == head != run.data.tags["git.commit"]
    (workspace / "params.yaml").write_text((workspace / "params.yaml").read_text() + "# more\n")
    with pytest.raises(BadInput, match=r": params\.yaml"):
        finalize(workspace)


@pytest.mark.parametrize("named", [["static"], ["static", "procap"]])
def test_a_captioner_that_is_no_longer_named_keeps_no_version_from_its_commit(store, workspace, monkeypatch, named):
    from flows import upkeep
    from tests.unit.test_lineage import write_lock

    write_lock(workspace, **{"prepare": {}, "caption@static": {}, "caption@procap": {}})
    (workspace / "params.yaml").write_text(f"captioners: {named}\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "built"], check=True)
    stale = {"caption@procap": {False: "of now", True: "of the lock"}}
    monkeypatch.setattr(upkeep, "stage_digest", lambda _, name, locked=False: stale.get(name, {}).get(locked, name))
    finalized: list[str] = []
    monkeypatch.setattr(upkeep, "_finalize_versions", lambda _client, _root, commit: finalized.append(commit))
    upkeep.finalize(workspace)
    assert bool(finalized) == ("procap" not in named)


@pytest.mark.parametrize("seconds", [10.0, 0.0])
def test_numbers_are_sent_in_batches_of_at_least_50_updates(store, tracked, monkeypatch, seconds):
    from flows import tracking

    monkeypatch.setattr(tracking, "FLUSH_SECONDS", seconds)
    calls = []
    with tracked() as tracker:
        send = tracker.client.log_batch
        count = lambda *a, **k: (calls.append(len(k["metrics"])), send(*a, **k))  # noqa: E731
        monkeypatch.setattr(tracker.client, "log_batch", count)
        for step in range(1500):
            tracker.metrics({"loss": float(step)}, step=step)
    assert min(calls[:-1]) >= 50
    assert len(calls) <= (3 if seconds else 30)
    assert len(store.get_metric_history(only_run(store).info.run_id, "loss")) == 1500
