"""Bundles in MLflow, by address: ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<run>/<model>``.

``procap.captioning.addresses`` finds this module by its entry point; the method itself does not know MLflow.
"""

from pathlib import Path
from typing import Any

from flows.store import connect, show_uri, tracking_uri
from procap.captioning.addresses import Fetched
from procap.errors import BadInput

INSIDE = "artifacts/bundle"
"""Where a logged model keeps its bundle."""


def fetch(address: str) -> Fetched:
    """The bundle behind an address, downloaded where the store is elsewhere.

    Raises BadInput for an address that leads to nothing, and for a store that cannot be asked.
    """
    client = _client()
    from mlflow.exceptions import MlflowException

    try:
        version = _version(client, address)
        if version is None:
            return Fetched(_bundle(client, address, address))
        exact = f"models:/{version.name}/{version.version}"
        return Fetched(_bundle(client, exact, address), str(version.version), version.description or None)
    except (MlflowException, OSError) as error:
        raise BadInput(
            f"nothing was found there: {str(error).splitlines()[0]}",
            where=f"{address}, in {show_uri(tracking_uri(Path.cwd()))}",
            expected="models:/<name>@<alias>, models:/<name>/<version> or runs:/<run>/<model>",
            do="`procap metrics` lists the registered versions; MLFLOW_TRACKING_URI names another store",
        ) from error


def _client() -> Any:
    """A client of the store; none is made for being asked."""
    uri = tracking_uri(Path.cwd())
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise BadInput(
            "there is no MLflow store",
            where=show_uri(uri),
            expected="the database of a project in which `dvc repro` has run, or a server",
            do="run it in the project's folder, or set MLFLOW_TRACKING_URI",
        )
    return connect(Path.cwd())


def _version(client: Any, address: str) -> Any:
    """The registered version, or None where the address means something else in the store."""
    kind, _, rest = address.partition(":/")
    if kind == "models" and "@" in rest:
        return client.get_model_version_by_alias(*rest.strip("/").split("@", 1))
    parts = rest.strip("/").split("/")
    if kind == "models" and len(parts) == 2:
        return client.get_model_version(*parts)
    return None


def _bundle(client: Any, address: str, asked: str) -> Path:
    """The folder of the model's bundle on this machine."""
    import mlflow

    folder = Path(mlflow.artifacts.download_artifacts(f"{address.rstrip('/')}/{INSIDE}"))
    if not (folder / "manifest.json").exists():
        raise BadInput(
            "that model is none of ours", where=asked, expected=f"{INSIDE}/manifest.json in it", do="name another"
        )
    return folder
