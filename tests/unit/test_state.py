import errno
import os
import subprocess
import sys

import pytest
import torch

from procap import files
from procap.errors import refusal
from procap.files import atomic_folder, file_digest, folder_digest, publish, replacing, write_json
from procap.training import state
from procap.training.checkpoint import save_state
from procap.training.state import discard_state, state_folder


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    write_json(folder / "prepare" / "pairs.json", [1, 2])
    return folder


def test_the_same_work_finds_its_state_again_wherever_the_project_lies(data, tmp_path):
    folder = state_folder(data, "pretrain", {"a": 1, "b": (2, 3)}, [data / "prepare"])
    (folder / "progress").write_text("half")
    assert folder.parent == data.parent / ".state" / "pretrain"
    assert state_folder(data, "pretrain", {"b": [2, 3], "a": 1}, [data / "prepare"]) == folder
    assert (folder / "progress").exists()
    moved = tmp_path / "elsewhere" / "data"
    write_json(moved / "prepare" / "pairs.json", [1, 2])
    assert state_folder(moved, "pretrain", {"a": 1, "b": [2, 3]}, [moved / "prepare"]).name == folder.name


def change_config(data, monkeypatch):
    return {"a": 2}


def change_input(data, monkeypatch):
    write_json(data / "prepare" / "pairs.json", [1, 3])
    return {"a": 1}


def change_sources(data, monkeypatch):
    monkeypatch.setattr(state, "_sources_digest", lambda: "other")
    return {"a": 1}


@pytest.mark.parametrize("change", [change_config, change_input, change_sources])
def test_changed_work_starts_anew_and_clears_what_was_there(data, monkeypatch, change):
    other = state_folder(data, "caption/static", {"a": 1}, [data / "prepare"])
    folder = state_folder(data, "caption/procap", {"a": 1}, [data / "prepare"])
    (folder / "progress").write_text("half")
    fresh = state_folder(data, "caption/procap", change(data, monkeypatch), [data / "prepare"])
    assert fresh != folder
    assert not list(fresh.iterdir())
    assert not folder.exists()
    assert other.exists()
    discard_state(fresh)
    assert not fresh.exists()


def test_digests_follow_bytes_and_names_only(tmp_path):
    write_json(tmp_path / "a" / "x.json", 1)
    write_json(tmp_path / "b" / "x.json", 1)
    assert folder_digest(tmp_path / "a") == folder_digest(tmp_path / "b")
    assert file_digest(tmp_path / "a" / "x.json") == file_digest(tmp_path / "b" / "x.json")
    (tmp_path / "b" / "x.json").rename(tmp_path / "b" / "y.json")
    assert folder_digest(tmp_path / "a") != folder_digest(tmp_path / "b")


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / "target"
    with atomic_folder(target) as fresh:
        write_json(fresh / "first.json", 1)
    with pytest.raises(ValueError, match="JSON"), atomic_folder(target) as fresh:
        write_json(fresh / "second.json", float("nan"))
    assert [path.name for path in target.iterdir()] == ["first.json"]
    with atomic_folder(target) as fresh:
        write_json(fresh / "second.json", 2)
    assert [path.name for path in target.iterdir()] == ["second.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_publish_puts_a_finished_folder_in_place(tmp_path):
    write_json(tmp_path / "made" / "new.json", 1)
    write_json(tmp_path / "data" / "step" / "old.json", 1)
    publish(tmp_path / "made", tmp_path / "data" / "step")
    assert [path.name for path in (tmp_path / "data" / "step").iterdir()] == ["new.json"]
    assert not (tmp_path / "made").exists()


def test_json_bytes_depend_on_the_value_alone(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": "é"})
    write_json(tmp_path / "b.json", {"a": "é", "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "a": "é",\n  "b": 1\n}\n'


def write_half(target, error):
    with replacing(target, durable=True) as partial:
        partial.write_text("half")
        raise error


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_is_named(tmp_path):
    target = tmp_path / "target"
    target.write_text("before")
    for error in (OSError(errno.ENOSPC, "No space left on device"), ValueError("no")):
        with pytest.raises(type(error)) as caught:
            write_half(target, error)
        assert caught.value is error
        assert [path.name for path in tmp_path.iterdir()] == ["target"]
        assert target.read_text() == "before"
        assert getattr(error, "filename", str(target)) == str(target)
    told = refusal(OSError(errno.ENOSPC, "No space left on device"))
    assert "No space left on device" in str(told)
    assert refusal(OSError(errno.EPIPE, "Broken pipe")) is None
    with replacing(target, durable=True) as partial:
        partial.write_text("after")
    assert target.read_text() == "after"


def test_what_a_killed_process_left_of_a_folder_goes_and_what_a_living_one_makes_stays(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for number in (gone.pid, os.getppid()):
        write_json(tmp_path / f"target.{number}.partial" / "half.json", 1)
    with atomic_folder(tmp_path / "target") as fresh:
        write_json(fresh / "whole.json", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"target", f"target.{os.getppid()}.partial"}


def test_what_must_last_is_on_the_disk_before_and_after_it_takes_its_place(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "flush", lambda path: flushed.append((path.name, (tmp_path / "target").exists())))
    with replacing(tmp_path / "target", durable=True) as partial:
        partial.write_text("new")
    assert flushed == [(partial.name, False), (tmp_path.name, True)]
    save_state(tmp_path, 3, {"a": torch.zeros(2)}, {})
    assert [name.partition(".")[0] for name, _ in flushed[2:]] == ["state-000000003", tmp_path.name]
