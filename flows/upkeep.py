"""Keeping the records straight: runs whose process is gone, and what only a commit can tell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.lineage import git, is_dead, outputs, read_yaml, stage_digest
from flows.store import answering, connect
from procap.errors import BadInput

EXPERIMENTS = "procap/"


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

    Registered versions get the commit too, where the committed code and parameters are those that made them.
    A stage whose run is not in this store (it was restored from a cache, say) has None.
    Raises BadInput where something is not committed.
    """
    commit = git(root, "rev-parse", "HEAD")
    changed = git(root, "status", "--porcelain")
    if commit is None or changed or not (root / "dvc.lock").exists():
        names = [line.split(maxsplit=1)[-1] for line in (changed or "").splitlines()]
        raise BadInput(
            "there is something that no commit holds" if changed else "there is no commit of a finished pipeline",
            where=str(root) + (f": {', '.join(names[:5])}" if names else ""),
            expected="a clean tree with dvc.lock in it",
            do="commit (`git add dvc.lock data && git commit`), then `procap finalize`",
        )
    stages = list(read_yaml(root / "dvc.lock").get("stages") or ())
    client = connect(root)
    with answering(root):
        experiments = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENTS}%'")
        ids = [experiment.experiment_id for experiment in experiments]
        if all(stage_digest(root, name) == stage_digest(root, name, locked=True) for name in _of_now(root, stages)):
            _finalize_versions(client, root, commit)
        return [(name, _finalize_stage(client, ids, root, name, commit)) for name in stages]


def _of_now(root: Path, stages: list[str]) -> list[str]:
    """Without those of captioners that params.yaml no longer names, which DVC keeps in its lock as they were."""
    captioners = read_yaml(root / "params.yaml").get("captioners", ())
    return [name for name in stages if "@" not in name or name.partition("@")[2] in captioners]


def _finalize_versions(client: Any, root: Path, commit: str) -> None:
    from flows.registry import find_version
    from flows.results import read_versions

    for one in read_versions(root):
        if found := find_version(client, one["name"], one["digest"]):
            client.set_model_version_tag(one["name"], found.version, "procap.commit", commit)


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
