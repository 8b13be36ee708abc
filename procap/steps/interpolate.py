"""Step ``interpolate``: imagine a dense procedure between before and after."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards, write_array
from procap.errors import BadInput
from procap.files import publish
from procap.report import Report, silent

PIXELS_PER_SHARD = 2**24
"""A shard is what a killed step loses: a quarter of a minute of RIFE on two cores, not the usual 256 MB."""

PICTURED = 6

Imagine = Callable[[np.ndarray], np.ndarray]
"""Row numbers of pairs in, their frames out: uint8 (rows, l, h, w, 3)."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """``data/prepare`` -> ``data/interpolate/frames-*.npy``, a row of l frames for each pair of train and val."""
    from procap.training.state import discard_state, state_folder

    pairs = Pairs.read(data / "prepare").split("train", "val")
    config = {"interpolate": params.interpolate.model_dump(), "hardware": params.hardware.model_dump()}
    state = state_folder(data, "interpolate", config, [data / "prepare"])
    frames = state / "frames"
    frames.mkdir(exist_ok=True)
    batches = _batches(len(pairs), params.interpolate.batch, params.interpolate.frames * pairs.images[0][..., 0].size)
    todo = [(name, rows) for name, rows in batches if not (frames / name).exists()]
    if todo:
        imagine = _imaginer(params, data, pairs)
        bar = report.progress(todo, "batches of pairs imagined", len(batches), len(batches) - len(todo))
        _write_shards(frames, bar, imagine)
    publish(frames, data / "interpolate")
    discard_state(state)
    report.picture("filmstrips.png", _filmstrips(pairs, Shards(data / "interpolate", "frames")))


def _batches(pairs: int, batch: int, pixels: int) -> list[tuple[str, np.ndarray]]:
    """Every batch of row numbers with the name of its shard; a shard ends where a batch ends."""
    per_shard = max(1, PIXELS_PER_SHARD // (pixels * batch)) * batch
    return [
        (f"frames-{start // per_shard:05d}.npy", np.arange(start, min(start + batch, pairs)))
        for start in range(0, pairs, batch)
    ]


def _write_shards(folder: Path, batches: Any, imagine: Imagine) -> None:
    made: dict[str, list[np.ndarray]] = {}
    for name, rows in batches:
        for finished in [other for other in made if other != name]:
            write_array(folder / finished, np.concatenate(made.pop(finished)))
        made.setdefault(name, []).append(imagine(rows))
    for name, parts in made.items():
        write_array(folder / name, np.concatenate(parts))


def _imaginer(params: Params, data: Path, pairs: Pairs) -> Imagine:
    if params.interpolate.method == "truth":
        return _truth(params.interpolate.frames, data, pairs)
    from procap.checkpoints.midpoints import load_midpoint
    from procap.datasets.pictures import to_bytes, to_numbers
    from procap.procedure.interpolation import interpolate
    from procap.training.runtime import start_runtime

    device = start_runtime(**dict(params.hardware)).device
    half_way = load_midpoint(params.interpolate.method, device)

    def imagine(rows: np.ndarray) -> np.ndarray:
        before, after = (to_numbers(pictures).to(device) for pictures in (pairs.before(rows), pairs.after(rows)))
        return to_bytes(interpolate(before, after, half_way, params.interpolate.frames))

    return imagine


def _truth(frames: int, data: Path, pairs: Pairs) -> Imagine:
    truth = Shards(data / "prepare", "truth")
    if truth.shape[1] != frames:
        raise BadInput(
            f"the true procedure has {truth.shape[1]} frames",
            where=str(truth.paths[0]),
            expected=f"interpolate.frames = {frames}",
            do="run `dvc repro prepare` again, or change interpolate.frames",
        )
    splits = Pairs.read(data / "prepare").table["split"]
    numbers = np.flatnonzero(splits.isin(["train", "val"]).to_numpy())
    if len(truth) != len(splits) or len(numbers) != len(pairs):
        raise BadInput(
            f"the true procedure has {len(truth)} rows for {len(splits)} pairs",
            where=str(data / "prepare"),
            expected="one row per pair",
            do="run `dvc repro prepare` again",
        )
    return lambda rows: truth[numbers[rows]]


def _filmstrips(pairs: Pairs, frames: Shards) -> Any:
    """A few changed pairs spread over the corpus: before, imagined frames, after."""
    from procap.datasets.pictures import contact_sheet

    changed = np.flatnonzero((pairs.table["change_type"] != "none").to_numpy())
    rows = changed[np.linspace(0, len(changed) - 1, min(PICTURED, len(changed))).astype(int)]
    strips = np.concatenate([pairs.before(rows)[:, None], frames[rows], pairs.after(rows)[:, None]], axis=1)
    return contact_sheet(strips, scale=max(1, 96 // strips.shape[2]))
