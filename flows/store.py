"""The MLflow store: a local database that is made once, or a server that answers at once or is refused."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from procap.errors import BadInput

QUIET = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
}
"""No tool reports to its vendor, and none draws bars into a log."""

PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""A server that goes away costs a training seconds, not minutes."""

AWAY = "Max retries exceeded with url"
"""In the words of an error: the server did not answer, and nothing else is wrong."""

PORTS = {"https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Where a server listens whose address does not say."""

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def tracking_uri(root: Path) -> str:
    """``MLFLOW_TRACKING_URI``, else the workspace's own database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def show_uri(uri: str) -> str:
    """The address without a password in it."""
    return re.sub(r"//(?:[^/@:]*:.*|[^/]*)@", "//", uri)


@contextmanager
def workspace_lock(root: Path, name: str, timeout: float = -1) -> Iterator[None]:
    """One process of this workspace at a time; TimeoutError after ``timeout`` seconds, negative waits for ever."""
    from filelock import FileLock

    folder = root / ".procap"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / f"{name}.lock", timeout=timeout):
        yield


def connect(root: Path) -> Any:
    """An ``MlflowClient`` that was seen to work.

    Raises BadInput, within seconds, where the store cannot be used.
    """
    uri = tracking_uri(root)
    scheme = uri.split(":", 1)[0].split("+")[0]
    if scheme in ("http", "https"):
        check_server(uri, "MLflow", "start it (`procap up`), or unset MLFLOW_TRACKING_URI to use the local database")
    elif scheme not in DATABASES or "://" not in uri:
        raise BadInput(
            "MLflow's folder of files is no longer kept up and loses runs",
            where=f"MLFLOW_TRACKING_URI={show_uri(uri)}",
            expected="http(s)://..., sqlite:///... or another database",
            do="unset it to use mlflow.db in the workspace",
        )
    elif scheme == "sqlite":
        _check_file(uri)
    elif re.match(r"[^:]+://[^/,?]+(/|$)", uri):  # one host
        check_server(uri, "database", "start it, or unset MLFLOW_TRACKING_URI to use the local one")
    for name, value in (QUIET | PATIENCE).items():
        os.environ.setdefault(name, value)

    import logging

    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for chatty in ("alembic", "mlflow.store.db.utils", "mlflow.pyfunc", "mlflow.tracking._model_registry"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    try:
        with workspace_lock(root, "mlflow"):  # several processes that make the tables at once break one another
            client = mlflow.MlflowClient(uri)
            client.search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError, ImportError, OSError) as error:
        raise BadInput(
            f"MLflow's store does not answer: {str(error).splitlines()[0]}",
            where=show_uri(uri),
            expected="a database of this version of MLflow, or a running server",
            do="is it MLflow's address, and are MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD right?"
            if scheme in ("http", "https")
            else f"`mlflow db upgrade {show_uri(uri)}` after an update of MLflow; `procap doctor` says more",
        ) from error
    return client


def _check_file(uri: str) -> None:
    """Raise BadInput where there can be no such database; MLflow would try for minutes."""
    path = Path(uri.partition(":///")[2].removeprefix("file:").partition("?")[0])
    if path.is_dir() or not path.parent.is_dir():
        raise BadInput(
            "a folder is where MLflow's database should be" if path.is_dir() else "there is no folder for the database",
            where=show_uri(uri),
            expected="a file, or a folder to make it in",
            do="move it away, or mend MLFLOW_TRACKING_URI",
        )


@contextmanager
def patiently() -> Iterator[None]:
    """Wait for the store as long as MLflow itself would: models are on their way, and no training stands still."""
    ours = {name: value for name, value in PATIENCE.items() if os.environ.get(name) == value}
    for name in ours:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(ours)


@contextmanager
def answering(root: Path) -> Iterator[None]:
    """Turn what MLflow raises inside, when the store goes away or refuses, into BadInput."""
    import requests
    from mlflow.exceptions import MlflowException

    try:
        with patiently():
            yield
    except (MlflowException, requests.RequestException) as error:
        raise BadInput(
            f"MLflow's store refuses or went away: {str(error).splitlines()[0][:300]}",
            where=show_uri(tracking_uri(root)),
            expected="an answer",
            do="look at the server's log, then run it again",
        ) from error


def experiment_id(client: Any, root: Path, name: str) -> str:
    """The experiment's id; it is made, or brought back from the bin, where needed."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        local = tracking_uri(root).startswith("sqlite")
        try:
            return client.create_experiment(name, (root.resolve() / "mlartifacts").as_uri() if local else None)
        except MlflowException:  # another process was quicker
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def check_server(url: str, what: str, do: str, seconds: float = 3.0) -> None:
    """Raise BadInput unless something listens at ``url``."""
    if re.search(r"//[^/@:]*:[^@]*[/?#@].*@", url):
        do = "write signs such as @ / # in a name or password as %40 %2F %23; " + do
    try:
        address = urlsplit(url)
        port = address.port or PORTS.get(address.scheme.split("+")[0], 80)
        if not address.hostname:
            raise ValueError
    except ValueError:  # its words may hold a part of a password
        raise BadInput(
            f"that is no address of the {what} server", where=show_uri(url), expected="scheme://host:port", do=do
        ) from None
    try:
        socket.create_connection((address.hostname, port), timeout=seconds).close()
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"the {what} server does not answer ({error})", where=show_uri(url), expected="a running server", do=do
        ) from None
