"""The HTTP service: two pictures in, a sentence out, and what the model imagined on the way."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect

from flows.serving import answers
from flows.serving.batching import Batched, Batcher, Task, closing
from flows.serving.champion import Champion
from flows.serving.documentation import ABOUT, described
from flows.serving.gate import Gate
from flows.serving.intake import open_pictures, read_request
from flows.serving.limits import Limits
from flows.serving.measures import Measures
from flows.serving.refusal import Refusal, install
from flows.serving.watch import Watch

PAGE = Path(__file__).parent / "page"

DECODERS = 2
"""Threads that decode pictures; they bound the memory that large ones take."""


class Service:
    """What the routes share: the model that answers, the queue before it, the limits."""

    def __init__(self, champion: Champion, batcher: Batcher, limits: Limits, measures: Measures) -> None:
        self.champion, self.batcher, self.limits, self.measures = champion, batcher, limits, measures
        self.decoders = ThreadPoolExecutor(DECODERS, "decode")

    async def caption(self, request: Request, explain: bool) -> tuple[list[Any], dict[str, Any]]:
        """The captions that a request asks for, and what every answer says besides.

        Raises Refusal: too much, too slow, not understood, or a bad moment.
        """
        start = time.perf_counter()
        if self.batcher.closing:
            raise closing()
        asked = await read_request(request, self.limits, self.limits.explained if explain else self.limits.pairs)
        captioner = self.champion.captioner  # this request's, whoever takes its place meanwhile
        facts = request.scope.setdefault("procap.facts", {})
        facts |= {"pairs": len(asked.pairs), "explain": explain, "model": captioner.about.digest[:12]}
        loop, opened = asyncio.get_running_loop(), 0.0

        async def work() -> Batched:
            nonlocal opened
            side = captioner.about.image_size
            pairs = await loop.run_in_executor(self.decoders, open_pictures, asked, self.limits, side)
            opened = time.perf_counter()
            return await self.batcher.caption(Task(captioner, explain, asked.beams), pairs)

        read = time.perf_counter()
        try:
            async with asyncio.timeout(self.limits.answer):
                done = await until_gone(request, work())
        except TimeoutError:
            raise Refusal(
                504,
                "the answer was not ready in time",
                where="the service",
                expected=f"an answer within {self.limits.answer:g} seconds",
                do="try again, with fewer pairs",
                later=2,
            ) from None
        except ValueError as error:
            if asked.beams == 1:
                raise
            raise Refusal(
                422, f"this model does not search ({error})", where="beams", expected="1", do="leave it out"
            ) from None
        total = time.perf_counter() - start
        facts |= {"waiting_ms": _ms(done.waited), "model_ms": _ms(done.worked)}
        spent = answers.Milliseconds(
            reading=_ms(opened - read), waiting=_ms(done.waited), model=_ms(done.worked), total=_ms(total)
        )
        return done.captions, {"model": answers.model(captioner.about), "milliseconds": spent}


async def until_gone(request: Request, work: Any) -> Any:
    """The result of ``work``; cancels it, and raises ClientDisconnect, where the client goes away first."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for one in (working, gone):
            one.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(
    champion: Champion,
    limits: Limits | None = None,
    *,
    batch: int = 16,
    patience: float = 0.004,
    follows: str | None = None,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    measures: Measures | None = None,
) -> FastAPI:
    """The whole service as an ASGI app.

    Up to ``batch`` pairs that come within ``patience`` seconds go through the model together. With ``follows``, an
    alias, the app looks for newer models. ``token`` guards everything but the page and health; ``hosts`` are the
    names under which the app may be asked, None for all.
    """
    limits, measures = limits or Limits(), measures or Measures()
    batcher = Batcher(batch, patience, limits.queue, measures.batched)
    measures.waiting.set_function(lambda: len(batcher.waiting))
    measures.serves(champion.captioner.about)
    service = Service(champion, batcher, limits, measures)

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        following = asyncio.create_task(champion.follow()) if follows else None
        yield
        if following:
            following.cancel()
        await batcher.close()
        service.decoders.shutdown(cancel_futures=True)

    app = FastAPI(**ABOUT, lifespan=life, docs_url=None, redoc_url=None)  # those pages load scripts from elsewhere
    app.state.service = service
    app.add_middleware(Gate, limits=limits, token=token, hosts=hosts)
    app.add_middleware(Watch, measures=measures)
    install(app)
    _add_routes(app, service, follows)
    _add_page(app)
    return app


def _add_routes(app: FastAPI, service: Service, follows: str | None) -> None:
    champion = service.champion

    @app.post("/v1/caption", response_model=answers.Captions, tags=["captions"], **described("caption"))
    async def caption(request: Request) -> Any:
        """Say what changed between two pictures, for one pair or several."""
        captions, besides = await service.caption(request, explain=False)
        return answers.Captions(captions=[answers.captioned(one) for one in captions], **besides)

    @app.post("/v1/explain", response_model=answers.Explanations, tags=["captions"], **described("explain"))
    async def explain(request: Request) -> Any:
        """Say what changed, where the model looked for each word, and what it imagined between the pictures."""
        captions, besides = await service.caption(request, explain=True)
        shown = await asyncio.to_thread(lambda: [answers.explained(one) for one in captions])
        return answers.Explanations(captions=shown, **besides)

    @app.get("/v1/model", response_model=answers.Model, tags=["model"])
    async def model() -> Any:
        """Which model answers now."""
        return answers.model(champion.captioner.about)

    @app.get("/v1/card", response_class=PlainTextResponse, tags=["model"])
    async def card() -> Any:
        """The model card, as Markdown."""
        text = champion.captioner.about.card
        if text is None:
            raise Refusal(
                404, "this model has no card", where=champion.address, expected="a registered version",
                do="serve models:/<name>@<alias> instead of a folder",
            )  # fmt: skip
        return text

    @app.get("/healthz", tags=["service"])
    async def healthz() -> dict[str, bool]:
        """The process answers."""
        return {"alive": True}

    @app.get("/readyz", response_model=answers.Ready, responses={503: {"model": answers.Ready}}, tags=["service"])
    async def readyz() -> Any:
        """Whether pairs are taken. A newer model that cannot be loaded is told here; the old one answers on."""
        problem = champion.problem
        told = None if problem is None else {key: getattr(problem, key) for key in ("what", "where", "expected", "do")}
        about = answers.model(champion.captioner.about)
        ready = answers.Ready(ready=not service.batcher.closing, model=about, follows=follows, problem=told)
        return ready if ready.ready else JSONResponse(ready.model_dump(), 503)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["service"])
    async def metrics() -> Any:
        """Numbers for Prometheus."""
        return Response(service.measures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/page", StaticFiles(directory=PAGE))


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
