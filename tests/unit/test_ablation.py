"""A table's rows run in worktrees of a stand-in project, whose steps take no time and count how often they run."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from flows.ablation import ablate, shared_parts, work
from flows.comparison import compare_table
from flows.tables import HOME, Job, Row, base_params, chosen, jobs, read_table, table_names
from procap.errors import BadInput

PROJECT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org")

DVC = """
stages:
  prepare:
    cmd: python step.py prepare
    deps: [step.py]
    params: [seed]
    outs: [data/prepare/pairs.txt]
  pretrain:
    cmd: python step.py pretrain
    deps: [step.py, data/prepare]
    params: [replicate]
    outs: [data/pretrain/encoder.txt]
  caption:
    matrix: {captioner: "${captioners}"}
    cmd: python step.py caption ${item.captioner}
    deps: [step.py, data/prepare, data/pretrain/encoder.txt]
    params: [replicate, caption.steps]
    outs: ["data/caption/${item.captioner}/bundle.txt"]
  evaluate:
    matrix: {captioner: "${captioners}"}
    cmd: python step.py evaluate ${item.captioner}
    deps: [step.py, "data/caption/${item.captioner}/bundle.txt"]
    outs: ["data/evaluate/${item.captioner}/predictions.json"]
    metrics: ["data/evaluate/${item.captioner}/metrics.json": {cache: false}]
"""

STEP = """
import json, os, random, sys, time
from pathlib import Path
from ruamel.yaml import YAML
step, captioner = sys.argv[1], sys.argv[-1]
params = YAML(typ="safe").load(Path("params.yaml").read_text())
steps, replicate = params["caption"]["steps"], params["replicate"]
with open(os.environ["RAN"], "a") as ran:
    ran.write(f"{step}\\n")
if step == "caption" and steps == 666:
    sys.exit("this row is broken")
if step == "caption" and steps == 999 and not Path(os.environ["RAN"]).with_name("go").exists():
    Path(os.environ["RAN"]).with_name("slow").write_text(str(os.getpid()))
    time.sleep(600)
out = {"prepare": "prepare/pairs.txt", "pretrain": "pretrain/encoder.txt", "caption": f"caption/{captioner}/bundle.txt",
       "evaluate": f"evaluate/{captioner}/predictions.json"}[step]
path = Path("data", out)
path.parent.mkdir(parents=True, exist_ok=True)
if step == "caption":
    path.with_name("history.csv").write_text(f"step,split,name,value\\n1,val,CIDEr,{steps}\\n2,val,CIDEr,{2 * steps}")
if step != "evaluate":
    facts = {"prepare": params["seed"], "pretrain": replicate, "caption": (replicate, steps)}
    path.write_text(f"{step} {facts[step]}")
else:
    draw = random.Random(Path(f"data/caption/{captioner}/bundle.txt").read_text())
    told = {f"p{n}": {"sentence": "s", "probability": 1, "references": ["r"], "group": f"g{n // 2}", "parsed": "add",
                      "change_type": "add", "change_right": draw.random() < 0.8, "type_right": draw.random() < 0.5,
                      "scores": {"CIDEr": draw.random() + 100 * steps}} for n in range(20)}
    share = sum(one["type_right"] for one in told.values()) / 20
    path.write_text(json.dumps(told))
    path.with_name("metrics.json").write_text(json.dumps({
        "pairs": 20, "CIDEr": sum(one["scores"]["CIDEr"] for one in told.values()) / 20, "change_type_accuracy": share,
        "change_accuracy": sum(one["change_right"] for one in told.values()) / 20, "skipped": {"SPICE": "no"},
        "per_type": {"add": {"count": 20, "accuracy": share}}}))
"""

TABLES = """
small:
  about: a stand-in
  rows:
    - {name: one, overrides: {caption.steps: 1}, paper: {CIDEr: 50.0}}
    - {name: two + more, overrides: {caption.steps: 2}}
    - {name: broken, overrides: {caption.steps: 666}}
slow:
  about: one that takes its time
  rows:
    - {name: quick, overrides: {caption.steps: 3}}
    - {name: slow, overrides: {caption.steps: 999}}
"""


@pytest.fixture
def project(store, tmp_path, monkeypatch):
    """A committed stand-in project in ``tmp_path``; ``ran()`` says how often each step ran."""
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    shutil.copytree(PROJECT / "infra" / "presets", tmp_path / "infra" / "presets")
    for name, text in {
        "dvc.yaml": DVC,
        "step.py": STEP,
        "infra/ablations.yaml": TABLES,
        ".dvc/config": "[core]\n    analytics = false\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        ".gitignore": "/.procap/\nmlflow.db*\nmlartifacts\nran.txt\ngo\nslow\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("RAN", str(tmp_path / "ran.txt"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *IDENTITY, *words], check=True)
    return tmp_path


def ran(project: Path) -> Counter:
    path = project / "ran.txt"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def run(project: Path, table: str, seeds: int = 1, slots: int = 1, overrides=None, rows=()):
    said: list[str] = []
    outcome = ablate(
        project, table, seeds=seeds, slots=slots, preset=None, overrides=overrides or {"hardware.threads": 1},
        rows=rows, say=said.append,
    )  # fmt: skip
    return outcome, said


def children(store, parent):
    runs = store.search_runs([e.experiment_id for e in store.search_experiments()])
    return {r.info.run_name: r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id}


def table_run(store, name):
    runs = store.search_runs([e.experiment_id for e in store.search_experiments()], "tags.`mlflow.parentRunId` IS NULL")
    (parent,) = [run for run in runs if run.info.run_name == f"table {name}"]
    return parent


@pytest.mark.slow
def test_a_table_runs_shares_its_steps_and_survives_a_broken_row(store, project):
    (project / "params.yaml").write_text((project / "params.yaml").read_text() + "\n# not committed\n")
    outcome, said = run(project, "small", slots=2)
    assert (sorted(outcome.finished), outcome.failed) == (["one / 0", "two + more / 0"], ["broken / 0"])
    assert any("this row is broken" in line for line in said)
    assert ran(project) == {"prepare": 1, "pretrain": 1, "caption": 3, "evaluate": 2}, "what rows share runs once"
    assert subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True).stdout == " M params.yaml\n"

    home = project / ".procap" / "ablations" / "small"
    compare_table(project, "small")
    with (home / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["row"], line["replicate"]) for line in lines] == [("one", "0"), ("two + more", "0")]
    for line in lines:
        told = json.loads((project / line["predictions"]).read_text())
        assert sum(one["scores"]["CIDEr"] for one in told.values()) / 20 == pytest.approx(float(line["CIDEr"]))
    text = (home / "comparison.md").read_text()
    assert "CIDEr: two + more differs from one: +100.0" in text
    assert "Missing: broken / 0" in text
    assert "| 50.0 |" in text

    parent = table_run(store, "small")
    assert parent.info.status == "FAILED"
    runs = children(store, parent)
    assert {name: run.info.status for name, run in runs.items()} == {
        "one / 0": "FINISHED", "two + more / 0": "FINISHED", "broken / 0": "FAILED"}  # fmt: skip
    second = runs["two + more / 0"]
    assert second.data.metrics["CIDEr"] == pytest.approx(float(lines[1]["CIDEr"]))
    assert second.data.params == {"caption.steps": "2", "replicate": "0"}
    curve = store.get_metric_history(second.info.run_id, "val_CIDEr")
    assert [(point.step, point.value) for point in curve] == [(1, 2.0), (2, 4.0)]
    note = store.get_run(parent.info.run_id).data.tags["mlflow.note.content"]
    assert "differs from one: +100.0" in note
    assert all(runs[name].info.run_id in note for name in ("one / 0", "two + more / 0"))
    assert runs["broken / 0"].info.run_id not in note
    assert [second.data.tags[f"procap.{tag}"] for tag in ("table", "row", "replicate")] == ["small", "two + more", "0"]
    assert "this row is broken" in runs["broken / 0"].data.tags["procap.error"]
    logged = {file.path for file in store.list_artifacts(parent.info.run_id)}
    assert logged == {"results.csv", "comparison.csv", "comparison.md", "comparison.html"}

    # A plain `dvc repro` with the same parameters gives the same numbers.
    plain = project / ".procap" / "plain"
    subprocess.run(["git", "worktree", "add", "-q", "--detach", str(plain)], check=True)
    shutil.copy(home / "one" / "0" / "params.yaml", plain)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "evaluate@procap"], cwd=plain, check=True)
    assert ran(project)["prepare"] == 2, "it has a cache of its own"
    there, here = (f / "data/evaluate/procap/metrics.json" for f in (plain, home / "one" / "0"))
    assert there.read_bytes() == here.read_bytes()

    # Again: finished rows stay, broken ones are tried; other code makes all of them stale.
    outcome, _ = run(project, "small", rows=["one", "broken"])
    assert (outcome.earlier, outcome.finished, outcome.failed) == (["one / 0"], [], ["broken / 0"])
    (project / "step.py").write_text(STEP.replace("== 666", "== 667"))
    outcome, _ = run(project, "small", rows=["broken"])
    assert outcome.finished == ["broken / 0"]
    assert compare_table(project, "small").missing == ("one / 0", "two + more / 0")


def start_cli(project: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"}
    words = [sys.executable, "-m", "flows.cli", "ablate", "slow", "--set", "hardware.threads=1"]
    process = subprocess.Popen(
        words, cwd=project, env=environment, stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    end = time.monotonic() + 300
    while not (project / "slow").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    return process


def is_gone(pid: int) -> bool:
    import psutil

    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_stopped_table_and_a_killed_one_continue(store, project):
    def slow() -> int:
        pid = int((project / "slow").read_text())
        (project / "slow").unlink()
        return pid

    process = start_cli(project)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert is_gone(slow()), "no step goes on alone"
    parent = table_run(store, "slow")
    assert parent.info.status == children(store, parent)["slow / 0"].info.status == "KILLED"

    locks = project / HOME / "slow" / "slow" / "0" / ".dvc" / "tmp" / "rwlock"
    locks.write_text(locks.read_text()[:20])  # as a DVC leaves it that is ended while it writes
    process = start_cli(project)
    process.kill()
    process.wait()
    orphan = slow()
    (project / "go").touch()
    before = ran(project)
    outcome, _ = run(project, "slow")
    assert is_gone(orphan), "what the killed one left behind was ended"
    assert (outcome.earlier, outcome.finished) == (["quick / 0"], ["slow / 0"])
    assert ran(project) - before == {"caption": 1, "evaluate": 1}, "what was done before the kill is kept"
    parent = table_run(store, "slow")
    assert parent.info.status == children(store, parent)["slow / 0"].info.status == "FINISHED"


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr("flows.ablation._work_off", lambda *_: None)


def test_code_that_git_does_not_know_is_refused(store, project, nothing_runs):
    (project / "new.py").write_text("x = 1\n")
    (project / "dvc.yaml").write_text(DVC.replace("deps: [step.py]", "deps: [step.py, new.py]"))
    with pytest.raises(BadInput, match="git does not know all files"):
        run(project, "small", rows=["one"])
    subprocess.run(["git", "add", "new.py"], check=True)
    run(project, "small", rows=["one"])


def test_a_file_that_parameters_name_is_found_in_the_worktree(store, project, nothing_runs):
    (project / "go").write_text("words")  # git ignores it
    run(project, "small", rows=["one"], overrides={"prepare.vocabulary": "go"})
    assert (project / HOME / "small" / "one" / "0" / "go").read_text() == "words"


def test_one_table_at_a_time(store, project):
    from flows.store import workspace_lock

    with workspace_lock(project, "ablation-small"), pytest.raises(BadInput, match="being worked on"):
        run(project, "small")


def test_several_jobs_share_the_cores_and_say_so(store, project, nothing_runs, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    _, said = run(project, "small", slots=2, overrides={"hardware.threads": 0}, rows=["one"])
    assert said[0] == "hardware.threads: 3, because 2 jobs share the cores"
    assert "threads: 3\n" in (project / ".procap/ablations/small/one/0/params.yaml").read_text()


@pytest.mark.parametrize("name", table_names(PROJECT))
def test_the_committed_tables_are_valid_and_their_rows_differ(name):
    table = read_table(PROJECT, name)
    planned = jobs(PROJECT, name, table, base_params(PROJECT, None, {}), 2, chosen(table, []))
    assert len({job.digest for job in planned}) == len(planned) == 2 * len(table.rows)
    for first, second in zip(planned[: len(table.rows)], planned[len(table.rows) :], strict=True):
        for stage in ("prepare", "interpolate", "sample", "tokenizer", "tokenize"):
            assert first.digests[stage] == second.digests[stage], "a replicate is another training of the same data"


BROKEN_TABLES = {
    "{about: a, rows: [{name: x, overrides: {caption.step: 3}}]}": "unknown key 'caption.step'",
    "{about: a, rows: [{name: x, overrides: {captoin.steps: 3}}]}": "unknown key 'captoin'",
    "{about: a, rows: [{name: x, overrides: {caption.steps: many}}]}": "'caption.steps' is 'many'",
    "{about: a, rows: [{name: x, overrides: {caption.steps.x: 1}}]}": "'caption.steps' is",
    "{about: a, rows: [{name: x, overrides: {captioners: [static]}}]}": "'procap' is not among",
    "{about: a, rows: []}": "at least 1",
    "{about: a, rows: [{name: x y, overrides: {}}, {name: x-y, overrides: {}}]}": "the same name",
    "{about: a, base: z, rows: [{name: x, overrides: {}}]}": "no row is called 'z'",
    "{about: a, rows: [{name: ../x, overrides: {}}]}": "match pattern",
    "{about: a, rows: [{name: x}]}": "Field required",
}


@pytest.mark.parametrize("text", BROKEN_TABLES)
def test_a_wrong_table_is_refused_by_name(tmp_path, text):
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "ablations.yaml").write_text(f"wrong: {text}\n")
    with pytest.raises(BadInput) as caught:
        jobs(tmp_path, "wrong", read_table(tmp_path, "wrong"), base_params(tmp_path, None, {}), 1, ["x"])
    assert BROKEN_TABLES[text] in caught.value.what
    assert "infra/ablations.yaml: wrong" in caught.value.where
    with pytest.raises(BadInput, match="no table 'nothing'"):
        read_table(tmp_path, "nothing")


def test_preset_and_settings_lie_under_the_rows():
    params = base_params(PROJECT, "smoke", {"caption.steps": 7, "pretrain.layers": 3})
    assert (params["caption"]["steps"], params["pretrain"]["layers"], params["interpolate"]["frames"]) == (7, 3, 3)
    table = read_table(PROJECT, "encoder-depth")
    found = {job.row.name: job.params["pretrain"]["layers"] for job in jobs(PROJECT, "x", table, params, 1, [])}
    assert found == {"1 block": 1, "2 blocks": 2, "4 blocks": 4}
    assert params["pretrain"]["layers"] == 3
    assert chosen(table, []) == set(found)
    with pytest.raises(BadInput, match="no row '3 blocks'"):
        chosen(table, ["3 blocks"])


def test_a_row_that_does_not_fit_stops_the_table_only_if_it_is_wanted():
    params, table = base_params(PROJECT, "smoke", {}), read_table(PROJECT, "k")
    assert [job.row.name for job in jobs(PROJECT, "k", table, params, 1, ["k 1"])] == ["k 0", "k 1", "k 2"]
    with pytest.raises(BadInput, match="4 frames cannot be kept") as caught:
        jobs(PROJECT, "k", table, params, 1, ["k 4"])
    assert "row 'k 4'" in caught.value.where


def stand_ins(spec: dict[str, str]) -> list[Job]:
    """{"a": "p1 x"}: a job a with the digests p1 and x before its own."""
    rows = {name: Row(name=name, overrides={}) for name in spec}
    return [
        Job(rows[name], 0, {}, {**{part[0] + "-stage": part for part in parts.split()}, "evaluate@procap": name})
        for name, parts in spec.items()
    ]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_jobs_wait_for_what_another_computes(slots):
    todo = stand_ins({"a": "p1 t1", "b": "p1 t1", "c": "p1 t2", "d": "p1 t2", "e": "q"})
    assert [set(part) for part in shared_parts(todo[0], todo)] == [{"p1"}, {"t1"}]
    assert shared_parts(todo[4], todo) == []
    begun, ended, most = [], {}, 0

    def start(job, stages):
        nonlocal most
        begun.append((job.row.name, tuple(stages)))
        process = subprocess.Popen(["sleep", "0.05"])
        alive.append(process)
        most = max(most, sum(one.poll() is None for one in alive))
        return process

    alive: list[subprocess.Popen] = []
    work(todo, slots, start, lambda job, status: ended.update({job.row.name: status}))
    assert ended == dict.fromkeys("abcde", 0)
    assert most <= slots
    parts = Counter(stages for _, stages in begun)
    assert parts.pop(("evaluate@procap",)) == 5
    assert parts == ({} if slots == 1 else {("p-stage",): 1, ("t-stage",): 2})
    if slots > 1:
        assert begun[0] == ("a", ("p-stage",))


def test_a_shared_step_that_fails_is_tried_by_the_next():
    todo = stand_ins({"a": "p1", "b": "p1", "c": "p1"})
    ended = {}

    def start(job, stages):
        return subprocess.Popen(["false" if job.row.name == "a" else "true"])

    work(todo, 2, start, lambda job, status: ended.update({job.row.name: status}))
    assert ended == {"a": 1, "b": 0, "c": 0}
