"""Tensors in files that others wrote: safetensors, torch's zip files and its older pickles. Nothing in them is run."""

import math
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from procap.errors import BadInput

OLD_MAGIC = 0x1950A86A20F9469CFC6C
"""What torch before 1.6 writes first."""

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass(frozen=True)
class ForeignState:
    """The tensors of a foreign file by name, and how to complain about it."""

    path: Path
    tensors: Mapping[str, Tensor]
    expected: str
    """What the file should have been."""
    do: str
    """The way out when it is not."""

    def refusal(self, what: str) -> BadInput:
        return BadInput(what, where=str(self.path), expected=self.expected, do=self.do)

    def shape(self, key: str, axes: int) -> tuple[int, ...]:
        """Shape of the tensor ``key``; raises BadInput where it is missing, or has another number of axes."""
        if key not in self.tensors or self.tensors[key].ndim != axes:
            found = f"has shape {tuple(self.tensors[key].shape)}" if key in self.tensors else "is missing"
            raise self.refusal(f"not {self.expected}: {key} {found}")
        return tuple(self.tensors[key].shape)

    def count(self, pattern: str) -> int:
        """One more than the highest number that the group of ``pattern`` finds at the start of a key."""
        return 1 + max((int(found[1]) for key in self.tensors if (found := re.match(pattern, key))), default=-1)

    def without(self, unused: str | re.Pattern[str]) -> "ForeignState":
        """The same without the keys that begin with the pattern."""
        return replace(self, tensors={key: value for key, value in self.tensors.items() if not re.match(unused, key)})

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise BadInput that names every key that is missing, unknown or of another shape."""
        found = {key: tuple(value.shape) for key, value in self.tensors.items()}
        problems = {
            "missing": [key for key in shapes if key not in found],
            "unknown": [key for key in found if key not in shapes],
            "of another shape": [
                f"{key} {found[key]} for {due}" for key, due in shapes.items() if found.get(key, due) != due
            ],
        }
        if any(problems.values()):
            named = "; ".join(f"{what}: {', '.join(keys)}" for what, keys in problems.items() if keys)
            raise self.refusal(f"the weights do not fit the network that their sizes ask for ({named})")


def read_state(path: Path, *, expected: str, do: str, under: tuple[str, ...] = ()) -> ForeignState:
    """The state dict that the file keeps under the first of the keys ``under`` that is there, or that the file is.

    Objects of other classes than tensors and plain types are passed over; no class or function that the file names
    is looked up. A prefix ``module.`` on all keys is taken off. Raises BadInput for a file that is missing, torn or
    no checkpoint.
    """
    nothing = ForeignState(path, {}, expected, do)
    if not path.is_file():
        raise nothing.refusal("there is no such checkpoint")
    try:
        state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path, under)
    except Exception as error:  # bytes from anywhere can make a reader fail in any way
        said = " ".join(str(error).split()) or type(error).__name__
        raise nothing.refusal(f"the file cannot be read as a checkpoint ({said})") from error
    if state is None:
        places = " or ".join([*(f"under '{key}'" for key in under), "at the top"])
        raise nothing.refusal(f"the checkpoint has no state_dict of tensors {places}")
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return replace(nothing, tensors=state)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


class _Storage(NamedTuple):
    dtype: torch.dtype
    key: str
    length: int


class _Stored(NamedTuple):
    """A tensor that is not read yet: where its numbers are."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _read_torch(path: Path, under: tuple[str, ...]) -> dict[str, Tensor] | None:
    """None where the file holds no state dict."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickled = next((name for name in archive.namelist() if re.fullmatch(r"([^/]+/)?data\.pkl", name)), None)
            if pickled is None:
                raise ValueError("not written by torch")
            folder = pickled.removesuffix("data.pkl")
            with archive.open(pickled) as file:
                content = _Unpickler(file).load()
            return _tensors(content, under, lambda storage: archive.read(f"{folder}data/{storage.key}"))
    with path.open("rb") as file:
        if _Unpickler(file).load() != OLD_MAGIC:
            raise ValueError("not written by torch")
        _Unpickler(file).load(), _Unpickler(file).load()  # version and machine
        unpickler = _Unpickler(file)
        content = unpickler.load()
        places = _places(file, unpickler.storages, _Unpickler(file).load())

        def fetch(storage: _Storage) -> bytes:
            file.seek(places[storage.key])
            return file.read(storage.length * storage.dtype.itemsize)

        return _tensors(content, under, fetch)


def _places(file: BinaryIO, storages: Mapping[str, _Storage], keys: list[str]) -> dict[str, int]:
    """Where the numbers of each storage begin in an old file: after the pickles, each after its count."""
    places, place = {}, file.tell()
    for key in keys:
        places[key] = place + 8
        place += 8 + storages[key].length * storages[key].dtype.itemsize
    return places


def _tensors(content: Any, under: tuple[str, ...], fetch: Callable[[_Storage], bytes]) -> dict[str, Tensor] | None:
    if isinstance(content, dict):
        content = next((content[key] for key in under if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not content:
        return None
    if not all(isinstance(key, str) and isinstance(value, _Stored) for key, value in dict.items(content)):
        return None
    numbers: dict[str, Tensor] = {}
    tensors = {}
    for key, stored in dict.items(content):
        storage = stored.storage
        if math.prod(stored.size) > storage.length:
            raise ValueError(f"{key} has more numbers than are there")
        if storage.key not in numbers:
            raw = bytearray(fetch(storage))
            if len(raw) != storage.length * storage.dtype.itemsize:
                raise ValueError(f"the numbers of {key} are cut off")
            numbers[storage.key] = torch.frombuffer(raw, dtype=storage.dtype) if raw else torch.empty(0)
        flat = numbers[storage.key].to(storage.dtype)
        tensors[key] = flat.as_strided(stored.size, stored.stride, stored.offset).contiguous()
    return tensors


class _Foreign(dict):
    """Stands for every class that is not needed for tensors: takes what the file gives it, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, *args: Any, **kwargs: Any) -> "_Foreign":
        return _Foreign()

    def __setstate__(self, state: Any) -> None: ...

    def _take(self, *given: Any) -> None: ...

    append = extend = add = _take
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class _Unpickler(pickle.Unpickler):
    """Knows storages and tensors by name, and imports nothing."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="latin1")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2":
                return self._tensor
            case "torch._utils", "_rebuild_parameter":
                return self._parameter
            case "torch" | "torch.storage", _ if name in STORAGES:
                return STORAGES[name]
        return _Foreign

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, count, *view = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or any(view) or count < 0:
            raise pickle.UnpicklingError(f"no storage that can be read: {pid}")
        return self.storages.setdefault(str(key), _Storage(dtype, str(key), int(count)))

    def _tensor(self, storage: _Storage, offset: int, size: tuple, stride: tuple, *_: Any) -> _Stored:
        if not isinstance(storage, _Storage):
            raise pickle.UnpicklingError("a tensor without a storage")
        return _Stored(storage, offset, size, stride)

    def _parameter(self, stored: _Stored, *_: Any) -> _Stored:
        return stored
