"""Metrics and health of an authority over HTTP.

The status page is a process of its own, lowwater-page.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

from lowwater import Identity, errors
from lowwater_server.http import HttpServer
from lowwater_server.sockets import url_of
from lowwater_server.visitors import EVERYBODY, METRICS, KnownVisitors

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from lowwater_authority.access.policy import Access
    from lowwater_authority.engine.writes import StoreState
    from lowwater_server.tls import Certificates
    from lowwater_server.visitors import Visitors

MOST_SCRAPES: Final = 8
"""Most scrapes of /metrics that wait or are answered, one after the other."""

Expose = Callable[[str], tuple[bytes, str]]


class Exposition:
    """The metrics; see Part.

    ``expose`` returns them for an Accept header as (bytes, content type), in a thread. ``journal``
    returns how the store treats writes, on the thread of the server.
    """

    def __init__(self, expose: Expose, journal: Callable[[], StoreState]) -> None:
        self._expose = expose
        self._journal = journal
        self._scraping = 0

    def begin(self, visitors: Visitors) -> None:
        """See Part."""
        del visitors
        self._scrapes = ThreadPoolExecutor(1, "lowwater-scrape")

    def routes(self) -> list[web.RouteDef]:
        """See Part."""
        return [web.get(METRICS, self._metrics)]

    def health(self) -> Mapping[str, Any]:
        """See Part.

        The status stays 200 in any state of the journal: reads are answered, and a restart would
        not repair it.
        """
        return {"journal": self._journal().value}

    def end(self) -> None:
        """See Part."""
        self._scrapes.shutdown(wait=False, cancel_futures=True)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get(hdrs.ACCEPT, "")
        zipped = "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        if self._scraping >= MOST_SCRAPES:
            msg = f"{MOST_SCRAPES} scrapes are waiting already; scrape less often, or from fewer places"
            raise errors.Overloaded(msg)
        self._scraping += 1
        try:
            loop = asyncio.get_running_loop()
            body, content_type = await loop.run_in_executor(self._scrapes, _rendered, self._expose, accept, zipped)
        finally:
            self._scraping -= 1
        headers = {hdrs.CONTENT_TYPE: content_type, hdrs.VARY: "Accept, Accept-Encoding"}
        if zipped:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=body, headers=headers)


def _rendered(expose: Expose, accept: str, zipped: bool) -> tuple[bytes, str]:
    body, content_type = expose(accept)
    return (gzip.compress(body, compresslevel=1) if zipped else body), content_type


class RulesHere:
    """The access rules of this process; ``access`` returns those in force."""

    def __init__(self, access: Callable[[], Access]) -> None:
        self._access = access

    async def controlled(self) -> bool:
        """See Rights."""
        return True

    async def whose(self, token_sha256: str) -> Identity:
        """See Rights. In constant time."""
        principal = self._access().whose(token_sha256, time.time())
        if principal is None:
            return Identity(controlled=True, name="", page=False, metrics=False)
        return Identity(controlled=True, name=principal.name, page=principal.page, metrics=principal.metrics)

    def close(self) -> None:
        """See Rights."""


class Endpoint(HttpServer):
    """Server of the metrics of this process, on a socket that listens already.

    ``access`` returns the rules in force; None: everybody may scrape.
    """

    def __init__(
        self,
        listening: socket.socket,
        expose: Expose,
        journal: Callable[[], StoreState],
        *,
        certificates: Certificates | None,
        access: Callable[[], Access] | None,
        on_not_http: Callable[[], None],
    ) -> None:
        self.metrics: str = f"{url_of(listening, encrypted=certificates is not None)}{METRICS.removeprefix('/')}"
        """URL of the metrics, for people."""
        super().__init__(
            listening,
            [Exposition(expose, journal)],
            certificates=certificates,
            visitors=EVERYBODY if access is None else KnownVisitors(RulesHere(access), monotonic=time.monotonic),
            on_not_http=on_not_http,
        )
