"""The parts of infra/compose.yaml on this machine: PostgreSQL, an S3 server, MLflow and Prefect with passwords."""

import importlib.util
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest

from flows import servers

BIN = Path(sys.executable).parent
DATABASES = ("mlflow", "mlflow_auth", "prefect")
BUCKETS = ("mlflow", "dvc")
USER = "procap"

SECRETS = {
    "PGPASSWORD": token_hex(12),
    "AWS_ACCESS_KEY_ID": "AKIAPROCAPTEST000000",
    "AWS_SECRET_ACCESS_KEY": token_hex(12),
    "MLFLOW_TRACKING_USERNAME": "procap-admin",
    "MLFLOW_TRACKING_PASSWORD": token_hex(12),
    "PREFECT_API_AUTH_STRING": f"procap:{token_hex(12)}",
}
"""As a user keeps them in infra/.env; drawn anew, so that finding one somewhere means that it leaked."""


PATIENT = {
    "PREFECT_API_REQUEST_TIMEOUT": "900",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "300",
    "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "300",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "900",
}
"""However busy the machine is."""


class Lacking(Exception):
    """What this machine has not, so that nothing of a team's servers can be started."""


def free_port() -> int:
    """One that nothing listens on, below those that the system hands out to whoever connects to something."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def refuse_without_packages() -> None:
    """Raise Lacking where a package of the project's `dev` is missing."""
    for package in ("moto", "psycopg2", "boto3", "flask_wtf"):
        if importlib.util.find_spec(package) is None:
            raise Lacking(f"the package {package} is not installed (pip install -e '.[dev]')")


def postgres_programs() -> Path:
    """Where initdb and pg_ctl are; Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and not on_path:
        raise Lacking("there is no PostgreSQL on this machine")
    return found[-1].parent if found else Path(str(on_path)).parent


@contextmanager
def postgres(folder: Path, port: int) -> Iterator[str]:
    """A server with the three databases, passwords checked; its address. Its end is a crash; a second start goes on.

    ``folder`` lies where everybody may go. Raises Lacking where the first start comes to nothing.
    """
    programs, as_user = postgres_programs(), _as_postgres()
    data, log = folder / "data", folder / "log"

    def call(program: str, *words: str) -> None:
        out = folder / "out"  # no pipe: the server would keep it open
        try:
            with out.open("w") as file:
                done = subprocess.run(
                    [str(programs / program), "-D", str(data), *words],
                    cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **as_user,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise Lacking(f"PostgreSQL does not work here: {program}: {error}") from None
        if done.returncode:
            told = " ".join(one.read_text(errors="replace")[-500:] for one in (out, log) if one.exists())
            raise Lacking(f"PostgreSQL does not work here: {program} {' '.join(words)}: {told}")

    new = not data.exists()
    if new:
        secret = folder / "password"
        secret.write_text(SECRETS["PGPASSWORD"])
        try:
            for path in (folder, secret) if as_user else ():
                os.chown(path, as_user["user"], as_user["group"])
        except OSError as error:
            raise Lacking(f"nothing can be given to the user `postgres` here: {error}") from None
        kind = ("-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8", "--locale=C", "--no-sync")
        call("initdb", "-U", USER, *kind)
    options = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories= -p {port} -c fsync=off"
    call("pg_ctl", "-l", str(log), "-w", "-t", "600", "-o", options, "start")
    try:
        if new:
            _make_databases(port)
        yield f"127.0.0.1:{port}"
    finally:
        call("pg_ctl", "-t", "600", "-m", "immediate", "stop")


def _make_databases(port: int) -> None:
    import psycopg2

    try:
        connection = psycopg2.connect(
            host="127.0.0.1", port=port, user=USER, dbname="postgres", password=SECRETS["PGPASSWORD"]
        )
    except psycopg2.Error as error:
        raise Lacking(f"PostgreSQL does not work here: {error}") from None
    connection.autocommit = True
    for name in DATABASES:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    connection.close()


def _as_postgres() -> dict:
    """Whom PostgreSQL runs as: it refuses to be root."""
    if os.geteuid():
        return {}
    try:
        owner = pwd.getpwnam("postgres")
    except KeyError:
        raise Lacking("PostgreSQL refuses to be root, and there is no user `postgres` here") from None
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


@contextmanager
def program(words: list[str], environment: Mapping[str, str], log: Path, well: Callable[[], bool]) -> Iterator[int]:
    """A process that answers before the block begins and is gone after it; its number."""
    from flows.process import end_family

    with log.open("ab") as out:
        process = subprocess.Popen(
            words, env=dict(environment), stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent
        )
    try:
        end = time.monotonic() + 900
        while not well():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.3)
        yield process.pid
    finally:
        end_family(process)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def s3(log: Path, base: Mapping[str, str]) -> Iterator[str]:
    """An S3 server with the two buckets; its address."""
    port = free_port()
    words = [str(BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with program(words, base, log, lambda: listens(port)):
        address = f"http://127.0.0.1:{port}"
        for name in BUCKETS:
            s3_client(address).create_bucket(Bucket=name)
        yield address


def s3_client(address: str):
    import boto3

    return boto3.client(
        "s3", endpoint_url=address, region_name="us-east-1",
        aws_access_key_id=SECRETS["AWS_ACCESS_KEY_ID"], aws_secret_access_key=SECRETS["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip


@contextmanager
def mlflow(folder: Path, base: Mapping[str, str], database: str, store: str, port: int) -> Iterator[str]:
    """MLflow as in compose.yaml; its address."""
    auth = folder / "auth.ini"
    text = (Path(__file__).parents[2] / "infra" / "compose" / "auth.ini").read_text()
    auth.write_text(text.replace("postgres:5432", database))
    environment = {
        **base,
        "PGPASSWORD": SECRETS["PGPASSWORD"],
        "AWS_ACCESS_KEY_ID": SECRETS["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": SECRETS["AWS_SECRET_ACCESS_KEY"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "MLFLOW_BACKEND_STORE_URI": f"postgresql+psycopg2://{USER}@{database}/mlflow",
        "MLFLOW_ARTIFACTS_DESTINATION": "s3://mlflow",
        "MLFLOW_S3_ENDPOINT_URL": store,
        "MLFLOW_AUTH_CONFIG_PATH": str(auth),
        "MLFLOW_AUTH_ADMIN_USERNAME": SECRETS["MLFLOW_TRACKING_USERNAME"],
        "MLFLOW_AUTH_ADMIN_PASSWORD": SECRETS["MLFLOW_TRACKING_PASSWORD"],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "only-for-cookies-1177",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    words = [str(BIN / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--app-name", "basic-auth"]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with program(words, environment, folder / "mlflow.log", lambda: answers(f"{address}/health")):
        yield address


@contextmanager
def prefect(folder: Path, port: int, database: str | None = None) -> Iterator[str]:
    """Prefect as `procap up` starts it, with a ``database`` as in compose.yaml; the address of its API."""
    server = servers.prefect_server(folder, port)
    more = PATIENT | {"PREFECT_HOME": str(folder / "prefect-server")}
    if database:
        more |= {
            "PGPASSWORD": SECRETS["PGPASSWORD"],
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{USER}@{database}/prefect",
            "PREFECT_SERVER_API_AUTH_STRING": SECRETS["PREFECT_API_AUTH_STRING"],
        }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT")]:
            patch.delenv(name)
        patch.setattr(servers, "PATIENCE_SECONDS", 1800)
        with servers.running([replace(server, environment=server.environment | more)], folder / "logs"):
            patch.undo()
            yield f"{server.address}/api"


def answers(url: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
