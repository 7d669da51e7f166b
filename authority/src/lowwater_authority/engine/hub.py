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
    """Figures of a subscription."""

    waiting: int
    """Followed computations whose newest value was not taken yet."""
    conflated: int
    """Values replaced by newer ones before they were taken."""


class Subscription:
    """Newest values of the followed computations that changed since the last :meth:`take`.

    One task takes them. Each computation has one value at most.
    """

    def __init__(self, names: frozenset[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.names = names
        """Names of the followed computations; empty: all computations."""
        self._pending: dict[str, View | None] = {}
        self._pending_since = 0.0
        self._clock = clock
        self._woken = False
        self._resting = False
        """True while :meth:`take` waits for the end of an interval, which no change shortens."""
        self._waiter: asyncio.Future[None] | None = None
        """Future of a waiting :meth:`take`."""
        self._taken_at = -math.inf
        """Time of the event loop at which values were taken last."""
        self._conflated = 0
        self.waited = 0.0
        """Age in seconds of the oldest value taken last, since the end of the interval before."""

    def put(self, name: str, view: View | None) -> bool:
        """Replace the value of a computation; None: another shard serves it.

        Returns whether an older value was waiting. O(1).
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
        """Make a waiting :meth:`take` return, even without a value."""
        self._woken = True
        _set(self._waiter)

    async def take(self, timeout: float, interval: float = 0.0) -> dict[str, View | None]:  # noqa: ASYNC109 - cancels nothing
        """Wait ``timeout`` seconds at most for changes, and take all of them by name.

        Changes within ``interval`` seconds after the last take wait for the end of these seconds,
        and are conflated meanwhile.
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
        """Gather changes until a time of the event loop, or until :meth:`wake`."""
        if until <= asyncio.get_running_loop().time():
            return
        if not self._woken:
            self._resting = True
            try:
                await self._wait(until)
            finally:
                self._resting = False
        self._pending_since = self._clock()  # they could not be taken before

    async def _wait(self, until: float) -> None:
        """Wait until a time of the event loop, or until the waiter is set.

        A bare timer, because a time-out that cancels the task costs several times as much.
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
        """Return the figures of the subscription."""
        return SubscriptionStatistics(len(self._pending), self._conflated)


def _set(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Hub:
    """All subscriptions of a shard.

    ``clock`` gives seconds, never goes back, and measures the age of waiting values.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Dicts for their order: the order of a set differs from process to process, and no
        # simulation could be repeated.
        self._subscriptions: dict[Subscription, None] = {}
        self._of_everything: dict[Subscription, None] = {}
        self._by_name: dict[str, dict[Subscription, None]] = {}
        """All other subscriptions, by followed name."""
        self.conflated = 0
        """Values replaced before they were taken, by all subscriptions so far."""

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._subscriptions)

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Begin a subscription; without names, to all computations. O(names)."""
        subscription = Subscription(frozenset(names), self._clock)
        self._subscriptions[subscription] = None
        for name in subscription.names:
            self._by_name.setdefault(name, {})[subscription] = None
        if not subscription.names:
            self._of_everything[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. O(names)."""
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
        """Give new values to their subscriptions. O(values and their subscriptions)."""
        for view in views:
            self._put(view.name, view)

    def move(self, name: str) -> None:
        """Announce that another shard serves a computation."""
        self._put(name, None)

    def _put(self, name: str, view: View | None) -> None:
        for followers in (self._by_name.get(name, {}), self._of_everything):
            for subscription in followers:
                self.conflated += subscription.put(name, view)

    def wake(self) -> None:
        """Make every waiting :meth:`Subscription.take` return: the server stops."""
        for subscription in self._subscriptions:
            subscription.wake()
