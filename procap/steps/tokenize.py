"""tokenize: features and tokens of every frame that training sees, computed once with the frozen VQGAN.

Row order is that of ``interpolate``: pairs of train and val. The test split is not touched.
"""

import json
from pathlib import Path

import numpy as np
import torch

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards, ShardWriter, write_array
from procap.files import atomic_folder, write_json
from procap.models.vqgan import VQGAN, encode_frames, encode_pictures
from procap.procedure.warping import affine_matrices, draw_shifts, shift_colours, transform
from procap.report import Report, silent
from procap.training.bundle import read_vqgan
from procap.training.randomness import torch_generator
from procap.training.runtime import Runtime, start_runtime


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/tokenize``.

    features-*.npy       float16 (t, n, c): before, l synthetic frames, after
    tokens-*.npy         int16 (t, n)
    warped-*.npy         float16 (draws, 2, n, c): one kept frame after a colour shift, one after an affine warp
    warped_frames.npy    int16 (pairs, draws, 2): which of the kept frames that was, 0 is before
    """
    runtime = start_runtime(**dict(params.hardware))
    vqgan = load_tokenizer(data / "tokenizer").to(runtime.device)
    pairs, inner = Pairs.read(data / "prepare").split("train", "val"), Shards(data / "interpolate" / "frames", "frames")
    kept = np.load(data / "sample" / "kept.npy")
    sequences = np.pad(kept, ((0, 0), (0, 0), (1, 1)), constant_values=((0, 0), (0, 0), (0, inner.shape[1] + 1)))
    width, n = vqgan.config.code_width, vqgan.config.grid**2
    frames, draws = inner.shape[1] + 2, len(kept)
    size = max(1, params.tokenize.batch // frames)
    which = np.empty((len(pairs), draws, 2), np.int16)
    counts = np.zeros(vqgan.config.codes, np.int64)
    with (
        atomic_folder(data / "tokenize") as fresh,
        ShardWriter(fresh, "features", (frames, n, width), np.float16) as features,
        ShardWriter(fresh, "tokens", (frames, n), np.int16) as tokens,
        ShardWriter(fresh, "warped", (draws, 2, n, width), np.float16) as warped,
    ):
        for start in report.progress(range(0, len(pairs), size), "tokenize", -(-len(pairs) // size)):
            rows = np.arange(start, min(start + size, len(pairs)))
            whole = np.concatenate([pairs.before(rows)[:, None], inner[rows], pairs.after(rows)[:, None]], axis=1)
            found, codes = encode_frames(vqgan, whole.reshape(-1, *whole.shape[2:]), runtime.device)
            features.append(_rows(found, len(rows)))
            tokens.append(_rows(codes.to(torch.int16), len(rows)))
            counts += np.bincount(codes.flatten().cpu(), minlength=len(counts))
            generator = torch_generator(params.seed, "tokenize", start)
            which[rows], bent = _warp(vqgan, whole, sequences[:, rows], generator, runtime)
            warped.append(bent)
        write_array(fresh / "warped_frames.npy", which)
        numbers = {"frames": int(len(pairs) * frames), "codes_used": float((counts > 0).mean())}
        write_json(fresh / "summary.json", numbers)
    report.metrics({name: float(value) for name, value in numbers.items()})


def load_tokenizer(folder: Path) -> VQGAN:
    """The frozen VQGAN of ``data/tokenizer``."""
    return read_vqgan(folder / "vqgan.safetensors", json.loads((folder / "vqgan.json").read_text(encoding="utf-8")))


def _rows(values: torch.Tensor, pairs: int) -> np.ndarray:
    return values.reshape(pairs, -1, *values.shape[1:]).cpu().numpy()


def _warp(
    vqgan: VQGAN, whole: np.ndarray, sequences: np.ndarray, generator: torch.Generator, runtime: Runtime
) -> tuple[np.ndarray, np.ndarray]:
    """(which of the kept frames, features): per pair and draw one colour-shifted and one affinely warped frame."""
    draws, b, f = sequences.shape
    which = torch.randint(f, (b, draws, 2), generator=generator).numpy().astype(np.int16)
    numbers = np.take_along_axis(sequences.transpose(1, 0, 2), which.astype(np.int64), axis=2)
    chosen = torch.from_numpy(whole[np.arange(b)[:, None, None], numbers]).permute(2, 0, 1, 5, 3, 4).float() / 255
    colour, affine = chosen.flatten(1, 2)
    shifts, matrices = draw_shifts(b * draws, generator), affine_matrices(b * draws, generator)
    pictures = torch.stack([shift_colours(colour, shifts), transform(affine, matrices)], dim=1)
    found, _ = encode_pictures(vqgan, pictures.flatten(0, 1).to(runtime.device))
    return which, found.reshape(b, draws, 2, *found.shape[1:]).cpu().numpy()
