"""DVC runs a step again when, and only when, something that the step uses has changed."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from procap.config import load_params
from procap.steps import PER_CAPTIONER, STEPS
from tests.architecture.watched import ROOT, code_of, declared, params_of

DVC = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
STAGES = declared(DVC)


def unwatched(stages: dict, step: str, imports: object = None) -> set[str]:
    return code_of(step, imports) - set(stages[step]["deps"])


def test_dvc_params_and_the_method_name_the_same_steps():
    assert tuple(STAGES) == STEPS
    sections = YAML(typ="safe").load(ROOT / "params.yaml")
    assert [section for section in sections if section in STEPS] == list(STEPS)
    assert all((ROOT / "procap" / "steps" / f"{step}.py").exists() for step in STEPS)
    assert {step for step in STEPS if "matrix" in STAGES[step]} == set(PER_CAPTIONER)


@pytest.mark.parametrize("step", STEPS)
def test_dvc_watches_every_module_the_step_imports(step):
    missing = unwatched(STAGES, step)
    assert not missing, f"run `python -m tests.architecture.watched`; {step} also imports {sorted(missing)}"


@pytest.mark.parametrize("step", STEPS)
def test_dvc_watches_no_module_that_the_step_does_not_import(step):
    watched = {dep for dep in STAGES[step]["deps"] if dep.endswith(".py")}
    assert watched <= code_of(step), f"run `python -m tests.architecture.watched` for {step}"


@pytest.mark.parametrize("step", STEPS)
def test_the_check_above_fails_for_each_dependency_that_is_taken_out(step):
    for gone in (dep for dep in STAGES[step]["deps"] if dep.endswith(".py")):
        without = {step: {"deps": [dep for dep in STAGES[step]["deps"] if dep != gone]}}
        assert unwatched(without, step) == {gone}


def test_a_new_import_is_noticed(tmp_path):
    """Plant an import, deep below a step and inside a function, in a copy of the package."""
    import shutil
    import subprocess
    import sys

    shutil.copytree(ROOT / "procap", tmp_path / "procap", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "procap" / "models" / "planted.py").write_text('"""Planted."""\nX = 1\n')
    layers = tmp_path / "procap" / "models" / "layers.py"
    layers.write_text(
        layers.read_text() + "\n\ndef late():\n    from procap.models import planted\n    return planted\n"
    )
    code = (
        "import grimp; g = grimp.build_graph('procap', cache_dir=None); "
        "print('procap.models.planted' in g.find_upstream_modules('procap.steps.caption'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("step", STEPS)
def test_dvc_watches_the_parameters_that_the_step_reads_and_no_others(step):
    watched, read = set(STAGES[step].get("params", ())), params_of(step)

    def within(name: str, others: set[str]) -> bool:
        return any(name == other or name.startswith(other + ".") for other in others)

    missing = {name for name in read if not within(name, watched)}
    assert not missing, f"{step} also reads {sorted(missing)}"
    idle = {name for name in watched if not within(name, read) and not any(within(one, {name}) for one in read)}
    assert not idle, f"{step} does not read {sorted(idle)}"


def test_the_reader_of_parameters_sees_chains_aliases_properties_and_dumps():
    import ast

    from tests.architecture.watched import _reads

    def reads(text: str) -> set[str]:
        return _reads(ast.parse(text), "params")

    assert reads("x = params.caption.steps") == {"caption.steps"}
    assert reads("settings = params.caption; settings.steps") == {"caption"}
    assert reads("params.frames") == {"sample.kept"}
    assert reads("params.training_seed") == {"seed", "replicate"}
    assert reads("params.register_.name") == {"register.name"}
    assert reads("params.model_dump(include={'seed', 'sample'})") == {"seed", "sample"}
    assert reads("params.model_dump(include={'seed': True, 'sample': {'kept'}})") == {"seed", "sample.kept"}
    assert "evaluate" in reads("params.model_dump()")
    with pytest.raises(AssertionError, match="does not know"):
        reads("params.copy")


def test_outputs_lie_in_the_folder_of_their_step_and_do_not_overlap():
    found = []
    for step, stage in STAGES.items():
        for out in (*stage.get("outs", ()), *stage.get("metrics", ()), *stage.get("plots", ())):
            path = out if isinstance(out, str) else next(iter(out))
            assert Path(path).parts[:2] == ("data", step)
            found.append(Path(path))
    for one in found:
        assert not [other for other in found if other != one and one.is_relative_to(other)]


def test_numbers_are_kept_in_git_and_registration_in_no_cache():
    for stage in STAGES.values():
        for out in (*stage.get("metrics", ()), *stage.get("plots", ())):
            assert next(iter(out.values()))["cache"] is False
    assert STAGES["register"]["outs"] == [{"data/register/versions.json": {"cache": False}}]


def test_the_committed_parameters_and_every_preset_are_valid():
    from flows.presets import merge, preset_names, read_preset, read_sections
    from procap.config import check_params

    load_params(ROOT / "params.yaml")
    for name in preset_names(ROOT):
        document = read_sections(ROOT / "params.yaml", "safe")
        merge(document, read_preset(ROOT, name))
        check_params(document, where=name)
