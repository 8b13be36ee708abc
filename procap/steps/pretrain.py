"""pretrain: stage 1, explicit procedure modelling (paper, section 3.1), on cached features and tokens."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards
from procap.datasets.vocabulary import Vocabulary
from procap.errors import BadInput
from procap.files import atomic_folder, write_json
from procap.models.build import build, count_weights
from procap.models.procedure_encoder import EncoderConfig, ProcedureEncoder
from procap.procedure.masking import Masking
from procap.procedure.objective import Counting, ProcedureBatch, Weights, draw, losses, objective, weigh
from procap.report import Report, silent
from procap.steps.sources import caption_ids, encoder_config, make_plan, read_vocabulary
from procap.training.checkpoint import load_tensors, save_tensors
from procap.training.history import draw_history, write_history
from procap.training.loop import Progress, train
from procap.training.optimiser import make_optimiser
from procap.training.randomness import batch_rows, torch_generator
from procap.training.runtime import Runtime, start_runtime
from procap.training.state import discard_state, state_folder
from procap.training.team import join_team

READINGS = ("msm_loss", "align_loss", "csy_loss", "msm_accuracy", "align_accuracy", "csy_accuracy")


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/pretrain``: encoder.safetensors, encoder.json, metrics.json, history.csv."""
    settings, runtime = params.pretrain, start_runtime(**params.machine)
    vocabulary = read_vocabulary(data)
    config = encoder_config(params, data, vocabulary, frames=params.frames)
    source = Procedures(data, vocabulary, runtime)
    generator = torch_generator(params.training_seed, "pretrain")
    encoder = build(lambda: ProcedureEncoder(config), generator).to(runtime.device)
    encoder.checkpointing = params.hardware.checkpointing
    if config.start == "comparison":
        encoder.hold_comparison()
    masking, weights = Masking(settings.masking, settings.patch_masked, settings.entire), Weights(*settings.weights)
    counting = Counting(settings.negatives, settings.unseen, settings.msm_mean)
    train_rows, val_rows = source.rows("train"), source.rows("val")

    def rows_of(step: int) -> np.ndarray:
        return train_rows[batch_rows(step, len(train_rows), settings.batch, params.training_seed)]

    def terms(step: int, generator: torch.Generator, shares: Sequence[slice]) -> Iterator[tuple[dict, dict]]:
        batch = source.batch(rows_of(step), generator)
        draws = draw(batch, config.grid, masking, counting, generator)
        for share in shares:
            with runtime.autocast():
                found = losses(encoder, batch, draws, counting, share)
            yield weigh(*found, weights)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        readings: list[dict[str, float]] = []
        for number, rows in enumerate(np.array_split(val_rows, -(-len(val_rows) // max(2, settings.batch)))):
            generator = torch_generator(params.seed, "pretrain validation", number)
            with runtime.autocast():
                found, more = objective(
                    encoder, source.batch(rows, generator), masking, weights, counting, generator=generator
                )
            readings.append({"loss": float(sum(found.values())), **more})
        means = {name: float(np.mean([r[name] for r in readings])) for name in readings[0]}
        return {**means, "quality": -means["loss"]}

    state, progress = None, Progress()
    if settings.checkpoint:
        encoder.load_state_dict(import_encoder(Path(settings.checkpoint), config))
        final = validate()
    else:
        inputs = [data / "prepare" / name for name in ("pairs.parquet", "vocabulary.json")]
        state = state_folder(
            data, "pretrain",
            {"pretrain": settings.model_dump(), "seed": params.training_seed, "hardware": params.hardware.model_dump()},
            [*inputs, data / "sample" / "kept.npy", *(data / "tokenize").glob("*.npy")],
        )  # fmt: skip
        optimiser = make_optimiser(settings.optimiser, [(encoder, settings.learning_rate)], settings.weight_decay)
        with join_team(runtime.device) as team:
            progress = train(
                encoder, optimiser, terms, make_plan(settings, params.training_seed),
                validate=validate, select="quality" if settings.selection == "val" else None,
                state=state, report=report, what="pretrain", team=team,
                names=lambda step: source.pairs.table["id"].to_numpy()[rows_of(step)].tolist(),
            )  # fmt: skip
        if not team.leads:
            return
        final = next(r for r in reversed(progress.history) if r["split"] == "val" and r["step"] == progress.best_step)
    with atomic_folder(data / "pretrain") as fresh:
        save_tensors(fresh / "encoder.safetensors", dict(encoder.state_dict()))
        write_json(fresh / "encoder.json", asdict(config))
        write_json(
            fresh / "metrics.json",
            {name: final[name] for name in ("loss", *READINGS)}
            | {"best_step": progress.best_step, "weights": count_weights(encoder)},
        )
        write_history(fresh / "history.csv", progress.history)
    if state:
        report.picture("curves.png", draw_history(progress.history, READINGS))
        discard_state(state)


class Procedures:
    """Cached procedures of train and val, drawn batch by batch."""

    def __init__(self, data: Path, vocabulary: Vocabulary, runtime: Runtime) -> None:
        self.pairs = Pairs.read(data / "prepare").split("train", "val")
        self.features = Shards(data / "tokenize", "features")
        self.tokens = Shards(data / "tokenize", "tokens")
        self.warped = Shards(data / "tokenize", "warped")
        self.warped_frames = np.load(data / "tokenize" / "warped_frames.npy")
        self.kept = np.load(data / "sample" / "kept.npy")
        self.captions = caption_ids(self.pairs, vocabulary)
        self.send = runtime.send

    def rows(self, split: str) -> np.ndarray:
        return np.flatnonzero((self.pairs.table["split"] == split).to_numpy())

    def batch(self, rows: np.ndarray, generator: torch.Generator) -> ProcedureBatch:
        """Pairs with one of their captions and one of their draws of keyframes."""
        draw = torch.randint(len(self.kept), (len(rows),), generator=generator).numpy()
        last = self.features.shape[1] - 1
        frames = np.pad(self.kept[draw, rows].astype(int), ((0, 0), (1, 1)), constant_values=((0, 0), (0, last)))
        words = self.captions.draw(rows, generator)
        return ProcedureBatch(
            self.send(self.features.places(rows, frames)).float(),
            self.send(self.tokens.places(rows, frames)).long(),
            self.send(words.numpy()),
            self.send(self.warped.places(rows, draw[:, None])[:, 0]).float(),
            self.send(self.warped_frames[rows, draw]).long(),
        )


def load_encoder(folder: Path, config: EncoderConfig, do: str = "run `dvc repro pretrain`") -> dict[str, torch.Tensor]:
    """Stage 1's weights, after checking that they are of these sizes; ``do`` is advised where they are not."""
    there = read_sizes(folder)
    if there != asdict(config):
        wanted = asdict(config)
        different = {name: (there.get(name), wanted[name]) for name in wanted if there.get(name) != wanted[name]}
        raise BadInput(
            f"stage 1 was trained with other sizes: {different}",
            where=str(folder / "encoder.json"),
            expected=str(asdict(config)),
            do=do,
        )
    return load_tensors(folder / "encoder.safetensors")[0]


def import_encoder(folder: Path, config: EncoderConfig) -> dict[str, torch.Tensor]:
    """The weights that `procap import-weights --kind stage1` wrote, with a table for our words.

    The words of the release are byte pairs, which ours cannot be told as. What stage 2 reads stays: the table's first
    rows, and [PAD] at each place. Raises BadInput for a folder that is none, or of other sizes than params.yaml asks.
    """
    do = "choose the same in params.yaml, for example by `procap preset reference-clevr`"
    weights = load_encoder(folder, replace(config, vocabulary=read_sizes(folder)["vocabulary"]), do)
    table = weights["word_embedding.weight"]
    weights["word_embedding.weight"] = torch.cat([table[: config.vocabulary], table[-config.words :]])
    return weights


def read_sizes(folder: Path) -> dict[str, Any]:
    """Sizes of the encoder in a folder; raises BadInput where there is none."""
    try:
        return json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"no encoder of stage 1 ({error})",
            where=str(folder),
            expected="a folder with encoder.json and encoder.safetensors",
            do="run `dvc repro pretrain`, or `procap import-weights --kind stage1`",
        ) from None
