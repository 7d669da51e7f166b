"""The page and its API, as a part of an HTTP server.

It only ever reads, and shows only what was published.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

from lowwater import errors
from lowwater_page import assets, records
from lowwater_page.feed import BEAT, Feed
from lowwater_page.questions import Questions
from lowwater_page.recall import COMPLETIONS, Recall
from lowwater_page.samples import SPANS
from lowwater_server.http import BadParameter, answer, parameters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from lowwater import Client
    from lowwater_page.board import Board
    from lowwater_page.follower import Follower
    from lowwater_page.samples import Span
    from lowwater_server.visitors import Visitors

MOST_VIEWERS: Final = 100
"""Most open pages at once; more are told to come again.

Each costs a connection and up to some 300 KB of buffers."""

MOST_RANGES: Final = 1000
"""Most key ranges in one answer."""

MOST_HEAT: Final = 1000
"""Most computations in one heat map."""

STALLED_SECONDS: Final = 30.0
"""Time in seconds after which a viewer that reads nothing is cut off."""

SLICE: Final = 1 << 16
"""Bytes handed to a connection at once, so also the cost of a viewer that does not read."""


class Page:
    """The page and its API over one board; a Part of an HTTP server.

    ``clock`` gives microseconds since the Unix epoch. A viewer gets a message at least every
    ``beat`` seconds.
    """

    def __init__(
        self, board: Board, follower: Follower, *, version: str, clock: Callable[[], int], beat: float = BEAT
    ) -> None:
        self._board = board
        self._follower = follower
        self._version = version
        self._clock = clock
        self._beat = beat
        self._assets: dict[str, assets.Asset] = {}

    def begin(self, visitors: Visitors) -> None:
        """See Part."""
        self._visitors = visitors
        self._assets = assets.read()
        self._questions = Questions(self._follower.client)
        self._recall = Recall(self._follower.client, self._board)
        self._feed = Feed(self._board, self._follower, version=self._version, clock=self._clock, beat=self._beat)
        self._feeding = asyncio.create_task(self._feed.run())

    def routes(self) -> list[web.RouteDef]:
        """See Part."""
        return [
            web.get("/", self._page),
            web.get("/static/{path:.+}", self._page),
            web.get("/api/snapshot", self._snapshot),
            web.get("/api/events", self._events),
            web.get("/api/ranges", self._ranges),
            web.get("/api/recent", self._recent),
            web.get("/api/heat", self._heat),
            web.get("/api/history", self._history),
            web.get("/api/why", self._why),
        ]

    def health(self) -> Mapping[str, Any]:
        """See Part."""
        return {"stale_for": self._follower.stale_for}

    def end(self) -> None:
        """See Part."""
        self._feed.close()
        self._questions.close()
        self._recall.close()
        self._feeding.cancel()

    # -- the page ----------------------------------------------------------------------------------

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

    # -- the API -----------------------------------------------------------------------------------

    async def _snapshot(self, request: web.Request) -> web.Response:
        parameters(request)
        return answer(await self._feed.snapshot())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        parameters(request)
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
                async for message in events:
                    # The viewer may have been removed from the access file since, or the session
                    # may have ended.
                    if not await self._visitors.still(request) or not await _send(request, response, message):
                        break
        return response

    async def _ranges(self, request: web.Request) -> web.Response:
        query = parameters(request, "computation", "limit")
        name, limit = _computation(request, query), _limit(query)

        def ask(client: Client) -> records.Record:
            return records.ranges(client.ranges(name, limit=limit))

        return answer(await self._questions.ask(("ranges", name, str(limit)), ask))

    async def _recent(self, request: web.Request) -> web.Response:
        query = parameters(request, "computation", "span")
        name, span = _computation(request, query), _span(query)
        if self._board.view(name) is None:
            raise errors.UnknownComputation(f"the page knows no computation {name!r}; /api/snapshot lists them")
        return answer(json.dumps(records.recent(span.step, self._board.recent(name, span))).encode())

    async def _heat(self, request: web.Request) -> web.Response:
        span = _span(parameters(request, "span"))
        self._recall.want()

        def ask(_: Client) -> records.Record:
            return records.heat(self._board.heat(span, MOST_HEAT))

        return answer(await self._questions.ask(("heat", str(span.seconds)), ask))

    async def _history(self, request: web.Request) -> web.Response:
        name = _computation(request, parameters(request, "computation"))

        def ask(client: Client) -> records.Record:
            return records.history(client.history(name, limit=COMPLETIONS))

        return answer(await self._questions.ask(("history", name), ask))

    async def _why(self, request: web.Request) -> web.Response:
        name = _computation(request, parameters(request, "computation"))

        def ask(client: Client) -> records.Record:
            return records.why(client.why(name))

        return answer(await self._questions.ask(("why", name), ask))

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


def _computation(request: web.Request, query: Mapping[str, str]) -> str:
    name = query.get("computation", "")
    if not name:
        raise BadParameter(f"computation is missing: name one, for example {request.path}?computation=flights")
    return name


def _span(query: Mapping[str, str]) -> Span:
    text = query.get("span", next(iter(SPANS)))
    if text not in SPANS:
        raise BadParameter(f"span is {text!r}: give one of {', '.join(SPANS)}")
    return SPANS[text]


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(MOST_RANGES))
    if not (text.isascii() and text.isdecimal() and len(text) < len("10000") and 1 <= int(text) <= MOST_RANGES):
        raise BadParameter(f"limit is {text!r}: give a whole number from 1 to {MOST_RANGES}")
    return int(text)


def _shrink(request: web.Request) -> None:
    """Make the send buffer of the system small, so that a slow viewer gets new messages."""
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLICE)


async def _send(request: web.Request, response: web.StreamResponse, message: bytes) -> bool:
    """Send an event. False: its viewer does not read, and was cut off."""
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
