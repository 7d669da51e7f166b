"""Writes to the store, repeated until their outcome is known, and the state of the store by them.

Every write of a shard, or of a global authority, goes through here.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from lowwater.core.events import Limited, event
from lowwater_authority.engine.waiting import Backoff
from lowwater_authority.journal.contract import JournalFailed, JournalUnknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RETRY_SECONDS: Final = (0.05, 2.0)
"""First and longest wait before a write of unknown outcome is tried again."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class StoreState(StrEnum):
    """Reaction of the store to the last write. The values stand in ``/healthz``."""

    TAKES = "takes writes"
    REFUSES = "refuses writes"
    SILENT = "does not answer"


class Writes:
    """Repeats writes until their outcome is known. Logs when the store refuses them, and when not.

    Callers only get an error that says "later", and do not log it. So without these lines a full
    disk would be silent. While ``stopping`` returns True, a write of unknown outcome is given up
    instead of repeated.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.state = StoreState.TAKES
        """Read by other threads too."""
        self.on_change: list[Callable[[StoreState], None]] = []
        """Called on the event loop with each new state."""
        self._stopping = stopping
        self._quiet = Limited()
        self._refusals = 0
        """Refused writes since the store took one."""
        self._logged = False
        """True if refused writes were logged, and their end was not."""

    async def until_known(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until its outcome is known.

        Until then nothing of it may be published, and nothing else written. Raises JournalUnknown
        if the process stops meanwhile, and errors of the write.
        """
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            try:
                written = await write()
            except JournalUnknown as error:
                if self._stopping():
                    raise
                log.log(
                    logging.WARNING if backoff.first else logging.DEBUG,
                    "write of unknown outcome, trying again as is in %.2f s: %s",
                    backoff.seconds,
                    error,
                    extra=event("store_away", reason=str(error)),
                )
                self._enter(StoreState.SILENT)
                await backoff.wait()
            except JournalFailed as error:
                self._refused(error)
                raise
            else:
                if not backoff.first:
                    log.info("the store answers again", extra=event("store_back"))
                self._accepted()
                return written

    def _refused(self, error: JournalFailed) -> None:
        self._refusals += 1
        count = self._quiet.count("refused", asyncio.get_running_loop().time())
        if count:
            self._logged = True
            log.error(
                "the store refuses writes, so requests are refused, and no watermark moves: %s",
                error,
                extra=event("journal_refused", reason=str(error), count=count),
            )
        self._enter(StoreState.REFUSES)

    def _accepted(self) -> None:
        if self._logged:
            facts = event("journal_back", refused=self._refusals)
            log.info("the store takes writes again", extra=facts)
            self._logged = False
        self._refusals = 0
        self._enter(StoreState.TAKES)

    def _enter(self, state: StoreState) -> None:
        if state is not self.state:
            self.state = state
            for changed in self.on_change:
                changed(state)
