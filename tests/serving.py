"""A service on a port of its own, with a captioner that tells what it was given."""

import functools
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

from flows.serving.champion import Champion
from flows.serving.limits import Limits
from flows.serving.serve import PatientProtocol, listen
from flows.serving.service import make_app
from procap.captioners import GREEDY, Decoding
from procap.captioning.captioner import About, Caption, Explanation

SIDE = 32
SMALL = Limits(body=300_000, pixels=1_000_000, pairs=4, explained=2, queue=6, requests=12, arrival=0.8, answer=1.5)


@functools.cache
def web() -> httpx.Client:
    """A client for all tests; making one costs more than a request."""
    return httpx.Client(verify=False, timeout=20)


@dataclass(eq=False)
class Teller:
    """A captioner that says the colours of the upper left corners, and how many pairs came at once."""

    name: str = "teller"
    seconds: float = 0.0
    batches: list[int] = field(default_factory=list)
    gate: threading.Event | None = None
    error: Exception | None = None

    @property
    def about(self) -> About:
        return About(f"models:/{self.name}/1", "1", self.name * 8, "procap", SIDE, f"# {self.name}")

    def caption(self, before: list, after: list, explain: bool = False, decoding: Decoding = GREEDY) -> list[Caption]:
        self.batches.append(len(before))
        if self.gate is not None:
            assert self.gate.wait(20)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return [self._say(*ends, explain, decoding.beams) for ends in zip(before, after, strict=True)]

    def _say(self, before: np.ndarray, after: np.ndarray, explain: bool, beams: int) -> Caption:
        assert before.shape == after.shape == (SIDE, SIDE, 3)
        corners = [" ".join(map(str, picture[2, 2])) for picture in (before, after)]
        text = f"{self.name}: {corners[0]} to {corners[1]}"
        words = tuple(text.split())
        maps = np.linspace(0, 1, len(words) * SIDE * SIDE).reshape(len(words), SIDE, SIDE)
        reasons = Explanation(
            maps, 1 - maps, np.full((len(words), 4), 0.25), maps[-1], np.stack([before, before, after, after])
        )
        probabilities = (1 / beams,) * len(words)
        return Caption(text, words, probabilities, 1.0, 0.5, 0.75, maps[0] > 0.1, reasons if explain else None)


def champion(captioner: Any, **others: Any) -> Champion:
    """A champion that is loaded already; ``others`` by their address can take its place."""
    known = {captioner.about.address: captioner}
    return Champion(lambda: captioner.about.address, known.__getitem__, 60.0, **others)


@dataclass
class Running:
    """Where a service answers."""

    port: int
    app: Any

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(app: Any, head_seconds: float = 20.0) -> Iterator[Running]:
    """Serve an app by uvicorn in a thread, as ``procap serve`` does; it drains when the block ends."""
    from uvicorn import Config, Server

    protocol = type("Protocol", (PatientProtocol,), {"seconds": head_seconds})
    listener = listen("127.0.0.1", 0)
    server = Server(Config(app, http=protocol, log_config=None, access_log=False, lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield Running(listener.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the service did not end"
        listener.close()


def told(captioner: Any | None = None, **settings: Any) -> Any:
    """The app with a captioner that tells what it sees."""
    return make_app(champion(captioner or Teller()), **({"limits": SMALL} | settings))


def picture(colour: Any = (200, 30, 30), size: tuple[int, int] = (40, 40), mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, colour)


def encoded(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


RED, BLUE = encoded(picture((200, 30, 30))), encoded(picture((30, 30, 200)))


def form(before: bytes = RED, after: bytes = BLUE, kind: str = "image/png") -> dict[str, Any]:
    """Keywords of ``httpx.post`` for one pair."""
    return {"files": [("before", ("before.png", before, kind)), ("after", ("after.png", after, kind))]}
