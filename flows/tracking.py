"""A step's life as an MLflow run: a parent per rebuild, a child per executed step."""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flows.lineage import (
    declaration,
    git_facts,
    inputs,
    is_dead,
    process_facts,
    rebuild_key,
    stage_digest,
    stage_name,
)
from flows.store import connect, experiment_id, workspace_lock
from procap.config import Params
from procap.report import Silent

T = TypeVar("T")

FLUSH_SECONDS = 10.0
FLUSH_STEPS = 50
"""Numbers of a training are sent for so many updates together, ..."""
LONGEST_SECONDS = 300.0
"""... unless they are slower than this."""
PAUSE_SECONDS = 60.0
"""After a failure MLflow is left alone for so long."""
BUFFER = 10_000
LONGEST_PARAM, LONGEST_TAG = 6000, 8000


class Stopped(BaseException):
    """A signal asks this process to end; ``signal`` is its number."""

    def __init__(self, signal: int) -> None:
        self.signal = signal
        super().__init__(f"signal {signal}")


class Tracker(Silent):
    """Keeps what a step says in its run. Once the run exists, a failing store costs a warning, never the step."""

    def __init__(self, client: Any, run_id: str, root: Path, params: Params) -> None:
        self.client, self.run_id, self.root, self.params = client, run_id, root, params
        self.waiting: list[Any] = []
        self.notes: list[str] = []
        self.flushed = time.monotonic()
        self.paused_until = 0.0
        self.warned = False

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.waiting += [Metric(_clean(name), float(value), now, step or 0) for name, value in values.items()]
        if self._due(step):
            self.flush()

    def _due(self, step: int | None) -> bool:
        waited = time.monotonic() - self.flushed
        if step is not None and self.waiting and step - self.waiting[0].step < FLUSH_STEPS:
            return waited > LONGEST_SECONDS
        return waited > FLUSH_SECONDS

    def flush(self) -> None:
        """Send the numbers that wait."""
        self.flushed = time.monotonic()
        while self.waiting and self.safely(lambda: self.client.log_batch(self.run_id, metrics=self.waiting[:1000])):
            del self.waiting[:1000]
        del self.waiting[:-BUFFER]

    def picture(self, name: str, image: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(name).name
            image.savefig(path) if hasattr(image, "savefig") else image.save(path)
            self.safely(lambda: self.client.log_artifact(self.run_id, str(path), "pictures"))

    def artifact(self, path: Path) -> None:
        if path.is_dir():
            self.safely(lambda: self.client.log_artifacts(self.run_id, str(path), path.name))
        else:
            self.safely(lambda: self.client.log_artifact(self.run_id, str(path)))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, items: Iterable[T], what: str, total: int | None = None, done: int = 0) -> Iterator[T]:
        yield from items

    def model(self, bundle: Path, tags: Mapping[str, str], alias: str | None) -> dict[str, Any] | None:
        from flows.evidence import Facts, collect, temporary_folder
        from flows.registry import register
        from procap.training.bundle import bundle_digest

        name, captioner = self.params.register_.name, tags["captioner"]
        values = self.params.model_dump(mode="json", by_alias=True)
        facts = git_facts(self.root) | {"dataset": self.params.dataset.name} | dict(tags)
        with temporary_folder() as folder:
            evidence = collect(self.root, Facts(name, captioner, bundle_digest(bundle), values), Path(folder))
            return register(self.client, self.run_id, bundle, name, facts, alias, evidence)

    def safely(self, call: Callable[[], Any]) -> bool:
        """Do it, or warn once and leave the store alone for a while; says whether it was done."""
        if time.monotonic() < self.paused_until:
            return False
        try:
            call()
        except Exception as error:
            self.paused_until = time.monotonic() + PAUSE_SECONDS
            if not self.warned:
                print(f"MLflow keeps nothing for now, the step goes on: {error}", file=sys.stderr)
            self.warned = True
            return False
        return True

    def end(self, status: str, parent: str) -> None:
        """Send what waits and close the run, whatever went wrong before."""
        self.paused_until = 0.0
        self.flush()
        if self.notes:
            text = "\n".join(self.notes) + "\n"
            self.safely(lambda: self.client.log_text(self.run_id, text, "notes.txt"))
        self.safely(lambda: self.client.set_terminated(self.run_id, status))
        self.safely(lambda: self.client.set_terminated(parent, status))


@contextmanager
def tracked(step: str, captioner: str | None, params: Params, root: Path, flow_run: str | None) -> Iterator[Tracker]:
    """A run for as long as the block: FINISHED, FAILED after an exception, KILLED after a signal.

    Raises BadInput before the block where the store cannot be used.
    """
    name = stage_name(step, captioner)
    client = connect(root)
    experiment = experiment_id(client, root, f"procap/{params.dataset.name}")
    tags = _tags(root, name, params, captioner, flow_run)
    parent = _parent(client, root, experiment)
    if earlier := _unfinished(client, experiment, tags["procap.stage"]):
        tags["procap.resumed_from"] = earlier
    run = client.create_run(experiment, tags=tags | {"mlflow.parentRunId": parent}, run_name=name)
    tracker = Tracker(client, run.info.run_id, root, params)
    tracker.safely(lambda: _log_params(client, run.info.run_id, name, params, root))
    status = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except (Stopped, KeyboardInterrupt):
        status = "KILLED"
        raise
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"[:LONGEST_TAG]
        tracker.safely(lambda: client.set_tag(run.info.run_id, "procap.error", text))
        raise
    finally:
        tracker.end(status, parent)


def flatten(values: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """``{"a": {"b": 1}}`` as ``{"a.b": "1"}``; lists stay together."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = str(value) if isinstance(value, str) else json.dumps(value)
    return flat


def _tags(root: Path, name: str, params: Params, captioner: str | None, flow_run: str | None) -> dict[str, str]:
    config = json.dumps(params.model_dump(mode="json", by_alias=True), sort_keys=True)
    tags = git_facts(root) | process_facts()
    tags |= {
        f"dvc.deps.{path.removeprefix('data/')}": md5 for path, md5 in inputs(root, declaration(root, name)).items()
    }
    tags |= {
        "mlflow.source.name": f"flows.stage {name.replace('@', ' --captioner ')}",
        "procap.step": name.partition("@")[0],
        "procap.stage": stage_digest(root, name),
        "procap.config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "seed": str(params.seed),
        "procap.processes": os.environ.get("WORLD_SIZE", "1"),
    }
    if captioner:
        tags["captioner"] = captioner
    if flow_run:
        tags["prefect.flow_run_id"] = flow_run
    if params.caption.selection == "test":
        tags["procap.selection"] = "test"
    return tags


def _parent(client: Any, root: Path, experiment: str) -> str:
    """The run of this rebuild; the first step of a rebuild makes it."""
    key = rebuild_key()
    with workspace_lock(root, "rebuild"):
        found = client.search_runs([experiment], f"tags.`procap.rebuild` = '{key}'", max_results=1)
        if found:
            parent = found[0].info.run_id
            client.update_run(parent, "RUNNING")
        else:
            name = time.strftime("rebuild %Y-%m-%d %H:%M")
            tags = git_facts(root) | {"procap.rebuild": key}
            parent = client.create_run(experiment, tags=tags, run_name=name).info.run_id
    for tag, value in process_facts().items():
        client.set_tag(parent, tag, value)
    return parent


def _unfinished(client: Any, experiment: str, digest: str) -> str | None:
    """The last run of the same work, if it did not come to its end; one whose process is gone is closed."""
    runs = client.search_runs([experiment], f"tags.`procap.stage` = '{digest}'", max_results=1)
    if not runs or runs[0].info.status == "FINISHED":
        return None
    if runs[0].info.status == "RUNNING":
        if not is_dead(runs[0].data.tags):
            return None
        client.set_terminated(runs[0].info.run_id, "KILLED")
    return runs[0].info.run_id


def _log_params(client: Any, run_id: str, name: str, params: Params, root: Path) -> None:
    """The values the stage depends on as parameters, the whole file as an artifact."""
    from mlflow.entities import Param

    flat = [
        Param(key, value if len(value) <= LONGEST_PARAM else value[: LONGEST_PARAM - 3] + "...")
        for key, value in flatten(declaration(root, name).params).items()
    ]
    for start in range(0, len(flat), 100):
        client.log_batch(run_id, params=flat[start : start + 100])
    client.log_dict(run_id, params.model_dump(mode="json", by_alias=True), "params.yaml")


def _clean(name: str) -> str:
    """A metric's name with the characters that every store takes."""
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "_" for letter in name)
