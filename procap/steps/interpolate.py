"""Step ``interpolate``: imagine a dense procedure between before and after."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.parallel import in_order
from procap.datasets.shards import Shards, write_array
from procap.datasets.true_procedure import TruePair, read_true_pairs
from procap.errors import BadInput
from procap.files import publish, write_json
from procap.report import Report, silent

PIXELS_PER_SHARD = 2**24
"""A shard is what a killed step loses: a quarter of a minute of RIFE on two cores, not the usual 256 MB."""

PICTURED = 6

Imagine = Callable[[np.ndarray], np.ndarray]
"""Row numbers of pairs in, their frames out: uint8 (rows, l, h, w, 3)."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/interpolate``; rows are pairs of train and val.

    frames/frames-*.npy   uint8 (pairs, l, h, w, 3)
    metrics.json          how near the frames are to the renderer's own, and those of a crossfade beside them
    """
    from procap.training.state import discard_state, state_folder

    pairs = Pairs.read(data / "prepare").split("train", "val")
    config = {"interpolate": params.interpolate.model_dump(), "hardware": params.machine}
    inputs = [data / "prepare", *(path for path in _foreign(params) if path.exists())]
    state = state_folder(data, "interpolate", config, inputs)
    frames = state / "frames"
    frames.mkdir(exist_ok=True)
    batches = _batches(len(pairs), params.interpolate.batch, params.interpolate.frames * pairs.images[0][..., 0].size)
    todo = [(name, rows) for name, rows in batches if not (frames / name).exists()]
    if todo:
        with _imaginer(params, data, pairs) as (imagine, at_once):
            made = at_once(imagine, (rows for _, rows in todo))
            bar = report.progress(made, "batches of pairs imagined", len(batches), len(batches) - len(todo))
            _write_shards(frames, zip((name for name, _ in todo), bar, strict=True))
    metrics = _measured(params, data, pairs, Shards(frames, "frames"), report)
    publish(frames, data / "interpolate" / "frames")
    write_json(data / "interpolate" / "metrics.json", metrics)
    discard_state(state)
    report.picture("filmstrips.png", _filmstrips(pairs, Shards(data / "interpolate" / "frames", "frames")))


def _foreign(params: Params) -> list[Path]:
    """Files and folders from elsewhere that the method reads."""
    if params.interpolate.method in ("vfiformer", "rife") and params.interpolate.checkpoint:
        return [Path(params.interpolate.checkpoint)]
    if params.interpolate.method == "h5":
        named = params.interpolate.h5
        return [Path(each) for each in ([named] if isinstance(named, str) else named or ())]
    return []


def _batches(pairs: int, batch: int, pixels: int) -> list[tuple[str, np.ndarray]]:
    """Every batch of row numbers with the name of its shard; a shard ends where a batch ends."""
    per_shard = max(1, PIXELS_PER_SHARD // (pixels * batch)) * batch
    return [
        (f"frames-{start // per_shard:05d}.npy", np.arange(start, min(start + batch, pairs)))
        for start in range(0, pairs, batch)
    ]


def _write_shards(folder: Path, batches: Iterable[tuple[str, np.ndarray]]) -> None:
    made: dict[str, list[np.ndarray]] = {}
    for name, frames in batches:
        for finished in [other for other in made if other != name]:
            write_array(folder / finished, np.concatenate(made.pop(finished)), durable=True)
        made.setdefault(name, []).append(frames)
    for name, parts in made.items():
        write_array(folder / name, np.concatenate(parts), durable=True)


@contextmanager
def _imaginer(params: Params, data: Path, pairs: Pairs) -> Iterator[tuple[Imagine, Callable[..., Iterator[Any]]]]:
    """With how to go through the batches: reading one at a time, networks on all cores."""
    if params.interpolate.method == "truth":
        yield _truth(params.interpolate.frames, data, pairs), map
    elif params.interpolate.method == "h5":
        from procap.datasets.pseudo_sequences import PseudoSequences

        with PseudoSequences(_foreign(params), pairs, params.interpolate.frames) as sequences:
            yield sequences.read, map
    else:
        from procap.training.batches import each_batch
        from procap.training.runtime import start_runtime

        device = start_runtime(**params.machine).device
        yield _halving(params, pairs, device), partial(each_batch, device=device)


def _halving(params: Params, pairs: Pairs, device: Any) -> Imagine:
    """Midpoints of midpoints."""
    if params.interpolate.method == "vfiformer":
        from procap.checkpoints.vfiformer import load_vfiformer, midpoint

        half_way = midpoint(load_vfiformer(_foreign(params)[0], device))
    else:
        from procap.checkpoints.midpoints import load_midpoint

        half_way = load_midpoint(params.interpolate.method, device, *_foreign(params))
    return partial(_halved, pairs, half_way, params.interpolate.frames, device)


def _halved(pairs: Pairs, half_way: Any, frames: int, device: Any, rows: np.ndarray) -> np.ndarray:
    from procap.datasets.pictures import to_bytes, to_numbers
    from procap.procedure.interpolation import interpolate

    before, after = (to_numbers(pictures).to(device) for pictures in (pairs.before(rows), pairs.after(rows)))
    return to_bytes(interpolate(before, after, half_way, frames))


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


def _measured(params: Params, data: Path, pairs: Pairs, frames: Shards, report: Report) -> dict[str, Any]:
    """Mean PSNR and SSIM by method and change type over a few pairs; no pairs where nothing can be compared."""
    settings = params.interpolate
    if not settings.measured or settings.method == "truth" or params.dataset.name != "rendered":
        return {"pairs": {}}
    from procap.evaluation.frame_quality import psnr, ssim
    from procap.procedure.interpolation import crossfade

    kinds = pairs.table["change_type"].to_numpy()
    rows = _spread(kinds, settings.measured)
    known = read_true_pairs(data / "prepare" / "scenes.jsonl", pairs.table["id"].to_numpy()[rows])
    draw = partial(
        TruePair.frames, count=settings.frames, size=frames.shape[2], samples=params.prepare.scenes.samples
    )
    true = np.stack(list(report.progress(in_order(draw, known), "true procedures", len(known))))
    faded = _halved(pairs, crossfade, settings.frames, "cpu", rows)
    found: dict[str, Any] = {"pairs": {"all": len(rows), **Counter(kinds[rows].tolist())}}
    for name, measure in (("psnr", psnr), ("ssim", ssim)):
        found[name] = {
            method: _by_kind(kinds[rows], _per_pair(measure, made, true))
            for method, made in {settings.method: frames[rows], "crossfade": faded}.items()
        }
        report.metrics({f"{name}_{method}": values["all"] for method, values in found[name].items()})
    report.picture("truth.png", _against_truth(pairs, rows, frames[rows], true))
    return found


def _spread(kinds: np.ndarray, count: int) -> np.ndarray:
    """Row numbers of about ``count`` pairs, as many of each change type, spread over the table."""
    names = sorted(set(kinds))
    per_kind = max(1, count // len(names))
    chosen = [np.flatnonzero(kinds == name) for name in names]
    evenly = (rows[np.linspace(0, len(rows) - 1, min(per_kind, len(rows))).astype(int)] for rows in chosen)
    return np.concatenate(list(evenly))


def _per_pair(measure: Callable[..., np.ndarray], made: np.ndarray, true: np.ndarray) -> np.ndarray:
    flat = (frames.reshape(-1, *frames.shape[2:]) for frames in (made, true))
    return measure(*flat).reshape(made.shape[:2]).mean(axis=1)


def _by_kind(kinds: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Mean over all pairs and over those of each change type."""
    of_all = {"all": values} | {str(kind): values[kinds == kind] for kind in sorted(set(kinds))}
    return {name: round(float(each.mean()), 4) for name, each in of_all.items()}


def _against_truth(pairs: Pairs, rows: np.ndarray, made: np.ndarray, true: np.ndarray) -> Any:
    """A pair of each change type in two lines: before, imagined frames, after; below, the true ones."""
    from procap.datasets.pictures import contact_sheet

    firsts = np.unique(pairs.table["change_type"].to_numpy()[rows], return_index=True)[1]
    ends = pairs.before(rows[firsts])[:, None], pairs.after(rows[firsts])[:, None]
    lines = [np.concatenate([ends[0], frames[firsts], ends[1]], axis=1) for frames in (made, true)]
    return contact_sheet(np.stack(lines, axis=1).reshape(-1, *lines[0].shape[1:]), scale=max(1, 96 // made.shape[2]))


def _filmstrips(pairs: Pairs, frames: Shards) -> Any:
    """A few changed pairs spread over the corpus: before, imagined frames, after."""
    from procap.datasets.pictures import contact_sheet

    changed = np.flatnonzero((pairs.table["change_type"] != "none").to_numpy())
    rows = changed[np.linspace(0, len(changed) - 1, min(PICTURED, len(changed))).astype(int)]
    strips = np.concatenate([pairs.before(rows)[:, None], frames[rows], pairs.after(rows)[:, None]], axis=1)
    return contact_sheet(strips, scale=max(1, 96 // strips.shape[2]))
