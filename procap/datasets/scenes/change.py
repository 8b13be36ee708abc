"""What happens between two pictures, and the true procedure that leads from one to the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from procap.datasets.scenes.scene import (
    MATERIALS,
    PALETTES,
    SIZES,
    Object,
    Scene,
    SceneSettings,
    place,
    sample_attributes,
)
from procap.datasets.scenes.solids import Camera, Lamp, Point, Solid, View

if TYPE_CHECKING:
    from procap.datasets.scenes.raytrace import Picture

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


def apply_changes(
    kinds: Sequence[str], objects: tuple[Object, ...], settings: SceneSettings, rng: np.random.Generator
) -> tuple[tuple[Object, ...], tuple[Change, ...]] | None:
    """Change one random object after another, none of them twice; None where it cannot be done, or not be told.

    Nothing is put where another object was: that would look like a change of the other.
    """
    ends: list[Object | None] = list(objects)
    chosen: list[int] = []
    for kind in kinds:
        if kind == "add":
            which = len(ends)
            ends.append(place(sample_attributes(settings, rng), _ever(objects, ends), settings, rng))
        else:
            free = [number for number in range(len(objects)) if number not in chosen]
            if not free:
                return None
            which = free[int(rng.integers(len(free)))]
            ends[which] = _changed(kind, which, objects, ends, settings, rng)
        if ends[which] is None and kind != "drop":
            return None
        chosen.append(which)
    there = [number for number, thing in enumerate(ends) if thing]
    changes = tuple(
        Change(kind, which if which < len(objects) else None, there.index(which) if which in there else None)
        for kind, which in zip(kinds, chosen, strict=True)
    )
    after = tuple(thing for thing in ends if thing)
    looks = [
        {_look(scene[number]) for number in numbers if number is not None}
        for scene, numbers in (
            (objects, [change.before for change in changes if change.kind == "drop"]),
            (after, [change.after for change in changes if change.kind == "add"]),
        )
    ]
    return None if looks[0] & looks[1] else (after, changes)  # gone here, come there: that is a move


def _ever(objects: Sequence[Object], ends: Sequence[Object | None], but: int | None = None) -> tuple[Object, ...]:
    """What stands or stood on the floor, but for one object."""
    return tuple(thing for things in (objects, ends) for number, thing in enumerate(things) if thing and number != but)


def _changed(
    kind: str,
    which: int,
    objects: tuple[Object, ...],
    ends: Sequence[Object | None],
    settings: SceneSettings,
    rng: np.random.Generator,
) -> Object | None:
    """What becomes of an object; None: it is dropped, or has nowhere to go."""
    old = objects[which]
    if kind == "color":
        return replace(old, color=str(rng.choice([c for c in PALETTES[settings.palette][old.shape] if c != old.color])))
    if kind == "material":
        return replace(old, material=MATERIALS[1 - MATERIALS.index(old.material)])
    if kind == "move":
        return place(old, _ever(objects, ends, but=which), settings, rng, away=2 * SIZES[old.size])
    return None


def _look(thing: Object) -> tuple[str, ...]:
    return thing.shape, thing.size, thing.color, thing.material


def change_masks(changes: Sequence[Change], before: "Picture", after: "Picture") -> Bool[np.ndarray, "2 h w"]:
    """Where the picture before, and where the picture after, shows an object that changed."""
    masks = np.zeros((2, *before.ids.shape[:2]), bool)
    for change in changes:
        for mask, picture, number in zip(masks, (before, after), (change.before, change.after), strict=True):
            if number is not None:
                mask |= picture.mask(number)
    return masks


def procedure(before: Scene, after: Scene, changes: Sequence[Change], frames: int) -> list[View]:
    """The true frames between two pictures, evenly spaced in time, both pictures left out."""
    return [moment(before, after, changes, (i + 1) / (frames + 1)) for i in range(frames)]


def moment(before: Scene, after: Scene, changes: Sequence[Change], t: float) -> View:
    """The true procedure gamma(t), t in [0, 1]; 0 and 1 draw the two pictures.

    Colour and material pass gradually, a moved object slides, an added one grows and a dropped one shrinks; lamps
    travel straight and the camera around the middle. No ``changes``: only they do. Solids are numbered as before,
    then come the added ones.
    """
    old, new = before.view(), after.view()
    dropped = {change.before for change in changes if change.after is None}
    added = {change.after for change in changes if change.before is None}
    staying = (solid for number, solid in enumerate(new.solids) if number not in added)
    pairs = [
        (solid, replace(solid, radius=0.0) if number in dropped else next(staying))
        for number, solid in enumerate(old.solids)
    ]
    pairs += [(replace(solid, radius=0.0), solid) for number, solid in enumerate(new.solids) if number in added]
    return View(
        tuple(_blend_solid(a, b, t) for a, b in pairs),
        _blend_camera(old.camera, new.camera, t),
        tuple(_blend_lamp(a, b, t) for a, b in zip(old.lamps, new.lamps, strict=True)),
    )


def _mix(a: float, b: float, t: float) -> float:
    return a if a == b else (1 - t) * a + t * b


def _blend(a: Point, b: Point, t: float) -> Point:
    return _mix(a[0], b[0], t), _mix(a[1], b[1], t), _mix(a[2], b[2], t)


def _blend_camera(a: Camera, b: Camera, t: float) -> Camera:
    """On the way round, where a straight one would come near the objects or pass above them."""
    target, spread = _blend(a.target, b.target, t), _mix(a.spread, b.spread, t)
    if a.eye == b.eye or t in (0, 1):
        return Camera(_blend(a.eye, b.eye, t), target, spread)
    (angle, far, height), (angle_b, far_b, height_b) = (_around(camera) for camera in (a, b))
    angle += t * math.remainder(angle_b - angle, math.tau)
    far, height = _mix(far, far_b, t), _mix(height, height_b, t)
    x, y, z = target
    return Camera((x + far * math.cos(angle), y + far * math.sin(angle), z + height), target, spread)


def _around(camera: Camera) -> Point:
    """(angle, distance, height) of the eye from the target."""
    x, y, z = (eye - target for eye, target in zip(camera.eye, camera.target, strict=True))
    return math.atan2(y, x), math.hypot(x, y), z


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
