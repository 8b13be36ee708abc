"""Where a registered model comes from, and whether it can be made again: `procap lineage`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.evidence import PATCH, fetch, read_json, temporary_folder
from flows.lineage import git, outputs, stage_name
from flows.presets import write_params
from flows.process import stream
from flows.promotion import find
from flows.store import QUIET, answering, connect
from flows.tracking import flatten
from flows.watching import watch
from flows.worktrees import bring_corpus, bring_files, cache_folder, check_out, remove, share_cache
from procap.config import load_params
from procap.errors import BadInput

HOME = Path(".procap/rebuilt")


@dataclass(frozen=True)
class Origin:
    """What is known of a version; ``facts`` as ``flows.evidence`` collected them."""

    name: str
    version: str
    facts: Mapping[str, Any]
    commit: str
    """Of the training, or the later one that holds what was not committed then (`procap finalize`)."""
    patch: bytes
    """To be put over ``commit``."""
    complaint: str
    """Why it cannot be made again, or nothing."""

    @property
    def target(self) -> str:
        """The stage that the model's scores come from."""
        return stage_name("evaluate", self.facts["captioner"])


@dataclass(frozen=True)
class Same:
    """An output of the rebuild beside the one on record."""

    path: str
    recorded: str
    made: str

    @property
    def holds(self) -> bool:
        return self.recorded == self.made


def origin(root: Path, uri: str) -> Origin:
    """Look up ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.

    Raises BadInput for another address, an unknown version, and one of which nothing is kept.
    """
    name, source = parsed(uri)
    client = connect(root)
    with answering(root), temporary_folder() as folder:
        version = find(client, name, source)
        kept = fetch(client, version, Path(folder))
        if kept is None:
            raise BadInput(
                "nothing is kept of where this version comes from",
                where=uri,
                expected="a version that the step `register` made",
                do="register it again: `dvc repro --force register`",
            )
        facts = read_json(kept / "lineage.json")
        patch = (kept / PATCH).read_bytes() if (kept / PATCH).exists() else b""
    tags = version.tags
    commit = tags.get("procap.commit") or tags.get("git.commit", "")
    if "procap.commit" in tags or tags.get("git.dirty") != "true":
        patch, complaint = b"", "" if commit else "it was trained outside a git repository"
    else:
        complaint = _incomplete(facts, commit, patch)
    return Origin(name, str(version.version), facts, commit, patch, complaint)


def _incomplete(facts: Mapping[str, Any], commit: str, patch: bytes) -> str:
    """What is missing of a tree that no commit holds; nothing where the patch has it all."""
    if facts["git"].get("git.commit") != commit:
        return "what is kept of it was made at another commit"  # the same bundle, registered again
    if facts["untracked"]:
        return f"git did not know {', '.join(facts['untracked'][:5])}"
    return "" if patch else "the changes over the commit were too large to be kept"


def parsed(uri: str) -> tuple[str, str]:
    """Name, and alias or number; BadInput for what is no address of a registered model."""
    rest = uri.removeprefix("models:/")
    name, sign, source = rest.partition("@" if "@" in rest else "/")
    if rest == uri or not sign or not name or not source or (sign == "/" and not source.isdigit()):
        raise BadInput(
            f"'{uri}' is no address of a model",
            where="procap lineage",
            expected="models:/<name>@<alias> or models:/<name>/<version>",
            do="try models:/procap@champion",
        )
    return name, source


def lines(found: Origin) -> Iterator[str]:
    """What is known, to be read, and the commands that make it again."""
    facts = found.facts
    yield f"models:/{found.name}/{found.version}, captioner {facts['captioner']}"
    yield f"bundle      {facts['bundle']}"
    yield f"commit      {found.commit or 'none'}" + (" with changes, kept as a patch" if found.patch else "")
    yield f"seed        {facts['params']['seed']}, replicate {facts['params']['replicate']}"
    yield f"made with   {', '.join(f'{name} {value}' for name, value in facts['versions'].items())}"
    yield f"made on     {', '.join(map(str, facts['machine'].values()))}"
    yield f"test data   {facts['test_data']}"
    for path, md5 in facts["corpora"].items():
        yield f"corpus      {md5}  {path}"
    for name, step in facts["steps"].items():
        yield f"{name}: {step['digest']}"
        for path, md5 in step["outs"].items():
            yield f"            {md5:36}  {path}"
    yield "parameters  " + ", ".join(f"{key}={value}" for key, value in flatten(facts["params"]).items())
    yield "again:"
    if found.complaint:
        yield f"  not possible: {found.complaint}"
    else:
        yield from (f"  {command}" for command in commands(found))


def commands(found: Origin) -> list[str]:
    """What to type in a clone of this repository."""
    patch = "git apply changes.patch   # artifact of the version's evidence in MLflow"
    return [
        f"git worktree add ../{found.name}-{found.version} {found.commit} && cd ../{found.name}-{found.version}",
        *([patch] if found.patch else []),
        "make setup && source .venv/bin/activate",
        *(f"dvc pull {path}.dvc" for path in found.facts["corpora"]),
        f"dvc repro {found.target}",
    ]


def verify(root: Path, found: Origin, *, scratch: bool, say: Callable[[str], Any]) -> list[Same]:
    """Make the model again in a worktree and hold every output against the record.

    DVC's cache is used, so that what was computed before is taken from it and its bytes are checked; with ``scratch``
    everything is computed. Raises BadInput where it cannot be made again or a step fails.
    """
    if found.complaint or git(root, "cat-file", "-e", f"{found.commit}^{{commit}}") is None:
        why = found.complaint or f"this clone has no commit {found.commit}"
        raise BadInput(
            f"it cannot be made again: {why}",
            where=f"models:/{found.name}/{found.version}",
            expected="a commit, and a patch where it was dirty",
            do="fetch the commit; train from a clean commit next time",
        )
    folder = root.resolve() / HOME / f"{found.name}-{found.version}"
    remove(root, folder)
    try:
        check_out(root, folder, found.commit)
        if found.patch:
            subprocess.run(["git", "-C", str(folder), "apply", "-"], input=found.patch, check=True)
        _same_params(folder, found)
        if not scratch:
            share_cache(root, folder, cache_folder(root))
        bring_corpus(root, folder, Path("data/raw") / found.facts["params"]["dataset"]["name"])
        bring_files(root, folder, found.facts["params"])
        watch(folder, found.facts["params"])
        _rebuild(folder, found, say)
        return compared(folder, found)
    finally:
        remove(root, folder)


def compared(folder: Path, found: Origin) -> list[Same]:
    """Every output on record beside what ``folder`` has, and the bundle's digest."""
    from procap.files import file_digest

    made, pairs = outputs(folder), []
    for step in found.facts["steps"].values():
        pairs += [Same(path, md5, made.get(path, "nothing")) for path, md5 in step["outs"].items()]
    manifest = folder / "data" / "caption" / found.facts["captioner"] / "bundle" / "manifest.json"
    digest = file_digest(manifest) if manifest.exists() else "nothing"
    return [*pairs, Same("bundle", found.facts["bundle"], digest)]


def _same_params(folder: Path, found: Origin) -> None:
    """The parameters on record, where the worktree's file says something else (a file that git ignores, say).

    A file that says the same in other words, with a default left out, stays: DVC knows its results by its words.
    """
    path = folder / "params.yaml"
    with suppress(BadInput):  # of a commit whose parameters were others
        if load_params(path).model_dump(mode="json", by_alias=True) == found.facts["params"]:
            return
    write_params(path, found.facts["params"], source="the record")


def _rebuild(folder: Path, found: Origin, say: Callable[[str], Any]) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TRACKING", "PREFECT"))}
    ours = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",  # a rebuild is no new run of anybody's
    }
    words = [sys.executable, "-m", "dvc", "repro", found.target]
    status, tail = stream(words, {**QUIET, **kept, **ours}, say, folder=folder)
    if status:
        raise BadInput(
            f"the rebuild failed, dvc ended with {status}: {' | '.join(tail[-3:])}",
            where=f"{found.commit}, {found.target}",
            expected="every step to end well",
            do="read what it says above; the corpus or a package may be another",
        )
