"""Speed, side by side: ``make bench``, or ``python -m tests.benchmarks``.

Ways of one phase take turns, so that other load meets all of them; medians count. On two cores the whole takes about
six minutes.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from procap.datasets.shards import Shards
from procap.training.runtime import Runtime, start_runtime
from tests.benchmarks import measure, operations
from tests.benchmarks.cases import Case, Sizes

PARTS = ("phases", "scaling", "memory")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TARGETS = {
    "stage-1 step": (1.8, 6.0),
    "stage-2 step": (1.4, 5.0),
    "decode, from encoder": (None, 20.0),
    "decode, from pictures": (None, 4.0),
}
"""How many times faster than naive in float32: in float32, in bfloat16."""

DECODED = 4
"""Pairs that are captioned at once."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed, side by side.")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part, not all")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each way")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--out", type=Path, default=Path(".procap/bench"), help="folder for JSON, table and plot")
    parser.add_argument("--mlflow", action="store_true", help="keep the numbers as an MLflow run, too")
    parser.add_argument("--peak", nargs=3, metavar=("PRECISION", "BATCH", "CHECKPOINTING"), help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    start_runtime("cpu", asked.threads, "float32")
    if asked.peak:
        precision, batch, checkpointing = asked.peak
        print(json.dumps(peak(precision, int(batch), checkpointing == "yes")))
        return
    parts = asked.only or PARTS
    found: dict[str, Any] = {"machine": measure.machine(), "rates": rates()}
    if "phases" in parts:
        found["phases"] = phases(found["rates"], asked.rounds)
    if "scaling" in parts:
        found["scaling"] = scaling()
    if "memory" in parts:
        found["memory"] = memory()
    from tests.benchmarks.show import plot, table

    asked.out.mkdir(parents=True, exist_ok=True)
    text = table(found)
    print(text)
    (asked.out / "bench.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    (asked.out / "bench.md").write_text(text, encoding="utf-8")
    plot(found, asked.out / "bench.png")
    if asked.mlflow:
        from tests.benchmarks.show import log

        log(found, asked.out)


def rates() -> dict[str, float]:
    """Operations per second of a matrix product, and bytes per second of a copy."""
    return {name: measure.matmul_rate(dtype) for name, dtype in DTYPES.items()} | {"copy": measure.copy_rate()}


def runtime(precision: str) -> Runtime:
    return Runtime(torch.device("cpu"), DTYPES[precision])


def phases(peaks: dict[str, float], rounds: int) -> list[dict[str, Any]]:
    """Seconds of every phase in all ways, operations needed, share of the measured matrix product rate."""
    case, more = Case(), Case(Sizes(batch=DECODED))
    config, frame = case.config, operations.tokenizer(case.vqgan_config)
    tokenizing = 2 * frame if case.vqgan_config.features == "raw" else frame
    said = operations.decode(config, DECODED)
    imagined = operations.imagining(config, DECODED, case.prompt) + operations.embedding(config.encoder, 2 * DECODED)
    listed: list[tuple[str, int, Callable[[], Any] | None, Callable[[str], Callable[[], Any]]]] = [
        ("encoder, forward", 3 * operations.encoder(config.encoder, 2), None, lambda p: case.encoding(runtime(p))),
        ("stage-1 step", operations.stage_1(config.encoder, 2, case.hidden), case.naive_stage_1(),
         lambda p: case.stage_1(runtime(p))),
        ("stage-2 step", operations.stage_2(config, DECODED, more.prompt), more.naive_stage_2(),
         lambda p: more.stage_2(runtime(p))),
        ("decode, from encoder", said, more.naive_decode(), lambda p: more.decode(runtime(p))),
        ("decode, from pictures", said + imagined + 2 * DECODED * frame, more.naive_caption(),
         lambda p: more.caption(runtime(p))),
        ("tokenise", 2 * tokenizing, case.naive_tokenise(), case.tokenise),
    ]  # fmt: skip
    rows = []
    for name, needed, naive, way in listed:
        ways = {precision: way(precision) for precision in DTYPES}
        measure.warm(ways)
        times = measure.alternate(({"naive": naive} if naive else {}) | ways, rounds)
        row: dict[str, Any] = {"phase": name, "operations": needed, "all_seconds": times}
        for each, taken in times.items():
            row[f"{each}_seconds"] = measure.median(taken)
        for precision in DTYPES:
            taken = row[f"{precision}_seconds"]
            row[f"{precision}_share"] = needed / taken / peaks[precision]
            row[f"{precision}_ratio"] = row["naive_seconds"] / taken if naive else None
        rows.append(row)
    return rows


def scaling() -> dict[str, list[dict[str, float]]]:
    """Seconds of a bfloat16 stage-1 step as one size changes; of drawing a batch as the corpus grows."""
    sizes = {
        "batch": [Sizes(batch=b) for b in (2, 4, 8)],
        "frames": [Sizes(frames=t) for t in (2, 3, 4, 6)],
        "layers": [Sizes(layers=layers) for layers in (2, 4, 8, 12)],
        "tokens per frame": [Sizes(grid=grid) for grid in (4, 7, 10, 14)],
    }
    axis = {"batch": "batch", "frames": "frames", "layers": "layers", "tokens per frame": "grid"}
    found: dict[str, list[dict[str, float]]] = {}
    for name, points in sizes.items():
        found[name] = []
        for point in points:
            case = Case(point)
            step = case.stage_1(runtime("bfloat16"))
            taken = min(measure.seconds(step) for _ in range(2))
            at = getattr(point, axis[name])
            needed = operations.stage_1(case.config.encoder, point.batch, case.hidden)
            found[name].append({"at": at**2 if axis[name] == "grid" else at, "seconds": taken, "operations": needed})
    found["pairs of the corpus"] = [
        {"at": pairs, "seconds": drawing(pairs), "operations": 0} for pairs in (100, 400, 1600, 6400)
    ]
    return found


def drawing(pairs: int, batch: int = 8, draws: int = 20) -> float:
    """Seconds to read a batch's keyframes, of all frames in memory-mapped shards."""
    shape = (9, 196, 256)
    with tempfile.TemporaryDirectory() as folder:
        rows = 256 * 2**20 // (2 * int(np.prod(shape)))
        for number, first in enumerate(range(0, pairs, rows)):
            size = (min(rows, pairs - first), *shape)
            np.lib.format.open_memmap(Path(folder) / f"features-{number:05d}.npy", "w+", np.float16, size).flush()
        shards, chance = Shards(Path(folder), "features"), np.random.default_rng(0)
        chosen = [chance.integers(0, pairs, batch) for _ in range(draws)]
        frames = np.tile([0, 2, 5, 8], (batch, 1))
        return measure.seconds(lambda: [shards.places(rows, frames) for rows in chosen]) / draws


def memory() -> list[dict[str, Any]]:
    """Peak of processes that make one stage-1 step of batch 8, with and without checkpointing."""
    return [
        {"precision": "bfloat16", "checkpointing": kept, "batch": 8}
        | measure.in_another_process("--peak", "bfloat16", "8", kept)
        for kept in ("yes", "no")
    ]


def peak(precision: str, batch: int, checkpointing: bool) -> dict[str, float]:
    case = Case(Sizes(batch=batch))
    case.encoder.checkpointing = checkpointing
    taken = measure.seconds(case.stage_1(runtime(precision)))
    return {"gib": measure.peak_memory(), "seconds": taken}


if __name__ == "__main__":
    main()
