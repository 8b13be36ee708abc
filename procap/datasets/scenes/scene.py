"""Scenes: objects with names for their attributes, sampled so that all of them can be seen and told apart."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from procap.datasets.scenes.solids import SHAPES, Camera, Lamp, Point, Solid, View

SIZES = {"small": 0.5, "large": 0.85}
"""Radius in scene units."""

COLORS = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
"""sRGB bytes; the eight colours of CLEVR."""

MATERIALS = ("rubber", "metal")

_ONE, _OTHER = ("gray", "blue", "brown", "yellow"), ("red", "green", "purple", "cyan")
PALETTES = {
    "all": dict.fromkeys(SHAPES, tuple(COLORS)),
    "usual": {"sphere": tuple(COLORS), "cube": _ONE, "cylinder": _OTHER},
    "swapped": {"sphere": tuple(COLORS), "cube": _OTHER, "cylinder": _ONE},
}
"""Colours by shape; "usual" and "swapped" are conditions A and B of CLEVR-CoGenT (Johnson et al. 2017, section 4.7)."""

CAMERA = Camera(eye=(0.0, -6.6, 5.0), target=(0.0, 0.0, 0.35), spread=0.335)
LAMPS = (
    Lamp(position=(3.5, -3.5, 6.5), radius=0.9, power=50.0),  # key
    Lamp(position=(-5.0, -2.5, 4.5), radius=1.5, power=14.0),  # fill
)
REACH = 1.9
"""Objects of a scene of up to ROOMY stand within this distance of the middle, along x and along y."""
ROOMY = 4
GAP = 0.2
"""Least free floor between two objects."""
SEEN_RAYS = 18
"""Of 48 x 48 for a scene of up to ROOMY objects."""


@dataclass(frozen=True)
class SceneSettings:
    """What ``prepare.scenes`` says of single scenes."""

    objects: tuple[int, int]
    """Fewest and most."""
    camera_jitter: float
    """Furthest the camera moves between two pictures, along each axis, in scene units."""
    light_jitter: float
    """Furthest a lamp's power changes between two pictures, as a share; lamps move by up to this many units."""
    turn: float = 0.0
    """Widest angle between the cameras of two pictures, in degrees around the middle of the floor."""
    aside: float = 0.0
    """The cameras of a scene stand around this angle from the usual one, to the left or to the right, in degrees."""
    hidden: float = 0.3
    """Largest share of an object that others may hide."""
    size_jitter: float = 0.0
    """An object's radius differs from that of its named size by up to this share."""
    changes: tuple[int, int] = (1, 1)
    """Fewest and most at once."""
    palette: str = "all"
    """One of PALETTES."""

    @property
    def stretch(self) -> float:
        """How much wider than usual the floor is and further away the camera, so that crowded scenes fit."""
        return max(1.0, math.sqrt(self.objects[1] / ROOMY))


@dataclass(frozen=True)
class Object:
    shape: str
    size: str
    color: str
    material: str
    x: float
    y: float
    rotation: float
    scale: float = 1.0
    """Of the radius that its named size has."""

    def solid(self) -> Solid:
        red, green, blue = (value / 255 for value in COLORS[self.color])
        metal = float(self.material == "metal")
        radius = SIZES[self.size] * self.scale
        return Solid(self.shape, self.x, self.y, radius, self.rotation, (red, green, blue), metal)


@dataclass(frozen=True)
class Scene:
    objects: tuple[Object, ...]
    camera: Camera
    lamps: tuple[Lamp, ...]

    @property
    def facing(self) -> float:
        """Angle from the y axis to where the camera looks, in radians."""
        (x, y, _), (eye_x, eye_y, _) = self.camera.target, self.camera.eye
        return math.atan2(eye_x - x, y - eye_y)

    def view(self) -> View:
        return View(tuple(thing.solid() for thing in self.objects), self.camera, self.lamps)

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "objects": [dict(vars(thing)) for thing in self.objects],
            "camera": {"eye": list(self.camera.eye), "target": list(self.camera.target), "spread": self.camera.spread},
            "lamps": [{**vars(lamp), "position": list(lamp.position)} for lamp in self.lamps],
        }


def sample_objects(settings: SceneSettings, rng: np.random.Generator) -> tuple[Object, ...] | None:
    """Stand a random number of random objects on the floor, apart from each other; None if they found no place."""
    objects: tuple[Object, ...] = ()
    for _ in range(rng.integers(settings.objects[0], settings.objects[1] + 1)):
        thing = place(sample_attributes(settings, rng), objects, settings, rng)
        if thing is None:
            return None
        objects += (thing,)
    return objects


def sample_attributes(settings: SceneSettings, rng: np.random.Generator) -> Object:
    """An object at the middle of the floor."""
    shape, size = str(rng.choice(SHAPES)), str(rng.choice(tuple(SIZES)))
    color, material = str(rng.choice(PALETTES[settings.palette][shape])), str(rng.choice(MATERIALS))
    rotation = round(float(rng.uniform(0, 2 * math.pi)), 4)
    thing = Object(shape, size, color, material, x=0.0, y=0.0, rotation=rotation)
    if not settings.size_jitter:
        return thing
    return replace(thing, scale=round(1 + settings.size_jitter * float(rng.uniform(-1, 1)), 4))


def place(
    thing: Object, others: tuple[Object, ...], settings: SceneSettings, rng: np.random.Generator, away: float = 0.0
) -> Object | None:
    """Move an object to a free random place, at least ``away`` from where it was; None if forty tries found none."""
    reach = REACH * settings.stretch
    for _ in range(40):
        x, y = (round(float(value), 4) for value in rng.uniform(-reach, reach, 2))
        moved = replace(thing, x=x, y=y)
        if math.dist((x, y), (thing.x, thing.y)) >= away and all(apart(moved, other) for other in others):
            return moved
    return None


def apart(one: Object, other: Object) -> bool:
    """Whether there is free floor between two objects."""
    return math.dist((one.x, one.y), (other.x, other.y)) >= one.solid().footprint + other.solid().footprint + GAP


def jittered(
    objects: tuple[Object, ...], settings: SceneSettings, rng: np.random.Generator, aside: float = 0.0
) -> Scene:
    """Look at objects from near the usual place turned by ``aside`` degrees, under nearly the usual light."""
    stretch = settings.stretch
    jitter = settings.camera_jitter / 2 * rng.uniform(-1, 1, 3)
    angle = math.radians(aside + (settings.turn / 2 * float(rng.uniform(-1, 1)) if settings.turn else 0.0))
    x, y, z = CAMERA.eye
    turned = x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle), z
    eye = _rounded(np.asarray(turned) * stretch + jitter)
    lamps = []
    for lamp in LAMPS:
        *shift, change = settings.light_jitter / 2 * rng.uniform(-1, 1, 4)
        position = _rounded(np.asarray(lamp.position) * stretch + shift)
        lamps.append(replace(lamp, position=position, power=round(lamp.power * stretch**2 * (1 + float(change)), 4)))
    return Scene(objects, replace(CAMERA, eye=eye), tuple(lamps))


def _rounded(point: np.ndarray) -> Point:
    x, y, z = (round(float(value), 4) for value in point)
    return x, y, z


def all_visible(scene: Scene, settings: SceneSettings) -> bool:
    """Whether every object is inside the picture, large enough in it, and not hidden by more than is allowed."""
    from procap.datasets.scenes.raytrace import visibility

    found = visibility(scene.view())
    fewest = SEEN_RAYS / settings.stretch**2
    return bool(np.all((found.seen >= fewest) & (found.seen >= (1 - settings.hidden) * found.whole) & ~found.cut))
