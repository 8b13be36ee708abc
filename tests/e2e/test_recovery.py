"""What is taken away in the middle of a run, and that the next one goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clone import environment, run
from tests.e2e import services
from tests.e2e.shared import Shared, ask, ended, start, state, until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("whole")]
SHORT = {"captioners": ["static"], "caption.steps": 24, "caption.validate_every": 12}
"""As in the smoke preset, so that what was trained before is found again."""
LONGER = {"caption.steps": 600, "caption.validate_every": 200}
"""So long that a server can go and come back meanwhile."""
ENDLESS = {"caption.steps": 100_000, "caption.validate_every": 500}


def working(folder: Path, word: str = "") -> list[int]:
    """Processes of this workspace: DVC and the steps."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if process.cwd() == str(folder) and word in words and ("dvc" in words or "flows.stage" in words):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def trained(team, shared, team_worker) -> None:
    assert ended(shared, start(shared, overrides=SHORT))["name"] == "Completed"


def newest(client, name: str, status: str) -> Any:
    """The newest run of a stage, once it says so; None before."""
    ids = [one.experiment_id for one in client.search_experiments(filter_string="name LIKE 'procap/%'")]
    runs = client.search_runs(ids, f"attributes.run_name = '{name}'", 1, 1, ["attributes.start_time DESC"])
    return runs[0] if runs and runs[0].info.status == status else None


def until_it_trains(team: Path, client) -> None:
    until("training", lambda: working(team, "flows.stage caption"))
    until("run in MLflow", lambda: newest(client, "caption@static", "RUNNING"))


@contextmanager
def away(shared: Shared, server: str) -> Iterator[None]:
    shared.restart[server].stop()
    try:
        yield
    finally:
        shared.restart[server].start()


def test_a_cancel_ends_dvc_and_the_step_and_leaves_no_process(team, shared, trained, client):
    run_id = start(shared, overrides=ENDLESS)
    until_it_trains(team, client)
    run(team, "prefect", "flow-run", "cancel", run_id, more=shared.env)  # what the button in the UI does
    assert ended(shared, run_id)["name"] == "Cancelled"
    until("end of all processes", lambda: not working(team), 60)
    assert newest(client, "caption@static", "KILLED")


def test_after_a_kill_9_of_everything_the_doctor_tidies_up_and_the_next_run_ends_well(team, shared, trained, client):
    """The worker and all below it, as when a machine loses power."""
    import psutil

    log = shared.folder / "second-worker.log"
    run(team, "prefect", "work-pool", "create", "second", "--type", "process", more=shared.env)
    pipeline = f"deployments/{ask(shared, 'deployments/name/procap/pipeline')['id']}"
    ask(shared, pipeline, "PATCH", work_pool_name="second")
    words = [str(services.BIN / "prefect"), "worker", "start", "--pool", "second", "--type", "process"]
    try:
        with services.program(words, environment(shared.env), log, lambda: "started" in log.read_text().lower()) as pid:
            run_id = start(shared, overrides=ENDLESS)
            until_it_trains(team, client)
            family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
            for process in family:
                process.send_signal(signal.SIGKILL)
            psutil.wait_procs(family, timeout=20)
        assert state(shared, run_id)["name"] == "Running", "nobody told the server"
        told = subprocess.run(
            [sys.executable, "-m", "flows.cli", "doctor", "--json"], cwd=team, env=environment(shared.env),
            capture_output=True, text=True,
        )  # fmt: skip
        findings = {one["what"]: one for one in json.loads(told.stdout)}
        assert not findings["prefect runs"]["well"]
        assert "caption@static" in findings["mlflow runs"]["seen"]
        run(team, "procap", "doctor", "--fix", more=shared.env)
        assert state(shared, run_id)["name"] == "Crashed"
    finally:
        ask(shared, pipeline, "PATCH", work_pool_name="gpu")
    assert ended(shared, start(shared, overrides=SHORT))["name"] == "Completed"


def test_of_two_colliding_runs_the_second_waits_for_the_first(team, shared, trained):
    first = start(shared, overrides=SHORT)
    until("first at work", lambda: state(shared, first)["name"] in ("Pending", "Running", "Completed"))
    second = start(shared, overrides=SHORT)
    states = set()

    def both() -> bool:
        now = [state(shared, one) for one in (first, second)]
        states.add(tuple(one["name"] for one in now))
        return all(one["final"] for one in now)

    until("end of both", both, 600)
    ends = [state(shared, one) for one in (first, second)]
    assert [one["name"] for one in ends] == ["Completed", "Completed"]
    assert ends[0]["end"] <= ends[1]["start"], "one after the other"
    assert ("Running", "Running") not in states


def test_the_prefect_server_may_be_restarted_in_the_middle_of_a_run(team, shared, trained, client):
    run_id = start(shared, overrides=LONGER)
    until_it_trains(team, client)
    with away(shared, "prefect"):
        time.sleep(5)
        assert working(team, "flows.stage caption"), "it trains on without the server"
    assert ended(shared, run_id)["name"] == "Completed"


@pytest.mark.parametrize("server", ["mlflow", "postgres"])
def test_the_mlflow_server_or_the_database_may_be_restarted_in_the_middle_of_a_run(
    team, shared, trained, client, server
):
    steps = {"mlflow": 700, "postgres": 800}[server]
    run_id = start(shared, overrides=LONGER | {"caption.steps": steps})
    until_it_trains(team, client)
    with away(shared, server):
        time.sleep(5)
        assert working(team, "flows.stage caption"), "it trains on without the server"
    assert ended(shared, run_id)["name"] == "Completed"
    finished = newest(client, "caption@static", "FINISHED")
    assert finished
    history = client.get_metric_history(finished.info.run_id, "val_CIDEr")
    assert [point.step for point in history] == [200, 400, 600, steps]


HOLDER = """
import sys
from types import SimpleNamespace
from flows import stage_flow
stage_flow._on_gpu = lambda device: True
with stage_flow.gpu_slot("caption", SimpleNamespace(hardware=SimpleNamespace(device="cuda"))):
    print("held", flush=True)
    if sys.argv[1] == "stay":
        sys.stdin.read()
"""


def test_a_gpu_slot_comes_back_after_a_kill_9(shared):
    words, env = [sys.executable, "-c", HOLDER], environment(shared.env | {"PYTHONPATH": str(Path.cwd())})
    first = subprocess.Popen([*words, "stay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
    assert first.stdout is not None
    assert first.stdout.readline().strip() == "held"
    second = subprocess.Popen([*words, "go"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, text=True)
    time.sleep(8)
    assert second.poll() is None, "one slot, and it is held"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert second.communicate(timeout=240)[0].strip() == "held"
    assert second.returncode == 0


ROW = """
import os, sys
from pathlib import Path
from procap.config import load_params
from flows.tracking import tracked
os.environ["PROCAP_REBUILD"] = sys.argv[1]
root = Path.cwd()
with tracked("sample", None, load_params(root / "params.yaml"), root, None) as tracker:
    for step in range(200):
        tracker.metrics({"loss": 1.0 / (step + 1)}, step)
        if step % 20 == 0:
            tracker.flush()
"""


def test_eight_processes_at_once_on_one_fresh_sqlite_store_lose_no_run(team, tmp_path):
    from mlflow import MlflowClient

    where = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ROW, f"row {number}"], cwd=team, env=environment(where), stderr=subprocess.PIPE
        )
        for number in range(8)
    ]
    for process in processes:
        told = process.communicate(timeout=600)[1].decode()
        assert process.returncode == 0, told
        assert "MLflow keeps nothing" not in told
    client = MlflowClient(where["MLFLOW_TRACKING_URI"])
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    steps = [run for run in runs if "procap.step" in run.data.tags]
    assert len(steps) == len(runs) - len(steps) == 8
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(len(client.get_metric_history(run.info.run_id, "loss")) == 200 for run in steps)


PROMOTER = """
import os, signal, sys
from pathlib import Path
from flows import promotion
from flows.store import connect
root, client = Path.cwd(), connect(Path.cwd())
before = promotion.standing(client, "deadly")
real = client.set_registered_model_alias
def dying(name, alias, version):
    if alias == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    real(name, alias, version)
client.set_registered_model_alias = dying
promotion.move(client, root, "deadly", before, promotion.Standing("2", "1"), {"action": "promote"})
"""


@pytest.mark.parametrize("at", ["previous", "champion"])
def test_a_promotion_killed_with_9_leaves_the_champion_on_the_server(team, shared, client, at):
    made = client.create_run(client.create_experiment(f"deadly at {at}")).info
    client.create_registered_model("deadly")
    try:
        for _ in range(2):
            client.create_model_version("deadly", f"{made.artifact_uri}/model", run_id=made.run_id)
        client.set_registered_model_alias("deadly", "champion", "1")
        died = subprocess.run([sys.executable, "-c", PROMOTER, at], cwd=team, env=environment(shared.env))
        assert died.returncode == -signal.SIGKILL
        assert client.get_registered_model("deadly").aliases["champion"] in (1, "1")
        told = run(team, "procap", "doctor", "--fix", more=shared.env)
        assert "version 1 serves as before" in told
        assert set(client.get_registered_model("deadly").aliases) == {"champion"}
    finally:
        client.delete_registered_model("deadly")


def test_a_key_of_the_store_that_expires_stops_the_push_and_nothing_else(shared, tmp_path):
    import urllib.request

    def unchecked(requests: str) -> None:
        """So many more requests are let through whatever their key."""
        asked = urllib.request.Request(
            f"{shared.s3}/moto-api/reset-auth", data=requests.encode(), headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(asked, timeout=60)

    folder = tmp_path / "data"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    run(folder, "dvc", "init", "-q")
    run(folder, "dvc", "remote", "add", "-d", "store", "s3://dvc/expiring")
    (folder / "file").write_text("content")
    run(folder, "dvc", "add", "file")
    unchecked("0")
    try:
        refused = subprocess.run(
            [str(services.BIN / "dvc"), "push"], cwd=folder, env=environment(shared.env), capture_output=True, text=True
        )
        assert refused.returncode != 0
        assert shared.env["AWS_SECRET_ACCESS_KEY"] not in refused.stdout + refused.stderr
        assert (folder / "file").read_text() == "content"
    finally:
        unchecked("inf")
    run(folder, "dvc", "push", more=shared.env)


def test_the_environment_is_clean_again(team, shared):
    until("end of all processes", lambda: not working(team), 60)
    assert os.environ.get("PREFECT_API_URL") != shared.prefect
