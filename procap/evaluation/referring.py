"""Whether a sentence points at what really changed, judged by the true scenes of rendered pairs: our formulation."""

from collections.abc import Iterator
from dataclasses import dataclass

from procap.datasets.pairs import NO_CHANGE
from procap.datasets.scenes.change import Change
from procap.datasets.scenes.language import RELATIONS, stands
from procap.datasets.scenes.scene import COLORS, MATERIALS, SIZES, Object, Scene
from procap.datasets.scenes.solids import SHAPES
from procap.datasets.true_procedure import TruePair
from procap.evaluation.scene_graph import Clause, clauses

PARTS = ("color", "material", "shape", "size", "relation", "becomes")
"""What a sentence may say of a changed object; the last is the new colour or material."""
_ATTRIBUTES = {"color": frozenset(COLORS), "material": frozenset(MATERIALS), "size": frozenset(SIZES)}


@dataclass(frozen=True)
class Referred:
    """How well a sentence points at what changed."""

    right: bool
    """What it names fits the changed objects and no others, and it leaves none of them out."""
    parts: dict[str, bool]
    """Of PARTS, those that it says of a changed object, and whether they are true."""


def judge(sentence: str, pair: TruePair) -> Referred:
    """Compare what a sentence says with a changed pair.

    A relation is what the renderer's language means by it: on that side of the landmark, as the camera sees it. An
    added object is looked up in the scene after, all others in the scene before.
    """
    mentions = [(clause, n) for clause in clauses(sentence) if clause.kind != NO_CHANGE for n in clause.subjects]
    found: set[Change] = set()
    right = bool(mentions)
    parts: dict[str, bool] = {}
    for clause, number in mentions:
        fits = [change for change in pair.changes if _denotes(clause, number, pair, change)]
        right &= bool(fits)
        found.update(fits)
        told = [dict(_parts(clause, number, pair, change)) for change in fits or pair.changes]
        nearest = max(told, key=lambda one: sum(one.values()))
        parts |= {name: true and parts.get(name, True) for name, true in nearest.items()}
    return Referred(right and found == set(pair.changes), {name: parts[name] for name in PARTS if name in parts})


def _place(pair: TruePair, change: Change) -> tuple[Scene, int]:
    """The scene in which a changed object is looked up, and its number there."""
    if change.before is not None:
        return pair.before, change.before
    assert change.after is not None
    return pair.after, change.after


def _denotes(clause: Clause, number: int, pair: TruePair, change: Change) -> bool:
    """Whether the thing ``number`` of a clause is this changed object, and can be no other one."""
    scene, place = _place(pair, change)
    return [n for n in range(len(scene.objects)) if _fits(clause, number, scene, n)] == [place]


def _fits(clause: Clause, number: int, scene: Scene, candidate: int) -> bool:
    own = all(true for _, true in _own(clause, number, scene.objects[candidate]))
    return own and all(true for _, true in _relations(clause, number, scene, candidate))


def _parts(clause: Clause, number: int, pair: TruePair, change: Change) -> Iterator[tuple[str, bool]]:
    scene, place = _place(pair, change)
    yield from ((name, true) for name, true in _own(clause, number, scene.objects[place]) if name)
    related = [true for _, true in _relations(clause, number, scene, place)]
    if related:
        yield "relation", all(related)
    if clause.becomes is not None and change.after is not None:
        after = pair.after.objects[change.after]
        yield "becomes", clause.becomes in (after.color, after.material)


def _own(clause: Clause, number: int, thing: Object) -> Iterator[tuple[str, bool]]:
    """(part, whether it is true of an object) for everything that is said of a thing alone; "" where it is no part."""
    said = clause.things[number]
    if said.noun in SHAPES:
        yield "shape", said.noun == thing.shape
    elif said.noun != "object":
        yield "", False
    for attribute in sorted(said.attributes):
        part = next((name for name, values in _ATTRIBUTES.items() if attribute in values), "")
        yield part, bool(part) and attribute == getattr(thing, part)


def _relations(clause: Clause, number: int, scene: Scene, candidate: int) -> Iterator[tuple[str, bool]]:
    for one, relation, other in clause.relations:
        if one == number:
            landmarks = [
                n
                for n in range(len(scene.objects))
                if n != candidate and all(true for _, true in _own(clause, other, scene.objects[n]))
            ]
            thing = scene.objects[candidate]
            yield relation, relation in RELATIONS and any(
                stands(thing, relation, scene.objects[n], scene.facing, least=0.0) for n in landmarks
            )
