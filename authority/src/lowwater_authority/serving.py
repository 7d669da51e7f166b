"""What a shard does around its requests: takes computations over, runs rounds, publishes, confirms, heals, lets go."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lowwater import errors
from lowwater_authority.confirming import Confirming
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import Fenced
from lowwater_authority.holdings import Holdings
from lowwater_authority.hub import Hub
from lowwater_authority.journal import GRAPH, JournalError, JournalFailed, JournalFenced, JournalLost, JournalOutvoted
from lowwater_authority.placement import Alone, moved
from lowwater_authority.rounds import CommitLoop, GivenUp, GraphMoved, Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.journal import Journal, LoadedLog, Ownership
    from lowwater_authority.observer import Observer
    from lowwater_authority.placement import Lows, Placement

T = TypeVar("T")

log = logging.getLogger(__name__)


class Serving:
    """The computations of a shard, the rounds that change them, and whoever follows them. See Holdings for what is held."""

    def __init__(
        self, journal: Journal, *, clock: Callable[[], int], observer: Observer, placement: Placement | None = None
    ) -> None:
        self.journal = journal
        self.hub = Hub()
        self.placement: Placement = placement or Alone()
        self.held = Holdings(journal, observer, self.placement.may_heal)
        self.on_fenced: Callable[[Fenced], None] = lambda _: None
        self.on_moved: Callable[[str], None] = lambda _: None
        self._clock = clock
        self._observer = observer
        self._loop = CommitLoop(self)
        self._confirming = Confirming(self._confirm)
        self._refreshing = Confirming(self._refresh)
        self._taking: dict[str, asyncio.Task[bool]] = {}
        self._now = 0
        self._confirmed = 0

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal and serve what is this shard's. Raises what the journal raises."""
        held = self.held
        await self.journal.open()
        held.topology = held.newer(await held.read_graph()) or held.topology
        if not held.logs.position(GRAPH) and await self.journal.logs():
            msg = (
                "there are logs but no graph: a copy that was not finished. Repeat `lowwater journal copy`, or remove what there is; "
                "if shards are putting back what their store has lost, start again in a moment"
            )
            raise JournalFailed(msg)
        taken = {name: await held.take(name) for name in held.topology.computations if self.placement.mine(name)}
        # Lives that began before the logs were taken; rounds do not run yet.
        held.topology = held.newer(await held.read_graph()) or held.topology
        for name, (ownership, loaded) in taken.items():
            held.hold(held.topology.get(name), ownership, loaded)
        self._count()

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
        """Write a snapshot of every changed computation, so that the next start is quick, and close the journal."""
        logs = self.held.logs
        await logs.settle()
        for name, computation in self.held.computations.items():
            if logs.behind(name):
                logs.snapshot(name, partial(recovery.snapshot, computation))
                await logs.settle()
        await self.journal.close()

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
        known = self._confirmed if self.shared else self._tick()
        since = self.held.logs.unconfirmed_since
        return known if since is None else min(since, known)

    @property
    def now(self) -> int:
        """Processing time, by a clock that never goes back."""
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

        Raises UnknownComputation, and Unavailable when the store does not answer.
        """
        if self.serves(name):
            return True
        if not self.placement.mine(name):
            return False
        task = self._taking.get(name)
        if task is None:
            task = self._taking[name] = asyncio.create_task(self._take(name))
            task.add_done_callback(lambda _: self._taking.pop(name))
        try:
            return await asyncio.shield(task)
        except JournalError as error:
            msg = f"this shard cannot take {name} over from the store: {error}"
            raise errors.Unavailable(msg, metadata={"computation": name}) from error

    async def _take(self, name: str) -> bool:
        held = self.held

        async def take() -> tuple[Ownership, LoadedLog]:
            if not self.placement.mine(name):
                # The members have changed since the first attempt, whose outcome is not known.
                raise JournalOutvoted(name, view=held.view, newest=held.view)
            return await held.take(name)

        try:
            ownership, loaded = await held.logs.until_known(take)
        except JournalOutvoted:
            await self.placement.outvoted()
            return False
        try:
            if self.shared:
                # The log may be of a life that this process has not heard of yet.
                await self.refresh()
            computation = held.hold(self.topology.get(name), ownership, loaded)
        except BaseException:
            self.journal.release(name)
            raise
        self.hub.publish([computation.published])
        self._count()
        return True

    async def refresh(self) -> None:
        """Read the graph, once for all that wait, and begin the lives that other processes have begun. Raises Unavailable."""
        await self._refreshing.ask(())

    async def _refresh(self, _: Iterable[str]) -> int:
        try:
            loaded = await self.held.read_graph()
        except JournalLost as lost:
            await self._heal(lost)
            return self.held.logs.position(GRAPH)
        except JournalError as error:
            msg = f"this shard cannot read the graph from its store: {error}"
            raise errors.Unavailable(msg) from error

        def stage(round_: Round) -> None:
            newer = self.held.newer(loaded)
            if newer is not None:
                # What this process knows and the store does not was lost there: it is written once more.
                round_.topology = newer.merged(self.topology)
                round_.read = round_.topology is newer
                self._fence_ended_lives(round_)

        await self._write(stage, alone=True)
        return self.held.logs.position(GRAPH)

    async def confirm(self, names: Iterable[str] | None = None) -> int:
        """Make sure, once for all that wait, that the journal knows this process as the owner of computations (None: all of them).

        Those that others own by now are let go; the graph is read if it has changed. Returns the processing time at which what is
        published of them was the newest. Raises Unavailable when nobody can tell.
        """
        if not self.shared:
            return self.confirmed
        return await self._confirming.ask(self.held.computations if names is None else names)

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
            )

            def stage(round_: Round) -> None:
                round_.above[name] = seen

            await self._write(stage, alone=True)

    async def _heal(self, lost: JournalLost) -> None:
        def stage(round_: Round) -> None:
            round_.lost = lost

        await self._write(stage, alone=True)

    def replaced(self, owners: Mapping[str, tuple[int, int]]) -> None:
        """See RoundOwner."""
        for name in self.held.let_go(owners):
            self.on_moved(name)
            self.hub.move(name)
        self._count()

    # -- rounds --------------------------------------------------------------------------------------------

    async def _write(
        self,
        stage: Callable[[Round], T],
        *,
        alone: bool = False,
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
                return await self._loop.write(stage, alone=alone)
            except GraphMoved:
                await self.refresh()
            except GivenUp:
                continue

    def begin(self) -> Round:
        """See RoundOwner."""
        return Round(self._tick())

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
            await self._confirm_unchanged(unchanged)
        if round_.topology is not None and not round_.read:
            records.append((GRAPH, round_.topology.encode(), True))
        held = self.held.computations
        apart = {GRAPH, *(name for name, computation in round_.touched.items() if held.get(name) is not computation)}
        await self.held.logs.append(records, round_.now, apart=apart)

    async def _confirm_unchanged(self, names: Iterable[str]) -> None:
        """What changes nothing is not appended, so it has to be asked whether a refusal, say of a stale claim, is this process's to make."""
        try:
            await self.journal.confirm(names)
        except JournalLost as lost:
            await self.held.heal(lost)

    def publish(self, round_: Round, requests: int) -> None:
        """See RoundOwner."""
        held = self.held.computations
        # Not what another shard has taken over meanwhile: it says what there is of it.
        kept = {name: computation for name, computation in round_.touched.items() if name in held}
        held.update(kept)
        views = [computation.publish() for computation in kept.values()]
        if round_.topology is not None:
            views += self._use(round_.topology)
        self.hub.publish(views)
        for fenced in round_.fenced:
            self.on_fenced(fenced)
        self._count()
        self._observer.round(requests)

    def _use(self, topology: Topology) -> list[View]:
        """Go on with another graph; returns what the new lives that it begins have published."""
        new = [name for name in topology.computations if name not in self.topology.computations]
        self.held.topology = topology
        views = []
        for name, computation in self.held.computations.items():
            spec = topology.get(name)
            computation.spec = spec
            if computation.incarnation < spec.incarnation:
                fresh = self.held.computations[name] = recovery.restarted(computation, spec)
                views.append(fresh.publish())
        for name in new:
            self.hub.move(name)
        return views

    async def roll_back(self, round_: Round) -> bool:
        """See RoundOwner. The journal is the truth, and recovery the one way to it, but for what the store has lost."""
        await self.held.logs.settle()
        if self.shared and round_.topology is not None:
            self.held.logs.forget(GRAPH)  # it may have been read for this round
        kept = False
        for name in round_.touched:
            try:
                view, healed = await self.held.reload(name)
            except JournalFenced as error:
                self.replaced(error.owners)
                continue
            kept = kept or healed
            if view is not None:
                self.hub.publish([view])
        return kept

    def tidy(self, round_: Round) -> None:
        """See RoundOwner. All that is staged is durable here, so it can be snapshotted."""
        logs = self.held.logs
        for name in round_.touched:
            if self.serves(name) and logs.due(name):
                logs.snapshot(name, partial(recovery.snapshot, self.held.computations[name]))
        if round_.topology is not None and logs.due(GRAPH):
            logs.snapshot(GRAPH, self.topology.encode)

    def _fence_ended_lives(self, round_: Round) -> None:
        assert round_.topology is not None
        round_.fenced += [
            Fenced(name, sequencer, None, f"{name} was reset")
            for name, computation in self.held.computations.items()
            if computation.incarnation < round_.topology.get(name).incarnation
            for sequencer in computation.map.groups
        ]

    # -- shared --------------------------------------------------------------------------------------------

    def _computation(self, name: str) -> Computation:
        self.topology.get(name)
        computation = self.held.computations.get(name)
        if computation is None:
            raise moved(name)
        return computation

    def _touch(self, round_: Round, name: str) -> Computation:
        computation = self._computation(name)
        round_.touched[name] = computation
        return computation

    def _count(self) -> None:
        self._observer.computations(len(self.held.computations))

    def _tick(self) -> int:
        self._now = max(self._now, self._clock())
        return self._now
