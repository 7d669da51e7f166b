"""Conflated subscriptions: a slow subscriber gets the newest value, not a backlog (rule 7)."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowwater_authority.core.computation import View


@dataclass(slots=True)
class SubscriptionStatistics:
    """How a subscription fares."""

    waiting: int
    """Computations whose newest value was not taken yet; never more than the computations followed."""
    conflated: int
    """Values replaced by newer ones before they were taken."""


class Subscription:
    """The newest values of what changed since they were last taken. Bounded by the computations followed."""

    def __init__(self, names: frozenset[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.names = names
        """What is followed; empty: everything."""
        self._pending: dict[str, View | None] = {}
        self._pending_since = 0.0
        self._clock = clock
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._taken_at = -math.inf
        """When values were taken last, by the clock of the event loop."""
        self._conflated = 0
        self.waited = 0.0
        """Seconds that the oldest of the values taken last had waited since it might be taken; 0 when none were."""

    def put(self, name: str, view: View | None) -> bool:
        """Replace the value of a computation; None: another shard serves it. Returns whether one waited there. O(1)."""
        if not self._pending:
            self._pending_since = self._clock()
        conflated = name in self._pending
        self._conflated += conflated
        self._pending[name] = view
        self._changed.set()
        return conflated

    def wake(self) -> None:
        """Make a waiting :meth:`take` return, even with nothing."""
        self._woken.set()
        self._changed.set()

    async def take(self, timeout: float, interval: float = 0.0) -> dict[str, View | None]:  # noqa: ASYNC109 - a beat is due then, nothing is cancelled
        """Wait for changes, at most ``timeout`` seconds, and take them all by name; empty when there were none.

        What changes within ``interval`` seconds after the last that were taken waits for their end, and is conflated meanwhile.
        """
        due = asyncio.get_running_loop().time() + timeout
        if interval:
            await self._rest(self._taken_at + interval)
        try:
            async with asyncio.timeout_at(due):
                await self._changed.wait()
        except TimeoutError:
            return {}
        self._changed.clear()
        self._woken.clear()
        taken, self._pending = self._pending, {}
        self.waited = self._clock() - self._pending_since if taken else 0.0
        if taken:
            self._taken_at = asyncio.get_running_loop().time()
        return taken

    async def _rest(self, until: float) -> None:
        """Let changes pile up until a time of the event loop, or until :meth:`wake`."""
        if until <= asyncio.get_running_loop().time():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._woken.wait()
        self._pending_since = self._clock()  # nobody could take them before

    def statistics(self) -> SubscriptionStatistics:
        """Return how the subscription fares."""
        return SubscriptionStatistics(len(self._pending), self._conflated)


class Hub:
    """All subscriptions of a shard. ``clock`` gives seconds and never goes back: what waits is measured with it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # A dict for its order: a set's would be that of addresses in memory, and no run could be repeated.
        self._subscriptions: dict[Subscription, None] = {}
        self.conflated = 0
        """Values replaced before they were taken, by all subscriptions so far."""

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._subscriptions)

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Start following; without names, everything."""
        subscription = Subscription(frozenset(names), self._clock)
        self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following."""
        self._subscriptions.pop(subscription, None)

    def publish(self, views: Iterable[View]) -> None:
        """Give new values to all that follow them. O(values x subscriptions)."""
        for view in views:
            self._put(view.name, view)

    def move(self, name: str) -> None:
        """Tell all that follow a computation that another shard serves it."""
        self._put(name, None)

    def _put(self, name: str, view: View | None) -> None:
        for subscription in self._subscriptions:
            if not subscription.names or name in subscription.names:
                self.conflated += subscription.put(name, view)

    def wake(self) -> None:
        """Make every waiting subscription look around: the server stops."""
        for subscription in self._subscriptions:
            subscription.wake()
