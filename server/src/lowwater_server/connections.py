"""The connections of the HTTP server: so many at once, and none for long that neither asks nor reads.

A connection costs a file descriptor, of which the process has a fixed number, and gRPC and the journal need some too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from lowwater.core.events import Limited, event, shortened

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator

    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

    from lowwater_server.tls import Certificates

MOST_CONNECTIONS: Final = 256
"""Connections that may be open at once; what comes beyond them is closed at once. See
:func:`most_connections`."""

MOST_KEPT: Final = 16
"""Places, or a quarter of them all when that is less, for addresses that hold fewer than so many:
one that fills the others keeps no probe out."""

OF_FILES: Final = 4
"""At most one in so many of the files that the process may open is a connection here."""

IDLE_SECONDS: Final = 20.0
"""How long a connection may take to send the head of a request whole, the first one or the next,
and to read the answer before that.

While a request is being answered it does not count; a stream of events has a deadline of its own.
"""

SHAKE_SECONDS: Final = 10.0
"""How long a TLS handshake may take; until it is done its connection counts as an open one."""

SHUT_SECONDS: Final = 1.0
"""How long the other side may take to say good-bye."""

SWEEP_SECONDS: Final = 1.0
"""Between two looks at who is over the time."""

PAUSE_SECONDS: Final = 1.0
"""Until connections are accepted again, after the system could not open one."""

log = logging.getLogger(__name__)


def file_limit() -> float:
    """Return how many files this process may have open; infinity: any number."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files


def most_connections() -> int:
    """Return how many connections may be open at once, at least one: ``MOST_CONNECTIONS``, or what the limit of open files leaves."""
    return max(1, int(min(MOST_CONNECTIONS, file_limit() / OF_FILES)))


def _host(peer: Any) -> str:
    """Return the address of the peer; `localhost` for a Unix socket, whose peer has no address."""
    return "localhost" if isinstance(peer, str | bytes) else str(peer[0])


class NotHttp(logging.Logger):
    """What aiohttp logs of its connections.

    Bytes that are no HTTP are one line in a while, and counted; for aiohttp each is an error with a
    traceback.

    A port scanner, a browser that speaks TLS to a port without it, or a gRPC client with the wrong
    port sends them several times a second.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__(log.name, logging.DEBUG)  # aiohttp logs some of it at that level
        self.parent = log
        self._count = count
        self._quiet = Limited()

    def handle(self, record: logging.LogRecord) -> None:
        """Log what another level or another error has, as it is."""
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
    """Accepts the connections of a server, and cuts off those that wait for nothing.

    For the one event loop it is used in.
    """

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
        """Handshakes that go on, by address."""
        self._listening.settimeout(0.0)
        self._most = most_connections()
        self._kept = min(MOST_KEPT, self._most // 4)
        self._idle_since: dict[RequestHandler, float] = {}
        """By connection, on the loop's clock; never, while a request is being answered."""
        self._quiet = Limited()

    async def run(self, server: web.Server) -> None:
        """Accept and cut off until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._accept(server, tasks))
            tasks.create_task(self._sweep(server))

    @contextmanager
    def answering(self, connection: RequestHandler) -> Generator[None]:
        """A request of a connection is being answered."""
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
                continue  # it has gone again
            except OSError as error:
                # No files are left, as a rule, of which asyncio's own server would tell thousands
                # of times.
                self._tell(f"none can be accepted: {error}")
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            host = _host(peer)
            if self._full(server, host):
                connection.close()
                self._tell(
                    f"of the {self._most} that may be open all are, or all but the last {self._kept}, "
                    f"and {host} has as many of its own; the one that came is closed"
                )
                await asyncio.sleep(0)  # those who are open have their turn
                continue
            if self._certificates is None:
                await self._serve(server, connection)
            else:
                self._shaking[host] += 1
                tasks.create_task(self._shake_hands(server, connection, host, self._certificates))

    def _full(self, server: web.Server, host: str) -> bool:
        """Whether there is no place for one more of an address.

        O(1), but O(connections) when few places are left.
        """
        left = self._most - len(server.connections) - self._shaking.total()
        if left <= 0 or left > self._kept:
            return left <= 0
        peers = (each.transport.get_extra_info("peername") for each in server.connections if each.transport is not None)
        held = self._shaking[host] + len([peer for peer in peers if peer is not None and _host(peer) == host])
        return held >= self._kept

    async def _serve(self, server: web.Server, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(server, connection)
        except OSError:
            connection.close()

    async def _shake_hands(
        self, server: web.Server, connection: socket.socket, host: str, certificates: Certificates
    ) -> None:
        """Serve a connection after its handshake, for which the next ones do not wait."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=certificates.current().context,
                ssl_handshake_timeout=SHAKE_SECONDS,
                ssl_shutdown_timeout=SHUT_SECONDS,
            )
        except OSError:  # of which those of TLS are some: it speaks none, does not trust the certificate, or has gone
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
            self._idle_since = {each: self._idle_since.get(each, now) for each in server.connections}
            for connection, since in self._idle_since.items():
                if now - since >= self._idle_seconds and connection.transport is not None:
                    connection.transport.abort()  # a close would wait until what is written has been read

    def _tell(self, why: str) -> None:
        if count := self._quiet.count("refused", asyncio.get_running_loop().time()):
            fields = event("page_refused", reason=why, count=count)
            log.warning("HTTP connections are refused: %s", why, extra=fields)
