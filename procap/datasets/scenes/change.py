"""What happens between two pictures, and the true procedure that leads from one to the other."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from procap.datasets.scenes.scene import (
    COLORS,
    MATERIALS,
    SIZES,
    Object,
    Scene,
    SceneSettings,
    place,
    sample_attributes,
)
from procap.datasets.scenes.solids import Camera, Lamp, Point, Solid, View

CHANGES = ("color", "material", "add", "drop", "move")


@dataclass(frozen=True)
class Change:
    """One object differs; numbers count the objects of the scene before and after, None where it is not there."""

    kind: str
    """One of CHANGES."""
    before: int | None
    after: int | None

    def describe(self) -> dict[str, Any]:
        return dict(vars(self))


def kind_of(seed: int, number: int) -> str:
    """The change of a scene; any five scenes 5i..5i+4 have all five changes, in an order of their own."""
    turn, place_in_turn = divmod(number, len(CHANGES))
    return CHANGES[np.random.default_rng([seed, turn, 1]).permutation(len(CHANGES))[place_in_turn]]


def apply_change(
    kind: str, objects: tuple[Object, ...], settings: SceneSettings, rng: np.random.Generator
) -> tuple[tuple[Object, ...], Change] | None:
    """Change one random object; None where an object has nowhere to go."""
    if kind == "add":
        added = place(sample_attributes(rng), objects, settings, rng)
        return ((*objects, added), Change(kind, None, len(objects))) if added else None
    which = int(rng.integers(len(objects)))
    old, rest = objects[which], objects[:which] + objects[which + 1 :]
    if kind == "drop":
        return rest, Change(kind, which, None)
    new: Object | None
    if kind == "color":
        new = replace(old, color=str(rng.choice([color for color in COLORS if color != old.color])))
    elif kind == "material":
        new = replace(old, material=MATERIALS[1 - MATERIALS.index(old.material)])
    else:
        new = place(old, rest, settings, rng, away=2 * SIZES[old.size])
    return ((*objects[:which], new, *objects[which + 1 :]), Change(kind, which, which)) if new else None


def procedure(before: Scene, after: Scene, change: Change | None, frames: int) -> list[View]:
    """The true frames between two pictures, evenly spaced in time, both pictures left out.

    Colour and material pass gradually, a moved object slides, an added one grows and a dropped one shrinks;
    camera and lamps travel straight. ``change`` None: only they do.
    """
    old, new = before.view(), after.view()
    pairs = list(_partners(old, new, change))
    steps = [(i + 1) / (frames + 1) for i in range(frames)]
    return [
        View(
            tuple(_blend_solid(a, b, t) for a, b in pairs),
            Camera(
                _blend(old.camera.eye, new.camera.eye, t),
                _blend(old.camera.target, new.camera.target, t),
                _mix(old.camera.spread, new.camera.spread, t),
            ),
            tuple(_blend_lamp(a, b, t) for a, b in zip(old.lamps, new.lamps, strict=True)),
        )
        for t in steps
    ]


def _partners(old: View, new: View, change: Change | None) -> list[tuple[Solid, Solid]]:
    """Every object as it starts and as it ends; one that is not there has radius 0."""
    first, last = list(old.solids), list(new.solids)
    if change is not None and change.before is None and change.after is not None:
        first.insert(change.after, replace(last[change.after], radius=0.0))
    if change is not None and change.after is None and change.before is not None:
        last.insert(change.before, replace(first[change.before], radius=0.0))
    return list(zip(first, last, strict=True))


def _mix(a: float, b: float, t: float) -> float:
    return a if a == b else (1 - t) * a + t * b


def _blend(a: Point, b: Point, t: float) -> Point:
    return _mix(a[0], b[0], t), _mix(a[1], b[1], t), _mix(a[2], b[2], t)


def _blend_lamp(a: Lamp, b: Lamp, t: float) -> Lamp:
    return Lamp(_blend(a.position, b.position, t), _mix(a.radius, b.radius, t), _mix(a.power, b.power, t))


def _blend_solid(a: Solid, b: Solid, t: float) -> Solid:
    return Solid(
        a.shape,
        _mix(a.x, b.x, t),
        _mix(a.y, b.y, t),
        _mix(a.radius, b.radius, t),
        _mix(a.rotation, b.rotation, t),
        _blend(a.rgb, b.rgb, t),
        _mix(a.metal, b.metal, t),
    )
