"""Who may import whom, and what importing costs. Each check is seen to fail on a planted fault."""

import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from procap.captioners import CAPTIONERS
from procap.steps import STEPS
from tests.architecture.watched import ROOT

FORBIDDEN = {"prefect", "mlflow", "dvc", "flows"}
HEAVY = {"torch", "pandas", "mlflow", "prefect", "dvc", "great_expectations", "numba", "matplotlib"}


def loaded_after(statement: str) -> set[str]:
    """Top-level modules a fresh interpreter holds after ``statement``."""
    code = f"{statement}; import sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_method_loads_no_mlops_tool():
    steps = "; ".join(f"import procap.steps.{step}" for step in STEPS)
    captioners = "; ".join(f"import {path.partition(':')[0]}" for path in CAPTIONERS.values())
    assert not loaded_after(f"{steps}; {captioners}") & FORBIDDEN


def test_the_check_above_can_fail():
    assert "flows" in loaded_after("import flows.tracking")


def test_the_command_starts_without_anything_heavy():
    assert not loaded_after("import flows.cli") & HEAVY
    before = os.times()
    done = subprocess.run([sys.executable, "-m", "flows.cli", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "doctor" in done.stdout
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 2, "about 0.5 s of computing, however busy the machine is"


@pytest.mark.parametrize("module", ["flows.stage", "flows.console", "flows.presets", "flows.lineage", "flows.store"])
def test_a_stage_pays_for_no_tool_before_it_needs_it(module):
    assert not loaded_after(f"import {module}") & HEAVY


def test_a_deployment_pays_for_prefect_alone_before_it_runs():
    assert loaded_after("import flows.pipeline, flows.deployed") & HEAVY == {"prefect"}


def lint(folder: Path) -> subprocess.CompletedProcess:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages and their contracts, to break."""
    folder = tmp_path_factory.mktemp("rings")
    for package in ("procap", "flows"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


def test_the_rings_hold(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout


PLANTED = {
    "an inner ring imports an outer one": ("procap/models/build.py", "from procap import training"),
    "siblings import each other": ("procap/training/loop.py", "from procap.evaluation import metrics"),
    "the method knows MLflow": ("procap/steps/prepare.py", "def late():\n    import mlflow"),
    "a captioner imports another": ("procap/captioners/procap.py", "from procap.captioners import static"),
    "a network reads settings": ("procap/models/build.py", "from procap import config"),
    "a module lies in no ring": ("procap/stray.py", '"""Nowhere."""'),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_each_contract_can_fail(copy, fault):
    path, line = copy / PLANTED[fault][0], PLANTED[fault][1]
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n")
    try:
        done = lint(copy)
        assert done.returncode != 0, done.stdout
        assert "BROKEN" in done.stdout or "stray" in done.stdout
    finally:
        path.unlink() if before is None else path.write_text(before)


def test_every_captioner_is_under_the_contract():
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    named = contracts["importlinter:contract:captioners"]["modules"].split()
    assert named == [path.partition(":")[0] for path in CAPTIONERS.values()]
