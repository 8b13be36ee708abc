"""caption: stage 2, implicit procedure captioning (paper, section 3.2), once per captioner."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from procap.captioners import GREEDY, Balanced, Batch, captioner_class
from procap.checkpoints.midpoints import load_midpoint
from procap.config import Caption, Own, Params
from procap.datasets.pairs import NO_CHANGE, Pairs
from procap.datasets.shards import Shards
from procap.datasets.vocabulary import PAD, Vocabulary, tokenize
from procap.evaluation.cider import cider
from procap.evaluation.segmentation import iou
from procap.files import atomic_folder, file_digest, write_json
from procap.models.build import build, count_weights
from procap.models.procedure_encoder import ProcedureEncoder
from procap.models.vqgan import VQGAN
from procap.procedure.keyframes import spread_keyframes
from procap.report import Report, silent
from procap.shapes import Words
from procap.steps.captioners import captioner_config, files_from_elsewhere, start_from_elsewhere
from procap.steps.known import Known
from procap.steps.pretrain import load_encoder
from procap.steps.sources import caption_ids, make_plan, read_vocabulary
from procap.steps.tokenize import load_tokenizer
from procap.training.bundle import Shown, encode_pairs, frames_between, nothing_between, write_bundle
from procap.training.history import draw_history, write_history
from procap.training.loop import train
from procap.training.optimiser import make_optimiser
from procap.training.randomness import batch_rows, torch_generator
from procap.training.runtime import Runtime, start_runtime
from procap.training.state import discard_state, state_folder
from procap.training.team import join_team

MOST_NO_CHANGE = 64
"""Sentences that a bundle keeps to know when nothing changed."""


def run(params: Params, data: Path, *, captioner: str, report: Report = silent) -> None:
    """Write ``data/caption/<captioner>``: bundle/, metrics.json (validation), history.csv."""
    settings, runtime = _settings(params, captioner), start_runtime(**params.machine)
    vocabulary, vqgan = read_vocabulary(data), load_tokenizer(data / "tokenizer")
    kind = captioner_class(captioner)
    config = captioner_config(params, data, captioner, vocabulary)
    model = build(lambda: kind(config), torch_generator(params.training_seed, "caption", captioner)).to(runtime.device)
    start_from_elsewhere(params.own(captioner), model, vocabulary)
    for part in model.modules():
        if isinstance(part, ProcedureEncoder):
            part.checkpointing = params.hardware.checkpointing
    pretrained = kind.pretrained and settings.pretrained
    parts = [(model, settings.learning_rate)]
    if pretrained:
        model.network.encoder.load_state_dict(load_encoder(data / "pretrain", config.encoder))
        parts.insert(0, (model.network.encoder, settings.encoder_learning_rate))
    shown = _shown(params) if kind.pretrained and settings.between == "frames" else None
    taught = getattr(kind, "taught", False)
    source = _Training(data, vocabulary, shown, taught, getattr(kind, "paraphrases", False), runtime)
    balanced = model if isinstance(model, Balanced) else None
    optimiser = make_optimiser(settings.optimiser, parts, settings.weight_decay)
    if hasattr(model, "updated"):
        optimiser.register_step_post_hook(lambda *_: model.updated())

    def rows_of(step: int) -> np.ndarray:
        return source.train[batch_rows(step, len(source.train), settings.batch, params.training_seed)]

    def terms(step: int, generator: torch.Generator, shares: Sequence[slice]) -> Iterator[tuple[dict, dict]]:
        batch = source.batch(rows_of(step), generator)
        for share in shares:
            if share.start:  # dropout of other pairs
                generator = torch_generator(params.training_seed, "caption share", step, share.start)
            with runtime.autocast():
                found = model.loss(batch.part(share), generator=generator)
            if balanced:
                part = balanced.parts(batch, share)
                readings = {name: part[name] * value for name, value in balanced.readings(found).items()}
                yield {name: part[name] * value for name, value in found.items()}, readings
            else:
                whole = part_of(batch.words, share) if settings.reduction == "mean" else 1.0
                yield {name: whole * value for name, value in found.items()}, {}

    inputs = _inputs(data, pretrained, taught, params.own(captioner))
    state = state_folder(data, f"caption@{captioner}", _choices(params, captioner), inputs)
    with join_team(runtime.device) as team:
        progress = train(
            model, optimiser, terms, make_plan(settings, params.training_seed),
            validate=_validation(params, data, model, vqgan, vocabulary, shown, runtime) if team.leads else dict,
            select=getattr(model, "selected_by", "CIDEr"), state=state, report=report, what=f"caption {captioner}",
            team=team, names=lambda step: source.pairs.table["id"].to_numpy()[rows_of(step)].tolist(),
            learned=balanced.remember if balanced else None,
        )  # fmt: skip
    if not team.leads:
        return
    best = next(r for r in reversed(progress.history) if r["split"] == "val" and r["step"] == progress.best_step)
    quality = {name: best[name] for name in ("CIDEr", "gIoU") if name in best}
    numbers = {**quality, "split": settings.selection, "best_step": progress.best_step}
    with atomic_folder(data / "caption" / captioner) as fresh:
        provenance = _provenance(params, data, captioner, numbers)
        write_bundle(fresh / "bundle", captioner, model, config, vqgan, vocabulary, provenance, shown)
        write_json(fresh / "metrics.json", {**numbers, "weights": count_weights(model)})
        write_history(fresh / "history.csv", progress.history)
    report.picture("curves.png", draw_history(progress.history, ("loss", "CIDEr")))
    discard_state(state)


def part_of(words: Words, share: slice) -> float:
    """What a mean over the share's words has of the mean over the words of the whole batch."""
    targets = (words[:, 1:] != PAD).sum(1)
    return int(targets[share].sum()) / int(targets.sum())


def _settings(params: Params, captioner: str) -> Caption:
    """``caption`` with what the captioner's own section puts before it."""
    first = params.own(captioner).model_dump(include=set(Own.model_fields), exclude_none=True)
    return params.caption.model_copy(update=first)


def _choices(params: Params, captioner: str) -> dict[str, Any]:
    """The parameters on which this step depends, and no others: what DVC watches is what a bundle says of itself."""
    common = params.model_dump(
        mode="json",
        include={
            "seed": True,
            "replicate": True,
            "interpolate": {"method", "frames"},
            "sample": {"kept"},
            "pretrain": {"width", "layers", "heads", "encoder"},
            "caption": True,
            "hardware": True,
        },
    )
    return {**common, captioner: params.own(captioner).model_dump(mode="json")}


def _inputs(data: Path, pretrained: bool, taught: bool, own: Own) -> list[Path]:
    files = [data / "prepare" / "pairs.parquet", data / "prepare" / "vocabulary.json"]
    files += [data / "tokenizer" / "vqgan.safetensors", *(data / "tokenize").glob("features-*.npy")]
    files += (data / "prepare").glob("masks-*.npy") if taught else ()
    files += files_from_elsewhere(own)
    return files + ([data / "pretrain" / "encoder.safetensors"] if pretrained else [])


def _provenance(params: Params, data: Path, captioner: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Where a bundle came from: parameters, data and what it was selected by."""
    return {
        "no_change": no_change_captions(Pairs.read(data / "prepare")),
        "params": _choices(params, captioner),
        "dataset": params.dataset.name,
        "pairs_sha256": file_digest(data / "prepare" / "pairs.parquet"),
        "tokenizer_sha256": file_digest(data / "tokenizer" / "vqgan.safetensors"),
        "selected_on": params.caption.selection,
        "selection_CIDEr": numbers["CIDEr"],
    }


def no_change_captions(pairs: Pairs) -> list[str]:
    """What training captions say of unchanged pairs: all different ones, or the most frequent."""
    table = pairs.split("train").table
    unchanged = table.loc[table["change_type"] == NO_CHANGE, "captions"]
    counts = Counter(" ".join(tokenize(caption)) for captions in unchanged for caption in captions)
    ranked = sorted(counts, key=lambda sentence: (-counts[sentence], sentence))
    return ranked[:MOST_NO_CHANGE]


def _shown(params: Params) -> Shown:
    """The interpolated frames that ``caption.between: frames`` puts between the two pictures."""
    numbers = spread_keyframes(params.interpolate.frames, params.sample.kept)
    return Shown(params.interpolate.method, params.interpolate.frames, numbers)


class _Training:
    """Cached features of what the captioner sees of the training pairs, and their captions."""

    def __init__(
        self, data: Path, vocabulary: Vocabulary, shown: Shown | None, taught: bool, paraphrases: bool, runtime: Runtime
    ) -> None:
        self.pairs = Pairs.read(data / "prepare").split("train", "val")
        self.features = Shards(data / "tokenize", "features")
        self.frames = np.array([0, *(shown.numbers if shown else ()), self.features.shape[1] - 1])
        self.captions = caption_ids(self.pairs, vocabulary)
        self.train = np.flatnonzero((self.pairs.table["split"] == "train").to_numpy())
        self.send, self.paraphrases = runtime.send, paraphrases
        self.known = Known(self.pairs, vocabulary, self.send) if taught else None

    def batch(self, rows: np.ndarray, generator: torch.Generator) -> Batch:
        frames = np.broadcast_to(self.frames, (len(rows), len(self.frames)))
        words = self.captions.draw(rows, generator)
        captions = self.send(self.captions.all(rows)) if self.paraphrases else None
        truth = self.known.of(rows, words.numpy()) if self.known else None
        return Batch(self.send(self.features.places(rows, frames)).float(), self.send(words.numpy()), captions, truth)


def _validation(
    params: Params,
    data: Path,
    model: nn.Module,
    vqgan: VQGAN,
    vocabulary: Vocabulary,
    shown: Shown | None,
    runtime: Runtime,
) -> Callable[[], dict[str, float]]:
    """A function that captions the selection split greedily and gives its CIDEr, and gIoU where masks are (x100)."""
    pairs, device = Pairs.read(data / "prepare").split(params.caption.selection), runtime.device
    references = {row.id: list(row.captions) for row in pairs.table.itertuples()}
    between = frames_between(shown, load_midpoint, device) if shown else nothing_between
    vqgan = vqgan.to(device)
    features = [
        encode_pairs(vqgan, pairs.before(rows), pairs.after(rows), between, device).half()
        for rows in np.array_split(np.arange(len(pairs)), -(-len(pairs) // 64))
    ]

    masked = np.flatnonzero((pairs.table["mask"].to_numpy() >= 0) & getattr(model, "segments", False))
    true = pairs.changed(masked)

    def validate() -> dict[str, float]:
        said: list[str] = []
        drawn: list[Any] = []
        for number, seen in enumerate(features):
            generator = torch_generator(params.training_seed, "caption validation", number)
            with runtime.autocast():
                found = model.caption(seen.float(), decoding=GREEDY, generator=generator)  # type: ignore[operator]
            said += [vocabulary.decode(p.ids) for p in found]
            drawn += [p.change_mask for p in found]
        corpus, _ = cider(dict(zip(references, said, strict=True)), references)
        numbers = {"CIDEr": corpus}
        if len(masked):
            shown = [np.zeros_like(true[0]) if drawn[row] is None else drawn[row].cpu().numpy() for row in masked]
            numbers["gIoU"] = 100 * float(np.mean([iou(*each) for each in zip(shown, true, strict=True)]))
        return numbers

    return validate
