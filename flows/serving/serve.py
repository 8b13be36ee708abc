"""``procap serve``: from an address and a port to a service that runs until it is told to end."""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from flows.serving.champion import Champion
from flows.serving.limits import Limits
from flows.serving.measures import Measures
from flows.serving.service import make_app
from flows.serving.watch import start_log
from procap.errors import BadInput

TOKEN = "PROCAP_TOKEN"
"""Environment variable with the token that clients have to show."""

HOME = {"localhost", "127.0.0.1", "[::1]"}
"""Names under which a service on loopback is asked."""


@dataclass(frozen=True)
class Settings:
    """What ``procap serve`` can be told."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    batch: int = 16
    patience: float = 0.004
    every: float = 10.0
    """Seconds between looks at the alias."""
    log: str = "info"
    limits: Limits = field(default_factory=Limits)


def serve(root: Path, settings: Settings, say: Callable[[str], Any]) -> None:
    """Serve until SIGINT or SIGTERM, then finish what was begun.

    Raises BadInput, before anything listens, for a model that cannot be loaded, a port that is taken, or an address
    that others reach without a token.
    """
    token = os.environ.get(TOKEN) or None
    check_exposure(settings.host, token)
    listener = listen(settings.host, settings.port)
    try:
        app = build(root, settings, token)
        start_log(settings.log)
        name, port = listener.getsockname()[:2]
        address = f"http://{f'[{name}]' if ':' in name else name}:{port}"
        say(f"{address} serves {app.state.service.champion.address}; Ctrl-C ends it")
        config = Config(
            app, http=PatientProtocol, log_config=None, access_log=False, server_header=False, lifespan="on",
            timeout_graceful_shutdown=int(settings.limits.answer) + 5, ws="none",
        )  # fmt: skip
        Server(config).run(sockets=[listener])
    finally:
        listener.close()


def build(root: Path, settings: Settings, token: str | None) -> Any:
    """The app of these settings, with its model loaded and tried."""
    from procap import load_captioner

    measures = Measures()

    def swapped(captioner: Any) -> None:
        measures.swaps.inc()
        measures.serves(captioner.about)

    find, follows = address_finder(root, settings.model)
    champion = Champion(
        find,
        lambda address: load_captioner(address, settings.device),
        settings.every,
        swapped=swapped,
        failed=measures.failures.inc,
    )
    return make_app(
        champion, settings.limits, batch=settings.batch, patience=settings.patience, follows=follows, token=token,
        hosts=None if token else HOME, measures=measures,
    )  # fmt: skip


def address_finder(root: Path, model: str) -> tuple[Callable[[], str], str | None]:
    """A function that tells which model should answer now; and the alias that it follows, if any.

    ``models:/<name>@<alias>`` becomes ``models:/<name>/<version>``; every other address stays.
    """
    name, sign, alias = model.removeprefix("models:/").partition("@")
    if not model.startswith("models:/") or not sign:
        return (lambda: model), None
    from flows.store import connect

    client = connect(root)

    def find() -> str:
        from mlflow.exceptions import MlflowException

        try:
            return f"models:/{name}/{client.get_model_version_by_alias(name, alias).version}"
        except MlflowException as error:
            raise BadInput(
                f"the alias names no model: {str(error).splitlines()[0]}",
                where=model,
                expected="a registered model with this alias",
                do="register one (`procap repro`), set the alias, or serve another one (models:/procap@challenger)",
            ) from None

    return find, model


def check_exposure(host: str, token: str | None) -> None:
    """Refuse to be reached from elsewhere without a token."""
    if token is not None and len(token) < 16:
        raise BadInput(
            f"a token of {len(token)} characters can be guessed", where=TOKEN, expected="at least 16",
            do='make one: python -c "import secrets; print(secrets.token_urlsafe())"',
        )  # fmt: skip
    if token is None and not is_loopback(host):
        raise BadInput(
            "anybody who reaches this machine could use the service",
            where=f"--host {host}",
            expected=f"a token in the environment variable {TOKEN}, or a loopback address (127.0.0.1)",
            do=f"export {TOKEN}=$(python -c 'import secrets; print(secrets.token_urlsafe())'), and give it to clients",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; BadInput where it cannot be."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
        return listener
    except OSError as error:
        raise BadInput(
            f"nothing can listen there ({error.strerror or error})",
            where=f"{host}, port {port}",
            expected="an address of this machine and a free port",
            do="choose another --port; is the service running already?",
        ) from None


class PatientProtocol(H11Protocol):
    """uvicorn's, with a limit to how long the head of a request may take; uvicorn itself waits for ever."""

    seconds = Limits().arrival
    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock where a head is due, stop it where one came."""
        if self.conn.their_state is not h11.IDLE:
            self._rest()
        elif self.late is None:
            self.late = self.loop.call_later(self.seconds, self._end)

    def _rest(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _end(self) -> None:
        self.late = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
