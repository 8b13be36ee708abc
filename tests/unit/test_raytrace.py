"""The ray tracer against naive numpy, which marches along a ray and asks each shape whether it is inside."""

import hashlib
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from procap.datasets.scenes import raytrace
from procap.datasets.scenes.solids import SHAPES, Camera, Lamp, Solid, View

ROOT = Path(__file__).parents[2]
CAMERA = Camera((0.0, -6.6, 5.0), (0.0, 0.0, 0.35), 0.335)
KEY = Lamp((3.5, -3.5, 6.5), 0.9, 50.0)
RED = (0.7, 0.1, 0.1)


def solid(shape: str, x: float = 0.0, y: float = 0.0, metal: float = 0.0) -> Solid:
    return Solid(shape, x, y, 0.8, 0.6, RED, metal)


def view(*solids: Solid, lamp: Lamp = KEY) -> View:
    return View(solids, CAMERA, (lamp,))


THREE = view(solid("sphere", -1.2), solid("cube", 0.3, 0.8, metal=1.0), solid("cylinder", 1.4, -0.6))


def inside(points: np.ndarray, body: Solid) -> np.ndarray:
    """Whether points are in a body, by its definition."""
    x, y, z = points[..., 0] - body.x, points[..., 1] - body.y, points[..., 2] - body.height
    if body.shape == "sphere":
        return x**2 + y**2 + z**2 < body.height**2
    if body.shape == "cylinder":
        return (x**2 + y**2 < body.height**2) & (abs(z) < body.height)
    along = math.cos(body.rotation) * x + math.sin(body.rotation) * y
    across = math.cos(body.rotation) * y - math.sin(body.rotation) * x
    return np.maximum(np.maximum(abs(along), abs(across)), abs(z)) < body.height


@pytest.mark.parametrize("shape", SHAPES)
def test_hits_and_normals_agree_with_marching_along_the_ray(shape):
    body = solid(shape, 0.2, -0.1)
    rows = raytrace._solids(view(body))
    draw = np.random.default_rng(0)
    steps = np.arange(0, 8, 2e-3)
    hits = disagreements = 0
    for _ in range(300):
        start = draw.normal(size=3)
        start *= draw.uniform(2.5, 3.5) / np.linalg.norm(start)
        aim = np.array([0.2, -0.1, body.height]) + draw.uniform(-0.9, 0.9, 3) - start
        aim /= np.linalg.norm(aim)
        t = raytrace._distance(*start, *aim, rows, 0)
        within = inside(start + steps[:, None] * aim, body)
        if within.any() != (t < raytrace.FAR):
            disagreements += 1  # a graze shorter than a step
        elif within.any():
            hits += 1
            assert t == pytest.approx(steps[within.argmax()], abs=3e-3)
            point = start + t * aim
            normal = np.array(raytrace._normal(*point, rows[0]))
            assert np.linalg.norm(normal) == pytest.approx(1)
            assert inside(point - 1e-3 * normal, body)
            assert not inside(point + 1e-3 * normal, body)
    assert hits > 100
    assert disagreements <= 3


def test_the_floor_is_as_bright_as_the_formula_says_and_dark_where_a_body_hides_the_lamp():
    lamp = Lamp((3.5, -3.5, 6.5), 0.0, 50.0)
    body = solid("cube")
    size = 48
    picture = raytrace.render(view(body, lamp=lamp), size, 1)
    eye, forward, right, up = raytrace._camera(view(body))
    in_shadow = 0
    for row in range(2, size, 3):
        for column in range(1, size, 3):
            if picture.ids[row, column, 0] != raytrace.FLOOR:
                continue
            aim = forward + right * (2 * (column + 0.5) / size - 1) - up * (2 * (row + 0.5) / size - 1)
            point = eye - aim * eye[2] / aim[2]
            to_lamp = np.array(lamp.position) - point
            way = point + np.linspace(0.001, 1, 4000)[:, None] * to_lamp
            dark = inside(way, body).any()
            in_shadow += dark
            square = to_lamp @ to_lamp
            light = raytrace.AMBIENT + (not dark) * lamp.power * to_lamp[2] / square**1.5
            assert picture.rgb[row, column, 0] == pytest.approx(255 * (raytrace.FLOOR_GRAY * light) ** (1 / 2.2), abs=2)
    assert in_shadow > 3


def test_a_wide_lamp_makes_a_soft_shadow_and_a_point_makes_a_hard_one():
    def shades(radius):
        picture = raytrace.render(view(solid("cube"), lamp=Lamp(KEY.position, radius, KEY.power)), 64, 1)
        jumps = np.abs(np.diff(picture.rgb[..., 0].astype(int), axis=1))
        floor = (picture.ids[:, 1:, 0] == raytrace.FLOOR) & (picture.ids[:, :-1, 0] == raytrace.FLOOR)
        return jumps[floor].max()

    assert shades(1.5) < 0.8 * shades(0.0)


def test_ids_name_the_body_in_front_and_agree_with_the_counts():
    near, far = solid("sphere", 0.0, -1.2), solid("sphere", 0.0, 0.9)
    scene = view(far, near)
    picture, counts = raytrace.render(scene, 48, 1), raytrace.visibility(scene, 48)
    assert [picture.mask(i).sum() for i in range(2)] == counts.seen.tolist()
    assert counts.seen[1] == counts.whole[1], "nothing hides the near one"
    assert 0 < counts.seen[0] < counts.whole[0], "the near one hides part of the far one"
    assert counts.whole[0] == raytrace.visibility(view(far), 48).seen[0]
    assert not counts.cut.any()
    assert raytrace.visibility(view(solid("sphere", 2.6)), 48).cut.all()


def test_metal_mirrors_its_neighbour_and_rubber_does_not():
    def beside(metal, rgb):
        neighbour = Solid("cube", 1.3, -0.4, 0.8, 0.0, rgb, 0.0)
        picture = raytrace.render(view(solid("sphere", metal=metal), neighbour), 64, 1)
        return picture.rgb[picture.mask(0)].astype(int)

    blue, yellow = (0.1, 0.1, 0.9), (1.0, 0.9, 0.1)
    assert np.abs(beside(1.0, blue) - beside(1.0, yellow)).max() > 30
    assert np.array_equal(beside(0.0, blue), beside(0.0, yellow))


def test_a_body_of_no_size_is_not_drawn():
    gone = Solid("cube", 0.3, 0.2, 0.0, 0.0, RED, 1.0)
    assert np.array_equal(raytrace.render(view(gone), 32).rgb, raytrace.render(view(), 32).rgb)


def test_threads_draw_the_same_bytes():
    alone = raytrace.render(THREE, 64).rgb
    with ThreadPoolExecutor(4) as pool:
        assert all(
            np.array_equal(picture.rgb, alone) for picture in pool.map(lambda _: raytrace.render(THREE, 64), range(8))
        )


def test_a_later_process_loads_the_compiled_kernels_and_draws_the_same_bytes():
    code = (
        "from procap.datasets.scenes import raytrace as r; from procap.datasets.scenes.solids import *; import hashlib;"
        f"v = {THREE!r};"
        "print(hashlib.sha256(r.render(v, 64).rgb.tobytes()).hexdigest(), sum(r._render.stats.cache_hits.values()))"
    )
    here = raytrace.render(THREE, 64).rgb
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hashlib.sha256(here.tobytes()).hexdigest(), "1"]
