"""HTTP beside gRPC: the status page, its API and /metrics, on a thread of its own.

The thread has its own event loop, so that neither a scrape nor a page waits for the one that commits, and nothing that fails here
reaches it. It only ever reads, and shows only what was published.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

from lowwater import errors
from lowwater._core.events import event
from lowwater_authority.web import assets, records
from lowwater_authority.web.board import STEP_SECONDS
from lowwater_authority.web.connections import Connections, NotHttp
from lowwater_authority.web.feed import Feed
from lowwater_authority.web.questions import Questions
from lowwater_authority.web.visitors import EVERYBODY, Denied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from lowwater import Client
    from lowwater_authority.access.tls import Certificates
    from lowwater_authority.web.board import Board
    from lowwater_authority.web.follower import Follower
    from lowwater_authority.web.visitors import Visitors

    Handler = Callable[[web.Request], Any]
    Expose = Callable[[str], tuple[bytes, str]]

MOST_VIEWERS: Final = 100
"""Pages that may be open at once; more are told to come again. Each costs a connection and at most some 300 KB of buffers."""

MOST_SCRAPES: Final = 8
"""Scrapes of /metrics that are answered, one after the other, or wait; more are refused."""

MOST_RANGES: Final = 1000
"""Key ranges in one answer."""

COMPLETIONS: Final = 240
"""Completions in one answer: ten days of hours."""

BACKLOG: Final = 128
"""Connections that wait to be accepted."""

STALLED_SECONDS: Final = 30.0
"""How long a viewer may take nothing of what it is told before it is cut off."""

SLICE: Final = 1 << 16
"""Bytes handed to a connection at once: what a viewer that does not read costs."""

AGAIN: Final[Mapping[str, str]] = {hdrs.RETRY_AFTER: "5"}
"""When those who are refused for now may come again, in seconds."""

STOP_SECONDS: Final = 1.0
"""How long running requests may take after a stop was asked for."""

JOIN_SECONDS: Final = 5.0
"""How long the thread may take to end."""

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer: the page loads nothing from elsewhere, and tells nobody where it is."""

STATUS: Final[Mapping[type[errors.LowwaterError], int]] = {
    errors.InvalidArgument: 400,
    errors.UnknownComputation: 404,
}
"""What a failed question becomes; all others pass, hence 503."""

log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks one, and ``[::]`` takes IPv4 too where the system can. Raises OSError."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OverflowError as error:
        raise OSError(None, f"there is no port {port}") from error
    family, *_, address = found[0]
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


def url_of(listening: socket.socket, *, encrypted: bool) -> str:
    """Return where a listening socket is reached, with a slash behind it."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if encrypted else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


class HttpServer:
    """Serves a board and the metrics until :meth:`close`.

    ``expose`` returns the metrics for an Accept header as (bytes, content type); it is called in a thread; None: there are none here. With ``certificates`` it speaks
    TLS only; it answers those whom ``visitors`` lets in. ``on_not_http`` is called for what is sent to it and is no HTTP.
    """

    def __init__(
        self,
        listening: socket.socket,
        board: Board,
        follower: Follower,
        *,
        expose: Expose | None,
        version: str,
        clock: Callable[[], int],
        certificates: Certificates | None = None,
        visitors: Visitors = EVERYBODY,
        on_not_http: Callable[[], None] = lambda: None,
    ) -> None:
        self._certificates = certificates
        self._visitors = visitors
        self._not_http = NotHttp(on_not_http)
        self._listening = listening
        self._board = board
        self._follower = follower
        self._expose = expose
        self._version = version
        self._clock = clock
        self._assets: dict[str, assets.Asset] = {}
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
            log.exception("the status page and /metrics are served no more", extra=event("page_failed"))
        finally:
            self._listening.close()

    async def _serve(self) -> None:
        self._assets = assets.read()
        self._questions = Questions(self._follower.client)
        self._feed = Feed(self._board, self._follower, version=self._version, clock=self._clock)
        self._scrapes = ThreadPoolExecutor(1, "lowwater-scrape")
        self._scraping = 0
        self._connections = Connections(self._listening, self._certificates)
        feeding = asyncio.create_task(self._feed.run())
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
            self._feed.close()
            self._questions.close()
            for task in (accepting, stopping, feeding):
                task.cancel()
            await runner.cleanup()
            self._scrapes.shutdown(wait=False, cancel_futures=True)

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._answering, _refusing, self._visitors.admitting])
        app.on_response_prepare.append(_secure)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/static/{path:.+}", self._page),
                *([] if self._expose is None else [web.get("/metrics", self._metrics)]),
                web.get("/healthz", self._health),
                *self._visitors.routes(),
                web.get("/api/snapshot", self._snapshot),
                web.get("/api/events", self._events),
                web.get("/api/ranges", self._ranges),
                web.get("/api/recent", self._recent),
                web.get("/api/history", self._history),
                web.get("/api/why", self._why),
            ]
        )
        return app

    @web.middleware
    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep a connection open for as long as its request takes."""
        with self._connections.answering(request.protocol):
            response: web.StreamResponse = await handler(request)
            return response

    # -- the page -----------------------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        path = request.match_info.get("path", "index.html")
        asset = self._assets.get(path)
        if asset is None:
            raise web.HTTPNotFound(text=f"there is no file {path!r} of the page")
        headers = {hdrs.ETAG: f'"{asset.etag}"', hdrs.CACHE_CONTROL: "no-cache", hdrs.VARY: "Accept-Encoding"}
        known = request.if_none_match or ()
        if any(tag.value in {asset.etag, "*"} for tag in known):
            return web.Response(status=304, headers=headers)
        content = asset.content
        if asset.gzipped is not None and "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            content, headers[hdrs.CONTENT_ENCODING] = asset.gzipped, "gzip"
        return web.Response(body=content, headers={**headers, hdrs.CONTENT_TYPE: asset.content_type})

    # -- for other programs -------------------------------------------------------------------------------------------

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get(hdrs.ACCEPT, "")
        zipped = "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        if self._scraping >= MOST_SCRAPES:
            msg = f"{MOST_SCRAPES} scrapes are waiting already; scrape less often, or from fewer places"
            raise errors.Overloaded(msg)
        self._scraping += 1
        assert self._expose is not None
        try:
            loop = asyncio.get_running_loop()
            body, content_type = await loop.run_in_executor(self._scrapes, _exposition, self._expose, accept, zipped)
        finally:
            self._scraping -= 1
        headers = {hdrs.CONTENT_TYPE: content_type, hdrs.VARY: "Accept, Accept-Encoding"}
        if zipped:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=body, headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        _parameters(request)
        return _json(json.dumps({"status": "serving", "stale_for": self._follower.stale_for}).encode())

    # -- the API ------------------------------------------------------------------------------------------------------

    async def _snapshot(self, request: web.Request) -> web.Response:
        _parameters(request)
        return _json(await self._feed.snapshot())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        _parameters(request)
        response = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: "text/event-stream", hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"}
        )
        if request.method == hdrs.METH_HEAD:
            await response.prepare(request)
            return response
        async with self._viewer():
            _shrink(request)
            await response.prepare(request)
            async with aclosing(self._feed.follow()) as events:
                async for each in events:
                    # Who was let in an hour ago may have been removed since, or the sign-in be over.
                    if not await self._visitors.still(request) or not await _send(request, response, each):
                        break
        return response

    async def _ranges(self, request: web.Request) -> web.Response:
        given = _parameters(request, "computation", "limit")
        name, limit = _computation(request, given), _limit(given)

        def ask(client: Client) -> records.Record:
            return records.ranges(client.ranges(name, limit=limit))

        return _json(await self._questions.ask(("ranges", name, str(limit)), ask))

    async def _recent(self, request: web.Request) -> web.Response:
        name = _computation(request, _parameters(request, "computation"))
        if self._board.view(name) is None:
            raise errors.UnknownComputation(f"nothing was heard of a computation {name!r}; /api/snapshot lists them")
        return _json(json.dumps(records.recent(STEP_SECONDS, self._board.recent(name))).encode())

    async def _history(self, request: web.Request) -> web.Response:
        name = _computation(request, _parameters(request, "computation"))

        def ask(client: Client) -> records.Record:
            return records.history(client.history(name, limit=COMPLETIONS))

        return _json(await self._questions.ask(("history", name), ask))

    async def _why(self, request: web.Request) -> web.Response:
        name = _computation(request, _parameters(request, "computation"))

        def ask(client: Client) -> records.Record:
            return records.why(client.why(name))

        return _json(await self._questions.ask(("why", name), ask))

    @asynccontextmanager
    async def _viewer(self) -> AsyncIterator[None]:
        if self._feed.viewers >= MOST_VIEWERS:
            msg = f"{MOST_VIEWERS} pages are open already, which is as many as this process serves; close some, or ask another shard"
            raise errors.Overloaded(msg)
        self._feed.join()
        try:
            yield
        finally:
            self._feed.leave()


class _BadParameter(Exception):
    """The message names the parameter and what to send instead."""


def _parameters(request: web.Request, *known: str) -> dict[str, str]:
    """Return the parameters of a request. Raises _BadParameter for those that it does not have, and for repeated ones."""
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            takes = f"takes {' and '.join(known)}" if known else "takes none"
            raise _BadParameter(f"{request.path} has no parameter {name!r}: it {takes}")
        if name in given:
            raise _BadParameter(f"{name} is given more than once: give it once")
        given[name] = value
    return given


def _computation(request: web.Request, given: Mapping[str, str]) -> str:
    name = given.get("computation", "")
    if not name:
        raise _BadParameter(f"computation is missing: name one, for example {request.path}?computation=flights")
    return name


def _limit(given: Mapping[str, str]) -> int:
    text = given.get("limit", str(MOST_RANGES))
    if not (text.isascii() and text.isdecimal() and len(text) < len("10000") and 1 <= int(text) <= MOST_RANGES):
        raise _BadParameter(f"limit is {text!r}: give a whole number from 1 to {MOST_RANGES}")
    return int(text)


def _exposition(expose: Expose, accept: str, zipped: bool) -> tuple[bytes, str]:
    body, content_type = expose(accept)
    return (gzip.compress(body, compresslevel=1) if zipped else body), content_type


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    response = web.Response(
        body=body,
        status=status,
        headers={hdrs.CONTENT_TYPE: "application/json", hdrs.CACHE_CONTROL: "no-store", **(headers or {})},
    )
    if len(body) >= assets.LEAST_GZIPPED:
        response.enable_compression()
    return response


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return _json(json.dumps({"error": sentence}).encode(), status, headers)


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
    except _BadParameter as error:
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


async def _secure(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY)
    response.headers.pop(hdrs.SERVER, None)


def _shrink(request: web.Request) -> None:
    """Let the system buffer little, so that who reads slowly reads what is new."""
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLICE)


async def _send(request: web.Request, response: web.StreamResponse, message: bytes) -> bool:
    """Send an event; False when its viewer does not read it, and was cut off."""
    try:
        for i in range(0, len(message), SLICE):
            async with asyncio.timeout(STALLED_SECONDS):
                await response.write(message[i : i + SLICE])
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return False
    except ConnectionError:
        return False
    return True
