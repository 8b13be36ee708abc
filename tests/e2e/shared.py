"""What tests of the shared servers do with them."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clone import IDENTITY, run


@dataclass(frozen=True)
class Shared:
    """The addresses of everything, and the environment of a user or worker that may use it."""

    folder: Path
    mlflow: str
    prefect: str
    s3: str
    env: dict[str, str]
    restart: dict[str, Any]
    """Stops and starts ``postgres``, ``mlflow`` or ``prefect`` at the same port."""


def commit(folder: Path, why: str) -> None:
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", *IDENTITY, "commit", "-qm", why], cwd=folder, check=True)


def trigger(workspace: Path, shared: Shared, deployment: str, **parameters: Any) -> str:
    """From the command line, watched to its end."""
    given = [word for key, value in parameters.items() for word in ("-p", f"{key}={json.dumps(value)}")]
    return run(workspace, "prefect", "deployment", "run", deployment, *given, "--watch", more=shared.env)
