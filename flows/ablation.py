"""Running a table of ``infra/ablations.yaml``: a git worktree per row and seed, one DVC cache and one MLflow store.

What rows have in common is computed once and found by the others in DVC's run cache. A row is finished when its
record holds the digest of its parameters and code; an interrupted one continues in its worktree.
"""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows import locks
from flows.lineage import git, git_facts, is_dead, plan_digests, process_facts, stage_name
from flows.presets import write_params
from flows.process import child_environment, end_families
from flows.store import connect, experiment_id, tracking_uri, workspace_lock
from flows.tables import HOME, Job, Table, base_params, chosen, jobs, read_table
from flows.tracking import Tracker, flatten
from flows.watching import watch
from flows.worktrees import bring_corpus, bring_files, cache_folder, check_out, share_cache
from procap.config import check_params
from procap.errors import BadInput
from procap.evaluation.scores import flat
from procap.files import write_json

Part = frozenset[str]
"""Digests of stages that the same jobs need."""

SAID_SECONDS = 30.0
TAIL = 12
"""Lines of a failed job's log that are shown."""


@dataclass(frozen=True)
class Outcome:
    """How the jobs of a table ended."""

    finished: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    """Finished before, with the same parameters and code."""
    failed: list[str] = field(default_factory=list)


def ablate(
    root: Path,
    name: str,
    *,
    seeds: int,
    slots: int,
    preset: str | None,
    overrides: Mapping[str, Any],
    rows: Sequence[str],
    say: Callable[[str], Any],
) -> Outcome:
    """Bring a table up to date, ``slots`` jobs at once; a job that fails does not stop the others.

    ``preset`` and ``overrides`` are laid over ``params.yaml`` below every row; the file itself stays as it is.
    Raises BadInput before anything runs where a row's parameters are not valid.
    """
    table = read_table(root, name)
    wanted = chosen(table, rows)
    params = base_params(root, preset, overrides)
    if slots > 1 and not params["hardware"]["threads"]:
        share = max(1, len(os.sched_getaffinity(0)) // slots)
        params["hardware"]["threads"] = share
        say(f"hardware.threads: {share}, because {slots} jobs share the cores")
    planned = jobs(root, name, table, params, seeds, wanted)
    home = root.resolve() / HOME / name
    outcome = Outcome()
    with _alone(root, name):
        commit = snapshot(root)
        runs = Runs(root, name, table, params)
        write_json(home / "grid.json", grid(root, home, name, table, planned, runs.parent))
        todo = []
        for job in (one for one in planned if one.row.name in wanted):
            if finished(job, home):
                outcome.earlier.append(job.name)
            else:
                todo.append(job)
        say(f"table {name}: {len(todo)} to run, {len(outcome.earlier)} finished earlier")
        status = "KILLED"
        try:
            cache = cache_folder(root)
            for job in todo:
                _end_leftover(job.folder(home))
                locks.clear(job.folder(home))
                make_worktree(root, job.folder(home), commit, job, cache)
            _work_off(root, home, todo, slots, runs, outcome, say)
            status = "FAILED" if outcome.failed else "FINISHED"
        finally:
            runs.end(runs.parent, status)
    return outcome


def finished(job: Job, home: Path) -> bool:
    """Whether this very job came to its end before, and its results are still there."""
    record = _record(job.folder(home))
    return record.get("digest") == job.digest and results_folder(job.folder(home), job.row.captioner).is_dir()


def results_folder(worktree: Path, captioner: str) -> Path:
    """Where ``evaluate`` wrote."""
    return worktree / "data" / "evaluate" / captioner


def grid(root: Path, home: Path, name: str, table: Table, planned: Sequence[Job], run: str) -> dict[str, Any]:
    """What a comparison needs to know of the table that was asked for last: rows, and where their results lie."""
    return {
        "table": name,
        "about": table.about,
        "base": table.base_row,
        "run": run,
        "rows": [
            {
                "name": row.name,
                "captioner": row.captioner,
                "paper": row.paper,
                "jobs": [
                    {
                        "replicate": job.replicate,
                        "digest": job.digest,
                        "folder": job.folder(home).relative_to(root.resolve()).as_posix(),
                    }
                    for job in planned
                    if job.row == row
                ],
            }
            for row in table.rows
        ],
    }


def snapshot(root: Path) -> str:
    """A commit of the tree as it is, changes included and nothing moved; HEAD where there are none.

    New files that git was never told of are not in it.
    """
    identity = ("-c", "user.name=procap", "-c", "user.email=procap@localhost")
    commit = git(root, *identity, "stash", "create") or git(root, "rev-parse", "HEAD")
    if commit is None:
        raise BadInput(
            "rows run in git worktrees, and here is no commit",
            where=str(root),
            expected="a git repository with at least one commit",
            do="`git init && git add -A && git commit -m start`",
        )
    return commit


def make_worktree(root: Path, folder: Path, commit: str, job: Job, cache: Path) -> None:
    """Put ``commit`` with the job's parameters into ``folder``; results of an earlier try stay there.

    Raises BadInput where the worktree would run other code than the workspace, because git does not know all files.
    """
    check_out(root, folder, commit)
    write_params(folder / "params.yaml", job.params, source=f"row '{job.row.name}'")
    share_cache(root, folder, cache)
    bring_corpus(root, folder, Path("data/raw") / job.params["dataset"]["name"])
    bring_files(root, folder, job.params)
    watch(folder, job.params)
    there = plan_digests(folder, job.target, job.params)
    if other := [stage for stage, digest in job.digests.items() if there.get(stage) != digest]:
        raise BadInput(
            f"git does not know all files that the stage '{other[0]}' depends on",
            where=str(root),
            expected="dvc.yaml and the code it names under git's control (committed or not)",
            do="`git add` the new files",
        )


@contextmanager
def _alone(root: Path, name: str) -> Iterator[None]:
    try:
        with workspace_lock(root, f"ablation-{name}", timeout=0):
            yield
    except TimeoutError:
        raise BadInput(
            f"the table {name} is being worked on", where=str(root), expected="one at a time", do="wait for it"
        ) from None


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(folder.name + ending)


def _record(folder: Path) -> dict[str, Any]:
    path = _beside(folder, ".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _end_leftover(folder: Path) -> None:
    """End what a killed ``procap ablate`` left running in this worktree."""
    path = _beside(folder, ".process.json")
    if path.exists():
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not is_dead(facts):
            end_families([int(facts["procap.pid"])])
        path.unlink()


def _work_off(
    root: Path, home: Path, todo: Sequence[Job], slots: int, runs: "Runs", outcome: Outcome, say: Callable[[str], Any]
) -> None:
    """Run the jobs; their records, runs and last words are written as each ends."""
    began: dict[str, float] = {}
    open_runs: dict[str, str] = {}

    def start(job: Job, targets: Sequence[str]) -> subprocess.Popen:
        folder = job.folder(home)
        if job.name not in began:
            began[job.name] = time.monotonic()
            open_runs[job.name] = runs.of(job)
            say(f"{job.name}: started ({len(began)} of {len(todo)})")
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **child_environment(runs.key(job))}
        environment["MLFLOW_TRACKING_URI"] = tracking_uri(root)
        with _beside(folder, ".log").open("ab") as log:
            words = [sys.executable, "-m", "dvc", "repro", *targets]
            process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        write_json(_beside(folder, ".process.json"), process_facts(process.pid))
        return process

    def over(job: Job, status: int) -> None:
        folder, run = job.folder(home), open_runs[job.name]
        seconds = time.monotonic() - began[job.name]
        path = results_folder(folder, job.row.captioner) / "metrics.json"
        if status == 0 and path.exists():
            table = json.loads(path.read_text(encoding="utf-8"))
            runs.finish(run, table, path.parent)
            write_json(_beside(folder, ".json"), {"digest": job.digest, "run": run, "seconds": round(seconds, 1)})
            outcome.finished.append(job.name)
            score = f", CIDEr {table['CIDEr']:.1f}" if "CIDEr" in table else ""
            say(f"{job.name}: finished in {seconds:.0f} s{score}")
        else:
            words = last_lines(_beside(folder, ".log"), TAIL)
            runs.fail(run, "\n".join(words))
            outcome.failed.append(job.name)
            say(f"{job.name}: FAILED after {seconds:.0f} s, dvc ended with {status}; last words of its log")
            for line in (*words, f"({_beside(folder, '.log')})"):
                say(f"    {line}")
        _beside(folder, ".process.json").unlink()

    def still(job: Job) -> None:
        say(f"{job.name}: {' '.join(last_lines(_beside(job.folder(home), '.log'), 1))}")

    try:
        work(todo, slots, start, over, still)
    except BaseException:
        for name in open_runs.keys() - {*outcome.finished, *outcome.failed}:
            runs.end(open_runs[name], "KILLED")
        raise


def work(
    todo: Sequence[Job],
    slots: int,
    start: Callable[[Job, Sequence[str]], subprocess.Popen],
    over: Callable[[Job, int], Any],
    still: Callable[[Job], Any] = lambda job: None,
) -> None:
    """Run each job's stages with at most ``slots`` processes; what several jobs need, one of them computes first.

    ``start`` begins some stages of a job, ``over`` hears how it ended, ``still`` every half minute that it goes on.
    When this is interrupted, all processes are ended.
    """
    parts = {job.name: shared_parts(job, todo) if slots > 1 else [] for job in todo}
    waiting, done = list(todo), set[Part]()
    running: list[tuple[Job, Part, subprocess.Popen]] = []
    said = time.monotonic()
    try:
        while waiting or running:
            for job in list(waiting):
                missing = [part for part in parts[job.name] if part not in done]
                part = missing[0] if missing else Part()
                if len(running) < slots and not (part and part in [other for _, other, _ in running]):
                    waiting.remove(job)
                    stages = [stage for stage, digest in job.digests.items() if digest in part]
                    running.append((job, part, start(job, stages or [job.target])))
            time.sleep(0.1)
            for one in [one for one in running if one[2].poll() is not None]:
                job, part, process = one
                running.remove(one)
                if part and process.returncode == 0:
                    done.add(part)
                    waiting.insert(0, job)
                else:
                    over(job, process.returncode)
            if time.monotonic() - said > SAID_SECONDS:
                said = time.monotonic()
                for job, _, _ in running:
                    still(job)
    finally:
        end_families(process.pid for _, _, process in running)


def shared_parts(job: Job, everyone: Sequence[Job]) -> list[Part]:
    """The job's stages that others need as well, grouped by who does, the most widely needed first.

    Whoever needs a stage needs those before it, so each group finds the groups before it done.
    """
    groups: dict[frozenset[str], set[str]] = {}
    for stage, digest in job.digests.items():
        users = frozenset(other.name for other in everyone if digest in other.digests.values())
        if len(users) > 1 and stage != job.target:
            groups.setdefault(users, set()).add(digest)
    return [frozenset(groups[users]) for users in sorted(groups, key=len, reverse=True)]


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines with something in them, of a file that may be long."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-count:]


def training_curves(results: Path) -> dict[int, dict[str, float]]:
    """{update: {val_CIDEr, train_loss, ...}} of stage 2, from the history that its training left beside the results."""
    path = results.parents[1] / "caption" / results.name / "history.csv"
    curves: dict[int, dict[str, float]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                curves.setdefault(int(row["step"]), {})[f"{row['split']}_{row['name']}"] = float(row["value"])
    return curves


class Runs:
    """The MLflow runs of a table: a parent, and below it a child per row and seed, parent of its steps' runs."""

    def __init__(self, root: Path, name: str, table: Table, params: Mapping[str, Any]) -> None:
        self.root, self.table = root, name
        self.params = check_params(dict(params), where="params.yaml")
        self.client = connect(root)
        self.facts = git_facts(root)
        self.keys = [*dict.fromkeys(key for row in table.rows for key in flatten(row.overrides)), "replicate"]
        """What distinguishes the rows; every row's run has all of them, for MLflow to compare and group by."""
        target = stage_name("evaluate", table.rows[0].captioner)
        key = f"table-{name}-{plan_digests(root, target, params)[target][:16]}"
        self.parent = self._run(key, f"table {name}", params["dataset"]["name"], {"mlflow.note.content": table.about})

    def key(self, job: Job) -> str:
        """Names the rebuild that the job is, for its steps to find their parent."""
        return f"{self.table}-{job.row.folder}-{job.replicate}-{job.digest[:16]}"

    def of(self, job: Job) -> str:
        """The job's run; one that was interrupted goes on."""
        tags = {
            "mlflow.parentRunId": self.parent,
            "procap.row": job.row.name,
            "procap.replicate": str(job.replicate),
            "captioner": job.row.captioner,
            "seed": str(job.params["seed"]),
        }
        run = self._run(self.key(job), job.name, job.params["dataset"]["name"], tags)
        own = flatten(job.params)
        values = {key: own[key] for key in self.keys}
        self._tracker(run).safely(lambda: [self.client.log_param(run, key, value) for key, value in values.items()])
        return run

    def finish(self, run: str, metrics: Mapping[str, Any], results: Path) -> None:
        """Keep its numbers, and the curves of stage 2 under the row's own name."""
        tracker = self._tracker(run)
        tracker.metrics(flat(metrics))
        for step, values in training_curves(results).items():
            tracker.metrics(values, step)
        tracker.flush()
        tracker.artifact(results / "predictions.json")
        self.end(run, "FINISHED")

    def fail(self, run: str, words: str) -> None:
        tracker = self._tracker(run)
        tracker.safely(lambda: self.client.set_tag(run, "procap.error", words[-5000:]))
        self.end(run, "FAILED")

    def end(self, run: str, status: str) -> None:
        self._tracker(run).safely(lambda: self.client.set_terminated(run, status))

    def _tracker(self, run: str) -> Tracker:
        return Tracker(self.client, run, self.root, self.params)

    def _run(self, key: str, name: str, corpus: str, tags: Mapping[str, str]) -> str:
        experiment = experiment_id(self.client, self.root, f"procap/{corpus}")
        found = self.client.search_runs([experiment], f"tags.`procap.rebuild` = '{key}'", max_results=1)
        tags = self.facts | process_facts() | {"procap.table": self.table, "procap.rebuild": key} | dict(tags)
        if not found:
            return self.client.create_run(experiment, tags=tags, run_name=name).info.run_id
        run = found[0].info.run_id
        self.client.update_run(run, "RUNNING")
        for tag, value in tags.items():
            self.client.set_tag(run, tag, value)
        return run
