"""What holds of every scene, however hard: masks, the four conditions on the true procedure, captions, the shift."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.datasets.scenes.change import change_masks, moment
from procap.datasets.scenes.raytrace import render, visibility
from procap.datasets.scenes.scene import CAMERA, Scene, SceneSettings
from procap.datasets.scenes.solids import SHAPES, Lamp, View
from procap.datasets.scenes.story import Story, tell
from procap.evaluation.change_words import change_type
from tests.unit.test_scenes import meant

STILL = SceneSettings((3, 6), 0.0, 0.0, hidden=0.6, size_jitter=0.15, changes=(1, 3))
MOVING = replace(STILL, camera_jitter=0.5, light_jitter=0.3, turn=60.0)
SIDE = 32

few = settings(max_examples=12, deadline=None)
numbers = st.integers(0, 999)
times = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7])


def changed(story: Story) -> tuple[set[int], set[int]]:
    """Numbers of the changed objects before and after."""
    return tuple({getattr(c, end) for c in story.changes} - {None} for end in ("before", "after"))


def without(view: View, numbers: set[int]) -> View:
    """The objects of these numbers too small to be seen, the others numbered as they were."""
    return replace(view, solids=tuple(replace(s, radius=0.0) if i in numbers else s for i, s in enumerate(view.solids)))


def names(story: Story) -> tuple[np.ndarray, np.ndarray]:
    """Of each object before and after, the floor last: the same for one that is the same in both."""
    gone, come = changed(story)
    before = [100 + i if i in gone else i for i in range(len(story.before.objects))]
    kept = iter(i for i in before if i < 100)
    after = [200 + i if i in come else next(kept) for i in range(len(story.changed.objects))]
    return np.array([*before, -1]), np.array([*after, -1])


@few
@given(numbers)
def test_the_masks_are_the_differences_of_object_id_maps(number):
    story = tell(8, number, STILL)
    ends = [scene.view() for scene in (story.before, story.changed)]
    pictures = [render(view, SIDE) for view in ends]
    masks = change_masks(story.changes, *pictures)
    for mask, picture, view, numbers in zip(masks, pictures, ends, changed(story), strict=True):
        assert np.array_equal(mask, (picture.ids != render(without(view, numbers), SIDE).ids).any(axis=-1))
        assert np.array_equal(mask, np.isin(picture.ids, [*numbers]).any(axis=-1))
    before, after = (name[picture.ids] for name, picture in zip(names(story), pictures, strict=True))
    assert np.array_equal(masks.any(axis=0), (before != after).any(axis=-1))


@few
@given(numbers)
def test_the_procedure_ends_in_the_two_pictures(number):
    story = tell(8, number, MOVING)
    for t, scene in ((0.0, story.before), (1.0, story.changed)):
        drawn, end = render(moment(story.before, story.changed, story.changes, t), SIDE), render(scene.view(), SIDE)
        assert np.array_equal(drawn.rgb, end.rgb)


@few
@given(numbers, times)
def test_the_procedure_is_continuous(number, t):
    story = tell(8, number, MOVING)

    def at(when):
        return moment(story.before, story.changed, story.changes, when)

    def values(view):
        return np.array([[s.x, s.y, s.radius, s.rotation, *s.rgb, s.metal] for s in view.solids])

    way = np.abs(values(at(1.0)) - values(at(0.0)))
    start, picture = values(at(t)), render(at(t), SIDE).rgb.astype(int)
    steps = []
    for dt in (0.25, 0.01, 1e-5):
        assert (np.abs(values(at(t + dt)) - start) <= dt * way + 1e-12).all()
        assert math.dist(at(t + dt).camera.eye, at(t).camera.eye) <= 20 * dt
        steps.append(np.abs(render(at(t + dt), SIDE).rgb - picture).mean())
    assert steps[0] > steps[1] >= steps[2]
    assert steps[2] < 0.05


def test_camera_and_lamps_travel_evenly_and_the_camera_the_short_way_round():
    eyes = (-6.0, 1.0, 5.0), (-6.0, -1.5, 4.0)  # the angle jumps from pi to -pi between them
    before, after = (
        Scene((), replace(CAMERA, eye=eye), (Lamp((1.0 + n, 2.0 - n, 5.0), 1.0 + n, 10.0 + 8 * n),))
        for n, eye in enumerate(eyes)
    )
    for t in (0.25, 0.5, 0.75):
        view = moment(before, after, (), t)
        assert view.lamps == (Lamp((1 + t, 2 - t, 5.0), 1 + t, 10 + 8 * t),)
        assert max(math.dist(view.camera.eye, eye) for eye in eyes) < math.dist(*eyes)
        assert view.camera.eye[2] == 5 - t
        far, other = (math.hypot(*eye[:2]) for eye in eyes)
        assert math.hypot(*view.camera.eye[:2]) == pytest.approx((1 - t) * far + t * other), "around, not across"


@few
@given(numbers, times)
def test_what_the_captions_do_not_name_stays_as_it_was(number, t):
    story = tell(8, number, STILL)
    gone, _ = changed(story)
    whole = moment(story.before, story.changed, story.changes, t + 0.2)
    old = story.before.view()
    come = set(range(len(old.solids), len(whole.solids)))
    kept = [i for i in range(len(old.solids)) if i not in gone]
    assert [whole.solids[i] for i in kept] == [old.solids[i] for i in kept]
    assert all(whole.solids[i] != old.solids[i] for i in gone), "and what they name is on its way"
    assert all(whole.solids[i].radius > 0 for i in come)
    assert len(gone) + len(come) == len(story.changes)

    def dull(view):  # no shadows and no reflections, in which a change may be seen elsewhere
        return replace(view, lamps=(), solids=tuple(replace(solid, metal=0.0) for solid in view.solids))

    before, between = render(dull(old), SIDE), render(dull(whole), SIDE)
    away = ~np.isin(before.ids, [*gone]).any(axis=-1) & ~np.isin(between.ids, [*gone, *come]).any(axis=-1)
    assert away.mean() > 0.5
    assert np.array_equal(before.ids[away], between.ids[away])
    assert np.array_equal(before.rgb[away], between.rgb[away])


@few
@given(numbers)
def test_a_caption_tells_every_change_and_points_at_its_object(number):
    story = tell(8, number, MOVING)
    for sentence in story.captions:
        parts = sentence.split(" and ")
        assert [change_type(part) for part in parts] == [change.kind for change in story.changes]
        for part, change in zip(parts, story.changes, strict=True):
            scene, number = (story.changed, change.after) if change.before is None else (story.before, change.before)
            assert meant(part, scene.objects, scene.facing) == [number], sentence
            if change.kind in ("color", "material"):
                new = getattr(story.changed.objects[change.after], change.kind)
                assert new in part
                assert new != getattr(scene.objects[number], change.kind)
    kinds = {change.kind for change in story.changes}
    assert story.change_type == (kinds.pop() if len(kinds) == 1 else "unknown")


@few
@given(numbers)
def test_hard_scenes_keep_their_bounds(number):
    story = tell(8, number, MOVING)
    assert 1 <= len(story.changes) <= 3
    angles = []
    for scene in (story.before, story.changed, story.distractor):
        found = visibility(scene.view())
        assert (found.seen >= 0.4 * found.whole).all()
        assert not found.cut.any()
        assert all(0.85 <= thing.scale <= 1.15 for thing in scene.objects)
        angles.append(math.degrees(scene.facing))
    assert max(angles) - min(angles) <= 60 + 10, "ten for the jitter"
    for side in ("before", "after"):  # an added object may take the number that a dropped one had
        numbers_there = [getattr(change, side) for change in story.changes if getattr(change, side) is not None]
        assert len(numbers_there) == len(set(numbers_there))


def test_hard_scenes_are_hard():
    stories = [tell(8, number, MOVING) for number in range(20)]
    assert {len(story.changes) for story in stories} == {1, 2, 3}
    assert max(abs(math.degrees(s.before.facing - s.distractor.facing)) for s in stories) > 25
    assert np.ptp([thing.scale for story in stories for thing in story.before.objects]) > 0.2
    shares = [found.seen / found.whole for found in (visibility(story.before.view()) for story in stories)]
    assert min(share.min() for share in shares) < 0.7, "hidden more than easy scenes allow"


def test_the_shift_is_never_seen_in_the_other_scenes():
    usual = replace(MOVING, objects=(3, 4), changes=(1, 1), turn=30.0, palette="usual")
    shift = replace(usual, objects=(7, 7), aside=60.0, palette="swapped")
    seen = []
    for of in (usual, shift):
        scenes = [scene for n in range(15) for s in [tell(8, n, of)] for scene in (s.before, s.changed, s.distractor)]
        seen.append(
            (
                {len(scene.objects) for scene in scenes},
                {round(math.degrees(scene.facing)) for scene in scenes},
                {(o.shape, o.color) for scene in scenes for o in scene.objects if o.shape != "sphere"},
            )
        )
    (counts, angles, looks), (other_counts, other_angles, other_looks) = seen
    assert max(counts) < min(other_counts)
    assert max(map(abs, angles)) < 20 < 40 < min(map(abs, other_angles))
    assert min(other_angles) < 0 < max(other_angles), "to both sides"
    assert not looks & other_looks
    assert {color for _, color in looks} == {color for _, color in other_looks}, "every word is known"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wide_or_tall_picture_shows_the_square_one_in_its_middle(shape):
    view = tell(8, 1, STILL).before.view()
    view = replace(view, solids=tuple(replace(solid, shape=shape) for solid in view.solids))
    square, wide, tall = (render(view, size, 1).rgb.astype(int) for size in (32, (32, 48), (48, 32)))
    assert (wide.shape, tall.shape) == ((32, 48, 3), (48, 32, 3))
    for part in (wide[:, 8:40], tall[8:40]):
        assert (np.abs(part - square).max(axis=-1) <= 1).mean() > 0.99
