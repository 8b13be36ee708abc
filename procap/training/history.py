"""A training's history as a table and as curves to look at."""

from pathlib import Path
from typing import Any

from procap.files import write_text


def write_history(path: Path, history: list[dict[str, Any]]) -> None:
    """CSV with one row per reading: step, split, name, value; the form ``dvc plots`` draws."""
    rows = ["step,split,name,value"]
    for row in history:
        for name, value in sorted(row.items()):  # a resumed run read its rows back in another order
            if name not in ("step", "split"):
                rows.append(f"{row['step']},{row['split']},{name},{value:.6g}")
    write_text(path, "\n".join(rows) + "\n")


def draw_history(history: list[dict[str, Any]], names: tuple[str, ...]) -> Any:
    """Curves of these numbers over the updates, training and validation in one panel each (matplotlib figure)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(names), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for split in ("train", "val"):
            points = [(row["step"], row[name]) for row in history if row["split"] == split and name in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=split, marker="." if split == "val" else None)
        axes.set_title(name)
        axes.set_xlabel("update")
        axes.legend()
    return figure
