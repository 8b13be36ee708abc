"""register: offer every captioner's bundle to the registry; the best on validation gets the alias."""

import json
from pathlib import Path
from typing import Any

from procap.config import Params
from procap.errors import BadInput
from procap.files import write_json
from procap.report import Report, silent
from procap.training.bundle import bundle_digest

TAGGED = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "change_accuracy", "change_type_accuracy")
"""Test scores that a version carries as tags."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/register/versions.json``: one entry per captioner, best on validation first.

    A bundle that the registry has already gives its version again, and no new one.
    """
    chosen = {captioner: _read(data / "caption" / captioner / "metrics.json") for captioner in params.captioners}
    ranked = sorted(params.captioners, key=lambda captioner: (-chosen[captioner]["CIDEr"], captioner))
    versions = []
    for captioner in reversed(ranked):  # the alias moves when all others are in
        alias = params.register_.alias if captioner == ranked[0] else None
        bundle = data / "caption" / captioner / "bundle"
        tags = _tags(captioner, chosen[captioner], _read(data / "evaluate" / captioner / "metrics.json"))
        known = report.model(bundle, tags, alias) or {"version": None, "alias": None}
        versions.append(
            {"name": params.register_.name, "captioner": captioner, "digest": bundle_digest(bundle), **known}
        )
        report.note(_line(versions[-1]))
    write_json(data / "register" / "versions.json", versions[::-1])


def _tags(captioner: str, chosen: dict[str, Any], scores: dict[str, Any]) -> dict[str, str]:
    tested = {f"test.{name}": f"{scores[name]:.6g}" for name in TAGGED if isinstance(scores.get(name), int | float)}
    return {"captioner": captioner, f"{chosen['split']}.CIDEr": f"{chosen['CIDEr']:.6g}"} | tested


def _line(version: dict[str, Any]) -> str:
    if version["version"] is None:
        return f"{version['captioner']}: no registry listens, nothing was registered"
    alias = f", now '{version['alias']}'" if version["alias"] else ""
    return f"{version['captioner']}: {version['name']} version {version['version']}{alias}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"the scores cannot be read: {error}", where=str(path), expected="JSON", do="run `dvc repro evaluate`"
        ) from None
