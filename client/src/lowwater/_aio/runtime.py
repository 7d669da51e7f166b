"""What a client has on its event loop: channels and tasks."""

from __future__ import annotations

import math
from typing import TypeVar

from lowwater._aio.connection import Connection, MakeChannel
from lowwater._aio.reporter import Reporter
from lowwater._aio.watcher import Watcher
from lowwater._core.asking import ask
from lowwater._core.call import Call, Gather
from lowwater._core.calls import Calls
from lowwater._core.settings import Settings
from lowwater._core.surroundings import Surroundings

__all__ = ["Runtime"]

Result = TypeVar("Result")


class Runtime:
    """One event loop's connection, watcher and reporter. Nothing in it is started before it is used."""

    def __init__(self, settings: Settings, surroundings: Surroundings, make_channel: MakeChannel | None) -> None:
        self.connection: Connection = Connection(settings, surroundings, make_channel)
        self.watcher: Watcher = Watcher(self.connection)
        self.reporter: Reporter = Reporter(self.connection, self.watcher)
        self.calls: Calls = Calls(self.watcher.state, settings.namespace)

    def here(self) -> Runtime:
        """Return itself. Raises Closed in another process or event loop, and after the end."""
        self.connection.check_place()
        self.connection.check_open()
        return self

    async def call(self, call: Call[Result] | Gather[Result], within: float = math.inf) -> Result:
        """Make a unary call within the client's timeout, or within so many seconds if they are fewer.

        Raises LowwaterError; Unavailable when no server answered at all, or none that serves the computation. Cancelled, it may or
        may not have had its effect.
        """
        connection = self.connection
        timeout = min(within, connection.settings.timeout)
        asking = ask(call, self.calls, connection.routes, connection.surroundings, timeout)
        result = await connection.call(asking)
        self.watcher.changed.notify()
        if self.reporter.reporting.locating.wanted:
            self.reporter.changed.notify()  # it may have been found on the way
        return result

    def deadline(self, seconds: float | None) -> float | None:
        """Return the time in so many seconds, on the monotonic clock."""
        return None if seconds is None else self.connection.surroundings.monotonic() + seconds

    async def close(self) -> None:
        """End the tasks and close the channels; whoever waits hears of it."""
        self.connection.closed = True
        try:
            await self.watcher.stop()
            await self.reporter.stop()
        finally:
            await self.connection.close()
