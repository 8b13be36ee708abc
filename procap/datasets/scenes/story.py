"""A numbered scene: what was before, what changed, what only seemed to, and the sentences about it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from procap.datasets.scenes.change import Change, apply_change, kind_of
from procap.datasets.scenes.language import captions, no_change_captions
from procap.datasets.scenes.scene import Scene, SceneSettings, all_visible, jittered, sample_objects
from procap.errors import BadInput

ATTEMPTS = 1000


@dataclass(frozen=True)
class Story:
    number: int
    before: Scene
    changed: Scene
    """One object differs from before, and camera and lamps may."""
    distractor: Scene
    """The objects of before; camera and lamps may differ."""
    change: Change
    captions: tuple[str, ...]
    no_change_captions: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "number": self.number,
            "change": self.change.describe(),
            "before": self.before.describe(),
            "changed": self.changed.describe(),
            "distractor": self.distractor.describe(),
        }


def tell(seed: int, number: int, settings: SceneSettings) -> Story:
    """Make scene ``number``; it follows from the arguments alone, however many scenes there are."""
    rng = np.random.default_rng([seed, number])
    kind = kind_of(seed, number)
    for _ in range(ATTEMPTS):
        story = _attempt(number, kind, settings, rng)
        if story is not None:
            return story
    raise BadInput(
        f"scene {number}: no arrangement found in {ATTEMPTS} attempts",
        where=f"params.yaml: prepare.scenes.objects = {list(settings.objects)}",
        expected="few enough objects to be seen and told apart",
        do="ask for fewer objects, or for less camera_jitter",
    )


def _attempt(number: int, kind: str, settings: SceneSettings, rng: np.random.Generator) -> Story | None:
    objects = sample_objects(settings, rng)
    after = objects and apply_change(kind, objects, settings, rng)
    if not objects or not after:
        return None
    before, changed, distractor = (jittered(those, settings, rng) for those in (objects, after[0], objects))
    sentences = captions(after[1], before, changed, rng)
    if not sentences or not all(all_visible(scene, settings) for scene in (before, changed, distractor)):
        return None
    return Story(number, before, changed, distractor, after[1], sentences, no_change_captions(rng))
