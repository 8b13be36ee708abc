"""A step as a Prefect flow run: a GPU slot while it runs, and its progress as an artifact."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from flows.lineage import stage_name
from flows.process import mark_process
from flows.stage import ON_ACCELERATOR, listen_to_signals, run_step
from flows.store import check_server
from procap.config import Params
from procap.errors import BadInput
from procap.report import Silent

T = TypeVar("T")

SLOTS = "gpu"
"""The global concurrency limit that hands out GPUs; one slot unless someone set another number."""
LEASE_SECONDS = 120.0
"""After a kill -9 a slot comes back in so long; a server that is away for less costs nothing."""
UPDATE_SECONDS = 5.0


def as_flow(step: str, captioner: str | None, params: Params) -> None:
    """Run a step as the flow ``stage-<step>``, tagged with the pipeline run that started it."""
    check_server(
        os.environ["PREFECT_API_URL"],
        "Prefect",
        "start it (`procap up`), or unset PREFECT_API_URL to run without Prefect",
    )
    from prefect import flow, runtime, tags
    from prefect.states import Failed, State

    complaints: list[BadInput] = []

    @flow(
        name=f"stage-{step}",
        flow_run_name=stage_name(step, captioner),
        persist_result=False,
        validate_parameters=False,
        on_running=[mark_process],
    )
    def stage() -> State | None:
        listen_to_signals()  # instead of Prefect's own, which would not close the MLflow run
        try:
            with gpu_slot(step, params):
                run_step(step, captioner, params, [ProgressArtifact(step)], str(runtime.flow_run.id))
        except BadInput as complaint:
            complaints.append(complaint)
            return Failed(message=str(complaint))
        return None

    parent = os.environ.get("PROCAP_PARENT_FLOW_RUN")
    with tags(f"pipeline:{parent}") if parent else contextlib.nullcontext():
        state = stage(return_state=True)
    if complaints:
        raise complaints[0]
    state.result()


@contextlib.contextmanager
def gpu_slot(step: str, params: Params) -> Iterator[None]:
    """Hold a GPU slot if this step computes on a GPU."""
    if step not in ON_ACCELERATOR or not _on_gpu(params.hardware.device):
        yield
        return
    from prefect.concurrency.sync import concurrency

    ensure_slots()
    with concurrency(
        SLOTS, occupy=1, strict=True, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False
    ):
        yield


def _on_gpu(device: str) -> bool:
    if device == "auto":
        import torch

        return torch.cuda.is_available()
    return device == "cuda"


def ensure_slots() -> None:
    """Make the limit where it is missing: without one, Prefect would let everybody through."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(SLOTS)
        except ObjectNotFound:
            with contextlib.suppress(ObjectAlreadyExists):  # another stage was quicker
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=SLOTS, limit=1))


class ProgressArtifact(Silent):
    """Progress on the flow run's page; trouble with the server is nobody's business here."""

    def __init__(self, step: str) -> None:
        self.step = step

    def progress(self, items: Iterable[T], what: str, total: int | None = None, done: int = 0) -> Iterator[T]:
        if not total:
            yield from items
            return
        artifact: Any = None
        said = 0.0
        for item in items:
            yield item
            done += 1
            if done >= total or time.monotonic() - said > UPDATE_SECONDS:
                said = time.monotonic()
                with contextlib.suppress(Exception):
                    artifact = self._show(artifact, what, 100 * min(done, total) / total)

    def _show(self, artifact: Any, what: str, percent: float) -> Any:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if artifact is None:
            return create_progress_artifact(percent, key=f"progress-{self.step}", description=what)
        update_progress_artifact(artifact, percent, description=what)
        return artifact
