"""The parts of infra/compose.yaml on this machine: PostgreSQL, an S3 server, MLflow and Prefect with passwords."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from flows.servers import LEASES

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def postgres_programs() -> Path | None:
    """Where initdb and pg_ctl are; Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@contextmanager
def postgres(folder: Path, port: int) -> Iterator[str]:
    """A server with the three databases, passwords checked; its address. Its end is a crash; a second start goes on."""
    programs = postgres_programs()
    assert programs is not None
    data, as_user = folder / "data", _as_postgres()

    def call(program: str, *words: str) -> None:
        subprocess.run([str(programs / program), *words], check=True, cwd=folder, **as_user, capture_output=True)

    new = not data.exists()
    if new:
        folder.mkdir(parents=True)
        secret = folder / "password"
        secret.write_text(SECRETS["PGPASSWORD"])
        if as_user:
            for path in (folder, secret):
                os.chown(path, as_user["user"], as_user["group"])
            for above in folder.parents[:3]:
                above.chmod(above.stat().st_mode | 0o011)
        call("initdb", "-D", str(data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret))
    options = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -p {port} -c fsync=off"
    call("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start")
    try:
        if new:
            import psycopg2

            where = f"host=127.0.0.1 port={port} user={USER} dbname=postgres password={SECRETS['PGPASSWORD']}"
            connection = psycopg2.connect(where)
            connection.autocommit = True
            for name in DATABASES:
                connection.cursor().execute(f"CREATE DATABASE {name}")
            connection.close()
        yield f"127.0.0.1:{port}"
    finally:
        call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


def _as_postgres() -> dict:
    """Whom PostgreSQL runs as: it refuses to be root."""
    if os.geteuid():
        return {}
    owner = pwd.getpwnam("postgres")
    return {"user": owner.pw_uid, "group": owner.pw_gid}


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
def mlflow(folder: Path, base: Mapping[str, str], database: str, store: str, port: int | None = None) -> Iterator[str]:
    """MLflow as in compose.yaml; its address."""
    port = port or free_port()
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
def prefect(folder: Path, base: Mapping[str, str], database: str, port: int | None = None) -> Iterator[str]:
    """A Prefect server as in compose.yaml; the address of its API."""
    port = port or free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {
        **base,
        "PGPASSWORD": SECRETS["PGPASSWORD"],
        "PREFECT_HOME": str(folder / "prefect-server"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{USER}@{database}/prefect",
        "PREFECT_SERVER_API_AUTH_STRING": SECRETS["PREFECT_API_AUTH_STRING"],
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
    }
    words = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with program(words, environment, folder / "prefect.log", lambda: answers(f"{address}/api/health")):
        yield f"{address}/api"


def answers(url: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
