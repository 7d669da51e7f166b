"""The global authority as a service object: plans one change at a time, writes it down, and only then takes it over and answers.

There is one log, over the same journals as a local authority's, and whoever took it last is the one that writes. Another global authority over
the same store is fenced: it learns so before its next answer, because each answer is asked of the journal, also one that writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
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
)
from lowwater_regions.references import AUTOMATIC, References

if TYPE_CHECKING:
    from lowwater_authority.journal.contract import Journal
    from lowwater_regions.references import Change

LOG: Final = "~regions"
"""Its name is none that a computation can have."""

SNAPSHOT_RECORDS: Final = 1000
"""A snapshot takes the place of so many records: about a quarter of an hour of a busy region."""

Plan = Callable[[References], "Change"]

log = logging.getLogger(__name__)


class Registry:
    """All references over a journal.

    Args:
        journal: Not open yet.
        clock: The date, microseconds.
        monotonic: A clock that makes no steps, microseconds.
        token: Returns a new random token for a store.
        suspect_after: See References.
        lately: Likewise.
        snapshot_records: A snapshot takes the place of so many records.
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
        """Where the log ends: all up to there is taken over."""
        self.ended: asyncio.Future[JournalError] | None = None
        """Done when another global authority has the store, or the store cannot be written any
        more."""
        self.stopping = False
        self.writes = Writes(lambda: self.stopping)
        self.refused: Counter[tuple[str, str]] = Counter()
        """By call and by the name of the error: calls, and single references within calls that were
        taken, that were refused since the start."""
        self._behind = 0
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Change]] = set()
        self._begun: set[asyncio.Task[Change]] = set()
        """Those that have had the lock."""

    async def open(self) -> None:
        """Take the log, and read it. Raises JournalError."""
        self.ended = asyncio.get_running_loop().create_future()
        await self.journal.open()
        await self._until_known(lambda: self.journal.take(LOG))
        loaded = await self.journal.load(LOG)
        records = [] if loaded.snapshot is None else [(loaded.snapshot_position, loaded.snapshot)]
        for position, record in [*records, *loaded.records]:
            try:
                self.references.apply(record)
            except (ValueError, KeyError, TypeError) as error:
                raise JournalCorrupt(LOG, position, f"it cannot be read: {error}") from error
        self.position, self._behind = loaded.last, len(loaded.records)
        for name, reason in self.references.damaged.items():
            log.error("reference %s: %s", name, reason, extra=event("reference_damaged", reference=name, reason=reason))
        await self.change(lambda core: core.begin(self.token()))

    async def close(self) -> None:
        """Let the change under way end, and close the journal."""
        self.stopping = True
        if self._changes:
            await asyncio.wait(self._changes)
        await self.journal.close()

    async def change(self, plan: Plan) -> Change:
        """Plan a change, make it durable, take it over.

        What the plan raises is raised, and nothing was changed.

        A caller that goes away meanwhile ends nothing: what was begun is finished. What waits
        behind others is not begun any more: while the store is away it would be done hours later,
        for nobody. Raises JournalFailed, Unavailable.
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
        """What has failed is told to whoever asked; nobody may be there any more."""
        self._changes.discard(change)
        self._begun.discard(change)
        if not change.cancelled():
            change.exception()

    async def _change(self, plan: Plan) -> Change:
        async with self._lock:
            if self.stopping or (self.ended is not None and self.ended.done()):
                msg = "this global authority is stopping"
                raise errors.ShuttingDown(msg)
            running = asyncio.current_task()
            assert running is not None
            self._begun.add(running)
            since = self.monotonic()
            try:
                refusal: errors.LowwaterError | None = None
                change: Change | None = None
                try:
                    change = plan(self.references)
                except errors.LowwaterError as error:
                    refusal = error
                if change is None or change.empty:
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
        if change is None:
            assert refusal is not None
            raise refusal
        if change.raises is not None:
            raise change.raises
        if self._behind >= self._snapshot_records:
            await self._snapshot()
        return change

    async def _durable(self, record: bytes | None) -> None:
        """Append a record, or ask whether this process still is the one that may answer."""
        while True:
            try:
                if record is None:
                    await self.journal.confirm([LOG])
                else:
                    entry = Entry(LOG, self.position + 1, record, strong=True)
                    await self._until_known(partial(self.journal.append, [entry]))
                    self.position += 1
                    self._behind += 1
            except JournalLost as error:
                log.error(
                    "%s; putting it back from memory", error, extra=event("store_lost_records", reason=str(error))
                )
                payload = self.references.snapshot()
                await self._until_known(partial(self.journal.restore, LOG, self.position + 1, payload))
                self.position, self._behind = self.position + 1, 0
            else:
                return

    async def _until_known(self, write: Callable[[], Awaitable[object]]) -> None:
        """See Writes; nothing is shown meanwhile."""
        await self.writes.until_known(write)

    async def _snapshot(self) -> None:
        """Shorten the replay. Under the lock, so that the snapshot is of its position."""
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
        """Adopt what an operator has allowed to be adopted, and tell who falls silent; for ever."""
        told: set[str] = set()
        core = self.references
        while True:
            await asyncio.sleep(min(1.0, core.suspect_after / 1e7))
            now = self.monotonic()
            core.watched(now)
            suspect = {
                each.owner for each in core.references.values() if each.owner and core.is_suspect(each.owner, now)
            }
            for region in suspect - told:
                log.warning("region %s is silent", region, extra=event("region_suspect", region=region))
            for region in told - suspect:
                log.info("region %s is heard of again", region, extra=event("region_heard", region=region))
            told = suspect
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

        Raises as References.adopt, and References.check_decision by the two numbers.
        """
        if who == AUTOMATIC:  # what was seen may have changed while others had the lock
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
