"""The global authority as a service object: plans a change, writes it down, applies it, answers.

There is one log, in the same journals as a local authority's, and the process that took it last
writes it. Another global authority over the same store is fenced. It learns so before its next
answer, because it asks the journal before each answer, also before one that writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.engine.writes import Writes
from lowwater_authority.journal.contract import (
    Entry,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalLost,
    JournalVersion,
)
from lowwater_regions.change import FORMAT, Change, NewerFormat
from lowwater_regions.json_records import UNREADABLE, is_json
from lowwater_regions.references import AUTOMATIC, References

if TYPE_CHECKING:
    from lowwater_authority.journal.contract import Journal

LOG: Final = "~regions"
"""Name of the log. No computation can have it."""

SNAPSHOT_RECORDS: Final = 1000
"""Number of records that a snapshot replaces: about a quarter of an hour of a busy region."""

Plan = Callable[[References], Change]

log = logging.getLogger(__name__)


class Registry:
    """All references over a journal.

    Args:
        journal: Not open yet.
        clock: Returns the date, microseconds.
        monotonic: A clock that never steps, microseconds.
        token: Returns a new random token for a store.
        suspect_after: See References.
        lately: See References.
        snapshot_records: Number of records that a snapshot replaces.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        token: Callable[[], str],
        suspect_after: int,
        lately: int,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.monotonic = monotonic
        self.token = token
        self._snapshot_records = snapshot_records
        self.references = References(suspect_after, lately, monotonic())
        self.position = 0
        """End of the log. All records up to there are applied."""
        self.ended: asyncio.Future[JournalError] | None = None
        """Why this process no longer writes: another global authority owns the store, or the store
        fails."""
        self.stopping = False
        self.writes = Writes(lambda: self.stopping)
        self.refused: Counter[tuple[str, str]] = Counter()
        """Refusals since the start, by call and name of the error: of whole calls, and of single
        references within them."""
        self._behind = 0
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Change]] = set()
        self._begun: set[asyncio.Task[Change]] = set()
        """Changes that have had the lock."""

    async def open(self) -> None:
        """Own the log, and replay it. Raises JournalError."""
        self.ended = asyncio.get_running_loop().create_future()
        await self.journal.open()
        await self.writes.until_known(lambda: self.journal.take(LOG))
        loaded = await self.journal.load(LOG)
        records = [] if loaded.snapshot is None else [(loaded.snapshot_position, loaded.snapshot)]
        records += loaded.records
        for position, record in records:
            try:
                self.references.apply(record)
            except NewerFormat as error:
                what = f"log {LOG!r} at position {position}"
                package = "lowwater-regions"
                raise JournalVersion(what, stored=error.number, supported=FORMAT, package=package) from error
            except UNREADABLE as error:
                raise JournalCorrupt(LOG, position, f"it cannot be read: {error}") from error
        self.position, self._behind = loaded.last, len(loaded.records)
        if any(is_json(record) for _, record in records):
            self._behind = self._snapshot_records  # a snapshot in messages replaces the JSON at once
        for name, unread in self.references.damaged.items():
            fields = event("reference_damaged", reference=name, reason=unread.reason)
            log.error("reference %s: %s", name, unread.reason, extra=fields)
        await self.change(lambda core: core.begin(self.token()))

    async def close(self) -> None:
        """Finish the change in progress, and close the journal."""
        self.stopping = True
        if self._changes:
            await asyncio.wait(self._changes)
        await self.journal.close()

    async def change(self, plan: Plan) -> Change:
        """Plan a change, make it durable, apply it.

        An error of the plan is raised, and nothing was changed.

        A change that has begun is finished, also when its caller goes away. One that still waits
        behind others is dropped then: while the store is away, it would be done hours later,
        without a caller. Raises JournalFailed, Unavailable.
        """
        running = asyncio.create_task(self._change(plan))
        self._changes.add(running)
        running.add_done_callback(self._over)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running not in self._begun:
                running.cancel()
            raise
        except JournalFailed as error:
            raise errors.JournalFailed(f"the store of the global authority has refused a write: {error}") from error
        except JournalError as error:
            raise errors.Unavailable(f"this global authority has lost its store: {error}") from error

    def _over(self, change: asyncio.Task[Change]) -> None:
        """Forget a finished change. Its error went to the caller, who may have gone."""
        self._changes.discard(change)
        self._begun.discard(change)
        if not change.cancelled():
            change.exception()

    async def _change(self, plan: Plan) -> Change:
        async with self._lock:
            if self.stopping or (self.ended is not None and self.ended.done()):
                raise errors.ShuttingDown("this global authority is stopping")
            running = asyncio.current_task()
            assert running is not None
            self._begun.add(running)
            since = self.monotonic()
            try:
                try:
                    change = plan(self.references)
                except errors.LowwaterError as error:
                    change = Change(raises=error)
                if change.empty:
                    await self._durable(None)
                else:
                    record = change.encode()
                    await self._durable(record)
                    self.references.apply(record)
            except JournalFailed:
                raise
            except JournalError as error:
                self._end(error)
                raise
            finally:
                self.references.held_up(since, self.monotonic())
        if change.raises is not None:
            raise change.raises
        if self._behind >= self._snapshot_records:
            await self._snapshot()
        return change

    async def _durable(self, record: bytes | None) -> None:
        """Append a record; None: ask the journal whether this process still owns the log."""
        while True:
            try:
                if record is None:
                    await self.journal.confirm([LOG])
                else:
                    entry = Entry(LOG, self.position + 1, record, strong=True)
                    await self.writes.until_known(partial(self.journal.append, [entry]))
                    self.position += 1
                    self._behind += 1
            except JournalLost as error:
                log.error(
                    "%s; putting it back from memory", error, extra=event("store_lost_records", reason=str(error))
                )
                payload = self.references.snapshot()
                await self.writes.until_known(partial(self.journal.restore, LOG, self.position + 1, payload))
                self.position, self._behind = self.position + 1, 0
            else:
                return

    async def _snapshot(self) -> None:
        """Shorten the replay. The lock keeps the snapshot at its position."""
        async with self._lock:
            try:
                await self.journal.snapshot(LOG, self.position, self.references.snapshot())
                self._behind = 0
            except JournalError as error:
                self._behind = self._snapshot_records // 2  # not at once again
                log.warning("no snapshot: %s", error, extra=event("snapshot_failed", reason=str(error)))

    def _end(self, error: JournalError) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(error)

    async def watch(self) -> None:
        """Adopt what operators have allowed, and log which regions are silent; for ever."""
        logged: set[str] = set()
        core = self.references
        while True:
            await asyncio.sleep(min(1.0, core.suspect_after / 1e7))
            now = self.monotonic()
            core.watched(now)
            owners = {reference.owner for reference in core.references.values()} - {""}
            suspect = {region for region in owners if core.is_suspect(region, now)}
            for region in suspect - logged:
                log.warning("region %s is silent", region, extra=event("region_suspect", region=region))
            for region in logged - suspect:
                log.info("region %s is heard of again", region, extra=event("region_heard", region=region))
            logged = suspect
            for name, to in core.adoptions(now):
                try:
                    await self.adopt(name, to, AUTOMATIC)
                except errors.LowwaterError as error:
                    log.warning(
                        "%s is not adopted: %s",
                        name,
                        error,
                        extra=event("adoption_failed", reference=name, reason=str(error)),
                    )

    async def adopt(self, name: str, to: str, who: str, number: int = 0, decision_number: int = 0) -> None:
        """Give a reference to another region.

        Raises as References.adopt, and References.check_decision about the two numbers.
        """
        if who == AUTOMATIC:  # the state may have changed while other changes had the lock
            change = await self.change(lambda core: core.adopt_by_itself(name, to, self.clock(), self.monotonic()))
        else:

            def plan(core: References) -> Change:
                core.check_decision(name, number, decision_number)
                return core.adopt(name, to, who, self.clock(), self.monotonic())

            change = await self.change(plan)
        if change.empty:
            return
        number = self.references.get(name).number
        self.references.adopted(name, self.monotonic())
        log.warning(
            "%s is adopted by %s, as number %d, by the word of %s",
            name,
            to,
            number,
            who,
            extra=event("reference_adopted", reference=name, region=to, number=number, who=who),
        )
