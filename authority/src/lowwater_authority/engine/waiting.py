"""Bounded waits for the next attempt, and for the store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lowwater import errors


class Backoff:
    """Waits ``least`` seconds, then twice as long each time, ``most`` seconds in the end."""

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most
        self.seconds = least
        """Length of the next wait."""

    @property
    def first(self) -> bool:
        """True before the first wait. Later attempts are logged at a lower level."""
        return self.seconds == self._least

    async def wait(self, early: asyncio.Event | None = None) -> None:
        """Wait ``seconds``, or until ``early`` is set."""
        if early is None:
            await asyncio.sleep(self.seconds)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await early.wait()
        self.seconds = min(2 * self.seconds, self._most)

    def restart(self) -> None:
        """Begin anew with the shortest wait."""
        self.seconds = self._least


@asynccontextmanager
async def within(seconds: float, refusal: Callable[[], errors.Unavailable]) -> AsyncIterator[None]:
    """Wait for the body ``seconds`` at most, then raise ``refusal()``.

    Tasks that the body began go on.
    """
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise refusal() from error
