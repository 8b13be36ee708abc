"""Files that params.yaml names: the stage that reads one runs again when it changes."""

import json
from typing import get_args

from flows import stage
from flows.lineage import plan_digests, read_yaml, stage_digest
from flows.presets import apply_overrides
from flows.watching import keys, watch
from procap.config import Params, Section
from tests.unit.test_lineage import write_lock

SMALL = """\
stages:
  prepare:
    cmd: mkdir -p data && cp words.json data/words

    deps:
      - code.txt
    outs:
      - data/words
"""


def test_every_parameter_that_is_a_free_text_is_watched_or_a_name():
    texts = set()
    for name, field in Params.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for key, inner in field.annotation.model_fields.items():
                if str in (inner.annotation, *get_args(inner.annotation)):
                    texts.add(f"{field.alias or name}.{key}")
    assert texts == {"register.name", "register.alias"}
    assert {f"{step}.{key}" for step, found in keys().items() for key in found} == {
        "prepare.vocabulary", "interpolate.checkpoint", "interpolate.h5", "sample.visual_checkpoint",
        "sample.visual_text_checkpoint", "sample.scores", "tokenizer.checkpoint", "pretrain.checkpoint",
        "ccrc.language_model", "evaluate.sentence_model",
    }  # fmt: skip


def test_a_named_file_becomes_a_dependency_as_long_as_it_is_named(workspace, tmp_path_factory):
    path = workspace / "dvc.yaml"
    before = path.read_text()
    model = tmp_path_factory.mktemp("far away") / "a ${b} #1.ckpt"
    for name in ("words.json", "a.h5", "b.h5", str(model)):
        (workspace / name).write_text("x")
    named = {
        "prepare.vocabulary": "words.json",
        "interpolate.h5": ["a.h5", "b.h5"],
        "tokenizer.checkpoint": str(model),
        "pretrain.checkpoint": "not/there",
    }
    apply_overrides(workspace / "params.yaml", named)
    stages, plain = read_yaml(path)["stages"], read_yaml_text(before)["stages"]
    more = {step: [d for d in stages[step]["deps"] if d not in plain[step]["deps"]] for step in stages}
    assert {step: found for step, found in more.items() if found} == {
        "prepare": ["words.json"], "interpolate": ["a.h5", "b.h5"], "tokenizer": [str(model).replace("${", "\\${")],
    }  # fmt: skip
    assert [line for line in before.splitlines() if line not in path.read_text().splitlines()] == []
    apply_overrides(workspace / "params.yaml", {"interpolate.h5": "b.h5", "prepare.vocabulary": None})
    assert [line.strip() for line in path.read_text().splitlines() if "# params.yaml: " in line] == [
        '- "b.h5"  # params.yaml: interpolate.h5',
        f"- {json.dumps(str(model).replace('${', chr(92) + '${'))}  # params.yaml: tokenizer.checkpoint",
    ]
    apply_overrides(workspace / "params.yaml", {"interpolate.h5": None, "tokenizer.checkpoint": None})
    assert path.read_text() == before


def read_yaml_text(text: str):
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text)


def test_a_stage_reads_nothing_that_dvc_does_not_watch(workspace, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(stage, "run_step", lambda step, *_: ran.append(step))
    monkeypatch.setattr(stage, "listen_to_signals", lambda: None)
    (workspace / "vqgan.ckpt").write_text("x")
    text, null = (workspace / "params.yaml").read_text(), "checkpoint: null\n  channels"
    (workspace / "params.yaml").write_text(text.replace(null, null.replace("null", "vqgan.ckpt")))
    assert stage.main(["tokenizer"]) == 2
    assert "DVC would not notice changes of vqgan.ckpt" in capsys.readouterr().err
    assert stage.main(["tokenize"]) == 0, "no other stage reads it"
    watch(workspace, read_yaml(workspace / "params.yaml"))
    assert stage.main(["tokenizer"]) == 0
    assert ran == ["tokenize", "tokenizer"]


def test_lineage_follows_what_is_in_a_named_file_and_not_the_lines_of_dvc_yaml(workspace):
    write_lock(workspace, prepare={"data/prepare": "p.dir"})
    words, params = workspace / "words.json", read_yaml(workspace / "params.yaml")
    plain = plan_digests(workspace, "pretrain", params)["pretrain"]
    named = {**params, "prepare": {**params["prepare"], "vocabulary": "words.json"}}
    digests = []
    for text in ("one", "two", "one"):
        words.write_text(text)
        found = plan_digests(workspace, "pretrain", named)["pretrain"]
        watch(workspace, named)
        assert plan_digests(workspace, "pretrain", named)["pretrain"] == found
        assert plan_digests(workspace, "pretrain", params)["pretrain"] == plain
        digests.append(found)
    assert digests[0] == digests[2] != digests[1] != plain


def test_dvc_itself_notices_and_its_lock_gives_the_same_lineage(workspace, monkeypatch):
    from dvc.repo import Repo

    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    (workspace / "dvc.yaml").write_text(SMALL.replace("    outs:", "    params: [seed]\n    outs:"))
    (workspace / "code.txt").write_text("x")
    words, folder = workspace / "words.json", workspace / "more words"
    (folder / "deep").mkdir(parents=True)
    for path in (words, folder / "b.txt", folder / "deep" / "ä.txt"):
        path.write_text(path.name)
    repo = Repo.init(str(workspace), force=True)
    for named in (words, folder):
        apply_overrides(workspace / "params.yaml", {"prepare.vocabulary": str(named)})
        before = stage_digest(workspace, "prepare")
        repo.reproduce()
        assert repo.status() == {}
        assert stage_digest(workspace, "prepare", locked=True) == before
        changed = named if named.is_file() else named / "b.txt"
        changed.write_text("other words")
        assert repo.status() == {"prepare": [{"changed deps": {named.name: "modified"}}]}
        assert stage_digest(workspace, "prepare") != before
        assert stage_digest(workspace, "prepare", locked=True) == before, "what was made was made of the former"
        repo.reproduce()
