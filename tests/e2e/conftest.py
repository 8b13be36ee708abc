"""The servers that a team shares, and a workspace whose deployments a worker runs; for all tests here that ask."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from flows.store import QUIET
from tests.clone import environment, run, sharing, without_java
from tests.e2e import services
from tests.e2e.shared import Shared, commit, story, trigger


@pytest.fixture(scope="package")
def shared(tmp_path_factory) -> Iterator[Shared]:
    """PostgreSQL, S3, MLflow and Prefect with passwords; where the machine cannot have them, Prefect, all on sqlite."""
    folder = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="procap-postgres-", ignore_cleanup_errors=True)
        home = Path(stack.enter_context(made))  # unlike those of pytest, one that another user may go to
        database = Restartable(lambda: services.postgres(home, port))
        port = services.free_port()
        try:
            services.refuse_without_packages()
            database.start()
        except services.Lacking as lacking:
            yield _of_one_user(stack, folder, str(lacking))
        else:
            stack.callback(database.stop)
            yield _of_a_team(stack, folder, database)


def _of_a_team(stack: ExitStack, folder: Path, database: "Restartable") -> Shared:
    base = environment(QUIET)
    store = stack.enter_context(services.s3(folder / "s3.log", base))
    ports = {name: services.free_port() for name in ("mlflow", "prefect")}
    mlflow = Restartable(lambda: services.mlflow(folder, base, database.address, store, ports["mlflow"]))
    prefect = Restartable(lambda: services.prefect(folder, ports["prefect"], database.address))
    for server in (mlflow, prefect):
        server.start()
        stack.callback(server.stop)
    kept = {key: value for key, value in services.SECRETS.items() if key != "PGPASSWORD"}
    env = QUIET | services.PATIENT | kept | {
        "MLFLOW_TRACKING_URI": mlflow.address, "PREFECT_API_URL": prefect.address, "AWS_ENDPOINT_URL_S3": store,
        "AWS_DEFAULT_REGION": "us-east-1", "PREFECT_HOME": str(folder / "prefect"),
    }  # fmt: skip
    restart = {"postgres": database, "mlflow": mlflow, "prefect": prefect}
    return Shared(folder, mlflow.address, prefect.address, store, env, restart)


def _of_one_user(stack: ExitStack, folder: Path, lacks: str) -> Shared:
    prefect = stack.enter_context(services.prefect(folder, services.free_port()))
    mlflow = f"sqlite:///{folder / 'mlflow.db'}"
    env = QUIET | services.PATIENT | {
        "MLFLOW_TRACKING_URI": mlflow, "PREFECT_API_URL": prefect, "PREFECT_HOME": str(folder / "prefect"),
    }  # fmt: skip
    return Shared(folder, mlflow, prefect, "", env, {}, lacks)


class Restartable:
    """A server that a test may take away for a while."""

    def __init__(self, make: Callable[[], AbstractContextManager[str]]) -> None:
        self.make = make
        self.running: ExitStack | None = None
        self.address = ""

    def start(self) -> None:
        running = ExitStack()
        self.address = running.enter_context(self.make())
        self.running = running

    def stop(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None


@pytest.fixture(scope="package")
def whole(shared) -> None:
    """All servers of a team; skips where the machine cannot have them."""
    if shared.lacks:
        pytest.skip(shared.lacks)


@pytest.fixture(scope="package")
def team(tmp_path_factory, built) -> Path:
    """A clone at smoke size, all committed.

    What comes before ``evaluate`` lies in the cache; from there on its stages run.
    """
    folder = sharing(built, tmp_path_factory.mktemp("team"))
    commit(folder, "Smoke size")
    return folder


@pytest.fixture(scope="package")
def team_worker(team, shared, tmp_path_factory) -> Iterator[None]:
    """A worker of the pool ``gpu``, which makes the pool, and deployments for it."""
    log = shared.folder / "worker.log"
    words = [str(services.BIN / "prefect"), "worker", "start", "--pool", "gpu", "--type", "process"]
    # A worker started by a service manager knows nothing of the virtual environment.
    bare = environment(shared.env) | without_java(tmp_path_factory.mktemp("none"), os.defpath)
    with services.program(words, bare, log, lambda: "started" in log.read_text().lower()) as pid:
        run(team, "procap", "deploy", more=shared.env)
        yield
        os.killpg(pid, signal.SIGKILL)  # no run is left; asked to end, it takes half a minute


@pytest.fixture(scope="package")
def completed(team, shared, team_worker) -> dict[str, Any]:
    """What Prefect tells of the first run of the pipeline, which was triggered from the command line."""
    overrides = {"evaluate.pictures": 2, "captioners": ["procap"]}
    return story(shared, trigger(team, shared, "procap/pipeline", overrides=overrides))


@pytest.fixture
def client(shared, monkeypatch):
    from mlflow import MlflowClient

    for name in shared.env.keys() & {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}:
        monkeypatch.setenv(name, shared.env[name])
    return MlflowClient(shared.mlflow)
