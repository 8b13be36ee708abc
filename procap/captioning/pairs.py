"""The two pictures of a pair, however they are given."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from procap.datasets.images import MOST_PIXELS, decode_image, read_image, upright
from procap.errors import BadInput
from procap.shapes import UInt8

Picture = Any
"""A path, a file's bytes, a PIL image, or an array (uint8, h w 3)."""


def read_pair(
    before: Picture, after: Picture, name: str = ""
) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w 3"]]:
    """Both pictures as pixels, as the step ``prepare`` reads them: RGB, upright, transparency white.

    ``name`` says in complaints which pair it is. Raises BadInput for what is no picture, and for two sizes.
    """
    where = f"{name}, " if name else ""
    first, last = read_picture(before, f"{where}before"), read_picture(after, f"{where}after")
    if first.shape != last.shape:
        raise BadInput(
            f"the pictures have different sizes, {first.shape[1]} x {first.shape[0]} and "
            f"{last.shape[1]} x {last.shape[0]} pixels",
            where=f"{where}{_called(before, 'before')} and {_called(after, 'after')}",
            expected="two pictures of one size, taken from one place",
            do="cut or resize one of them",
        )
    return first, last


def read_picture(picture: Picture, where: str) -> UInt8[np.ndarray, "h w 3"]:
    """One picture; ``where`` says in complaints which, unless it has a path."""
    from PIL import Image

    if isinstance(picture, str | PathLike):
        return read_image(Path(picture))
    if isinstance(picture, bytes | bytearray | memoryview):
        return decode_image(bytes(picture), where)
    if isinstance(picture, Image.Image):
        if picture.width * picture.height > MOST_PIXELS:
            raise _bad(f"a picture of {picture.width} x {picture.height} pixels is too large", where)
        try:
            return upright(picture)
        except (OSError, ValueError, SyntaxError) as error:
            raise _bad(f"the picture cannot be read ({error})", where) from None
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise _bad(f"an array {picture.dtype}{list(picture.shape)}", where)
        if picture.shape[0] * picture.shape[1] > MOST_PIXELS:
            raise _bad(f"a picture of {picture.shape[1]} x {picture.shape[0]} pixels is too large", where)
        return np.ascontiguousarray(picture)
    raise _bad(f"a {type(picture).__name__} is no picture", where)


def _called(picture: Picture, otherwise: str) -> str:
    return str(picture) if isinstance(picture, str | PathLike) else otherwise


def _bad(what: str, where: str) -> BadInput:
    return BadInput(
        what,
        where=where,
        expected=f"a path, a file's bytes, a PIL image, or an array uint8 (height, width, 3), "
        f"of at most {MOST_PIXELS // 10**6} million pixels",
        do="give one of them",
    )
