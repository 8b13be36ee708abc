"""Scenes, their changes and their sentences: each property is checked on what a reader of the data would see."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from procap.datasets.rendered import CorpusSettings, render_scene, split_of
from procap.datasets.scenes import change
from procap.datasets.scenes.change import CHANGES, kind_of, procedure
from procap.datasets.scenes.language import CLEAR, RELATIONS, UNCHANGED, grammatical, refer, stands
from procap.datasets.scenes.raytrace import render
from procap.datasets.scenes.scene import (
    CAMERA,
    COLORS,
    LAMPS,
    MATERIALS,
    REACH,
    SIZES,
    Object,
    SceneSettings,
    all_visible,
    apart,
    jittered,
    place,
    sample_objects,
)
from procap.datasets.scenes.solids import SHAPES
from procap.datasets.scenes.story import tell
from procap.errors import BadInput

STILL = SceneSettings((3, 4), 0.0, 0.0)
CROWDED = SceneSettings((4, 6), 0.5, 0.3)
VALUES = {"size": tuple(SIZES), "color": tuple(COLORS), "material": MATERIALS, "shape": SHAPES}


@pytest.fixture(scope="module")
def stories():
    return [tell(3, number, STILL) for number in range(60)] + [tell(3, number, CROWDED) for number in range(25)]


def test_a_scene_depends_on_seed_and_number_alone(stories):
    assert tell(3, 17, STILL) == stories[17]
    assert tell(4, 17, STILL) != stories[17]
    assert stories[16].before != stories[17].before


def test_the_five_changes_are_balanced_and_so_are_the_splits():
    shares = (0.8, 0.1, 0.1)
    kinds = [kind_of(1, number) for number in range(500)]
    assert Counter(kinds) == dict.fromkeys(CHANGES, 100)
    assert kinds[:5] != kinds[5:10], "the order differs from turn to turn"
    splits = Counter((kind, split_of(number, kind, shares)) for number, kind in enumerate(kinds))
    for kind in CHANGES:
        assert [splits[kind, split] for split in ("train", "val", "test")] == pytest.approx([80, 10, 10], abs=2)
    assert Counter(split_of(n, kinds[n], shares) for n in range(10)) == {"train": 8, "val": 1, "test": 1}


def test_objects_stand_apart_and_all_can_be_seen(stories):
    for story in stories:
        settings = STILL if story.before.camera == stories[0].before.camera else CROWDED
        for scene in (story.before, story.changed, story.distractor):
            assert all(apart(a, b) for i, a in enumerate(scene.objects) for b in scene.objects[:i])
            assert all_visible(scene, settings)
        assert settings.objects[0] <= len(story.before.objects) <= settings.objects[1]
    counts = [[len(story.before.objects) for story in part] for part in (stories[:60], stories[60:])]
    assert [{min(of), max(of)} for of in counts] == [set(STILL.objects), set(CROWDED.objects)]
    assert len({thing.rotation for story in stories for thing in story.before.objects}) > 200, "turned at random"


def test_exactly_the_named_thing_changes(stories):
    for story in stories:
        before, after, change = story.before.objects, story.changed.objects, story.changes[0]
        assert story.distractor.objects == before
        rest = lambda objects, number: tuple(o for i, o in enumerate(objects) if i != number)  # noqa: E731
        assert rest(before, change.before) == rest(after, change.after)
        if change.kind == "add":
            assert (change.before, len(after)) == (None, len(before) + 1)
        elif change.kind == "drop":
            assert (change.after, len(after)) == (None, len(before) - 1)
        else:
            old, new = before[change.before], after[change.after]
            fields = {"color": {"color"}, "material": {"material"}, "move": {"x", "y"}}[change.kind]
            assert {name for name in vars(old) if getattr(old, name) != getattr(new, name)} == fields
            if change.kind == "move":
                assert np.hypot(old.x - new.x, old.y - new.y) >= 2 * SIZES[old.size]


def test_jitter_moves_camera_and_lamps_within_its_bounds_and_zero_leaves_them(stories):
    for story in stories:
        scenes = (story.before, story.changed, story.distractor)
        eyes = np.array([scene.camera.eye for scene in scenes])
        powers = np.array([[lamp.power for lamp in scene.lamps] for scene in scenes])
        places = np.ptp([[lamp.position for lamp in scene.lamps] for scene in scenes], axis=0).max()
        spread = np.ptp(eyes, axis=0).max(), (powers.max(0) / powers.min(0)).max() - 1
        if len({scene.camera for scene in scenes}) == 1:
            assert (*spread, places) == (0, 0, 0)
        else:
            assert 0 < places <= CROWDED.light_jitter + 1e-3
            assert 0 < spread[0] <= CROWDED.camera_jitter + 1e-3
            assert 0 < spread[1] <= 1.15 / 0.85 - 1 + 1e-3
    assert stories[0].before.camera == stories[0].distractor.camera
    assert stories[-1].before.camera != stories[-1].distractor.camera


def said(words: list[str]) -> dict[str, str]:
    """The attributes that some words name."""
    return {name: word for word in words for name, values in VALUES.items() if word in values}


def meant(sentence: str, objects: tuple, facing: float = 0.0) -> list[int]:
    """Numbers of the objects that the first noun phrase of a sentence may mean."""
    words = sentence.split()
    first = next(i for i, word in enumerate(words) if word in SHAPES)
    start = next(i for i in range(first, -1, -1) if i == 0 or words[i - 1] in ("a", "the", "new"))
    wanted = said(words[start : first + 1])
    fits = [i for i, o in enumerate(objects) if all(getattr(o, name) == word for name, word in wanted.items())]
    rest = " ".join(words[first + 1 :])
    relation = next((name for name in RELATIONS if rest.startswith(f"{name} the ")), None)
    if relation is None:
        return fits
    (landmark,) = meant(rest.removeprefix(relation).strip(), objects, facing)
    return [i for i in fits if i != landmark and stands(objects[i], relation, objects[landmark], facing, least=0.0)]


def test_every_sentence_points_at_the_changed_object_and_no_other(stories):
    for story in stories:
        change = story.changes[0]
        scene, number = (story.before, change.before) if change.kind != "add" else (story.changed, change.after)
        for sentence in story.captions:
            assert meant(sentence, scene.objects, scene.facing) == [number], sentence
        new = story.changed.objects[change.after] if change.after is not None else None
        if change.kind in ("color", "material"):
            told = {sentence.removesuffix(" now").removesuffix(" surface").split()[-1] for sentence in story.captions}
            assert told == {getattr(new, change.kind)}


def test_an_object_is_called_by_several_names(stories):
    names = [{" ".join(w for w in sentence.split() if said([w])) for sentence in s.captions} for s in stories]
    assert sum(len(each) > 1 for each in names) > len(names) / 3


def test_changes_are_of_different_objects_in_places_of_their_own_and_no_move_in_disguise(monkeypatch):
    done = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        objects = sample_objects(STILL, rng) or ()
        if not objects:
            continue
        twin = replace(objects[0], x=0.0, y=0.0)
        monkeypatch.setattr(change, "sample_attributes", lambda *_, twin=twin: twin)
        changed = change.apply_changes(("move", "add", "drop"), objects, STILL, rng)
        if changed is None:
            continue
        after, (move, add, drop) = changed
        assert move.before != drop.before
        assert drop.before != 0, "dropped here and added there would be a move"
        others = [thing for number, thing in enumerate(objects) if number != move.before]
        assert all(apart(after[move.after], other) for other in others), "nothing stands where another stood"
        assert all(apart(after[add.after], other) for other in (*objects, *after[: add.after]))
        done += 1
    assert done > 30


def test_twins_are_told_apart_by_where_they_stand_or_not_at_all():
    draw = np.random.default_rng(0)
    told = 0
    for _ in range(300):
        objects = sample_objects(CROWDED, draw) or ()
        if len(objects) < 3:
            continue
        twin = replace(objects[0], x=objects[1].x, y=objects[1].y)
        objects = (objects[0], twin, *objects[2:])
        for way in refer(0, objects):
            sentence = f"the {way.words(0, objects)} moved"
            assert stands(objects[0], way.relation, objects[way.landmark_number], least=CLEAR), "by a clear margin"
            assert meant(sentence, objects) == [0], sentence
            assert any(f"{relation} the" in sentence for relation in RELATIONS)
            told += 1
    assert told > 100


def test_what_is_written_is_grammatical_and_a_jumble_of_it_is_not(stories):
    written = {text for story in stories for text in story.captions} | set(UNCHANGED)
    assert all(map(grammatical, written))
    for text in written:
        words = text.split()
        assert not grammatical(" ".join(words[:-1]))
        assert not grammatical(" ".join([*words, words[-1]]))
        assert not grammatical(f"{text} and")
    assert grammatical("the small red metal cube was removed and a red sphere behind the cube has appeared")
    for wrong in (
        "", "the cyan metal cylinder is gray gray", "the red small cube moved", "a cube turned red",
        "the small cube behind the sphere moved", "nothing changed and the cube moved",
    ):  # fmt: skip
        assert not grammatical(wrong)


def test_sentences_are_plain_short_different_and_of_few_words(stories):
    words = set()
    for story in stories:
        for sentences in (story.captions, story.no_change_captions):
            assert 4 <= len(sentences) == len(set(sentences)) <= 6
            for sentence in sentences:
                assert all(word.isalpha() and word.islower() for word in sentence.split())
                assert len(sentence.split()) <= 18
                words.update(sentence.split())
    assert len(words) < 90


@pytest.mark.parametrize("kind", CHANGES)
def test_without_jitter_the_picture_changes_where_the_mask_is(kind):
    settings = CorpusSettings(3, 100, 64, 2, (0.8, 0.1, 0.1), STILL)
    exact = 0
    for number in (n for n in range(40) if kind_of(3, n) == kind):
        scene = render_scene(settings, number)
        assert np.array_equal(scene.before, scene.distractor)
        difference = np.abs(scene.before.astype(int) - scene.changed.astype(int)).sum(axis=-1)
        assert 20 < scene.mask.sum() < 0.4 * scene.mask.size
        assert difference[scene.mask].mean() > 20
        assert difference[scene.mask].mean() > 5 * difference[~scene.mask].mean(), "the rest is shadow and reflection"
        others = [o for i, o in enumerate(scene.story.before.objects) if i != scene.story.changes[0].before]
        if kind in ("color", "material") and all(o.material == "rubber" for o in others):
            assert not difference[~scene.mask].any()
            exact += 1
    assert exact or kind not in ("color", "material")


@pytest.mark.parametrize("kind", CHANGES)
def test_the_true_procedure_leads_step_by_step_from_before_to_after(kind, stories):
    story = next(s for s in stories if s.changes[0].kind == kind and len(s.before.objects) == 3)
    frames = procedure(story.before, story.changed, story.changes, 7)
    assert len(frames) == 7
    pictures = [render(view, 48).rgb.astype(int) for view in (story.before.view(), *frames, story.changed.view())]
    steps = [np.abs(a - b).sum() for a, b in itertools.pairwise(pictures)]
    assert all(steps), "something happens in every step"
    if kind != "move":  # a sliding object uncovers as much as it covers
        to_end = [np.abs(picture - pictures[-1]).sum() for picture in pictures]
        from_start = [np.abs(picture - pictures[0]).sum() for picture in pictures]
        assert to_end == sorted(to_end, reverse=True)
        assert from_start == sorted(from_start)
    else:
        halfway = frames[3].solids[story.changes[0].before]
        old, new = story.before.objects[story.changes[0].before], story.changed.objects[story.changes[0].after]
        assert (halfway.x, halfway.y) == pytest.approx(((old.x + new.x) / 2, (old.y + new.y) / 2))


def test_the_procedure_of_a_distractor_is_the_camera_s_way():
    story = tell(3, 2, CROWDED)
    (middle,) = procedure(story.before, story.distractor, (), 1)
    assert middle.solids == story.before.view().solids
    x, y, z = (np.array(end) for end in zip(story.before.camera.eye, story.distractor.camera.eye, strict=True))
    assert middle.camera.eye[2] == pytest.approx(z.mean())
    assert np.hypot(*middle.camera.eye[:2]) == pytest.approx(np.hypot(x, y).mean())
    assert np.arctan2(middle.camera.eye[1], middle.camera.eye[0]) == pytest.approx(np.arctan2(y, x).mean())


def test_a_relation_is_judged_as_the_camera_sees_it():
    thing = tell(3, 0, STILL).before.objects[0]
    left, front = replace(thing, x=-1.0, y=0.0), replace(thing, x=0.0, y=-1.0)
    middle = replace(thing, x=0.0, y=0.0)
    pictures = {name: render(replace(tell(3, 0, STILL).before, objects=(o,)).view(), 32, 1) for name, o in
                (("left", left), ("front", front), ("middle", middle))}  # fmt: skip
    centre = {name: np.argwhere(picture.mask(0)).mean(axis=0) for name, picture in pictures.items()}
    assert stands(left, "left of", middle)
    assert centre["left"][1] < centre["middle"][1]
    assert stands(front, "in front of", middle)
    assert centre["front"][0] > centre["middle"][0]


@pytest.mark.parametrize("aside", [60.0, -90.0])
def test_left_and_behind_are_what_a_turned_camera_sees(aside):
    thing = Object("sphere", "small", "red", "rubber", 0.0, 0.0, 0.0)
    things = [replace(thing, x=x, y=y) for x, y in ((-1.2, -0.9), (1.0, -1.1), (0.9, 1.2), (-1.1, 0.2))]
    scene = jittered(tuple(things), STILL, np.random.default_rng(0), aside)
    picture = render(scene.view(), 64, 1)
    centres = [np.argwhere(picture.mask(number)).mean(axis=0) for number in range(len(things))]
    told = 0
    for (one, (row, column)), (other, (other_row, other_column)) in itertools.permutations(
        zip(things, centres, strict=True), 2
    ):
        for relation, seen in (("left of", column < other_column), ("in front of", row > other_row)):
            if stands(one, relation, other, scene.facing):
                assert seen, relation
                told += 1
    assert told >= 8


def test_crowded_scenes_get_more_room():
    settings = replace(STILL, objects=(3, 16), light_jitter=0.0)
    assert (STILL.stretch, settings.stretch) == (1, 2)
    scene = jittered((), settings, np.random.default_rng(0))
    assert scene.camera.eye == pytest.approx([2 * value for value in CAMERA.eye])
    for lamp, usual in zip(scene.lamps, LAMPS, strict=True):
        assert lamp.position == pytest.approx([2 * value for value in usual.position])
        assert lamp.power == pytest.approx(4 * usual.power), "as bright as nearby"
    spots = [place(Object("cube", "small", "red", "metal", 0.0, 0.0, 0.0), (), settings, rng) for rng in map(
        np.random.default_rng, range(50))]  # fmt: skip
    assert REACH < max(abs(spot.x) for spot in spots) <= 2 * REACH


def test_too_many_objects_are_refused_with_advice(monkeypatch):
    monkeypatch.setattr("procap.datasets.scenes.story.ATTEMPTS", 1)
    with pytest.raises(BadInput, match=r"prepare\.scenes\.objects"):
        tell(1, 0, SceneSettings((40, 40), 0.0, 0.0))
