"""How a captioner of the default run starts, and how near its imagined frames and its change map are to the truth.

python -m tests.benchmarks.reasons [bundle] [picture.png]     in a project with a finished run on rendered scenes
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from procap.captioning.captioner import PictureCaptioner, load_captioner
from procap.config import Params, load_params
from procap.datasets.pairs import NO_CHANGE, Pairs
from procap.datasets.parallel import in_order
from procap.datasets.pictures import contact_sheet, to_bytes, to_numbers
from procap.datasets.shards import Shards
from procap.datasets.true_procedure import TruePair, read_true_pairs
from procap.evaluation.frame_quality import psnr
from procap.models.vqgan import encode_frames
from procap.procedure.interpolation import crossfade, interpolate
from procap.training.checkpoint import load_tensors

DATA = Path("data")
PAIRS = 96
"""Of the test split, that are explained and held against the truth."""


def main() -> None:
    bundle = Path(sys.argv[1] if len(sys.argv) > 1 else "data/caption/procap/bundle")
    params = load_params(Path("params.yaml"))
    pairs = Pairs.read(DATA / "prepare").split("test")
    start(bundle, pairs)
    captioner = load_captioner(bundle)
    steady(captioner, pairs)
    changes(captioner, pairs)
    maps(captioner, pairs)
    frames(params, captioner, pairs, Path(sys.argv[2]) if len(sys.argv) > 2 else None)


def start(bundle: Path, pairs: Pairs) -> None:
    """The command, from nothing to its sentence."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        ends = [Path(folder) / f"{name}.png" for name in ("before", "after")]
        for path, pixels in zip(ends, (pairs.before()[0], pairs.after()[0]), strict=True):
            Image.fromarray(pixels).save(path)
        words = [sys.executable, "-m", "flows.cli", "caption", *map(str, ends), "--model", str(bundle)]
        seconds = [_seconds(lambda: subprocess.run(words, check=True, capture_output=True)) for _ in range(4)]
    print(f"a cold process to its first caption: {seconds[0]:.2f} s, then {np.median(seconds[1:]):.2f} s")


def steady(captioner: PictureCaptioner, pairs: Pairs) -> None:
    before, after = list(pairs.before()[:64]), list(pairs.after()[:64])
    captioner.caption(before[0], after[0], explain=True)
    one = [_seconds(lambda n=n: captioner.caption(before[n], after[n])) for n in range(40)]
    why = [_seconds(lambda n=n: captioner.caption(before[n], after[n], explain=True)) for n in range(20)]
    many = _seconds(lambda: list(captioner.stream(zip(before, after, strict=True), 16))) / len(before)
    reasons = _seconds(lambda: list(captioner.stream(zip(before, after, strict=True), 16, True))) / len(before)
    print(
        f"then, per pair: alone {1e3 * np.median(one):.1f} ms, explained {1e3 * np.median(why):.1f} ms; "
        f"in batches of 16 {1e3 * many:.1f} ms, explained {1e3 * reasons:.1f} ms"
    )


def changes(captioner: PictureCaptioner, pairs: Pairs) -> None:
    """Change probability against whether something changed."""
    said = list(captioner.stream(zip(pairs.before(), pairs.after(), strict=True), 64))
    if said[0].change_probability is None:
        print("change probability: this bundle does not tell")
        return
    chances = np.array([one.change_probability for one in said])
    changed = pairs.table["change_type"].to_numpy() != NO_CHANGE
    print(
        f"change probability, {len(said)} test pairs: {chances[changed].mean():.3f} where something changed, "
        f"{chances[~changed].mean():.3f} elsewhere; area under the curve {_area(chances, changed):.4f}; "
        f"right at 1/2 {np.mean((chances > 0.5) == changed):.3f}; squared error {np.mean((chances - changed) ** 2):.4f}"
    )


def maps(captioner: PictureCaptioner, pairs: Pairs) -> None:
    """What the maps say of the places of changed pairs, against the true masks."""
    rows = np.flatnonzero((pairs.table["change_type"] != NO_CHANGE) & (pairs.table["mask"] >= 0))[:PAIRS]
    masks = Shards(DATA / "prepare", "masks")[pairs.table["mask"].to_numpy()[rows]] > 0
    rows, masks = rows[masks.any((1, 2))], masks[masks.any((1, 2))]
    before, after = pairs.before(rows), pairs.after(rows)
    found: dict[str, list[np.ndarray]] = {"change map": [], "attention": [], "difference of the pictures": []}
    for one, first, last in zip(
        captioner.stream(zip(before, after, strict=True), 64, True), before, after, strict=True
    ):
        why = one.explanation
        assert why is not None
        found["change map"].append(why.change_map)
        found["attention"].append((why.attention_before + why.attention_after).mean(0))
        found["difference of the pictures"].append(np.abs(first.astype(float) - last).mean(-1))
    for name, values in found.items():
        areas = [_area(each.ravel(), mask.ravel()) for each, mask in zip(values, masks, strict=True)]
        hits = [mask.flat[each.argmax()] for each, mask in zip(values, masks, strict=True)]
        print(
            f"{name:28} area under the curve {np.mean(areas):.3f}, highest place inside the true mask "
            f"{np.mean(hits):.3f} ({len(rows)} changed test pairs; the mask has {masks.mean():.3f} of the picture)"
        )


def frames(params: Params, captioner: PictureCaptioner, pairs: Pairs, picture: Path | None) -> None:
    """Imagined frames, a crossfade, and the truth through the VQGAN, against the true procedure at the same times."""
    kept, count = np.load(DATA / "sample" / "kept.npy"), params.interpolate.frames
    numbers = np.rint(kept.mean((0, 1))).astype(int) - 1
    rows = np.linspace(0, len(pairs) - 1, PAIRS).astype(int)
    known = read_true_pairs(DATA / "prepare" / "scenes.jsonl", pairs.table["id"].to_numpy()[rows])

    def draw(pair: TruePair) -> np.ndarray:
        return pair.frames(count, pairs.images.shape[2], params.prepare.scenes.samples)

    true = np.stack(list(in_order(draw, known)))[:, numbers]
    before, after = pairs.before(rows), pairs.after(rows)
    said = list(captioner.stream(zip(before, after, strict=True), 32, True))
    made = np.stack([one.explanation.frames[1:-1] for one in said if one.explanation is not None])
    if made.shape[1] != len(numbers):
        print(f"{captioner.about.captioner} imagines no frames")
        return
    faded = to_bytes(interpolate(to_numbers(before), to_numbers(after), crossfade, count))[:, numbers]
    vqgan, device = captioner.bundle.vqgan, captioner.bundle.device

    def seen(pictures: np.ndarray) -> np.ndarray:
        tokens = encode_frames(vqgan, pictures.reshape(-1, *pictures.shape[2:]), device)[1]
        return to_bytes(vqgan.decode(tokens)).reshape(pictures.shape)

    early = load_captioner(captioner.about.address)  # its imagination as stage 1 left it
    early.bundle.captioner.network.encoder.load_state_dict(load_tensors(DATA / "pretrain" / "encoder.safetensors")[0])
    features = early.bundle.features(before, after)
    pretrained = early.bundle.imagined(features)
    assert pretrained is not None
    through, ends = seen(true), np.stack([before, after], axis=1)
    kinds = pairs.table["change_type"].to_numpy()[rows]
    print(f"PSNR in dB against the true frames {', '.join(map(str, numbers + 1))} of {count}, by change type")
    methods = {
        "imagined": made,
        "imagined, after stage 1": pretrained,
        "crossfade": faded,
        "crossfade through the VQGAN": seen(faded),
        "truth through the VQGAN": through,
        "before": np.repeat(ends[:, :1], len(numbers), axis=1),
    }
    for name, shown in methods.items():
        near = psnr(shown.reshape(-1, *shown.shape[2:]), true.reshape(-1, *true.shape[2:])).reshape(len(rows), -1)
        by_kind = "  ".join(f"{kind} {near[kinds == kind].mean():.2f}" for kind in sorted(set(kinds)))
        print(f"{name:28} all {near.mean():.2f}  {by_kind}")
    if picture is not None:
        firsts = [np.flatnonzero(kinds == kind)[0] for kind in sorted(set(kinds))]
        lines = [
            np.concatenate([ends[firsts, :1], shown[firsts], ends[firsts, 1:]], axis=1)
            for shown in (made, pretrained, true, through, faded)
        ]
        sheet = np.stack(lines, axis=1).reshape(-1, *lines[0].shape[1:])
        contact_sheet(sheet, scale=2).save(picture, "PNG", optimize=True)
        print(f"written: {picture} (five lines for each of {', '.join(sorted(set(kinds)))}: imagined, imagined after "
              "stage 1, true, true through the VQGAN, crossfade)")  # fmt: skip


def _area(values: np.ndarray, true: np.ndarray) -> float:
    """Chance that a true one has the higher value."""
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable") + 1
    positives = true.sum()
    return float((order[true].sum() - positives * (positives + 1) / 2) / (positives * (~true).sum()))


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
