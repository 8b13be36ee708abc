"""Two rebuilds give the same bytes: whatever runs the steps, and whatever happens on the way."""

import subprocess
import sys
from importlib import import_module

import pytest

from flows.lineage import _md5
from procap.config import load_params
from procap.steps import PER_CAPTIONER, STEPS
from tests.clone import environment, lock_hashes, ran, run, sharing

pytestmark = pytest.mark.slow

DYING = """
import os, signal, sys
from flows.console import Terminal
from procap.training import loop

loop.STATE_SECONDS = loop.STATE_COST = 0.0
shown = Terminal.progress

def progress(self, items, what, total=None, done=0):
    for number, item in enumerate(shown(self, items, what, total, done)):
        if number == 22:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item

Terminal.progress = progress
from flows.stage import main
sys.exit(main(sys.argv[1:]))
"""
"""A stage that is killed after 22 updates, and keeps its state whenever it may."""


def test_another_rebuild_without_dvc_and_in_one_process_gives_the_same_bytes(built, first_hashes, tmp_path):
    params, data = load_params(built / "params.yaml"), tmp_path / "data"
    for step in STEPS[:-1]:
        run_step = import_module(f"procap.steps.{step}").run
        for options in [{"captioner": name} for name in params.captioners] if step in PER_CAPTIONER else [{}]:
            run_step(params, data, **options)
    assert {path: _md5(tmp_path / path) for path in first_hashes} == first_hashes


def test_killed_at_pretrain_and_caption_a_rebuild_gives_the_same_bytes(built, first_hashes, tmp_path):
    from mlflow import MlflowClient

    again = sharing(built, tmp_path / "again")
    assert not ran(run(again, "dvc", "repro", "tokenize")), "it lies in the cache"
    for stage, words in (("pretrain", ["pretrain"]), ("caption@procap", ["caption", "--captioner", "procap"])):
        more = {"PYTHONPATH": str(again)}
        died = subprocess.run([sys.executable, "-c", DYING, *words], cwd=again, env=environment(more), timeout=7200)
        assert died.returncode == -9
        said = run(again, "dvc", "repro", "--no-run-cache", stage)
        assert ran(said) == [stage]
        assert "continuing at update 22 of 24" in said
    hashes = lock_hashes(again)
    assert {"data/pretrain/encoder.safetensors", "data/caption/procap/bundle"} <= set(hashes)
    assert hashes == {path: first_hashes[path] for path in hashes}
    client = MlflowClient(f"sqlite:///{again / 'mlflow.db'}")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    for stage in ("pretrain", "caption@procap"):
        after, died = (run for run in runs if run.info.run_name == stage)
        assert (after.info.status, died.info.status) == ("FINISHED", "KILLED")
        assert after.data.tags["procap.resumed_from"] == died.info.run_id
