"""The real pipeline, small: it builds, does nothing twice, and says where everything came from."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.presets import apply_overrides
from tests.clone import IDENTITY, environment, lock_hashes, ran, read_json, run, sharing, without_java

pytestmark = pytest.mark.slow


def store(folder: Path):
    """Of runs and of models, whatever this process set for all."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    return MlflowClient(uri, registry_uri=uri)


def test_every_step_leaves_what_it_promises(built):
    for path in (
        "prepare/pairs.parquet", "prepare/vocabulary.json", "prepare/scenes.jsonl", "validate/report.json",
        "validate/docs", "sample/kept.npy", "tokenizer/vqgan.safetensors", "pretrain/encoder.safetensors",
        "caption/static/bundle/manifest.json", "caption/procap/bundle/manifest.json", "evaluate/procap/page.html",
    ):  # fmt: skip
        assert (built / "data" / path).exists(), path
    for captioner in ("static", "procap"):
        scores = read_json(built / "data" / "evaluate" / captioner / "metrics.json")
        expected = {"BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr"}
        assert expected <= set(scores) | set(scores["skipped"])
        assert 0 <= scores["change_accuracy"] <= 1
        assert 0 <= scores["change_type_accuracy"] <= 1
        assert scores["per_type"]
        assert not {name for name in scores["skipped"] if scores.get(name) == 0}, "what is skipped is no zero"


def test_each_captioner_is_registered_and_the_better_on_validation_is_the_challenger(built):
    client = store(built)
    versions = {v.tags["captioner"]: v for v in client.search_model_versions("name = 'procap'")}
    assert set(versions) == {"static", "procap"}
    cider = {name: read_json(built / "data" / "caption" / name / "metrics.json")["CIDEr"] for name in versions}
    challenger = client.get_model_version_by_alias("procap", "challenger").tags["captioner"]
    assert cider[challenger] == max(cider.values())
    for version in versions.values():
        assert version.tags["procap.verified"] == "true"
        assert {"git.commit", "dataset", "val.CIDEr", "test.change_accuracy"} <= set(version.tags)


def test_every_executed_step_is_a_run_that_says_where_it_came_from(built):
    from flows.lineage import outputs

    client = store(built)
    experiment = client.get_experiment_by_name("procap/rendered")
    runs = client.search_runs([experiment.experiment_id], "attributes.status = 'FINISHED'")
    steps = {run.info.run_name: run for run in runs if "procap.step" in run.data.tags}
    assert len(steps) == 12
    assert len({run.data.tags["mlflow.parentRunId"] for run in steps.values()}) == 1
    assert steps["tokenize"].data.tags["dvc.deps.interpolate/frames"] == outputs(built)["data/interpolate/frames"]
    assert steps["caption@procap"].data.params["caption.batch"] == "4"
    curve = client.get_metric_history(steps["caption@procap"].info.run_id, "val_CIDEr")
    assert [point.step for point in curve] == [12, 24]


def test_a_commit_leaves_a_clean_tree_and_finalize_finds_every_run(built):
    subprocess.run(["git", "add", "-A"], cwd=built, check=True)
    subprocess.run(["git", *IDENTITY, "commit", "-qm", "built"], cwd=built, check=True)
    kept = subprocess.run(["git", "ls-files", "data"], cwd=built, capture_output=True, text=True, check=True).stdout
    assert "data/evaluate/procap/metrics.json" in kept
    assert ".npy" not in kept
    assert ".safetensors" not in kept
    said = run(built, "procap", "finalize")
    assert len(said.splitlines()) == 12
    assert "no run here" not in said
    assert run(built, "procap", "doctor").count("none without a process") == 1
    assert "challenger" in run(built, "procap", "metrics")


def test_a_second_clone_pulls_what_was_pushed_to_a_folder_and_has_nothing_to_do(built, tmp_path):
    second = tmp_path / "second"
    subprocess.run(["git", "clone", "-q", str(built), str(second)], check=True)
    for folder in (built, second):
        run(folder, "dvc", "remote", "add", "--local", "--force", "-d", "near", str(tmp_path / "remote"))
    run(built, "dvc", "push")
    run(second, "dvc", "pull")
    assert not ran(run(second, "dvc", "repro"))
    assert lock_hashes(second) == lock_hashes(built)


def test_a_second_repro_does_nothing(built):
    assert not ran(run(built, "dvc", "repro"))


def test_a_parameter_of_caption_runs_again_what_follows_from_it(built, tmp_path):
    no_java = without_java(tmp_path, environment()["PATH"])
    params = built / "params.yaml"
    before = params.read_text()
    try:
        assert apply_overrides(params, {"caption.dropout": 0.2})
        assert set(ran(run(built, "dvc", "repro", more=no_java))) == {
            "caption@static", "caption@procap", "evaluate@static", "evaluate@procap", "register",
        }  # fmt: skip
    finally:
        params.write_text(before)
    again = ran(run(built, "dvc", "repro"))
    assert "register" in again, "back again: from the cache, and registered as the versions that exist"
    assert not {"caption@static", "caption@procap"} & set(again)
    assert len(read_json(built / "data" / "register" / "versions.json")) == 2
    client = store(built)
    assert len(client.search_model_versions("name = 'procap'")) == 4


def test_two_devices_share_the_batches_of_a_stage_and_give_its_numbers(built):
    params, metrics = built / "params.yaml", built / "data" / "pretrain" / "metrics.json"
    before, one = params.read_text(), read_json(metrics)
    try:
        params.write_text(re.sub(r"devices: 1\b", "devices: 2", before))
        assert ran(run(built, "dvc", "repro", "pretrain")) == ["pretrain"], "what comes before does not depend on it"
        assert read_json(metrics) == pytest.approx(one, rel=0.02, abs=0.02)
        client = store(built)
        experiment = client.get_experiment_by_name("procap/rendered")
        shared = client.search_runs([experiment.experiment_id], "tags.`procap.processes` = '2'")
        assert [found.info.status for found in shared] == ["FINISHED"], "the first process alone reports"
    finally:
        params.write_text(before)
    run(built, "dvc", "repro", "pretrain")
    assert read_json(metrics) == one


def test_a_corpus_that_fails_validation_stops_the_pipeline(built, tmp_path):
    folder = sharing(built, tmp_path / "bad")
    run(folder, "dvc", "repro", "prepare")
    import pandas as pd

    table = pd.read_parquet(folder / "data" / "prepare" / "pairs.parquet")
    table.loc[1, "id"] = table.loc[0, "id"]
    path = folder / "data" / "prepare" / "pairs.parquet"
    path.unlink()  # DVC's own files are read-only links
    table.to_parquet(path, index=False)
    done = subprocess.run(
        [sys.executable, "-m", "flows.stage", "validate"],
        cwd=folder, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert table.loc[0, "id"] in done.stderr
    assert "Traceback" not in done.stderr
    assert read_json(folder / "data" / "validate" / "report.json")["critical"] > 0, "written for whoever mends it"
