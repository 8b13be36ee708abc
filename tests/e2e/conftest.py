"""The servers that a team shares, started once for all tests that ask for them."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from flows.presets import apply_overrides
from tests.clone import environment, run, sharing
from tests.e2e import services
from tests.e2e.shared import Shared, commit


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Iterator[Shared]:
    for package in ("moto", "psycopg2", "boto3", "flask_wtf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; `make e2e` does that")
    if services.postgres_programs() is None:
        pytest.skip("no PostgreSQL on this machine")
    folder = tmp_path_factory.mktemp("shared")
    from flows.store import QUIET

    base = environment(QUIET)
    with ExitStack() as stack:
        store = stack.enter_context(services.s3(folder / "s3.log", base))
        ports = {name: services.free_port() for name in ("postgres", "mlflow", "prefect")}
        database = Restartable(lambda: services.postgres(folder / "postgres", ports["postgres"]))
        mlflow = Restartable(lambda: services.mlflow(folder, base, database.address, store, ports["mlflow"]))
        prefect = Restartable(lambda: services.prefect(folder, base, database.address, ports["prefect"]))
        for server in (database, mlflow, prefect):
            server.start()
            stack.callback(server.stop)
        kept = {key: value for key, value in services.SECRETS.items() if key != "PGPASSWORD"}
        env = QUIET | kept | {
            "MLFLOW_TRACKING_URI": mlflow.address, "PREFECT_API_URL": prefect.address, "AWS_ENDPOINT_URL_S3": store,
            "AWS_DEFAULT_REGION": "us-east-1", "PREFECT_HOME": str(folder / "prefect"),
        }  # fmt: skip
        restart = {"postgres": database, "mlflow": mlflow, "prefect": prefect}
        yield Shared(folder, mlflow.address, prefect.address, store, env, restart)


class Restartable:
    """A server that a test may take away for a while."""

    def __init__(self, make: Callable[[], AbstractContextManager[str]]) -> None:
        self.make = make
        self.running: ExitStack | None = None
        self.address = ""

    def start(self) -> None:
        self.running = ExitStack()
        self.address = self.running.enter_context(self.make())

    def stop(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None


@pytest.fixture(scope="session")
def team(tmp_path_factory, shared, built) -> Path:
    """A clone at smoke size with one captioner, all committed, whose data go to the S3 server.

    What comes before ``evaluate`` lies in the cache; from there on its stages run.
    """
    folder = sharing(built, tmp_path_factory.mktemp("team"))
    apply_overrides(folder / "params.yaml", {"captioners": ["static"], "evaluate.pictures": 2})
    run(folder, "dvc", "remote", "add", "-d", "store", "s3://dvc/procap")
    commit(folder, "Smoke size, and where the data are")
    return folder


@pytest.fixture(scope="session")
def team_worker(team, shared) -> Iterator[int]:
    """The process id of a worker of the pool ``gpu``."""
    run(team, "procap", "deploy", more=shared.env)
    words = [str(services.BIN / "prefect"), "worker", "start", "--pool", "gpu", "--type", "process"]
    log = shared.folder / "worker.log"
    with services.program(words, environment(shared.env), log, lambda: "started" in log.read_text().lower()) as pid:
        yield pid
