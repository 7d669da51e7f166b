"""Signal that wakes the tasks which wait for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Set

__all__ = ["Signal", "being_cancelled"]


class Signal:
    """Wakes tasks after a possible change; each looks for itself whether it is concerned.

    On threads ``with`` takes a lock, which only :meth:`wait` releases. Here it does nothing:
    between two awaits no other task runs.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Collection[str]] = {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Wake all waiting tasks."""
        self._wake(list(self._waiting))

    def notify_about(self, names: Set[str]) -> None:
        """Wake tasks that wait for one of these names, or for anything. O(waiting)."""
        self._wake([waiter for waiter, about in self._waiting.items() if not about or not names.isdisjoint(about)])

    async def wait(self, seconds: float | None, about: Collection[str] = ()) -> None:
        """Return after a signal about these names (none: any), or ``seconds`` if given."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._waiting[woken] = about
        timer = None if seconds is None else loop.call_later(max(0.0, seconds), self._wake, [woken])
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)
            if timer is not None:
                timer.cancel()

    def _wake(self, waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            self._waiting.pop(waiter, None)
            if not waiter.done():
                waiter.set_result(None)


def being_cancelled() -> bool:
    """True while the running task, and not only a call of gRPC, is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
