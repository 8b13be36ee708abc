"""A deployment that a worker picks up brings the whole pipeline up to date, on a server of its own.

What comes before ``evaluate`` lies in the cache of ``built``; from there on its stages run.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clone import environment, read_json, run, sharing, without_java

pytestmark = pytest.mark.slow
pytest.importorskip("prefect")

PATIENT = {
    "PREFECT_API_REQUEST_TIMEOUT": "900",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "300",
    "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "300",
}
"""However busy the machine is."""


def free_port() -> int:
    """One that nothing listens on, below those that the system hands out to whoever connects to something."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


@pytest.fixture(scope="module")
def workspace(built, tmp_path_factory) -> Path:
    return sharing(built, tmp_path_factory.mktemp("deployed"))


@pytest.fixture(scope="module")
def prefect(workspace, tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment that reaches a fresh Prefect server, which ends with the tests."""
    from flows import servers

    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT")]:
            patch.delenv(name)
        patch.setattr(servers, "PATIENCE_SECONDS", 1800)
        for name, value in PATIENT.items():
            patch.setenv(name, value)
        patch.setenv("PREFECT_HOME", str(home))
        server = servers.prefect_server(workspace, free_port())
        with servers.running([server], home / "logs"):
            yield {**PATIENT, "PREFECT_HOME": str(home), "PREFECT_API_URL": f"{server.address}/api"}


@pytest.fixture(scope="module")
def worker(workspace, prefect, tmp_path_factory) -> Iterator[None]:
    run(workspace, "procap", "deploy", more=prefect)
    run(workspace, "procap", "deploy", more=prefect)  # again changes nothing
    log = Path(prefect["PREFECT_HOME"]) / "worker.log"
    words = [str(Path(environment()["PATH"].split(os.pathsep)[0]) / "prefect"), "worker", "start", "--pool", "gpu"]
    with log.open("wb") as out:
        # A worker started by a service manager knows nothing of the virtual environment.
        bare = environment(prefect) | without_java(tmp_path_factory.mktemp("none"), os.defpath)
        process = subprocess.Popen(
            words, cwd="/", env=bare, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # no run is left; asked to end, it takes half a minute
            process.wait()


def trigger(prefect: dict[str, str], wait: float = 7200, **parameters):
    """Start the deployment and wait until its run is over; (run, logs, tags of child runs, artifact keys)."""
    code = """
import json, sys, time
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, LogFilter
with get_client(sync_client=True) as client:
    deployment = client.read_deployment_by_name("procap/pipeline")
    made = client.create_flow_run_from_deployment(deployment.id, parameters=json.loads(sys.argv[1]))
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        run = client.read_flow_run(made.id)
        if run.state and run.state.is_final():
            break
        time.sleep(1)
    logs, tasks, before, end = [], [], None, time.monotonic() + 120
    while time.monotonic() < end:  # the last lines and states are sent late
        now = len(logs), sorted(task.state.type.value for task in tasks)
        if logs and now == before and not {"RUNNING", "PENDING"} & set(now[1]):
            break
        before = now
        time.sleep(2)
        tasks = [task for task in client.read_task_runs() if task.flow_run_id == made.id]
        logs, offset = [], 0
        while page := client.read_logs(LogFilter(flow_run_id={"any_": [str(made.id)]}), limit=200, offset=offset):
            logs += [line.message for line in page]
            offset += 200
    flows = client.read_flow_runs()
    keys = sorted({a.key for a in client.read_artifacts() if a.key})
    print("RESULT", json.dumps({"id": str(made.id), "state": run.state.name, "logs": logs, "artifacts": keys,
        "limit": deployment.concurrency_limit, "tasks": {t.name: t.state.name for t in tasks},
        "children": {f.name: sorted(f.tags) for f in flows if f.id != made.id},
        "unmarked": [f.name for f in flows if "procap.pid" not in f.labels]}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(parameters), str(wait)],
        env=environment(prefect),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.partition("RESULT ")[2])


@pytest.fixture(scope="module")
def completed(prefect, worker) -> dict:
    return trigger(prefect, overrides={"evaluate.pictures": 2, "captioners": ["procap"]})


def test_the_deployment_runs_every_step_to_completion(completed, workspace):
    from procap.steps import STEPS

    assert completed["state"] == "Completed", "\n".join(completed["logs"][-40:])
    assert set(STEPS) <= set(completed["tasks"])
    assert "pictures: 2" in (workspace / "params.yaml").read_text()
    assert "# " in (workspace / "params.yaml").read_text(), "comments stay"
    versions = read_json(workspace / "data" / "register" / "versions.json")
    assert [one["captioner"] for one in versions] == ["procap"]


def test_stages_are_flow_runs_tagged_with_the_pipelines_run(completed):
    tag = f"pipeline:{completed['id']}"
    assert set(completed["children"]) == {"evaluate@procap", "register"}, "the others are cached"
    assert all(tag in tags for tags in completed["children"].values())


def test_the_pipelines_run_and_those_of_its_stages_tell_their_process(completed):
    assert not completed["unmarked"]


def test_lines_of_the_steps_reach_the_runs_log_and_results_its_page(completed):
    assert any("Running stage 'evaluate@procap'" in line for line in completed["logs"])
    assert any(line.startswith("evaluate@procap: ") for line in completed["logs"])
    assert {"scores", "mlflow-run", "progress-evaluate"} <= set(completed["artifacts"])


def test_mlflow_has_one_parent_for_the_whole_rebuild(completed, workspace):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{workspace / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    parents = {run.data.tags["mlflow.parentRunId"] for run in runs if "procap.step" in run.data.tags}
    assert len(parents) == 1
    assert client.get_run(parents.pop()).data.tags["procap.rebuild"] == completed["id"]
    assert all("prefect.flow_run_id" in run.data.tags for run in runs if "procap.step" in run.data.tags)


def test_bad_input_fails_at_once_and_is_not_tried_again(prefect, worker, workspace, completed):
    told = trigger(prefect, overrides={"caption.stepz": 2})
    assert told["state"] == "Failed"
    assert any("did you mean 'steps'" in line for line in told["logs"])
    assert not told["tasks"]


LOST = """
import os, signal
from prefect import flow
from flows.process import mark_process

@flow(on_running=[mark_process])
def lost():
    os.kill(os.getpid(), signal.SIGKILL)

lost.with_options(flow_run_name="lost")()
"""
FOUND = """
from flows.doctor import _stuck_runs
print("FOUND", list(_stuck_runs(fix=True)), list(_stuck_runs(fix=False)))
"""


def test_a_run_whose_process_was_killed_is_found_and_closed_and_no_other(prefect, workspace):
    with_code = environment(prefect | {"PYTHONPATH": str(workspace)})
    died = subprocess.run([sys.executable, "-c", LOST], cwd=workspace, env=with_code)
    assert died.returncode == -signal.SIGKILL
    told = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=workspace, env=with_code, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines()[-1] == "FOUND ['lost'] []"


def test_a_second_run_up_to_a_step_does_nothing(prefect, worker, completed):
    told = trigger(prefect, targets=["validate"])
    assert told["state"] == "Completed"
    assert told["tasks"] == dict.fromkeys(("prepare", "validate"), "Completed")
    assert not any("Running stage" in line for line in told["logs"])
