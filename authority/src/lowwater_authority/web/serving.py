"""All that an authority serves over HTTP, put together: follower -> board -> page, and the metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import lowwater
from lowwater_authority.web.board import Board
from lowwater_authority.web.follower import Follower
from lowwater_authority.web.http import HttpServer

if TYPE_CHECKING:
    import socket

    from lowwater_authority.authority import Authority
    from lowwater_authority.web.metrics import Metrics

ASK_SECONDS: Final = 5.0
"""How long a question of a viewer may take."""


class Web:
    """Nothing at all: ``--http off``."""

    places: str = "page off, metrics off"
    """Where it is reached, for people."""

    def start(self) -> None:
        """Begin to follow and to serve."""

    def close(self) -> None:
        """End what is open. Waits for the threads, at most some seconds; a repeat does nothing."""


class WebThreads(Web):
    """The threads beside the one that serves watermarks. They end with the process, or by :meth:`close`.

    ``address`` is this process's own, for its follower.
    """

    def __init__(
        self, listening: socket.socket, address: str, authority: Authority, metrics: Metrics, *, version: str
    ) -> None:
        host, port = listening.getsockname()[:2]
        place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self.places = f"page {place}/, metrics {place}/metrics"
        token = authority.shard.journal.server_token
        board = Board()
        self._follower = Follower(
            lambda: lowwater.connect(address, server_token=token, timeout=ASK_SECONDS),
            board,
            clock=_clock,
            sharded=authority.shard.shared,
        )
        self._http = HttpServer(listening, board, self._follower, expose=metrics.render, version=version, clock=_clock)
        metrics.watch(authority.shard, authority.streams, board, lambda: self._follower.stale_for)

    def start(self) -> None:
        """See Web."""
        self._follower.start()
        self._http.start()

    def close(self) -> None:
        """See Web."""
        self._follower.close()
        self._http.close()


def _clock() -> int:
    return time.time_ns() // 1000
