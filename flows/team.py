"""A training step on several devices: torchrun's agent starts a process for each and ends all where one dies."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flows.tracking import Stopped
from procap.config import Params
from procap.errors import BadInput

GRACE_SECONDS = 25
"""So long a process that is asked to end may take to keep its state; Prefect waits for 30."""
FLOW_RUN = "PROCAP_STAGE_FLOW_RUN"


def processes(step: str, params: Params) -> int:
    """Processes in which a step is to run on this machine: several share the batches of stage 1 and stage 2."""
    trains = step == "caption" or (step == "pretrain" and not params.pretrain.checkpoint)
    return params.hardware.devices if trains else 1


def launch(step: str, captioner: str | None, params: Params, flow_run: str | None) -> int:
    """Run ``python -m flows.stage`` once per device and wait; returns the exit status of the first that failed.

    Raises Stopped after a signal, which all of them have heard then.
    """
    count = params.hardware.devices
    gpus = _gpus(params)
    if gpus is not None and gpus < count:
        raise BadInput(
            f"{count} devices are asked for",
            where="params.yaml: hardware.devices",
            expected=f"at most {gpus}, which torch finds here",
            do="lower hardware.devices, or set hardware.device to cpu",
        )
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        1, 1, count, run_id=f"{step}-{os.getpid()}", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=0, shutdown_timeout=GRACE_SECONDS,
    )  # fmt: skip
    words = ["-m", "flows.stage", step, *(["--captioner", captioner] if captioner else [])]
    try:
        with _environment(_for_members(params, count, gpus is not None, flow_run)):
            elastic_launch(config, sys.executable)(*words)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode < 0:
            print(f"{step}: process {number} of {count} was ended by signal {-failure.exitcode}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as stop:
        raise Stopped(stop.sigval.value) from None
    return 0


def _gpus(params: Params) -> int | None:
    """GPUs that torch finds, None where the CPU is to compute."""
    if params.hardware.device == "cpu":
        return None
    import torch

    return torch.cuda.device_count() if params.hardware.device == "cuda" or torch.cuda.is_available() else None


def _for_members(params: Params, count: int, on_gpu: bool, flow_run: str | None) -> dict[str, str]:
    found = {FLOW_RUN: flow_run or ""}
    if not params.hardware.threads and not on_gpu:
        found["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // count))
    return found


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
