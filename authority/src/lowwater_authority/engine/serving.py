"""What a shard does around its requests: takes computations over, runs rounds, publishes, confirms, heals, lets go."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from lowwater import errors
from lowwater._core.text import counted
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import Fenced
from lowwater_authority.engine.confirming import Confirming
from lowwater_authority.engine.holdings import BrokenGraph, Holdings, Unwritten, refusal
from lowwater_authority.engine.hub import Hub
from lowwater_authority.engine.placement import Alone, moved
from lowwater_authority.engine.processing_time import ProcessingTime
from lowwater_authority.engine.rounds import CommitLoop, GivenUp, GraphMoved, Round
from lowwater_authority.engine.takeover import Taking
from lowwater_authority.journal import (
    GRAPH,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalVersion,
)
from lowwater_authority.ops.events import event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.placement import Lows, Placement
    from lowwater_authority.journal import Journal
    from lowwater_authority.ops.observer import Observer

T = TypeVar("T")

WAIT_SECONDS: Final = 5.0
"""How long a read waits for the store at most: as long as one exchange with it may take, whatever else stands in line for it."""

WRITE_AGAIN_SECONDS: Final = (0.05, 30.0)
"""First and longest wait until what a store has damaged is written to it again: each time all of it is made."""

TOGETHER_SECONDS: Final = 1.0
"""How long a question about several computations waits for those that are not served yet: it is not to hide the others."""

TAKEN_AFTER_REGISTERING: Final = 32
"""Computations that are taken side by side because they were just registered: whoever else wants the store stands in line behind these only."""

DROPPED: Final = "its computation was dropped"
"""Why the owners of a computation lose it that is taken out of the graph."""

log = logging.getLogger(__name__)


class Serving:
    """The computations of a shard, the rounds that change them, and whoever follows them. See Holdings for what is held."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], int] | None = None,
        observer: Observer,
        placement: Placement | None = None,
    ) -> None:
        self.journal = journal
        self.hub = Hub()
        self.placement: Placement = placement or Alone()
        self.held = Holdings(journal, observer, self.placement.may_heal)
        self.on_fenced: Callable[[Fenced], None] = lambda _: None
        self.on_moved: Callable[[str], None] = lambda _: None
        self._clock = clock
        self._tick = ProcessingTime(clock, monotonic)
        self._observer = observer
        self._loop = CommitLoop(self)
        self._registered = asyncio.Semaphore(TAKEN_AFTER_REGISTERING)
        self._confirming = Confirming(self._confirm)
        self._refreshing = Confirming(self._refresh)
        self._taking = Taking(
            self.held, self.placement, now=self._tick, refresh=self.refresh, serve=self._begin_to_serve
        )
        self._putting_right: dict[str, asyncio.Task[None]] = {}
        """What writes what only memory has, or reads what memory has half of."""
        self._confirmed = 0
        self._parts = 0
        """Bytes of the task parts of all computations, at most: what was committed since they were counted is still in it."""

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal and serve what is this shard's, but for what is damaged. Raises what the journal raises."""
        held = self.held
        await self.journal.open()
        held.topology = held.newer(await held.read_graph()) or held.topology
        if not held.logs.position(GRAPH) and await self.journal.logs():
            msg = (
                "there are logs but no graph: a copy that was not finished. Repeat `lowwater journal copy`, or remove what there is; "
                "if shards are putting back what their store has lost, start again in a moment"
            )
            raise JournalFailed(msg)
        taken = {}
        for name in held.topology.computations:
            if self.placement.mine(name):
                try:
                    taken[name] = await held.take(name)
                except JournalCorrupt as damage:
                    if damage.position is None:
                        raise  # perhaps more than this one log
                    self._taking.damaged(name, damage)
        # Lives that began before the logs were taken; rounds do not run yet.
        held.topology = held.newer(await held.read_graph()) or held.topology
        for name, (ownership, loaded) in taken.items():
            if name not in held.topology.computations:
                held.journal.release(name)  # it was dropped meanwhile
                continue
            try:
                held.hold(held.topology.get(name), ownership, loaded)
            except JournalCorrupt as damage:
                held.journal.release(name)
                self._taking.damaged(name, damage)
        self._count()
        if not self.shared:
            self.end_dropped()

    async def run(self) -> None:
        """Run rounds until :meth:`stop`. Raises JournalReplaced, JournalCorrupt and their like: this process must not go on."""
        await self._loop.run()

    def stop(self) -> None:
        """Let :meth:`run` finish what is queued and end. New requests are refused with ShuttingDown.

        An append whose outcome is still unknown is given up: nothing of it was shown, and its callers may repeat it.
        """
        self.held.logs.stopping = True
        self._loop.stop()

    async def close(self) -> None:
        """Write a snapshot of every changed computation, so that the next start is quick, and close the journal.

        It replaces what is damaged in the store. What has not changed is read and checked, for this process may have the only good
        copy of it, in memory.
        """
        logs = self.held.logs
        for task in self._putting_right.values():
            task.cancel()
        await asyncio.gather(*self._putting_right.values(), return_exceptions=True)
        await logs.settle()
        await self.held.settle()
        readable = True
        for name, computation in list(self.held.computations.items()):
            if self.held.is_torn(name):
                continue
            if logs.behind(name) and name not in self.held.unwritten:
                logs.snapshot(name, partial(recovery.snapshot, computation))
                await logs.settle()
            elif readable:
                readable = await self._mend(name)
        await self.journal.close()

    async def _mend(self, name: str) -> bool:
        """Put right what the store has of a computation; False when the store is away, and would be so for the others."""
        try:
            await self.held.mend(name)
        except (JournalFenced, JournalLost) as error:
            log.warning(
                "what the store has of %s is not checked: %s",
                name,
                error,
                extra=event("not_checked", computation=name, reason=str(error)),
            )
        except JournalError as error:
            log.warning(
                "the store cannot be checked for damage: %s", error, extra=event("not_checked", reason=str(error))
            )
            return False
        return True

    @property
    def topology(self) -> Topology:
        """The graph, as far as this process has read it."""
        return self.held.topology

    @property
    def shared(self) -> bool:
        """See RoundOwner."""
        return self.journal.shared

    @property
    def confirmed(self) -> int:
        """Processing time up to which the published values are known to be the newest durable ones."""
        return self.confirmed_at(self._tick())

    def confirmed_at(self, now: int) -> int:
        """Return ``confirmed`` to another thread, which brings the time itself: this one's clock is its event loop's to move."""
        known = self._confirmed if self.shared else now
        since = self.held.logs.unconfirmed_since
        return known if since is None else min(since, known)

    @property
    def now(self) -> int:
        """Processing time; see ProcessingTime."""
        return self._tick()

    @property
    def queued(self) -> int:
        """Requests waiting for a round."""
        return len(self._loop)

    # -- what is served --------------------------------------------------------------------------------------

    def serves(self, name: str) -> bool:
        """Return whether this process serves a computation, as far as it knows."""
        return name in self.held.computations

    def epoch(self, name: str) -> int:
        """Return the ownership number of a computation that this shard serves; 0 for others."""
        return self.held.epoch(name)

    async def serve(self, name: str) -> bool:
        """Take a computation over unless it is served already; False when another shard is to, or the membership has moved on.

        Raises UnknownComputation, and Unavailable when that takes longer than ``WAIT_SECONDS``; it goes on all the same.
        """
        if self.serves(name):
            return True
        if not self.placement.mine(name):
            return False
        async with within(WAIT_SECONDS, lambda: _slow(name)):
            return await self._taking.take(name)

    async def serve_those(self, names: Iterable[str]) -> None:
        """Take those over that this shard is to serve, side by side; returns after ``TOGETHER_SECONDS`` at the latest.

        One that cannot be served, or not yet, does not stop those beside it: see :meth:`serves`.
        """
        missing = [name for name in names if not self.serves(name) and self.placement.mine(name)]
        if len(missing) == 1:  # whose clients wait for nothing else: before what has its turn
            with suppress(errors.Unavailable):
                async with within(TOGETHER_SECONDS, lambda: _slow(missing[0])):
                    await self._taking.take(missing[0])
        elif missing:
            await asyncio.wait([self._taking.begin(name) for name in missing], timeout=TOGETHER_SECONDS)

    async def take_over(self, name: str) -> bool:
        """Take a computation over as :meth:`serve` does, in its turn, and however long it takes.

        False also while its log is damaged and its owner lives.
        """
        if self.serves(name):
            return True
        if not self.placement.mine(name):
            return False
        return await asyncio.shield(self._taking.begin(name))

    def is_damaged(self, name: str) -> bool:
        """Whether a computation is not served here because its log cannot be read, and by nobody else as far as is known."""
        return name not in self.held.computations and self._taking.is_damaged(name)

    def end_dropped(self) -> None:
        """Begin to make the logs of those that were dropped short, as far as they are this shard's and are not."""
        self.held.end_all(self.placement.mine)

    async def _until_ended(self, name: str) -> None:
        """Return when the log of a dropped computation is short, so that a next life of it can be read. Raises Unavailable."""
        msg = f"the log of {name}, which was dropped, is not shortened yet; try again"
        async with within(WAIT_SECONDS, lambda: errors.Unavailable(msg, metadata={"computation": name})):
            await self.held.ended(name)

    def _begin_to_serve(self, computation: Computation) -> None:
        self.hub.publish([computation.published])
        self._count()

    async def refresh(self) -> None:
        """Read the graph, once for all that wait, and begin the lives that other processes have begun. Raises Unavailable."""
        await self._refreshing.ask(())

    async def _refresh(self, _: Iterable[str]) -> int:
        while True:
            try:
                await self._loop.write(await self._what_is_read(), alone=True)
            except GivenUp:
                continue  # others have written meanwhile
            return self.held.logs.position(GRAPH)

    async def _what_is_read(self) -> Callable[[Round], None]:
        """Return what a round does with the graph as it is stored now. Raises Unavailable."""
        try:
            read = await self.held.read_graph()
        except JournalLost as lost:
            return partial(_stage_lost, lost)
        except BrokenGraph as broken:
            return partial(_stage_lost, JournalLost({GRAPH: (self.held.logs.position(GRAPH), broken.last)}))
        except JournalError as error:
            msg = f"this shard cannot read the graph from its store: {error}"
            raise errors.Unavailable(msg) from error

        def stage(round_: Round) -> None:
            newer = self.held.newer(read)
            if newer is not None:
                # What this process knows and the store does not was lost there: it is written once more.
                round_.topology = newer.merged(self.topology)
                round_.read = round_.topology is newer
                round_.merged = not round_.read
                self._fence_ended_lives(round_)

        return stage

    async def confirm(self, names: Iterable[str] | None = None) -> int:
        """Make sure, once for all that wait, that the journal knows this process as the owner of computations.

        None: all of them, but for those that are being put into the store again, of which it cannot be told; of these it raises
        Unavailable when they are named.

        Those that others own by now are let go; the graph is read if it has changed. Returns the processing time at which what is
        published of them was the newest. Raises Unavailable when nobody can tell, at the latest after ``WAIT_SECONDS``.
        """
        if not self.shared:
            return self.confirmed
        asked = self.held.undoubted() if names is None else list(names)
        # At once, for all that are asked for at a time share one check.
        self.held.refuse_doubted(asked)
        async with self._in_time():
            return await self._confirming.ask(asked)

    async def _confirm(self, names: Iterable[str]) -> int:
        began, end = self._tick(), None
        while end is None:
            began = self._tick()
            try:
                end = await self.held.confirm(names)
            except JournalFenced as error:
                self.replaced(error.owners)
            except JournalLost as lost:
                await self._heal(lost)
            except JournalFailed as error:
                raise self._unconfirmed(f"it cannot reach its store: {error}") from error
        if end > self.held.logs.position(GRAPH):
            await self.refresh()
        if self.held.computations.keys() <= set(names):
            self._confirmed = began
        return began

    async def rise(self, name: str, seen: int) -> None:
        """Take a number above one that somebody has seen of a computation that is served here. Raises Unavailable.

        A shard that was replaced learns it here, and lets go. If it was not, the store has lost numbers. An embedded one can only have
        been put back from an old copy, which its clients are to refuse.
        """
        if not self.shared or seen <= self.epoch(name):
            return
        await self.confirm([name])
        if self.serves(name) and seen > self.epoch(name):
            log.error(
                "%s was served with the number %d, and the store knows only %d: it has lost what it acknowledged, perhaps claims too; "
                "see docs/durability.md",
                name,
                seen,
                self.epoch(name),
                extra=event("store_lost_epochs", computation=name, seen=seen, epoch=self.epoch(name)),
            )

            def stage(round_: Round) -> None:
                round_.above[name] = seen

            await self._write(stage, alone=True)

    async def _heal(self, lost: JournalLost) -> None:
        await self._write(partial(_stage_lost, lost), alone=True)

    def replaced(self, owners: Mapping[str, tuple[int, int]]) -> None:
        """See RoundOwner."""
        for name in self.held.let_go(owners):
            self.on_moved(name)
            self.hub.move(name)
        self._count()

    def _in_time(self) -> AbstractAsyncContextManager[None]:
        """Around what waits for the store. Raises Unavailable."""
        return within(WAIT_SECONDS, lambda: self._unconfirmed(f"its store has not answered within {WAIT_SECONDS:g} s"))

    def _unconfirmed(self, reason: str) -> errors.Unavailable:
        """Return the refusal to say what may not be the newest any more; ``stale_micros`` is for how long that is not known."""
        stale = self._tick() - self.confirmed
        msg = f"this shard cannot tell whether what it knows is the newest, {reason}. It was {stale / 1e6:.1f} s ago; try again"
        return errors.Unavailable(msg, metadata={"stale_micros": str(stale)})

    # -- rounds --------------------------------------------------------------------------------------------

    async def _read(self, read: Callable[[Round], T]) -> T:
        """Look at the state at a moment when all of it is durable. Raises Unavailable when there is none within ``WAIT_SECONDS``."""
        async with self._in_time():
            return await self._loop.read(read)

    async def _write(
        self,
        stage: Callable[[Round], T],
        *,
        alone: bool = False,
        together: bool = False,
        lows_of: Callable[[], Iterable[str]] | None = None,
        away: Lows | None = None,
    ) -> T:
        """Run a request in a round, again when the round was given up for reasons of others.

        ``lows_of`` are computations whose low watermark ``stage`` needs, found in ``away`` when other shards serve them.
        """
        while True:
            if lows_of is not None and away is not None:
                known = self.topology.computations
                asked = [n for n in lows_of() if n in known]
                # One that was registered a moment ago may be on its way here.
                away.update(await self.placement.lows([n for n in asked if not await self.serve(n)]))
            try:
                return await self._loop.write(stage, alone=alone, together=together)
            except GraphMoved:
                await self.refresh()
            except GivenUp:
                continue

    def begin(self) -> Round:
        """See RoundOwner."""
        return Round(self._tick(), self._clock())

    async def append(self, round_: Round) -> None:
        """See RoundOwner."""
        if round_.lost is not None:
            await self.held.heal(round_.lost)
        for name, seen in round_.above.items():
            await self.held.rise(name, seen)
        records = []
        for name, computation in round_.touched.items():
            record = computation.take_record(round_.now)
            if record is not None:
                records.append((name, *record))
        changed = {name for name, *_ in records}
        unchanged = [name for name in round_.touched if name not in changed]
        if self.shared and unchanged:
            await self._confirm_unchanged(round_, unchanged)
        if round_.topology is not None and not round_.read:
            records.append((GRAPH, self.held.graph_record(round_.topology, whole=round_.merged), True))
        held = self.held.computations
        apart = {GRAPH, *(name for name, computation in round_.touched.items() if held.get(name) is not computation)}
        drop = partial(self._drop, round_) if self._divisible(round_) else None
        await self.held.logs.append(records, round_.now, apart=apart, drop=drop)

    def _divisible(self, round_: Round) -> bool:
        """Whether computations may leave a round: a change of the graph is one with what it changes."""
        return self.shared and round_.topology is None

    def _drop(self, round_: Round, fenced: JournalFenced, in_doubt: bool = False) -> None:
        """Let computations go that other processes own now, and go on with the rest of a round."""
        self.replaced(fenced.owners)
        for name in fenced.owners:
            msg = f"it is not known whether the write took effect; look, or repeat it: {fenced}"
            round_.dropped[name] = errors.Unavailable(msg) if in_doubt else GivenUp()

    async def _confirm_unchanged(self, round_: Round, names: Iterable[str]) -> None:
        """What changes nothing is not appended, so it has to be asked whether a refusal, say of a stale claim, is this process's to make."""
        while names := [name for name in names if name not in round_.dropped]:
            try:
                try:
                    await self.journal.confirm(names)
                except JournalLost as lost:
                    await self.held.heal(lost)
            except JournalFenced as fenced:
                if not self._divisible(round_):
                    raise
                self._drop(round_, fenced)
            else:
                return

    def publish(self, round_: Round, requests: int) -> None:
        """See RoundOwner."""
        held = self.held.computations
        # Not what another shard has taken over meanwhile: it says what there is of it.
        # Nor what has left the round, even if it is served here again.
        left = {*round_.dropped, *self.held.unwritten}
        kept = {n: computation for n, computation in round_.touched.items() if n in held and n not in left}
        held.update(kept)
        views = [computation.publish() for computation in kept.values()]
        if round_.topology is not None:
            views += self._use(round_.topology)
        self.hub.publish(view for view in views if self.serves(view.name))
        losses = [fenced for fenced in round_.fenced if fenced.computation not in round_.dropped]
        for fenced in losses:
            self.on_fenced(fenced)
        self._tell_losses(losses)
        self._count()
        self._observer.round(requests)

    def _tell_losses(self, fenced: Iterable[Fenced]) -> None:
        """One line a computation and reason: a reset takes the ranges of thousands."""
        lost: dict[tuple[str, str], list[int]] = {}
        for each in fenced:
            lost.setdefault((each.computation, each.reason), []).append(each.sequencer)
        for (name, reason), sequencers in lost.items():
            log.info(
                "%s of %s lost key ranges: %s",
                counted(len(sequencers), "claim"),
                name,
                reason,
                extra=event(
                    "owner_lost", computation=name, claims=len(sequencers), sequencer=min(sequencers), reason=reason
                ),
            )

    def _use(self, topology: Topology) -> list[View]:
        """Go on with another graph; returns what the new lives that it begins have published."""
        before, changed = self.topology, topology.changed(self.topology)
        self.held.topology = topology
        views = []
        for name in changed:
            spec, computation = topology.computations.get(name), self.held.computations.get(name)
            if spec is None and name in before.computations:
                self.held.drop(name)
                self._taking.forget(name)
                self.hub.move(name)
                if self.placement.mine(name):
                    self.held.end(name)
            elif spec is not None and computation is not None:
                computation.spec = spec
                if computation.incarnation < spec.incarnation:
                    views.append(self.held.restart(computation, spec).publish())
            if spec is not None and name not in before.computations:
                self.hub.move(name)
        return views

    async def roll_back(self, round_: Round) -> Collection[str]:
        """See RoundOwner. The journal is the truth, and recovery the one way to it, but for what the store has lost or damaged."""
        held = self.held
        if self.shared and round_.topology is not None:
            held.logs.forget(GRAPH)  # it may have been read for this round
        for name in round_.torn & held.computations.keys():
            held.unwritten[name] = Unwritten(torn=True)
        kept: set[str] = set()
        for name in round_.touched:
            while self.serves(name) and not self._is_kept(name):
                try:
                    view, healed = await held.reload(name)
                except JournalFenced as error:
                    self.replaced(error.owners)
                    if name in error.owners:
                        break
                except (JournalCorrupt, JournalVersion) as damage:
                    held.unwritten.setdefault(name, Unwritten(torn=False)).reason = damage
                else:
                    kept.update(healed)
                    if view is not None:
                        self.hub.publish([view])
                    break
            if self._is_kept(name):
                self._keep(name)
                kept.add(name)
        # Half a change counts nowhere: who asked for it hears what the others of the round hear.
        return {name for name in kept if not held.is_torn(name)}

    def _is_kept(self, name: str) -> bool:
        """Whether memory counts, or nothing does, because the store cannot be read back."""
        unwritten = self.held.unwritten.get(name)
        return unwritten is not None and unwritten.reason is not None

    def _keep(self, name: str) -> None:
        """Begin to put right what the store cannot be read back of, beside the rounds: memory may be the only good copy."""
        if name in self._putting_right:
            return
        unwritten = self.held.unwritten[name]
        log.error(
            "%s; %s",
            unwritten.reason,
            "what is in memory cannot be trusted either, so it is left as it is until the store can be read: restore a copy, or reset it"
            if unwritten.torn
            else "it is written again from memory",
            extra=event("damaged_log_kept", computation=name, reason=str(unwritten.reason)),
        )
        self._putting_right[name] = task = asyncio.create_task(self._put_right(name))
        task.add_done_callback(lambda _: self._putting_right.pop(name))

    async def _put_right(self, name: str) -> None:
        """Write what is in memory of a computation until the store has it, or read it until that is whole: nobody else waits for that."""
        wait = WRITE_AGAIN_SECONDS[0]
        while (unwritten := self.held.unwritten.get(name)) is not None:
            try:
                view = await self.held.put_right(name)
            except JournalFenced as error:
                self.replaced(error.owners)
                return
            except JournalError as error:
                if self.held.logs.stopping:
                    return
                log.log(
                    logging.WARNING if wait == WRITE_AGAIN_SECONDS[0] else logging.DEBUG,
                    "%s cannot be %s yet, trying again in %.2f s: %s",
                    name,
                    "read" if unwritten.torn else "written again",
                    wait,
                    error,
                    extra=event("not_written_again", computation=name, reason=str(error)),
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await unwritten.changed.wait()
                changed = unwritten.changed.is_set()
                unwritten.changed.clear()
                wait = WRITE_AGAIN_SECONDS[0] if changed else min(2 * wait, WRITE_AGAIN_SECONDS[1])
            else:
                if view is not None:
                    self.hub.publish([view])
                if self.serves(name) and name not in self.held.unwritten:
                    log.info("%s is whole again, and goes on", name, extra=event("log_whole_again", computation=name))

    def tidy(self, round_: Round) -> None:
        """See RoundOwner. All that is staged is durable here, so it can be snapshotted."""
        logs = self.held.logs
        for name in round_.touched:
            if self.serves(name) and logs.due(name, round_.now):
                logs.snapshot(name, partial(recovery.snapshot, self.held.computations[name]), round_.now)
        if round_.topology is not None and logs.due(GRAPH, round_.now):
            logs.snapshot(GRAPH, self.topology.encode, round_.now)

    def _fence_ended_lives(self, round_: Round) -> None:
        assert round_.topology is not None
        for name in round_.topology.changed(self.topology):
            spec, computation = round_.topology.computations.get(name), self.held.computations.get(name)
            if computation is not None and (spec is None or computation.incarnation < spec.incarnation):
                reason = DROPPED if spec is None else f"{name} was reset"
                round_.fenced += [Fenced(name, sequencer, None, reason) for sequencer in computation.map.groups]

    # -- shared --------------------------------------------------------------------------------------------

    def _computation(self, name: str) -> Computation:
        self.topology.get(name)
        computation = self.held.computations.get(name)
        if computation is None:
            raise moved(name)
        if name in self.held.unwritten:
            raise refusal(name, self.held.unwritten[name])
        return computation

    def _touch(self, round_: Round, name: str) -> Computation:
        computation = self._computation(name)
        round_.touch(name, computation)
        return computation

    def _count(self) -> None:
        self._observer.computations(len(self.held.computations))


@asynccontextmanager
async def within(seconds: float, refusal: Callable[[], errors.Unavailable]) -> AsyncIterator[None]:
    """Bound what is waited for, and refuse it in time; what was begun goes on without the caller."""
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise refusal() from error


def _stage_lost(lost: JournalLost, round_: Round) -> None:
    round_.lost = lost


def _slow(name: str) -> errors.Unavailable:
    msg = f"{name} is being taken over by this shard, which reads it from the store and takes longer than usual; try again"
    return errors.Unavailable(msg, metadata={"computation": name})
