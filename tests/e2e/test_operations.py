"""What a team shares, whole: PostgreSQL, S3, MLflow and Prefect with passwords; a model from trigger to rollback.

`make e2e` runs it; it needs the extras of the project's `e2e` and PostgreSQL's programs.
"""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.clone import environment, lock_hashes, run
from tests.e2e import services
from tests.e2e.shared import commit, trigger

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def trained(team, shared, team_worker) -> str:
    return trigger(team, shared, "procap/pipeline")


@pytest.fixture
def client(shared, monkeypatch):
    from mlflow import MlflowClient

    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, shared.env[name])
    return MlflowClient(shared.mlflow)


def aliases(client) -> dict[str, str]:
    return {name: str(number) for name, number in client.get_registered_model("procap").aliases.items()}


def test_the_servers_let_nobody_in_without_a_password(shared):
    places = (f"{shared.mlflow}/api/2.0/mlflow/experiments/search", f"{shared.prefect}/admin/version")
    for address in places:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address, timeout=10)


def test_a_deployment_triggered_from_the_command_line_ends_well_and_registers_in_s3(trained, team, shared, client):
    assert "Completed" in trained
    assert "challenger" in aliases(client)
    objects = services.s3_client(shared.s3).list_objects_v2(Bucket="mlflow", MaxKeys=1000)["Contents"]
    keys = [one["Key"] for one in objects]
    assert sum(key.endswith("artifacts/bundle/manifest.json") for key in keys) == 1
    assert sum(key.endswith("/model_card.md") for key in keys) == 1
    assert not (team / "mlflow.db").exists()


def test_it_is_promoted_by_deployment_beaten_and_rolled_back(trained, team, shared, team_worker, client):
    commit(team, "Built")
    assert "Completed" in trigger(team, shared, "promote/promote")
    first = aliases(client)["champion"]
    trigger(team, shared, "procap/pipeline", overrides={"caption.label_smoothing": 0.1})
    assert aliases(client)["challenger"] != first
    refused = subprocess.run(
        [sys.executable, "-m", "flows.cli", "promote", "--margin", "-1000"],
        cwd=team, env=environment(shared.env), capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "NO   commit" in refused.stdout, "what was changed by the override is in no commit yet"
    commit(team, "Smoother labels")
    run(team, "procap", "finalize", more=shared.env)
    said = run(team, "procap", "promote", "--margin", "-1000", more=shared.env)
    second = aliases(client)["champion"]
    assert f"version {second} serves now" in said
    assert (second, aliases(client)["previous"]) == (aliases(client)["challenger"], first)
    assert f"version {first} serves again" in run(team, "procap", "rollback", more=shared.env)
    assert (aliases(client)["champion"], aliases(client)["previous"]) == (first, second)
    log = [json.loads(line) for line in (team / "data" / "promotions.jsonl").read_text().splitlines()]
    assert [line["action"] for line in log] == ["promote", "refuse", "promote", "rollback"]


def test_the_champion_can_be_made_again_with_the_same_bytes(trained, team, shared, client):
    told = run(team, "procap", "lineage", "models:/procap@champion", more=shared.env)
    assert "git worktree add" in told
    same = run(team, "procap", "lineage", "models:/procap@champion", "--verify", more=shared.env)
    assert "DIFFERS" not in same
    assert re.search(r"^same .* bundle$", same, re.MULTILINE)


def test_a_second_clone_pulls_what_the_first_pushed_and_has_nothing_to_do(trained, team, shared, tmp_path):
    run(team, "dvc", "push", more=shared.env)
    commit_if_needed(team)
    subprocess.run(["git", "clone", "-q", str(team), str(tmp_path / "second")], check=True)
    second = tmp_path / "second"
    without = {key: value for key, value in shared.env.items() if not key.startswith("PREFECT")}
    run(second, "dvc", "pull", more=without)
    said = run(second, "dvc", "repro", more=without)
    assert "Running stage" not in said
    assert lock_hashes(second) == lock_hashes(team)


def commit_if_needed(folder: Path) -> None:
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True)
    if changed.stdout.strip():
        commit(folder, "As it is")


def test_no_secret_is_in_git_logs_parameters_or_mlflow(trained, team, shared, client):
    secrets = [value.rpartition(":")[2] for key, value in services.SECRETS.items()
               if key not in ("MLFLOW_TRACKING_USERNAME", "AWS_ACCESS_KEY_ID")]  # fmt: skip
    everything = subprocess.run(["git", "log", "-p", "--all"], cwd=team, capture_output=True, check=True).stdout
    texts = {"git": everything.decode("utf-8", "replace")}
    for log in (*shared.folder.glob("*.log"), *(team / ".procap").rglob("*.log")):
        texts[str(log)] = log.read_text(errors="replace")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()], max_results=1000)
    texts["mlflow"] = json.dumps([run.to_dictionary() for run in runs])
    texts["versions"] = json.dumps([dict(version) for version in client.search_model_versions()], default=str)
    code = """
import json
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    told = [run.model_dump(mode="json") for run in client.read_flow_runs()]
    told += [one.model_dump(mode="json") for one in client.read_deployments()]
    told += [line.message for line in client.read_logs(None, limit=200)]
print(json.dumps(told))
"""
    texts["prefect"] = subprocess.run(
        [sys.executable, "-c", code], env=environment(shared.env), capture_output=True, text=True, check=True
    ).stdout
    found = [(where, secret) for where, text in texts.items() for secret in secrets if secret in text]
    assert not found
    assert all(len(text) > 10 for text in (texts["git"], texts["mlflow"], texts["prefect"])), "something was looked at"


def test_the_doctor_finds_all_of_it_well(trained, team, shared):
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
