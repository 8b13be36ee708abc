"""What tests of the shared servers do with them."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tests.clone import IDENTITY, environment, run


@dataclass(frozen=True)
class Shared:
    """The addresses of everything, and the environment of a user or worker that may use it."""

    folder: Path
    mlflow: str
    prefect: str
    s3: str
    env: dict[str, str]
    restart: dict[str, Any]
    """Stops and starts ``postgres``, ``mlflow`` or ``prefect`` at the same port."""
    lacks: str = ""
    """Why there are neither PostgreSQL nor S3 nor passwords; MLflow is a file of sqlite then."""


def commit(folder: Path, why: str) -> None:
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", *IDENTITY, "commit", "--allow-empty", "-qm", why], cwd=folder, check=True)


def procap(workspace: Path, shared: Shared, *words: str, status: int = 0) -> str:
    """What a command prints; in this process, for its start would take longer than what it does."""
    from typer.testing import CliRunner

    from flows.cli import app

    env = environment(shared.env)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        for name in os.environ.keys() - env.keys():
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.output


def aliases(client: Any) -> dict[str, str]:
    """{alias: version} of the registered model."""
    return {name: str(number) for name, number in client.get_registered_model("procap").aliases.items()}


def until(what: str, true: Callable[[], Any], seconds: float = 1800) -> Any:
    """The first of its answers that counts."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"no {what} after {seconds} s"
        time.sleep(0.5)
    return found


def trigger(workspace: Path, shared: Shared, deployment: str, **parameters: Any) -> str:
    """From the command line; the run's id."""
    given = [word for key, value in parameters.items() for word in ("-p", f"{key}={json.dumps(value)}")]
    said = run(workspace, "prefect", "deployment", "run", deployment, *given, more=shared.env)
    found = re.search(r"UUID: (\S+)", said)
    assert found, said
    return found[1]


def start(shared: Shared, deployment: str = "procap/pipeline", **parameters: Any) -> str:
    """As the web interface does it; the run's id."""
    there = ask(shared, f"deployments/name/{deployment}")
    return ask(shared, f"deployments/{there['id']}/create_flow_run", parameters=parameters)["id"]


def state(shared: Shared, run_id: str) -> dict[str, Any]:
    """Of a flow run: name, whether it is final, start and end."""
    found = ask(shared, f"flow_runs/{run_id}")
    kind = found["state"]["type"]
    return {"name": found["state"]["name"], "final": kind in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"),
            "start": found["start_time"], "end": found["end_time"]}  # fmt: skip


def ended(shared: Shared, run_id: str, seconds: float = 7200) -> dict[str, Any]:
    return until("end of the run", lambda: (now := state(shared, run_id))["final"] and now, seconds)


def ask(shared: Shared, path: str, method: str | None = None, **body: Any) -> Any:
    """What Prefect's server answers: to GET without a body, else to POST, or as ``method`` says."""
    name, _, password = shared.env.get("PREFECT_API_AUTH_STRING", "").partition(":")
    with requests.Session() as session:
        busy = Retry(10, backoff_factor=1, status_forcelist=(429, 502, 503), allowed_methods=None)
        session.mount("http://", HTTPAdapter(max_retries=busy))
        done = session.request(
            method or ("POST" if body else "GET"), f"{shared.prefect}/{path}", json=body or None,
            auth=(name, password) if name else None, timeout=900,
        )  # fmt: skip
    assert done.ok, f"{path}: {done.status_code} {done.text[:2000]}"
    return done.json() if done.content else None


def story(shared: Shared, run_id: str) -> dict[str, Any]:
    """What is kept of a run and its stages' runs (``children``) when it is over; the last of it is sent late."""
    told: dict[str, Any] = {"state": ended(shared, run_id)["name"], "id": run_id}
    end = time.monotonic() + 300
    while time.monotonic() < end:
        before = dict(told)
        told["logs"], finished = _log(shared, run_id)
        tasks = ask(shared, "task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        told["tasks"] = {one["name"]: one["state"]["name"] for one in tasks}
        if finished and told == before and not {"Running", "Pending"} & set(told["tasks"].values()):
            break
        time.sleep(2)
    children = ask(shared, "flow_runs/filter", flow_runs={"tags": {"all_": [f"pipeline:{run_id}"]}})
    runs = [ask(shared, f"flow_runs/{run_id}"), *children]
    asked = {"flow_run_id": {"any_": [one["id"] for one in runs]}}
    artifacts = ask(shared, "artifacts/filter", artifacts=asked)
    return told | {
        "children": [one["name"] for one in children],
        "labels": [one["labels"] for one in runs],
        "artifacts": [one["key"] for one in artifacts],
    }


def _log(shared: Shared, run_id: str) -> tuple[list[str], bool]:
    """All lines of a run and its tasks so far, and whether the run's own last one is among them."""
    lines: list[dict[str, str]] = []
    while page := ask(
        shared, "logs/filter", logs={"flow_run_id": {"any_": [run_id]}}, sort="TIMESTAMP_ASC",
        limit=200, offset=len(lines),
    ):  # fmt: skip
        lines += page
    last = any(one["name"] == "prefect.flow_runs" and one["message"].startswith("Finished in state") for one in lines)
    return [one["message"] for one in lines], last
