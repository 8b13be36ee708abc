"""Reading foreign checkpoints: tensors come out as they went in, and nothing of the file is run."""

import argparse
import io
import os
import pickle
import subprocess
import sys
import types
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from procap.checkpoints.reader import read_state
from procap.errors import BadInput


def read(path: Path, *under: str) -> dict[str, torch.Tensor]:
    return dict(read_state(path, expected="a checkpoint", do="take another", under=under).tensors)


@pytest.fixture
def state():
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(4, 6, generator=draw)
    return OrderedDict(
        {
            "weight": torch.randn(3, 2, 5, generator=draw),
            "table": table,
            "tied": table,
            "rows": table[1:3],
            "turned": table.T,
            "parameter": torch.nn.Parameter(torch.randn(2, generator=draw)),
            "scalar": torch.tensor(3),
            "empty": torch.zeros(0, 2),
            **{str(t): torch.arange(3).to(t) for t in (torch.float16, torch.bfloat16, torch.float64, torch.int32)},
            "bool": torch.tensor([True, False]),
        }
    )


def same(read: dict, written: dict) -> bool:
    return read.keys() == written.keys() and all(
        torch.equal(read[key], value) and read[key].dtype == value.dtype for key, value in written.items()
    )


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_come_out_as_they_went_in(state, tmp_path, new, protocol):
    path = tmp_path / "a.pt"
    torch.save({"model": state, "epoch": 3}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    assert same(read(path, "weights", "model"), state)
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    assert same(read(path, "weights", "model"), state)


def test_safetensors_and_the_prefix_of_data_parallel_training(tmp_path):
    save_file({"module.a": torch.ones(2), "module.module.b": torch.zeros(1)}, tmp_path / "a.safetensors")
    assert set(read(tmp_path / "a.safetensors")) == {"a", "module.b"}
    torch.save({"module.a": torch.ones(2), "b": torch.zeros(1)}, tmp_path / "b.pt")
    assert set(read(tmp_path / "b.pt")) == {"module.a", "b"}


class Dict(dict):
    """As easydict.EasyDict: a dict of a class, with attributes."""

    def __init__(self, **values):
        super().__init__(**values)
        self.__dict__.update(values)


class Words(list):
    """As ruamel's sequences."""


class Schedule:
    """As the schedule that the released stage 2 keeps in its optimiser's groups."""

    def __init__(self):
        self.warmup = 0.1


class Slotted:
    __slots__ = ("total",)

    def __init__(self):
        self.total = 5


@pytest.fixture
def absent(monkeypatch):
    """Classes of a module that is there while the file is written only."""
    module = types.ModuleType("src_of_others")
    for kind in (Dict, Words, Schedule, Slotted):
        monkeypatch.setattr(kind, "__module__", module.__name__)
        setattr(module, kind.__name__, kind)
    sys.modules[module.__name__] = module
    yield {
        "opt": argparse.Namespace(seed=52, words=Words("ab")),
        "model_cfg": Dict(vocab_size=80, inner=Dict(width=3)),
        "optimizer": {"state": {0: {"m": torch.ones(2)}}, "param_groups": [{"t": Schedule(), "params": {1, 2}}]},
        "more": [Slotted(), defaultdict(list, {Schedule: [Path("a"), range(3), 1j, b"x", bytearray(b"y")]})],
    }
    sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("protocol", [2, 5])
def test_objects_of_classes_that_are_not_here_are_passed_over(state, absent, tmp_path, new, protocol):
    path = tmp_path / "model.chkpt"
    torch.save({"model": state, **absent}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    del sys.modules["src_of_others"]
    assert same(read(path, "model"), state)
    assert "src_of_others" not in sys.modules


class Evil:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args

    def __call__(self):
        """So that one can be the function of another."""


class EvilState:
    """Restored by giving ``__setstate__`` of a Foreign stand-in, or attributes of it, what the attacker likes."""

    def __reduce__(self):
        return eval, ("1",), {"__class__": 1, "__call__": os.system}, iter([1, 2]), iter([("a", Evil(os.system, "a"))])


def trap(folder: Path) -> str:
    return f"touch {folder / 'ran'}"


def attacks(folder: Path) -> dict[str, object]:
    python = f"open({str(folder / 'ran')!r}, 'w').close()"
    return {
        "os.system": Evil(os.system, trap(folder)),
        "eval": Evil(eval, python),
        "exec": Evil(exec, python),
        "getattr chain": Evil(Evil(getattr, Evil(__import__, "os"), "system"), trap(folder)),
        "builtin import": Evil(__import__, "antigravity"),
        "state": EvilState(),
        "subprocess": Evil(subprocess.check_call, ["touch", str(folder / "ran")]),
        "torch.load": Evil(torch.storage._load_from_bytes, pickle.dumps(Evil(os.system, trap(folder)))),
        "a class's constructor": Evil(Path.touch, folder / "ran"),
    }


@pytest.mark.parametrize("name", list(attacks(Path())))
@pytest.mark.parametrize("new", [True, False])
def test_nothing_in_a_file_is_run(state, tmp_path, name, new):
    path = tmp_path / "a.pt"
    torch.save({"model": state, "evil": attacks(tmp_path)[name]}, path, _use_new_zipfile_serialization=new)
    assert same(read(path, "model"), state)
    assert not (tmp_path / "ran").exists()
    assert "antigravity" not in sys.modules


def test_the_attacks_above_do_run_elsewhere(tmp_path):
    pickle.loads(pickle.dumps(attacks(tmp_path)["eval"]))
    assert (tmp_path / "ran").exists()


def zipped(path: Path, pickled: bytes, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, record in records.items():
            archive.writestr(f"archive/data/{name}", record)
    return path


class Stored:
    """A tensor of a made-up storage: storage, offset, size, stride, ..."""

    def __init__(self, *given):
        self.given = given

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.given


class StoragePickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.pid if isinstance(value, Storage) else None


class Storage:
    def __init__(self, *pid):
        self.pid = pid


FLOATS = Storage("storage", torch.FloatStorage, "0", "cpu", 4)


def pickled(value: object) -> bytes:
    file = io.BytesIO()
    StoragePickler(file, 2).dump(value)
    return file.getvalue()


def test_a_made_up_storage_is_read_like_a_true_one(tmp_path):
    path = zipped(tmp_path / "a.pt", pickled({"a": Stored(FLOATS, 1, (3,), (1,), False, None)}), **{"0": bytes(16)})
    assert torch.equal(read(path)["a"], torch.zeros(3))


@pytest.mark.parametrize(
    "tensor",
    [
        (FLOATS, 2, (3,), (1,), False, None),
        (FLOATS, -1, (3,), (1,), False, None),
        (FLOATS, 0, (2,), (-1,), False, None),
        (FLOATS, 0, (1000,), (0,), False, None),
        (Storage("storage", torch.FloatStorage, "0", "cpu", 8), 0, (8,), (1,), False, None),
        (Storage("storage", torch.FloatStorage, "../data.pkl", "cpu", 4), 0, (4,), (1,), False, None),
        (Storage("storage", os.system, "0", "cpu", 4), 0, (4,), (1,), False, None),
        (Storage("module", torch.FloatStorage, "0", "cpu", 4), 0, (4,), (1,), False, None),
        ("touch ran", 0, (4,), (1,), False, None),
    ],
)
def test_storages_that_would_reach_too_far_are_refused(tmp_path, tensor):
    path = zipped(tmp_path / "a.pt", pickled({"a": Stored(*tensor)}), **{"0": bytes(16)})
    with pytest.raises(BadInput, match="cannot be read as a checkpoint"):
        read(path)


@pytest.mark.parametrize(
    "content", [[1, 2], {}, {"a": 1}, {"model": {"a": torch.ones(1), "b": "text"}}, {3: torch.ones(1)}]
)
def test_files_without_a_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(BadInput, match="no state_dict of tensors"):
        read(tmp_path / "a.pt", "model")


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", b"\x80\x02", b"PK\x03\x04", b"\x80\x02cos\nsystem\nq\x00."]
)
def test_files_that_are_no_checkpoints(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read as a checkpoint") as caught:
        read(tmp_path / name)
    assert caught.value.where == str(tmp_path / name)


@pytest.mark.parametrize("new", [True, False])
def test_a_file_that_ends_early_is_refused_wherever_it_ends(state, tmp_path, new):
    whole = tmp_path / "a.pt"
    torch.save({"model": state}, whole, _use_new_zipfile_serialization=new)
    content = whole.read_bytes()
    for length in range(0, len(content) - 1, 97):
        (tmp_path / "cut.pt").write_bytes(content[:length])
        with pytest.raises(BadInput):
            read(tmp_path / "cut.pt", "model")


def test_a_missing_file_and_a_zip_of_something_else(tmp_path):
    with pytest.raises(BadInput, match="no such checkpoint"):
        read(tmp_path / "absent.pt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(BadInput, match="not written by torch"):
        read(tmp_path / "a.zip")


def test_a_flipped_byte_is_seen(state, tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"model": state}, path)
    content = bytearray(path.read_bytes())
    at = content.find(state["weight"].numpy().tobytes())
    content[at + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match="CRC"):
        read(path, "model")
