"""The connections of the HTTP server: a bounded number, and an end for those that are idle.

A connection costs a file descriptor. The process has a fixed number of these, and gRPC and the
journal need some too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from lowwater.core.events import Limited, event, shortened
from lowwater_server.sockets import file_limit

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator

    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

    from lowwater_server.tls import Certificates

MOST_CONNECTIONS: Final = 256
"""Greatest number of open connections; further ones are closed at once. See
:func:`most_connections`."""

MOST_KEPT: Final = 16
"""Number of places, or a quarter of all if that is less, that only addresses with fewer connections
than this may take. So an address that fills all other places keeps no probe out."""

OF_FILES: Final = 4
"""Divisor of the limit of open files; the quotient is the greatest number of connections."""

IDLE_SECONDS: Final = 20.0
"""Time in which a connection must read the last answer and send the whole head of a request.

The time in which a request is answered does not count; a stream of events has its own deadline.
"""

SHAKE_SECONDS: Final = 10.0
"""Time-out of a TLS handshake; its connection counts as open meanwhile."""

SHUT_SECONDS: Final = 1.0
"""Time-out of the end of a TLS connection."""

SWEEP_SECONDS: Final = 1.0
"""Greatest pause between two searches for idle connections."""

PAUSE_SECONDS: Final = 1.0
"""Pause before connections are accepted again, after the system could not open one."""

log = logging.getLogger(__name__)


def most_connections() -> int:
    """Return the greatest number of open connections, at least one, by the limit of open files."""
    return max(1, int(min(MOST_CONNECTIONS, file_limit() / OF_FILES)))


def _host(peer: Any) -> str:
    """Return the address of the peer; `localhost` for a Unix socket, whose peer has no address."""
    return "localhost" if isinstance(peer, str | bytes) else str(peer[0])


class NotHttp(logging.Logger):
    """Logger for aiohttp, which counts bytes that are no HTTP and logs them only now and then.

    aiohttp logs an error with a traceback each time. A port scanner, a browser that speaks TLS to a
    port without it, or a gRPC client with the wrong port would fill the log with them.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__(log.name, logging.DEBUG)  # aiohttp logs some of it at that level
        self.parent = log
        self._count = count
        self._quiet = Limited()

    def handle(self, record: logging.LogRecord) -> None:
        """Count an error about HTTP, and log it now and then; log all other records as they are."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (HttpProcessingError, RequestPayloadError)):
            if log.isEnabledFor(record.levelno):
                super().handle(record)
            return
        self._count()
        if count := self._quiet.count("not_http", time.monotonic()):
            who = f", last from {record.args[0]}" if isinstance(record.args, tuple) and record.args else ""
            log.warning(
                "something that is no HTTP was sent to an HTTP port%s: gRPC has another port, and TLS needs --tls-cert",
                who,
                extra=event("page_not_http", count=count, error=shortened(str(error))),
            )


class Connections:
    """Accepts the connections of a server, and cuts off idle ones. For one event loop."""

    def __init__(
        self,
        listening: socket.socket,
        certificates: Certificates | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._listening = listening
        self._certificates = certificates
        self._idle_seconds = idle_seconds
        self._shaking: Counter[str] = Counter()
        """Number of handshakes under way, by address."""
        self._listening.settimeout(0.0)
        self._most = most_connections()
        self._reserved = min(MOST_KEPT, self._most // 4)
        self._idle_since: dict[RequestHandler, float] = {}
        """Start of each connection's idle time, by the loop's clock; infinite during an answer."""
        self._quiet = Limited()

    async def run(self, server: web.Server) -> None:
        """Accept connections and cut off idle ones until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._accept(server, tasks))
            tasks.create_task(self._sweep(server))

    @contextmanager
    def answering(self, connection: RequestHandler) -> Generator[None]:
        """Hold a connection open while one of its requests is answered."""
        self._idle_since[connection] = math.inf
        try:
            yield
        finally:
            self._idle_since[connection] = asyncio.get_running_loop().time()

    async def _accept(self, server: web.Server, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listening)
            except ConnectionError:
                continue  # the other side has gone again
            except OSError as error:
                # The cause is mostly a lack of files; asyncio's server would log it very often.
                self._tell(f"no connection can be accepted: {error}")
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            host = _host(peer)
            if self._full(server, host):
                connection.close()
                self._tell(
                    f"all {self._most} places are taken, or all but the last {self._reserved} are and {host} has as "
                    "many connections; its new connection is closed"
                )
                await asyncio.sleep(0)  # open connections get their turn
                continue
            if self._certificates is None:
                await self._serve(server, connection)
            else:
                self._shaking[host] += 1
                tasks.create_task(self._shake_hands(server, connection, host, self._certificates))

    def _full(self, server: web.Server, host: str) -> bool:
        """Tell whether an address may have no further connection.

        O(1), but O(connections) while only reserved places are free.
        """
        free = self._most - len(server.connections) - self._shaking.total()
        if free <= 0 or free > self._reserved:
            return free <= 0
        peers = (
            connection.transport.get_extra_info("peername")
            for connection in server.connections
            if connection.transport is not None
        )
        own = self._shaking[host] + len([peer for peer in peers if peer is not None and _host(peer) == host])
        return own >= self._reserved

    async def _serve(self, server: web.Server, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(server, connection)
        except OSError:
            connection.close()

    async def _shake_hands(
        self, server: web.Server, connection: socket.socket, host: str, certificates: Certificates
    ) -> None:
        """Serve a connection after its handshake; other connections do not wait for that."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=certificates.current().context,
                ssl_handshake_timeout=SHAKE_SECONDS,
                ssl_shutdown_timeout=SHUT_SECONDS,
            )
        except OSError:  # also of TLS: the peer speaks none, does not trust the certificate, or has gone
            connection.close()
        except Exception:
            connection.close()
            log.exception("a TLS handshake failed within the server", extra=event("page_failed"))
        finally:
            self._shaking[host] -= 1
            self._shaking = +self._shaking

    async def _sweep(self, server: web.Server) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle_seconds / 10))
            now = asyncio.get_running_loop().time()
            self._idle_since = {connection: self._idle_since.get(connection, now) for connection in server.connections}
            for connection, since in self._idle_since.items():
                if now - since >= self._idle_seconds and connection.transport is not None:
                    connection.transport.abort()  # a close would wait until the peer has read everything

    def _tell(self, why: str) -> None:
        if count := self._quiet.count("refused", asyncio.get_running_loop().time()):
            fields = event("page_refused", reason=why, count=count)
            log.warning("HTTP connections are refused: %s", why, extra=fields)
