"""An HTTP server on a thread of its own, beside other work of a process.

The thread has its own event loop: its answers wait for nothing else in the process, and its
failures reach nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
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

AGAIN: Final[Mapping[str, str]] = {hdrs.RETRY_AFTER: "5"}
"""Header of a refusal that is not for ever: seconds until the next try."""

STOP_SECONDS: Final = 1.0
"""Time that running requests have to end when the server stops."""

JOIN_SECONDS: Final = 5.0
"""Time that the thread has to end."""

LEAST_GZIPPED: Final = 1024
"""Least size of an answer that is compressed, in bytes."""

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer: the page loads nothing from other hosts, and sends them no address."""

HSTS: Final = {"Strict-Transport-Security": "max-age=86400"}
"""Header of every answer over TLS: browsers use only TLS for this host, for a day."""

STATUS: Final[Mapping[type[errors.LowwaterError], int]] = {
    errors.InvalidArgument: 400,
    errors.UnknownComputation: 404,
}
"""Status by error; other errors are temporary, so their status is 503."""

log = logging.getLogger(__name__)


class Part(Protocol):
    """A part of a server. After its construction only the server's event loop uses it."""

    def begin(self, visitors: Visitors) -> None:
        """Begin, in the event loop; ``visitors`` decides who may see what."""
        ...

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the part; called once, after ``begin``."""
        ...

    def health(self) -> Mapping[str, Any]:
        """Return the fields of the part in ``/healthz``, which everybody may see."""
        ...

    def end(self) -> None:
        """End what ``begin`` began; requests may still come."""
        ...


class HttpServer:
    """Serves some parts, and ``/healthz``, until :meth:`close`.

    With ``certificates`` the server speaks TLS only; ``visitors`` decides who may see what. The
    server calls ``on_not_http`` for bytes that are no HTTP, and ``on_failed`` if it ends by a
    failure. It cuts off connections that send no request for ``idle_seconds``.
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
        """End all connections and the thread."""
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:  # the loop has ended by a failure, which is logged
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
        for part in self._parts:
            part.begin(self._visitors)
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
            for part in self._parts:
                part.end()
            for task in (accepting, stopping):
                task.cancel()
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._answering, _refusing, self._visitors.admitting])
        app.on_response_prepare.append(self._secure)
        app.add_routes([web.get("/healthz", self._health), *self._visitors.routes()])
        for part in self._parts:
            app.add_routes(part.routes())
        return app

    @web.middleware
    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep a connection open while its request is answered."""
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
        health: dict[str, Any] = {"status": "serving"}
        for part in self._parts:
            health |= part.health()
        return answer(json.dumps(health).encode())


class BadParameter(Exception):
    """A request has a bad parameter; the message names it and what to send instead."""


def parameters(request: web.Request, *allowed: str) -> dict[str, str]:
    """Return the parameters of a request. Raises BadParameter for unknown and repeated ones."""
    values: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in allowed:
            takes = f"takes {' and '.join(allowed)}" if allowed else "takes none"
            raise BadParameter(f"{request.path} has no parameter {name!r}: it {takes}")
        if name in values:
            raise BadParameter(f"{name} is given more than once: give it once")
        values[name] = value
    return values


def answer(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer in JSON, compressed if it is long."""
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
    """Turn an error of a handler into an answer that says what to do."""
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
