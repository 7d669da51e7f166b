"""The logs of a shard: how far each is written, appends that are retried until their outcome is known, snapshots."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from lowwater_authority.engine.backoff import Backoff
from lowwater_authority.engine.rounds import InDoubt
from lowwater_authority.journal import (
    GRAPH,
    Entry,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalPosition,
    JournalUnknown,
)
from lowwater_authority.ops.events import event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

    from lowwater_authority.journal import Journal, LoadedLog, Ownership
    from lowwater_authority.ops.observer import Observer

SNAPSHOT_BYTES: Final = 4 << 20
"""A log is snapshotted when the records behind its snapshot outgrow this and twice the snapshot."""

GRAPH_BYTES: Final = 64 << 10
"""The same for the log of the graph, which is read by all processes, and again for each change of another one."""

MOST_DOUBLINGS: Final = 4
"""How often the distance to the next attempt at a snapshot is doubled while the store refuses it."""

SNAPSHOT_AGAIN: Final = 600_000_000
"""Microseconds of processing time after which a snapshot that was refused is tried again, however few records have come since."""

RETRY_SECONDS: Final = (0.05, 2.0)
"""First and longest wait before an append of unknown outcome is tried again."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Log:
    position: int = 0
    behind: int = 0
    """Bytes of records behind the snapshot."""
    snapshot_bytes: int = 0
    refused: int = 0
    """Snapshots in a row that the store did not take, or that could not be made."""
    tried: tuple[int, int] = (0, 0)
    """When the last of these was made: ``behind``, and its bytes."""
    tried_at: int = 0
    """And the processing time."""


T = TypeVar("T")


class _Attempts:
    """The attempts of one append. Raises InDoubt where a part of it may be written by now and this attempt surely was not."""

    def __init__(self) -> None:
        self.doubt = False

    async def run(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except JournalUnknown:
            self.doubt = True
            raise
        except (JournalFailed, JournalFenced, JournalPosition) as error:
            if self.doubt:
                raise InDoubt(error) from error
            raise


class Logs:
    """Positions of all logs, over one journal.

    ``heal`` puts what the store has lost of a log back, from memory; called when an append finds it, if ``may_heal``.
    """

    def __init__(
        self,
        journal: Journal,
        observer: Observer,
        heal: Callable[[str], Awaitable[None]],
        may_heal: Callable[[], bool],
    ) -> None:
        self.journal = journal
        self._observer = observer
        self._heal = heal
        self._may_heal = may_heal
        self._logs: dict[str, _Log] = {}
        self._snapshots: dict[str, asyncio.Task[None]] = {}
        self.stopping = False
        """Whether an append of unknown outcome is given up instead of tried again."""
        self.unconfirmed_since: int | None = None
        """Processing time at which an append began whose outcome is not known yet."""

    def position(self, name: str) -> int:
        """Return how far a log is known to be written."""
        return self._log(name).position

    def loaded(self, name: str, loaded: LoadedLog) -> None:
        """A log was read: remember where it ends. Read once more, after a roll-back, its snapshots are as often refused as before."""
        behind = sum(len(payload) for _, payload in loaded.records)
        before = self._logs.get(name, _Log())
        tried = min(before.tried[0], behind), before.tried[1]
        self._logs[name] = _Log(
            loaded.last, behind, len(loaded.snapshot or b""), before.refused, tried, before.tried_at
        )

    def reached(self, name: str, last: int) -> None:
        """A log ends there, or before it: what is written next is behind."""
        state = self._log(name)
        state.position = max(state.position, last)

    def forget(self, name: str) -> None:
        """A log is another process's."""
        self._logs.pop(name, None)

    async def append(
        self,
        records: Sequence[tuple[str, bytes, bool]],
        now: int,
        *,
        apart: Container[str] = (),
        drop: Callable[[JournalFenced, bool], None] | None = None,
    ) -> None:
        """Append (log, payload, strong) in one step; returns when durable. Raises JournalFailed, JournalFenced, ...

        ``apart``: logs whose memory does not have the record yet, so that it is still to be written when they were healed.
        ``drop`` is told which logs other processes own now, and whether their records may be written all the same; the others are
        written without them. Without it, such a log is refused with all others.
        """
        if not records:
            return
        self.unconfirmed_since = now
        with self._observer.append(sum(len(payload) for _, payload, _ in records)):
            try:
                entries = await self._append(records, apart, drop)
            except (JournalFailed, JournalFenced, JournalPosition, InDoubt):
                self.unconfirmed_since = None
                raise
        self.unconfirmed_since = None
        for state, entry in entries:
            state.position = entry.position
            state.behind += len(entry.payload)

    async def _append(
        self,
        records: Sequence[tuple[str, bytes, bool]],
        apart: Container[str],
        drop: Callable[[JournalFenced, bool], None] | None,
    ) -> list[tuple[_Log, Entry]]:
        # As they are now: what is let go while this waits, and perhaps taken again, must not get what was staged before.
        states = {name: self._log(name) for name, _, _ in records if name != GRAPH}
        attempts = _Attempts()

        def healed(states: Mapping[str, _Log], reached: Mapping[str, int]) -> set[str]:
            # The memory that a log is healed from has its record of the round already.
            return {name for name, state in states.items() if state.position > reached[name] and name not in apart}

        while records:
            places = {**states, GRAPH: self._log(GRAPH)}
            entries = [Entry(name, places[name].position + 1, payload, strong) for name, payload, strong in records]
            reached = {name: state.position for name, state in states.items()}
            try:
                try:
                    await self.until_known(partial(attempts.run, partial(self._write, entries, states)))
                except JournalLost as error:
                    await self.heal(error)
                else:
                    return [(places[entry.log], entry) for entry in entries]
            except (JournalFailed, JournalPosition) as error:
                # A heal that could not be finished: what it has put back, and what was tried before it, may count.
                if attempts.doubt or healed(states, reached):
                    raise InDoubt(error) from error
                raise
            except (JournalFenced, InDoubt) as error:
                fenced = error.after if isinstance(error, InDoubt) else error
                if drop is None or not isinstance(fenced, JournalFenced):
                    raise
                drop(fenced, attempts.doubt)
                records = [record for record in records if record[0] not in fenced.owners]
                states = {name: state for name, state in states.items() if name not in fenced.owners}
            back = healed(states, reached)
            attempts.doubt = attempts.doubt or bool(back)
            records = [record for record in records if record[0] not in back]
        return []

    async def _write(self, entries: Sequence[Entry], states: Mapping[str, _Log]) -> None:
        """One attempt, unless a log was let go meanwhile."""
        gone = {name: (0, 0) for name, state in states.items() if self._logs.get(name) is not state}
        if gone:
            raise JournalFenced(gone)
        await self.journal.append(entries)

    async def heal(self, error: JournalLost) -> None:
        """Put back what the store has lost: the graph first, which the lives of all others stand on.

        Raises JournalFailed while this process has to wait whether another one does it, which may know more; JournalFenced
        when other processes own some of the logs by now, and the others are put back.
        """
        if not self._may_heal():
            msg = f"{error}. This process was out of touch with it: another one may own them, and goes first; try again"
            raise JournalFailed(msg)
        log.error("%s; putting it back from memory", error, extra=event("store_lost_records", reason=str(error)))
        names = set(error.logs)
        try:
            await self.journal.confirm(())
        except JournalLost as also:
            names.update(also.logs)
        moved: JournalPosition | None = None
        fenced: dict[str, tuple[int, int]] = {}
        for name in sorted(names, key=lambda name: (name != GRAPH, name)):
            try:
                await self._heal(name)
            except JournalPosition as place:  # of the graph: the others do not wait for it to be read
                moved = place
            except JournalFenced as replaced:
                fenced |= replaced.owners
        if moved is not None:
            raise moved
        if fenced:
            raise JournalFenced(fenced)

    async def restore(self, name: str, payload: bytes, *, view: int, address: str) -> Ownership:
        """Make a snapshot all there is of a log, which the store has lost a part of. Raises JournalFenced, JournalPosition, ...

        An older snapshot that is still being written does not matter: it is of an owner, and of a place, that are over.
        """
        state = self._log(name)
        position = state.position + 1
        restoring = await self.until_known(
            lambda: self.journal.restore(name, position, payload, view=view, address=address)
        )
        if self._logs.get(name) is state:  # else it was let go meanwhile
            state.position, state.behind, state.snapshot_bytes = position, 0, len(payload)
        return restoring

    async def until_known(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until its outcome is known. Raises JournalUnknown when the process stops meanwhile.

        Until it is known whether it happened, nothing may be shown and nothing else written.
        """
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            try:
                written = await write()
            except JournalUnknown as error:
                if self.stopping:
                    raise
                log.log(
                    logging.WARNING if backoff.first else logging.DEBUG,
                    "write of unknown outcome, trying again as is in %.2f s: %s",
                    backoff.seconds,
                    error,
                    extra=event("store_away", reason=str(error)),
                )
                await backoff.wait()
            else:
                if not backoff.first:
                    log.info("the store answers again", extra=event("store_back"))
                return written

    def due(self, name: str, now: int) -> bool:
        """Whether a snapshot of a log would bound the replay, and none is being written.

        After one that was refused so many bytes have to come as make one due, and after each further one twice as many: making
        it costs all of the computation, whether or not the store takes it. But ``SNAPSHOT_AGAIN`` is long enough for any.
        """
        state = self._log(name)
        least = max(GRAPH_BYTES if name == GRAPH else SNAPSHOT_BYTES, 2 * state.snapshot_bytes)
        if name in self._snapshots or state.behind <= least:
            return False
        behind, tried = state.tried
        more = max(least, 2 * tried) << min(max(0, state.refused - 1), MOST_DOUBLINGS)
        return state.behind > behind + more or bool(state.refused and now - state.tried_at >= SNAPSHOT_AGAIN)

    def behind(self, name: str) -> int:
        """Return how many bytes of records are behind the snapshot of a log."""
        return self._log(name).behind

    def snapshot(self, name: str, take: Callable[[], bytes], now: int = 0) -> None:
        """Begin to replace a log's records by a snapshot of what is durable now; appends go on meanwhile.

        A failure is logged: a snapshot only shortens the replay.
        """
        state = self._log(name)
        try:
            payload = take()
        except Exception:
            state.refused, state.tried, state.tried_at = state.refused + 1, (state.behind, 0), now
            log.exception("no snapshot of %r can be taken", name, extra=event("snapshot_failed", computation=name))
            return
        self._snapshots[name] = asyncio.create_task(self._snapshot(name, state.position, state.behind, payload, now))

    def write_whole(self, name: str, take: Callable[[], bytes], now: int) -> None:
        """Begin a snapshot of a log that has records behind its last one, however few, unless one is being written."""
        if self.behind(name) and name not in self._snapshots:
            self.snapshot(name, take, now)

    async def _snapshot(self, name: str, position: int, covered: int, payload: bytes, now: int) -> None:
        try:
            await self.journal.snapshot(name, position, payload)
        except JournalError as error:
            state = self._log(name)
            state.refused, state.tried, state.tried_at = state.refused + 1, (covered, len(payload)), now
            log.warning(
                "no snapshot of %r: %s",
                name,
                error,
                extra=event("snapshot_failed", computation=name, reason=str(error)),
            )
        else:
            state = self._log(name)
            state.behind, state.snapshot_bytes = max(0, state.behind - covered), len(payload)
            state.refused, state.tried = 0, (0, 0)
        finally:
            del self._snapshots[name]

    async def settle(self) -> None:
        """Wait for the snapshots that were begun."""
        while self._snapshots:
            await asyncio.wait(self._snapshots.values())

    def _log(self, name: str) -> _Log:
        return self._logs.setdefault(name, _Log())
