"""Where a result comes from: the commit, what DVC says went in and came out, and one digest that ties them.

``dvc.yaml`` and ``dvc.lock`` are read as files: inside a stage DVC's own commands would wait for the stage.
"""

import hashlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flows.watching import elsewhere, without
from procap.errors import BadInput

CODE = ".py"

OF_PEOPLE = ("--", ".", ":(exclude)dvc.lock", ":(exclude)data")
"""Paths for git: all but what the pipeline itself writes."""


@dataclass(frozen=True)
class Declaration:
    """A stage of ``dvc.yaml`` with its variables filled in."""

    name: str
    cmd: str
    deps: tuple[str, ...]
    params: dict[str, Any]
    outs: tuple[str, ...]
    elsewhere: Mapping[str, str]
    """{parameter: path} of the files that no stage makes; they are not among ``deps``."""


def stage_name(step: str, captioner: str | None = None) -> str:
    """The name DVC and MLflow use: ``caption@procap``."""
    return f"{step}@{captioner}" if captioner else step


def read_yaml(path: Path) -> Any:
    """A YAML file as plain values, not to be changed; an absent file is an empty mapping.

    Raises BadInput for one that is torn.
    """
    return _parse(path, path.read_text(encoding="utf-8", errors="replace")) if path.exists() else {}


def read_stages(root: Path) -> Any:
    """The stages of ``dvc.yaml`` without what parameters name from elsewhere: the same whatever they name."""
    path = root / "dvc.yaml"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return _parse(path, without(text)).get("stages") or {}


@lru_cache(maxsize=8)
def _parse(path: Path, text: str) -> Any:
    """Parsing takes a good part of a second on a slow machine, and the same files are asked for many times."""
    from ruamel.yaml import YAML, YAMLError

    try:
        values = YAML(typ="safe").load(text) or {}
        if not isinstance(values, dict):
            raise YAMLError(f"a {type(values).__name__} at the top")
    except YAMLError as error:
        raise BadInput(
            f"not YAML: {' '.join(str(error).split())}", where=str(path), expected="sections",
            do=f"`git checkout {path.name}`; without dvc.lock, `dvc repro` finds results in its cache",
        ) from None  # fmt: skip
    return values


def dotted(values: Any, key: str) -> Any:
    """``values["a"]["b"]`` for ``a.b``."""
    for part in key.split("."):
        values = values[part]
    return values


def declaration(root: Path, name: str, params: Mapping[str, Any] | None = None) -> Declaration:
    """Read the stage ``name`` of ``dvc.yaml`` and fill in ``${...}`` from ``params`` and the matrix.

    ``params`` are those of ``params.yaml`` unless others are given.
    """
    params = read_yaml(root / "params.yaml") if params is None else params
    step, _, captioner = name.partition("@")
    stage = read_stages(root).get(step)
    if stage is None:
        raise BadInput(f"no stage '{step}'", where=str(root / "dvc.yaml"), expected="a stage per step", do="add it")
    values = {**params, "item": {"captioner": captioner}}

    def fill(text: str) -> str:
        return re.sub(r"\$\{([^}]+)\}", lambda found: str(dotted(values, found[1].strip())), text)

    outs = (
        next(iter(out)) if isinstance(out, Mapping) else out
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind, ())
    )
    return Declaration(
        name,
        fill(stage["cmd"]),
        tuple(fill(dep) for dep in stage.get("deps", ())),
        {key: dotted(params, key) for key in map(fill, stage.get("params", ())) if key},  # "": asked for no captioner
        tuple(map(fill, outs)),
        elsewhere(root, step, params),
    )


def outputs(root: Path, name: str | None = None) -> dict[str, str]:
    """{path: md5} of what ``dvc.lock`` holds: the outputs of one stage, or of all."""
    stages = read_yaml(root / "dvc.lock").get("stages", {})
    return {
        out["path"]: out["md5"]
        for stage, entry in stages.items()
        if name in (None, stage)
        for out in entry.get("outs", ())
        if "md5" in out
    }


def inputs(root: Path, stage: Declaration, known: Mapping[Path, str] = MappingProxyType({})) -> dict[str, str]:
    """{path: md5} of the data that goes into a stage: outputs of earlier ones, and corpora added with ``dvc add``.

    A dependency on a folder above some outputs stands for each of them; outputs of the stage itself are no inputs.
    Files from elsewhere come under the name of their parameter; ``known`` has md5 of some.
    """
    own = outputs(root, stage.name)
    made = {path: md5 for path, md5 in outputs(root).items() if path not in own}
    found: dict[str, str] = {}
    for dep in stage.deps:
        if dep.endswith(CODE):
            continue
        found |= {path: md5 for path, md5 in made.items() if _meet(path, dep)}
        for out in read_yaml(root / f"{dep}.dvc").get("outs", ()):
            found[dep] = out["md5"]
    for key, path in stage.elsewhere.items():
        found[key] = known.get((root / path).resolve()) or _md5(root / path)
    return found


def _meet(one: str, other: str) -> bool:
    """Whether they are one path, or one lies below the other."""
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")


def plan_digests(root: Path, target: str, params: Mapping[str, Any]) -> dict[str, str]:
    """{stage: digest} of ``target`` and all stages before it, in the order they run, with nothing run yet.

    A digest covers what the result follows from: command, parameters, code, added corpora and the stages before.
    """
    stages = read_stages(root)
    captioner = target.partition("@")[2]
    names = [stage_name(step, captioner if "matrix" in stage else None) for step, stage in stages.items()]
    declared = {name: declaration(root, name, params) for name in names}
    found: dict[str, str] = {}

    def visit(name: str) -> str:
        if name not in found:
            stage = declared[name]
            data = [dep for dep in stage.deps if not dep.endswith(CODE)]
            facts = {
                "cmd": stage.cmd,
                "params": stage.params,
                "code": {dep: _md5(root / dep) for dep in stage.deps if dep.endswith(CODE)},
                "corpora": {dep: _md5(root / f"{dep}.dvc") for dep in data},
                "before": {
                    other: visit(other)
                    for other in names
                    if other != name and any(_meet(out, dep) for out in declared[other].outs for dep in data)
                },
            }
            if stage.elsewhere:
                facts["elsewhere"] = {key: _md5(root / path) for key, path in stage.elsewhere.items()}
            found[name] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return found[name]

    visit(target)
    return found


def stage_digest(root: Path, name: str, *, locked: bool = False) -> str:
    """One sha256 for what a stage's result follows from: parameters, code and data.

    The stage computes it when it starts; with ``locked`` it is computed afterwards, from what ``dvc.lock``
    says of code and parameters. The two are equal for the run that made the present outputs.
    """
    stage = declaration(root, name)
    known: dict[Path, str] = {}
    if locked:
        entry = read_yaml(root / "dvc.lock")["stages"][name]
        known = {(root / dep["path"]).resolve(): dep.get("md5", "") for dep in entry.get("deps", ())}
        code = {dep["path"]: dep.get("md5", "") for dep in entry.get("deps", ()) if dep["path"].endswith(CODE)}
        params = entry.get("params", {}).get("params.yaml", {})
    else:
        code = {dep: _md5(root / dep) for dep in stage.deps if dep.endswith(CODE)}
        params = stage.params
    facts = {"name": name, "params": params, "code": code, "data": inputs(root, stage, known)}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _md5(path: Path) -> str:
    """As DVC writes it into ``dvc.lock``; nothing where there is no such file or folder."""
    if not path.is_dir():
        if not path.exists():
            return ""
        facts = path.stat()
        return _md5_of_file(path, facts.st_mtime_ns, facts.st_size)
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    listed = [{"md5": _md5(file), "relpath": name} for name, file in sorted(files.items())]
    return hashlib.md5(json.dumps(listed, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


@lru_cache(maxsize=1024)
def _md5_of_file(path: Path, _changed: int, _size: int) -> str:
    """Checkpoints are large, and plans ask for each of them many times."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def git_facts(root: Path) -> dict[str, str]:
    """Tags ``git.commit``, ``git.dirty`` and, where dirty, ``git.diff_sha256``; empty outside a repository.

    What the pipeline itself rewrites (``dvc.lock``, ``data/``) does not make a tree dirty.
    """
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = git(root, "status", "--porcelain", *OF_PEOPLE) or ""
    facts = {"git.commit": commit, "mlflow.source.git.commit": commit, "git.dirty": str(bool(changed)).lower()}
    if changed:
        difference = git(root, "diff", "HEAD", "--binary", *OF_PEOPLE) or ""
        facts["git.diff_sha256"] = hashlib.sha256((changed + "\n" + difference).encode()).hexdigest()
    return facts


def git(root: Path, *words: str) -> str | None:
    """What a git command prints, stripped; None where it fails or git is absent."""
    printed = git_bytes(root, *words)
    return None if printed is None else printed.decode("utf-8", "replace").strip()


def git_bytes(root: Path, *words: str) -> bytes | None:
    """What a git command prints, as it is; None where it fails or git is absent."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def rebuild_key() -> str:
    """Names the rebuild this process belongs to: ``PROCAP_REBUILD``, else the ``dvc`` process above, else this one."""
    if named := os.environ.get("PROCAP_REBUILD"):
        return named
    import psutil

    process = dvc_above() or psutil.Process()
    return f"{socket.gethostname()}-{process.pid}-{_started(process)}"


def dvc_above() -> Any:
    """The ``dvc`` process that this one runs below (psutil.Process), or None."""
    import psutil

    for ancestor in psutil.Process().parents():
        try:
            if any(Path(word).name == "dvc" for word in ancestor.cmdline()[:3]):
                return ancestor
        except psutil.Error:
            break
    return None


def process_facts(pid: int | None = None) -> dict[str, str]:
    """Tags that tell later whether this very process, or the one with that number, still lives."""
    import psutil

    process = psutil.Process(pid)
    facts = {"procap.host": socket.gethostname(), "procap.pid": str(process.pid)}
    return facts | {"procap.pid_started": _started(process)}


def _started(process: Any) -> str:
    """Tells a process from a later one with its number, also after somebody set the clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        ticks = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return f"{boot}-{ticks}"
    except OSError:  # no Linux, or it is gone
        return f"{process.create_time():.2f}"


def is_dead(tags: dict[str, str]) -> bool:
    """Whether the process that left ``process_facts`` is gone; False for another machine's, which nobody here knows."""
    import psutil

    if tags.get("procap.host") != socket.gethostname() or "procap.pid" not in tags:
        return False
    try:
        process = psutil.Process(int(tags["procap.pid"]))
        return _started(process) != tags.get("procap.pid_started") or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
