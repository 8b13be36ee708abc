"""Sentences about a change: which object (told so that only one fits) and what became of it."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from procap.datasets.scenes.change import Change
from procap.datasets.scenes.scene import COLORS, MATERIALS, SIZES, Object, Scene
from procap.datasets.scenes.solids import SHAPES

ATTRIBUTES = ("color", "material", "size")
"""That a noun may carry, the most telling first; the noun is the shape."""

RELATIONS = {"left of": (0, -1), "right of": (0, 1), "in front of": (1, -1), "behind": (1, 1)}
"""Across (0) or away from the camera (1), and on which side."""
CLEAR = 0.5
"""An object is 'left of' another by at least this much, in scene units."""

CHANGED = {
    "color": (
        "{thing} turned {color}",
        "{thing} is {color} now",
        "{thing} was painted {color}",
        "the color of {thing} is now {color}",
        "{thing} changed its color to {color}",
    ),
    "material": (
        "{thing} is now made of {material}",
        "{thing} is {material} now",
        "the material of {thing} is now {material}",
        "{thing} was remade in {material}",
        "{thing} has a {material} surface now",
    ),
    "add": (
        "a {new} has appeared",
        "a {new} was added",
        "there is a new {new}",
        "a {new} showed up",
        "someone added a {new}",
    ),
    "drop": (
        "{thing} is gone",
        "{thing} was removed",
        "{thing} disappeared",
        "{thing} was taken away",
        "{thing} is missing",
    ),
    "move": (
        "{thing} moved",
        "{thing} is in a different place",
        "{thing} was moved to another spot",
        "{thing} has a new position",
        "someone moved {thing}",
    ),
}
UNCHANGED = (
    "nothing changed",
    "the two pictures show the same scene",
    "there is no difference",
    "everything stayed the same",
    "no object is different",
    "both pictures show the same objects",
)
PARAPHRASES = 5


@dataclass(frozen=True)
class Reference:
    """A way to point at one object: some of its attributes, and perhaps where it stands."""

    attributes: tuple[str, ...]
    """Of ATTRIBUTES; the shape is always told."""
    relation: str | None = None
    landmark: "Reference | None" = None
    landmark_number: int | None = None

    def words(self, number: int, objects: tuple[Object, ...]) -> str:
        """Without an article."""
        text = noun(objects[number], self.attributes)
        if self.relation is None or self.landmark is None or self.landmark_number is None:
            return text
        return f"{text} {self.relation} the {self.landmark.words(self.landmark_number, objects)}"

    def fits(self, number: int, candidate: int, objects: tuple[Object, ...], facing: float) -> bool:
        """Whether what is said of ``number`` is also true of ``candidate``."""
        if not alike(objects[number], objects[candidate], self.attributes):
            return False
        if self.relation is None or self.landmark_number is None:
            return True
        return stands(objects[candidate], self.relation, objects[self.landmark_number], facing, least=0.0)


def noun(thing: Object, attributes: tuple[str, ...]) -> str:
    """Such as 'small red cube'."""
    said = [getattr(thing, name) for name in ("size", "color", "material") if name in attributes]
    return " ".join([*said, thing.shape])


def alike(one: Object, other: Object, attributes: tuple[str, ...]) -> bool:
    """Whether two objects share their shape and these attributes."""
    return all(getattr(one, name) == getattr(other, name) for name in (*attributes, "shape"))


def stands(thing: Object, relation: str, landmark: Object, facing: float = 0.0, least: float = CLEAR) -> bool:
    """Whether an object is on this side of another, by more than ``least``, for a camera that looks to ``facing``."""
    axis, side = RELATIONS[relation]
    x, y = thing.x - landmark.x, thing.y - landmark.y
    cos, sin = math.cos(facing), math.sin(facing)
    return side * (y * cos - x * sin if axis else x * cos + y * sin) > least


def references(number: int, objects: tuple[Object, ...]) -> Iterator[Reference]:
    """Every way to tell one object from all others, shortest first."""
    for length in range(len(ATTRIBUTES) + 1):
        for attributes in combinations(ATTRIBUTES, length):
            if resolves(Reference(attributes), number, objects):
                yield Reference(attributes)


def refer(number: int, objects: tuple[Object, ...], facing: float = 0.0) -> tuple[Reference, ...]:
    """Ways to point at one object, shortest first; empty where there is none.

    A landmark is only named where attributes do not suffice, and then attributes alone tell the landmark.
    """
    plain = tuple(references(number, objects))
    if plain:
        return plain
    found = []
    for landmark in range(len(objects)):
        short = next(references(landmark, objects), None) if landmark != number else None
        for relation in RELATIONS if short else ():
            reference = Reference(("color",), relation, short, landmark)
            clear = stands(objects[number], relation, objects[landmark], facing)
            if clear and resolves(reference, number, objects, facing):
                found.append(reference)
    return tuple(found)


def resolves(reference: Reference, number: int, objects: tuple[Object, ...], facing: float = 0.0) -> bool:
    """Whether a reference fits its object and no other."""
    candidates = [i for i in range(len(objects)) if i != reference.landmark_number]
    return [i for i in candidates if reference.fits(number, i, objects, facing)] == [number]


def captions(changes: Sequence[Change], before: Scene, after: Scene, rng: np.random.Generator) -> tuple[str, ...]:
    """Sentences that tell all changes, all different; empty where an object cannot be told from the others.

    A dropped, moved, recoloured or remade object is called what it was before, an added one what it is; likewise
    where it stands, as the camera of that picture sees it.
    """
    told = [_sentences(change, before, after, rng) for change in changes]
    return tuple(" and ".join(parts) for parts in zip(*told, strict=True)) if all(told) else ()


def _sentences(change: Change, before: Scene, after: Scene, rng: np.random.Generator) -> tuple[str, ...]:
    scene, number = (before, change.before) if change.before is not None else (after, change.after)
    assert number is not None
    ways = refer(number, scene.objects, scene.facing)
    if not ways:
        return ()
    new = scene.objects[number] if change.after is None else after.objects[change.after]
    sentences = []
    for i in rng.permutation(len(CHANGED[change.kind])):
        way = ways[int(rng.integers(min(3, len(ways))))]
        words = way.words(number, scene.objects)
        sentences.append(
            CHANGED[change.kind][i].format(
                thing=f"the {words}",
                new=words,
                color=new.color,
                material=new.material,
            )
        )
    return tuple(sentences[:PARAPHRASES])


def no_change_captions(rng: np.random.Generator) -> tuple[str, ...]:
    """Sentences for a pair that differs in camera and light only, all different."""
    return tuple(UNCHANGED[i] for i in rng.permutation(len(UNCHANGED))[:PARAPHRASES])


def _one_of(texts: Iterable[str]) -> str:
    return f"(?:{'|'.join(texts)})"


def _grammar() -> re.Pattern[str]:
    """Every sentence that ``captions`` and ``no_change_captions`` can write, of whatever scene."""
    size, color, material, shape = _one_of(SIZES), _one_of(COLORS), _one_of(MATERIALS), _one_of(SHAPES)
    plain = f"(?:{size} )?(?:{color} )?(?:{material} )?{shape}"
    told = f"(?:{plain}|{color} {shape} {_one_of(RELATIONS)} the {plain})"
    parts = {"thing": f"the {told}", "new": told, "color": color, "material": material}
    changed = _one_of(way.format(**parts) for ways in CHANGED.values() for way in ways)
    return re.compile(f"{changed}(?: and {changed})*|{_one_of(UNCHANGED)}")


_SENTENCES = _grammar()


def grammatical(sentence: str) -> bool:
    """Whether it is a sentence of this language, true or not."""
    return _SENTENCES.fullmatch(sentence) is not None
