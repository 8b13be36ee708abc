"""Pictures from others' files: what is usable comes out right, everything else is refused by name."""

import numpy as np
import pytest
from PIL import Image

from procap.datasets import images
from procap.datasets.images import read_image, read_mask, resize, resize_mask
from procap.errors import BadInput

COLORS = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
MOVES = [Image.fromarray(255 - COLORS)]


def saved(path, array, mode=None, **options):
    picture = Image.fromarray(array)
    (picture.convert(mode) if mode else picture).save(path, **options)
    return path


def test_a_png_comes_back_as_it_was(tmp_path):
    assert np.array_equal(read_image(saved(tmp_path / "a.png", COLORS)), COLORS)


def test_a_jpeg_by_another_name_comes_back_nearly(tmp_path):
    smooth = np.broadcast_to(np.linspace(0, 255, 32).astype(np.uint8)[:, None, None], (32, 32, 3)).copy()
    found = read_image(saved(tmp_path / "photo.png", smooth, format="JPEG", quality=95))
    assert np.abs(found.astype(int) - smooth).max() < 12


def test_gray_palette_and_sixteen_bit_pictures_become_rgb(tmp_path):
    gray = COLORS[..., 0]
    assert np.array_equal(read_image(saved(tmp_path / "l.png", gray)), np.stack([gray] * 3, axis=-1))
    deep = gray.astype(np.uint16) * 256 + 17
    assert np.array_equal(read_image(saved(tmp_path / "i.png", deep)), np.stack([gray] * 3, axis=-1))
    few = np.repeat(COLORS[:1], 4, axis=0)
    assert np.array_equal(read_image(saved(tmp_path / "p.png", few, "P", format="PNG")).shape, few.shape)
    assert read_image(saved(tmp_path / "cmyk.jpg", COLORS, "CMYK")).shape == COLORS.shape


@pytest.mark.parametrize("suffix", ["gif", "webp", "bmp", "tiff"])
def test_other_still_pictures_are_read_too(tmp_path, suffix):
    plain = np.full((8, 8, 3), 200, np.uint8)
    assert np.abs(read_image(saved(tmp_path / f"a.{suffix}", plain)).astype(int) - plain).max() < 4


def test_a_photograph_with_a_preview_inside_is_no_moving_picture(tmp_path):
    saved(tmp_path / "a.jpg", COLORS, format="MPO", save_all=True, append_images=MOVES, quality=95)
    assert read_image(tmp_path / "a.jpg").shape == COLORS.shape


def test_transparency_becomes_white(tmp_path):
    alpha = np.dstack([COLORS, np.zeros(COLORS.shape[:2], np.uint8)])
    alpha[:6, :, 3] = 255
    found = read_image(saved(tmp_path / "a.png", alpha))
    assert np.array_equal(found[:6], COLORS[:6])
    assert (found[6:] == 255).all()


def test_a_photograph_is_turned_upright(tmp_path):
    picture = Image.fromarray(np.zeros((8, 16, 3), np.uint8))
    exif = picture.getexif()
    exif[0x0112] = 6  # lies on its side
    picture.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (16, 8, 3)


def test_what_is_no_picture_is_refused_by_name(tmp_path):
    whole = saved(tmp_path / "whole.png", COLORS.repeat(20, axis=0)).read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0xFF
    files = {
        "text.png": b"not a picture",
        "empty.png": b"",
        "short.png": whole[: len(whole) // 2],
        "header.png": whole[:20],
        "flipped.png": bytes(broken),
        "moving.png": saved(tmp_path / "a.gif", COLORS, save_all=True, append_images=MOVES).read_bytes(),
        "moves.png": saved(tmp_path / "a.png", COLORS, save_all=True, append_images=MOVES).read_bytes(),
        "picture.svg": b"<svg/>",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=name):
            read_image(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    for name in ("absent.png", "folder.png"):
        with pytest.raises(BadInput, match=name):
            read_image(tmp_path / name)


def test_a_huge_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = saved(tmp_path / "huge.png", COLORS)
    monkeypatch.setattr(images, "MOST_PIXELS", 100)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    with pytest.raises(BadInput, match=r"20 x 12 pixels is too large"):
        read_image(path)


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path / "bomb.png", COLORS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(BadInput, match=r"bomb\.png"):
        read_image(path)


def test_resizing_is_square_smooth_and_idle_at_the_same_size():
    square = COLORS[:, :12].copy()
    assert np.array_equal(resize(square, 12), square)
    assert resize(COLORS, 6).shape == (6, 6, 3)
    checks = np.indices((32, 32)).sum(0) % 2 * np.uint8(255)
    half = resize(np.stack([checks.astype(np.uint8)] * 3, axis=-1), 16)
    assert np.abs(half.astype(int) - 127).max() < 30, "many pixels are averaged, not picked"


def test_masks_stay_black_and_white(tmp_path):
    mask = np.zeros((16, 16), np.uint8)
    mask[4:12, 4:12] = 255
    assert np.array_equal(read_mask(saved(tmp_path / "m.png", mask)), mask)
    assert np.array_equal(resize_mask(mask, 16), mask)
    assert np.array_equal(resize_mask(mask, 8), mask[::2, ::2])
    assert set(np.unique(resize_mask(mask, 7))) == {0, 255}


def test_masks_of_two_classes_keep_them_apart(tmp_path):
    mask = np.zeros((16, 16), np.uint8)
    mask[2:8, 2:8], mask[8:14, 8:14] = 128, 255
    path = saved(tmp_path / "m.png", mask)
    assert np.array_equal(read_mask(path, 2), mask)
    assert np.array_equal(read_mask(path) > 0, mask > 0), "of one class, both have changed"
    assert np.array_equal(resize_mask(mask, 8), mask[::2, ::2])
    assert set(np.unique(resize_mask(mask, 7))) == {0, 128, 255}


def _marked(kind):
    """A 16 x 16 mask, its square of 4 x 4 marked in one of the ways that programs have."""
    square = np.zeros((16, 16), np.uint8)
    square[4:8, 4:8] = 1
    alpha = Image.fromarray(square * 255)
    palette = Image.fromarray(square, "P")
    palette.putpalette([0, 0, 0, *((255, 255, 255) if kind == "palette" else (128, 0, 0)), *[0] * 750])
    match kind:
        case "sixteen bits":
            return Image.fromarray(np.where(square > 0, 65535, 5000).astype(np.uint16))
        case "eight bits in sixteen":
            return Image.fromarray(square.astype(np.uint16) * 255)
        case "transparent white":
            return Image.merge("RGBA", [Image.new("L", (16, 16), 255)] * 3 + [alpha])
        case "one bit":
            return alpha.convert("1")
        case "palette" | "dark red":
            return palette
        case "zero and one":
            return Image.fromarray(square)
        case "dark of sixteen":
            return Image.fromarray(square.astype(np.uint16) * 1000)
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["sixteen bits", "eight bits in sixteen", "transparent white", "one bit", "palette"])
def test_a_mask_is_what_is_light_in_it_however_it_was_saved(tmp_path, kind):
    _marked(kind).save(tmp_path / "m.png")
    mask = read_mask(tmp_path / "m.png")
    assert mask.sum() == 255 * 16
    assert mask[4:8, 4:8].min() == 255


@pytest.mark.parametrize("kind", ["zero and one", "dark red", "dark of sixteen"])
@pytest.mark.parametrize("classes", [1, 2])
def test_a_mask_with_marks_too_dark_to_count_is_refused(tmp_path, kind, classes):
    _marked(kind).save(tmp_path / "m.png")
    with pytest.raises(BadInput, match="marks nothing"):
        read_mask(tmp_path / "m.png", classes)
    Image.new("L", (16, 16)).save(tmp_path / "m.png")
    assert not read_mask(tmp_path / "m.png", classes).any(), "black is a mask of nothing"
