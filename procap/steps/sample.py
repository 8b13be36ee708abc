"""Step ``sample``: score the imagined frames and draw the few that stage 1 sees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards, write_array
from procap.files import atomic_folder, write_json
from procap.procedure.keyframes import confidence, sample_keyframes
from procap.report import Report, silent
from procap.shapes import Float, Int, Tensor
from procap.training.randomness import torch_generator

Similarity = Callable[[np.ndarray, np.ndarray], tuple[Tensor, Tensor]]
"""Row numbers of pairs and their whole procedures, uint8 (b, t, h, w, 3), in; how similar each frame is to before
and to after, two float tensors (b, t), out."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/sample``; rows are pairs of train and val, as in ``data/interpolate/frames``.

    weights.npy    float32 (pairs, l): confidence of each inner frame
    kept.npy       int16 (draws, pairs, k): frame numbers 1..l in time order
    summary.json   how often each frame is kept, and why
    """
    similarities = _similarities(params, data, report)
    weights = confidence(*similarities)
    generator, settings = torch_generator(params.seed, "sample"), params.sample
    draws = [
        sample_keyframes(weights, settings.kept, settings.draw, generator=generator) for _ in range(settings.draws)
    ]
    kept = torch.stack(draws).to(torch.int16).numpy()
    summary = _summary(*similarities, weights, kept)
    with atomic_folder(data / "sample") as fresh:
        write_array(fresh / "weights.npy", weights.numpy())
        write_array(fresh / "kept.npy", kept)
        write_json(fresh / "summary.json", summary)
    report.metrics({"weight_spread": summary["weight_spread"], "similarity_ends": summary["similarity_before"][-1]})
    report.picture("confidence.png", _draw(summary))


def _similarities(params: Params, data: Path, report: Report) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t"]]:
    """Of every frame to before and to after, (pairs, t) each, on the CPU."""
    pairs, inner = Pairs.read(data / "prepare").split("train", "val"), Shards(data / "interpolate" / "frames", "frames")
    similarity = SIMILARITIES[params.sample.similarity](params, pairs)
    size = max(1, params.sample.batch // (inner.shape[1] + 2))
    found = []
    for start in report.progress(range(0, len(pairs), size), "batches of pairs scored", -(-len(pairs) // size)):
        rows = np.arange(start, min(start + size, len(pairs)))
        whole = np.concatenate([pairs.before(rows)[:, None], inner[rows], pairs.after(rows)[:, None]], axis=1)
        found.append(similarity(rows, whole))
    before, after = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    return before, after


def _visual(params: Params, pairs: Pairs) -> Similarity:
    """Cosine of frozen image features."""
    from procap.checkpoints.efficientnet import load_visual_features
    from procap.datasets.pictures import to_numbers
    from procap.training.runtime import start_runtime

    device = start_runtime(**dict(params.hardware)).device
    net = load_visual_features(device)

    def similarity(rows: np.ndarray, whole: np.ndarray) -> tuple[Tensor, Tensor]:
        features = net(to_numbers(whole.reshape(-1, *whole.shape[2:])).to(device))
        frames = torch.nn.functional.normalize(features, dim=1).unflatten(0, whole.shape[:2])
        return (frames * frames[:, :1]).sum(dim=2), (frames * frames[:, -1:]).sum(dim=2)

    return similarity


SIMILARITIES: dict[str, Callable[[Params, Pairs], Similarity]] = {"visual": _visual}


def _summary(
    before: Float[Tensor, "b t"],
    after: Float[Tensor, "b t"],
    weights: Float[Tensor, "b l"],
    kept: Int[np.ndarray, "draws b k"],
) -> dict[str, Any]:
    """Lists run over the frames; ``weight_spread`` is the largest over the smallest weight of a pair, on average."""
    counts = np.bincount(kept.reshape(-1), minlength=weights.shape[1] + 1)[1:]
    spread = (weights.amax(dim=1) / weights.amin(dim=1).clamp_min(1e-9)).mean()
    return {
        "pairs": len(weights),
        "similarity_before": _rounded(before.mean(dim=0)),
        "similarity_after": _rounded(after.mean(dim=0)),
        "mean_weight": _rounded(weights.mean(dim=0)),
        "weight_spread": _rounded(spread),
        "kept_share": [round(count / max(1, kept.shape[0] * kept.shape[1]), 6) for count in counts.tolist()],
    }


def _rounded(values: Tensor) -> Any:
    return np.round(values.double().numpy(), 6).tolist()


def _draw(summary: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, style in (("similarity_before", "o-"), ("similarity_after", "s-")):
        left.plot(summary[name], style, label=name.replace("_", " to "))
    left.set(xlabel="frame", title=f"mean over {summary['pairs']} pairs")
    left.legend()
    frames = np.arange(1, len(summary["kept_share"]) + 1)
    total = sum(summary["mean_weight"]) or 1
    expected = [weight / total * sum(summary["kept_share"]) for weight in summary["mean_weight"]]
    right.bar(frames, summary["kept_share"], label="kept")
    right.plot(frames, expected, "k_", markersize=18, label="its weight, scaled")
    right.set(xlabel="frame", title="share of the draws that keep a frame")
    right.legend()
    return figure
