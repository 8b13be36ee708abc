"""What the service refuses, in the house form, as JSON with a status that fits."""

import http

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from procap.errors import BadInput


class Refusal(BadInput):
    """Bad input, or a bad moment, with its HTTP status; ``later``: seconds after which to try again."""

    def __init__(self, status: int, what: str, *, where: str, expected: str, do: str, later: int | None = None) -> None:
        super().__init__(what, where=where, expected=expected, do=do)
        self.status, self.later = status, later


class Complaint(BaseModel):
    """Every answer whose status is 400 or more looks like this."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "what": "the picture is damaged or cut short (image file is truncated)",
                    "where": "pairs[0].before",
                    "expected": "a readable, still picture (PNG, JPEG, GIF, WEBP, BMP, TIFF)",
                    "do": "send another picture",
                    "status": 422,
                    "request": "5b0f3c7f9d5a4a0e",
                }
            ]
        }
    )
    what: str = Field(description="what is wrong")
    where: str = Field(description="in which part of the request, or of the service")
    expected: str = Field(description="what would have been right")
    do: str = Field(description="what to do now")
    status: int = Field(description="the HTTP status again")
    request: str = Field(description="the request's number, which the log has too")


def answer(refusal: BadInput, request: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The response to a refusal; 422 where it has no status of its own."""
    status = refusal.status if isinstance(refusal, Refusal) else 422
    headers = dict(headers or {})
    if isinstance(refusal, Refusal) and refusal.later is not None:
        headers["Retry-After"] = str(refusal.later)
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="procap"'
    body = Complaint(
        what=refusal.what, where=refusal.where, expected=refusal.expected, do=refusal.do,
        status=status, request=request,
    )  # fmt: skip
    return JSONResponse(body.model_dump(), status, headers)


def install(app: FastAPI) -> None:
    """Give every error of the app the house form."""

    @app.exception_handler(BadInput)
    async def refused(request: Request, error: BadInput) -> JSONResponse:
        return answer(error, number(request))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it; the log does

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> JSONResponse:
        phrase = http.HTTPStatus(error.status_code).phrase.lower()
        refusal = Refusal(
            error.status_code,
            f"{phrase}: {request.method} {request.url.path[:200]}",
            where="the request's first line",
            expected="a path and a method that /openapi.json lists",
            do="look there",
        )
        return answer(refusal, number(request), dict(error.headers or {}))


def failure(path: str, error: Exception) -> Refusal:
    """What is said of a fault of ours."""
    return Refusal(
        500,
        f"the service failed ({type(error).__name__})",
        where=path[:200],
        expected="an answer",
        do="look for this request in the service's log; try again",
    )


def number(request: Request) -> str:
    """The request's number, as the watch gave it."""
    return request.scope.get("procap.request", "")
