"""Around every request: its number, a line in the log, measures, and headers that keep browsers careful."""

import json
import logging
import re
import secrets
import sys
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.serving.measures import Measures
from flows.serving.refusal import answer, failure

LOG = logging.getLogger("procap.serving")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own files, and pictures that it got or was given."""

CAREFUL = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


UNSENT = 499
"""The status of a request whose client went away before anything was sent."""


class Watch:
    """ASGI: numbers, logs and measures requests. Pictures, captions and tokens never reach the log."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self.app, self.measures = app, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        scope["procap.request"] = given if re.fullmatch(r"[\w.-]{1,64}", given) else secrets.token_hex(8)
        start, status = time.perf_counter(), UNSENT
        facts: dict[str, Any] = scope.setdefault("procap.facts", {})

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = scope["procap.request"]
                for name, value in CAREFUL.items():
                    headers.setdefault(name, value)
            await send(message)

        self.measures.inside.inc()
        try:
            await self.app(scope, receive, send_watched)
        except Exception as error:  # a fault of ours: the client learns its kind, the log has the rest
            LOG.exception("failed", extra={"facts": {"request": scope["procap.request"]}})
            if status != UNSENT:
                raise
            await answer(failure(scope["path"], error), scope["procap.request"])(scope, receive, send_watched)
        finally:
            self.measures.inside.dec()
            seconds = time.perf_counter() - start
            path = getattr(scope.get("route"), "path", "other")
            self.measures.requests.labels(path, str(status)).inc()
            self.measures.seconds.labels(path).observe(seconds)
            line = {
                "request": scope["procap.request"],
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "milliseconds": round(1000 * seconds, 1),
                **facts,
            }
            LOG.info("request", extra={"facts": line})


class Lines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_log(level: str) -> None:
    """Send our lines, and those of uvicorn, to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    for name in ("procap.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
