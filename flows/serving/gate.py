"""Who comes in: the right address, a token where one is needed, and a body that is neither too large nor too slow."""

import asyncio
import contextlib
import hmac
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.serving.limits import Limits
from flows.serving.refusal import Refusal, answer

OPEN = ("/", "/healthz", "/readyz", "/openapi.json", "/page/")
"""Paths that need no token, all that begin with the last one included: nothing here runs the model or tells of it."""

LINGER_SECONDS, LINGER_BYTES = 5.0, 200_000_000
"""So much of a body that was refused is still read, so that its sender comes to read the answer."""


class Gate:
    """ASGI: refuses before anything is read, or while it is."""

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None, hosts: Collection[str] | None) -> None:
        """``hosts``: names under which the service may be asked, None for all."""
        self.app, self.limits, self.token, self.hosts = app, limits, token, hosts
        self.inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        if refusal is not None:
            if "expect" not in Headers(scope=scope):  # else the body is still where it was
                await _linger(receive)
            await answer(refusal, scope.get("procap.request", ""))(scope, receive, send)
            return
        self.inside += 1
        try:
            await self.app(scope, Body(receive, self.limits), send)
        finally:
            self.inside -= 1

    def _refusal(self, path: str, headers: Headers) -> Refusal | None:
        if self.hosts is not None and re.sub(r":\d*$", "", headers.get("host", "").lower()) not in self.hosts:
            return Refusal(
                421,
                "a name that this service does not go by",
                where="header Host",
                expected=f"one of {', '.join(sorted(self.hosts))}",
                do="ask under one of them; for other names start the service with a token (see `procap serve --help`)",
            )
        if self.token is not None and not _is_open(path) and not self._knows(headers.get("authorization", "")):
            return Refusal(
                401,
                "no token, or a wrong one",
                where="header Authorization",
                expected="Bearer and the token that the service was started with",
                do="add it",
            )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.body:
            return _too_large(self.limits)
        if self.inside >= self.limits.requests:
            return Refusal(
                429,
                f"{self.inside} requests are being answered",
                where="the service",
                expected=f"at most {self.limits.requests} at once",
                do="try again in a moment",
                later=1,
            )
        return None

    def _knows(self, given: str) -> bool:
        kind, _, token = given.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), (self.token or "").encode())


class Body:
    """``receive`` that counts bytes and seconds until the body is whole, and raises Refusal when there are too many."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self.receive, self.limits = receive, limits
        self.left, self.whole = limits.body, False
        self.end = asyncio.get_running_loop().time() + limits.arrival

    async def __call__(self) -> Message:
        if self.whole:
            return await self.receive()
        try:
            async with asyncio.timeout_at(self.end):
                message = await self.receive()
        except TimeoutError:
            raise Refusal(
                408,
                "the request came too slowly",
                where="the body",
                expected=f"all of it within {self.limits.arrival:g} seconds",
                do="send it again, or smaller pictures",
            ) from None
        if message["type"] == "http.request":
            self.left -= len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.left < 0:
                if not self.whole:
                    await _linger(self.receive)
                raise _too_large(self.limits)
        return message


def _is_open(path: str) -> bool:
    return path in OPEN[:-1] or path.startswith(OPEN[-1])


def _too_large(limits: Limits) -> Refusal:
    return Refusal(
        413,
        "the request is too large",
        where="the body",
        expected=f"at most {limits.body} bytes",
        do="send fewer pairs at once, or smaller pictures",
    )


async def _linger(receive: Receive) -> None:
    left = LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
