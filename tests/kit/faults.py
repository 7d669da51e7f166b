"""The faults of a MemoryJournal, decided by a test or a simulator, call by call."""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple


class Outcome(enum.Enum):
    DONE = enum.auto()
    """Durable and acknowledged."""
    FAILED = enum.auto()
    """Surely not written: JournalFailed."""
    LOST = enum.auto()
    """Not written, but the caller cannot know: JournalUnknown."""
    WRITTEN = enum.auto()
    """Durable, but the caller cannot know: JournalUnknown."""
    ADRIFT = enum.auto()
    """Only in the disk's cache, and the caller cannot know: JournalUnknown. A crash drops it."""
    CACHED = enum.auto()
    """Only in the disk's cache before ``after``; acknowledged when it is durable behind that."""
    UNSYNCED = enum.auto()
    """Acknowledged while it is only in the disk's cache: breaks rule 2. A crash drops it."""


class Operation(NamedTuple):
    name: str
    """``append``, ``snapshot``, ``take`` or ``restore``."""
    places: list[tuple[str, int]]
    """Log and position of each entry, or of the snapshot; 0 for a log that is taken."""
    strong: bool
    """True if any entry is strong; always True for the other kinds."""


class FaultPlan:
    """Decides how each write ends. This one lets all succeed, but for what ``then`` has lined up.

    A subclass may decide by itself, and may wait in any hook for whatever it likes: the store is slow then. None is
    called for ``append(())``.
    """

    def __init__(self) -> None:
        self._next: deque[Outcome] = deque()

    def then(self, *outcomes: Outcome) -> FaultPlan:
        self._next.extend(outcomes)
        return self

    async def before(self, operation: Operation) -> Outcome:
        """Called before the disk is touched; says how the write ends. Cancelled or crashed here: not written."""
        del operation
        return self._next.popleft() if self._next else Outcome.DONE

    async def after(self, operation: Operation) -> None:
        """Called when the write took effect but its caller does not know yet. Cancelled or crashed here: written."""

    async def read(self, name: str) -> None:
        """Called before ``confirm``, ``owners``, ``logs`` or ``load``; may raise JournalFailed: the store is out of reach."""

    async def load(self, log: str) -> None:
        """Called before a log is read whole."""

    async def settle(self, log: str) -> None:
        """Called when a log was read while writes are in the disk's cache only, and before it makes them durable.

        May raise JournalFailed, as a store does whose replicas do not confirm in time.
        """
        del log
        await self.read("settle")
