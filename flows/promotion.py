"""Who serves: the alias ``champion`` moves when the verdict is good, and back on request.

Every alias moves in one transaction of the registry, the champion's last; whatever dies on the way leaves the old
champion serving. Who moves holds a lock in the registry itself, so that two machines cannot move at once.
"""

import getpass
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from flows.evidence import fetch, read_json, temporary_folder
from flows.lineage import is_dead, process_facts
from flows.store import AWAY, answering, connect, workspace_lock
from procap.errors import BadInput
from procap.evaluation.promotion import Candidate, Gate, Verdict, judge

CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"
LOG = Path("data/promotions.jsonl")
PATIENCE_SECONDS = 30.0
MOVE = "procap.move"
LONGEST_TAG = 5000
"""Of a registered model, in MLflow."""


@dataclass(frozen=True)
class Standing:
    """The versions that the two aliases name; None where there is none."""

    champion: str | None
    previous: str | None


@dataclass(frozen=True)
class Decision:
    """What `procap promote` or `procap rollback` came to."""

    model: str
    before: Standing
    wanted: str
    """The version that was to serve."""
    verdict: Verdict
    moved: bool


def promote(
    root: Path,
    name: str,
    *,
    source: str = CHALLENGER,
    metric: str = "CIDEr",
    margin: float = 0.0,
    dry_run: bool = False,
) -> Decision:
    """Judge the version that ``source`` names (an alias or a number), and make it champion if all gates are open.

    Raises BadInput where there is nothing to judge, or the champion changed while this one was judged.
    """
    client = connect(root)
    with answering(root):
        return _promote(client, root, name, source, metric, margin, dry_run)


def _promote(
    client: Any, root: Path, name: str, source: str, metric: str, margin: float, dry_run: bool
) -> Decision:
    mend(client, root, name)
    challenger, before = find(client, name, source), standing(client, name)
    wanted = str(challenger.version)
    if wanted == before.champion:
        verdict = Verdict((Gate("champion", True, f"version {wanted} is the champion already"),))
        return Decision(name, before, wanted, verdict, False)
    verdict = _verdict(client, root, name, challenger, before.champion, metric, margin)
    facts = {"metric": metric, "margin": margin, "gates": [asdict(gate) for gate in verdict.gates]}
    if verdict.promoted and not dry_run:
        move(client, root, name, before, Standing(wanted, before.champion), {"action": "promote"} | facts)
    elif not dry_run:
        _write_log(root, name, before, before, {"action": "refuse", "wanted": wanted} | facts)
    return Decision(name, before, wanted, verdict, verdict.promoted and not dry_run)


def rollback(root: Path, name: str) -> Decision:
    """Let the previous champion serve again, if it still works; a second time undoes the first.

    Raises BadInput where there is no previous one.
    """
    client = connect(root)
    with answering(root):
        return _rollback(client, root, name)


def _rollback(client: Any, root: Path, name: str) -> Decision:
    mend(client, root, name)
    before = standing(client, name)
    if before.previous is None or before.previous == before.champion:
        raise BadInput(
            "there is no previous champion",
            where=f"models:/{name}@{PREVIOUS}",
            expected="a version that served before",
            do="promote another version: `procap promote --from <number>`",
        )
    gate = _works(name, before.previous)
    if gate.passed:
        move(client, root, name, before, Standing(before.previous, before.champion), {"action": "rollback"})
    return Decision(name, before, before.previous, Verdict((gate,)), gate.passed)


def find(client: Any, name: str, source: str) -> Any:
    """The version that an alias or a number names."""
    from mlflow.exceptions import MlflowException

    try:
        if source.isdigit():
            return client.get_model_version(name, source)
        return client.get_model_version_by_alias(name, source)
    except MlflowException as error:
        raise _nothing(error, f"models:/{name}" + (f"/{source}" if source.isdigit() else f"@{source}")) from None


def _nothing(error: Any, where: str) -> BadInput:
    return BadInput(
        f"the registry does not give it: {error.message}",
        where=where,
        expected="a registered version",
        do="run `dvc repro`; `procap metrics` shows what is registered",
    )


def standing(client: Any, name: str) -> Standing:
    """Who serves, and who did before; BadInput where no model has that name."""
    from mlflow.exceptions import MlflowException

    try:
        aliases = client.get_registered_model(name).aliases
    except MlflowException as error:
        raise _nothing(error, f"models:/{name}") from None
    return Standing(*(None if aliases.get(alias) is None else str(aliases[alias]) for alias in (CHAMPION, PREVIOUS)))


def move(
    client: Any, root: Path, name: str, before: Standing, after: Standing, facts: Mapping[str, Any]
) -> None:
    """Go from one standing to the other; BadInput where it is not ``before`` any more."""
    _log(root).open("ab").close()  # what cannot be logged is not done
    with _turn(client, root, name) as lock:
        if standing(client, name) != before:
            raise BadInput(
                "the champion changed while this version was judged",
                where=f"models:/{name}@{CHAMPION}",
                expected=f"version {before.champion}, as when the verdict began",
                do="look at who serves now, and promote again",
            )
        facts = {"id": uuid4().hex, **facts}
        intent = {"before": asdict(before), "after": asdict(after), "facts": facts}
        client.set_registered_model_tag(lock, MOVE, _fitting(intent))
        if after.previous is not None:
            client.set_registered_model_alias(name, PREVIOUS, after.previous)
        client.set_registered_model_alias(name, CHAMPION, after.champion)
        _write_log(root, name, before, after, facts)


def _fitting(intent: dict[str, Any]) -> str:
    """As JSON that the registry takes as a tag; the gates are left out where they are too long."""
    text = json.dumps(intent)
    if len(text) > LONGEST_TAG:
        text = json.dumps(intent | {"facts": {key: intent["facts"][key] for key in ("id", "action")}})
    return text


def mend(client: Any, root: Path, name: str) -> str | None:
    """Finish or undo a move whose process died; what was done, None where nothing was open."""
    lock = _lock_name(name)
    if open_move(client, name) is None:
        return None
    with workspace_lock(root, "promotion"):
        tags = open_move(client, name)
        if tags is None:
            return None
        done = "a promotion that died before it moved anything was cleared"
        if MOVE in tags:
            done = _finish_or_undo(client, root, name, json.loads(tags[MOVE]))
        client.delete_registered_model(lock)
    return done


def open_move(client: Any, name: str) -> dict[str, str] | None:
    """What a promotion that died left in the registry; None where none did."""
    tags = _tags(client, _lock_name(name))
    return tags if tags is not None and is_dead(tags) else None


def _finish_or_undo(client: Any, root: Path, name: str, intent: Mapping[str, Any]) -> str:
    before, after = Standing(**intent["before"]), Standing(**intent["after"])
    if standing(client, name).champion == after.champion:
        if intent["facts"]["id"] not in [line.get("id") for line in read_log(root)]:
            _write_log(root, name, before, after, intent["facts"] | {"note": "logged after a crash"})
        return f"version {after.champion} was promoted by a process that died; the log is complete now"
    if before.previous is not None:
        client.set_registered_model_alias(name, PREVIOUS, before.previous)
    else:
        client.delete_registered_model_alias(name, PREVIOUS)
    return f"the promotion of version {after.champion} died on the way; version {before.champion} serves as before"


@contextmanager
def _turn(client: Any, root: Path, name: str) -> Iterator[str]:
    """Hold the lock: a registered model by that name, which the registry makes once only."""
    from mlflow.exceptions import MlflowException

    lock, end = _lock_name(name), time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.create_registered_model(lock, tags=process_facts(), description="Held while a champion is changed.")
            break
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        mend(client, root, name)
        if time.monotonic() > end:
            holder = _tags(client, lock) or {}
            raise BadInput(
                "another promotion is at work",
                where=f"registered model '{lock}', held by {holder.get('procap.host', 'another machine')}",
                expected=f"its end within {PATIENCE_SECONDS:.0f} s",
                do="try again; if nobody promotes, run `procap doctor --fix` on that machine",
            )
        time.sleep(0.2)
    try:
        yield lock
    finally:
        with suppress(MlflowException):
            client.delete_registered_model(lock)


def _lock_name(name: str) -> str:
    return f"{name}.promotion"


def _tags(client: Any, lock: str) -> dict[str, str] | None:
    from mlflow.exceptions import MlflowException

    try:
        return dict(client.get_registered_model(lock).tags)
    except MlflowException:
        return None


def _write_log(root: Path, name: str, before: Standing, after: Standing, facts: Mapping[str, Any]) -> None:
    """Append a line, whole or not at all."""
    line = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": f"{getpass.getuser()}@{process_facts()['procap.host']}",
        "model": name,
        "from": before.champion,
        "to": after.champion,
        **facts,
    }
    text = json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n"
    with workspace_lock(root, "promotions"), _log(root).open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else "\n" + text  # a crash may have cut the last line off
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _log(root: Path) -> Path:
    (root / LOG).parent.mkdir(parents=True, exist_ok=True)
    return root / LOG


def read_log(root: Path) -> list[dict[str, Any]]:
    """All decisions that were made from this workspace, oldest first; a line cut off by a crash is passed over."""
    found = []
    path = root / LOG
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def _verdict(
    client: Any, root: Path, name: str, challenger: Any, champion: str | None, metric: str, margin: float
) -> Verdict:
    with temporary_folder() as folder:
        judged = _candidate(client, challenger, Path(folder) / "challenger", ask_it=True)
        rival = None
        if champion is not None:
            version = client.get_model_version(name, champion)
            rival = _candidate(client, version, Path(folder) / "champion", ask_it=False)
            if rival.test_data != judged.test_data:
                rival = _scored_again(root, version, judged.test_data, Path(folder)) or rival
        return judge(judged, rival, metric=metric, margin=margin)


def _candidate(client: Any, version: Any, target: Path, *, ask_it: bool) -> Candidate:
    """What the registry knows of a version; with ``ask_it`` it is loaded and captions the pairs kept with it."""
    from flows.registry import DIGEST

    target.mkdir(parents=True)
    name = f"version {version.version} ({version.tags.get('captioner', 'unknown')})"
    digest, committed = version.tags.get(DIGEST, ""), version.tags.get("procap.commit")
    commit = committed or version.tags.get("git.commit", "")
    dirty = committed is None and version.tags.get("git.dirty") != "false"
    kept = fetch(client, version, target)
    if kept is None:
        return Candidate(name, digest, "", {}, {}, commit=commit, dirty=dirty)
    lineage = read_json(kept / "lineage.json")
    said, complaint = _ask(version, read_json(kept / "examples.json")) if ask_it else ([], "")
    return Candidate(
        name,
        digest,
        lineage["test_data"],
        read_json(kept / "predictions.json"),
        read_json(kept / "metrics.json"),
        critical=read_json(kept / "validation.json")["critical"],
        selected_on=lineage["params"]["caption"]["selection"],
        answers=said,
        complaint=complaint,
        card=(kept / "model_card.md").read_text(encoding="utf-8"),
        commit=commit,
        dirty=dirty,
    )


def _ask(version: Any, examples: list[dict[str, str]]) -> tuple[list[tuple[str, str]], str]:
    import pandas as pd

    from flows.registry import answers

    table = pd.DataFrame({side: [one[side] for one in examples] for side in ("before", "after")})
    try:
        said = answers(f"models:/{version.name}/{version.version}", table)
    except Exception as error:
        if AWAY in str(error):
            raise
        return [], f"it cannot be loaded and asked: {error}"
    return [(one["sentence"], sentence) for one, sentence in zip(examples, said, strict=True)], ""


def _works(name: str, version: str) -> Gate:
    from flows.registry import ask

    try:
        return Gate("answers", True, f'version {version} says "{ask(f"models:/{name}/{version}")}"')
    except BadInput as complaint:
        return Gate("answers", False, complaint.what)


def _scored_again(root: Path, version: Any, test_data: str, folder: Path) -> Candidate | None:
    """The champion's scores on the challenger's test pairs, where this workspace has them; else None."""
    import mlflow

    from flows.registry import DIGEST
    from procap.config import load_params
    from procap.datasets.pairs import Pairs
    from procap.evaluation.promotion import test_digest
    from procap.steps.evaluate import evaluate_bundle

    prepared = root / "data" / "prepare"
    if not (prepared / "pairs.parquet").exists() or test_digest(Pairs.read(prepared)) != test_data:
        return None
    uri = f"models:/{version.name}/{version.version}"
    stored = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder / "model")))
    (bundle,) = (path.parent for path in stored.rglob("manifest.json"))
    params, results = load_params(root / "params.yaml"), folder / "scored"
    evaluate_bundle(params, bundle, prepared, results, corpus=params.dataset.name)
    predictions, metrics = (read_json(results / file) for file in ("predictions.json", "metrics.json"))
    return Candidate(f"version {version.version}", version.tags.get(DIGEST, ""), test_data, predictions, metrics)
