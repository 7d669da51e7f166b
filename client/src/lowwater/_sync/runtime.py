# Made by scripts/generate_sync.py from _async/runtime.py: change that one.
"""Channels and threads of a client in one process."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any, TypeVar

from lowwater._drive.threads.connection import Connection, MakeChannel
from lowwater._sync.reporter import Reporter
from lowwater._sync.watcher import Watcher
from lowwater.core.call import Call, Gather
from lowwater.core.calls import Calls
from lowwater.core.exchange import Exchange, exchange_of
from lowwater.core.settings import Settings
from lowwater.core.surroundings import REAL, Surroundings

__all__ = ["Runtime"]

Result = TypeVar("Result")


class Runtime:
    """One process's connection, watcher and reporter. Each starts at its first use."""

    def __init__(
        self, settings: Settings, surroundings: Surroundings = REAL, make_channel: MakeChannel | None = None
    ) -> None:
        self.pid: int = os.getpid()
        self.connection: Connection = Connection(settings, surroundings, make_channel)
        self.watcher: Watcher = Watcher(self.connection)
        self.reporter: Reporter = Reporter(self.connection, self.watcher)
        self.calls: Calls = Calls(self.watcher.state, settings.namespace)

    def here(self) -> Runtime:
        """Return itself. Raises Closed in another process or loop, and after the end."""
        self.connection.check_place()
        self.connection.check_open()
        return self

    def call(self, call: Call[Result] | Gather[Result], within: float = math.inf) -> Result:
        """Make a unary call within the client's timeout, or ``within`` seconds if they are fewer.

        Raises LowwaterError; Unavailable when no server answered at all, or none that serves the
        computation.
        """
        connection = self.connection
        timeout = min(within, connection.settings.timeout)
        exchange = exchange_of(call, self.calls, connection.router, connection.surroundings, timeout)
        return connection.call(exchange, partial(self._take, exchange))

    def _take(self, exchange: Exchange[Any], answer: object) -> float | None:
        with self.watcher.changed:
            pause = exchange.take(answer)
            self.watcher.changed.notify_all()
        if self.reporter.reporting.search.needed:
            with self.reporter.changed:
                self.reporter.changed.notify_all()  # the call may have found a lost computation
        return pause

    def deadline(self, seconds: float | None) -> float | None:
        """Return the time in ``seconds`` on the monotonic clock; None for None."""
        return None if seconds is None else self.connection.surroundings.monotonic() + seconds

    def close(self) -> None:
        """End the threads and close the channels; callers that wait get Closed."""
        self.connection.shut()
        try:
            self.watcher.stop()
            self.reporter.stop()
        finally:
            self.connection.close()
