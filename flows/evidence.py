"""What is kept beside a registered version: what it was judged by, where it came from, and its card."""

import base64
import io
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.lineage import OF_PEOPLE, git, git_bytes, git_facts, outputs, read_yaml, stage_digest
from procap.errors import BadInput
from procap.evaluation.promotion import ANSWERS, test_digest
from procap.files import file_digest, write_json, write_text

EVIDENCE, TEST_DATA, SCORES = "procap.evidence", "procap.test_data", "procap.scores"
"""Tags of a version: ``<run id>/<folder>`` of artifacts; digest of the test pairs; digest of what it said of them."""

FILES = ("predictions.json", "metrics.json", "validation.json", "examples.json", "lineage.json", "model_card.md")
PATCH = "changes.patch"
LARGEST_PATCH = 5_000_000
LONGEST_DESCRIPTION = 5000
"""Of a version, in MLflow."""
MADE_WITH = ("torch", "numpy", "procap")


@dataclass(frozen=True)
class Facts:
    """What the version is said to be."""

    name: str
    captioner: str
    bundle: str
    """Digest."""
    params: Mapping[str, Any]
    """As in params.yaml."""


@dataclass(frozen=True)
class Evidence:
    """A folder with FILES, and what finds out whether a version has it already."""

    folder: Path
    captioner: str
    tags: Mapping[str, str]
    """TEST_DATA and SCORES."""


def collect(root: Path, facts: Facts, target: Path) -> Evidence:
    """Write FILES to ``target`` from what the pipeline left in ``root/data``.

    ``changes.patch`` is written too where the tree holds what no commit does.
    Raises BadInput where a result is missing.
    """
    data = root / "data"
    results = data / "evaluate" / facts.captioner
    for name in ("predictions.json", "metrics.json"):
        _copy(results / name, target / name)
    _copy(data / "validate" / "report.json", target / "validation.json")
    from procap.datasets.pairs import Pairs

    pairs = Pairs.read(data / "prepare")
    digest = test_digest(pairs)
    predictions = read_json(target / "predictions.json")
    write_json(target / "examples.json", _examples(pairs.split("test"), predictions))
    lineage = collect_lineage(root, facts) | {"test_data": digest}
    write_json(target / "lineage.json", lineage)
    if patch := _patch(root, lineage["git"]):
        (target / PATCH).write_bytes(patch)
    from procap.evaluation.model_card import model_card

    card = model_card(
        facts.name,
        facts.captioner,
        read_json(target / "metrics.json"),
        read_json(target / "validation.json"),
        lineage,
    )
    write_text(target / "model_card.md", card)
    tags = {TEST_DATA: digest, SCORES: file_digest(target / "predictions.json")}
    return Evidence(target, facts.captioner, tags)


def collect_lineage(root: Path, facts: Facts) -> dict[str, Any]:
    """Commit, parameters, seeds, digests of data and steps, versions, machine."""
    stages = [name for name in read_yaml(root / "dvc.lock").get("stages", {}) if name.partition("@")[0] != "register"]
    wanted = [name for name in stages if name.partition("@")[2] in ("", facts.captioner)]
    untracked = git(root, "ls-files", "--others", "--exclude-standard", *OF_PEOPLE) or ""
    return {
        "captioner": facts.captioner,
        "bundle": facts.bundle,
        "git": git_facts(root),
        "untracked": untracked.splitlines(),
        "params": dict(facts.params),
        "corpora": _corpora(root),
        "steps": {
            name: {"digest": stage_digest(root, name, locked=True), "outs": outputs(root, name)} for name in wanted
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in MADE_WITH},
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """What computed it; a result on a GPU follows from its kind."""
    import psutil
    import torch

    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": f"{os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def fetch(client: Any, found: Any, target: Path) -> Path | None:
    """Bring the evidence of a version to ``target``; None where it has none."""
    place = found.tags.get(EVIDENCE)
    if not place:
        return None
    run, _, folder = place.partition("/")
    return Path(client.download_artifacts(run, folder, str(target)))


def keep(client: Any, run_id: str, found: Any, evidence: Evidence) -> None:
    """Log evidence with a run and say so on the version, unless the version has it; the tags come last."""
    if all(found.tags.get(key) == value for key, value in evidence.tags.items()):
        return
    folder = f"evidence/{evidence.captioner}"
    client.log_artifacts(run_id, str(evidence.folder), folder)
    card = (evidence.folder / "model_card.md").read_text(encoding="utf-8")
    client.update_model_version(found.name, found.version, card[:LONGEST_DESCRIPTION])
    for key, value in {EVIDENCE: f"{run_id}/{folder}", **evidence.tags}.items():
        client.set_model_version_tag(found.name, found.version, key, value)


def temporary_folder() -> tempfile.TemporaryDirectory:
    """Gone with the block."""
    return tempfile.TemporaryDirectory(prefix="procap-")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _copy(source: Path, target: Path) -> None:
    if not source.exists():
        raise BadInput(
            "a result that the registered version is judged by is missing",
            where=str(source),
            expected="what the steps before `register` wrote",
            do="run `dvc repro`",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _examples(pairs: Any, predictions: Mapping[str, Any]) -> list[dict[str, str]]:
    """The first pairs of the test split as the model takes them, with the sentence that was told of each."""
    names = [str(name) for name in pairs.table["id"][:ANSWERS]]
    rows = slice(0, len(names))
    ends = zip(names, pairs.before(rows), pairs.after(rows), strict=True)
    return [
        {"id": name, "before": encoded(before), "after": encoded(after), "sentence": predictions[name]["sentence"]}
        for name, before, after in ends
        if name in predictions
    ]


def encoded(pixels: Any) -> str:
    """A picture as a PNG file in base64."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode("ascii")


def _corpora(root: Path) -> dict[str, str]:
    """{path: md5} of the corpora that were added with `dvc add`."""
    return {
        str(Path("data/raw") / path.stem): out["md5"]
        for path in sorted((root / "data" / "raw").glob("*.dvc"))
        for out in read_yaml(path).get("outs", ())
    }


def _patch(root: Path, facts: Mapping[str, str]) -> bytes:
    """What to put over the commit to have the tree that trained; nothing where that is the commit itself."""
    if facts.get("git.dirty") != "true":
        return b""
    patch = git_bytes(root, "diff", "HEAD", "--binary", *OF_PEOPLE) or b""
    return patch if len(patch) <= LARGEST_PATCH else b""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
