"""True if the store takes what this process writes.

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
    """What the store did with the last write. The values stand in ``/healthz``."""

    TAKES = "takes writes"
    REFUSES = "refuses writes"
    SILENT = "does not answer"


class Writes:
    """Repeats writes until their outcome is known, and tells in the log when the store refuses them and when it takes them again.

    Callers hear of a refusal by an error that says "later", so nobody else would log it: a full disk would be silent.
    ``stopping`` returns whether a write of unknown outcome is given up instead of tried again.
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
        """True while a line about refused writes stands in the log without one that says that it is
        over."""

    async def until_known(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until its outcome is known.

        Raises JournalUnknown when the process stops meanwhile, and what the write raises.

        Until it is known whether it happened, nothing may be shown and nothing else written.
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
                self._taken()
                return written

    def _refused(self, error: JournalFailed) -> None:
        self._refusals += 1
        count = self._quiet.count("refused", asyncio.get_running_loop().time())
        if count:
            self._logged = True
            log.error(
                "the store refuses writes; callers are told to come again, and no watermark moves: %s",
                error,
                extra=event("journal_refused", reason=str(error), count=count),
            )
        self._enter(StoreState.REFUSES)

    def _taken(self) -> None:
        if self._logged:
            told = event("journal_back", refused=self._refusals)
            log.info("the store takes writes again", extra=told)
            self._logged = False
        self._refusals = 0
        self._enter(StoreState.TAKES)

    def _enter(self, state: StoreState) -> None:
        if state is not self.state:
            self.state = state
            for changed in self.on_change:
                changed(state)
