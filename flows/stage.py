"""``python -m flows.stage <step> [--captioner <name>]``: what ``dvc.yaml`` calls.

Runs one step with a terminal and MLflow listening; where ``PREFECT_API_URL`` is set, as a Prefect flow.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from flows.console import Everyone, Terminal
from flows.lineage import dvc_above, read_yaml, stage_name
from flows.store import QUIET
from flows.team import FLOW_RUN, launch, processes
from flows.tracking import Stopped, tracked
from flows.watching import refuse_unwatched
from procap.config import Params, load_params
from procap.errors import FULL, BadInput, refusal
from procap.report import Report, silent
from procap.steps import PER_CAPTIONER, STEPS

ON_ACCELERATOR = ("interpolate", "sample", "tokenizer", "tokenize", "pretrain", "caption", "evaluate")
"""Steps that compute on a GPU where there is one."""

NO_MEMORY = ("out of memory", "can't allocate memory")
"""In the words of errors of torch."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a step; returns the exit status: 2 for bad input, 143 or 130 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m flows.stage", description="Run one step of the pipeline.")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--captioner", help="only with " + " and ".join(PER_CAPTIONER))
    asked = parser.parse_args(words)
    if (asked.step in PER_CAPTIONER) != bool(asked.captioner):
        parser.error(f"--captioner goes with {' and '.join(PER_CAPTIONER)}, and with no other step")
    listen_to_signals()
    end_with_those_above()
    try:
        params = load_params(Path("params.yaml"))
        deps = read_yaml(Path("dvc.yaml")).get("stages", {}).get(asked.step, {}).get("deps", ())
        refuse_unwatched(Path.cwd(), asked.step, params.model_dump(by_alias=True), deps)
        set_environment(params)
        if _is_member():
            run_share(asked.step, asked.captioner, params)
        elif os.environ.get("PREFECT_API_URL"):
            from flows.stage_flow import as_flow

            as_flow(asked.step, asked.captioner, params)
        else:
            run_step(asked.step, asked.captioner, params)
    except BadInput as complaint:
        return _complain(asked, complaint)
    except OSError as error:
        told = refusal(error) if error.errno in FULL else None
        if told is None:
            raise
        return _complain(asked, told)
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY)):
            raise
        return _complain(asked, _too_large(error))
    except Stopped as stop:
        return 128 + stop.signal
    except TeamFailed as failed:
        return failed.status
    return 0


def _too_large(error: Exception) -> BadInput:
    return BadInput(
        f"there is not enough memory: {(str(error) or type(error).__name__).splitlines()[0][:300]}",
        where="params.yaml: sizes and batches of this step",
        expected="sizes for which this machine has the memory",
        do="lower them; hardware.checkpointing and `accumulate` of pretrain and caption save memory too",
    )


def _complain(asked: argparse.Namespace, complaint: BadInput) -> int:
    print(f"{stage_name(asked.step, asked.captioner)}: {complaint}", file=sys.stderr)
    return 2


def run_step(
    step: str, captioner: str | None, params: Params, listeners: Sequence[Report] = (), flow_run: str | None = None
) -> None:
    """Run a step in the current folder, tracked; ``listeners`` hear it too.

    Where several devices are to share it, each gets a process, and the first of them is tracked.
    """
    if processes(step, params) > 1 and not _is_member():
        status = launch(step, captioner, params, flow_run)
        if status:
            raise TeamFailed(status)
        return
    with tracked(step, captioner, params, Path.cwd(), flow_run) as tracker:
        _run(step, captioner, params, Everyone([tracker, *listeners, Terminal(stage_name(step, captioner))]))


def run_share(step: str, captioner: str | None, params: Params) -> None:
    """Run this process' share of a step: all of it but what one process does for all."""
    if os.environ["RANK"] == "0":
        run_step(step, captioner, params, flow_run=os.environ.get(FLOW_RUN))
    else:
        _run(step, captioner, params, silent)


def _run(step: str, captioner: str | None, params: Params, report: Report) -> None:
    options: dict[str, Any] = {"captioner": captioner} if captioner else {}
    import_module(f"procap.steps.{step}").run(params, Path("data"), report=report, **options)


def _is_member() -> bool:
    """Whether torchrun started this process; ``procap.training.team`` asks the same, but loads torch."""
    return "TORCHELASTIC_RUN_ID" in os.environ


class TeamFailed(Exception):
    """A process of a team failed and has said why; ``status`` is its exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"a process ended with {status}")


def set_environment(params: Params) -> None:
    """What libraries read when they are imported; values that the user set stay."""
    wanted = QUIET | {"MPLBACKEND": "Agg", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if params.hardware.threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
            wanted[name] = str(params.hardware.threads)
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def listen_to_signals() -> None:
    """Turn SIGTERM and SIGINT into ``Stopped``, once, so that runs are closed on the way out."""
    process = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker has nothing to close
            os._exit(128 + number)
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, stop)


def end_with_those_above() -> None:
    """Hear SIGTERM once the `dvc` that runs this stage, or the agent of this team, is gone: no orphan trains on."""
    import psutil

    above = psutil.Process().parent() if _is_member() else dvc_above() if "DVC_STAGE" in os.environ else None
    if above is not None:
        threading.Thread(target=_outlive, args=(above,), daemon=True).start()


def _outlive(above: Any) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        while above.is_running() and above.status() != psutil.STATUS_ZOMBIE:
            time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
