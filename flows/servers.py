"""MLflow and Prefect servers on this machine, for as long as someone wants them."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flows.process import end_families
from flows.store import QUIET, connect, tracking_uri
from procap.errors import BadInput

HOST = "127.0.0.1"
PATIENCE_SECONDS = 180.0
LEASES = "prefect.server.concurrency.lease_storage.filesystem"
"""In memory, where Prefect keeps them otherwise, a restart of the server ends every run of a limited deployment."""


@dataclass(frozen=True)
class Server:
    """One server: how to start it and where it says that it is well."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str]
    address: str
    health: str


def mlflow_server(root: Path, port: int) -> Server:
    """The UI and API over the workspace's own database."""
    words = (
        "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1",
        "--backend-store-uri", tracking_uri(root), "--artifacts-destination", str(root.resolve() / "mlartifacts"),
    )  # fmt: skip
    address = f"http://{HOST}:{port}"
    return Server("MLflow", words, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}, address, f"{address}/health")


def prefect_server(root: Path, port: int) -> Server:
    """A Prefect server whose records stay in the workspace."""
    address = f"http://{HOST}:{port}"
    words = ("prefect", "server", "start", "--host", HOST, "--port", str(port))
    environment = {
        "PREFECT_HOME": os.environ.get("PREFECT_HOME") or str(root.resolve() / ".procap" / "prefect"),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
    }
    return Server("Prefect", words, environment, address, f"{address}/api/health")


@contextmanager
def running(servers: list[Server], logs: Path) -> Iterator[list[subprocess.Popen]]:
    """Start servers, wait until each is well, and end them with everything they started.

    Raises BadInput where a port is taken or a server does not come up; its log is named.
    """
    logs.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen] = []
    try:
        for server in servers:
            _refuse_taken(server)
            log = logs / f"{server.name.lower()}.log"
            with log.open("wb") as out:
                started.append(_start(server, out))
        for server, process in zip(servers, started, strict=True):
            _wait(server, process, logs / f"{server.name.lower()}.log")
        yield started
    finally:
        end_families(process.pid for process in reversed(started))


def watch(servers: list[Server], processes: list[subprocess.Popen], logs: Path) -> None:
    """Return never, unless a server ends: then raise BadInput with its last words."""
    while True:
        for server, process in zip(servers, processes, strict=True):
            if process.poll() is not None:
                raise _ended(server, f"ended with {process.returncode}", logs / f"{server.name.lower()}.log")
        time.sleep(1)


def _start(server: Server, out: BinaryIO) -> subprocess.Popen:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / server.words[0]), *server.words[1:]],
        env={**os.environ, **QUIET, **server.environment},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is ours: we end them in order
    )


def prepare_store(root: Path) -> None:
    """Make the local database before a server and a step try it at once."""
    if not tracking_uri(root).startswith("http"):
        connect(root)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _refuse_taken(server: Server) -> None:
    import socket

    host, _, port = server.address.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            raise BadInput(
                f"the port for {server.name} is taken",
                where=server.address,
                expected="a free port",
                do="is it running already? Else choose another port, see `procap up --help`",
            ) from None


def _wait(server: Server, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not _answers(server.health):
        if process.poll() is not None or time.monotonic() > end:
            raise _ended(server, "did not come up", log)
        time.sleep(0.3)


def _ended(server: Server, how: str, log: Path) -> BadInput:
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
    return BadInput(
        f"{server.name} {how}: {' | '.join(last)}",
        where=str(log),
        expected=f"an answer from {server.health}",
        do="read that log",
    )
