"""What /openapi.json says beyond types: how a request looks, with examples that work, and how refusals look."""

import base64
import io
from functools import cache
from typing import Any

from flows.serving.intake import BEAMS, CaptionRequest
from flows.serving.refusal import Complaint

ABOUT: dict[str, Any] = {
    "title": "procap",
    "version": "1",
    "description": "Image change captioning: two similar pictures in, one sentence out that says what changed and "
    "how. Every answer of status 400 or more is a Complaint.\n\n"
    "    curl -F before=@before.png -F after=@after.png http://127.0.0.1:8000/v1/caption\n\n"
    "Where the service has a token: -H 'Authorization: Bearer <token>'.",
}

REFUSALS = {
    401: "No token, or a wrong one",
    408: "The body came too slowly",
    413: "Too many bytes, pixels or pairs",
    415: "A body, or a picture, of a kind that is not taken",
    421: "A name that the service does not go by",
    422: "Not as agreed, or a damaged picture",
    429: "Too many requests or pairs wait; try again after Retry-After seconds",
    500: "The service failed",
    503: "The service is closing",
    504: "The answer was not ready in time",
}


def described(summary: str) -> dict[str, Any]:
    """Keywords of a POST route: its body in both forms, its refusals."""
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": _bodies()}},
        "responses": {status: {"model": Complaint, "description": text} for status, text in REFUSALS.items()},
        "operation_id": summary,
    }


def _bodies() -> dict[str, Any]:
    schema = CaptionRequest.model_json_schema()
    schema["properties"]["pairs"]["items"] = schema.pop("$defs")["EncodedPair"]
    pair = {"before": example_png("red"), "after": example_png("blue")}
    examples = {
        "one": {"summary": "one pair: a red square turns blue", "value": {"pairs": [pair]}},
        "several": {"summary": "two pairs, searched with two beams", "value": {"pairs": [pair, pair], "beams": 2}},
    }
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "required": ["before", "after"],
        "properties": {
            "before": {**files, "description": "the earlier picture; once per pair"},
            "after": {**files, "description": "the later picture; once per pair, in the same order"},
            "beams": {"type": "integer", "minimum": 1, "maximum": BEAMS, "default": 1},
        },
    }
    return {
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": schema, "examples": examples},
    }


@cache
def example_png(colour: str) -> str:
    """A square on gray, a PNG in base64."""
    from PIL import Image

    picture, out = Image.new("RGB", (32, 32), (128, 128, 128)), io.BytesIO()
    picture.paste(colour, (10, 10, 22, 22))
    picture.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode("ascii")
