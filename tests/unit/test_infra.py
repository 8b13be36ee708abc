"""What cannot be started everywhere is at least well formed and safe: compose.yaml, images, deployments."""

import inspect
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "infra" / "compose.yaml"
SECRET = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|AUTH_STRING|AUTH_KEY")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Health(Strict):
    test: list[str] = Field(min_length=2)
    interval: Annotated[str, Field(pattern=r"^\d+s$")]
    timeout: Annotated[str, Field(pattern=r"^\d+s$")]
    retries: int
    start_period: Annotated[str, Field(pattern=r"^\d+s$")] | None = None


class Waits(Strict):
    condition: Literal["service_healthy", "service_completed_successfully", "service_started"]


class Build(Strict):
    context: str
    dockerfile: str


class Service(Strict):
    """The part of the compose specification that the file uses."""

    image: str
    build: Build | None = None
    restart: Literal["no", "unless-stopped"]
    command: list[str] | None = None
    entrypoint: list[str] | None = None
    working_dir: str | None = None
    init: bool = False
    logging: dict[str, Any] | None = None
    environment: dict[str, str] = {}
    volumes: list[Annotated[str, Field(pattern=r"^[^:]+:/[^:]+(:ro)?$")]] = []
    ports: list[Annotated[str, Field(pattern=r"^127\.0\.0\.1:\d+:\d+$")]] = []
    depends_on: dict[str, Waits] = {}
    healthcheck: Health | None = None


class Compose(Strict):
    name: str
    services: dict[str, Service]
    volumes: dict[str, None]


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def compose(values: Any = None) -> Compose:
    values = read(COMPOSE) if values is None else values
    return Compose(**{key: value for key, value in values.items() if not key.startswith("x-")})


def test_the_file_is_what_the_specification_takes():
    found = compose()
    assert set(found.services) == {"postgres", "s3", "buckets", "mlflow", "prefect", "worker"}
    for name, service in found.services.items():
        assert service.healthcheck or service.restart == "no", f"{name}: nobody can wait for it"
        for other, how in service.depends_on.items():
            due = found.services[other]
            assert how.condition != "service_healthy" or due.healthcheck, f"{name} waits for {other} in vain"
            assert how.condition != "service_completed_successfully" or due.restart == "no"
        for volume in service.volumes:
            source = volume.partition(":")[0]
            assert source in found.volumes or (COMPOSE.parent / source).exists(), f"{name}: {source}"
        assert service.build is None or (COMPOSE.parent / service.build.context / service.build.dockerfile).exists()
        assert service.build or re.search(r":\d+\.\d+", service.image), f"{name}: the image is not pinned"


@pytest.mark.parametrize(
    "change",
    [
        lambda services: services["mlflow"].update(ports=["5000:5000"]),
        lambda services: services["mlflow"].update(privileged=True),
        lambda services: services["mlflow"]["depends_on"].update(s3={"condition": "healthy"}),
        lambda services: services["mlflow"].pop("image"),
    ],
    ids=["open port", "unknown key", "unknown condition", "no image"],
)
def test_the_check_above_can_fail(change):
    values = read(COMPOSE)
    change(values["services"])
    with pytest.raises(ValidationError):
        compose(values)


def secrets_without_a_need(services: dict[str, Service]) -> list[str]:
    """Secrets that would be empty, or have a default, where nobody sets them."""
    return [
        f"{name}: {key}"
        for name, service in services.items()
        for key, value in service.environment.items()
        if SECRET.search(key) and not re.fullmatch(r"(\$\{[A-Z_0-9]+:\?[^}]+\},?)+", value)
    ]


def test_no_secret_has_a_default_or_stands_in_a_file():
    services = compose().services
    assert not secrets_without_a_need(services)
    assert len([key for one in services.values() for key in one.environment if SECRET.search(key)]) > 10
    services["mlflow"].environment["MLFLOW_AUTH_ADMIN_PASSWORD"] = "${MLFLOW_TRACKING_PASSWORD:-password1234}"
    assert secrets_without_a_need(services) == ["mlflow: MLFLOW_AUTH_ADMIN_PASSWORD"]
    text = COMPOSE.read_text(encoding="utf-8")
    assert not re.search(r"//[^/@\s]+:[^/@\s]+@", text), "a password in an address"
    wanted = set(re.findall(r"\$\{([A-Z_0-9]+):\?", text))
    example = dict(
        line.split("=", 1) for line in (ROOT / "infra" / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )  # fmt: skip
    assert wanted == {key for key, value in example.items() if not value}, "empty, so that they have to be chosen"
    ignored = subprocess.run(["git", "check-ignore", "-q", "infra/.env"], cwd=ROOT)
    assert ignored.returncode == 0


def test_mlflow_is_guarded():
    environment = compose().services["mlflow"].environment
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    hosts = environment["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert "*" not in hosts
    assert {"localhost:*", "127.0.0.1:*", "mlflow:*"} == set(hosts)
    assert "basic-auth" in (ROOT / "infra" / "mlflow.Dockerfile").read_text()


def test_prefects_leases_outlive_a_restart():
    from flows.servers import LEASES

    environment = compose().services["prefect"].environment
    assert environment["PREFECT_SERVER_API_AUTH_STRING"]
    assert environment["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"] == LEASES
    assert f"prefect:{environment['PREFECT_HOME']}" in compose().services["prefect"].volumes


def test_docker_takes_it_where_it_is_there():
    if shutil.which("docker") is None or subprocess.run(
        ["docker", "compose", "version"], capture_output=True
    ).returncode:
        pytest.skip("no `docker compose` here; the checks above stand in")
    names = ("POSTGRES_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    example = {"PATH": "/usr/local/bin:/usr/bin:/bin", **dict.fromkeys(names, "x")}
    words = ["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"]
    refused = subprocess.run(words, env=example, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "set it in infra/.env" in refused.stderr
    more = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY",
            "PREFECT_API_AUTH_STRING")  # fmt: skip
    assert subprocess.run(words, env=example | dict.fromkeys(more, "x"), capture_output=True).returncode == 0


@pytest.mark.parametrize("file", ["prefect.yaml", "prefect-docker.yaml"])
def test_each_deployment_is_a_flow_with_those_parameters(file):
    pytest.importorskip("prefect")
    from flows.process import mark_process

    found = read(ROOT / "infra" / file)
    for deployment in found["deployments"]:
        path, _, name = deployment["entrypoint"].partition(":")
        flow = getattr(import_module(path.removesuffix(".py").replace("/", ".")), name)
        assert mark_process in flow.on_running_hooks, "the doctor has to know it"
        signature = inspect.signature(flow.fn)
        signature.bind_partial(**(deployment["parameters"] or {}))
        needed = {key for key, value in signature.parameters.items() if value.default is inspect.Parameter.empty}
        given = set(deployment["parameters"] or {}) | {"pairs", "out"}
        assert needed <= given, "what has no default is given by who triggers"
        limit = deployment["concurrency_limit"]
        assert limit == {"limit": 1, "collision_strategy": "ENQUEUE"}
        text = str(deployment)
        assert not SECRET.search(text), "parameters and env are shown in the UI"
    names = [deployment["name"] for deployment in found["deployments"]]
    if file == "prefect.yaml":
        assert set(names) >= {"pipeline", "ablation", "promote", "validate-data", "batch-caption"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize(
    ("says", "status", "ends", "told"),
    [
        ("No known vulnerabilities found", 0, 0, "No known"),
        ("Found 2 known vulnerabilities in 1 package", 1, 2, "Found 2"),
        ("ConnectionError: Failed to resolve", 1, 0, "audit: skipped"),
    ],
    ids=["clean", "holes", "unreachable"],
)
def test_the_audit_fails_for_holes_and_is_skipped_aloud_where_nobody_answers(tmp_path, says, status, ends, told):
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    program.chmod(0o755)
    words = ["make", "-C", str(ROOT), "--no-print-directory", "-o", "setup", "audit", f"BIN={tmp_path}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == ends
    assert told in done.stdout


def test_every_fault_of_the_table_names_a_test_that_exists():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) >= 20
    known = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for number, seen in rows:
        named = re.findall(r"`([^`]+)`", seen)
        assert named, f"fault {number} names no test"
        for name in named:
            assert f"def {name}(" in known or (ROOT / name).exists(), f"fault {number}: {name}"
