"""Repair of computations whose log cannot be read back: memory may have the only good copy."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from lowwater.core.events import event
from lowwater_authority.engine.waiting import Backoff
from lowwater_authority.journal import JournalError, JournalFenced, JournalLost, JournalVersion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.served import Served

log = logging.getLogger(__name__)


class Repair:
    """Makes memory and store equal again, beside the rounds."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._holdings = served.held

    def begin(self, holding: Holding) -> None:
        """Begin to repair a computation, unless that has begun already."""
        unwritten = holding.unwritten
        if holding.mending is not None or unwritten is None:
            return
        log.error(
            "%s; %s",
            unwritten.reason,
            "half a change may be in memory, so it stays as it is until its log can be read: restore a copy, or reset it"
            if unwritten.torn
            else "it is written again from memory",
            extra=event("damaged_log_kept", computation=holding.name, reason=str(unwritten.reason)),
        )
        holding.mending = task = asyncio.create_task(self._repair(holding.name))
        task.add_done_callback(partial(self._end, holding))

    def _end(self, holding: Holding, _: asyncio.Task[None]) -> None:
        holding.mending = None
        self._holdings.discard(holding)

    async def _repair(self, name: str) -> None:
        """Write a computation from memory, or read a torn one's log, until that succeeds."""
        backoff = Backoff(*self._served.settings.write_again_seconds)
        while (unwritten := self._holdings.unwritten(name)) is not None:
            try:
                with self._served.losing() as lost:
                    computation = await self._holdings.of(name).repair()
                if lost:
                    return
            except JournalError as error:
                if self._holdings.logs.stopping:
                    return
                log.log(
                    logging.WARNING if backoff.first else logging.DEBUG,
                    "%s cannot be %s yet, trying again in %.2f s: %s",
                    name,
                    "read" if unwritten.torn else "written again",
                    backoff.seconds,
                    error,
                    extra=event("not_written_again", computation=name, reason=str(error)),
                )
                await backoff.wait(unwritten.changed)
                if unwritten.changed.is_set():
                    backoff.restart()
                unwritten.changed.clear()
            else:
                if computation is not None:
                    self._served.publish([computation])
                if name in self._served and self._holdings.unwritten(name) is None:
                    log.info("%s is whole again, and goes on", name, extra=event("log_whole_again", computation=name))

    async def at_stop(self, name: str, mend: Callable[[], Awaitable[None]]) -> bool:
        """Repair the log of a computation, or of the graph, once.

        Returns False when the store does not answer. Then the repair of other logs would fail too.
        """
        try:
            await mend()
        except (JournalFenced, JournalLost, JournalVersion) as error:
            facts = event("not_checked", computation=name, reason=str(error))
            log.warning("what the store has of %s is not checked: %s", name, error, extra=facts)
        except JournalError as error:
            log.warning(
                "the store cannot be checked for damage: %s", error, extra=event("not_checked", reason=str(error))
            )
            return False
        return True
