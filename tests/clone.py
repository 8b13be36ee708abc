"""Copies of this project to run the real pipeline in, with nothing of its results.

A stage costs seconds of start-up, whatever it does. ``built`` (tests/conftest.py) is there for all; who needs
results of one's own lets ``sharing`` take them from its cache, up to the stage that the test is about.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@example.org")


def clone(folder: Path, preset: str | None = "smoke") -> Path:
    """Copy what git knows or would know, commit it, and write the preset. Compiled kernels come along."""
    _compile_kernels()
    known = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, known.split("\0")):
        if (ROOT / name).exists() and name != "dvc.lock" and not _made(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)  # numba asks for the times of its sources
    for kernel in (ROOT / "procap").rglob("__pycache__/*.nb[ci]"):
        (folder / kernel.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy2(kernel, folder / kernel.relative_to(ROOT))
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "copy"]):
        subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True)
    if preset:
        run(folder, "procap", "preset", preset)
    return folder


def sharing(built: Path, folder: Path) -> Path:
    """A clone with the parameters and DVC's cache of another: what was run there is taken from the cache here."""
    clone(folder, preset=None)
    shutil.copy(built / "params.yaml", folder)
    (folder / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {built / '.dvc' / 'cache'}\n")
    return folder


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` filled, the same for all workers of pytest-xdist: who comes first makes it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            done.touch()
    return folder


def _compile_kernels() -> None:
    """Draw a scene here, which takes seconds in every folder where it was not done before."""
    from flows.store import workspace_lock
    from procap.datasets.rendered import render_scene
    from procap.steps.prepare import corpus_settings
    from tests.steps import tiny_params

    with workspace_lock(ROOT, "kernels"):
        render_scene(corpus_settings(tiny_params()), 0)


def _made(name: str) -> bool:
    return name.startswith("data/") and not name.startswith("data/raw/")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user in a shell with the virtual environment and no servers."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "MLFLOW", "PROCAP", "DVC"))}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{kept['PATH']}", "DVC_NO_ANALYTICS": "1", **(more or {})}


def without_java(folder: Path, path: str) -> dict[str, str]:
    """The environment in which METEOR is skipped, which would take longer than all the rest."""
    (folder / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "java").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{path}"}


def run(folder: Path, *words: str, more: Mapping[str, str] | None = None, timeout: float = 7200) -> str:
    """Run a command in the clone and return what it printed; its words are in the error if it fails."""
    program = [sys.executable, "-m", "flows.cli"] if words[0] == "procap" else [str(BIN / words[0])]
    done = subprocess.run(
        [*program, *words[1:]], cwd=folder, env=environment(more), timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def ran(output: str) -> list[str]:
    """The stages that ``dvc repro`` says it ran."""
    return re.findall(r"Running stage '([^']+)'", output)


def lock_hashes(folder: Path) -> dict[str, str]:
    """{path: md5} of all outputs in dvc.lock but the registration's, which depends on the registry."""
    from flows.lineage import outputs

    return {path: md5 for path, md5 in outputs(folder).items() if not path.startswith("data/register/")}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
