"""The model that answers, and how a newer one takes its place while requests come in."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from procap.errors import BadInput

LOG = logging.getLogger("procap.serving")

AGAIN_SECONDS = 60.0
"""A version that could not be loaded is tried again after so long."""


class Champion:
    """Holds the captioner that answers; looks now and then whether its alias names another one.

    The new one is loaded and asked for a caption beside the old one, which answers meanwhile, and until its last
    request is done. Whatever goes wrong, the old one stays and ``problem`` says why.
    """

    def __init__(
        self,
        find: Callable[[], str],
        load: Callable[[str], Any],
        every: float,
        swapped: Callable[[Any], None] = lambda captioner: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """``find`` gives the address of the model that should answer; ``load`` opens it. Raises what they raise."""
        self.find, self.load, self.every, self.swapped, self.failed = find, load, every, swapped, failed
        self.address = find()
        self.captioner = tried(load(self.address))
        self.problem: BadInput | None = None
        self._refused, self._until = "", 0.0

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self.every)
            await self.look()

    async def look(self) -> None:
        """Let a newer model take over, if there is one and it works."""
        try:
            address = await asyncio.to_thread(self.find)
        except Exception as error:
            self._keep("the alias cannot be looked up", "", error)
            return
        if address == self.address:
            self.problem = None
            return
        if address == self._refused and time.monotonic() < self._until:
            return
        try:
            captioner = await asyncio.to_thread(lambda: tried(self.load(address)))
        except Exception as error:
            self._refused, self._until = address, time.monotonic() + AGAIN_SECONDS
            self._keep("the newer model does not work", address, error)
            self.failed()
            return
        LOG.info("swapped", extra={"facts": {"from": self.address, "to": address}})
        self.address, self.captioner, self.problem = address, captioner, None
        self.swapped(captioner)

    def _keep(self, what: str, address: str, error: Exception) -> None:
        said = error.what if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        self.problem = BadInput(
            f"{what}: {said}"[:500],
            where=address or "the model registry",
            expected="a model that loads and captions a pair",
            do=f"mend it, or set the alias to another version; {self.address} answers meanwhile",
        )
        LOG.warning("kept", extra={"facts": {"serving": self.address, "problem": self.problem.what}})


def tried(captioner: Any) -> Any:
    """The captioner, after it captioned a pair: it works, and the first request does not pay for the start."""
    side = captioner.about.image_size
    gray = np.full((side, side, 3), 128, np.uint8)
    captioner.caption([gray], [gray], explain=True)
    return captioner
