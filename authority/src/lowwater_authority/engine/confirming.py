"""One check for all that wait for one: what is asked while a check runs waits for the next, so each is younger than its asker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


class Confirming:
    """Runs ``check`` over the names of all who asked; at most one at a time. Its result, or error, is theirs."""

    def __init__(self, check: Callable[[Iterable[str]], Awaitable[int]]) -> None:
        self._check = check
        # A dict for its order: a set's would differ from process to process, and no run could be repeated.
        self._names: dict[str, None] = {}
        self._next: asyncio.Task[int] | None = None
        self._running: asyncio.Task[int] | None = None

    async def ask(self, names: Iterable[str]) -> int:
        """Return what a check answers that begins after this call."""
        self._names.update(dict.fromkeys(names))
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
            # Whoever asked may be gone by then.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        names, self._names = self._names, {}
        return await self._check(names)
