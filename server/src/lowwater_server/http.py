"""HTTP beside something else: a server on a thread of its own, of the parts that it is given.

The thread has its own event loop, so that what it answers waits for nothing else in the process,
and nothing that fails here reaches that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import hdrs, web

from lowwater import errors
from lowwater.core.events import event
from lowwater_server.connections import IDLE_SECONDS, Connections, NotHttp
from lowwater_server.visitors import EVERYBODY, Denied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lowwater_server.tls import Certificates
    from lowwater_server.visitors import Visitors

    Handler = Callable[[web.Request], Any]

BACKLOG: Final = 128
"""Connections that wait to be accepted."""

_MOST_PORT: Final = 65_535

AGAIN: Final[Mapping[str, str]] = {hdrs.RETRY_AFTER: "5"}
"""When those who are refused for now may come again, in seconds."""

STOP_SECONDS: Final = 1.0
"""How long running requests may take after a stop was asked for."""

JOIN_SECONDS: Final = 5.0
"""How long the thread may take to end."""

LEAST_GZIPPED: Final = 1024
"""Bytes from which compression is worth its while."""

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer: the page loads nothing from elsewhere, and tells nobody where it is."""

HSTS: Final = {"Strict-Transport-Security": "max-age=86400"}
"""Header of every answer over TLS: for a day a browser comes back to this host over TLS only,
whatever a link says."""

STATUS: Final[Mapping[type[errors.LowwaterError], int]] = {
    errors.InvalidArgument: 400,
    errors.UnknownComputation: 404,
}
"""What a failed question becomes; all others pass, hence 503."""

log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks one, and ``[::]`` takes IPv4 too where the system can. Raises OSError."""
    if not 0 <= port <= _MOST_PORT:  # a socket that is bound to it would stay open behind the OverflowError
        raise OSError(None, f"there is no port {port}")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except UnicodeError as error:
        raise OSError(None, f"{host!r} is no name of a host") from error


def listen_at(path: str) -> socket.socket:
    """Return a listening Unix socket, which only this user may reach.

    One that a process left behind is replaced. Raises OSError.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            listening.connect(path)
            raise OSError(errno.EADDRINUSE, f"{path} is in use by another process")
        listening.close()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = Path(path)
        if place.exists():
            if not place.is_socket():
                raise OSError(errno.EEXIST, f"{path} is no socket")
            place.unlink()
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def url_of(listening: socket.socket, *, encrypted: bool) -> str:
    """Return where a listening socket is reached, with a slash behind it."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if encrypted else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


class Part(Protocol):
    """Some of what a server answers.

    Used by the one event loop of the server, but for its making.
    """

    def begin(self, visitors: Visitors) -> None:
        """Begin, in the event loop; ``visitors`` says who may look."""
        ...

    def routes(self) -> list[web.RouteDef]:
        """Return what it answers. Asked once, after ``begin``."""
        ...

    def health(self) -> Mapping[str, Any]:
        """Return what ``/healthz`` says of it, which is for everybody."""
        ...

    def end(self) -> None:
        """End what it has begun; requests may still come."""
        ...


class HttpServer:
    """Serves some parts, and ``/healthz``, until :meth:`close`.

    With ``certificates`` it speaks TLS only; it answers those whom ``visitors`` lets in.
    ``on_not_http`` is called for what is sent to it and is no HTTP, and ``on_failed`` when it has
    ended by itself, as it never should. A connection that asks nothing for ``idle_seconds`` is cut
    off.
    """

    def __init__(
        self,
        listening: socket.socket,
        parts: Sequence[Part],
        *,
        certificates: Certificates | None = None,
        visitors: Visitors = EVERYBODY,
        on_not_http: Callable[[], None] = lambda: None,
        on_failed: Callable[[], None] = lambda: None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._certificates = certificates
        self._visitors = visitors
        self._not_http = NotHttp(on_not_http)
        self._on_failed = on_failed
        self._idle_seconds = idle_seconds
        self._listening = listening
        self._parts = tuple(parts)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="lowwater-http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """End what is open, and the thread."""
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:  # it has ended by itself, and told why
            pass
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception:
            log.exception("nothing is served over HTTP any more", extra=event("page_failed"))
            self._on_failed()
        finally:
            self._listening.close()

    async def _serve(self) -> None:
        self._connections = Connections(self._listening, self._certificates, self._idle_seconds)
        for each in self._parts:
            each.begin(self._visitors)
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            logger=self._not_http,
            handler_cancellation=True,
            shutdown_timeout=STOP_SECONDS,
            handle_signals=False,
        )
        await runner.setup()
        assert runner.server is not None
        accepting = asyncio.create_task(self._connections.run(runner.server))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((accepting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()
        finally:
            for each in self._parts:
                each.end()
            for task in (accepting, stopping):
                task.cancel()
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._answering, _refusing, self._visitors.admitting])
        app.on_response_prepare.append(self._secure)
        app.add_routes([web.get("/healthz", self._health), *self._visitors.routes()])
        for each in self._parts:
            app.add_routes(each.routes())
        return app

    @web.middleware
    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep a connection open for as long as its request takes."""
        with self._connections.answering(request.protocol):
            response: web.StreamResponse = await handler(request)
            return response

    async def _secure(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SECURITY)
        if self._certificates is not None:
            response.headers.update(HSTS)
        response.headers.pop(hdrs.SERVER, None)

    async def _health(self, request: web.Request) -> web.Response:
        parameters(request)
        found: dict[str, Any] = {"status": "serving"}
        for each in self._parts:
            found |= each.health()
        return answer(json.dumps(found).encode())


class BadParameter(Exception):
    """The message names the parameter and what to send instead."""


def parameters(request: web.Request, *known: str) -> dict[str, str]:
    """Return the parameters of a request.

    Raises BadParameter for those that it does not have, and for repeated ones.
    """
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            takes = f"takes {' and '.join(known)}" if known else "takes none"
            raise BadParameter(f"{request.path} has no parameter {name!r}: it {takes}")
        if name in given:
            raise BadParameter(f"{name} is given more than once: give it once")
        given[name] = value
    return given


def answer(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer in JSON, compressed when that is worth its while."""
    response = web.Response(
        body=body,
        status=status,
        headers={hdrs.CONTENT_TYPE: "application/json", hdrs.CACHE_CONTROL: "no-store", **(headers or {})},
    )
    if len(body) >= LEAST_GZIPPED:
        response.enable_compression()
    return response


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return answer(json.dumps({"error": sentence}).encode(), status, headers)


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raises into an answer that says what to do."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed: dict[str, str] = {hdrs.ALLOW: error.headers[hdrs.ALLOW]}
        return _refusal(405, f"{request.method} is not served here: this API only reads, use GET", allowed)
    except web.HTTPException as error:
        return _refusal(error.status, error.text or error.reason)
    except BadParameter as error:
        return _refusal(400, str(error))
    except Denied as error:
        return _refusal(error.status, str(error), error.headers)
    except errors.LowwaterError as error:
        status = STATUS.get(type(error), 503)
        return _refusal(status, str(error), AGAIN if status == 503 else None)
    except ConnectionError:
        raise  # the other side has gone
    except Exception:
        log.exception("%s failed", request.path, extra=event("page_failed", path=request.path))
        return _refusal(500, "this request failed within the server; its log says why")
    else:
        return response
