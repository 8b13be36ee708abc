"""Pseudo-sequences as ProCap releases them: HDF5 files with a uint8 array (l + 2, 3, h, w) per pair, ends included.

Keys are ids of pairs. CLEVR-Change, and what is laid out like it, has one key per scene (``000123.png``) in two
files: ``sc_videos.h5`` with the changed pairs and ``nsc_videos.h5`` with the distractors.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from procap.datasets.images import resize
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards
from procap.errors import BadInput
from procap.files import atomic_folder
from procap.shapes import UInt8

SHOWN = 10
"""Keys that a complaint names."""

FAR = 3.0
"""Mean difference, in steps of a byte, from which an end is another picture. On CLEVR-Change other sizes and ways of
resizing make at most 1, and two scenes differ by 5 or more."""

_SCENE = re.compile(r"(\d{6})(c|nc)")


def place_of(pair: str) -> tuple[str | None, str]:
    """Stem of the file (None: any) and key in it, for the id of a pair."""
    scene = _SCENE.fullmatch(pair)
    return (f"{'nsc' if scene[2] == 'nc' else 'sc'}_videos", f"{scene[1]}.png") if scene else (None, pair)


class PseudoSequences:
    """The files of a folder, or single files; use as a context manager, which closes them.

    Raises BadInput where a file cannot be read, a pair has no sequence, or one has another shape than
    (frames + 2, 3, h, w) of bytes.
    """

    def __init__(self, paths: Sequence[Path], pairs: Pairs, frames: int) -> None:
        self.pairs, self.frames = pairs, frames
        self.where = ", ".join(str(path) for path in paths)
        with ExitStack() as stack:
            files = {path.stem: stack.enter_context(_opened(path)) for path in _files(paths)}
            self.sequences = [_find(files, pair) for pair in pairs.table["id"]]
            self._refuse("have no sequence", [found is None for found in self.sequences])
            shaped = [
                found.dtype == np.uint8 and found.ndim == 4 and found.shape[:2] == (frames + 2, 3) and found.size > 0
                for found in self.sequences
            ]
            self._refuse("have a sequence of another form", np.logical_not(shaped).tolist())
            self.close = stack.pop_all().close

    def __enter__(self) -> "PseudoSequences":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, rows: np.ndarray) -> UInt8[np.ndarray, "b l h w 3"]:
        """The frames between of these rows of the pairs, of the size of their pictures.

        Raises BadInput for a sequence whose ends are not the pictures of its pair.
        """
        ends = np.stack([self.pairs.before(rows), self.pairs.after(rows)], axis=1)
        side = ends.shape[2]
        whole = [[resize(frame, side) for frame in np.moveaxis(self.sequences[row][:], 1, -1)] for row in rows]
        made = np.array(whole, np.uint8)
        far = np.abs(made[:, [0, -1]].astype(int) - ends).mean(axis=(2, 3, 4)) > FAR
        self._refuse("begin or end with another picture than the pair", far.any(axis=1).tolist(), rows)
        return made[:, 1:-1]

    def _refuse(self, what: str, wrong: Iterable[bool], rows: np.ndarray | None = None) -> None:
        names = self.pairs.table["id"].to_numpy() if rows is None else self.pairs.table["id"].to_numpy()[rows]
        found = [str(name) for name, bad in zip(names, wrong, strict=True) if bad]
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise BadInput(
                f"{len(found)} pairs {what}: {', '.join(found[:SHOWN])}{more}",
                where=self.where,
                expected=f"for every pair bytes ({self.frames + 2}, 3, h, w), from its picture before to that after",
                do="complete the files, change interpolate.frames, or choose another interpolate.method",
            )


def write_pseudo_sequences(folder: Path, pairs: Pairs, frames: Shards, corpus: str) -> list[str]:
    """Write the sequences of these pairs, whose rows are those of ``frames``; returns the names of the files."""
    h5py = _h5py()
    with atomic_folder(folder) as fresh, ExitStack() as stack:
        files: dict[str, Any] = {}
        for row, pair in enumerate(pairs.table["id"]):
            stem, key = place_of(pair)
            name = f"{stem or f'{corpus}_videos'}.h5"
            if name not in files:
                files[name] = stack.enter_context(h5py.File(fresh / name, "w"))
            whole = np.concatenate([pairs.before(np.array([row])), frames[row], pairs.after(np.array([row]))])
            files[name].create_dataset(key, data=np.moveaxis(whole, -1, 1))
    return sorted(files)


def _files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those in the folders named. Raises BadInput where there is none."""
    found = [file for path in paths for file in (sorted(path.glob("*.h5")) if path.is_dir() else [path])]
    absent = [str(path) for path in found if not path.is_file()]
    if absent or not found:
        raise BadInput(
            f"there is no {' and no '.join(absent)}" if absent else "there is no .h5 file",
            where="params.yaml: interpolate.h5",
            expected="a folder with .h5 files, or names of such files",
            do="mend interpolate.h5, or choose another interpolate.method",
        )
    return found


def _opened(path: Path) -> Any:
    h5py = _h5py()
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise BadInput(
            f"not an HDF5 file ({' '.join(str(error).split())})",
            where=str(path),
            expected="pseudo-sequences as ProCap releases them",
            do="fetch or export the file again",
        ) from None


def _find(files: Mapping[str, Any], pair: str) -> Any:
    """The sequence of a pair; None where there is none."""
    stem, key = place_of(pair)
    places = files.values() if stem is None else [files[stem]] if stem in files else []
    return next((found for file in places if isinstance(found := file.get(key), _h5py().Dataset)), None)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise BadInput(
            "the package h5py is missing",
            where="params.yaml: interpolate.h5",
            expected="h5py, which reads and writes HDF5 files",
            do="pip install 'procap[h5]'",
        ) from None
    return h5py
