"""Confirmation at the store: this shard still owns its computations, and has the newest graph."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, Unpack

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core.computation import LARGEST_EPOCH
from lowwater_authority.engine.graph_log import BrokenGraph
from lowwater_authority.engine.round import GivenUp, GraphMoved, Round
from lowwater_authority.engine.waiting import within
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.journal import GRAPH, JournalCorrupt, JournalError, JournalFailed, JournalLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from lowwater_authority.engine.round import Rounds, Sharing
    from lowwater_authority.engine.served import Served

T = TypeVar("T")

GRAPH_REST_SECONDS: Final = 0.5
"""Rest after a damaged graph could not be written again, in seconds.

Each attempt reads the whole graph, and perhaps writes it."""

SILENT_SECONDS: Final = 30
"""Silence after which a store counts as not answering, in seconds.

The alert LowwaterJournalNotConfirming waits as long."""

log = logging.getLogger(__name__)


class Confirmation:
    """Confirms this shard's knowledge at the store, once for all waiting callers."""

    def __init__(self, served: Served, rounds: Rounds, *, now: Callable[[], int]) -> None:
        """``now`` gives processing time in microseconds."""
        self._served = served
        self._holdings = served.held
        self._rounds = rounds
        self._now = now
        self._confirming = Confirming(self._confirm)
        self._refreshing = Confirming(self._refresh)
        self._checking = Confirming(self._refresh_if_changed)
        self._confirmed = 0
        self._unhealed = "", 0
        """Why the damaged graph could not be written again, and the end of the rest after that, as
        processing time."""
        self._reading: set[asyncio.Future[int]] = set()
        """Readings of the graph that no caller waits for."""

    async def confirm(self, names: Iterable[str] | None = None) -> int:
        """Confirm at the store, once for all callers, that this process owns computations.

        ``names`` None: all but those that are just being healed, whose ownership cannot be
        confirmed; when one of these is named, Unavailable is raised. Computations that other
        processes own now are lost here, and the graph is read if it has changed.

        Returns a processing time at which the published values of the others were the newest.
        Raises Unavailable when the store cannot confirm, at the latest after ``wait_seconds``.
        """
        if not self._served.shared:
            return self.confirmed
        named = None if names is None else list(names)
        async with self.in_time():
            while True:
                confirmable = self._holdings.undoubted() if named is None else named
                # This caller is refused first, because all callers of one check share its result.
                self._holdings.refuse_doubted(confirmable)
                try:
                    return await self._confirming.ask(confirmable)
                except GivenUp:
                    # A computation of some caller came into doubt since. That caller is refused in
                    # the next pass; the others ask again without it.
                    continue

    async def _confirm(self, names: Iterable[str]) -> int:
        began, end = self._now(), None
        while end is None:
            began = self._now()
            try:
                self._holdings.refuse_doubted(names)
            except errors.Unavailable as doubt:
                raise GivenUp from doubt
            try:
                with self._served.losing():
                    end = await self._holdings.confirm(names)
            except JournalLost as lost:
                await self._heal(lost)
            except JournalFailed as error:
                raise self._unconfirmed(f"it cannot reach its store: {error}") from error
        if end > self._holdings.graph.used:
            await self.refresh()
        confirmed = set(names)
        # See Served.confirms.
        if all(name in confirmed or holding.is_torn() for name, holding in self._holdings.served.items()):
            self._confirmed = began
        return began

    async def rise(self, name: str, newer: int) -> None:
        """Take an epoch above ``newer``, which a client has seen of a computation.

        If another shard has replaced this one, this one learns it here and loses the computation.
        If not, the store has lost epochs. With an embedded journal nothing is done: that
        journal was restored from an old copy, which its clients must refuse. Raises Unavailable.
        """
        if not self._served.shared or not self._served.epoch(name) < newer <= LARGEST_EPOCH:
            return
        await self.confirm([name])
        if name in self._served and newer > self._served.epoch(name):
            log.error(
                "%s was served with the number %d, and the store knows only %d: it has lost what it acknowledged, perhaps claims too; "
                "see docs/operate/durability.md",
                name,
                newer,
                self._served.epoch(name),
                extra=event("store_lost_epochs", computation=name, seen=newer, epoch=self._served.epoch(name)),
            )

            def stage(round_: Round) -> None:
                round_.above[name] = newer

            await self.write(stage, alone=True)

    async def refresh(self) -> None:
        """Read the graph, once for all callers, and begin the incarnations that it begins.

        Raises Unavailable.
        """
        await self._refreshing.ask(())

    async def refresh_if_changed(self) -> None:
        """Do what :meth:`refresh` does, if the graph has changed or is in doubt.

        Otherwise this costs one question to the store, once for all callers: where the graph ends.
        """
        await self._checking.ask(())

    async def _refresh_if_changed(self, _: Iterable[str]) -> int:
        try:
            if (
                not self._holdings.graph.doubted
                and await self._holdings.journal.confirm(()) <= self._holdings.graph.used
            ):
                return 0
        except JournalFailed as error:
            raise self._unconfirmed(f"it cannot reach its store: {error}") from error
        except JournalLost:
            pass  # reading the graph heals it
        await self.refresh()
        return 0

    async def _refresh(self, _: Iterable[str]) -> int:
        while True:
            stage, heals = await self._read_stored()
            try:
                await self._rounds.write(stage, alone=True)
            except GivenUp:
                continue  # another process has changed the graph meanwhile
            except errors.JournalFailed as error:
                raise self._not_right(error, rests=heals) from error
            return self._holdings.graph.log.position

    def doubt_graph(self) -> None:
        """Read the stored graph whole next time: another process may be unable to read it."""
        self._holdings.graph.doubted = True

    async def _read_stored(self) -> tuple[Callable[[Round], None], bool]:
        """Read the stored graph. Return how a round uses it, and whether that writes it again.

        Raises Unavailable.
        """
        self._refuse_unhealed()
        try:
            read = await self._holdings.graph.read()
        except JournalLost as lost:
            return partial(_stage_lost, lost), True
        except BrokenGraph as broken:
            return partial(_stage_lost, JournalLost({GRAPH: (self._holdings.graph.log.position, broken.last)})), True
        except JournalError as error:
            if isinstance(error, JournalCorrupt) and error.log == GRAPH:
                return partial(_stage_damage, error), True
            msg = f"this shard cannot read the graph from its store: {error}"
            raise errors.Unavailable(msg) from error

        def stage(round_: Round) -> None:
            newer = self._holdings.graph.newer(read)
            if newer is not None:
                # What only this process knows was lost in the store: the merged graph is appended.
                merged = newer.merged(self._holdings.topology)
                round_.read = merged is newer
                round_.merged = not round_.read
                round_.change_graph(merged, self._served)

        return stage, False

    async def _heal(self, lost: JournalLost) -> None:
        if GRAPH in lost.logs:
            self._refuse_unhealed()
        try:
            await self.write(partial(_stage_lost, lost), alone=True)
        except errors.JournalFailed as error:
            if GRAPH not in lost.logs:
                raise
            raise self._not_right(error, rests=True) from error

    def _refuse_unhealed(self) -> None:
        """Raise Unavailable during the rest after the graph could not be healed."""
        msg, until = self._unhealed
        if self._now() < until:
            raise errors.Unavailable(msg)

    def _not_right(self, error: errors.JournalFailed, *, rests: bool) -> errors.Unavailable:
        """Return the refusal after a failed repair of the graph; ``rests``: the next one waits."""
        msg = f"this shard cannot put the graph right in its store yet: {error.message}"
        if rests:
            self._unhealed = msg, self._now() + int(GRAPH_REST_SECONDS * 1e6)
        return errors.Unavailable(msg)

    def _unconfirmed(self, reason: str) -> errors.Unavailable:
        """Return the refusal of a read whose answer may not be the newest any more.

        Its ``stale_micros`` is the time since the last confirmation.
        """
        stale = self._now() - self.confirmed
        msg = f"this shard cannot confirm that its values are the newest, {reason}. They were {stale / 1e6:.1f} s ago; try again"
        return errors.Unavailable(msg, metadata={"stale_micros": str(stale)})

    @property
    def confirmed(self) -> int:
        """Processing time up to which the published values are confirmed as the newest ones."""
        return self.confirmed_at(self._now())

    def confirmed_at(self, now: int) -> int:
        """Return ``confirmed`` to any thread. The caller brings the processing time.

        Only the event loop may advance this shard's clock.
        """
        confirmed = self._confirmed if self._served.shared else now
        since = self._holdings.logs.unconfirmed_since
        return confirmed if since is None else min(since, confirmed)

    def store_state(self, now: int) -> StoreState:
        """Return how the store treats writes, to any thread; ``now`` as in ``confirmed_at``.

        A store that has confirmed nothing for ``SILENT_SECONDS`` counts as not answering, even if
        there was nothing to write.
        """
        state = self._holdings.logs.writes.state
        silent = now - self.confirmed_at(now) > SILENT_SECONDS * 1_000_000
        return StoreState.SILENT if silent and state is StoreState.TAKES else state

    def refresh_soon(self) -> None:
        """Begin to read the graph again; no caller waits for it."""
        reading = asyncio.ensure_future(self._refreshing.ask(()))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- rounds ------------------------------------------------------------------------------------

    def in_time(self) -> AbstractAsyncContextManager[None]:
        """Bound a wait for the store by ``wait_seconds``, then raise Unavailable."""
        seconds = self._served.settings.wait_seconds
        return within(seconds, lambda: self._unconfirmed(f"its store has not answered within {seconds:g} s"))

    async def write(
        self,
        stage: Callable[[Round], T],
        *,
        first: Callable[[], Awaitable[None]] | None = None,
        **sharing: Unpack[Sharing],
    ) -> T:
        """Run a request in a round, and again when the round was given up for reasons of others.

        ``first`` runs before each attempt.
        """
        while True:
            if first is not None:
                await first()
            try:
                return await self._rounds.write(stage, **sharing)
            except GraphMoved:
                await self.refresh()
            except GivenUp:
                continue


def _stage_lost(lost: JournalLost, round_: Round) -> None:
    round_.lost = lost


def _stage_damage(damage: JournalCorrupt, round_: Round) -> None:
    round_.damage = damage


class Confirming:
    """Runs ``check`` over the names of all callers, once at a time. All get its result or error."""

    def __init__(self, check: Callable[[Iterable[str]], Awaitable[int]]) -> None:
        self._check = check
        # A dict, because the order of a set differs from process to process, and no simulation
        # could be repeated.
        self._names: dict[str, None] = {}
        self._next: asyncio.Task[int] | None = None
        self._running: asyncio.Task[int] | None = None

    async def ask(self, names: Iterable[str]) -> int:
        """Return the result of a check that begins after this call."""
        self._names.update(dict.fromkeys(names))
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
            # Its error is fetched even if all callers are gone by then.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        names, self._names = self._names, {}
        return await self._check(names)
