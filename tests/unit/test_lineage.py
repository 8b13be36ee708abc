"""Lineage ties a run to what went in; its digest agrees with what DVC writes down afterwards."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import lineage
from flows.lineage import (
    declaration,
    git_facts,
    inputs,
    is_dead,
    process_facts,
    read_yaml,
    rebuild_key,
    stage_digest,
)
from procap.errors import BadInput


def write_lock(root, **stages):
    """A ``dvc.lock`` as DVC would write it: outputs as given, code and parameters as they are now."""
    entries = {}
    for name, outs in stages.items():
        name = name.replace("__", "@")
        stage = declaration(root, name)
        code = [dep for dep in stage.deps if dep.endswith(".py") and (root / dep).exists()]
        entries[name] = {
            "deps": [{"path": dep, "md5": hashlib.md5((root / dep).read_bytes()).hexdigest()} for dep in code],
            "params": {"params.yaml": stage.params},
            "outs": [{"path": path, "md5": md5} for path, md5 in outs.items()],
        }
    (root / "dvc.lock").write_text(json.dumps({"stages": entries}))


def test_a_declaration_has_its_variables_filled_in(workspace):
    stage = declaration(workspace, "caption@procap")
    assert stage.cmd == "python -m flows.stage caption --captioner procap"
    assert "procap/captioners/procap.py" in stage.deps
    assert stage.params["sample.kept"] == read_yaml(workspace / "params.yaml")["sample"]["kept"]
    assert "data/raw/rendered" in declaration(workspace, "prepare").deps
    with pytest.raises(BadInput, match="no stage 'nothing'"):
        declaration(workspace, "nothing")


def test_inputs_are_found_by_path_by_folder_and_by_part(workspace):
    bundle = {"data/caption/static/bundle": "b.dir", "data/caption/static/metrics.json": "m"}
    write_lock(workspace, prepare={"data/prepare": "p.dir"}, caption__static=bundle)
    assert inputs(workspace, declaration(workspace, "validate")) == {"data/prepare": "p.dir"}
    assert inputs(workspace, declaration(workspace, "register")) == bundle
    assert "data/caption/static/bundle" not in inputs(workspace, declaration(workspace, "caption@static"))


def test_a_corpus_added_to_dvc_is_an_input(workspace):
    (workspace / "data" / "raw").mkdir(parents=True)
    (workspace / "data" / "raw" / "rendered.dvc").write_text("outs:\n- md5: raw.dir\n  path: rendered\n")
    assert inputs(workspace, declaration(workspace, "prepare")) == {"data/raw/rendered": "raw.dir"}


def test_the_digest_at_the_start_is_the_digest_from_the_lock(workspace):
    write_lock(workspace, prepare={"data/prepare": "p.dir"}, validate={"data/validate/report.json": "r"})
    before = stage_digest(workspace, "validate")
    assert before == stage_digest(workspace, "validate", locked=True)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("params.yaml", "rarest_change: 0.05", "rarest_change: 0.06"),
        ("procap/steps/validate.py", "x = 1", "x = 2"),
        ("dvc.lock", "p.dir", "q.dir"),
    ],
    ids=["parameter", "code", "data"],
)
def test_the_digest_follows_parameters_code_and_data(workspace, path, old, new):
    write_lock(workspace, prepare={"data/prepare": "p.dir"})
    before = stage_digest(workspace, "validate"), stage_digest(workspace, "register")
    text = (workspace / path).read_text()
    assert old in text
    (workspace / path).write_text(text.replace(old, new))
    assert stage_digest(workspace, "validate") != before[0]
    assert stage_digest(workspace, "register") == before[1]


def test_git_facts_know_dirt_but_not_the_pipelines_own(workspace):
    clean = git_facts(workspace)
    assert clean["git.dirty"] == "false"
    assert len(clean["git.commit"]) == 40
    (workspace / "data").mkdir(exist_ok=True)
    (workspace / "data" / "new").write_text("x")
    write_lock(workspace, prepare={})
    assert git_facts(workspace) == clean
    (workspace / "params.yaml").write_text((workspace / "params.yaml").read_text() + "# more\n")
    dirty = git_facts(workspace)
    assert dirty["git.dirty"] == "true"
    (workspace / "params.yaml").write_text((workspace / "params.yaml").read_text() + "# and more\n")
    assert git_facts(workspace)["git.diff_sha256"] != dirty["git.diff_sha256"]


def test_outside_a_repository_there_are_no_facts(tmp_path):
    assert git_facts(tmp_path) == {}


def test_a_rebuild_is_named_by_the_dvc_above(tmp_path, monkeypatch):
    monkeypatch.delenv("PROCAP_REBUILD", raising=False)
    code = "from flows.lineage import rebuild_key; print(rebuild_key())"
    (tmp_path / "dvc").write_text(
        f"import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, '-c', {code!r}])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, str(tmp_path / "dvc")], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert len(told) == 2
    assert told[0] == told[1] != rebuild_key()
    monkeypatch.setenv("PROCAP_REBUILD", "mine")
    assert rebuild_key() == "mine"


def test_a_process_is_dead_when_it_is_gone_or_its_number_was_given_away():
    mine = process_facts()
    assert not is_dead(mine)
    assert is_dead(mine | {"procap.pid_started": "1.00"})
    assert not is_dead(mine | {"procap.host": "elsewhere", "procap.pid_started": "1.00"})
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert is_dead(mine | {"procap.pid": str(child.pid)})


@settings(deadline=None, max_examples=50)
@given(st.recursive(st.integers(), lambda inner: st.dictionaries(st.text("ab", min_size=1), inner, min_size=1)))
def test_dotted_undoes_nesting(tree):
    from flows.tracking import flatten

    if isinstance(tree, dict):
        for key, value in flatten(tree).items():
            assert str(lineage.dotted(tree, key)) == value
