"""Child processes: what they find around them, and that they end when we do."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.lineage import process_facts
from flows.store import QUIET


def child_environment(flow_run: str) -> dict[str, str]:
    """This environment for DVC: our Python first, the worker's run taken out, ours put in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    here = str(Path(sys.executable).parent)
    ours = {
        "PATH": os.pathsep.join([here, kept.get("PATH", os.defpath)]),
        "PROCAP_PARENT_FLOW_RUN": flow_run,
        "PROCAP_REBUILD": flow_run,
        "PYTHONUNBUFFERED": "1",
    }
    return {"PREFECT_LOGGING_LEVEL": "WARNING", **QUIET, **kept, **ours}


def mark_process(flow: Any, flow_run: Any, state: Any) -> None:
    """Tell the server which process a flow run is, for `procap doctor`; a hook for ``on_running``.

    Prefect itself keeps a number without the machine's name. A server that takes no labels does not stop the run.
    """
    from prefect.client.orchestration import get_client
    from prefect.logging.loggers import flow_run_logger

    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(flow_run.id, dict(process_facts()))
    except Exception as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        flow_run_logger(flow_run, flow).warning("the server keeps no labels, so that `procap doctor` cannot tell "
                                                "whether this run still lives: %s", told)  # fmt: skip


def stream(
    words: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], Any],
    keep: int = 20,
    folder: Path | None = None,
) -> tuple[int, list[str]]:
    """Run a command, say each line as it comes; (exit status, last lines).

    It stays in this process group, so that a cancel reaches it and its children; if this process is
    interrupted alone, they are asked to end too.
    """
    process = subprocess.Popen(
        words, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, encoding="utf-8", errors="replace", bufsize=1,
    )  # fmt: skip
    tail: list[str] = []
    try:
        for line in process.stdout or ():
            if text := line.rstrip():
                say(text)
                tail = [*tail[1 - keep :], text]
        return process.wait(), tail
    except BaseException:
        end_family(process)
        raise


def end_family(process: subprocess.Popen) -> None:
    """Ask a process and everything below it to end, and see to it after a while."""
    end_families([process.pid])


def end_families(pids: Iterable[int]) -> None:
    """The same for several processes at once, parents first: none hears of its child's end and does the next thing."""
    import psutil

    family = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            family += [process, *process.children(recursive=True)]
    for one in family:
        _signal(one.terminate)
    stubborn = psutil.wait_procs(family, timeout=25)[1]
    for one in stubborn:
        _signal(one.kill)
    psutil.wait_procs(stubborn, timeout=5)


def _signal(send: Callable[[], Any]) -> None:
    import psutil

    with contextlib.suppress(psutil.Error):
        send()
