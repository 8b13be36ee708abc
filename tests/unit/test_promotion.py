"""Who serves changes only when every gate is open, and whatever dies on the way, the old champion serves on."""

import json
import shutil
import threading

import numpy as np
import pytest

from flows import promotion
from flows.evidence import Evidence, Facts, collect, keep
from flows.promotion import Standing, move, promote, read_log, rollback, standing
from procap.datasets.pairs import Pairs
from procap.errors import BadInput
from procap.evaluation.promotion import Candidate, judge, test_digest
from tests.toy import toy_prepared
from tests.unit.test_comparison import PAIRS, metrics, told
from tests.unit.test_registry import StubCaptioner, make_bundle, new_run

digest_of = test_digest
test_digest.__test__ = False  # its name is no test's


def candidate(name="challenger", shift=0.0, noise=1, **facts):
    draw = np.random.default_rng(noise)
    hard, right = 40 * np.random.default_rng(7).normal(size=PAIRS), np.random.default_rng(8).random(PAIRS) < 0.7
    predictions = told(right, 100 + hard + shift + draw.normal(size=PAIRS))
    known = {
        "bundle": "b" * 64, "test_data": "t" * 64, "critical": 0, "selected_on": "val", "card": f"card of {'b' * 64}",
        "answers": [("said", "said")] * 3, "commit": "c" * 40, "dirty": False,
    }  # fmt: skip
    return Candidate(name, predictions=predictions, metrics=metrics(predictions), **known | facts)


def closed(verdict):
    return [gate.name for gate in verdict.gates if not gate.passed]


CHAMPION = candidate("champion", noise=2)


@pytest.mark.parametrize(
    ("shift", "margin", "shut"),
    [(5.0, 0.0, []), (0.0, 0.0, ["CIDEr"]), (5.0, 6.0, ["CIDEr"]), (0.0, -1.0, []), (-5.0, -1.0, ["CIDEr"])],
    ids=["better", "not shown to be", "not by so much", "no worse", "worse"],
)
def test_the_interval_of_the_gain_has_to_lie_above_the_margin(shift, margin, shut):
    verdict = judge(candidate(shift=shift), CHAMPION, metric="CIDEr", margin=margin)
    assert closed(verdict) == shut
    assert verdict.promoted is not shut


@pytest.mark.parametrize(
    ("facts", "gate"),
    [
        ({"test_data": "other"}, "test data"),
        ({"selected_on": "test"}, "selection"),
        ({"critical": 1}, "validation"),
        ({"critical": None}, "validation"),
        ({"answers": [("said", "said"), ("said", "other"), ("said", " ")]}, "answers"),
        ({"answers": [("said", "said")] * 2}, "answers"),
        ({"complaint": "no weights"}, "answers"),
        ({"card": ""}, "card"),
        ({"card": "card of another"}, "card"),
        ({"dirty": True}, "commit"),
        ({"commit": ""}, "commit"),
    ],
)
def test_each_gate_alone_keeps_a_better_model_out(facts, gate):
    verdict = judge(candidate(shift=5.0, **facts), CHAMPION, metric="CIDEr", margin=0.0)
    assert gate in closed(verdict)
    assert set(closed(verdict)) <= {gate, "CIDEr"}
    assert ("CIDEr" in closed(verdict)) == (gate == "test data"), "what cannot be compared is not better"


def test_the_first_champion_need_not_beat_anybody_but_everything_else_counts():
    assert judge(candidate(), None, metric="CIDEr", margin=0.0).promoted
    assert closed(judge(candidate(dirty=True), None, metric="CIDEr", margin=0.0)) == ["commit"]


@pytest.mark.parametrize("metric", ["BLEU-4", "METEOR", "nonsense"])
def test_a_metric_without_an_interval_cannot_decide(metric):
    with pytest.raises(BadInput, match="cannot decide"):
        judge(candidate(), CHAMPION, metric=metric, margin=0.0)


def test_the_test_digest_follows_words_and_pictures_of_the_test_split_alone(tmp_path):
    table = toy_prepared(tmp_path / "a", pairs=16)
    first = digest_of(Pairs.read(tmp_path / "a"))

    def changed(split, column, value):
        folder = tmp_path / f"{split}-{column}"
        shutil.copytree(tmp_path / "a", folder)
        other = table.copy()
        row = other.index[other["split"] == split][0]
        other.at[row, column] = value
        other.to_parquet(folder / "pairs.parquet", index=False)
        return digest_of(Pairs.read(folder))

    assert changed("train", "captions", ["something else"]) == first
    assert changed("test", "captions", ["something else"]) != first
    assert changed("test", "after", 0) != first


@pytest.fixture
def client(store, monkeypatch):
    """A store, and bundles that say one word; the file of predictions is that of a candidate."""
    import sys
    from types import SimpleNamespace

    def bundle_digest(folder):
        return str(hash((folder / "manifest.json").read_text()))

    monkeypatch.setitem(sys.modules, "procap.training.bundle", SimpleNamespace(bundle_digest=bundle_digest))
    monkeypatch.setitem(sys.modules, "procap.captioning.captioner", SimpleNamespace(load_captioner=StubCaptioner))
    return store


def register(client, root, word, shift, **facts):
    """A version whose bundle says ``word`` and whose scores are better by ``shift``."""
    from flows.registry import DIGEST
    from flows.registry import register as to_registry

    bundle, one = make_bundle(root / word, word=word), candidate(shift=shift, **facts)
    folder = root / f"evidence-{word}"
    folder.mkdir()
    from flows.registry import example_input

    row = example_input().iloc[0]
    example = {"id": "p", "before": row["before"], "after": row["after"], "sentence": f"{word} 200"}
    run = new_run(client, root)
    texts = {
        "predictions.json": one.predictions, "metrics.json": one.metrics, "validation.json": {"critical": one.critical},
        "examples.json": [example] * 3,
        "lineage.json": {"test_data": one.test_data, "params": {"caption": {"selection": one.selected_on}}},
    }  # fmt: skip
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value, default=float))
    tags = {"captioner": "static", "git.commit": one.commit, "git.dirty": str(one.dirty).lower()}
    made = to_registry(client, run, bundle, "procap", tags, None)
    digest = client.get_model_version("procap", str(made["version"])).tags[DIGEST]
    (folder / "model_card.md").write_text(f"# card\n{digest}\n")
    evidence = Evidence(folder, "static", {"procap.test_data": one.test_data, "procap.scores": word})
    keep(client, run, client.get_model_version("procap", str(made["version"])), evidence)
    client.set_registered_model_alias("procap", "challenger", str(made["version"]))
    return str(made["version"])


def test_promotions_and_rollbacks_move_the_aliases_and_are_logged(client, tmp_path):
    import mlflow

    first = register(client, tmp_path, "one", 0.0)
    assert promote(tmp_path, "procap", dry_run=True).verdict.promoted
    assert standing(client, "procap") == Standing(None, None)
    assert not read_log(tmp_path), "a dry run leaves nothing"
    with pytest.raises(BadInput, match="no previous champion"):
        rollback(tmp_path, "procap")
    assert promote(tmp_path, "procap").moved
    assert not promote(tmp_path, "procap").moved, "it serves already"

    worse = register(client, tmp_path, "two", 0.0, noise=3)
    refused = promote(tmp_path, "procap")
    assert (refused.moved, closed(refused.verdict)) == (False, ["CIDEr"])
    assert standing(client, "procap") == Standing(first, None)
    assert "+0" in refused.verdict.gates[1].seen or "-0" in refused.verdict.gates[1].seen

    better = register(client, tmp_path, "three", 6.0)
    assert promote(tmp_path, "procap").moved
    assert standing(client, "procap") == Standing(better, first)
    answer = mlflow.pyfunc.load_model("models:/procap@champion").predict(_example())
    assert answer["caption"].tolist() == ["three 200"]
    assert rollback(tmp_path, "procap").moved
    assert standing(client, "procap") == Standing(first, better)
    rollback(tmp_path, "procap")
    assert standing(client, "procap") == Standing(better, first)

    log = read_log(tmp_path)
    assert [(one["action"], one["from"], one["to"]) for one in log] == [
        ("promote", None, first), ("refuse", first, first), ("promote", first, better),
        ("rollback", better, first), ("rollback", first, better),
    ]  # fmt: skip
    assert log[1]["wanted"] == worse
    assert {gate["name"] for gate in log[2]["gates"]} >= {"CIDEr", "commit", "card"}


def _example():
    from flows.registry import example_input

    return example_input()


def test_a_model_that_does_not_load_any_more_is_kept_out_by_its_gate(client, tmp_path, monkeypatch):
    register(client, tmp_path, "good", 0.0)
    promote(tmp_path, "procap")
    register(client, tmp_path, "spoilt", 9.0)
    monkeypatch.setattr(StubCaptioner, "stream", lambda *_, **__: 1 / 0)
    refused = promote(tmp_path, "procap")
    assert closed(refused.verdict) == ["answers"]
    assert "division by zero" in next(gate.seen for gate in refused.verdict.gates if gate.name == "answers")
    assert standing(client, "procap").champion == "1"


class Dying:
    """A client whose process dies at a certain call: that one and all later ones never reach the registry."""

    def __init__(self, client, after):
        self.client, self.left = client, after

    def die(self):
        self.left = 0
        raise SystemExit("killed")

    def __getattr__(self, name):
        def call(*words, **more):
            self.left -= 1
            if self.left < 0:
                self.die()
            return getattr(self.client, name)(*words, **more)

        return call


@pytest.fixture
def three_versions(store):
    """Version 2 serves, and 1 did before."""
    store.create_registered_model("procap")
    for _ in range(3):
        store.create_model_version("procap", "file:///nowhere")
    store.set_registered_model_alias("procap", "champion", "2")
    store.set_registered_model_alias("procap", "previous", "1")
    return store


BEFORE, AFTER = Standing("2", "1"), Standing("3", "2")


@pytest.mark.parametrize("calls", [1, 2, 3, 4, "log", 5])
def test_a_death_between_any_two_steps_leaves_a_champion_and_is_mended(
    three_versions, tmp_path, monkeypatch, calls
):
    """The calls of a move: lock, standing, intent, previous, champion (here the log is written), unlock."""
    store, mover = three_versions, Dying(three_versions, 5 if calls == "log" else calls)
    with monkeypatch.context() as patch:
        if calls == "log":
            patch.setattr(promotion, "_write_log", lambda *_: mover.die())
        with pytest.raises(SystemExit):
            move(mover, tmp_path, "procap", BEFORE, AFTER, {"action": "promote"})
    reached = calls in ("log", 5)
    assert standing(store, "procap").champion == ("3" if reached else "2")

    monkeypatch.setattr(promotion, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(BadInput, match="another promotion is at work"):
        move(store, tmp_path, "procap", standing(store, "procap"), AFTER, {"action": "promote"})
    monkeypatch.setattr(promotion, "is_dead", lambda tags: True)
    assert promotion.mend(store, tmp_path, "procap")
    assert promotion.mend(store, tmp_path, "procap") is None
    assert standing(store, "procap") == (AFTER if reached else BEFORE)
    assert len(read_log(tmp_path)) == reached
    if not reached:
        move(store, tmp_path, "procap", BEFORE, AFTER, {"action": "promote"})
    assert [(line["from"], line["to"]) for line in read_log(tmp_path)] == [("2", "3")]


def test_of_two_promotions_at_once_one_wins_and_the_other_is_told(three_versions, tmp_path):
    store, told = three_versions, []
    gate = threading.Barrier(2)

    def run(version):
        gate.wait()
        try:
            move(store, tmp_path, "procap", BEFORE, Standing(version, "2"), {"action": "promote"})
            told.append(version)
        except BadInput as complaint:
            told.append(complaint.what)

    threads = [threading.Thread(target=run, args=(version,)) for version in ("1", "3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [one for one in told if one in ("1", "3")]
    assert "the champion changed while this version was judged" in told
    assert standing(store, "procap") == Standing(winner, "2")
    assert [line["to"] for line in read_log(tmp_path)] == [winner]
    assert [model.name for model in store.search_registered_models()] == ["procap"], "the lock is gone"


def test_a_registry_that_went_away_or_has_nothing_is_a_complaint(store, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="does not give it"):
        promote(tmp_path, "procap")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(BadInput, match="does not answer"):
        promote(tmp_path, "procap")


def test_a_log_line_that_a_crash_cut_off_costs_that_line_alone(store, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "promotions.jsonl").write_text('{"action": "promote"}\n{"action": "rol')
    promotion._write_log(tmp_path, "procap", Standing("1", None), Standing("2", "1"), {"action": "rollback"})
    assert [line["action"] for line in read_log(tmp_path)] == ["promote", "rollback"]


@pytest.fixture
def project(workspace):
    """A workspace with what the pipeline leaves: pairs, scores, a report, and dvc.lock."""
    from tests.unit.test_lineage import write_lock

    toy_prepared(workspace / "data" / "prepare", pairs=16)
    pairs = Pairs.read(workspace / "data" / "prepare").split("test")
    count = len(pairs)
    predictions = dict(zip(pairs.table["id"], told([1] * count, [1] * count).values(), strict=True))
    bounds = {f"{key}_interval": [0.1, 0.9] for key in ("change_accuracy", "change_type_accuracy")}
    table = metrics(predictions) | bounds | {"pairs": count, "skipped": {"SPICE": "no | Java"}}
    for name, value in (("predictions.json", predictions), ("metrics.json", table)):
        path = workspace / "data" / "evaluate" / "static" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, default=float))
    report = {"critical": 0, "warnings": 1, "rules": {"pairs.rare": {"says": "no type is rare", "success": False}}}
    (workspace / "data" / "validate").mkdir()
    (workspace / "data" / "validate" / "report.json").write_text(json.dumps(report))
    bundles = {f"caption__{name}": {f"data/caption/{name}/bundle": f"{name}.dir"} for name in ("static", "procap")}
    write_lock(workspace, prepare={"data/prepare": "p.dir"}, **bundles)
    return workspace


def collected(project):
    from procap.config import load_params

    params = load_params(project / "params.yaml").model_dump(mode="json", by_alias=True)
    target = project / ".procap" / "evidence"
    shutil.rmtree(target, ignore_errors=True)
    return collect(project, Facts("procap", "static", "b" * 64, params), target)


def test_the_evidence_holds_what_a_verdict_a_rebuild_and_a_reader_need(project):
    evidence = collected(project)
    lineage = json.loads((evidence.folder / "lineage.json").read_text())
    assert lineage["git"]["git.commit"]
    assert lineage["steps"]["caption@static"]["outs"] == {"data/caption/static/bundle": "static.dir"}
    assert "caption@procap" not in lineage["steps"]
    assert lineage["params"]["seed"] == 1
    assert {"torch", "python"} <= set(lineage["versions"])
    examples = json.loads((evidence.folder / "examples.json").read_text())
    assert len(examples) == 3
    assert all(one["sentence"] for one in examples)
    card = (evidence.folder / "model_card.md").read_text()
    for part in ("b" * 64, "| CIDEr |", "not so: no type is rare", "no | Java", evidence.tags["procap.test_data"]):
        assert part in card, part
    assert len(card) < 5000, "MLflow's descriptions take no more"
    assert not (evidence.folder / "changes.patch").exists()


def test_changes_that_no_commit_holds_are_kept_as_a_patch(project):
    source = project / "procap" / "errors.py"
    source.write_text("x = 2\n")
    (project / "new.py").write_text("y = 1\n")
    evidence = collected(project)
    assert "+x = 2" in (evidence.folder / "changes.patch").read_text()
    assert json.loads((evidence.folder / "lineage.json").read_text())["untracked"] == ["new.py"]


def test_a_missing_result_is_named(project):
    (project / "data" / "evaluate" / "static" / "predictions.json").unlink()
    with pytest.raises(BadInput, match=r"predictions\.json"):
        collected(project)
