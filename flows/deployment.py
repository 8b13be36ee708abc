"""Telling a Prefect server of the pipeline: work pool, GPU slots and what ``infra/prefect.yaml`` says."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.process import end_family
from flows.store import QUIET, check_server, show_uri
from procap.errors import BadInput

POOL = "gpu"
FILE = Path("infra/prefect.yaml")


def deploy(root: Path) -> None:
    """Make what is missing and bring the deployment up to date; doing it again changes nothing.

    Raises BadInput where no server answers at ``PREFECT_API_URL``, or it refuses.
    """
    url = os.environ.setdefault("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    check_server(url, "Prefect", "start it with `procap up`")
    from flows.stage_flow import ensure_slots

    try:
        _make_pool()
        ensure_slots()
    except Exception as error:  # 401, a proxy's page, another program's answer
        raise BadInput(
            f"the Prefect server refuses: {(str(error) or type(error).__name__).splitlines()[0][:200]}",
            where=f"PREFECT_API_URL={show_uri(url)}",
            expected="a Prefect server's address, which ends in /api",
            do="mend it; is PREFECT_API_AUTH_STRING the server's?",
        ) from error
    done = subprocess.run(
        [_prefect(), "--no-prompt", "deploy", "--prefect-file", str(FILE), "--all"],
        env={**os.environ, **QUIET, "PREFECT_API_URL": url, "PROCAP_WORKSPACE": str(root.resolve())},
        cwd=root,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BadInput(
            f"Prefect does not take the deployment: {(done.stderr or done.stdout).strip()[-500:]}",
            where=str(root / FILE),
            expected="a deployment that the server accepts",
            do="read what it says",
        )


@contextmanager
def worker(root: Path, addresses: Mapping[str, str]) -> Iterator[None]:
    """Deploy, and keep a worker of the pool while the block runs; ``addresses`` go into its environment."""
    os.environ.update(addresses)
    deploy(root)
    words = [_prefect(), "worker", "start", "--pool", POOL, "--type", "process"]
    process = subprocess.Popen(words, env={**os.environ, **QUIET}, cwd=root, start_new_session=True)
    try:
        yield
    finally:
        end_family(process)


def _make_pool() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))


def _prefect() -> str:
    return str(Path(sys.executable).parent / "prefect")
