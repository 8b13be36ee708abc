"""Large arrays on disk: numbered ``.npy`` files of about 256 MB, memory-mapped, with deterministic bytes."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from procap.errors import BadInput
from procap.files import flush, named, replacing

SHARD_BYTES = 256 * 2**20


class ShardWriter:
    """Append rows of one shape; a shard is on disk, whole, as soon as it is full.

    A name ``frames`` gives ``frames-00000.npy``, ``frames-00001.npy``... ``rows_per_shard`` overrides the
    size limit. Use as a context manager: leaving it writes the last, shorter shard.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype | type,
        rows_per_shard: int | None = None,
    ) -> None:
        self.folder, self.name, self.shape, self.dtype = folder, name, tuple(shape), np.dtype(dtype)
        self.rows_per_shard = rows_per_shard or max(1, SHARD_BYTES // _row_bytes(self.shape, self.dtype))
        self.pending: list[np.ndarray] = []
        self.count = 0
        self.shards = 0
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, rows: np.ndarray) -> None:
        """Add rows; the first axis counts them."""
        if rows.shape[1:] != self.shape or rows.dtype != self.dtype:
            raise ValueError(
                f"{self.folder / self.name}: rows of {rows.shape[1:]} {rows.dtype}, expected {self.shape} {self.dtype}"
            )
        while len(rows):
            room = (self.shards + 1) * self.rows_per_shard - self.count
            self.pending.append(np.array(rows[:room]))
            self.count += len(rows[:room])
            rows = rows[room:]
            if self.count == (self.shards + 1) * self.rows_per_shard:
                self._write()

    def _write(self) -> None:
        target = self.folder / f"{self.name}-{self.shards:05d}.npy"
        write_array(target, np.concatenate(self.pending))
        self.shards += 1
        self.pending = []

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self.pending:
            self._write()


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return max(1, int(np.prod(shape)) * dtype.itemsize)


class GrowingShards:
    """Shards of ``rows`` rows of one shape, written row by row; a killed process goes on after those it had kept.

    Finished, the files are those that a ``ShardWriter`` writes. ``kept`` rows are there from before; whatever was
    written after them is written anew.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype | type,
        rows: int,
        kept: int = 0,
        rows_per_shard: int | None = None,
    ) -> None:
        self.folder, self.name, self.shape, self.dtype = folder, name, tuple(shape), np.dtype(dtype)
        self.row_bytes = _row_bytes(self.shape, self.dtype)
        self.per_shard = rows_per_shard or max(1, SHARD_BYTES // self.row_bytes)
        self.rows, self.count = rows, kept
        self.file: BinaryIO | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(sorted(folder.glob(f"{name}-*.npy"))):
            if number > kept // self.per_shard:
                path.unlink()

    def append(self, rows: np.ndarray) -> None:
        """Add rows; the first axis counts them."""
        if rows.shape[1:] != self.shape or rows.dtype != self.dtype:
            raise ValueError(
                f"{self.folder / self.name}: rows of {rows.shape[1:]} {rows.dtype}, expected {self.shape} {self.dtype}"
            )
        while len(rows):
            number, inside = divmod(self.count, self.per_shard)
            part = np.ascontiguousarray(rows[: self.per_shard - inside])
            file = self.file or self._open(number, inside)
            with named(Path(file.name)):
                file.write(part.data)
            self.count += len(part)
            rows = rows[len(part) :]
            if self.count % self.per_shard == 0 or self.count == self.rows:
                self.keep()
                file.close()
                self.file = None

    def keep(self) -> None:
        """Wait until all rows so far are on the disk."""
        if self.file is not None:
            with named(Path(self.file.name)):
                self.file.flush()
                flush(Path(self.file.name))

    def _open(self, number: int, inside: int) -> BinaryIO:
        path = self.folder / f"{self.name}-{number:05d}.npy"
        self.file = path.open("r+b" if inside else "wb")
        whole = (min(self.per_shard, self.rows - number * self.per_shard), *self.shape)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": whole}
        np.lib.format.write_array_header_1_0(self.file, header)
        self.file.truncate(self.file.tell() + inside * self.row_bytes)
        self.file.seek(0, os.SEEK_END)
        return self.file

    def close(self) -> None:
        """Write what waits; more rows can be added by another ``GrowingShards`` only."""
        if self.file is not None:
            self.file.close()
            self.file = None


def write_array(target: Path, array: np.ndarray, *, durable: bool = False) -> None:
    """Write one ``.npy`` file so that it is there whole or not at all; ``durable`` as in ``replacing``."""
    array = np.ascontiguousarray(array)
    header = np.lib.format.header_data_from_array_1_0(array)
    with replacing(target, durable=durable) as partial, partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)  # np.save says of a full disk how many bytes are missing, and not why


class Shards(Sequence):
    """Read rows of a shard set by number, without loading more than those rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self.paths = sorted(folder.glob(f"{name}-[0-9][0-9][0-9][0-9][0-9].npy"))
        if not self.paths:
            raise BadInput(
                f"there are no shards named '{name}'",
                where=str(folder),
                expected=f"{name}-00000.npy and so on",
                do="run `dvc repro` (or the step that writes this folder) first",
            )
        self.arrays = [np.load(path, mmap_mode="r", allow_pickle=False) for path in self.paths]
        self.starts = np.cumsum([0] + [len(array) for array in self.arrays])

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        return (int(self.starts[-1]), *self.arrays[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.arrays[0].dtype

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, row):
        if isinstance(row, slice):
            return self.rows(np.arange(*row.indices(len(self))))
        if isinstance(row, (int, np.integer)):
            return self.rows(np.array([row]))[0]
        return self.rows(np.asarray(row))

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The rows with these numbers, in this order, as one fresh array."""
        return self._read(numbers, self.shape[1:], lambda array, here, rows: array[rows])

    def places(self, numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Of each of these rows its own ``places`` (rows, count) along the second axis; nothing else is read."""
        shape = (places.shape[1], *self.shape[2:])
        return self._read(numbers, shape, lambda array, here, rows: array[rows[:, None], places[here]])

    def _read(self, numbers: np.ndarray, shape: tuple[int, ...], read: Callable[..., np.ndarray]) -> np.ndarray:
        numbers = np.asarray(numbers)
        if numbers.size and (numbers.min() < -len(self) or numbers.max() >= len(self)):
            raise IndexError(f"{self.paths[0].parent}: rows up to {numbers.max()} asked for, {len(self)} there")
        numbers = numbers % max(1, len(self))
        out = np.empty((len(numbers), *shape), self.dtype)
        which = np.searchsorted(self.starts, numbers, side="right") - 1
        for shard in np.unique(which):
            here = which == shard
            out[here] = read(self.arrays[shard], here, numbers[here] - self.starts[shard])
        return out
