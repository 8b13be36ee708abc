"""Bad requests, one after another, at a real port: each gets its status and its reason, and the service stays up."""

import base64
import json
import re
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serving import BLUE, RED, Running, encoded, form, picture, running, told, web

COMPLAINT = {"what", "where", "expected", "do", "status", "request"}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(told(hosts={"127.0.0.1", "localhost"}), head_seconds=0.8) as service:
        yield service


@pytest.fixture(autouse=True)
def _stays_up(service):
    """Whatever came before, the next request is answered."""
    yield
    assert web().get(f"{service.address}/healthz").json() == {"alive": True}
    answer = web().post(f"{service.address}/v1/caption", **form())
    assert answer.json()["captions"][0]["text"] == "teller: 200 30 30 to 30 30 200"


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    check = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def raw_png(width: int, height: int, rows: bytes, *more: bytes) -> bytes:
    """A gray PNG by hand, whatever its header promises."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pairs(*ends: Any, **more: Any) -> dict[str, Any]:
    """Keywords of ``httpx.post`` for JSON; bytes become base64."""
    said = [{k: text(v) if isinstance(v, bytes) else v for k, v in one.items()} for one in ends]
    return {"json": {"pairs": said, **more}}


def body(content: str | bytes, kind: str = "application/json") -> dict[str, Any]:
    return {"content": content, "headers": {"Content-Type": kind}}


def moving(kind: str, **how: Any) -> bytes:
    frames = [picture((shade, 0, 0)) for shade in (0, 80, 160)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:], **how)


def noise(side: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))


BOMB = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"a" * 80_000_000))
DEEP = "[" * 20_000 + "]" * 20_000
MANY = json.dumps({"pairs": [{"before": "", "after": ""}] * 10_000})
OK = {"before": RED, "after": BLUE}
BOUNDARY = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="before"; filename="a.png"\r\n\r\n' + RED

BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "nothing": ({}, 415, "a body of type ''"),
    "plain text": (body("hello", "text/plain"), 415, "text/plain"),
    "a form of the web": ({"data": {"before": "a"}}, 415, "urlencoded"),
    "a picture alone": (body(RED, "image/png"), 415, "image/png"),
    "xml": (body("<pairs/>", "application/xml"), 415, "application/xml"),
    "half a JSON": (body('{"pairs": [{"before": "'), 422, "invalid JSON"),
    "NaN alone": (body("NaN"), 422, "object"),
    "NaN beams": (body('{"pairs": [{"before": "", "after": ""}], "beams": NaN}'), 422, "integer"),
    "NaN picture": (body('{"pairs": [{"before": NaN, "after": ""}]}'), 422, "string"),
    "not UTF-8": (body(b'{"pairs": "\xff\xfe"}'), 422, "invalid JSON"),
    "a list": (body("[]"), 422, "object"),
    "null": (body("null"), 422, "object"),
    "no bytes of JSON": (body(""), 422, "invalid JSON"),
    "20,000 brackets": (body(DEEP), 422, "invalid JSON"),
    "no pairs": (pairs(), 422, "at least 1"),
    "pairs missing": ({"json": {}}, 422, "required"),
    "after missing": (pairs({"before": RED}), 422, "required"),
    "a field too much": (pairs({**OK, "mask": ""}), 422, "not permitted"),
    "no beams": (pairs(OK, beams=0), 422, "greater than or equal to 1"),
    "99 beams": (pairs(OK, beams=99), 422, "less than or equal to 8"),
    "beams in words": (pairs(OK, beams="two"), 422, "integer"),
    "half a beam": (pairs(OK, beams=1.5), 422, "integer"),
    "a number for a picture": (pairs({"before": 1, "after": BLUE}), 422, "string"),
    "no base64": (pairs({"before": "no base64!", "after": BLUE}), 422, "no base64"),
    "a data address": (pairs({"before": "data:image/png;base64," + text(RED), "after": BLUE}), 422, "no base64"),
    "an empty picture": (pairs({"before": "", "after": BLUE}), 415, "an empty file"),
    "10,000 pairs": (body(MANY), 413, "10000 pairs"),
    "five pairs of four": (pairs(OK, OK, OK, OK, OK), 413, "5 pairs"),
    "a form without boundary": (body(b"--x--", "multipart/form-data"), 422, "boundary"),
    "a form that is none": (body(b"\x00\x01\x02", BOUNDARY), 422, "invalid multipart"),
    "a form cut in the middle": (body(PART, BOUNDARY), 422, "picture is missing"),
    "a form without after": ({"files": [("before", ("a.png", RED))]}, 422, "picture is missing"),
    "text for a file": ({"files": [("before", (None, "@before.png")), ("after", ("a.png", BLUE))]}, 422, "text, where"),
    "two before, one after": (
        {"files": [("before", ("a", RED)), ("before", ("b", RED)), ("after", ("c", BLUE))]}, 422, "2 pictures before",
    ),
    "an unknown field": ({**form(), "data": {"colour": "red"}}, 422, "unknown field 'colour'"),
    "100 files": ({"files": [("before", ("a", b""))] * 50 + [("after", ("a", b""))] * 50}, 413, "too many files"),
    "beams of a form": ({**form(), "data": {"beams": "-1"}}, 422, "no number of beams"),
    "a truncated PNG": (form(encoded(noise())[:3000]), 422, "damaged or cut short"),
    "a truncated JPEG": (form(encoded(noise(), "JPEG")[:700]), 422, "damaged or cut short"),
    "a PNG with a wrong check sum": (form(raw_png(9, 9, bytes(90), chunk(b"tEXt", b"a\0b", 1))), 415, "read"),
    "text named a PNG": (form(b"I am a picture."), 415, "not a picture"),
    "SVG": (form(b'<svg xmlns="http://www.w3.org/2000/svg"/>', kind="image/svg+xml"), 415, "not a picture"),
    "PDF": (form(b"%PDF-1.7\n%%EOF", kind="application/pdf"), 415, "not a picture"),
    "a bomb of text in a PNG": (form(raw_png(9, 9, bytes(90), BOMB)), 422, "too large"),
    "60,000 x 60,000 promised": (form(raw_png(60_000, 60_000, bytes(100))), 413, "far too many pixels"),
    "2,000 x 2,000 of one colour": (form(encoded(picture(0, (2000, 2000), "1"))), 413, "2000 x 2000"),
    "no pixels": (form(raw_png(0, 0, b"")), 415, "can be read"),
    "an animated GIF": (form(moving("GIF")), 422, "moving picture of 3 frames"),
    "an animated PNG": (form(moving("PNG")), 422, "moving picture of 3 frames"),
    "an animated WebP": (form(moving("WEBP")), 422, "moving picture of 3 frames"),
    "TIFF of three pages": (form(moving("TIFF")), 422, "moving picture of 3 frames"),
    "two sizes": (form(encoded(picture(size=(40, 30)))), 422, "different sizes"),
    "too many bytes": (form(bytes(400_000)), 413, "too large"),
    "another name": ({**form(), "headers": {"Host": "evil.example"}}, 421, "name"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_told_what_is_wrong(service, case):
    keywords, status, what = BAD[case]
    answer = web().post(f"{service.address}/v1/caption", **keywords)
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert set(said) == COMPLAINT
    assert what.lower() in said["what"].lower()
    assert all(isinstance(said[key], str) and said[key] for key in COMPLAINT - {"status"})
    assert said["status"] == status
    assert answer.headers["X-Request-Id"] == said["request"]


def turned() -> bytes:
    """Red left, blue right, lying on its side, with a note to turn it."""
    wide = picture((0, 0, 255), (40, 40))
    wide.paste((255, 0, 0), (0, 0, 40, 20))  # above; the note turns above to the right
    note = Image.Exif()
    note[0x0112] = 6
    return encoded(wide, exif=note)


ODD: dict[str, tuple[bytes, str]] = {
    "one pixel": (encoded(picture(size=(1, 1))), "200 30 30"),
    "CMYK": (encoded(Image.new("CMYK", (40, 40), (0, 255, 255, 0)), "JPEG", quality=100), "25[3-5] [0-2] [0-2]"),
    "turned by its EXIF": (turned(), "0 0 255"),
    "sixteen bits of gray": (encoded(Image.fromarray(np.full((40, 40), 0x8000, np.uint16))), "128 128 128"),
    "transparent": (encoded(picture((9, 9, 9, 0), mode="RGBA")), "255 255 255"),
    "of a palette": (encoded(picture().convert("P")), "20[0-9] [0-9]+ [0-9]+"),
    "a GIF that stands still": (encoded(picture(), "GIF"), "20. [0-9]+ [0-9]+"),
    "long and narrow": (encoded(picture(size=(4, 400))), "200 30 30"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_picture_is_read_as_people_see_it(service, case):
    data, colour = ODD[case]
    answer = web().post(f"{service.address}/v1/caption", **form(data, data, "text/plain"))
    assert answer.status_code == 200, answer.text
    assert re.fullmatch(f"teller: {colour} to {colour}", answer.json()["captions"][0]["text"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/caption", 405), ("DELETE", "/", 405), ("GET", "/nowhere", 404), ("GET", "/docs", 404),
        ("GET", "/page/../../serve.py", 404), ("GET", "/page/%2e%2e/serve.py", 404), ("GET", "/page/none.js", 404),
        ("POST", "/v1/explain", 415),
    ],
)  # fmt: skip
def test_a_path_or_method_that_is_not_served(service, method, path, status):
    answer = web().request(method, service.address + path)
    assert (answer.status_code, set(answer.json())) == (status, COMPLAINT)


def connect(service: Running) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", service.port), timeout=10)
    made.settimeout(10)
    return made


def head(length: int | str, more: str = "") -> bytes:
    return (
        f"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def received(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
        if b"}" in part:
            break
    return b"".join(parts)


def test_a_body_that_trickles_is_given_up(service):
    with connect(service) as slow:
        slow.sendall(head(1000))
        start = time.monotonic()
        slow.sendall(b'{"pairs"')
        assert b"408 Request Timeout" in received(slow)
        assert time.monotonic() - start < 8


def test_a_head_that_trickles_is_given_up(service):
    with connect(service) as slow:
        slow.sendall(b"POST /v1/caption HTTP/1.1\r\nHost: loc")
        assert slow.recv(100) == b"", "the connection is closed"


def test_a_silent_client_is_given_up(service):
    with connect(service) as silent:
        assert silent.recv(100) == b""


def test_a_body_of_unknown_length_is_counted(service):
    def endless():
        for _ in range(40):
            yield bytes(10_000)

    kind = {"Content-Type": "application/json"}
    answer = web().post(f"{service.address}/v1/caption", content=endless(), headers=kind)
    assert answer.status_code == 413


def test_a_client_that_leaves_in_the_middle(service):
    for sent in (b"", b'{"pairs": ['):
        with connect(service) as leaver:
            leaver.sendall(head(1000) + sent)


@pytest.mark.parametrize("line", [b"HELLO\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
def test_what_is_not_HTTP_is_refused(service, line):
    with connect(service) as odd:
        odd.sendall(line + b"\r\n\r\n")
        assert b"400" in odd.recv(1000) or not odd.recv(1000)


def test_a_length_that_lies(service):
    with connect(service) as liar:
        liar.sendall(head("-1"))
        assert b"400" in liar.recv(1000)
    with connect(service) as short:
        short.sendall(head(2) + b"{}and more that belongs to nothing")
        assert b"422" in received(short)


def test_several_pairs_come_back_in_order(service):
    colours = [(10, 0, 0), (20, 0, 0), (30, 0, 0)]
    ends = [{"before": encoded(picture(colour)), "after": BLUE} for colour in colours]
    answer = web().post(f"{service.address}/v1/caption", **pairs(*ends)).json()
    assert [one["text"].split()[1] for one in answer["captions"]] == ["10", "20", "30"]
