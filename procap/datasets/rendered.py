"""Our own corpus: rendered scenes with sentences, masks, full descriptions and, on request, the true procedure.

Scene ``i`` gives two pairs with one picture before: changed (``00000ic``) and distractor (``00000inc``).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from procap.datasets.pairs import SHIFT, SPLITS, UNKNOWN_CHANGE
from procap.datasets.parallel import in_order
from procap.datasets.scenes.change import CHANGES, change_masks, procedure
from procap.datasets.scenes.scene import SceneSettings
from procap.datasets.scenes.story import Story, tell
from procap.report import Report, silent

SHIFT_START = 900_000
"""Number of the first scene of the split SHIFT."""


@dataclass(frozen=True)
class CorpusSettings:
    seed: int
    count: int
    """Scenes; twice as many pairs."""
    size: int | tuple[int, int]
    """Pixels per side, or (height, width)."""
    samples: int
    """Rays per pixel side."""
    splits: tuple[float, float, float]
    """Shares of train, val and test."""
    scenes: SceneSettings
    truth: int = 0
    """Frames of the true procedure, 0: none."""
    shift_count: int = 0
    """Scenes of the split SHIFT."""
    shift: SceneSettings | None = None
    """What these are like."""


@dataclass(frozen=True)
class RenderedScene:
    story: Story
    split: str
    before: UInt8[np.ndarray, "h w 3"]
    changed: UInt8[np.ndarray, "h w 3"]
    distractor: UInt8[np.ndarray, "h w 3"]
    masks: Bool[np.ndarray, "2 h w"]
    """Where before, and where changed, shows an object that changed."""
    truth: UInt8[np.ndarray, "2 l h w 3"]
    """Frames from before to changed, and from before to distractor."""

    @property
    def mask(self) -> Bool[np.ndarray, "h w"]:
        """Both masks united."""
        return self.masks[0] | self.masks[1]

    @property
    def group(self) -> str:
        return f"{self.story.number:06d}"


def render_corpus(settings: CorpusSettings, report: Report = silent) -> Iterator[RenderedScene]:
    """Every scene in order, drawn on all cores."""
    render_scene(settings, 0)  # compiles once, before the threads start
    numbers = [*range(settings.count), *range(SHIFT_START, SHIFT_START + settings.shift_count)]
    scenes = in_order(partial(render_scene, settings), numbers)
    return report.progress(scenes, "scenes", total=len(numbers))


def render_scene(settings: CorpusSettings, number: int) -> RenderedScene:
    """Make and draw one scene; it follows from seed, number and settings alone, the counts aside."""
    from procap.datasets.scenes.raytrace import render

    shifted = settings.shift if number >= SHIFT_START else None
    story = tell(settings.seed, number, shifted or settings.scenes)
    before, changed, distractor = (
        render(scene.view(), settings.size, settings.samples)
        for scene in (story.before, story.changed, story.distractor)
    )
    masks = change_masks(story.changes, before, changed)
    frames = [
        render(view, settings.size, settings.samples).rgb
        for after, changes in ((story.changed, story.changes), (story.distractor, ()))
        for view in procedure(story.before, after, changes, settings.truth)
    ]
    truth = np.array(frames, np.uint8).reshape(2, settings.truth, *before.rgb.shape)
    split = SHIFT if shifted else split_of(number, story.changes[0].kind, settings.splits)
    return RenderedScene(story, split, before.rgb, changed.rgb, distractor.rgb, masks, truth)


def split_of(number: int, kind: str, shares: tuple[float, float, float]) -> str:
    """The split of a scene; all runs of scenes have nearly these shares, within each kind of change too."""
    turn = number - number % len(CHANGES) + CHANGES.index(kind)
    place = (turn * 0.6180339887498949) % 1.0  # golden-ratio sequence: evenly spread however long it gets
    return SPLITS[min(2, int(np.searchsorted(np.cumsum(shares[:2]), place, side="right")))]


def description(scene: RenderedScene) -> dict[str, Any]:
    """Everything that is known of a scene, as plain JSON values."""
    return {**scene.story.describe(), "group": scene.group, "split": scene.split}


def write_official_layout(folder: Path, settings: CorpusSettings, report: Report = silent) -> None:
    """Write a corpus the way CLEVR-Change is laid out, plus ``scenes.json`` and masks of the change.

    ``masks/`` has them united, ``sc_masks/`` those of the picture after, ``before_masks/`` of the one before. The
    layout has no split SHIFT: its scenes are left out.
    """
    from PIL import Image

    change_captions, no_change_captions, descriptions = {}, {}, []
    types: dict[str, list[str]] = {}
    splits: dict[str, list[int]] = {split: [] for split in SPLITS}
    for part in ("images", "sc_images", "nsc_images", "masks", "before_masks", "sc_masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for scene in render_corpus(replace(settings, shift_count=0), report):
        name = f"CLEVR_default_{scene.group}.png"
        for path, picture in (
            (f"images/{name}", scene.before),
            (f"sc_images/CLEVR_semantic_{scene.group}.png", scene.changed),
            (f"nsc_images/CLEVR_nonsemantic_{scene.group}.png", scene.distractor),
            (f"masks/CLEVR_mask_{scene.group}.png", scene.mask.astype(np.uint8) * 255),
            (f"before_masks/CLEVR_mask_{scene.group}.png", scene.masks[0].astype(np.uint8) * 255),
            (f"sc_masks/CLEVR_mask_{scene.group}.png", scene.masks[1].astype(np.uint8) * 255),
        ):
            Image.fromarray(picture).save(folder / path)
        change_captions[name] = list(scene.story.captions)
        no_change_captions[name] = list(scene.story.no_change_captions)
        if scene.story.change_type != UNKNOWN_CHANGE:
            types.setdefault(scene.story.change_type, []).append(name)
        splits[scene.split].append(scene.story.number)
        descriptions.append(description(scene))
    for file, content in (
        ("change_captions", change_captions),
        ("no_change_captions", no_change_captions),
        ("type_mapping", types),
        ("splits", splits),
        ("scenes", descriptions),
    ):
        (folder / f"{file}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
