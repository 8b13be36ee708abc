"""A small ray tracer: analytic spheres, cubes and cylinders on a floor, soft shadows, one mirror reflection.

Every ray is fixed by its pixel (no noise), so equal views give equal bytes. Kernels are compiled once and kept in
numba's cache; they release the interpreter lock, so threads render in parallel. The reflection is a second call and
not a recursion: a self-recursive kernel cannot be loaded back from the cache. All kernels stay in this
file, because the cache only notices changes of the file that a kernel stands in.
"""

import math
from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from jaxtyping import Int, UInt8
from numba import njit

from procap.datasets.scenes.solids import SHAPES, View

FAR = 1e9
NEAR = 1e-4
FLOOR = -1
SPHERE, CUBE, CYLINDER = range(len(SHAPES))
KIND, X, Y, HALF, COS, SIN, RED, GREEN, BLUE, METAL, BOUND, COLUMNS = range(12)
LAMP_X, LAMP_Y, LAMP_Z, LAMP_RADIUS, LAMP_POWER = range(5)

FLOOR_GRAY = 0.30
AMBIENT = 0.22
DARK_ROOM = 0.05
EDGE = 0.90
"""Where an edge begins, as a share of the way from a solid's middle."""
SHADOW_RAYS = 3
"""To each lamp from each ray of a pixel."""


@dataclass(frozen=True)
class Picture:
    rgb: UInt8[np.ndarray, "h w 3"]
    ids: Int[np.ndarray, "h w rays"]
    """Number of the solid that each ray of a pixel met, FLOOR for none."""

    def mask(self, number: int) -> np.ndarray:
        """True where any part of the pixel shows this solid."""
        return (self.ids == number).any(axis=-1)


@dataclass(frozen=True)
class Visibility:
    """Of every solid, in order, on a coarse grid of rays."""

    seen: np.ndarray
    """Rays that meet it first."""
    whole: np.ndarray
    """Rays that would meet it if it stood alone."""
    cut: np.ndarray
    """True where the picture's edge cuts it."""


def render(view: View, size: int | tuple[int, int], samples: int = 2) -> Picture:
    """Draw a picture with ``samples`` x ``samples`` rays per pixel; ``size`` is its side, or (height, width).

    The camera's opening angle is that of the shorter side; the longer one shows more.
    """
    height, width = (size, size) if isinstance(size, int) else size
    camera = _camera(view)
    camera[2] *= width / min(height, width)
    camera[3] *= height / min(height, width)
    rgb, ids = _render(_solids(view), camera, _lamps(view), _disc(samples * samples), height, width, samples)
    return Picture(rgb, ids)


def visibility(view: View, size: int = 48) -> Visibility:
    """Count how much of each solid can be seen, with one ray per cell of a ``size`` x ``size`` grid."""
    seen, whole, cut = _count(_solids(view), _camera(view), size)
    return Visibility(seen, whole, cut)


def _solids(view: View) -> np.ndarray:
    rows = np.zeros((len(view.solids), COLUMNS))
    for row, solid in zip(rows, view.solids, strict=True):
        kind = SHAPES.index(solid.shape)
        stretch = (1.0, math.sqrt(3), math.sqrt(2))[kind]
        row[[KIND, X, Y, HALF]] = kind, solid.x, solid.y, max(solid.height, 1e-6)
        row[[COS, SIN, METAL]] = math.cos(solid.rotation), math.sin(solid.rotation), solid.metal
        row[[RED, GREEN, BLUE]] = np.asarray(solid.rgb) ** 2.2
        row[BOUND] = (row[HALF] * stretch) ** 2
    return rows


def _camera(view: View) -> np.ndarray:
    """Rows: eye, forward, right, up; right and up reach to the picture's edge at distance 1."""
    eye, target = np.asarray(view.camera.eye, float), np.asarray(view.camera.target, float)
    forward = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    return np.stack([eye, forward, right * view.camera.spread, up * view.camera.spread])


def _lamps(view: View) -> np.ndarray:
    return np.array([[*lamp.position, lamp.radius, lamp.power] for lamp in view.lamps], float).reshape(-1, 5)


def _disc(rays: int) -> np.ndarray:
    """Points of a lamp, (rays, SHADOW_RAYS, 2): all rays of a pixel together cover the disc evenly."""
    numbers = np.arange(rays * SHADOW_RAYS)
    radius, angle = np.sqrt((numbers + 0.5) / len(numbers)), numbers * math.pi * (3 - math.sqrt(5))
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return np.ascontiguousarray(points.reshape(SHADOW_RAYS, rays, 2).transpose(1, 0, 2))


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _distance(ox, oy, oz, dx, dy, dz, solids, i):
    """Along a ray of length-1 direction to its first hit of a solid; FAR if there is none."""
    cx, cy, cz = ox - solids[i, X], oy - solids[i, Y], oz - solids[i, HALF]
    half = solids[i, HALF]
    b = cx * dx + cy * dy + cz * dz
    c = cx * cx + cy * cy + cz * cz - solids[i, BOUND]
    inside = b * b - c
    if inside < 0.0 or (c > 0.0 and b > 0.0):
        return FAR
    if solids[i, KIND] == SPHERE:
        root = math.sqrt(inside)
        near, far = -b - root, -b + root
        return near if near > NEAR else (far if far > NEAR else FAR)
    cos, sin = solids[i, COS], solids[i, SIN]
    px, py = cos * cx + sin * cy, cos * cy - sin * cx
    qx, qy = cos * dx + sin * dy, cos * dy - sin * dx
    enter, leave = -FAR, FAR
    if abs(dz) < 1e-12:
        if abs(cz) > half:
            return FAR
    else:
        first, second = (-half - cz) / dz, (half - cz) / dz
        enter, leave = min(first, second), max(first, second)
    if solids[i, KIND] == CUBE:
        for p, q in ((px, qx), (py, qy)):
            if abs(q) < 1e-12:
                if abs(p) > half:
                    return FAR
            else:
                first, second = (-half - p) / q, (half - p) / q
                enter, leave = max(enter, min(first, second)), min(leave, max(first, second))
    else:
        a = qx * qx + qy * qy
        level = px * px + py * py - half * half
        if a < 1e-12:
            if level > 0.0:
                return FAR
        else:
            middle = px * qx + py * qy
            inside = middle * middle - a * level
            if inside < 0.0:
                return FAR
            root = math.sqrt(inside)
            enter, leave = max(enter, (-middle - root) / a), min(leave, (-middle + root) / a)
    if enter > leave or leave < NEAR:
        return FAR
    return enter if enter > NEAR else leave


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _normal(x, y, z, solid):
    """Outward, at a point of a solid's surface."""
    lx, ly, lz = x - solid[X], y - solid[Y], z - solid[HALF]
    half = solid[HALF]
    if solid[KIND] == SPHERE:
        return lx / half, ly / half, lz / half
    cos, sin = solid[COS], solid[SIN]
    px, py = cos * lx + sin * ly, cos * ly - sin * lx
    if solid[KIND] == CUBE:
        if abs(lz) >= abs(px) and abs(lz) >= abs(py):
            return 0.0, 0.0, math.copysign(1.0, lz)
        if abs(px) > abs(py):
            side = math.copysign(1.0, px)
            return side * cos, side * sin, 0.0
        side = math.copysign(1.0, py)
        return -side * sin, side * cos, 0.0
    radius = math.sqrt(px * px + py * py)
    if abs(lz) >= half - 1e-6 and radius < half:
        return 0.0, 0.0, math.copysign(1.0, lz)
    return lx / radius, ly / radius, 0.0


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _glint(x, y, z, solid):
    """How much a polished edge shines here: edges are drawn sharp, but real ones are rounded and catch the lamps."""
    if solid[KIND] == SPHERE:
        return 0.0
    lx, ly, near = x - solid[X], y - solid[Y], EDGE * solid[HALF]
    level = abs(z - solid[HALF]) > near
    if solid[KIND] == CYLINDER:
        return 0.4 if level and lx * lx + ly * ly > near * near else 0.0
    along = abs(solid[COS] * lx + solid[SIN] * ly) > near
    across = abs(solid[COS] * ly - solid[SIN] * lx) > near
    return 0.4 if int(level) + int(along) + int(across) >= 2 else 0.0


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _nearest(ox, oy, oz, dx, dy, dz, solids):
    """(distance, number) of the first solid on a ray, or of the floor; distance FAR: it leaves the scene."""
    best, number = FAR, FLOOR
    if dz < 0.0:
        best = -oz / dz
    for i in range(len(solids)):
        t = _distance(ox, oy, oz, dx, dy, dz, solids, i)
        if t < best:
            best, number = t, i
    return best, number


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _open_share(x, y, z, lamp, solids, points):
    """Share of a lamp's points that nothing hides from (x, y, z)."""
    clear = 0
    for j in range(len(points)):
        dx = lamp[LAMP_X] + lamp[LAMP_RADIUS] * points[j, 0] - x
        dy = lamp[LAMP_Y] + lamp[LAMP_RADIUS] * points[j, 1] - y
        dz = lamp[LAMP_Z] - z
        far = math.sqrt(dx * dx + dy * dy + dz * dz)
        dx, dy, dz = dx / far, dy / far, dz / far
        hidden = False
        for i in range(len(solids)):
            if _distance(x, y, z, dx, dy, dz, solids, i) < far:
                hidden = True
                break
        if not hidden:
            clear += 1
    return clear / len(points)


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _light(x, y, z, nx, ny, nz, vx, vy, vz, gloss, lamps, solids, points):
    """(diffuse, highlight) that reach the eye in direction v from a point with normal n; gloss 0: no highlight."""
    diffuse, highlight = AMBIENT * (0.65 + 0.35 * nz), 0.0
    for k in range(len(lamps)):
        lamp = lamps[k]
        dx, dy, dz = lamp[LAMP_X] - x, lamp[LAMP_Y] - y, lamp[LAMP_Z] - z
        square = dx * dx + dy * dy + dz * dz
        far = math.sqrt(square)
        dx, dy, dz = dx / far, dy / far, dz / far
        facing = nx * dx + ny * dy + nz * dz
        if facing <= 0.0:
            continue
        power = lamp[LAMP_POWER] * _open_share(x, y, z, lamp, solids, points) / square
        diffuse += power * facing
        if gloss == 0.0:
            continue
        hx, hy, hz = dx + vx, dy + vy, dz + vz
        half = (nx * hx + ny * hy + nz * hz) / math.sqrt(hx * hx + hy * hy + hz * hz)
        if half > 0.7:
            highlight += power * half**gloss
    return diffuse, highlight


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _mirrored(x, y, z, dx, dy, dz, lamps, solids, points):
    """What a mirror at (x, y, z) shows in direction d: floor and solids lit plainly, and lamps in a dark room."""
    t, number = _nearest(x, y, z, dx, dy, dz, solids)
    if t >= FAR:
        glow = DARK_ROOM + 0.10 * max(0.0, 1.0 - 2.5 * dz)
        for k in range(len(lamps)):
            lx, ly, lz = lamps[k, LAMP_X] - x, lamps[k, LAMP_Y] - y, lamps[k, LAMP_Z] - z
            far = math.sqrt(lx * lx + ly * ly + lz * lz)
            edge = ((lx * dx + ly * dy + lz * dz) / far - 0.90) / 0.07
            glow += 0.35 * lamps[k, LAMP_POWER] / 10.0 * min(1.0, max(0.0, edge))
        return glow, glow, glow
    hx, hy, hz = x + t * dx, y + t * dy, z + t * dz
    if number == FLOOR:
        diffuse, _ = _light(hx, hy, 0.001, 0.0, 0.0, 1.0, -dx, -dy, -dz, 0.0, lamps, solids, points[:1])
        gray = FLOOR_GRAY * diffuse
        return gray, gray, gray
    solid = solids[number]
    nx, ny, nz = _normal(hx, hy, hz, solid)
    diffuse, _ = _light(
        hx + nx * 1e-3, hy + ny * 1e-3, hz + nz * 1e-3, nx, ny, nz, -dx, -dy, -dz, 0.0, lamps, solids, points[:1]
    )
    return solid[RED] * diffuse, solid[GREEN] * diffuse, solid[BLUE] * diffuse


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _shade(x, y, z, dx, dy, dz, number, solids, lamps, points):
    """Linear colour of the point that a ray in direction d met."""
    if number == FLOOR:
        diffuse, _ = _light(x, y, 0.001, 0.0, 0.0, 1.0, -dx, -dy, -dz, 0.0, lamps, solids, points)
        gray = FLOOR_GRAY * diffuse
        return gray, gray, gray
    solid = solids[number]
    metal = solid[METAL]
    nx, ny, nz = _normal(x, y, z, solid)
    sx, sy, sz = x + nx * 1e-3, y + ny * 1e-3, z + nz * 1e-3
    gloss = 12.0 + 48.0 * metal
    diffuse, highlight = _light(sx, sy, sz, nx, ny, nz, -dx, -dy, -dz, gloss, lamps, solids, points)
    body = diffuse * (1.0 - 0.85 * metal)
    shine = highlight * (0.06 + 1.2 * metal) + metal * _glint(x, y, z, solid) * diffuse
    r, g, b = solid[RED] * body + shine, solid[GREEN] * body + shine, solid[BLUE] * body + shine
    if metal > 0.0:
        facing = dx * nx + dy * ny + dz * nz
        mx, my, mz = dx - 2 * facing * nx, dy - 2 * facing * ny, dz - 2 * facing * nz
        grazing = (1.0 - min(1.0, abs(facing))) ** 5
        mr, mg, mb = _mirrored(sx, sy, sz, mx, my, mz, lamps, solids, points)
        r += metal * mr * (2.4 * solid[RED] + 0.02 + 0.25 * grazing)
        g += metal * mg * (2.4 * solid[GREEN] + 0.02 + 0.25 * grazing)
        b += metal * mb * (2.4 * solid[BLUE] + 0.02 + 0.25 * grazing)
    return r, g, b


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _direction(camera, across, down):
    """Of the ray through a place of the picture; both run from -1 (left, top) to 1."""
    dx = camera[1, 0] + across * camera[2, 0] - down * camera[3, 0]
    dy = camera[1, 1] + across * camera[2, 1] - down * camera[3, 1]
    dz = camera[1, 2] + across * camera[2, 2] - down * camera[3, 2]
    length = math.sqrt(dx * dx + dy * dy + dz * dz)
    return dx / length, dy / length, dz / length


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _render(solids, camera, lamps, disc, height, width, samples):
    rays = samples * samples
    rgb = np.empty((height, width, 3), np.uint8)
    ids = np.empty((height, width, rays), np.int16)
    ox, oy, oz = camera[0, 0], camera[0, 1], camera[0, 2]
    for row in range(height):
        for column in range(width):
            red = green = blue = 0.0
            for ray in range(rays):
                across = 2 * (column + (ray % samples + 0.5) / samples) / width - 1
                down = 2 * (row + (ray // samples + 0.5) / samples) / height - 1
                dx, dy, dz = _direction(camera, across, down)
                t, number = _nearest(ox, oy, oz, dx, dy, dz, solids)
                ids[row, column, ray] = number
                if t >= FAR:
                    r = g = b = DARK_ROOM
                else:
                    x, y, z = ox + t * dx, oy + t * dy, oz + t * dz
                    r, g, b = _shade(x, y, z, dx, dy, dz, number, solids, lamps, disc[ray])
                red, green, blue = red + min(r, 1.0), green + min(g, 1.0), blue + min(b, 1.0)
            rgb[row, column, 0] = int(255 * (red / rays) ** (1 / 2.2) + 0.5)
            rgb[row, column, 1] = int(255 * (green / rays) ** (1 / 2.2) + 0.5)
            rgb[row, column, 2] = int(255 * (blue / rays) ** (1 / 2.2) + 0.5)
    return rgb, ids


@no_type_check
@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _count(solids, camera, size):
    seen, whole = np.zeros(len(solids), np.int64), np.zeros(len(solids), np.int64)
    cut = np.zeros(len(solids), np.bool_)
    for row in range(size):
        for column in range(size):
            dx, dy, dz = _direction(camera, (2 * column + 1) / size - 1, (2 * row + 1) / size - 1)
            best, number = FAR, FLOOR
            for i in range(len(solids)):
                t = _distance(camera[0, 0], camera[0, 1], camera[0, 2], dx, dy, dz, solids, i)
                if t < FAR:
                    whole[i] += 1
                    cut[i] |= row == 0 or column == 0 or row == size - 1 or column == size - 1
                    if t < best:
                        best, number = t, i
            if number != FLOOR:
                seen[number] += 1
    return seen, whole, cut
