"""Conflated subscriptions: a slow subscriber gets the newest value, not a backlog (rule 7)."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowwater_authority.core.computation import View


@dataclass(slots=True)
class SubscriptionStatistics:
    """How a subscription fares."""

    waiting: int
    """Computations whose newest value was not taken yet; never more than the computations followed.
    """
    conflated: int
    """Values replaced by newer ones before they were taken."""


class Subscription:
    """The newest values of what changed since they were last taken.

    Bounded by the computations followed. One task takes them.
    """

    def __init__(self, names: frozenset[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.names = names
        """What is followed; empty: everything."""
        self._pending: dict[str, View | None] = {}
        self._pending_since = 0.0
        self._clock = clock
        self._woken = False
        self._resting = False
        """True if who takes waits for the end of an interval, whatever changes."""
        self._waiter: asyncio.Future[None] | None = None
        """What who takes waits for, while it waits."""
        self._taken_at = -math.inf
        """When values were taken last, by the clock of the event loop."""
        self._conflated = 0
        self.waited = 0.0
        """Seconds that the oldest of the values taken last had waited since it might be taken."""

    def put(self, name: str, view: View | None) -> bool:
        """Replace the value of a computation; None: another shard serves it.

        Returns whether one waited there. O(1).
        """
        if not self._pending:
            self._pending_since = self._clock()
        conflated = name in self._pending
        self._conflated += conflated
        self._pending[name] = view
        if not self._resting:
            _set(self._waiter)
        return conflated

    def wake(self) -> None:
        """Make a waiting :meth:`take` return, even with nothing."""
        self._woken = True
        _set(self._waiter)

    async def take(self, timeout: float, interval: float = 0.0) -> dict[str, View | None]:  # noqa: ASYNC109 - a beat is due then, nothing is cancelled
        """Wait for changes, at most ``timeout`` seconds, and take them all by name; empty when there were none.

        What changes within ``interval`` seconds after the last that were taken waits for their end, and is conflated meanwhile.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout
        if interval:
            await self._rest(self._taken_at + interval)
        if not self._pending and not self._woken:
            await self._wait(due)
        self._woken = False
        if not self._pending:
            return {}
        taken, self._pending = self._pending, {}
        self.waited = self._clock() - self._pending_since
        self._taken_at = loop.time()
        return taken

    async def _rest(self, until: float) -> None:
        """Let changes pile up until a time of the event loop, or until :meth:`wake`."""
        if until <= asyncio.get_running_loop().time():
            return
        if not self._woken:
            self._resting = True
            try:
                await self._wait(until)
            finally:
                self._resting = False
        self._pending_since = self._clock()  # nobody could take them before

    async def _wait(self, until: float) -> None:
        """Wait until a time of the event loop, or until the waiter is set.

        A bare timer: to cancel the task instead takes several times as long.
        """
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_at(until, _set, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def statistics(self) -> SubscriptionStatistics:
        """Return how the subscription fares."""
        return SubscriptionStatistics(len(self._pending), self._conflated)


def _set(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Hub:
    """All subscriptions of a shard.

    ``clock`` gives seconds and never goes back: what waits is measured with it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Dicts for their order: a set's would be that of addresses in memory, and no run could be
        # repeated.
        self._subscriptions: dict[Subscription, None] = {}
        self._of_everything: dict[Subscription, None] = {}
        self._by_name: dict[str, dict[Subscription, None]] = {}
        """The others, by each name that they follow."""
        self.conflated = 0
        """Values replaced before they were taken, by all subscriptions so far."""

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._subscriptions)

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Start following; without names, everything. O(names)."""
        subscription = Subscription(frozenset(names), self._clock)
        self._subscriptions[subscription] = None
        for name in subscription.names:
            self._by_name.setdefault(name, {})[subscription] = None
        if not subscription.names:
            self._of_everything[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following. O(names)."""
        if subscription not in self._subscriptions:
            return
        del self._subscriptions[subscription]
        self._of_everything.pop(subscription, None)
        for name in subscription.names:
            followers = self._by_name[name]
            del followers[subscription]
            if not followers:
                del self._by_name[name]

    def publish(self, views: Iterable[View]) -> None:
        """Give new values to all that follow them. O(values and their followers)."""
        for view in views:
            self._put(view.name, view)

    def move(self, name: str) -> None:
        """Tell all that follow a computation that another shard serves it."""
        self._put(name, None)

    def _put(self, name: str, view: View | None) -> None:
        for followers in (self._by_name.get(name, {}), self._of_everything):
            for subscription in followers:
                self.conflated += subscription.put(name, view)

    def wake(self) -> None:
        """Make every waiting subscription look around: the server stops."""
        for subscription in self._subscriptions:
            subscription.wake()
