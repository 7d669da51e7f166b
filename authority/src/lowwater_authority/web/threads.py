"""All that an authority serves over HTTP, put together: follower -> board -> page, and the metrics."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import lowwater
from lowwater_authority.web.board import Board
from lowwater_authority.web.follower import Follower
from lowwater_authority.web.http import HttpServer, url_of
from lowwater_authority.web.rights import RulesHere
from lowwater_authority.web.visitors import EVERYBODY, KnownVisitors

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from lowwater_authority.access.policy import Access
    from lowwater_authority.authority import Authority
    from lowwater_authority.cluster.peers import PeerSettings
    from lowwater_authority.ops.metrics import Metrics

ASK_SECONDS: Final = 5.0
"""How long a question of a viewer may take."""


class Web:
    """Nothing at all: ``--http off``."""

    page: str = "off"
    metrics: str = "off"
    """Where these are reached, for people."""

    def start(self) -> None:
        """Begin to follow and to serve."""

    def close(self) -> None:
        """End what is open. Waits for the threads, at most some seconds; a repeat does nothing."""


class WebThreads(Web):
    """The threads beside the one that serves watermarks. They end with the process, or by :meth:`close`.

    ``reach`` says how this process reaches itself and other shards, for its follower. ``clock`` gives processing time in microseconds since
    the Unix epoch, UTC. ``access`` returns the rules in force; None: everybody may see all.
    """

    def __init__(
        self,
        listening: socket.socket,
        reach: PeerSettings,
        authority: Authority,
        metrics: Metrics,
        *,
        clock: Callable[[], int],
        version: str,
        access: Callable[[], Access] | None = None,
    ) -> None:
        certificates = reach.certificates
        self.page = url_of(listening, encrypted=certificates is not None)
        self.metrics = f"{self.page}metrics"
        settings = replace(reach, server_token=authority.shard.journal.server_token, timeout=ASK_SECONDS)
        board = Board()
        self._follower = Follower(
            lambda interval: lowwater.Client(replace(settings, watch_interval=interval)),
            board,
            clock=clock,
            sharded=authority.shard.shared,
        )
        self._http = HttpServer(
            listening,
            board,
            self._follower,
            expose=metrics.render,
            version=version,
            clock=clock,
            certificates=certificates,
            on_not_http=metrics.not_http,
            visitors=EVERYBODY
            if access is None
            else KnownVisitors(
                RulesHere(access),
                secure=certificates is not None,
                port=listening.getsockname()[1],
                clock=time.time,
                monotonic=time.monotonic,
            ),
        )
        metrics.watch(authority.shard, authority.streams, certificates=certificates)

    def start(self) -> None:
        """See Web."""
        self._follower.start()
        self._http.start()

    def close(self) -> None:
        """See Web."""
        self._follower.close()
        self._http.close()
