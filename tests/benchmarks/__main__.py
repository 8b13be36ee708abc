"""Speed, side by side: ``make bench``, or ``python -m tests.benchmarks``.

Ways of one phase take turns, so that other load meets all of them; medians count. On two cores the whole takes about
six minutes.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
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
    parser.add_argument("--phase", action="append", metavar="NAME", help="of the phases this one, by its name")
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
        found["phases"] = phases(found["rates"], asked.rounds, asked.phase)
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


def phases(peaks: dict[str, float], rounds: int, only: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Seconds of every phase in all ways, operations needed, share of the best matrix product rate of this run.

    ``peaks`` is measured again after each phase and keeps the best.
    """
    rows = []
    for name, needed, naive, way in _ways():
        if only and name not in only:
            continue
        ways = {precision: way(precision) for precision in DTYPES}
        ways["bfloat16"]()  # once unmeasured: memory is mapped, kernels are made
        several = measure.alternate(({"naive": naive} if naive else {}) | ways, rounds)
        taken = {each: measure.median(times) for each, times in several.items()}
        row: dict[str, Any] = {"phase": name, "operations": needed}
        row |= {each: asdict(found) for each, found in taken.items()}
        row["all"] = {each: [asdict(found) for found in times] for each, times in several.items()}
        rows.append(row)
        del naive, way, ways  # they hold networks
        for precision, dtype in DTYPES.items():
            peaks[precision] = max(peaks[precision], measure.matmul_rate(dtype))
    for row in rows:
        for precision in DTYPES:
            row[f"{precision} share"] = row["operations"] / row[precision]["seconds"] / peaks[precision]
            if "naive" in row:
                row[f"{precision} ratio"] = row["naive"]["seconds"] / row[precision]["seconds"]
                row[f"{precision} ratio, cpu"] = row["naive"]["cpu"] / row[precision]["cpu"]
    return rows


Way = Callable[[str], Callable[[], Any]]
"""Precision -> what is measured."""


def _ways() -> Iterator[tuple[str, int, Callable[[], Any] | None, Way]]:
    """(phase, operations, naive form, fast form); networks are gone when the next ones come."""
    case = Case(Sizes())
    config, frame = case.config, operations.tokenizer(case.vqgan_config)
    needed = 3 * operations.encoder(config.encoder, 2)
    yield "encoder, forward", needed, None, lambda precision: case.encoding(runtime(precision))
    needed = operations.stage_1(config.encoder, 2, case.hidden)
    yield "stage-1 step", needed, case.naive_stage_1(), lambda precision: case.stage_1(runtime(precision))
    needed = 2 * frame * (1 + (case.vqgan_config.features == "raw"))
    yield "tokenise", needed, case.naive_tokenise(), case.tokenise
    case = Case(Sizes(batch=DECODED))
    needed = operations.stage_2(config, DECODED, case.prompt)
    yield "stage-2 step", needed, case.naive_stage_2(), lambda precision: case.stage_2(runtime(precision))
    case.optimisers.clear()
    case.network.zero_grad(set_to_none=True)
    needed = operations.decode(config, DECODED)
    yield "decode, from encoder", needed, case.naive_decode(), lambda precision: case.decode(runtime(precision))
    needed += operations.imagining(config, DECODED, case.prompt) + operations.embedding(config.encoder, 2 * DECODED)
    needed += 2 * DECODED * frame
    yield "decode, from pictures", needed, case.naive_caption(), lambda precision: case.caption(runtime(precision))


def scaling() -> dict[str, list[dict[str, float]]]:
    """A bfloat16 stage-1 step of a few layers as one size changes; drawing a batch as the corpus grows."""
    few = Sizes(layers=3)
    sizes = {
        "batch": [replace(few, batch=b) for b in (2, 4, 8)],
        "frames": [replace(few, frames=t) for t in (2, 3, 4, 6)],
        "layers": [replace(few, layers=layers) for layers in (1, 3, 6, 12)],
        "tokens per frame": [replace(few, grid=grid) for grid in (4, 7, 10, 14)],
    }
    axis = {"batch": "batch", "frames": "frames", "layers": "layers", "tokens per frame": "grid"}
    found: dict[str, list[dict[str, float]]] = {}
    for name, points in sizes.items():
        found[name] = []
        for point in points:
            case = Case(point)
            step = case.stage_1(runtime("bfloat16"))
            step()
            at = getattr(point, axis[name])
            needed = operations.stage_1(case.config.encoder, point.batch, case.hidden)
            found[name].append(
                {"at": at**2 if axis[name] == "grid" else at, "operations": needed, **asdict(measure.taken(step))}
            )
    found["pairs of the corpus"] = [
        {"at": pairs, "operations": 0, **asdict(drawing(pairs))} for pairs in (100, 400, 1600, 6400)
    ]
    return found


def drawing(pairs: int, batch: int = 8, draws: int = 20) -> measure.Taken:
    """Reading a batch's keyframes, of all frames in memory-mapped shards."""
    shape = (9, 196, 256)
    with tempfile.TemporaryDirectory() as folder:
        rows = 256 * 2**20 // (2 * int(np.prod(shape)))
        for number, first in enumerate(range(0, pairs, rows)):
            size = (min(rows, pairs - first), *shape)
            np.lib.format.open_memmap(Path(folder) / f"features-{number:05d}.npy", "w+", np.float16, size).flush()
        shards, chance = Shards(Path(folder), "features"), np.random.default_rng(0)
        chosen = [chance.integers(0, pairs, batch) for _ in range(draws)]
        frames = np.tile([0, 2, 5, 8], (batch, 1))
        whole = measure.taken(lambda: [shards.places(rows, frames) for rows in chosen])
        return measure.Taken(whole.seconds / draws, whole.cpu / draws)


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
    taken = measure.taken(case.stage_1(runtime(precision)))
    return {"gib": measure.peak_memory(), **asdict(taken)}


if __name__ == "__main__":
    main()
