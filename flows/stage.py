"""``python -m flows.stage <step> [--captioner <name>]``: what ``dvc.yaml`` calls.

Runs one step with a terminal and MLflow listening; where ``PREFECT_API_URL`` is set, as a Prefect flow.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from flows.console import Everyone, Terminal
from flows.lineage import read_yaml, stage_name
from flows.store import QUIET
from flows.tracking import Stopped, tracked
from flows.watching import refuse_unwatched
from procap.config import Params, load_params
from procap.errors import BadInput
from procap.report import Report
from procap.steps import PER_CAPTIONER, STEPS

ON_ACCELERATOR = ("interpolate", "sample", "tokenizer", "tokenize", "pretrain", "caption", "evaluate")
"""Steps that compute on a GPU where there is one."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a step; returns the exit status: 2 for bad input, 143 or 130 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m flows.stage", description="Run one step of the pipeline.")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--captioner", help="only with " + " and ".join(PER_CAPTIONER))
    asked = parser.parse_args(words)
    if (asked.step in PER_CAPTIONER) != bool(asked.captioner):
        parser.error(f"--captioner goes with {' and '.join(PER_CAPTIONER)}, and with no other step")
    listen_to_signals()
    try:
        params = load_params(Path("params.yaml"))
        deps = read_yaml(Path("dvc.yaml")).get("stages", {}).get(asked.step, {}).get("deps", ())
        refuse_unwatched(Path.cwd(), asked.step, params.model_dump(by_alias=True), deps)
        set_environment(params)
        if os.environ.get("PREFECT_API_URL"):
            from flows.stage_flow import as_flow

            as_flow(asked.step, asked.captioner, params)
        else:
            run_step(asked.step, asked.captioner, params)
    except BadInput as complaint:
        print(f"{stage_name(asked.step, asked.captioner)}: {complaint}", file=sys.stderr)
        return 2
    except Stopped as stop:
        return 128 + stop.signal
    return 0


def run_step(
    step: str, captioner: str | None, params: Params, listeners: Sequence[Report] = (), flow_run: str | None = None
) -> None:
    """Run a step in the current folder, tracked; ``listeners`` hear it too."""
    root = Path.cwd()
    name = stage_name(step, captioner)
    with tracked(step, captioner, params, root, flow_run) as tracker:
        report = Everyone([tracker, *listeners, Terminal(name)])
        options: dict[str, Any] = {"captioner": captioner} if captioner else {}
        import_module(f"procap.steps.{step}").run(params, Path("data"), report=report, **options)


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


if __name__ == "__main__":
    sys.exit(main())
