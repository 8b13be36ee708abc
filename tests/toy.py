"""Tiny corpora for tests, written the way ``prepare`` writes them, without running it."""

from pathlib import Path

import numpy as np
import pandas as pd

from procap.datasets.pairs import CHANGE_TYPES, COLUMNS, NO_CHANGE
from procap.datasets.shards import ShardWriter

CAPTIONS = {
    "color": ["the red ball turned blue", "the ball is blue now"],
    "material": ["the ball became metal", "the rubber ball is shiny now"],
    "add": ["a green cube appeared", "there is a new cube"],
    "drop": ["the red ball is gone", "someone removed the ball"],
    "move": ["the red ball moved", "the ball is in another place"],
    NO_CHANGE: ["nothing has changed", "no change was made"],
}

SPLITS_IN_TURN = ("train", "train", "val", "test")


def toy_prepared(
    folder: Path, pairs: int = 12, side: int = 32, *, masks: bool = True, truth: int = 0, seed: int = 0
) -> pd.DataFrame:
    """Write ``pairs.parquet`` and shards of pictures to ``folder``; returns the table.

    Every scene has a changed pair and a distractor, which share the picture before, the group and the split
    (train, train, val, test in turn). Pictures are a coloured square on noise; the square's colour changes,
    moves, comes or goes. ``truth`` is the number of frames of a true procedure (here a crossfade); 0 writes none.
    """
    draw = np.random.default_rng(seed)
    rows, images, all_masks, procedures = [], [], [], []
    for number in range(pairs):
        scene, distractor = divmod(number, 2)
        if not distractor:
            noise = draw.integers(90, 110, (side, side, 3), dtype=np.uint8)
            at, color = draw.integers(0, side // 2, 2), draw.integers(0, 256, 3)
            images.append(_square(noise, at, color))
            before = len(images) - 1
        kind = NO_CHANGE if distractor else CHANGE_TYPES[scene % len(CHANGE_TYPES)]
        images.append(_changed(noise, at, color, kind, draw))
        gap = np.abs(images[before].astype(int) - images[-1]).max(axis=-1)
        differs = (gap > 2) & (kind != NO_CHANGE)  # beyond the noise
        all_masks.append(differs.astype(np.uint8) * 255)
        shares = np.linspace(0, 1, truth + 2)[1:-1, None, None, None]
        procedures.append(np.rint(images[before] * (1 - shares) + images[-1] * shares).astype(np.uint8))
        rows.append(
            {
                "id": f"{scene:06d}-{'distractor' if distractor else 'change'}",
                "group": f"{scene:06d}",
                "split": SPLITS_IN_TURN[scene % len(SPLITS_IN_TURN)],
                "change_type": kind,
                "captions": CAPTIONS[kind],
                "before": before,
                "after": len(images) - 1,
                "mask": number if masks else -1,
            }
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    folder.mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "pairs.parquet", index=False)
    _write(folder, "images", images)
    if masks:
        _write(folder, "masks", all_masks)
    if truth:
        _write(folder, "truth", procedures)
    return table


def _square(ground: np.ndarray, at: np.ndarray, color: np.ndarray) -> np.ndarray:
    side = len(ground) // 3
    picture = ground.copy()
    picture[at[0] : at[0] + side, at[1] : at[1] + side] = color
    return picture


def _changed(noise: np.ndarray, at: np.ndarray, color: np.ndarray, kind: str, draw: np.random.Generator) -> np.ndarray:
    noise = noise + draw.integers(0, 3, noise.shape, dtype=np.uint8)
    match kind:
        case "color" | "material":
            return _square(noise, at, 255 - color)
        case "add":
            return _square(_square(noise, at, color), (at + len(noise) // 3) % (len(noise) // 2), 255 - color)
        case "drop":
            return noise
        case "move":
            return _square(noise, (at + len(noise) // 4) % (len(noise) // 2), color)
        case _:
            return _square(noise, at, color)


def _write(folder: Path, name: str, arrays: list[np.ndarray]) -> None:
    stacked = np.stack(arrays)
    with ShardWriter(folder, name, stacked.shape[1:], stacked.dtype) as writer:
        writer.append(stacked)
