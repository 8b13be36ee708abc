"""Bundles in MLflow, by address: ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<run>/<model>``.

``procap.captioning.addresses`` finds this module by its entry point; the method itself does not know MLflow.
"""

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.registry import DIGEST
from flows.store import connect, patiently, show_uri, tracking_uri
from procap.captioning.addresses import Fetched
from procap.errors import BadInput
from procap.files import atomic_folder

INSIDE = "artifacts/bundle"
"""Where a logged model keeps its bundle."""


def fetch(address: str) -> Fetched:
    """The bundle behind an address, downloaded where the store is elsewhere.

    Raises BadInput for an address that leads to nothing, and for a store that cannot be asked.
    """
    client = client_of(Path.cwd())
    from mlflow.exceptions import MlflowException

    try:
        version = find_version(client, address)
        if version is None:
            return Fetched(_downloaded(address))
        return Fetched(_kept(client, version), str(version.version), version.description or None)
    except (MlflowException, OSError) as error:
        raise BadInput(
            f"nothing was found there: {str(error).splitlines()[0]}",
            where=f"{address}, in {show_uri(tracking_uri(Path.cwd()))}",
            expected="models:/<name>@<alias>, models:/<name>/<version> or runs:/<run>/<model>",
            do="`procap metrics` lists the registered versions; MLFLOW_TRACKING_URI names another store",
        ) from error


def client_of(root: Path) -> Any:
    """A client of the store; none is made for being asked."""
    uri = tracking_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise BadInput(
            "there is no MLflow store",
            where=show_uri(uri),
            expected="the database of a project in which `dvc repro` has run, or a server",
            do="run it in the project's folder, or set MLFLOW_TRACKING_URI",
        )
    return connect(root)


def find_version(client: Any, address: str) -> Any:
    """The registered version, or None where the address means something else in the store."""
    kind, _, rest = address.partition(":/")
    if kind == "models" and "@" in rest:
        return client.get_model_version_by_alias(*rest.strip("/").split("@", 1))
    parts = rest.strip("/").split("/")
    if kind == "models" and len(parts) == 2:
        return client.get_model_version(*parts)
    return None


def _kept(client: Any, version: Any) -> Path:
    """The folder of a version's bundle; from a store elsewhere it is downloaded once, and kept by its digest."""
    address = f"models:/{version.name}/{version.version}"
    digest = version.tags.get(DIGEST)
    location = client.get_model_version_download_uri(version.name, version.version)
    if digest is None or urlsplit(location).scheme in ("", "file"):
        return _downloaded(address)
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "procap" / digest
    if not (kept / "manifest.json").exists():
        with atomic_folder(kept) as fresh:
            shutil.copytree(_downloaded(address, fresh / "download"), fresh, dirs_exist_ok=True)
            shutil.rmtree(fresh / "download")
    return kept


@patiently()
def _downloaded(address: str, target: Path | None = None) -> Path:
    """The folder of a model's bundle: where the store has it, if that is here, or in ``target``."""
    import mlflow

    folder = Path(
        mlflow.artifacts.download_artifacts(
            f"{address.rstrip('/')}/{INSIDE}", dst_path=None if target is None else str(target)
        )
    )
    if not (folder / "manifest.json").exists():
        raise BadInput(
            "that model is none of ours", where=address, expected=f"{INSIDE}/manifest.json in it", do="name another"
        )
    return folder
