"""What a worker runs besides the pipeline: an ablation, a promotion, a look at the data.

Each is the command of the same name, in the worker's process group, so that a cancel ends all of it.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, runtime

from flows.pipeline import alone, steps_to_date
from flows.process import child_environment, mark_process, stream
from procap.errors import BadInput


class CommandFailed(RuntimeError):
    """A command ended with another status than 0; its last words."""


@flow(name="ablation", persist_result=False, on_running=[mark_process])
def ablation(
    table: str,
    seeds: int = 1,
    jobs: int = 1,
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    rows: list[str] | None = None,
) -> None:
    """Bring a table of infra/ablations.yaml up to date and compare its rows; what is finished is not run again."""
    words = ["ablate", table, "--seeds", str(seeds), "--jobs", str(jobs)]
    words += ["--preset", preset] if preset else []
    words += ["--rows", ",".join(rows)] if rows else []
    words += [word for key, value in (overrides or {}).items() for word in ("--set", f"{key}={_yaml(value)}")]
    run_command(words)
    page = Path.cwd() / ".procap" / "ablations" / table / "comparison.md"
    if page.exists():
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(page.read_text(encoding="utf-8"), key=f"ablation-{_key(table)}")


@flow(name="promote", persist_result=False, on_running=[mark_process])
def promotion(
    model: str | None = None,
    source: str = "challenger",
    metric: str = "CIDEr",
    margin: float = 0.0,
    dry_run: bool = False,
) -> None:
    """Make a version the champion if every gate is open; the run fails where one is shut."""
    from prefect.artifacts import create_table_artifact

    from flows.promotion import promote
    from procap.config import load_params

    root = Path.cwd()
    name = model or load_params(root / "params.yaml").register_.name
    done = promote(root, name, source=source, metric=metric, margin=margin, dry_run=dry_run)
    gates = [{"gate": gate.name, "passed": gate.passed, "seen": gate.seen} for gate in done.verdict.gates]
    create_table_artifact(gates, key="promotion", description=f"{name}, version {done.wanted}")
    for gate in done.verdict.gates:
        get_run_logger().info("%s %s: %s", "ok" if gate.passed else "NO", gate.name, gate.seen)
    if not done.verdict.promoted:
        serves = f"version {done.before.champion}" if done.before.champion else "nobody"
        raise CommandFailed(f"version {done.wanted} is not promoted; {serves} serves as before")


@flow(name="validate-data", persist_result=False, on_running=[mark_process])
def validate_data(folder: str | None = None) -> None:
    """Hold the corpus of params.yaml, or the one in ``folder``, against its rules; critical breaks fail the run."""
    from prefect.artifacts import create_table_artifact

    root = Path.cwd()
    if folder:
        run_command(["validate", folder, "--out", str(root / ".procap" / "validated" / _key(folder))])
        report = root / ".procap" / "validated" / _key(folder) / "report.json"
    else:
        with alone(root):
            steps_to_date(["validate"])
        report = root / "data" / "validate" / "report.json"
    from flows.evidence import read_json

    rules = read_json(report)["rules"]
    rows = [{"rule": name, **{key: rule[key] for key in ("says", "severity", "success", "unexpected")}}
            for name, rule in rules.items()]  # fmt: skip
    create_table_artifact(rows, key="validation")


def run_command(words: Sequence[str], more: Mapping[str, str] | None = None) -> None:
    """Run `procap` with these words, each line to the run's log; CommandFailed with its last ones."""
    command = [sys.executable, "-m", "flows.cli", *words]
    environment = child_environment(str(runtime.flow_run.id)) | dict(more or {})
    status, tail = stream(command, environment, get_run_logger().info)
    if status:
        raise CommandFailed(f"procap {' '.join(words)} ended with {status}:\n" + "\n".join(tail))


def _yaml(value: Any) -> str:
    return json.dumps(value)  # every JSON value is a YAML one


def _key(text: str) -> str:
    """What Prefect takes as the key of an artifact."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")
    if not kept:
        raise BadInput(f"'{text}' names nothing", where="parameters", expected="a name with letters", do="mend it")
    return kept
