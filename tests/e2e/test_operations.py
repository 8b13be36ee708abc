"""What else a team does with its servers: a rebuild, a second clone, the doctor. `make e2e` runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clone import environment, lock_hashes, run
from tests.e2e.shared import Shared, aliases, ask, commit, ended, trigger

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("whole")]
ANYTHING = ("promote", "--margin", "-1000")


def test_deploying_again_changes_nothing(team, shared, team_worker):
    def deployed() -> dict[str, tuple]:
        found = ask(shared, "deployments/filter", limit=200)
        return {one["id"]: tuple(one[key] for key in ("name", "entrypoint", "parameters", "tags")) for one in found}

    before = deployed()
    run(team, "procap", "deploy", more=shared.env)
    assert deployed() == before
    assert len(before) == 5


@pytest.fixture(scope="module")
def built_anew(team, shared, team_worker) -> None:
    """A model of parameters that no other test leaves, committed, whatever state the workspace was in before.

    Runs that others have killed are closed.
    """
    run(team, "procap", "doctor", "--fix", more=shared.env)
    sizes = {"caption.steps": 24, "caption.validate_every": 12, "evaluate.pictures": 3}
    run_id = trigger(team, shared, "procap/pipeline", overrides={"captioners": ["static", "procap"], **sizes})
    assert ended(shared, run_id)["name"] == "Completed"
    committed(team, shared)


def test_the_model_of_a_rebuild_with_another_parameter_is_promoted_and_rolled_back(built_anew, team, shared, client):
    run(team, "procap", *ANYTHING, more=shared.env)
    first = aliases(client)["champion"]
    run_id = trigger(team, shared, "procap/pipeline", overrides={"caption.label_smoothing": 0.1})
    assert ended(shared, run_id)["name"] == "Completed"
    second = aliases(client)["challenger"]
    assert second != first
    committed(team, shared)
    assert f"version {second} serves now" in run(team, "procap", *ANYTHING, more=shared.env)
    assert (aliases(client)["champion"], aliases(client)["previous"]) == (second, first)
    assert f"version {first} serves again" in run(team, "procap", "rollback", more=shared.env)
    assert (aliases(client)["champion"], aliases(client)["previous"]) == (first, second)


def committed(team: Path, shared: Shared) -> None:
    commit(team, "Built")
    run(team, "procap", "finalize", more=shared.env)


@pytest.fixture(scope="module")
def remote(built_anew, team) -> None:
    """The workspace's data go to the S3 server."""
    run(team, "dvc", "remote", "add", "-d", "store", "s3://dvc/procap")
    commit(team, "Where the data are")


def test_a_second_clone_pulls_what_the_first_pushed_and_has_nothing_to_do(remote, team, shared, tmp_path):
    run(team, "dvc", "push", more=shared.env)
    subprocess.run(["git", "clone", "-q", str(team), str(tmp_path / "second")], check=True)
    second = tmp_path / "second"
    without = {key: value for key, value in shared.env.items() if not key.startswith("PREFECT")}
    run(second, "dvc", "pull", more=without)
    said = run(second, "dvc", "repro", more=without)
    assert "Running stage" not in said
    assert lock_hashes(second) == lock_hashes(team)


def test_the_doctor_finds_all_of_it_well(remote, team, shared):
    told = run(team, "procap", "doctor", "--json", more=shared.env)
    findings = {one["what"]: one for one in json.loads(told)}
    assert all(findings[what]["well"] for what in ("mlflow store", "mlflow runs", "prefect server", "remote store"))
    others = {"PREFECT_API_AUTH_STRING": "procap:another", "MLFLOW_TRACKING_PASSWORD": "another"}
    wrong = environment(shared.env | others)
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "doctor"], cwd=team, env=wrong, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert re.search(r"^LOOK mlflow store", done.stdout, re.MULTILINE)
    assert re.search(r"^LOOK prefect", done.stdout, re.MULTILINE)
    assert "Traceback" not in done.stderr
