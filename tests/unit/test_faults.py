"""What breaks around the program: a locked database, a full disk, a taken port, a server that dies or is not there."""

import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows.servers import Server, running, watch
from procap.config import load_params
from procap.errors import BadInput
from procap.files import write_json


def test_a_locked_database_costs_time_and_no_number(store, workspace, monkeypatch, capsys):
    from flows.tracking import tracked

    monkeypatch.setenv("PROCAP_REBUILD", "this one")
    with tracked("sample", None, load_params(workspace / "params.yaml"), workspace, None) as tracker:
        holder = sqlite3.connect(workspace / "mlflow.db", isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN EXCLUSIVE")
        with sqlite3.connect(workspace / "mlflow.db", timeout=0) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("DELETE FROM metrics")
        let_go = threading.Timer(1.5, lambda: holder.execute("ROLLBACK"))
        let_go.start()
        tracker.metrics({"loss": 1.0}, 1)
        tracker.flush()
        let_go.join()
        holder.close()
    assert store.get_run(tracker.run_id).data.metrics == {"loss": 1.0}
    assert store.get_run(tracker.run_id).info.status == "FINISHED"
    assert "MLflow keeps nothing" not in capsys.readouterr().err


def test_a_stage_that_finds_no_prefect_server_says_so(workspace):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT", "MLFLOW"))}
    environment |= {"PREFECT_API_URL": "http://me:hidden@127.0.0.1:9/api", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment |= {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "flows.stage", "sample"], cwd=workspace, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "the Prefect server does not answer" in done.stderr
    assert "hidden" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_a_complaint_and_leaves_the_former_file(tmp_path, monkeypatch, capsys):
    from flows import cli

    path = tmp_path / "metrics.json"
    write_json(path, {"before": 1})

    def full(self, text, **_):
        with self.open("w") as file:
            file.write(text[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(cli, "app", lambda: write_json(path, {"after": 2}))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "No space left" in capsys.readouterr().err
    assert json.loads(path.read_text()) == {"before": 1}


def listener(port: int, seconds: str = "60") -> tuple[str, ...]:
    """A server that answers every request and dies after a while."""
    code = (
        "import http.server, threading, os, sys\n"
        "class Well(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def log_message(self, *words): pass\n"
        "threading.Timer(float(sys.argv[2]), lambda: (print('out of luck', flush=True), os._exit(3))).start()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Well).serve_forever()\n"
    )
    return ("python", "-c", code, str(port), seconds)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def server(name: str, seconds: str = "60") -> Server:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    return Server(name, listener(port, seconds), {}, address, address)


def test_a_server_that_dies_ends_the_others_and_says_so(tmp_path):
    servers = [server("Steady"), server("Frail", "1.5")]
    with pytest.raises(BadInput, match=r"Frail ended with 3: out of luck"), running(servers, tmp_path) as processes:
        watch(servers, processes, tmp_path)
    assert all(process.poll() is not None for process in processes)


def test_a_taken_port_is_refused_before_anything_starts(tmp_path):
    one = server("MLflow")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(one.address.rpartition(":")[2])))
        taken.listen()
        with pytest.raises(BadInput, match="the port for MLflow is taken"), running([one], tmp_path):
            pass
    assert not list(tmp_path.iterdir())
