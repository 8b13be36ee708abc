"""From a request to pairs of pictures: multipart or JSON, one pair or many."""

import base64
import binascii
import io
import json
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import Request
from jaxtyping import UInt8
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from flows.serving.limits import Limits
from flows.serving.refusal import Refusal
from procap.errors import BadInput

BEAMS = 8
"""At most."""

KINDS = ("multipart/form-data", "application/json")


class EncodedPair(BaseModel):
    """Two pictures as files in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)
    before: str = Field(description="the earlier picture, a file in base64")
    after: str = Field(description="the later one; sizes may differ")


class CaptionRequest(BaseModel):
    """Pairs of pictures to describe."""

    model_config = ConfigDict(extra="forbid", strict=True)
    pairs: Annotated[list[EncodedPair], Field(min_length=1, description="one pair or several")]
    beams: int = Field(1, ge=1, le=BEAMS, description="sentences that the search keeps; 1 is greedy and fastest")


@dataclass(frozen=True)
class Asked:
    """Pairs of files, as bytes or still in base64."""

    pairs: list[tuple[bytes | str, bytes | str]]
    beams: int


async def read_request(request: Request, limits: Limits, most: int) -> Asked:
    """Read a request of up to ``most`` pairs. Raises Refusal; nothing is decoded yet."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _from_json(await request.body(), most)
    if kind == "multipart/form-data":
        return await _from_form(request, limits, most)
    raise Refusal(
        415, f"a body of type '{kind[:80]}'", where="header Content-Type", expected=" or ".join(KINDS),
        do="see the examples in /openapi.json",
    )  # fmt: skip


def open_pictures(
    asked: Asked, limits: Limits, side: int
) -> list[tuple[UInt8[np.ndarray, "side side 3"], UInt8[np.ndarray, "side side 3"]]]:
    """Decode the pictures of a request and make them as large as the model takes them, as in training."""
    from procap.captioning.pairs import read_pair
    from procap.datasets.images import resize

    pairs = []
    for place, files in enumerate(asked.pairs):
        name = f"pairs[{place}]"
        first, last = _file(files[0], f"{name}, before", limits), _file(files[1], f"{name}, after", limits)
        try:
            before, after = read_pair(first, last, name)
        except BadInput as error:
            raise Refusal(
                422, error.what, where=error.where, expected=error.expected, do="send other pictures, or mend these"
            ) from None
        pairs.append((resize(before, side), resize(after, side)))
    return pairs


def _from_json(body: bytes, most: int) -> Asked:
    try:
        asked = CaptionRequest.model_validate_json(body)
    except ValidationError as error:
        raise _not_as_agreed(error) from None
    _refuse_many(len(asked.pairs), most, "pairs")
    return Asked([(pair.before, pair.after) for pair in asked.pairs], asked.beams)


def _not_as_agreed(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    return Refusal(
        422,
        first["msg"][:1].lower() + first["msg"][1:300],
        where=place[:200] or "the body",
        expected=json.dumps({"pairs": [{"before": "<base64>", "after": "<base64>"}], "beams": 1}),
        do="mend the request; /openapi.json has its schema and examples",
    )


async def _from_form(request: Request, limits: Limits, most: int) -> Asked:
    """Fields ``before`` and ``after``, files, as many of the one as of the other; ``beams``, a number."""
    try:
        form = await request.form(max_files=2 * most + 1, max_fields=8, max_part_size=64_000)
    except HTTPException as error:
        status = 413 if "Too many files" in str(error.detail) else 422
        raise _bad_form(status, str(error.detail).rstrip(".").lower()) from None
    try:
        fields = form.multi_items()
        if unknown := sorted({name for name, _ in fields} - {"before", "after", "beams"}):
            raise _bad_form(422, f"unknown field '{unknown[0][:80]}'")
        ends = [[value for name, value in fields if name == end] for end in ("before", "after")]
        for end, values in zip(("before", "after"), ends, strict=True):
            if not values:
                raise _bad_form(422, "a picture is missing", f"field {end}")
            if any(not isinstance(value, UploadFile) for value in values):
                raise _bad_form(422, "text, where a file should be", f"field {end}")
        if len(ends[0]) != len(ends[1]):
            raise _bad_form(422, f"{len(ends[0])} pictures before, and {len(ends[1])} after")
        _refuse_many(len(ends[0]), most, "fields before and after")
        files = [[await file.read() for file in values] for values in ends]  # type: ignore[union-attr]
        return Asked(list(zip(*files, strict=True)), _beams([value for name, value in fields if name == "beams"]))
    finally:
        await form.close()


def _beams(values: list[Any]) -> int:
    if not values:
        return 1
    text = values[0] if isinstance(values[0], str) else ""
    if len(values) > 1 or not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= BEAMS):
        raise _bad_form(422, "no number of beams", "field beams")
    return int(text)


def _bad_form(status: int, what: str, where: str = "the form") -> Refusal:
    return Refusal(
        status,
        what,
        where=where,
        expected=f"files `before` and `after`, as many of each, and perhaps a number `beams` from 1 to {BEAMS}",
        do="mend the form; with curl: -F before=@before.png -F after=@after.png",
    )


def _refuse_many(pairs: int, most: int, where: str) -> None:
    if pairs > most:
        raise Refusal(
            413, f"{pairs} pairs", where=where, expected=f"at most {most} in a request", do="send them in several"
        )


def _file(file: bytes | str, name: str, limits: Limits) -> bytes:
    """The bytes of a picture whose head is as it should be."""
    if isinstance(file, str):
        try:
            file = base64.b64decode(file, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refusal(
                422, f"no base64 ({error})", where=name, expected="a picture file in base64, without line breaks",
                do="encode it again; with a shell: base64 -w0 before.png",
            ) from None  # fmt: skip
    _refuse_kind_and_size(file, name, limits)
    return file


def _refuse_kind_and_size(file: bytes, name: str, limits: Limits) -> None:
    """From the head of the file alone."""
    import warnings

    from PIL import Image

    from procap.datasets.images import FORMATS

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            size = Image.open(io.BytesIO(file), formats=FORMATS).size
    except Image.UnidentifiedImageError:
        raise Refusal(
            415, "not a picture that can be read" if file else "an empty file", where=name,
            expected=f"a file of {', '.join(FORMATS)}, whatever its name or type says", do="send another file",
        ) from None  # fmt: skip
    except Image.DecompressionBombError:
        raise _too_many_pixels("a picture with far too many pixels", name, limits) from None
    except Exception:  # damaged: decoding says how
        return
    if size[0] * size[1] > limits.pixels:
        raise _too_many_pixels(f"a picture of {size[0]} x {size[1]} pixels", name, limits)


def _too_many_pixels(what: str, name: str, limits: Limits) -> Refusal:
    return Refusal(
        413, what, where=name, expected=f"at most {limits.pixels} pixels",
        do="make it smaller; the model sees it much smaller anyway",
    )  # fmt: skip
