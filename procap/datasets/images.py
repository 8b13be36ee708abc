"""Pictures from files that others made: nothing is trusted before it was checked."""

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from procap.errors import BadInput

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
"""Pictures that stand still; a file of several is refused, unless it is a photograph with a preview inside."""
MOST_PIXELS = 40_000_000
"""Of one picture; asked of its header, before anything is decoded."""
MOST_BYTES = 200_000_000

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)


def read_image(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Decode a picture to RGB, turned the way its EXIF orientation says; transparency becomes white.

    Raises BadInput for anything that is not there, not of FORMATS, animated, truncated, damaged or too large.
    """
    with _opened(path) as picture:
        return upright(picture)


def decode_image(data: bytes, where: str) -> UInt8[np.ndarray, "h w 3"]:
    """``read_image`` of a file's bytes, which complaints call ``where``."""
    if not 0 < len(data) <= MOST_BYTES:
        raise _bad(where, f"a file of {len(data)} bytes is no picture of ours")
    with _decoded(io.BytesIO(data), where) as picture:
        return upright(picture)


def upright(picture: Any) -> UInt8[np.ndarray, "h w 3"]:
    """A decoded PIL image as RGB, turned the way its EXIF orientation says; transparency becomes white."""
    from PIL import ImageOps

    return np.array(_as_rgb(ImageOps.exif_transpose(picture)), np.uint8)


def read_mask(path: Path, classes: int = 1) -> UInt8[np.ndarray, "h w"]:
    """Decode a mask: 255 where the file is lighter than middle gray, else 0; what is transparent is not marked.

    Of two ``classes``, what is near middle gray is 128, the first, and what is near white 255, the second.
    Raises BadInput as ``read_image``, and for a mask whose marks are all too dark to count.
    """
    from PIL import ImageOps

    with _opened(path) as picture:
        gray = _as_gray(ImageOps.exif_transpose(picture))
    if 0 < gray.max() <= (127 if classes == 1 else 63):
        raise BadInput(
            f"a mask that marks nothing, but is not black: the lightest of its 0 to 255 is {gray.max()}",
            where=str(path),
            expected="black, and white (255) where something changed",
            do="save it with white marks (a mask of 0 and 1 times 255), or take its pair out of the corpus",
        )
    if classes == 1:
        return np.where(gray > 127, np.uint8(255), np.uint8(0))
    return np.select([gray > 191, gray > 63], [np.uint8(255), np.uint8(128)], np.uint8(0))


def resize(image: UInt8[np.ndarray, "h w 3"], side: int) -> UInt8[np.ndarray, "side side 3"]:
    """Make a picture square, bilinearly, whatever its proportions; one of that size stays as it is."""
    from PIL import Image

    return np.array(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def resize_mask(mask: UInt8[np.ndarray, "h w"], side: int) -> UInt8[np.ndarray, "side side"]:
    """The same for a mask; a pixel belongs to it, and to its second class, where at least half of it did."""
    from PIL import Image

    def share(inside: np.ndarray) -> np.ndarray:
        whole = Image.fromarray(np.where(inside, np.uint8(255), np.uint8(0)))
        return np.array(whole.resize((side, side), Image.Resampling.BILINEAR))

    changed = share(mask > 0)
    second = share(mask == 255)
    kinds = np.where(2 * second.astype(int) > changed, np.uint8(255), np.uint8(128))
    return np.where(changed > 127, kinds, np.uint8(0))


def _opened(path: Path) -> Any:
    """A decoded PIL image."""
    if not path.is_file():
        raise _bad(path, "a folder, where a picture should be" if path.exists() else "the picture is not there")
    if not 0 < path.stat().st_size <= MOST_BYTES:
        raise _bad(path, f"a file of {path.stat().st_size} bytes is no picture of ours")
    return _decoded(path, path)


def _decoded(file: Path | io.BytesIO, where: Path | str) -> Any:
    """The one picture of a file, checked before and after it is unpacked."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            picture = Image.open(file, formats=FORMATS)
        if picture.width * picture.height > MOST_PIXELS:
            picture.close()
            raise _bad(where, f"a picture of {picture.width} x {picture.height} pixels is too large")
        frames = getattr(picture, "n_frames", 1)
        if frames > 1 and picture.format != "MPO":
            picture.close()
            raise _bad(where, f"a moving picture of {frames} frames")
        picture.load()
    except Image.UnidentifiedImageError:
        raise _bad(where, f"not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, whatever its name says") from None
    except Image.DecompressionBombError:
        raise _bad(where, "a picture with far too many pixels") from None
    except _DAMAGE as error:
        raise _bad(where, f"the picture is damaged or cut short ({' '.join(str(error).split())})") from None
    return picture


def _as_rgb(picture: Any) -> Any:
    from PIL import Image

    if picture.mode.startswith("I"):  # sixteen bits of gray
        return Image.fromarray((np.array(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def _as_gray(picture: Any) -> UInt8[np.ndarray, "h w"]:
    """A mask's lightness; sixteen bits are scaled where they are used, and what is transparent is black."""
    from PIL import Image

    if picture.mode.startswith("I"):
        wide = np.array(picture).astype(np.int64)
        return (wide >> 8 if wide.max() > 255 else wide).clip(0, 255).astype(np.uint8)
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "black"), layer)
    return np.array(picture.convert("L"))


def _bad(where: Path | str, what: str) -> BadInput:
    return BadInput(
        what,
        where=str(where),
        expected=f"a readable, still picture ({', '.join(FORMATS)}) of at most {MOST_PIXELS // 10**6} million pixels",
        do="replace the file, or take its pair out of the corpus",
    )


def outlined(picture: Any, mask: np.ndarray | None) -> Any:
    """Draw a mask's edge on a PIL image in white; the mask is enlarged to it."""
    from PIL import Image

    if mask is None:
        return picture
    inside = np.pad(np.array(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST)) > 0, 1)
    inner = inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    pixels = np.array(picture)
    pixels[inside[1:-1, 1:-1] & ~inner] = 255
    return Image.fromarray(pixels)


OUTLINE = (40, 150, 255)
"""Colour of what a captioner outlined."""


def overlaid(
    picture: UInt8[np.ndarray, "h w 3"], drawn: Bool[np.ndarray, "h w"] | None, true: Bool[np.ndarray, "h w"] | None
) -> UInt8[np.ndarray, "h2 w2 3"]:
    """A picture, enlarged where it is small, with what was outlined tinted and the true mask's edge in white."""
    from PIL import Image

    times = max(1, 256 // max(picture.shape[:2]))
    large = np.array(Image.fromarray(picture).resize((picture.shape[1] * times, picture.shape[0] * times)), np.float64)
    if drawn is not None:
        inside = np.array(Image.fromarray(drawn).resize((large.shape[1], large.shape[0]), Image.Resampling.NEAREST))
        large[inside] = 0.55 * large[inside] + 0.45 * np.array(OUTLINE)
    edged = Image.fromarray(np.rint(large).astype(np.uint8))
    return np.array(outlined(edged, None if true is None else true.astype(np.uint8) * 255))
