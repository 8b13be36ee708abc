"""A model from trigger to rollback, on the servers of a team: PostgreSQL, S3, MLflow and Prefect with passwords.

On a machine that cannot have them, the same on one Prefect server and an MLflow of sqlite. What comes before
``evaluate`` lies in the cache of ``built``; from there on the stages of the deployment run.
"""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.clone import environment, read_json
from tests.e2e import services
from tests.e2e.shared import aliases, ask, commit, ended, procap, start, story

pytestmark = pytest.mark.slow


def test_the_servers_let_nobody_in_without_a_password(shared, whole):
    places = (f"{shared.mlflow}/api/2.0/mlflow/experiments/search", f"{shared.prefect}/admin/version")
    for address in places:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address, timeout=900)


def test_a_deployment_triggered_from_the_command_line_runs_every_step_to_completion(completed, team):
    from procap.steps import STEPS

    assert completed["state"] == "Completed", "\n".join(completed["logs"][-40:])
    assert set(STEPS) <= set(completed["tasks"])
    assert "pictures: 2" in (team / "params.yaml").read_text()
    assert "# " in (team / "params.yaml").read_text(), "comments stay"
    versions = read_json(team / "data" / "register" / "versions.json")
    assert [one["captioner"] for one in versions] == ["procap"]


def test_the_model_is_registered_and_its_files_lie_in_s3(completed, team, shared, whole, client):
    assert aliases(client)["challenger"] == "1"
    objects = services.s3_client(shared.s3).list_objects_v2(Bucket="mlflow", MaxKeys=1000)["Contents"]
    keys = [one["Key"] for one in objects]
    for name in ("artifacts/bundle/manifest.json", "/model_card.md"):
        assert sum(key.endswith(name) for key in keys) == 1
    assert not (team / "mlflow.db").exists()
    assert not (team / "mlartifacts").exists()


def test_stages_are_flow_runs_tagged_with_the_pipelines_run(completed):
    assert set(completed["children"]) == {"evaluate@procap", "register"}, "the others are cached"


def test_the_pipelines_run_and_those_of_its_stages_tell_their_process(completed):
    assert len(completed["labels"]) == 3
    assert all("procap.pid" in labels for labels in completed["labels"])


def test_lines_of_the_steps_reach_the_runs_log_and_results_its_page(completed):
    assert any("Running stage 'evaluate@procap'" in line for line in completed["logs"])
    assert any(line.startswith("evaluate@procap: ") for line in completed["logs"])
    assert {"scores", "mlflow-run", "progress-evaluate"} <= set(completed["artifacts"])


def test_mlflow_has_one_parent_for_the_whole_rebuild(completed, client):
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    parents = {run.data.tags["mlflow.parentRunId"] for run in runs if "procap.step" in run.data.tags}
    assert len(parents) == 1
    assert client.get_run(parents.pop()).data.tags["procap.rebuild"] == completed["id"]
    assert all("prefect.flow_run_id" in run.data.tags for run in runs if "procap.step" in run.data.tags)


def test_bad_input_fails_at_once_and_is_not_tried_again(completed, shared):
    told = story(shared, start(shared, overrides={"caption.stepz": 2}))
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


def test_a_run_whose_process_was_killed_is_found_and_closed_and_no_other(team, shared):
    with_code = environment(shared.env | {"PYTHONPATH": str(team)})
    died = subprocess.run([sys.executable, "-c", LOST], cwd=team, env=with_code)
    assert died.returncode == -signal.SIGKILL
    told = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=team, env=with_code, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines()[-1] == "FOUND ['lost'] []"


def test_a_second_run_up_to_a_step_does_nothing(completed, shared):
    told = story(shared, start(shared, targets=["validate"]))
    assert told["state"] == "Completed"
    assert told["tasks"] == dict.fromkeys(("prepare", "validate"), "Completed")
    assert not any("Running stage" in line for line in told["logs"])


@pytest.fixture(scope="module")
def promoted(completed, team, shared) -> dict[str, str]:
    """What was said when the challenger was to be promoted, before and after its parameters were committed."""
    refused = procap(team, shared, "promote", status=1)
    commit(team, "Built")
    procap(team, shared, "finalize")
    return {"refused": refused, "promoted": ended(shared, start(shared, "promote/promote"))["name"]}


def test_it_is_promoted_by_deployment_beaten_and_rolled_back(promoted, team, shared, client):
    assert "NO   commit" in promoted["refused"], "what was changed by the override is in no commit yet"
    assert promoted["promoted"] == "Completed"
    first, second = "1", str(client.copy_model_version("models:/procap/1", "procap").version)
    assert aliases(client) == {"challenger": first, "champion": first}
    said = procap(team, shared, "promote", "--from", second, "--margin", "-1000")
    assert f"version {second} serves now" in said
    assert aliases(client) == {"challenger": first, "champion": second, "previous": first}
    assert f"version {first} serves again" in procap(team, shared, "rollback")
    assert aliases(client) == {"challenger": first, "champion": first, "previous": second}
    log = [json.loads(line) for line in (team / "data" / "promotions.jsonl").read_text().splitlines()]
    assert [line["action"] for line in log] == ["refuse", "promote", "promote", "rollback"]


def test_the_champion_can_be_made_again_with_the_same_bytes(promoted, team, shared):
    assert "git worktree add" in procap(team, shared, "lineage", "models:/procap@champion")
    same = procap(team, shared, "lineage", "models:/procap@champion", "--verify")
    assert "is cached" in same
    assert "Running stage" not in same, "all of it is taken from DVC's cache"
    assert "DIFFERS" not in same
    assert re.search(r"^same .* bundle$", same, re.MULTILINE)


def test_no_secret_is_in_git_logs_parameters_or_mlflow(promoted, team, shared, whole, client):
    secrets = [value.rpartition(":")[2] for key, value in services.SECRETS.items()
               if key not in ("MLFLOW_TRACKING_USERNAME", "AWS_ACCESS_KEY_ID")]  # fmt: skip
    everything = subprocess.run(["git", "log", "-p", "--all"], cwd=team, capture_output=True, check=True).stdout
    texts = {"git": everything.decode("utf-8", "replace")}
    for log in (*shared.folder.rglob("*.log"), *(team / ".procap").rglob("*.log")):
        texts[str(log)] = log.read_text(errors="replace")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()], max_results=1000)
    texts["mlflow"] = json.dumps([run.to_dictionary() for run in runs])
    texts["versions"] = json.dumps([dict(version) for version in client.search_model_versions()], default=str)
    for what in ("flow_runs", "deployments", "logs"):
        texts[what] = json.dumps(ask(shared, f"{what}/filter", limit=200))
    found = [(where, secret) for where, text in texts.items() for secret in secrets if secret in text]
    assert not found
    assert {"s3.log", "mlflow.log", "prefect.log", "worker.log"} <= {Path(where).name for where in texts}
    assert all(len(texts[what]) > 1000 for what in ("git", "mlflow", "versions", "flow_runs", "deployments", "logs"))
