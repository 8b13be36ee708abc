"""Step ``sample``: score the imagined frames and draw the few that stage 1 sees."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from procap.config import Params
from procap.datasets.pairs import NO_CHANGE, Pairs
from procap.datasets.shards import Shards, write_array
from procap.files import atomic_folder, write_json
from procap.procedure.keyframes import chances, confidence, imbalance, mixed_imbalance, sample_keyframes
from procap.report import Report, silent
from procap.shapes import Float, Int, Tensor
from procap.steps.similarities import Kind, similarities
from procap.training.randomness import derived_seed, torch_generator


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/sample``; rows are pairs of train and val, as in ``data/interpolate/frames``.

    weights.npy    float32 (pairs, l): chance of each inner frame to be drawn first, at the temperature
    kept.npy       int16 (draws, pairs, k): frame numbers 1..l in time order
    summary.json   how often each frame is kept, why, and how near that is to the true midpoint where it is known
    """
    settings = params.sample
    ends, uneven = _scores(params, data, report)
    weights, generator = confidence(uneven), torch_generator(params.seed, "sample")
    draws = [
        sample_keyframes(weights, settings.kept, settings.draw, temperature=settings.temperature, generator=generator)
        for _ in range(settings.draws)
    ]
    kept = torch.stack(draws).to(torch.int16).numpy()
    first = chances(weights, settings.temperature)
    summary = _summary(ends, first, kept) | _midpoint(params, data, kept)
    with atomic_folder(data / "sample") as fresh:
        write_array(fresh / "weights.npy", first.float().numpy())
        write_array(fresh / "kept.npy", kept)
        write_json(fresh / "summary.json", summary)
    report.metrics(_numbers(summary))
    report.picture("confidence.png", _draw(summary))


KINDS: dict[str, tuple[Kind, ...]] = {
    "visual": ("visual",),
    "visual_text": ("visual_text",),
    "mixed": ("visual_text", "visual"),
    "random": (),
}

Ends = dict[Kind, tuple[Float[Tensor, "b t"], Float[Tensor, "b t"]]]
"""Similarities to before and to after, by their kind."""


def _scores(params: Params, data: Path, report: Report) -> tuple[Ends, Float[Tensor, "b t"]]:
    """The similarities that ``sample.similarity`` asks for, and the imbalance of every frame."""
    ends = {kind: similarities(params, data, kind, report) for kind in KINDS[params.sample.similarity]}
    parts = [imbalance(*both) for both in ends.values()]
    if not parts:
        inner = Shards(data / "interpolate" / "frames", "frames")
        return ends, torch.zeros(len(inner), inner.shape[1] + 2, dtype=torch.float64)
    if len(parts) == 1:
        return ends, parts[0]
    visual_text, visual = ((float(part.min()), float(part.max())) for part in parts)
    return ends, mixed_imbalance(parts[0], parts[1], visual_text, visual)


def _midpoint(params: Params, data: Path, kept: Int[np.ndarray, "draws b k"]) -> dict[str, Any]:
    """Of the changed pairs of a corpus that knows its true procedure; nothing for others."""
    if not kept.shape[2] or not list((data / "prepare").glob("truth-*.npy")):
        return {}
    from procap.evaluation.midpoint import distance_to, nearness

    inner, truth = Shards(data / "interpolate" / "frames", "frames"), Shards(data / "prepare", "truth")
    table = Pairs.read(data / "prepare").table
    in_truth = np.flatnonzero(table["split"].isin(["train", "val"]).to_numpy())
    table = table.iloc[in_truth]
    changed = np.flatnonzero((table["change_type"] != NO_CHANGE).to_numpy())
    found = []
    for rows in np.array_split(changed, -(-len(changed) // params.sample.batch)):
        middle = truth[in_truth[rows]][:, truth.shape[1] // 2]
        found.append(distance_to(middle, inner[rows]))
    clusters = np.unique(table["group"].iloc[changed], return_inverse=True)[1]
    generator = np.random.default_rng(derived_seed(params.seed, "midpoint"))
    return {"midpoint_distance": nearness(np.concatenate(found), kept[:, changed], clusters, generator)}


def _summary(ends: Ends, first: Float[Tensor, "b l"], kept: Int[np.ndarray, "draws b k"]) -> dict[str, Any]:
    """Lists run over the frames; ``weight_spread`` is the largest over the smallest chance of a pair, on average.

    ``time_from_middle`` is |t - 1/2| of the kept frames, where the procedure takes the time from 0 to 1, and of all.
    """
    frames = first.shape[1]
    counts = np.bincount(kept.reshape(-1), minlength=frames + 1)[1:]
    from_middle = np.abs(np.arange(1, frames + 1) / (frames + 1) - 0.5)
    spread = (first.amax(dim=1) / first.amin(dim=1).clamp_min(1e-9)).mean()
    return {
        "pairs": len(first),
        **{
            f"{kind}_similarity_{end}": _rounded(values.mean(dim=0))
            for kind, both in ends.items()
            for end, values in zip(("before", "after"), both, strict=True)
        },
        "mean_chance": _rounded(first.mean(dim=0)),
        "weight_spread": _rounded(spread),
        "kept_share": [round(count / max(1, kept.shape[0] * kept.shape[1]), 6) for count in counts.tolist()],
        "time_from_middle": {
            "chosen": round(float(counts @ from_middle / max(1, counts.sum())), 6),
            "random": round(float(from_middle.mean()), 6),
        },
    }


def _numbers(summary: dict[str, Any]) -> dict[str, float]:
    """What is worth comparing between runs."""
    numbers = {"weight_spread": summary["weight_spread"], "time_from_middle": summary["time_from_middle"]["chosen"]}
    numbers |= {f"{name}_end": values[-1] for name, values in summary.items() if name.endswith("similarity_before")}
    midpoint = summary.get("midpoint_distance", {})
    return numbers | {f"midpoint_{name}": value for name, value in midpoint.items() if name != "interval"}


def _rounded(values: Tensor) -> Any:
    return np.round(values.double().numpy(), 6).tolist()


def _draw(summary: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in (name for name in summary if "_similarity_" in name):
        left.plot(summary[name], "o-", label=name.replace("_similarity_", ", to ").replace("_", "-"))
    left.set(xlabel="frame", title=f"similarity, mean over {summary['pairs']} pairs")
    if left.lines:
        left.legend()
    frames = np.arange(1, len(summary["kept_share"]) + 1)
    expected = [chance * sum(summary["kept_share"]) for chance in summary["mean_chance"]]
    right.bar(frames, summary["kept_share"], label="kept")
    right.plot(frames, expected, "k_", markersize=18, label="its chance, scaled")
    right.set(xlabel="frame", title="share of the draws that keep a frame")
    right.legend()
    return figure
