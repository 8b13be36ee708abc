"""The whole pipeline as a Prefect flow: a task per step, each of which lets DVC decide.

deployment -> pipeline -> dvc repro --single-item <step> -> python -m flows.stage <step>
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, runtime, task
from prefect.cache_policies import NO_CACHE

from flows import locks
from flows.presets import apply_overrides
from flows.process import child_environment, mark_process, stream
from flows.results import SHOWN, read_scores
from flows.stage import ON_ACCELERATOR
from flows.store import AWAY, connect, show_uri, tracking_uri, workspace_lock
from flows.watching import watch
from procap.config import load_params
from procap.errors import BadInput
from procap.steps import STEPS

TRANSIENT = (
    "Unable to acquire lock",
    "is busy, it is being blocked",
    "JSON structure is corrupted",  # of DVC's locks, which are cleared before each try
    "CUDA error: unspecified launch failure",
    "NCCL error",
    "Connection reset by peer",
    AWAY,
    "Temporary failure in name resolution",
)
"""What in a failed step's words says that a second try may do better. Bad input never does."""


class StepFailed(RuntimeError):
    """``dvc repro`` ended badly; ``transient`` says whether trying again may help."""

    def __init__(self, step: str, status: int, tail: Sequence[str]) -> None:
        text = "\n".join(tail)
        self.transient = "exited with 2" not in text and any(sign in text for sign in TRANSIENT)
        super().__init__(f"step '{step}' failed, dvc ended with {status}; its last words:\n{text}")


def _may_help(_task: Any, _run: Any, state: Any) -> bool:
    """Whether to try a task again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StepFailed) and error.transient


@task(
    task_run_name="{step}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[10, 60],
    retry_condition_fn=_may_help,
)
def reproduce(step: str) -> None:
    """Let DVC decide whether ``step`` is stale, and run it if so."""
    if found := locks.clear(Path.cwd()):
        get_run_logger().info("DVC's locks cleared: %s", found)
    words = [sys.executable, "-m", "dvc", "repro", "--single-item", step]
    status, tail = stream(words, child_environment(str(runtime.flow_run.id)), get_run_logger().info)
    if status:
        raise StepFailed(step, status, tail)


@flow(name="procap", persist_result=False, on_running=[mark_process])
def pipeline(targets: list[str] | None = None, overrides: dict[str, Any] | None = None) -> None:
    """Bring the pipeline up to date.

    ``targets`` names the steps that are wanted; those before them come along. All, if it is empty.
    ``overrides`` are written into params.yaml first: ``{"caption.steps": 200}``.
    """
    root = Path.cwd()
    refuse_inside_a_stage(os.environ)
    steps_for(targets or ())
    with alone(root):
        if overrides:
            changed = apply_overrides(root / "params.yaml", overrides)
            get_run_logger().info("params.yaml: changed %s", ", ".join(changed) or "nothing")
        steps_to_date(targets or ())
        _show_results(root, str(runtime.flow_run.id))


def steps_to_date(targets: Sequence[str]) -> None:
    """A task per wanted step, one after the other, in the current folder."""
    root = Path.cwd()
    watch(root, load_params(root / "params.yaml").model_dump(by_alias=True))
    for step in steps_for(targets):
        reproduce.with_options(tags={"gpu"} if step in ON_ACCELERATOR else set())(step)


def refuse_inside_a_stage(environment: Mapping[str, str]) -> None:
    """DVC must not start the pipeline that starts DVC."""
    if stage := environment.get("DVC_STAGE"):
        raise BadInput(
            "the pipeline cannot run inside one of its own stages",
            where=f"DVC_STAGE={stage}",
            expected="to be started from outside",
            do="call `python -m flows.stage <step>` in dvc.yaml, never the pipeline",
        )


def steps_for(targets: Sequence[str]) -> tuple[str, ...]:
    """The wanted steps and those before them, in order."""
    unknown = [target for target in targets if target not in STEPS]
    if unknown:
        raise BadInput(
            f"no step '{unknown[0]}'", where="targets", expected="names out of " + ", ".join(STEPS), do="mend targets"
        )
    return STEPS[: max(map(STEPS.index, targets), default=len(STEPS) - 1) + 1]


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the workspace; BadInput if another pipeline has it."""
    try:
        with workspace_lock(root, "pipeline", timeout=0):
            yield
    except TimeoutError:
        raise BadInput(
            "another pipeline runs in this workspace",
            where=str(root),
            expected="one at a time",
            do="wait for it, or use another git worktree that shares the cache",
        ) from None


def _show_results(root: Path, flow_run: str) -> None:
    """The scores as a table, and a link to the MLflow run of this rebuild, on the flow run's page."""
    from prefect.artifacts import create_link_artifact, create_table_artifact

    if scores := read_scores(root):
        rows = [{"captioner": name} | {key: of[key] for key in SHOWN if key in of} for name, of in scores.items()]
        create_table_artifact(rows, key="scores")
    client = connect(root)
    for experiment in client.search_experiments(filter_string="name LIKE 'procap/%'"):
        query = f"tags.`procap.rebuild` = '{flow_run}'"
        for run in client.search_runs([experiment.experiment_id], query, max_results=1):
            uri = tracking_uri(root)
            server = show_uri(uri).rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"
            link = f"{server}/#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}"
            create_link_artifact(link, link_text=run.info.run_name, key="mlflow-run")


if __name__ == "__main__":
    pipeline()
