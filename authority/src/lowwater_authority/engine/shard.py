"""A shard: serves computations, and says what a round of requests does to them.

    requests -> [round: check and stage in arrival order -> one append -> publish and answer] -> the next round

Nothing is published, acknowledged or granted before its record is durable (rule 2). Everything runs on one event loop;
time, journal and randomness are passed in.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from lowwater import errors
from lowwater.core.events import event
from lowwater.core.text import counted
from lowwater_authority.access.caller import anything
from lowwater_authority.core import recovery
from lowwater_authority.core.batches import ALL_PART_BYTES, part_bytes
from lowwater_authority.core.computation import LARGEST_EPOCH
from lowwater_authority.core.requests import Fenced, Refused
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.engine.backoff import Backoff
from lowwater_authority.engine.holdings import BrokenGraph, Holdings
from lowwater_authority.engine.hub import Hub
from lowwater_authority.engine.logs import Record
from lowwater_authority.engine.placement import Alone, moved
from lowwater_authority.engine.processing_time import ProcessingTime
from lowwater_authority.engine.rounds import CommitLoop, GivenUp, GraphMoved, Round
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.slices import Slice, inputs_of
from lowwater_authority.engine.takeover import Taking
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.journal import (
    GRAPH,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalVersion,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.history import Completion
    from lowwater_authority.core.interval_map import IntervalMap, Range
    from lowwater_authority.core.layout import Layout, Told
    from lowwater_authority.core.requests import ClaimRequest, Fold, Grant, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.holdings import ReadGraph
    from lowwater_authority.engine.placement import Lows, Placement
    from lowwater_authority.engine.slices import Inputs
    from lowwater_authority.engine.writes import Writes
    from lowwater_authority.journal import Journal
    from lowwater_authority.ops.observer import Observer
    from lowwater_authority.records.journal_pb2 import Snapshot

    Permit = Callable[[Iterable[str]], None]
    """Raises PermissionDenied unless new incarnations of these computations may begin."""
    Room = Callable[[Collection[str]], None]
    """Raises Overloaded unless there may be one more beside these computations."""
    RoomForRanges = Callable[[int], None]
    """Raises Overloaded unless there may be so many ranges."""


T = TypeVar("T")

WAIT_SECONDS: Final = 5.0
"""How long a read waits for the store at most: as long as one exchange with it may take, whatever else stands in line for it."""

TELL_SECONDS: Final = 60.0
"""How often a process says that it still waits for a graph that it can read."""

GRAPH_REST_SECONDS: Final = 0.5
"""How long a damaged graph that could not be written again is left alone: each time all of it is read, and perhaps written."""

SILENT_SECONDS: Final = 30
"""A store that has confirmed nothing for so long is said not to answer; the alert LowwaterJournalNotConfirming waits as long."""

TOGETHER_SECONDS: Final = 1.0
"""How long a question about several computations waits for those that are not served yet: it is not to hide the others."""

TAKEN_AFTER_REGISTERING: Final = 32
"""Computations that are taken side by side because they were just registered: whoever else wants the store stands in line behind these only."""

DROPPED: Final = "its computation was dropped"
"""Why the owners of a computation lose it that is taken out of the graph."""

log = logging.getLogger(__name__)


class Shard:
    """Serves a set of computations: all of a deployment, with an embedded journal. See Holdings for what is held.

    Every request method returns when its effect is durable. They raise errors of :mod:`lowwater.errors`; a refused
    request has changed nothing. Moved: another shard serves the computation. JournalFailed: the store surely refused the
    write, and the staged state is rolled back.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], int] | None = None,
        observer: Observer,
        placement: Placement | None = None,
        settings: ShardSettings | None = None,
    ) -> None:
        self.journal = journal
        self.settings = settings or ShardSettings()
        self.hub = Hub()
        self.placement: Placement = placement or Alone()
        self.held = Holdings(journal, observer, self.placement.may_heal, self.settings)
        self.on_fenced: Callable[[Fenced], None] = lambda _: None
        self.on_moved: Callable[[str], None] = lambda _: None
        self.on_published: Callable[[Collection[str]], None] = lambda _: None
        """Called with the names of what a round has touched, when that is durable."""
        self._clock = clock
        self._tick = ProcessingTime(clock, monotonic)
        self._observer = observer
        self._loop = CommitLoop(self)
        self._slices: dict[str, Slice] = {}
        """Those of other computations that are served here."""
        self._reading: set[asyncio.Future[int]] = set()
        """Looks at the graph that nobody waits for."""
        self._withheld = 0
        """Answers refused for the sake of what is above slices that are not served here any more."""
        self._registered = asyncio.Semaphore(TAKEN_AFTER_REGISTERING)
        self._confirming = Confirming(self._confirm)
        self._refreshing = Confirming(self._refresh)
        self._hearing = Confirming(self._read_news)
        self._taking = Taking(
            self.held, self.placement, now=self._tick, refresh=self._hear_news, serve=self._begin_to_serve
        )
        self._confirmed = 0
        self._unhealed = "", 0
        """Why the damaged graph could not be written again, and until when nobody tries, however many ask."""
        self._whole: dict[str, None] = {}
        """Computations whose logs are to be replaced by snapshots after the next round."""
        self._parts = 0
        """Bytes of the task parts of all computations, at most: what was committed since they were counted is still in it."""

    # -- start and stop --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal and serve what is this shard's, but for what is damaged. Raises what the journal raises."""
        held = self.held
        await self.journal.open()
        held.use(held.newer(await self._first_graph()) or held.topology)
        if not held.graph.position and await self.journal.logs():
            msg = (
                "there are logs but no graph: a copy that was not finished. Repeat `lowwater journal copy`, or remove what there is; "
                "if shards are putting back what their store has lost, start again in a moment"
            )
            raise JournalFailed(msg)
        taken = {}
        for name in held.topology.computations:
            if self.placement.mine(name):
                try:
                    taken[name] = await held.of(name).own()
                except JournalCorrupt as damage:
                    if damage.position is None:
                        raise  # perhaps more than this one log
                    self._taking.damaged(name, damage)
        # Incarnations that began before the logs were taken; rounds do not run yet.
        held.use(held.newer(await self._first_graph()) or held.topology)
        for name, its in taken.items():
            if name not in held.topology.computations:
                held.of(name).give_up(its)  # it was dropped meanwhile
                continue
            try:
                held.of(name).hold(its)
            except JournalCorrupt as damage:
                held.of(name).give_up(its)
                self._taking.damaged(name, damage)
            else:
                self._follow(name)
        self._count()
        if not self.shared:
            self.end_dropped()

    async def _first_graph(self) -> ReadGraph:
        """Read the graph. While it is damaged, wait for shards that have it in memory. Raises JournalCorrupt when none lives."""
        told = 0
        while True:
            try:
                return await self.held.read_graph()
            except JournalCorrupt as damage:
                if damage.log != GRAPH:
                    raise
                if self._tick() >= told:
                    log.warning(
                        "the graph is damaged in the store, %s; looking for a shard that has it in memory, and writes it again. If none comes, "
                        "restore a copy of the journal",
                        damage.reason,
                        extra=event("damaged_graph", reason=str(damage)),
                    )
                    told = self._tick() + int(TELL_SECONDS * 1e6)
                if not await self.placement.wait_for_graph():
                    if isinstance(damage, BrokenGraph):
                        raise
                    reason = f"{damage.reason}, and no process that lives has it in memory"
                    raise JournalCorrupt(GRAPH, damage.position, reason) from damage

    async def run(self) -> None:
        """Run rounds until :meth:`stop`. Raises JournalReplaced, JournalCorrupt and their like: this process must not go on."""
        await self._loop.run()

    def stop(self) -> None:
        """Let :meth:`run` finish what is queued and end. New requests are refused with ShuttingDown.

        An append whose outcome is still unknown is given up: nothing of it was shown, and its callers may repeat it.
        """
        self.held.logs.stopping = True
        self._loop.stop()

    @property
    def stopping(self) -> bool:
        """Whether this process was told to stop, and takes no more requests."""
        return self.held.logs.stopping

    async def close(self) -> None:
        """Write a snapshot of every changed computation, so that the next start is quick, and close the journal.

        It replaces what is damaged in the store. What has not changed is read and checked, and so is the graph, for this process may have
        the only good copy of it, in memory.
        """
        if unheard := self.unheard_slices:
            log.warning(
                "this process stops with %s whose newest values no root has acknowledged; the shard "
                "that takes over reports these values again",
                counted(unheard, "slice"),
                extra=event("slices_not_told", slices=unheard),
            )
        for each in self._slices.values():
            each.close()
        logs = self.held.logs
        mending = self.held.mending()
        for task in mending:
            task.cancel()
        await asyncio.gather(*mending, return_exceptions=True)
        await logs.settle()
        await self.held.settle()
        await self._mend("the graph", self.held.mend_graph)
        readable = True
        for name, computation in [(name, each.computation) for name, each in self.held.served.items()]:
            if self.held.is_torn(name):
                continue
            its = self.held.of(name).log
            if its.behind and not self.held.is_unwritten(name):
                await logs.snapshot(its, partial(recovery.pieces, computation))
                await logs.settle()
            elif readable:
                readable = await self._mend(name, self.held.of(name).mend)
        await self.journal.close()

    async def _mend(self, name: str, mend: Callable[[], Awaitable[None]]) -> bool:
        """Put right what the store has of a computation, or of the graph; False when the store is away, and would be so for the others."""
        try:
            await mend()
        except (JournalFenced, JournalLost, JournalVersion) as error:
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
        """Whether other processes write to the journal too, so that being replaced ends a computation here, not the process."""
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
    def writes(self) -> Writes:
        """The writes of this shard, and whether the store takes them."""
        return self.held.logs.writes

    def store_state(self, now: int) -> StoreState:
        """Return what the store does with writes, to another thread; ``now`` as in ``confirmed_at``.

        A store that has confirmed nothing for ``SILENT_SECONDS`` does not answer, whether or not there was something to write.
        """
        state = self.writes.state
        silent = now - self.confirmed_at(now) > SILENT_SECONDS * 1_000_000
        return StoreState.SILENT if silent and state is StoreState.TAKES else state

    @property
    def now(self) -> int:
        """Processing time; see ProcessingTime."""
        return self._tick()

    @property
    def queued(self) -> int:
        """Requests waiting for a round."""
        return len(self._loop)

    # -- the graph -------------------------------------------------------------------------------------------

    async def register(self, spec: Spec, *, room: Room = anything, principal: str = "") -> Spec:
        """Register a computation, for a ``principal``; empty: nobody knows for whom.

        Raises InvalidArgument, RegistrationConflict, Cycle, EstimatedInput, and what ``room`` raises.
        """

        def stage(round_: Round) -> Spec:
            if spec.name in self.held.gone:
                raise GivenUp  # dropped since this began: its log is to be short first, for what stands in it may be damaged
            graph = round_.topology or self.topology  # with what was staged in front of it
            computation = self.held.computation(spec.name)
            unused = (
                computation is not None
                and not computation.last_sequencer
                and not any(group.every for group in computation.tasks)
            )
            changed = graph.register(spec, unused=unused)
            if changed is not graph:
                room(graph.computations)
                if computation is not None:
                    # Another shard may have taken it over, and granted it, meanwhile: then this is refused.
                    self._touch(round_, spec.name)
                round_.topology = changed
            return changed.get(spec.name)

        known = self.topology.computations.get(spec.name)
        registered = await self._write(stage, alone=True, together=True, first=partial(self._until_ended, spec.name))
        if known is not None and registered.max_skew > known.max_skew:
            log.warning(
                "%s may now be %d s ahead of the clock, and not %d s as before: %s has registered it so",
                spec.name,
                registered.max_skew // 1_000_000,
                known.max_skew // 1_000_000,
                principal or "a caller",
                extra=event(
                    "max_skew_raised",
                    computation=spec.name,
                    max_skew_micros=registered.max_skew,
                    before_micros=known.max_skew,
                    principal=principal,
                ),
            )
        if known is None:
            inputs = list(registered.inputs)
            reads = f"reads {', '.join(inputs)}" if inputs else "is an injector"
            log.info(
                "%s is registered: it %s",
                spec.name,
                reads,
                extra=event("registered", computation=spec.name, inputs=inputs, principal=principal),
            )
        if not self.serves(spec.name):
            try:
                async with self._registered:
                    await self.serve(spec.name)
                    await self.serve_those(registered.slice_specs())
            except errors.Unavailable as error:
                msg = (
                    f"{spec.name} is registered, but it is not known yet whether this shard serves it: {error.message}"
                )
                raise errors.Unavailable(msg, metadata=error.metadata) from error
        return registered

    async def set_inputs(
        self,
        name: str,
        inputs: Sequence[str],
        *,
        incarnation: int = 0,
        input_version: int = 0,
        permit: Permit = anything,
    ) -> Spec:
        """Change what a computation reads. Raises as register does, WouldRegress, IncarnationChanged and InputVersion.

        ``incarnation`` and ``input_version`` are those that the change was decided on, so that a late message changes nothing; incarnation 0: any.

        Its claims are revoked first, so that what it has published is frozen when the new inputs are compared with it. Ranges
        that stand beyond the low watermark of a new input go back to it: work may come to them from there on. What was a guess, by
        what it read until now, begins a new incarnation instead; see Topology.set_inputs.
        """
        away: Lows = {}

        def stage(round_: Round) -> Spec:
            changed = self.topology.set_inputs(name, inputs)
            self.topology.check_incarnation(name, incarnation)
            version = self.topology.required(name).input_version  # as callers see it: 0 of one that reads nothing
            if incarnation and input_version != version:
                msg = f"version {version} of the inputs of {name} is in force, not {input_version}; nothing was changed, look at them again"
                raise errors.InputVersion(msg, metadata={"computation": name, "input_version": str(version)})
            computation = self._by_its_inputs(round_, name)
            if changed.get(name).incarnation > self.topology.get(name).incarnation:
                permit(changed.downstream(name))
                round_.topology = changed
                self._fence_ended_incarnations(round_)
                return changed.get(name)
            lows = [self._low(each, away) for each in added()]
            for new, low in zip(added(), lows, strict=True):
                if low < max(computation.low, computation.vouched):
                    said = "has published" if low < computation.low else "has let its output say"
                    msg = (
                        f"{new} is behind what {name} {said}: {name} would have to go back. Reset {name} first, or wait "
                        f"until {new} has caught up."
                    )
                    raise errors.WouldRegress(msg, metadata={"computation": name, "input": new})
            round_.touch(name, computation)
            bound = min(lows, default=None)
            round_.fenced += computation.revoke(changed.get(name).input_version, round_.now, bound=bound)
            round_.topology = changed
            return changed.get(name)

        def added() -> list[str]:
            return [each for each in inputs if each not in self.topology.get(name).inputs]

        before = self.topology.get(name).inputs
        changed = await self._write(stage, alone=True, lows_of=added, away=away)
        if changed.inputs != before:
            told = event("inputs_changed", computation=name, inputs=list(changed.inputs), before=list(before))
            log.info("%s reads %s now", name, ", ".join(changed.inputs) or "nothing", extra=told)
        return changed

    async def reset(self, name: str, *, incarnation: int = 0, permit: Permit = anything) -> list[Spec]:
        """Start a new incarnation of a computation and of all that reads it.

        ``incarnation`` is the one that ends; 0: any. Raises UnknownComputation, IncarnationChanged, and what ``permit`` raises.

        Any shard may do it: those that serve them begin the new incarnations when they read the graph, at the latest before they answer.
        """

        def stage(round_: Round) -> list[Spec]:
            changed, names = self.topology.reset(name)
            self.topology.check_incarnation(name, incarnation)
            permit(names)
            round_.topology = changed
            self._fence_ended_incarnations(round_)
            return [changed.get(n) for n in names]

        fresh = await self._write(stage, alone=True)
        for spec in fresh:
            told = event("reset", computation=spec.name, incarnation=spec.incarnation, asked=name)
            log.warning("%s was reset: its incarnation %d begins", spec.name, spec.incarnation, extra=told)
        return fresh

    async def split(self, name: str, part: str, at: bytes, *, incarnation: int = 0, room: Room = anything) -> Spec:
        """Cut a slice of a computation in two; returns the new one, which has the keys from ``at`` on. What it takes over, it does as soon as it can.

        Any shard may do it. ``incarnation`` is that of the whole; 0: any. Raises as Topology.split does, IncarnationChanged, and what ``room`` raises.
        """

        def stage(round_: Round) -> Spec:
            changed, new = self.topology.split(name, part, at)
            self.topology.check_incarnation(name, incarnation)
            room(self.topology.computations)
            round_.topology = changed
            return changed.get(new)

        made = await self._write(stage, alone=True)
        told = event("slice_split", computation=name, slice=part, new=made.name, at=at.hex())
        log.warning("%s was cut at %s: its keys from there on are those of %s", part, at.hex(), made.name, extra=told)
        with suppress(errors.LowwaterError):
            await self.serve_those([made.name])
        return made

    # -- owners ----------------------------------------------------------------------------------------------

    async def claim(
        self,
        name: str,
        asked: ClaimRequest,
        *,
        adopt: bool = False,
        incarnation: int = 0,
        permit: Permit = anything,
        room: RoomForRanges = anything,
    ) -> Grant:
        """Grant ranges, as far as there is ``room``.

        With ``adopt``, take the computation over from another identity by a new incarnation, as far as ``permit`` lets it. ``incarnation`` is the
        one that ends by that; 0: any.
        """
        away: Lows = {}
        binds, life = False, 0

        def stage(round_: Round) -> Grant:
            nonlocal binds, life
            computation = self._by_its_inputs(round_, name)
            life = computation.incarnation
            request = self._bounded(name, asked, away)
            adopts = adopt and computation.identity not in (None, request.identity)
            if not adopts or request.request_id in computation.granted:
                # A repeat divides nothing, a claim of what is cut only says in which slice there has to be room, and one of others' keys is refused.
                divides = request.request_id not in computation.granted and not computation.spec.slices
                if divides and computation.has_keys(request.bounds[0], request.bounds[-1]):
                    room(_ranges_with(computation.map, request.bounds))
                binds = self._is_unbound(name, request, round_.wall)
                if binds:
                    raise GivenUp
                round_.touch(name, computation)
                grant = computation.claim(request, round_.now, round_.wall)
                round_.fenced += grant.fenced
                return grant
            # The new incarnation and its first claim are one record: a repeat of the request finds both, or neither.
            self.topology.check_incarnation(name, incarnation)
            changed, names = self.topology.reset(name)
            permit(names)
            fresh = recovery.restarted(computation, changed.get(name))
            life = fresh.incarnation
            room(_ranges_with(fresh.map, request.bounds))
            grant = fresh.claim(request, round_.now, round_.wall)
            round_.topology = changed
            self._fence_ended_incarnations(round_)
            round_.touch(name, fresh)
            return grant

        def inputs() -> Sequence[str]:
            return self.topology.get(name).inputs if self._revives(name, asked) else ()

        before = self.topology.get(name).incarnation

        async def bind() -> None:
            # Not before it is known that nothing else stands against the claim: who is granted nothing is to bind nothing.
            if binds and (known := self._slices.get(name)) is not None:
                await known.bind(asked.identity)

        lows_of = inputs if len(asked.bound_micros) else None
        grant = await self._write(stage, alone=adopt, first=bind, lows_of=lows_of, away=away)
        if self.topology.get(name).incarnation != life:
            # The answer names the incarnation of now, and a guard would take what is dead for a claim of that.
            msg = f"{name} began a new incarnation before this claim of the last one was answered; ask again, and claim anew when it says so"
            raise errors.Unavailable(msg, metadata={"computation": name})
        self._tell_claim(name, asked, grant, adopted=adopt and life > before)
        return grant

    def _is_unbound(self, name: str, request: ClaimRequest, wall: int) -> bool:
        """Whether a claim would be the first of a slice, and what that is a slice of is not known to be bound to its worker's identity."""
        known, computation = self._slices.get(name), self.held.computation(name)
        if known is None or computation is None or known.is_bound(request.identity):
            return False
        return computation.begins(request, wall)

    def _tell_claim(self, name: str, asked: ClaimRequest, grant: Grant, *, adopted: bool) -> None:
        what = "adopted" if adopted else "taken_over" if grant.fenced else "claimed"
        ranges = len(grant.watermarks)
        log.info(
            "%s of %s %s %s by %s on %s",
            counted(ranges, "key range"),
            name,
            "was" if ranges == 1 else "were",
            what.replace("_", " "),
            asked.worker or "an unnamed worker",
            asked.host or "an unnamed host",
            extra=event(
                what,
                computation=name,
                epoch=self.epoch(name),
                sequencer=grant.sequencer,
                ranges=ranges,
                start=asked.bounds[0].hex() if len(asked.bounds) else None,
                end=asked.bounds[-1].hex() if len(asked.bounds) else None,
                worker=asked.worker,
                host=asked.host,
                losers=len(grant.fenced) or None,
            ),
        )

    def _bounded(self, name: str, asked: ClaimRequest, away: Lows) -> ClaimRequest:
        """Let no bound lead what is published of the inputs.

        A retired range begins at its bound, and what its new owner knows may be older than a change of the inputs. The range of
        an owner never stands beyond them anyway, so for all others this would change nothing, and they do not wait for the shards of the inputs.
        """
        inputs = self.topology.get(name).inputs
        if not inputs or not self._revives(name, asked):
            return asked
        low = min(self._low(each, away) for each in inputs)
        bounds = np.where(asked.bound_micros == MAX, MAX, np.minimum(asked.bound_micros, low))
        return replace(asked, bound_micros=bounds)

    def _revives(self, name: str, asked: ClaimRequest) -> bool:
        """Whether a claim has a bound, and takes what was retired. O(claims that it touches)."""
        computation = self.held.computation(name)
        if computation is None or not len(asked.bound_micros):
            return False
        return computation.has_keys(asked.bounds[0], asked.bounds[-1]) and computation.revives(asked)

    def _low(self, name: str, away: Lows) -> int:
        """Return how far a computation is, whoever serves it. Raises GivenUp when that has to be asked anew."""
        computation = self.held.computation(name)
        if computation is not None:
            return computation.published.low
        spec = self.topology.computations.get(name)
        if spec is None:
            return MIN
        if name not in away:
            raise GivenUp
        incarnation, low = away[name]
        if incarnation > spec.incarnation:
            raise GraphMoved
        return low if incarnation == spec.incarnation else MIN

    def report(
        self,
        reports: Sequence[tuple[str, GroupReport]],
        *,
        sender: bytes,
        number: tuple[int, int],
        after: asyncio.Future[Any] | None = None,
        barred: set[str] | None = None,
        older: dict[tuple[str, int], Refused] | None = None,
    ) -> asyncio.Future[list[tuple[str, Refused]]]:
        """Take over the states of several claims; the future ends with what was refused, by computation.

        ``after`` is the report before it in its stream: when that one failed, this one ends with OldStream, since it says
        only what changed since, and what was lost may have lowered a range. For the same reason nothing counts of a computation
        that is ``barred``: an earlier report of the stream was refused because another shard served it, or it was let go since the
        stream began. Those that are refused for it here are added. Nor does a claim of which a report of the stream was refused as
        OLD_STREAM, ``older`` by (computation, sequencer), until its turn is above the one it was told.
        """
        stopped = set() if barred is None else barred
        outrun = {} if older is None else older

        def stage(round_: Round) -> list[tuple[str, Refused]]:
            if after is not None and after.done() and (after.cancelled() or after.exception() is not None):
                msg = "an earlier report of this stream failed; open a new stream and send the full state"
                raise errors.OldStream(msg, metadata={"number": str(number[1])})
            refused: list[tuple[str, Refused]] = []
            for name, report in reports:
                try:
                    computation = self._touch(round_, name)
                    if name in stopped:
                        raise _elsewhere(name)
                except (errors.UnknownComputation, errors.Moved, errors.Unavailable) as caught:
                    error: errors.LowwaterError = caught
                    if not isinstance(error, errors.UnknownComputation):
                        stopped.add(name)
                    if isinstance(error, errors.Unavailable):
                        # Refused as what has moved: a client says everything again then, in time.
                        error = errors.Moved(error.message)
                    if name in self.topology.dropped:
                        error = _dropped(name)
                    refused.append((name, _refusal(report, error)))
                    continue
                key = name, report.sequencer
                if key in outrun and report.turn <= outrun[key].newest:
                    refused.append((name, outrun[key]))
                    continue
                required = self.topology.required(name)
                found = computation.report(
                    report, sender=sender, number=number, required=required, now=round_.now, wall=round_.wall
                )
                refused += [(name, refusal) for refusal in found]
                outrun.update((key, refusal) for refusal in found if refusal.reason == errors.OldStream.reason)
            return refused

        def without(
            refused: list[tuple[str, Refused]], gone: Collection[str], unheard: Mapping[str, errors.Unavailable]
        ) -> list[tuple[str, Refused]]:
            stopped.update(gone)
            lost = [(name, _refusal(report, _elsewhere(name))) for name, report in reports if name in gone]
            again = [(name, _refusal(report, unheard[name])) for name, report in reports if name in unheard]
            return [*((name, refusal) for name, refusal in refused if name not in gone), *lost, *again]

        return self._loop.write(stage, without=without)

    async def release(self, name: str, sequencer: int) -> None:
        """Leave a claim's ranges unowned. Raises StaleSequencer."""
        await self._write(lambda round_: self._touch(round_, name).release(sequencer))
        log.info("a claim of %s was released", name, extra=event("released", computation=name, sequencer=sequencer))

    async def retire(
        self,
        name: str,
        start: bytes,
        end: bytes,
        *,
        force: bool,
        sequencer: int = 0,
        newest_claim: int | None = None,
        incarnation: int = 0,
    ) -> int:
        """Take an interval out; returns how many ranges. Arguments and errors as of Computation.retire.

        ``incarnation`` is the one that this was decided in; 0: any. Raises IncarnationChanged in another one.
        """

        def stage(round_: Round) -> int:
            self.topology.check_incarnation(name, incarnation)
            ranges, fenced = self._touch(round_, name).retire(
                start, end, force=force, now=round_.now, sequencer=sequencer, newest_claim=newest_claim
            )
            round_.fenced += fenced
            return ranges

        ranges = await self._write(stage)
        told = event("retired", computation=name, ranges=ranges, start=start.hex(), end=end.hex(), force=force)
        were = "was" if ranges == 1 else "were"
        log.warning("%s of %s %s retired", counted(ranges, "key range"), name, were, extra=told)
        return ranges

    async def drop(self, name: str, *, force: bool, incarnation: int = 0) -> Spec:
        """Take a computation out of the graph; returns its tombstone. ``incarnation`` is the one that ends; 0: any.

        Its claims are revoked in the same step, by a record in its own log: so nobody drops what another shard serves by then. Raises
        UnknownComputation, StillRead, IncarnationChanged, and OwnedRanges unless forced.

        Of one that cannot be read back from the store nobody knows for sure who owns it: it is dropped by force, without that record. When
        nobody has it in memory either, its log is taken before this returns, so that whoever has owned it serves it no more: not before
        the graph is written, for who has owned it may come back with the only good copy. Raises Unavailable when it is dropped, but its
        log could not be taken within ``WAIT_SECONDS``; that is tried on.
        """
        self.topology.check_incarnation(name, incarnation)
        unread = self._is_unread(name)
        orphaned = unread and not self.serves(name)
        if unread:
            self.topology.drop(name)
            await self._refuse_unread(name, force=force)

        def stage(round_: Round) -> Spec:
            changed = self.topology.drop(name)
            self.topology.check_incarnation(name, incarnation)
            if unread and self._is_unread(name):
                round_.topology = changed
                self._fence_ended_incarnations(round_)
                return changed.dropped[name]
            computation = self._computation(name)
            if not force:
                computation.refuse_owners(round_.now)
            round_.touch(name, computation)
            version = self.topology.get(name).input_version
            round_.fenced += computation.revoke(version, round_.now, reason=DROPPED)
            round_.topology = changed
            return changed.dropped[name]

        dropped = await self._write(stage, alone=True)
        told = event("dropped", computation=name, incarnation=dropped.incarnation, force=force)
        log.warning("%s was dropped, in incarnation %d", name, dropped.incarnation, extra=told)
        if orphaned:
            await self._fence_dropped(name)
        return dropped

    def _is_unread(self, name: str) -> bool:
        return self.is_damaged(name) or self.held.is_unwritten(name)

    async def _refuse_unread(self, name: str, *, force: bool) -> None:
        """Raises Moved while another shard serves it, OwnedRanges unless forced, and Unavailable."""
        held = self.serves(name)
        if not held and await self.placement.lives_elsewhere(name):
            raise moved(name)
        if not force:
            state = "and what is in memory is not written yet" if held else "and no process has it in memory"
            msg = (
                f"the log of {name} is damaged, {state}: nobody can tell whether workers own key ranges of it. "
                "Restore a copy, or stop its workers and drop it by force: nothing of it is read then."
            )
            raise errors.OwnedRanges(msg, metadata={"computation": name, "workers": ""})
        if not held:
            return
        try:
            await self.held.of(name).refuse_usurped()
        except JournalFenced as error:
            self.replaced(error.owners)
            raise moved(name) from error
        except JournalError as error:
            msg = f"the store does not tell who owns the log of {name}, nothing was changed: {error}"
            raise errors.Unavailable(msg, metadata={"computation": name}) from error

    async def _fence_dropped(self, name: str) -> None:
        msg = (
            f"{name} was dropped, but its log cannot be taken from its last owner yet, which may go on until it reads that, should it "
            "come back; it is tried again until it can"
        )
        async with within(WAIT_SECONDS, lambda: errors.Unavailable(msg, metadata={"computation": name})):
            await self.held.fenced(name)

    def stage_task(self, name: str, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart) -> None:
        """Keep a task's part, in memory only: it promises nothing until it is prepared and committed."""
        computation, held = self._computation(name), self.held.served.values()
        before = computation.batches.bytes
        if self._parts + part_bytes(part) > ALL_PART_BYTES:
            # Without what was committed since they were counted last.
            self._parts = sum(each.computation.batches.bytes for each in held)
        most = max(ALL_PART_BYTES - (self._parts - before), ALL_PART_BYTES // len(held))
        computation.stage_task(sequencer, batch, task, part, most=most)
        self._parts += computation.batches.bytes - before

    def prepare(self, name: str, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch, in memory only; returns the missing ones."""
        return self._computation(name).prepare(request)

    async def commit(self, name: str, sequencer: int, batch: int, told: Told | None = None) -> list[Refused]:
        """Apply a prepared batch, and remember what its owner says of its layout. Raises StaleSequencer, NotPrepared, InputVersion, IncarnationChanged."""

        def stage(round_: Round) -> list[Refused]:
            computation, required = self._touch(round_, name), self.topology.required(name)
            refused = computation.commit(sequencer, batch, required, round_.now, round_.wall)
            computation.hear(sequencer, told)
            return refused

        return await self._write(stage)

    async def vouch(self, name: str, sequencer: int, through: int, fold: Fold) -> None:
        """Let an output say how far it is complete. Raises StaleSequencer, InputVersion, IncarnationChanged, TooFarAhead, InvalidArgument."""

        def stage(round_: Round) -> None:
            self._touch(round_, name).vouch(sequencer, through, fold, self.topology.required(name), round_.wall)

        await self._write(stage)
        if self.topology.get(name).slice_of:
            if (known := self._slices.get(name)) is None:
                raise moved(name)
            await known.vouched(through, fold.input_version)

    def wanted(self, name: str) -> Layout | None:
        """Return the layout that is wanted of a computation, durably; None when this shard does not serve it."""
        computation = self.held.computation(name)
        return None if computation is None else computation.published_layout

    def told_layout(self, name: str, sequencer: int) -> Layout | None:
        """Return the layout that an owner has told of under a claim; None when nobody here knows."""
        computation = self.held.computation(name)
        return None if computation is None else computation.told_layout(sequencer)

    async def change_layout(
        self, name: str, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]
    ) -> int:
        """Ask for another layout; returns its version. Raises IncarnationChanged, LayoutConflict."""
        version = await self.change(name, lambda found, _: found.change_layout(incarnation, expected, starts, tasks))
        told = event("layout_changed", computation=name, version=version, ranges=len(starts))
        log.info("version %d of the layout of %s has %s", version, name, counted(len(starts), "key range"), extra=told)
        return version

    async def change(self, name: str, change: Callable[[Computation, int], T]) -> T:
        """Do something to a computation, at a processing time; returns what ``change`` does, when that is durable.

        Raises what it raises, before it has changed anything; and as any request does.
        """
        return await self._write(lambda round_: change(self._touch(round_, name), round_.now))

    # -- readers ---------------------------------------------------------------------------------------------

    def view(self, name: str) -> View | None:
        """Return what is published of a computation; None when this shard does not serve it."""
        computation = self.held.computation(name)
        return computation.published if computation else None

    def names(self) -> list[str]:
        """Return the names of the computations that this shard serves, sorted."""
        return sorted(self.held.served)

    def granted(self, name: str, sequencer: int) -> int:
        """Return how many ranges a claim got, lost ones too; 0 when there is no such claim here. O(1)."""
        computation = self.held.computation(name)
        group = None if computation is None else computation.map.groups.get(sequencer)
        return 0 if group is None else group.granted

    def reference(self, name: str) -> int:
        """Return the event time that ages of a computation's histograms count from. Raises Moved."""
        computation = self.held.computation(name)
        if computation is None:
            raise moved(name)
        return computation.reference

    async def look(self, read: Callable[[Mapping[str, Computation]], T]) -> T:
        """Return what ``read`` says of all that is served here, called once, on the event loop, as of the last durable round.

        But for what has to be written again first, see Holding.unwritten.

        Raises ShuttingDown, and Unavailable when there is no such moment within ``WAIT_SECONDS``.
        """
        held = self.held
        return await self._read(
            lambda _: read({n: each.computation for n, each in held.served.items() if each.unwritten is None})
        )

    async def ask(self, name: str, read: Callable[[Computation, int], T]) -> T:
        """Return what ``read`` says of a computation, at a processing time, as of the last durable round."""
        return await self._read(lambda round_: read(self._computation(name), round_.now))

    async def ranges(self, name: str, *, below: int | None, limit: int) -> tuple[list[Range], int]:
        """Return the ranges furthest behind, and how many there are, as of the last durable round."""
        found, total, _, _ = await self.ranges_and_claim(name, below=below, limit=limit)
        return found, total

    async def ranges_and_claim(self, name: str, *, below: int | None, limit: int) -> tuple[list[Range], int, int, int]:
        """Return what ``ranges`` does, the incarnation, and the sequencer of the newest claim."""

        def read(_: Round) -> tuple[list[Range], int, int, int]:
            computation = self._computation(name)
            ranges = computation.map
            found, total = ranges.all_ranges(limit) if below is None else ranges.held_below(below, limit)
            return found, total, computation.incarnation, computation.last_sequencer

        return await self._read(read)

    async def history(self, name: str, *, since: int | None, limit: int) -> tuple[list[Completion], int]:
        """Return when steps became complete, newest ones, as of the last durable round. See History.newest."""
        return await self._read(lambda _: self._computation(name).history.newest(since, limit))

    # -- what is served --------------------------------------------------------------------------------------

    def serves(self, name: str) -> bool:
        """Return whether this process serves a computation, as far as it knows."""
        return name in self.held.served

    def tells(self, name: str) -> bool:
        """Return whether this process says what is published of a computation that it serves.

        Not while half a change of it may be in memory: whether another process owns it by then is not known, and that must not make its
        neighbours seem old. Of an embedded journal there is no other owner.
        """
        return self.serves(name) and not (self.shared and self.held.is_torn(name))

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

        False also while its log is damaged and its owner is alive.
        """
        if self.serves(name):
            return True
        if not self.placement.mine(name):
            return False
        return await asyncio.shield(self._taking.begin(name))

    def write_whole(self, names: Collection[str]) -> None:
        """Begin to replace the logs of computations that are served here by snapshots, as far as they have changed.

        What of a log is damaged in the store is not needed any more then. A stop, or too much to do, comes before it.
        """

        def begin(_: Round) -> None:
            self._whole.update(dict.fromkeys(names))

        self._loop.read(begin).add_done_callback(lambda done: done.cancelled() or done.exception())

    def is_damaged(self, name: str) -> bool:
        """Whether a computation is not served here because its log cannot be read, and by nobody else as far as is known."""
        return name not in self.held.served and self._taking.is_damaged(name)

    def end_dropped(self) -> None:
        """Begin to make the logs of those that were dropped short, as far as they are this shard's and are not."""
        self.held.end_all(self.placement.mine)

    async def _until_ended(self, name: str) -> None:
        """Return when the log of a computation is short if it was dropped, so that its next incarnation can be read. Raises Unavailable."""
        if name not in self.topology.dropped and name not in self.held.gone:
            return
        msg = f"the log of {name}, which was dropped, is not shortened yet; try again"
        async with within(WAIT_SECONDS, lambda: errors.Unavailable(msg, metadata={"computation": name})):
            await self.held.ended(name)

    def _begin_to_serve(self, computation: Computation) -> None:
        self._show([computation.published])
        self._follow(computation.spec.name)
        self._count()

    def _show(self, views: Iterable[View]) -> None:
        """Let readers see what is durable of computations that are served here, and what they are slices of hear of it."""
        shown = list(views)
        self.hub.publish(shown)
        for view in shown:
            self._tell_above(view.name)

    # -- slices ----------------------------------------------------------------------------------------------

    def unsettled(self, names: Iterable[str]) -> list[tuple[Slice, int]]:
        """Return those slices of some computations of which nothing is to be acknowledged yet, each with its turn. O(names) where any slice is served."""
        if not self._slices:
            return []
        return [
            (each, each.turn)
            for name in sorted(names)
            if (each := self._slices.get(name)) is not None and not each.is_settled()
        ]

    @property
    def unheard_slices(self) -> int:
        """How many slices are served here that what they are slices of does not hear of just now. O(slices); for other threads too."""
        return sum(not each.reached for each in list(self._slices.values()))

    @property
    def answers_withheld(self) -> int:
        """How many answers were refused because what a slice is a slice of had not heard of the change in time. As ``unheard_slices``."""
        return self._withheld + sum(each.withheld for each in list(self._slices.values()))

    def _follow(self, name: str) -> None:
        """Begin to tell what a computation is a slice of, if it is one."""
        computation = self.held.computation(name)
        if computation is None or not computation.spec.slice_of:
            return
        before = self._slices.get(name)
        self._unfollow(name)
        made = Slice(self, computation, self.placement.above, before.asked if before is not None else 0)
        self._slices[name] = made
        made.follow()

    def _unfollow(self, name: str) -> None:
        if (known := self._slices.pop(name, None)) is not None:
            self._withheld += known.withheld
            known.close()

    def _tell_above(self, name: str) -> None:
        """All that was staged of a computation is durable: if it is a slice, that is what it says."""
        known, computation = self._slices.get(name), self.held.computation(name)
        if known is not None and computation is not None:
            known.durable(computation)

    def _forget_handed_over(self, computation: Computation) -> None:
        """A slice forgets what it has handed over as soon as the graph says, durably, that the other one has it."""
        if computation.handed_over and not computation.spec.taker:
            computation.forget_handed_over()

    async def cut_anew(self, name: str) -> None:
        """Let the log of a slice have the keys that the graph gives it; see engine/slices.py. Raises Unavailable when what it needs is not there yet."""
        if self.topology.get(name).source:
            await self._take_in(name)
        else:
            await self._move_out(name)

    async def _move_out(self, name: str) -> None:
        def stage(round_: Round) -> str | None:
            computation, spec = self._computation(name), self.topology.get(name)
            (start, end), root = computation.map.span, self.topology.get(spec.slice_of)
            if spec.source or (start, end) == spec.span:
                return None
            to = spec.taker
            smaller = bool(spec.span[1]) and (not end or spec.span[1] < end)
            if start != spec.span[0] or not smaller or (to and root.span_of(to) != (spec.span[1], end)):
                msg = f"the log of {name} has other keys than its last cut left it: the store has lost records of it, or of the graph. Reset {root.name}"
                raise errors.Unavailable(msg, metadata={"computation": name})
            round_.touch(name, computation)
            round_.fenced += computation.move_out(to)
            return to

        to = await self._write(stage, alone=True, waits=False)
        if to is not None:
            told = event("slice_moved_out", computation=name, to=to)
            log.info("%s has handed its last keys over to %s", name, to or "nobody: it has them already", extra=told)

    async def _take_in(self, name: str) -> None:
        """One step: the slice has its keys, and the graph says so."""
        spec = self.topology.get(name)
        state = await self._handed_over(spec.source, name)
        if state is None:
            msg = f"{spec.source} has not handed over yet what it knows of the keys of {name}"
            raise errors.Unavailable(msg, metadata={"computation": name, "source": spec.source})

        def stage(round_: Round) -> bool:
            graph, computation = self.topology, self._computation(name)
            if graph.get(name) != spec:
                return False  # who asked looks again
            round_.touch(name, computation)
            if not computation.cut_version:  # else the store has lost what the graph said of it
                computation.take_in(state)
            round_.topology = graph.moved(name)
            return True

        if await self._write(stage, alone=True, waits=False):
            told = event("slice_taken_in", computation=name, source=spec.source)
            log.info("%s has taken its keys over from %s", name, spec.source, extra=told)

    async def _handed_over(self, source: str, name: str) -> Snapshot | None:
        """Return what a slice has handed over to another one, as it is durable, whoever serves it; None: it has not yet. Raises Unavailable."""
        if self.serves(source):
            return await self.ask(source, lambda found, _: found.handed_over.get(name))
        spec, known = self.topology.get(source), self._slices.get(name)
        try:
            if known is not None and known.looked == (spec, await self.journal.end(source)):
                return None  # nobody has written since
            loaded = await self.journal.load(source)
            found = await self.held.recovered_in_pieces(spec, loaded)
        except JournalError as error:
            msg = f"what {source} knows of the keys of {name} cannot be read: {error}. If that stays so, drop what they are slices of by force, and register it again"
            raise errors.Unavailable(msg, metadata={"computation": name, "source": source}) from error
        state = found.computation.handed_over.get(name)
        if known is not None:
            # What is there is read again, if it is not taken in at once.
            known.looked = None if state is not None else (spec, loaded.end)
        return state

    async def follow_inputs(self, name: str, wanted: int, bound: int, known: Inputs | None) -> None:
        """Revoke the claims of a slice that go by older inputs than its root.

        ``wanted``: the version of the inputs by which the root has it at ``bound``. Nothing is done where the graph has gone on: that place knows
        nothing of what was added since, so the root is to be asked again. No range may stand beyond it, unless all inputs are among those that
        the claims went by, ``known``: a range that is finished has no owner who would finish it once more. None: nobody knows these.
        """

        def stage(round_: Round) -> None:
            computation, spec = self._touch(round_, name), self.topology.get(name)
            if self.topology.required(name).input_version != wanted or computation.input_version in (
                0,
                spec.input_version,
            ):
                return
            added = known is None or not inputs_of(self.topology, name) <= known
            round_.fenced += computation.revoke(spec.input_version, round_.now, bound=bound if added else None)

        await self._write(stage, waits=False)

    async def refresh(self) -> None:
        """Read the graph, once for all that wait, and begin the incarnations that other processes have begun. Raises Unavailable."""
        await self._refreshing.ask(())

    async def _hear_news(self) -> None:
        """Read the graph as :meth:`refresh` does, if it has changed or is in doubt; else asking once for all where it ends is all that this costs."""
        await self._hearing.ask(())

    async def _read_news(self, _: Iterable[str]) -> int:
        try:
            if not self.held.graph_doubted and await self.journal.confirm(()) <= self.held.graph_known:
                return 0
        except JournalFailed as error:
            raise self._unconfirmed(f"it cannot reach its store: {error}") from error
        except JournalLost:
            pass  # who reads it puts it back
        await self.refresh()
        return 0

    async def _refresh(self, _: Iterable[str]) -> int:
        while True:
            stage, heals = await self._what_is_read()
            try:
                await self._loop.write(stage, alone=True)
            except GivenUp:
                continue  # others have written meanwhile
            except errors.JournalFailed as error:
                msg = f"this shard cannot put the graph right in its store yet: {error.message}"
                if heals:
                    self._rest_graph(msg)
                raise errors.Unavailable(msg) from error
            return self.held.graph.position

    def doubt_graph(self) -> None:
        """Another process may wait because it cannot read the graph: what the store has of it is read whole, next time."""
        self.held.graph_doubted = True

    async def _what_is_read(self) -> tuple[Callable[[Round], None], bool]:
        """Return what a round does with the graph as it is stored now, and whether it is to be written again. Raises Unavailable."""
        self._refuse_unhealed()
        try:
            read = await self.held.read_graph()
        except JournalLost as lost:
            return partial(_stage_lost, lost), True
        except BrokenGraph as broken:
            return partial(_stage_lost, JournalLost({GRAPH: (self.held.graph.position, broken.last)})), True
        except JournalError as error:
            if isinstance(error, JournalCorrupt) and error.log == GRAPH:
                return partial(_stage_damage, error), True
            msg = f"this shard cannot read the graph from its store: {error}"
            raise errors.Unavailable(msg) from error

        def stage(round_: Round) -> None:
            newer = self.held.newer(read)
            if newer is not None:
                # What this process knows and the store does not was lost there: it is written once more.
                round_.topology = newer.merged(self.topology)
                round_.read = round_.topology is newer
                round_.merged = not round_.read
                self._fence_ended_incarnations(round_)

        return stage, False

    async def confirm(self, names: Iterable[str] | None = None) -> int:
        """Make sure, once for all that wait, that the journal knows this process as the owner of computations.

        None: all of them, but for those that are being put into the store again, of which it cannot be told; of these it raises
        Unavailable when they are named.

        Those that others own by now are let go; the graph is read if it has changed. Returns the processing time at which what is
        published of them was the newest. Raises Unavailable when nobody can tell, at the latest after ``WAIT_SECONDS``.
        """
        if not self.shared:
            return self.confirmed
        named = None if names is None else list(names)
        async with self._in_time():
            while True:
                asked = self.held.undoubted() if named is None else named
                # Before it is asked, for all that are asked for at a time share one check.
                self.held.refuse_doubted(asked)
                try:
                    return await self._confirming.ask(asked)
                except GivenUp:
                    continue  # one that somebody has asked for is in doubt since: who has is refused, the others ask without it

    async def _confirm(self, names: Iterable[str]) -> int:
        began, end = self._tick(), None
        while end is None:
            began = self._tick()
            try:
                self.held.refuse_doubted(names)
            except errors.Unavailable as doubt:
                raise GivenUp from doubt
            try:
                end = await self.held.confirm(names)
            except JournalFenced as error:
                self.replaced(error.owners)
            except JournalLost as lost:
                await self._heal(lost)
            except JournalFailed as error:
                raise self._unconfirmed(f"it cannot reach its store: {error}") from error
        if end > self.held.graph_known:
            await self.refresh()
        asked = set(names)
        if all(name in asked or holding.is_torn() for name, holding in self.held.served.items()):  # see tells
            self._confirmed = began
        return began

    async def rise(self, name: str, seen: int) -> None:
        """Take a number above one that somebody has seen of a computation that is served here. Raises Unavailable.

        A shard that was replaced learns it here, and lets go. If it was not, the store has lost numbers. An embedded one can only have
        been put back from an old copy, which its clients are to refuse.
        """
        if not self.shared or not self.epoch(name) < seen <= LARGEST_EPOCH:
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
        if GRAPH in lost.logs:
            self._refuse_unhealed()
        try:
            await self._write(partial(_stage_lost, lost), alone=True)
        except errors.JournalFailed as error:
            if GRAPH not in lost.logs:
                raise
            msg = f"this shard cannot put the graph right in its store yet: {error.message}"
            self._rest_graph(msg)
            raise errors.Unavailable(msg) from error

    def _refuse_unhealed(self) -> None:
        """Raise Unavailable for a moment after the graph could not be put right: each attempt reads all of it, and perhaps writes it."""
        msg, until = self._unhealed
        if self._tick() < until:
            raise errors.Unavailable(msg)

    def _rest_graph(self, msg: str) -> None:
        self._unhealed = msg, self._tick() + int(GRAPH_REST_SECONDS * 1e6)

    def replaced(self, owners: Mapping[str, tuple[int, int]]) -> None:
        """Other processes own these computations now, as JournalFenced says: forget them."""
        for name in self.held.let_go(owners):
            self._unfollow(name)
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

    # -- rounds ----------------------------------------------------------------------------------------------

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
        waits: bool = True,
        first: Callable[[], Awaitable[None]] | None = None,
        lows_of: Callable[[], Iterable[str]] | None = None,
        away: Lows | None = None,
    ) -> T:
        """Run a request in a round, again when the round was given up for reasons of others.

        ``first`` is done before each attempt. ``lows_of`` are computations whose low watermark ``stage`` needs, found in ``away`` when other shards serve them.
        """
        while True:
            if first is not None:
                await first()
            if lows_of is not None and away is not None:
                known = self.topology.computations
                asked = [n for n in lows_of() if n in known]
                # One that was registered a moment ago may be on its way here.
                away.update(await self.placement.lows([n for n in asked if not await self.serve(n)]))
            try:
                return await self._loop.write(stage, alone=alone, together=together, waits=waits)
            except GraphMoved:
                await self.refresh()
            except GivenUp:
                continue

    def begin(self) -> Round:
        """Start a round."""
        return Round(self._tick(), self._clock())

    async def append(self, round_: Round) -> None:
        """Make a round durable and return when it is: all of it, but for the computations that it adds to ``dropped``.

        JournalFailed, JournalFenced, JournalPosition: it surely is not. Whatever else it raises, this process must stop.
        """
        logs = {name: self.held.of(name).log for name in round_.touched}
        round_.readings = {log: log.reading for log in logs.values()}
        if round_.lost is not None:
            await self.held.heal(round_.lost)
        if round_.damage is not None:
            await self.held.heal_graph(round_.damage)
        for name, seen in round_.above.items():
            if (holding := self.held.served.get(name)) is not None:  # else it was let go meanwhile
                await holding.rise(seen)
        records = []
        for name, computation in round_.touched.items():
            record = computation.take_record(round_.now)
            if record is not None:
                records.append(Record(logs[name], *record))
        changed = {record.log.name for record in records}
        # What changes nothing is not appended, so it has to be asked whether a refusal, say of a stale claim, is this process's to make.
        unchanged = [name for name in round_.touched if name not in changed] if self.shared else []
        if round_.topology is not None and not round_.read:
            graph = self.held.graph_record(round_.topology, whole=round_.merged)
            records.append(Record(self.held.graph, graph, strong=True, newest=round_.topology.needs_newest))
        held = self.held
        raised = {
            computation: computation.input_version
            for n, computation in round_.touched.items()
            if (known := self.topology.computations.get(n)) is not None
            and not known.slice_of
            and computation.input_version > known.input_version
        }
        apart = {
            GRAPH,
            *(n for n, c in round_.touched.items() if held.computation(n) is not c or c in raised),
        }
        drop = partial(self._drop, round_) if self._divisible(round_) else None
        unasked = await held.logs.append(
            records, round_.now, readings=round_.readings, apart=apart, beside=unchanged, drop=drop
        )
        for computation, version in raised.items():
            computation.input_version = version  # a heal on the way has left it out
        await self._confirm_unchanged(round_, unasked)

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
        """Confirm what a round changes nothing of, where nothing was appended that it could be confirmed with."""
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
        """Show what is durable now."""
        held = self.held.served
        # Not what another shard has taken over meanwhile: it says what there is of it.
        # Nor what has left the round, even if it is served here again.
        kept = {
            n: computation
            for n, computation in round_.touched.items()
            if n in held
            and n not in round_.dropped
            and held[n].unwritten is None
            # Nor what was let go meanwhile and is served here again: its memory is a newer one.
            and round_.readings.get(held[n].log) == held[n].log.reading
        }
        for name, computation in kept.items():
            held[name].held = computation
        views = [computation.publish() for computation in kept.values()]
        if round_.topology is not None:
            views += self._use(round_.topology)
        for name in round_.behind.keys() & kept:
            known, version = round_.behind[name]
            log.error(
                "the log of %s had version %d of its inputs and the graph had version %d: the store "
                "has lost records of that log. The claims are revoked, and no range is above what "
                "is published",
                name,
                known,
                version,
                extra=event("store_lost_inputs", computation=name, known=known, version=version),
            )
        self._show(view for view in views if self.serves(view.name))
        self.on_published(round_.touched)
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
        """Go on with another graph; returns what the new incarnations that it begins have published."""
        before, changed = self.topology, topology.changed(self.topology)
        self.held.use(topology)
        views = []
        for name in changed:
            spec, computation = topology.computations.get(name), self.held.computation(name)
            if spec is None and name in before.computations:
                self.held.drop(name)
                self._taking.forget(name)
                self._unfollow(name)
                self.hub.move(name)
                if self.placement.mine(name):
                    self.held.end(name)
            elif spec is not None and computation is not None:
                computation.spec = spec
                self._forget_handed_over(computation)
                if computation.incarnation < spec.incarnation:
                    views.append(self.held.restart(computation, spec).publish())
                    if (known := self._slices.get(name)) is not None and not known.is_of(spec):
                        self._follow(name)  # it was dropped and registered anew in between
                else:
                    self._tell_above(name)
            elif spec is not None:
                self._taking.forget(name)  # what was found wrong with its log may be over, as behind a reset
            if spec is not None and name not in before.computations:
                self.hub.move(name)
        return views

    async def roll_back(self, round_: Round) -> Collection[str]:
        """Forget what a round staged; returns of which computations it counts all the same, now or soon.

        The journal is the truth, and recovery the one way to it, but for what the store has lost or damaged.
        """
        held = self.held
        if round_.read or round_.merged:
            held.forget_graph()  # it was read for this round
        for name in round_.torn & held.served.keys():
            held.served[name].tear()
            if not self.tells(name):
                # At once, for it may take long to read it back: each beat says of all that is told how new it is.
                self.hub.move(name)
        kept: set[str] = set()
        for name in round_.touched:
            while (holding := held.served.get(name)) is not None and not holding.is_kept():
                try:
                    view, healed = await holding.reload()
                except JournalFenced as error:
                    self.replaced(error.owners)
                    if name in error.owners:
                        break
                except (JournalCorrupt, JournalVersion) as damage:
                    holding.keep(damage)
                else:
                    kept.update(healed)
                    if view is not None:
                        self._show([view])
                    break
            if held.is_kept(name):
                self._keep(name)
                kept.add(name)
        # Half a change counts nowhere: who asked for it hears what the others of the round hear.
        return {name for name in kept if not held.is_torn(name)}

    def _keep(self, name: str) -> None:
        """Begin to put right what the store cannot be read back of, beside the rounds: memory may be the only good copy."""
        holding = self.held.served[name]
        unwritten = holding.unwritten
        if holding.mending is not None or unwritten is None:
            return
        log.error(
            "%s; %s",
            unwritten.reason,
            "what is in memory cannot be trusted either, so it is left as it is until the store can be read: restore a copy, or reset it"
            if unwritten.torn
            else "it is written again from memory",
            extra=event("damaged_log_kept", computation=name, reason=str(unwritten.reason)),
        )
        holding.mending = task = asyncio.create_task(self._put_right(name))
        task.add_done_callback(partial(self._is_mended, holding))

    def _is_mended(self, holding: Holding, _: asyncio.Task[None]) -> None:
        holding.mending = None
        self.held.discard(holding)

    async def _put_right(self, name: str) -> None:
        """Write what is in memory of a computation until the store has it, or read it until that is whole: nobody else waits for that."""
        backoff = Backoff(*self.settings.write_again_seconds)
        while (unwritten := self.held.unwritten(name)) is not None:
            try:
                view = await self.held.of(name).put_right()
            except JournalFenced as error:
                self.replaced(error.owners)
                return
            except JournalError as error:
                if self.stopping:
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
                if view is not None:
                    self._show([view])
                if self.serves(name) and not self.held.is_unwritten(name):
                    log.info("%s is whole again, and goes on", name, extra=event("log_whole_again", computation=name))

    async def tidy(self, round_: Round) -> None:
        """Do what may wait until the callers have their answers. All that is staged is durable here, so it can be snapshotted.

        The next round waits until a snapshot is made, for it changes what that is made of; the event loop does not.
        """
        held, now = self.held, round_.now
        whole, self._whole = self._whole, {}
        for name in {**round_.touched, **whole}:
            holding = held.served.get(name)
            if holding is None:
                continue
            if holding.log.due(now) or (name in whole and holding.unwritten is None and holding.log.changed(now)):
                await held.logs.snapshot(holding.log, partial(recovery.pieces, holding.computation), now)
        if round_.topology is not None and held.graph.due(now):
            graph = self.topology
            await held.logs.snapshot(held.graph, lambda: [graph.encode()], now, newest=graph.needs_newest)

    def _fence_ended_incarnations(self, round_: Round) -> None:
        assert round_.topology is not None
        for name in round_.topology.changed(self.topology):
            spec, computation = round_.topology.computations.get(name), self.held.computation(name)
            if computation is not None and (spec is None or computation.incarnation < spec.incarnation):
                reason = DROPPED if spec is None else f"{name} was reset"
                round_.fenced += [Fenced(name, sequencer, None, reason) for sequencer in computation.map.groups]

    # -- shared ----------------------------------------------------------------------------------------------

    def _computation(self, name: str) -> Computation:
        self.topology.get(name)
        holding = self.held.served.get(name)
        if holding is None:
            raise moved(name)
        if holding.unwritten is not None:
            raise holding.unwritten.refusal(name)
        return holding.computation

    def _touch(self, round_: Round, name: str) -> Computation:
        computation = self._by_its_inputs(round_, name)
        round_.touch(name, computation)
        return computation

    def _by_its_inputs(self, round_: Round, name: str) -> Computation:
        """Return a computation to change it, when its log goes by the inputs that the graph has.

        Another version of the inputs is half a change: the log and the graph are written in one append. If a store has lost records that it
        acknowledged, another process may have put back the graph alone. Ranges would stand where they stood without the new input, and owners who
        never heard of it would go on. So the log follows first, in the same record as what is asked for: no claim goes on, and no range stands
        beyond what is published, which no added input was behind. Slices follow their root, see :meth:`follow_inputs`.

        Raises Unavailable where the log is ahead: the graph is read once more.
        """
        computation, spec = self._computation(name), self.topology.get(name)
        known = computation.known_inputs
        if spec.slice_of or known in {0, spec.input_version}:
            return computation
        if known > spec.input_version:
            self._read_soon()
            msg = (
                f"the log of {name} has version {known} of its inputs, but the graph, as far as this shard has read it, only "
                f"{spec.input_version}: it is read again. If that stays so, the store has lost a change of the graph: reset {name}"
            )
            raise errors.Unavailable(msg, metadata={"computation": name})
        round_.behind[name] = known, spec.input_version
        round_.touch(name, computation)
        round_.fenced += computation.revoke(spec.input_version, round_.now, bound=computation.low)
        return computation

    def _read_soon(self) -> None:
        """Begin to read the graph again, for nobody in particular."""
        reading = asyncio.ensure_future(self._refreshing.ask(()))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _count(self) -> None:
        self._observer.computations(len(self.held.served))


def _ranges_with(held: IntervalMap, bounds: Sequence[bytes]) -> int:
    """Return into how many ranges a claim would divide a computation. O(claims it touches)."""
    touched = list(held.overlapping(bounds[0], bounds[-1]))
    covered = sum(high - low for _, low, high in touched)
    (first, low, _), (last, _, high) = touched[0], touched[-1]
    cut = (first.bounds[low] != bounds[0]) + (last.bounds[high] != bounds[-1])
    return len(held) - covered + cut + len(bounds) - 1


def _elsewhere(name: str) -> errors.Moved:
    msg = f"{name} was served by another shard in between; open a new stream and send the full state"
    return errors.Moved(msg, metadata={"computation": name})


def _dropped(name: str) -> errors.StaleSequencer:
    """Return why a claim of a dropped computation is over, whoever comes back with it; a new incarnation of it would say the same."""
    msg = f"{name} was dropped, and its claims ended with it"
    return errors.StaleSequencer(msg, metadata={"computation": name})


def _refusal(report: GroupReport, error: errors.LowwaterError) -> Refused:
    return Refused(report.sequencer, error.reason, error.message)


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


def _stage_damage(damage: JournalCorrupt, round_: Round) -> None:
    round_.damage = damage


def _slow(name: str) -> errors.Unavailable:
    msg = f"{name} is being taken over by this shard, which reads it from the store and takes longer than usual; try again"
    return errors.Unavailable(msg, metadata={"computation": name})


class Confirming:
    """Runs ``check`` over the names of all who asked; at most one at a time. Its result, or error, is theirs."""

    def __init__(self, check: Callable[[Iterable[str]], Awaitable[int]]) -> None:
        self._check = check
        # A dict for its order: a set's would differ from process to process, and no run could be repeated.
        self._names: dict[str, None] = {}
        self._next: asyncio.Task[int] | None = None
        self._running: asyncio.Task[int] | None = None

    async def ask(self, names: Iterable[str]) -> int:
        """Return what a check answers that begins after this call."""
        self._names.update(dict.fromkeys(names))
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
            # Whoever asked may be gone by then.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        names, self._names = self._names, {}
        return await self._check(names)
