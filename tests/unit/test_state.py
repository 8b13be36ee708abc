import pytest

from procap.files import atomic_folder, file_digest, folder_digest, publish, write_json
from procap.training import state
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
