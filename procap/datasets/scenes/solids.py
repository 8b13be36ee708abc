"""What the ray tracer draws: solids on a floor, a camera and lamps, in scene units.

The floor is the plane z = 0; x grows to the right and y away from the usual camera.
"""

from dataclasses import dataclass

Point = tuple[float, float, float]

SHAPES = ("sphere", "cube", "cylinder")


@dataclass(frozen=True)
class Solid:
    """One body standing on the floor."""

    shape: str
    """One of SHAPES."""
    x: float
    y: float
    radius: float
    """About half of its width; 0 draws nothing."""
    rotation: float
    """Around the vertical, in radians."""
    rgb: Point
    """Surface colour, sRGB, 0..1."""
    metal: float
    """0 is dull rubber, 1 a mirror tinted in the surface colour."""

    @property
    def height(self) -> float:
        """Half of how tall it is; cubes and cylinders are as tall as wide, and smaller than a sphere."""
        return self.radius * {"sphere": 1.0, "cube": 0.8, "cylinder": 0.85}[self.shape]

    @property
    def footprint(self) -> float:
        """Radius of the circle on the floor that it stays within at any rotation."""
        return self.height * (2**0.5 if self.shape == "cube" else 1.0)


@dataclass(frozen=True)
class Camera:
    eye: Point
    target: Point
    spread: float
    """Tangent of half the opening angle of the picture's shorter side."""


@dataclass(frozen=True)
class Lamp:
    """A round panel that faces down; a larger radius makes softer shadows."""

    position: Point
    radius: float
    power: float


@dataclass(frozen=True)
class View:
    """Everything a picture follows from, but for its size."""

    solids: tuple[Solid, ...]
    camera: Camera
    lamps: tuple[Lamp, ...]
