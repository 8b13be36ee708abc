"""What was measured, as a table, a plot and an MLflow run."""

from pathlib import Path
from typing import Any

from tests.benchmarks.__main__ import TARGETS

Found = dict[str, Any]


ACROSS = 3
"""Panels of the plot in a row."""


def table(found: Found) -> str:
    """Markdown."""
    machine, rates = found["machine"], found["rates"]
    lines = [
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}; a product of two "
        f"2048 x 2048 matrices: {rates['float32'] / 1e9:.0f} GFLOP/s in float32, {rates['bfloat16'] / 1e9:.0f} in "
        f"bfloat16; a copy: {rates['copy'] / 1e9:.1f} GB/s.",
        "",
    ]
    if "phases" in found:
        lines += [
            "| phase | naive, float32 | float32 | ratio (in CPU time) | bfloat16 | ratio (in CPU time) | operations | "
            "of float32's rate | of bfloat16's |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_phase(row) for row in found["phases"]]
    for name, points in found.get("scaling", {}).items():
        told = ", ".join(f"{point['at']}: {_seconds(point['cpu'])}" for point in points)
        lines += ["", f"{name}, CPU time: {told}"]
    for row in found.get("memory", ()):
        lines += ["", f"stage-1 step, batch {row['batch']}, {row['precision']}, checkpointing {row['checkpointing']}: "
                      f"peak {row['gib']:.1f} GiB, {row['cpu']:.0f} s of CPU time"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _phase(row: Found) -> str:
    least = TARGETS.get(row["phase"], (None, None))
    cells = [row["phase"], _seconds(row["naive"]["seconds"]) if "naive" in row else ""]
    for precision, target in zip(("float32", "bfloat16"), least, strict=True):
        cells.append(_seconds(row[precision]["seconds"]))
        asked = f", target {target:g}" if target else ""
        cells.append(
            f"{row[f'{precision} ratio']:.1f} ({row[f'{precision} ratio, cpu']:.1f}{asked})" if "naive" in row else ""
        )
    cells.append(f"{row['operations'] / 1e9:.0f} GFLOP")
    cells += [f"{100 * row[f'{precision} share']:.0f} %" for precision in ("float32", "bfloat16")]
    return f"| {' | '.join(cells)} |"


def _seconds(taken: float) -> str:
    return f"{taken:.2f} s" if taken >= 0.1 else f"{1000 * taken:.1f} ms"


def plot(found: Found, path: Path) -> None:
    """Ratios as bars, each scaling curve with what its operations would take at the largest point's speed."""
    from matplotlib.figure import Figure

    phases = [row for row in found.get("phases", ()) if "naive" in row]
    curves = found.get("scaling", {})
    panels = bool(phases) + len(curves)
    if not panels:
        return
    rows = -(-panels // ACROSS)
    figure = Figure(figsize=(4 * min(panels, ACROSS), 3.2 * rows), layout="constrained")
    axes = iter(figure.subplots(rows, min(panels, ACROSS), squeeze=False).flat)
    if phases:
        bars = next(axes)
        places = range(len(phases))
        for shift, precision in ((-0.2, "float32"), (0.2, "bfloat16")):
            ratios = [row[f"{precision} ratio"] for row in phases]
            bars.barh([place + shift for place in places], ratios, height=0.4, label=precision)
        bars.set_yticks(places, [row["phase"] for row in phases])
        bars.set_xscale("log")
        bars.axvline(1, color="black", linewidth=0.8)
        bars.set_xlabel("times faster than naive in float32")
        bars.legend()
    for name, points in curves.items():
        axis, at, last = next(axes), [point["at"] for point in points], points[-1]
        axis.plot(at, [point["cpu"] for point in points], marker="o", label="measured")
        if last["operations"]:
            rate = last["cpu"] / last["operations"]
            axis.plot(at, [rate * point["operations"] for point in points], linestyle=":", label="operations")
            axis.legend()
        axis.set(xlabel=name, ylabel="seconds of CPU time", ylim=(0, None))
    for unused in axes:
        unused.remove()
    figure.savefig(path, dpi=110)


def log(found: Found, folder: Path) -> None:
    """Keep it all as a run of the experiment procap/benchmarks."""
    from flows.store import connect, experiment_id

    root = Path.cwd()
    client = connect(root)
    run = client.create_run(experiment_id(client, root, "procap/benchmarks"), run_name="bench")
    numbers = {f"rate/{name}": rate for name, rate in found["rates"].items()}
    for row in found.get("phases", ()):
        name = row["phase"].replace(",", "")
        numbers |= {f"{name}/{key}": value for key, value in row.items() if isinstance(value, float)}
    for row in found.get("memory", ()):
        numbers[f"memory/checkpointing {row['checkpointing']}"] = row["gib"]
    for key, value in numbers.items():
        client.log_metric(run.info.run_id, key, value)
    for key, value in found["machine"].items():
        client.set_tag(run.info.run_id, key, value)
    client.log_artifacts(run.info.run_id, str(folder))
    client.set_terminated(run.info.run_id)
