"""The tasks that follow watermarks, one for each shard however many subscriptions there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lowwater._drive.tasks.connection import Connection
from lowwater._drive.tasks.streams import Streams
from lowwater.core.call import Stubs
from lowwater.core.denials import Denials
from lowwater.core.watches import Subscription, WatchState, WatchStream

__all__ = ["Watcher"]


class Watcher(Streams):
    """Runs the state machines of the watch streams; the first subscription starts it."""

    def __init__(self, connection: Connection) -> None:
        self.state: WatchState = WatchState(connection.settings, connection.surroundings, connection.router)
        super().__init__(connection, self.state.placement, "lowwater-watch")

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Follow names from now on; no names means all registered ones, now and later."""
        with self.changed:
            subscription = self.state.subscribe(names)
            self.tend()
            self.changed.notify_all()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. Call it once."""
        with self.changed:
            self.state.unsubscribe(subscription)
            self.tend()
            self.changed.notify_all()

    async def wait(self, until: Callable[[], bool], subscription: Subscription, deadline: float | None) -> bool:
        """Wait for a condition on the values of a subscription; False after the deadline.

        ``deadline`` is on the monotonic clock. Hold ``changed``. Raises the error that ended the
        watching, and Closed.
        """
        while not until():
            self.state.check()
            self._connection.check_open()
            time_left = None if deadline is None else deadline - self._connection.surroundings.monotonic()
            if time_left is not None and time_left <= 0:
                return False
            await self.changed.wait(time_left, subscription.names)
        return True

    def _open(self, machine: WatchStream | Denials, address: str, stubs: Stubs) -> Any:
        return stubs.watermarks.Watch(machine.open(address), metadata=self._connection.settings.metadata)

    @property
    def _server_token(self) -> str:
        return self.state.server_token
