"""tokenizer: train the VQGAN on the corpus' training frames, or import one."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from procap.config import Params
from procap.datasets.pairs import Pairs
from procap.datasets.shards import Shards
from procap.files import atomic_folder, write_json
from procap.models.build import build, count_weights
from procap.models.vqgan import VQGAN, VQGANConfig
from procap.report import Report, silent
from procap.training.checkpoint import save_tensors
from procap.training.history import draw_history, write_history
from procap.training.loop import Plan, Progress, train
from procap.training.randomness import batch_rows, torch_generator
from procap.training.runtime import Runtime, start_runtime
from procap.training.state import discard_state, state_folder
from procap.training.vqgan_objective import Adversary, revive_codes, start_codes

PLAIN = 0.4
"""Share of the updates before the codebook joins: encoder and decoder first learn to draw at all."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/tokenizer``: vqgan.safetensors, vqgan.json, metrics.json, history.csv."""
    settings = params.tokenizer
    runtime = start_runtime(**params.machine | {"precision": settings.precision})
    if settings.checkpoint:
        from procap.checkpoints.vqgan import import_vqgan

        vqgan = import_vqgan(
            Path(settings.checkpoint), params.prepare.image_size,
            settings.precision, settings.features, settings.colours,
        )
        vqgan = vqgan.to(runtime.device)
        state, progress = None, Progress()
    else:
        sizes = {"params": params.tokenizer.model_dump(), "seed": params.seed, "hardware": params.machine}
        inputs = [*(data / "prepare").glob("*.*"), *(data / "interpolate" / "frames").glob("*.npy")]
        state = state_folder(data, "tokenizer", sizes, inputs)
        vqgan, progress = _train(params, data, state, runtime, report)
    frames = _Frames(data, "val")
    metrics, pictures = _measure(vqgan, frames, runtime)
    with atomic_folder(data / "tokenizer") as fresh:
        save_tensors(fresh / "vqgan.safetensors", dict(vqgan.state_dict()))
        write_json(fresh / "vqgan.json", asdict(vqgan.config))
        write_json(fresh / "metrics.json", {**metrics, "weights": count_weights(vqgan)})
        write_history(fresh / "history.csv", progress.history)
    report.metrics(metrics)
    report.picture("reconstructions.png", pictures)
    if progress.history:
        report.picture("curves.png", draw_history(progress.history, ("loss", "reconstruction", "codebook")))
    if state:
        discard_state(state)


class _Frames:
    """All frames of a split by one number: befores, afters, then what interpolation put between."""

    def __init__(self, data: Path, split: str) -> None:
        known = Pairs.read(data / "prepare").split("train", "val")
        rows = np.flatnonzero((known.table["split"] == split).to_numpy())
        self.ends = np.unique(known.table.loc[rows, ["before", "after"]].to_numpy())
        self.images = known.images
        self.inner = Shards(data / "interpolate" / "frames", "frames")
        self.rows = rows

    def __len__(self) -> int:
        return len(self.ends) + len(self.rows) * self.inner.shape[1]

    def pictures(self, numbers: np.ndarray) -> torch.Tensor:
        """In [0, 1], (b, 3, h, w)."""
        out = np.empty((len(numbers), *self.inner.shape[2:]), np.uint8)
        ends = numbers < len(self.ends)
        out[ends] = self.images[self.ends[numbers[ends]]]
        pair, frame = np.divmod(numbers[~ends] - len(self.ends), self.inner.shape[1])
        out[~ends] = self.inner[self.rows[pair]][np.arange(len(pair)), frame]
        return torch.from_numpy(out).permute(0, 3, 1, 2).float() / 255


def _train(params: Params, data: Path, state: Path, runtime: Runtime, report: Report) -> tuple[VQGAN, Progress]:
    settings = params.tokenizer
    config = VQGANConfig(
        settings.channels, settings.multipliers, settings.blocks, settings.codes, settings.code_width,
        params.prepare.image_size, settings.precision, settings.features, settings.colours,
    )  # fmt: skip
    generator = torch_generator(params.seed, "tokenizer")
    vqgan = build(lambda: VQGAN(config), generator).to(runtime.device)
    joins = round(settings.adversarial_start * settings.steps)
    adversary = Adversary(settings.adversarial, joins, settings.codes, generator)
    adversary.to(runtime.device)
    both = torch.nn.ModuleDict({"vqgan": vqgan, "discriminator": adversary.network, "usage": adversary.usage})
    frames, held_out = _Frames(data, "train"), _Frames(data, "val")
    optimiser = torch.optim.AdamW(
        [p for p in both.parameters() if p.requires_grad],
        lr=settings.learning_rate, betas=(0.5, 0.9), weight_decay=0.0,
    )  # fmt: skip
    warmup_codes = max(1, round(PLAIN * settings.steps))

    def terms(step: int, generator: torch.Generator, _: Sequence[slice]) -> Iterator[tuple[dict, dict]]:
        pictures = frames.pictures(batch_rows(step, len(frames), settings.batch, params.seed)).to(runtime.device)
        with runtime.autocast():
            if step == warmup_codes:
                start_codes(vqgan, pictures, generator)
            elif step > warmup_codes and step % 50 == 0 and step < 0.9 * settings.steps:
                revive_codes(vqgan, adversary.usage, pictures, generator)
            found = adversary.terms(vqgan, pictures, step, plain=step < warmup_codes)
        yield found

    def validate() -> dict[str, float]:
        return _measure(vqgan, held_out, runtime, pictures=128)[0]

    plan = Plan(settings.steps, 0.05, max(50, settings.steps // 4), params.seed, settings.batch)
    progress = train(
        both, optimiser, terms, plan,
        validate=validate, select=None, state=state, report=report, what="tokenizer",
    )  # fmt: skip
    return vqgan.eval(), progress


@torch.no_grad()
def _measure(vqgan: VQGAN, frames: _Frames, runtime: Runtime, pictures: int = 256):
    """(numbers, a picture of frames above their reconstructions) on frames of the validation split."""
    from PIL import Image

    chosen = np.linspace(0, len(frames) - 1, min(pictures, len(frames))).astype(int)
    shown, errors, used = [], [], []
    for numbers in np.array_split(chosen, max(1, len(chosen) // 64)):
        truth = frames.pictures(numbers).to(runtime.device)
        with runtime.autocast():
            tokens = vqgan.tokens(vqgan.encode(truth))
            drawn = vqgan.decode(tokens)
        errors.append(F.l1_loss(drawn, truth, reduction="none").mean((1, 2, 3)))
        used.append(tokens.flatten())
        shown.append(torch.cat([truth[:4], drawn[:4]], dim=2))
    strip = torch.cat([*torch.cat(shown)[:12]], dim=2).mul(255).byte().permute(1, 2, 0).cpu().numpy()
    counts = torch.bincount(torch.cat(used), minlength=vqgan.config.codes).float()
    shares = counts / counts.sum()
    perplexity = float(torch.exp(-(shares * shares.clamp(min=1e-9).log()).sum()))
    measured = {
        "reconstruction": float(torch.cat(errors).mean()),
        "perplexity": perplexity,
        "codes_used": float((counts > 0).float().mean()),
    }
    return measured, Image.fromarray(strip)
