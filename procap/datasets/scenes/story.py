"""A numbered scene: what was before, what changed, what only seemed to, and the sentences about it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from procap.datasets.corpus import UNKNOWN_CHANGE
from procap.datasets.scenes.change import CHANGES, Change, apply_changes, kind_of
from procap.datasets.scenes.language import captions, no_change_captions
from procap.datasets.scenes.scene import Scene, SceneSettings, all_visible, jittered, sample_objects
from procap.errors import BadInput

ATTEMPTS = 1000


@dataclass(frozen=True)
class Story:
    number: int
    before: Scene
    changed: Scene
    """Objects differ from before, and camera and lamps may."""
    distractor: Scene
    """The objects of before; camera and lamps may differ."""
    changes: tuple[Change, ...]
    """No object is in two of them."""
    captions: tuple[str, ...]
    no_change_captions: tuple[str, ...]

    @property
    def change_type(self) -> str:
        """The kind of all changes; UNKNOWN_CHANGE where they are of several."""
        kinds = {change.kind for change in self.changes}
        return self.changes[0].kind if len(kinds) == 1 else UNKNOWN_CHANGE

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "number": self.number,
            "changes": [change.describe() for change in self.changes],
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
        where=f"params.yaml: prepare.scenes.objects = {list(settings.objects)}, hidden = {settings.hidden:g}",
        expected="few enough objects to be seen and told apart",
        do="ask for fewer objects or changes, for less camera_jitter and turn, or let objects be hidden more",
    )


def _attempt(number: int, kind: str, settings: SceneSettings, rng: np.random.Generator) -> Story | None:
    objects = sample_objects(settings, rng)
    if not objects:
        return None
    more = rng.choice(CHANGES, int(rng.integers(settings.changes[0], settings.changes[1] + 1)) - 1)
    changed_objects = apply_changes((kind, *map(str, more)), objects, settings, rng)
    if not changed_objects:
        return None
    after, changes = changed_objects
    aside = settings.aside * (1 if rng.random() < 0.5 else -1) if settings.aside else 0.0
    before, changed, distractor = (jittered(those, settings, rng, aside) for those in (objects, after, objects))
    sentences = captions(changes, before, changed, rng)
    if not sentences or not all(all_visible(scene, settings) for scene in (before, changed, distractor)):
        return None
    return Story(number, before, changed, distractor, changes, sentences, no_change_captions(rng))
