"""Waking the tasks that wait for something to change."""

from __future__ import annotations

import asyncio

__all__ = ["Signal", "being_cancelled"]


class Signal:
    """Wakes all that wait, whenever something may have changed; they look for themselves what did.

    On threads ``with`` takes a lock, which only :meth:`wait` gives up. Here it does nothing: between two awaits nobody else runs.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Wake all that wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Return after the next :meth:`notify_all`, or after so many seconds; None: only then."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass


def being_cancelled() -> bool:
    """Whether somebody cancels the running task.

    gRPC raises CancelledError also where a *call* was cancelled; this tells the two apart.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
