"""The commands a user types, and what they say when the user is wrong."""

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import SHEET_FRAMES, app
from flows.console import Everyone, Terminal
from flows.presets import apply_overrides, apply_preset, preset_names
from flows.process import child_environment, end_family, stream
from procap.config import load_params
from procap.datasets.contact_sheet import GAP, LINE
from procap.datasets.rendered import render_scene
from procap.errors import BadInput
from procap.report import Silent
from procap.steps.prepare import corpus_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(workspace):
    (workspace / "infra" / "presets").mkdir(parents=True)
    preset = "# Tiny.\ncaption:\n  steps: 3\npretrain:\n  masking: [0.25, 0.25, 0.25, 0.25]\n"
    (workspace / "infra" / "presets" / "tiny.yaml").write_text(preset)
    return workspace


def call(*words: str):
    """Run a command; bad input comes back as the exception that ``main`` prints."""
    return CliRunner().invoke(app, list(words))


def test_a_preset_changes_its_values_and_nothing_else(project):
    before = (project / "params.yaml").read_text().splitlines()
    assert "Tiny." in call("preset", "list").stdout
    assert call("preset", "tiny").exit_code == 0
    after = (project / "params.yaml").read_text().splitlines()
    params = load_params(project / "params.yaml")
    assert params.caption.steps == 3
    assert params.pretrain.masking == (0.25,) * 4
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 2
    assert all(old.partition("#")[2] == new.partition("#")[2] for old, new in changed), "comments stay"
    assert "nothing to change" in call("preset", "tiny").stdout


def test_where_there_are_no_presets_none_are_listed_in_silence(project, monkeypatch):
    monkeypatch.chdir(project / "infra")
    for words in (["preset", "list"], ["preset", "tiny"]):
        error = call(*words).exception
        assert isinstance(error, BadInput)
        assert (error.what, error.where) == ("no presets are here", str(project / "infra" / "infra" / "presets"))


@pytest.mark.parametrize("text", ["caption:\n  stepz: 3\n", "caption:\n  steps: 0\n", "sample:\n  kept: 99\n", "- 1\n"])
def test_a_preset_that_is_wrong_changes_nothing(project, text):
    (project / "infra" / "presets" / "wrong.yaml").write_text(text)
    before = (project / "params.yaml").read_bytes()
    with pytest.raises(BadInput):
        apply_preset(project, "wrong")
    assert (project / "params.yaml").read_bytes() == before


def test_overrides_are_checked_and_written(project):
    path = project / "params.yaml"
    assert apply_overrides(path, {"caption.steps": 7, "seed": 1}) == ["caption.steps"]
    assert load_params(path).caption.steps == 7
    with pytest.raises(BadInput, match="did you mean 'steps'"):
        apply_overrides(path, {"caption.step": 7})
    with pytest.raises(BadInput, match="no preset 'absent'"):
        apply_preset(project, "absent")
    assert preset_names(project) == ["tiny"]


@pytest.mark.parametrize("words", [["config", "check"], ["config", "show"], ["config", "show", "caption"]])
def test_the_parameters_can_be_looked_at(project, words):
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert ("decoder_layers: 2" in done.stdout) == (words[1] == "show")


def test_bad_input_is_one_message_and_status_2(project):
    text = (project / "params.yaml").read_text().replace("seed: 1", "sead: 1")
    (project / "params.yaml").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    for words in (["flows.cli", "config", "check"], ["flows.stage", "prepare"], ["flows.cli", "repro"]):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=project, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "did you mean 'seed'" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["caption"], ["prepare", "--captioner", "procap"], ["nothing"]])
def test_a_stage_that_does_not_exist_is_refused(words):
    from flows.stage import main

    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_metrics_are_printed_side_by_side(project):
    assert isinstance(call("metrics").exception, BadInput)
    for captioner, cider in (("procap", 101.5), ("static", 80.25)):
        folder = project / "data" / "evaluate" / captioner
        folder.mkdir(parents=True)
        scores = {"CIDEr": cider, "change_accuracy": 0.875, "skipped": {"METEOR": "no Java"}}
        (folder / "metrics.json").write_text(json.dumps(scores))
    (project / "data" / "register").mkdir()
    versions = [{"name": "procap", "version": 4, "alias": "challenger", "captioner": "procap", "digest": "ab" * 32}]
    (project / "data" / "register" / "versions.json").write_text(json.dumps(versions))
    said = call("metrics").stdout
    for word in ("101.50", "80.25", "87.5 %", "METEOR left out: no Java", "challenger"):
        assert word in said


def test_a_log_gets_lines_and_the_items_pass_through():
    out = io.StringIO()
    heard = Silent()
    report = Everyone([heard, Terminal("sample", out)])
    assert list(report.progress(range(5), "pairs")) == list(range(5))
    assert list(report.progress(iter("ab"), "letters", total=4, done=2)) == ["a", "b"]
    report.note("[not] markup")
    assert "sample: pairs 5/5" in out.getvalue()
    assert "letters 4/4" in out.getvalue()
    assert "[not] markup" in out.getvalue()
    assert out.getvalue().count("\n") == 3
    report.now({"loss": 1.0})
    report.reports[1].said = -1e9  # as if the last line was long ago
    report.metrics({"train_loss": 1.0}, 20)
    assert out.getvalue().count("\n") == 3, "the next line of progress has it"
    out.close()
    report.note("a closed pipe does not stop a step")


def test_a_terminal_gets_a_bar():
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    terminal = Terminal("sample", out)
    for number in terminal.progress([1, 2, 3], "pairs"):
        terminal.now({"loss": 0.5 + number, "rate": 1e-3, "pairs/s": 123.4})
        terminal.metrics({"train_loss": float(number)}, number)
        terminal.metrics({"val_CIDEr": 70.0 + number}, number)
        terminal.note(f"note {number}")
        assert list(terminal.progress([1], "inside")) == [1]
    assert "3/3" in out.getvalue()
    assert "loss 3.5  rate 0.001  pairs/s 123.4  val_CIDEr 73" in out.getvalue()
    assert "train_loss" not in out.getvalue(), "the loss of this moment says more"
    assert terminal.bar is None


def test_dvc_finds_our_python_and_no_trace_of_the_worker(monkeypatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "worker")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    found = child_environment("run-7")
    assert not [name for name in found if name.startswith("PREFECT__")]
    assert found["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert found["PROCAP_PARENT_FLOW_RUN"] == found["PROCAP_REBUILD"] == "run-7"


def test_lines_are_said_as_they_come_in_our_process_group():
    code = "import os, sys, time; print(os.getpgrp(), flush=True); print('two', file=sys.stderr); sys.exit(3)"
    said = []
    status, tail = stream([sys.executable, "-c", code], os.environ, said.append)
    assert status == 3
    assert said == tail == [str(os.getpgrp()), "two"]


def test_an_interrupt_ends_the_children_too():
    child = "import time; time.sleep(600)"
    code = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True); p.wait()"
    )
    heard = []

    def interrupt(line: str) -> None:
        heard.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream([sys.executable, "-c", code], os.environ, interrupt)
    import psutil

    assert not psutil.pid_exists(heard[0]) or psutil.Process(heard[0]).status() == psutil.STATUS_ZOMBIE


def test_parents_are_ended_before_their_children(monkeypatch):
    """So that a DVC does not rewrite its file of locks, because its step ended, while it is ended itself."""
    import psutil

    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child, asked, terminate = int(process.stdout.readline()), [], psutil.Process.terminate
    monkeypatch.setattr(psutil.Process, "terminate", lambda self: asked.append(self.pid) or terminate(self))
    end_family(process)
    assert asked == [process.pid, child]


def test_ending_what_has_ended_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    time.sleep(0.01)
    end_family(process)


def test_the_pipeline_refuses_to_run_inside_itself_and_says_which_steps():
    pytest.importorskip("prefect")
    from flows.pipeline import StepFailed, refuse_inside_a_stage, steps_for
    from procap.steps import STEPS

    with pytest.raises(BadInput, match="inside one of its own stages"):
        refuse_inside_a_stage({"DVC_STAGE": "caption@procap"})
    refuse_inside_a_stage({})
    assert steps_for([]) == STEPS
    assert steps_for(["validate", "prepare"]) == ("prepare", "validate")
    with pytest.raises(BadInput, match="no step 'captoin'"):
        steps_for(["captoin"])
    assert StepFailed("caption", 255, ["ERROR: Unable to acquire lock"]).transient
    assert StepFailed("caption", 255, ["Unable to read RWLock-file 'x'. JSON structure is corrupted"]).transient
    assert not StepFailed("caption", 255, ["Unable to acquire lock", "failed to run: python, exited with 2"]).transient
    assert not StepFailed("caption", 255, ["ValueError: no", "failed to run: python, exited with 1"]).transient


@pytest.mark.parametrize("way", ["procap repro", "the pipeline's task"])
def test_half_a_file_of_locks_that_a_killed_dvc_left_is_cleared_before_dvc_runs(project, monkeypatch, way):
    path, seen = project / ".dvc" / "tmp" / "rwlock", []
    path.parent.mkdir(parents=True)
    path.write_text('{"write": {"data/pre')

    def dvc(*words, **_):
        seen.append((words, path.exists()))
        return 0, []

    if way == "procap repro":
        monkeypatch.setattr("flows.watching.watch", lambda *_: None)
        monkeypatch.setattr(os, "execv", dvc)
        assert "cut off" in CliRunner().invoke(app, ["repro"], catch_exceptions=False).stdout
    else:
        pytest.importorskip("prefect")
        from flows import pipeline

        monkeypatch.setattr(pipeline, "stream", dvc)
        monkeypatch.setattr(pipeline, "get_run_logger", lambda: SimpleNamespace(info=lambda *_: None))
        pipeline.reproduce.fn("prepare")
    assert [there for _, there in seen] == [False]


def test_one_pipeline_per_workspace(tmp_path):
    pytest.importorskip("prefect")
    from flows.pipeline import alone

    with alone(tmp_path), pytest.raises(BadInput, match="another pipeline"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


@pytest.mark.parametrize(
    ("device", "step", "slots"), [("cuda", "caption", 1), ("cpu", "caption", 0), ("cuda", "prepare", 0)]
)
def test_a_step_holds_a_gpu_slot_only_where_it_uses_one(monkeypatch, device, step, slots):
    pytest.importorskip("prefect")
    from contextlib import nullcontext

    import prefect.concurrency.sync

    from flows import stage_flow

    taken = []
    monkeypatch.setattr(prefect.concurrency.sync, "concurrency", lambda *a, **k: taken.append(k) or nullcontext())
    monkeypatch.setattr(stage_flow, "ensure_slots", lambda: None)
    with stage_flow.gpu_slot(step, SimpleNamespace(hardware=SimpleNamespace(device=device))):
        pass
    assert len(taken) == slots
    assert all(k["strict"] for k in taken), "a missing limit must not let everybody through"


def test_what_the_system_refuses_is_said_without_a_traceback(project, monkeypatch, capsys):
    from flows.cli import main

    (project / "data").write_text("a file where a folder should be")
    monkeypatch.setattr("sys.argv", ["procap", "render", "data/scenes", "--count", "10"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "the system refuses: Not a directory" in said
    assert "data/scenes" in said


@pytest.fixture
def scenes(project):
    """Scenes that take little time."""
    apply_overrides(project / "params.yaml", {"prepare.image_size": 32, "prepare.scenes.samples": 1})
    return corpus_settings(load_params(project / "params.yaml"))


def test_a_sheet_shows_scenes_in_the_asked_size(project, scenes):
    done = call("render", "--sheet", "sheet.png", "--width", "48", "--height", "20", "--count", "2")
    assert done.exit_code == 0, done.output
    assert "written: sheet.png" in done.stdout
    with Image.open(project / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    tiles, lines = 1 + SHEET_FRAMES + 2, 2
    assert pixels.shape == (lines * (20 + LINE + GAP), tiles * (48 + GAP) - GAP, 3)
    for number in range(lines):
        scene = render_scene(replace(scenes, size=(20, 48), truth=SHEET_FRAMES), number)
        top = number * (20 + LINE + GAP) + LINE
        line = [pixels[top : top + 20, left : left + 48] for left in range(0, pixels.shape[1], 48 + GAP)]
        assert all(map(np.array_equal, line[1:-2], scene.truth[0]))
        assert np.array_equal(line[-1], scene.distractor)
        for tile, picture, mask in zip((line[0], line[-2]), (scene.before, scene.changed), scene.masks, strict=True):
            other = (tile != picture).any(axis=-1)
            assert (tile[other] == 255).all(), "all but the white outline"
            assert other.any() == mask.any()


@pytest.mark.parametrize(
    ("asked", "size"), [([], (32, 32)), (["--width", "48"], (48, 32)), (["--height", "48"], (32, 48))]
)
def test_scenes_are_written_in_the_asked_size_or_that_of_params(project, scenes, asked, size):
    assert call("render", "out", "--count", "10", *asked).exit_code == 0
    sizes = set()
    for path in (project / "out").rglob("*.png"):
        with Image.open(path) as picture:
            sizes.add(picture.size)
    assert sizes == {size}
    assert len(list((project / "out" / "images").iterdir())) == 10


def test_rendering_needs_a_place_that_is_free(project):
    for words in ([], ["infra"]):
        assert isinstance(call("render", *words).exception, BadInput)
    assert call("render", "out", "--width", "481").exit_code == 2


def test_servers_start_in_a_project_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(call("up").exception, BadInput)
    assert call("up", "--mlflow-port", "65536").exit_code == 2
    assert not list(tmp_path.iterdir())
