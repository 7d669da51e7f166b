"""Waking the tasks that wait for something to change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Set

__all__ = ["Signal", "being_cancelled"]


class Signal:
    """Wakes those that wait, whenever something may have changed for them; they look for themselves what did.

    On threads ``with`` takes a lock, which only :meth:`wait` gives up. Here it does nothing: between two awaits nobody else runs.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Collection[str]] = {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Wake all that wait now."""
        self._wake(list(self._waiting))

    def notify_about(self, names: Set[str]) -> None:
        """Wake those that wait for one of these names, or for anything. O(waiting)."""
        self._wake([each for each, about in self._waiting.items() if not about or not names.isdisjoint(about)])

    async def wait(self, seconds: float | None, about: Collection[str] = ()) -> None:
        """Return after the next call of the above that concerns these names, or after so many seconds; None: only then.

        Without names everything does.
        """
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

    def _wake(self, each: list[asyncio.Future[None]]) -> None:
        for woken in each:
            self._waiting.pop(woken, None)
            if not woken.done():
                woken.set_result(None)


def being_cancelled() -> bool:
    """Whether somebody cancels the running task.

    gRPC raises CancelledError also where a *call* was cancelled; this tells the two apart.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
