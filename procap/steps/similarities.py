"""What ``sample`` compares frames by: frozen features, captions, or scores that were released."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from procap.config import Params
from procap.datasets.pairs import NO_CHANGE, Pairs
from procap.datasets.pictures import to_numbers
from procap.datasets.shards import Shards
from procap.report import Report
from procap.shapes import Float, Tensor
from procap.training.batches import each_batch

Kind = Literal["visual_text", "visual"]

Similarity = Callable[[np.ndarray, np.ndarray], tuple[Tensor, Tensor]]
"""Row numbers of pairs and their whole procedures, uint8 (b, t, h, w, 3), in; how similar each frame is to before
and to after, two float tensors (b, t), out."""


def similarities(
    params: Params, data: Path, kind: Kind, report: Report
) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t"]]:
    """Of every frame to before and to after, (pairs, t) each, on the CPU; rows are pairs of train and val.

    They come from the released scores where ``sample.scores`` names some.
    """
    pairs, inner = Pairs.read(data / "prepare").split("train", "val"), Shards(data / "interpolate" / "frames", "frames")
    if params.sample.scores:
        from procap.checkpoints.released_scores import read_released_scores

        ids = pairs.table["id"].tolist()
        both = read_released_scores(Path(params.sample.scores), ids, kind, inner.shape[1] + 2)
        return torch.from_numpy(both[0].copy()), torch.from_numpy(both[1].copy())
    similarity = _visual(params) if kind == "visual" else _visual_text(params, data, pairs, report)
    size = max(1, params.sample.batch // (inner.shape[1] + 2))

    def score(start: int) -> tuple[Tensor, Tensor]:
        rows = np.arange(start, min(start + size, len(pairs)))
        whole = np.concatenate([pairs.before(rows)[:, None], inner[rows], pairs.after(rows)[:, None]], axis=1)
        return similarity(rows, whole)

    starts = range(0, len(pairs), size)
    found = list(
        report.progress(each_batch(score, starts, _device(params)), f"{kind} scores, batches of pairs", len(starts))
    )
    before, after = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    return before, after


def _features(net: Any, whole: np.ndarray, device: torch.device) -> Float[Tensor, "b t d"]:
    return net(to_numbers(whole.reshape(-1, *whole.shape[2:])).to(device)).unflatten(0, whole.shape[:2])


def _visual_net(params: Params, device: torch.device) -> Any:
    """Frozen features of pictures: the packaged ones, or those of a folder."""
    if params.sample.visual_checkpoint:
        from procap.checkpoints.transformer_folder import load_image_tower

        return load_image_tower(Path(params.sample.visual_checkpoint), device, "sample.visual_checkpoint")
    from procap.checkpoints.efficientnet import load_visual_features

    return load_visual_features(device)


def _visual(params: Params) -> Similarity:
    """Cosine of a frame's features with those of either end."""
    device = _device(params)
    net = _visual_net(params, device)

    def similarity(rows: np.ndarray, whole: np.ndarray) -> tuple[Tensor, Tensor]:
        frames = torch.nn.functional.normalize(_features(net, whole, device), dim=2)
        return (frames * frames[:, :1]).sum(dim=2), (frames * frames[:, -1:]).sum(dim=2)

    return similarity


def _visual_text(params: Params, data: Path, pairs: Pairs, report: Report) -> Similarity:
    if params.sample.visual_text_checkpoint:
        return _by_caption(params, pairs)
    return _by_two_tower(params, data, pairs, report)


def _by_caption(params: Params, pairs: Pairs) -> Similarity:
    """How much of the way towards the captions lies before a frame, and how much after it.

    With unit vectors f of frames and g of a caption: (f_t - f_bef) g and (f_aft - f_t) g, on average over the
    captions. Our formulation: CLIP4IDC, which made the released scores, embeds pairs of pictures, CLIP single ones.
    """
    from procap.checkpoints.transformer_folder import load_both_towers

    device = _device(params)
    folder = Path(params.sample.visual_text_checkpoint or "")
    images, texts = load_both_towers(folder, device, "sample.visual_text_checkpoint")

    def similarity(rows: np.ndarray, whole: np.ndarray) -> tuple[Tensor, Tensor]:
        frames = torch.nn.functional.normalize(_features(images, whole, device), dim=2)
        captions = [list(sentences) for sentences in pairs.table["captions"].iloc[rows]]
        embedded = torch.nn.functional.normalize(texts([text for each in captions for text in each]), dim=1)
        means = torch.stack([part.mean(dim=0) for part in embedded.split([len(each) for each in captions])])
        along = (frames * means[:, None]).sum(dim=2)
        return along - along[:, :1], along[:, -1:] - along

    return similarity


def _by_two_tower(params: Params, data: Path, pairs: Pairs, report: Report) -> Similarity:
    """Mean cosine of the captions with (before, frame) and with (frame, after), the form of CLIP4IDC's scores."""
    from procap.steps.sources import caption_ids, read_vocabulary

    device = _device(params)
    net = _visual_net(params, device)
    captions = caption_ids(pairs, read_vocabulary(data))
    model = _train_two_tower(params, data, pairs, net, captions, device, report)
    with torch.inference_mode():
        embedded = model.embed_captions(torch.from_numpy(captions.ids).to(device))
    means = torch.stack([part.mean(dim=0) for part in embedded.split(captions.counts.tolist())])

    @torch.inference_mode()
    def similarity(rows: np.ndarray, whole: np.ndarray) -> tuple[Tensor, Tensor]:
        frames, caption = _features(net, whole, device), means[torch.from_numpy(rows)][:, None]
        before, after = frames[:, :1].expand_as(frames), frames[:, -1:].expand_as(frames)
        return (model.embed_pairs(before, frames) * caption).sum(2), (model.embed_pairs(frames, after) * caption).sum(2)

    return similarity


def _train_two_tower(
    params: Params, data: Path, pairs: Pairs, net: Any, captions: Any, device: torch.device, report: Report
) -> Any:
    """The two-tower model of the training split, on frozen features of before and after."""
    from procap.datasets.vocabulary import PAD
    from procap.models.build import build
    from procap.models.two_tower import TwoTower, TwoTowerConfig
    from procap.steps.sources import read_vocabulary
    from procap.training.loop import Plan, train
    from procap.training.optimiser import make_optimiser
    from procap.training.randomness import batch_rows, torch_generator
    from procap.training.state import discard_state, state_folder

    settings = params.sample.two_tower
    ends = np.stack([pairs.table["before"], pairs.table["after"]], axis=1)
    used, where = np.unique(ends, return_inverse=True)
    parts = [
        net(to_numbers(pairs.images[used[start : start + params.sample.batch]]).to(device))
        for start in range(0, len(used), params.sample.batch)
    ]
    pictures = torch.cat(parts)[torch.from_numpy(where.reshape(-1, 2)).to(device)].clone()
    same = torch.tensor((pairs.table["change_type"] == NO_CHANGE).tolist())
    rows_of = {split: np.flatnonzero((pairs.table["split"] == split).to_numpy()) for split in ("train", "val")}
    seen = pictures[torch.from_numpy(rows_of["train"]).to(device)]
    scale = torch.stack([seen[:, 0].std(dim=0), (seen[:, 1] - seen[:, 0]).std(dim=0)]).clamp_min(1e-3)
    config = TwoTowerConfig(pictures.shape[2], len(read_vocabulary(data)), PAD, settings.width)
    generator = torch_generator(params.seed, "two-tower")
    model = build(lambda: TwoTower(config, seen[:, 0].mean(dim=0), scale), generator).to(device)

    def batch(rows: np.ndarray, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        words, unchanged = captions.draw(rows, generator), same[torch.from_numpy(rows)]
        alike = (words[:, None] == words).all(dim=2) | (unchanged[:, None] & unchanged)
        before, after = pictures[torch.from_numpy(rows).to(device)].unbind(dim=1)
        return before, after, words.to(device), alike.to(device)

    def terms(step: int, generator: torch.Generator, _: Sequence[slice]) -> Iterator[tuple[dict, dict]]:
        rows = rows_of["train"][batch_rows(step, len(rows_of["train"]), settings.batch, params.seed)]
        yield {"matching": model.loss(*batch(rows, generator))}, {}

    @torch.inference_mode()
    def validate() -> dict[str, float]:
        """How often the nearest of a batch's captions fits the pair, and how often any caption does."""
        rows = rows_of["val"][: settings.batch]
        before, after, words, alike = batch(rows, torch_generator(params.seed, "two-tower", "val"))
        nearest = (model.embed_pairs(before, after) @ model.embed_captions(words).T).argmax(dim=1)
        fits = alike[torch.arange(len(rows)), nearest].float().mean()
        return {"matched": float(fits), "matched_by_chance": float(alike.float().mean())}

    chosen = {"sample": params.sample.model_dump(), "hardware": params.machine, "seed": params.seed}
    state = state_folder(data, "sample", chosen, [data / "prepare"])
    optimiser = make_optimiser("adamw", [(model, settings.learning_rate)], 0.01)
    plan = Plan(settings.steps, 0.1, max(1, settings.steps // 4), params.seed, settings.batch)
    train(model, optimiser, terms, plan, validate=validate, select=None, state=state, report=report, what="two-tower")
    discard_state(state)
    return model


def _device(params: Params) -> torch.device:
    from procap.training.runtime import start_runtime

    return start_runtime(**params.machine).device
