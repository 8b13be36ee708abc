"""`procap doctor`: everything the pipeline leans on, what is wrong with it and what to do; it makes nothing new.

Each look is a function that yields findings; with ``fix`` it also mends what can be mended without losing anything.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flows import locks
from flows.lineage import git, git_facts, is_dead, read_yaml
from flows.store import answering, check_server, connect, show_uri, tracking_uri
from flows.upkeep import orphaned_runs
from procap.errors import BadInput

PACKAGES = ("dvc", "great-expectations", "mlflow", "numba", "numpy", "pandas", "prefect", "torch")
OLDEST_PYTHON = (3, 11)
SPARE_GB = 5
OLD_STATE_DAYS = 14
SECRETS = (
    "password", "secret_access_key", "access_key_id", "session_token", "account_key", "connection_string", "token",
)  # fmt: skip
"""Options of a DVC remote that no file under git may hold."""


@dataclass(frozen=True)
class Finding:
    """One line of `procap doctor`."""

    what: str
    well: bool
    seen: str
    do: str = ""
    """How to mend it."""
    needed: bool = True
    """Whether something fails without it."""


def examine(root: Path, fix: bool) -> Iterator[Finding]:
    """Look at everything; ``fix`` closes runs and clears locks whose process is gone, and old leftovers."""
    here = (root / "dvc.yaml").exists()
    yield from _python(root)
    yield _java()
    yield _gpu()
    yield _git(root)
    yield _pipeline(root)
    yield _disk(root)
    if not here:
        return
    looks: tuple[Callable[[Path, bool], Iterator[Finding]], ...] = (
        _dvc_locks, _dvc_remotes, _leftovers, _mlflow, _prefect,
    )  # fmt: skip
    for look in looks:
        yield from look(root, fix)


def _python(root: Path) -> Iterator[Finding]:
    told = f"{sys.version.split()[0]} in {sys.prefix}"
    yield Finding("python", sys.version_info >= OLDEST_PYTHON, told, "install Python 3.11 or newer, then `make setup`")
    pins = _constraints(root)
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Finding(package, False, "not installed", "`make setup`")
            continue
        pinned = pins.get(package.replace("_", "-"))
        other = pinned is not None and found.split("+")[0] != pinned
        told = f", tested with {pinned}" if other else ""
        yield Finding(package, not other, found + told, "`make setup`", needed=False)


def _constraints(root: Path) -> dict[str, str]:
    path = root / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    return {name.lower().replace("_", "-"): pin for name, sign, pin in (line.partition("==") for line in lines) if sign}


def _java() -> Finding:
    try:
        told = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=True)
        return Finding("java", True, told.stderr.splitlines()[0])
    except (OSError, subprocess.SubprocessError, IndexError):
        missing = "not found: METEOR and SPICE will be skipped by name"
        return Finding("java", False, missing, "install a Java runtime, as default-jre-headless", needed=False)


def _gpu() -> Finding:
    words = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return Finding("gpu", True, f"none; {len(os.sched_getaffinity(0))} cores compute")
    import torch

    usable = torch.cuda.is_available()
    names = "; ".join(told.splitlines())
    do = "install the CUDA build of torch, or set hardware.device: cpu"
    return Finding("gpu", usable, names + ("" if usable else ", which this torch cannot use"), do)


def _git(root: Path) -> Finding:
    commit = git(root, "rev-parse", "--short", "HEAD")
    if commit is None:
        do = "`git init && git add -A && git commit -m start`: DVC and lineage need it"
        return Finding("git", False, "no commit here", do)
    dirty = git_facts(root).get("git.dirty") == "true"
    return Finding("git", True, f"{commit}{', dirty: what is trained now cannot be promoted' if dirty else ''}")


def _pipeline(root: Path) -> Finding:
    try:
        stages = read_yaml(root / "dvc.yaml").get("stages", {})
        locked = read_yaml(root / "dvc.lock").get("stages") or {}
    except BadInput as complaint:
        return Finding("pipeline", False, f"{Path(complaint.where).name} is cut off: {complaint.what}", complaint.do)
    if not stages:
        return Finding("pipeline", False, "no dvc.yaml here", "run from the project's folder")
    return Finding("pipeline", True, f"{len(stages)} stages in dvc.yaml, {len(locked)} runs in dvc.lock")


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free / 2**30
    do = "make room: `dvc gc --workspace` drops what no file of this commit needs"
    return Finding("disk", free > SPARE_GB, f"{free:.0f} GB free", do)


def _dvc_locks(root: Path, fix: bool) -> Iterator[Finding]:
    if found := locks.clear(root) if fix else locks.wrong(root):
        yield _mended("dvc locks", fix, found, "cleared")
    elif pids := locks.working(root):
        yield Finding("dvc locks", True, f"process {', '.join(map(str, sorted(pids)))} is at work")
    else:
        yield Finding("dvc locks", True, "none held")


def _dvc_remotes(root: Path, fix: bool) -> Iterator[Finding]:
    from configobj import ConfigObj, ConfigObjError

    try:
        shared, local = (ConfigObj(str(root / ".dvc" / name)) for name in ("config", "config.local"))
    except (ConfigObjError, UnicodeDecodeError) as error:
        told = f".dvc/config or .dvc/config.local cannot be read: {error}"
        yield Finding("dvc remote", False, told, "mend that file")
        return
    leaked = [f"{section}: {key}" for section in shared.sections for key in shared[section] if key in SECRETS]
    leaked += [name for name in shared.sections if re.search(r"//[^/@\s:]+:\S+@", str(shared[name].get("url", "")))]
    if leaked:
        do = "take them out and change them; `dvc remote modify --local` keeps them in .dvc/config.local"
        yield Finding("dvc secrets", False, f".dvc/config is under git and has {', '.join(leaked)}", do)
    if (root / ".dvc" / "config.local").exists() and git(root, "check-ignore", "-q", ".dvc/config.local") is None:
        do = "restore .dvc/.gitignore with the line /config.local"
        yield Finding("dvc secrets", False, ".dvc/config.local is not ignored by git", do)
    shared.merge(local)
    names = [name for name in shared.sections if name.startswith(("remote", "'remote"))]
    if not names:
        yield Finding("dvc remote", True, "none: data stay on this machine")
    for section in names:
        name, values = section.strip("'").removeprefix("remote").strip(' "'), shared[section]
        yield _remote(root, name, values)


def _remote(root: Path, name: str, values: Any) -> Finding:
    url = str(values.get("url", ""))
    do = f"`dvc push -r {name}` says more"
    if endpoint := values.get("endpointurl"):
        try:
            check_server(str(endpoint), "S3", "")
        except BadInput as complaint:
            return Finding(f"remote {name}", False, f"{url}: {complaint.what}", "start the store, or mend endpointurl")
        return Finding(f"remote {name}", True, f"{url} at {endpoint}")
    if "://" in url:
        return Finding(f"remote {name}", True, show_uri(url))
    there = (root / ".dvc" / url).exists()  # relative to the folder of the file that says so
    return Finding(f"remote {name}", there, url + ("" if there else ", which is not there yet"), do)


def _leftovers(root: Path, fix: bool) -> Iterator[Finding]:
    """Half-written files of processes that are gone, and states of trainings that nobody continued."""
    import psutil

    halves = []
    for path in (root / "data").rglob("*.partial") if (root / "data").exists() else ():
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            halves.append(path)
    for path in halves if fix else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if halves:
        yield _mended("leftovers", fix, f"{len(halves)} half-written under data", "removed them")
    states = [path for path in (root / ".state").glob("**/") if re.fullmatch(r"[0-9a-f]{24}", path.name)]
    old = [path for path in states if time.time() - path.stat().st_mtime > OLD_STATE_DAYS * 86400]
    for path in old if fix else ():
        shutil.rmtree(path)
    names = ", ".join(path.relative_to(root / ".state").parent.as_posix() for path in (old or states))
    if old:
        yield _mended("state", fix, f"interrupted for {OLD_STATE_DAYS} days: {names}", "removed; they would start anew")
    else:
        yield Finding("state", True, f"to be continued: {names}" if states else "no interrupted training")


def _mended(what: str, fix: bool, seen: str, done: str) -> Finding:
    return Finding(what, fix, f"{seen}; {done}" if fix else seen, "`procap doctor --fix`")


def _mlflow(root: Path, fix: bool) -> Iterator[Finding]:
    uri = tracking_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        yield Finding("mlflow store", True, f"{show_uri(uri)}, made by the first run")
        return
    try:
        client = connect(root)
    except BadInput as complaint:
        yield Finding("mlflow store", False, complaint.what, complaint.do)
        return
    yield Finding("mlflow store", True, show_uri(uri))
    if uri.startswith("http"):
        yield _server_version(uri, "mlflow", "/version")
    try:
        with answering(root):
            yield from _records(client, root, fix)
    except BadInput as complaint:  # a disk that may only be read, a server that goes away
        yield Finding("mlflow runs", False, complaint.what, complaint.do)


def _records(client: Any, root: Path, fix: bool) -> Iterator[Finding]:
    orphans = list(orphaned_runs(client))
    for run in orphans if fix else ():
        client.set_terminated(run.info.run_id, "KILLED")
    names = ", ".join(run.info.run_name for run in orphans)
    if orphans:
        yield _mended("mlflow runs", fix, f"without a process: {names}", "closed")
    else:
        yield Finding("mlflow runs", True, "none without a process")
    yield from _promotions(client, root, fix)


def _promotions(client: Any, root: Path, fix: bool) -> Iterator[Finding]:
    from flows.promotion import mend, open_move

    for model in client.search_registered_models():
        if model.name.endswith(".promotion") or open_move(client, model.name) is None:
            continue
        done = mend(client, root, model.name) if fix else ""
        yield _mended("promotion", fix, f"one of {model.name} died on the way", str(done))


def _server_version(address: str, package: str, path: str) -> Finding:
    import urllib.request
    from http.client import HTTPException

    ours = version(package)
    try:
        with urllib.request.urlopen(show_uri(address).rstrip("/") + path, timeout=5) as answer:
            theirs = answer.read().decode().strip().strip('"')
    except (OSError, ValueError, HTTPException):
        return Finding(f"{package} server", True, f"{show_uri(address)}, of a version it does not tell")
    same = theirs.split(".")[:2] == ours.split(".")[:2]
    return Finding(f"{package} server", same, f"{theirs}, this is {ours}", "update the older one")


def _prefect(root: Path, fix: bool) -> Iterator[Finding]:
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        yield Finding("prefect server", True, "none asked for (PREFECT_API_URL is not set)")
        return
    try:
        check_server(url, "Prefect", "start it (`procap up`), or unset PREFECT_API_URL")
    except BadInput as complaint:
        yield Finding("prefect server", False, complaint.what, complaint.do)
        return
    try:
        yield _server_version(url, "prefect", "/admin/version")
        stuck = list(_stuck_runs(fix))
    except Exception as error:  # 401, a proxy's page, another version's answer
        do = "is PREFECT_API_AUTH_STRING the server's?"
        yield Finding("prefect runs", False, f"{show_uri(url)} refuses: {str(error).splitlines()[0][:200]}", do)
        return
    if stuck:
        yield _mended("prefect runs", fix, f"without a process: {', '.join(stuck)}", "marked as crashed")
    else:
        yield Finding("prefect runs", True, "none without a process")


def _stuck_runs(fix: bool) -> Iterator[str]:
    """Names of flow runs that say RUNNING while their process, on this machine, is gone."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    running = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=running):
            if is_dead({key: str(value) for key, value in run.labels.items()}):
                if fix:
                    client.set_flow_run_state(run.id, Crashed(message="procap doctor: its process is gone"), force=True)
                yield run.name
