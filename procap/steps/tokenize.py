"""tokenize: features and tokens of every frame that training sees, computed once with the frozen VQGAN.

Row order is that of ``interpolate``: pairs of train and val. The test split is not touched.
"""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import GrowingShards, Shards, write_array
from procap.files import publish, write_json
from procap.models.vqgan import VQGAN, encode_frames, encode_pictures
from procap.procedure.warping import affine_matrices, draw_shifts, shift_colours, transform
from procap.report import Report, silent
from procap.training.randomness import torch_generator
from procap.training.restore import read_vqgan
from procap.training.runtime import Runtime, start_runtime
from procap.training.state import discard_state, state_folder

KEPT_SECONDS = 20.0
"""What a killed run loses at most, besides the batch it was at."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/tokenize``.

    features-*.npy       float16 (t, n, c): before, l synthetic frames, after
    tokens-*.npy         int16 (t, n)
    warped-*.npy         float16 (draws, 2, n, c): one kept frame after a colour shift, one after an affine warp
    warped_frames.npy    int16 (pairs, draws, 2): which of the kept frames that was, 0 is before
    """
    runtime = start_runtime(**params.machine)
    vqgan = load_tokenizer(data / "tokenizer").to(runtime.device)
    pairs, inner = Pairs.read(data / "prepare").split("train", "val"), Shards(data / "interpolate" / "frames", "frames")
    kept = np.load(data / "sample" / "kept.npy")
    sequences = np.pad(kept, ((0, 0), (0, 0), (1, 1)), constant_values=((0, 0), (0, 0), (0, inner.shape[1] + 1)))
    width, n = vqgan.config.feature_width, vqgan.config.grid**2
    frames, draws = inner.shape[1] + 2, len(kept)
    size = max(1, params.tokenize.batch // frames)
    starts = range(0, len(pairs), size)
    kinds = (
        ("features", (frames, n, width), np.float16),
        ("tokens", (frames, n), np.int16),
        ("warped", (draws, 2, n, width), np.float16),
    )
    config = {"tokenize": params.tokenize.model_dump(), "seed": params.seed, "hardware": params.machine}
    inputs = [data / "prepare", data / "interpolate" / "frames", data / "sample" / "kept.npy", data / "tokenizer"]
    state = state_folder(data, "tokenize", config, inputs)
    with _Growing(state, kinds, len(pairs), size) as arrays:
        for start in report.progress(starts[arrays.done :], "tokenize", len(starts), arrays.done):
            rows = np.arange(start, min(start + size, len(pairs)))
            whole = np.concatenate([pairs.before(rows)[:, None], inner[rows], pairs.after(rows)[:, None]], axis=1)
            found, codes = encode_frames(vqgan, whole.reshape(-1, *whole.shape[2:]), runtime.device)
            generator, which = _draw(params.seed, start, len(rows), sequences)
            bent = _warp(vqgan, whole, sequences[:, rows], which, generator, runtime)
            arrays.append(_rows(found, len(rows)), _rows(codes.to(torch.int16), len(rows)), bent)
    chosen = [_draw(params.seed, start, min(size, len(pairs) - start), sequences)[1] for start in starts]
    write_array(arrays.folder / "warped_frames.npy", np.concatenate(chosen))
    used = np.unique(np.concatenate([np.unique(array) for array in Shards(arrays.folder, "tokens").arrays]))
    numbers = {"frames": int(len(pairs) * frames), "codes_used": len(used) / vqgan.config.codes}
    write_json(arrays.folder / "summary.json", numbers)
    publish(arrays.folder, data / "tokenize")
    discard_state(state)
    report.metrics({name: float(value) for name, value in numbers.items()})


class _Growing:
    """The arrays as they grow, ``size`` pairs at a time; ``done`` batches are there, maybe from a killed run."""

    def __init__(self, state: Path, kinds: Sequence[tuple[str, tuple[int, ...], type]], pairs: int, size: int) -> None:
        self.folder, self.note = state / "arrays", state / "done.json"
        self.done = json.loads(self.note.read_text(encoding="utf-8")) if self.note.exists() else 0
        rows = min(self.done * size, pairs)
        self.shards = [GrowingShards(self.folder, name, shape, kind, pairs, rows) for name, shape, kind in kinds]
        self.kept_at = time.monotonic()

    def append(self, *parts: np.ndarray) -> None:
        """Add one batch to each of them."""
        for shards, rows in zip(self.shards, parts, strict=True):
            shards.append(rows)
        self.done += 1
        if time.monotonic() - self.kept_at > KEPT_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Let a killed run continue from here."""
        for shards in self.shards:
            shards.keep()
        write_json(self.note, self.done)
        self.kept_at = time.monotonic()

    def __enter__(self) -> "_Growing":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # where the disk is full, what was kept before counts
            self.keep()
        for shards in self.shards:
            with contextlib.suppress(OSError):
                shards.close()


def load_tokenizer(folder: Path) -> VQGAN:
    """The frozen VQGAN of ``data/tokenizer``."""
    return read_vqgan(folder / "vqgan.safetensors", json.loads((folder / "vqgan.json").read_text(encoding="utf-8")))


def _rows(values: torch.Tensor, pairs: int) -> np.ndarray:
    return values.reshape(pairs, -1, *values.shape[1:]).cpu().numpy()


def _draw(seed: int, start: int, pairs: int, sequences: np.ndarray) -> tuple[torch.Generator, np.ndarray]:
    """(what draws the warps themselves, which frames are warped) of a batch."""
    draws, _, f = sequences.shape
    generator = torch_generator(seed, "tokenize", start)
    return generator, torch.randint(f, (pairs, draws, 2), generator=generator).numpy().astype(np.int16)


def _warp(
    vqgan: VQGAN,
    whole: np.ndarray,
    sequences: np.ndarray,
    which: np.ndarray,
    generator: torch.Generator,
    runtime: Runtime,
) -> np.ndarray:
    """Features, per pair and draw, of one colour-shifted and one affinely warped frame."""
    draws, b, _ = sequences.shape
    numbers = np.take_along_axis(sequences.transpose(1, 0, 2), which.astype(np.int64), axis=2)
    chosen = torch.from_numpy(whole[np.arange(b)[:, None, None], numbers]).permute(2, 0, 1, 5, 3, 4).float() / 255
    colour, affine = chosen.flatten(1, 2)
    shifts, matrices = draw_shifts(b * draws, generator), affine_matrices(b * draws, generator)
    pictures = torch.stack([shift_colours(colour, shifts), transform(affine, matrices)], dim=1)
    found, _ = encode_pictures(vqgan, pictures.flatten(0, 1).to(runtime.device))
    return found.reshape(b, draws, 2, *found.shape[1:]).cpu().numpy()
