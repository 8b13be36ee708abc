"""Keeping the records straight: runs whose process is gone, and what only a commit can tell."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flows.lineage import git, git_facts, is_dead, outputs, read_yaml, stage_digest
from flows.store import connect, show_uri, tracking_uri
from procap.errors import BadInput

EXPERIMENTS = "procap/"
PACKAGES = ("dvc", "great-expectations", "mlflow", "numba", "numpy", "pandas", "prefect", "torch")
SPARE_GB = 5


@dataclass(frozen=True)
class Finding:
    """One line of ``procap doctor``: what was looked at, whether it is well, and what was seen."""

    what: str
    well: bool
    seen: str


def examine(root: Path, fix: bool) -> Iterator[Finding]:
    """Look at everything the pipeline leans on; with ``fix``, close runs whose process is gone."""
    yield Finding("python", True, f"{sys.version.split()[0]} in {sys.prefix}")
    for package in PACKAGES:
        try:
            yield Finding(package, True, version(package))
        except PackageNotFoundError:
            yield Finding(package, False, "not installed; run `make setup`")
    yield _java()
    commit = git(root, "rev-parse", "--short", "HEAD")
    dirty = git_facts(root).get("git.dirty") == "true"
    yield Finding(
        "git", commit is not None, f"{commit}{', dirty' if dirty else ''}" if commit else "no repository here"
    )
    yield _dvc(root)
    free = shutil.disk_usage(root).free / 2**30
    yield Finding("disk", free > SPARE_GB, f"{free:.0f} GB free")
    yield from _runs(root, fix)


def _java() -> Finding:
    try:
        told = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=True)
        return Finding("java", True, told.stderr.splitlines()[0])
    except (OSError, subprocess.SubprocessError, IndexError):
        return Finding("java", False, "not found: METEOR and SPICE will be skipped by name")


def _dvc(root: Path) -> Finding:
    stages = read_yaml(root / "dvc.yaml").get("stages", {})
    locked = read_yaml(root / "dvc.lock").get("stages", {})
    seen = f"{len(stages)} stages in dvc.yaml, {len(locked)} runs in dvc.lock"
    return Finding("pipeline", bool(stages), seen if stages else "no dvc.yaml here: run from the project's folder")


def _runs(root: Path, fix: bool) -> Iterator[Finding]:
    try:
        client = connect(root)
    except BadInput as complaint:
        yield Finding("mlflow store", False, f"{complaint.what}; {complaint.do}")
        return
    yield Finding("mlflow store", True, show_uri(tracking_uri(root)))
    orphans = list(orphaned_runs(client))
    for run in orphans if fix else ():
        client.set_terminated(run.info.run_id, "KILLED")
    names = ", ".join(run.info.run_name for run in orphans)
    if not orphans:
        yield Finding("mlflow runs", True, "none without a process")
    else:
        yield Finding("mlflow runs", fix, f"{'closed' if fix else 'without a process (--fix closes them)'}: {names}")


def orphaned_runs(client: Any) -> Iterator[Any]:
    """Runs that say RUNNING while their process, on this machine, is gone."""
    experiments = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENTS}%'")
    if experiments:
        ids = [experiment.experiment_id for experiment in experiments]
        for run in client.search_runs(ids, "attributes.status = 'RUNNING'", max_results=1000):
            if is_dead(run.data.tags):
                yield run


def finalize(root: Path) -> list[tuple[str, str | None]]:
    """Tag the runs that made the committed outputs with those outputs and the commit: (stage, run id) each.

    A stage whose run is not in this store (it was restored from a cache, say) has None.
    Raises BadInput where something is not committed.
    """
    commit = git(root, "rev-parse", "HEAD")
    changed = git(root, "status", "--porcelain")
    if commit is None or changed or not (root / "dvc.lock").exists():
        raise BadInput(
            "there is something that no commit holds" if changed else "there is no commit of a finished pipeline",
            where=str(root) + (f": {', '.join(line[3:] for line in changed.splitlines()[:5])}" if changed else ""),
            expected="a clean tree with dvc.lock in it",
            do="commit (`git add dvc.lock data && git commit`), then `procap finalize`",
        )
    client = connect(root)
    experiments = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENTS}%'")
    ids = [experiment.experiment_id for experiment in experiments]
    return [(name, _finalize_stage(client, ids, root, name, commit)) for name in read_yaml(root / "dvc.lock")["stages"]]


def _finalize_stage(client: Any, experiments: list[str], root: Path, name: str, commit: str) -> str | None:
    digest = stage_digest(root, name, locked=True)
    query = f"tags.`procap.stage` = '{digest}' and attributes.status = 'FINISHED'"
    runs = client.search_runs(experiments, query, max_results=1) if experiments else []
    if not runs:
        return None
    tags = {f"dvc.outs.{path.removeprefix('data/')}": md5 for path, md5 in outputs(root, name).items()}
    tags |= {"procap.commit": commit}
    parent = runs[0].data.tags.get("mlflow.parentRunId")
    for key, value in tags.items():
        client.set_tag(runs[0].info.run_id, key, value)
    if parent:
        client.set_tag(parent, "procap.commit", commit)
    return runs[0].info.run_id
