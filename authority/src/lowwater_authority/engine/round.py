"""A round of requests: the group commit of a shard.

    requests -> [stage in arrival order -> append once -> publish -> answer -> tidy] -> next round

Nothing is published, acknowledged or granted before its record is durable (rule 2). There is no
timer: the next round starts when the append returns. So an idle shard answers in one journal round
trip, and a busy one batches by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypedDict, TypeVar

from lowwater import errors
from lowwater.core.events import event
from lowwater.core.raising import own_copy
from lowwater.core.text import counted
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import Fenced
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.logs import InDoubt, Record
from lowwater_authority.journal import (
    GRAPH,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalPosition,
    JournalVersion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.logs import Log
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.repair import Repair
    from lowwater_authority.engine.served import Answer, Served

T = TypeVar("T")

Without: TypeAlias = "Callable[[T, Collection[str], Mapping[str, errors.Unavailable]], T]"
"""Rewrites a result when some computations dropped out of the round.

Arguments: the result, the names that dropped out, and the errors of unconfirmed slices by name."""

TOGETHER: Final = 100
"""Most changes of the graph that share a round. The others wait for the next one."""

NOTHING: Final[Mapping[str, errors.Unavailable]] = {}
"""No slice is unconfirmed."""

STOPPING: Final = "the authority is stopping; connect again"

DROPPED: Final = "its computation was dropped"
"""Why owners lose a computation that is taken out of the graph."""

log = logging.getLogger(__name__)


class GivenUp(Exception):
    """The round was rolled back for a reason outside the request: stage the request again."""


class GraphMoved(GivenUp):
    """Another process has changed the graph meanwhile: read the graph, then stage again."""


class Sharing(TypedDict, total=False):
    """How a change shares its round with others; see :meth:`Rounds.write`."""

    alone: bool
    together: bool
    needs_root: bool


@dataclass(slots=True)
class Round:
    """Changes that one round has staged so far, all at the same processing time."""

    now: int
    """Processing time in microseconds."""
    wall: int
    """Wall clock in microseconds, which bounds event times. The state must not keep a wrong one."""
    touched: dict[str, Computation] = field(default_factory=dict)
    """The computations that requests have read or changed, by name."""
    topology: Topology | None = None
    """The graph that this round begins; None: no request has changed it."""
    read: bool = False
    """True if the graph was read from the journal, so that it is not appended."""
    merged: bool = False
    """True if the graph was merged with the journal's, so that it is appended whole."""
    lost: JournalLost | None = None
    """Records that the store has lost: the round heals them first."""
    damage: JournalCorrupt | None = None
    """The damage of the graph in the store: the round heals it first."""
    above: dict[str, int] = field(default_factory=dict)
    """Computations that need an epoch above another, by name."""
    fenced: list[Fenced] = field(default_factory=list)
    """The claims that end in this round."""
    dropped: dict[str, Exception] = field(default_factory=dict)
    """Computations that have dropped out of the round, each with the error of its callers. What was
    staged of them is never published."""
    torn: set[str] = field(default_factory=set)
    """Computations of which half a change may be staged, because a request failed unexpectedly."""
    request_names: set[str] = field(default_factory=set)
    """Computations that the request being staged has touched so far."""
    behind: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Computations whose log had older inputs than the graph until this round, by name, each with
    the version of the inputs in the log and the one in the graph."""
    readings: dict[Log, int] = field(default_factory=dict)
    """Reading of each log on whose state in memory this round was staged; see Log.reading."""

    def touch(self, name: str, computation: Computation) -> None:
        """Note that the request reads or changes a computation, so its answer needs the record."""
        self.touched[name] = computation
        self.request_names.add(name)

    def change_graph(self, topology: Topology, before: Served) -> None:
        """Stage another graph. The claims of incarnations that it ends are fenced."""
        self.topology = topology
        for name in topology.changed(before.topology):
            spec, computation = topology.computations.get(name), before.held.computation(name)
            if computation is not None and (spec is None or computation.incarnation < spec.incarnation):
                reason = DROPPED if spec is None else f"{name} was reset"
                self.fenced += [Fenced(name, sequencer, None, reason) for sequencer in computation.map.groups]

    def may_publish(self, holding: Holding) -> bool:
        """Return whether a watermark may be published: a computation as this round staged it.

        This is the one gate of rule 2 (docs/concepts/guarantees.md) for staged state.
        ``Rounds._publish`` asks it after the append has returned, when the round's record is
        durable. Which value the watermark has was decided before, by ``Computation.take_record``,
        and is in that record.

        No, if the computation has dropped out of the round, even if this process serves it again:
        another process owned its log (``Rounds._drop_out``).
        No, if memory and store differ (``Holding.unwritten``): half a change may be in memory.
        No, if another process took the computation over and this process took it back: memory is
        newer then than what the round was staged on. ``Log.reading`` grows each time that this
        process reads or loses a log.

        All other callers of ``Served.publish`` publish state that they have just read from the
        store, or written whole to it: a take-over, a roll-back, a repair. Incarnations that the
        round's graph begins need no gate: they are in the graph's record.
        """
        same_reading = self.readings.get(holding.log) == holding.log.reading
        return holding.name not in self.dropped and holding.unwritten is None and same_reading


@dataclass(slots=True)
class _Request(Generic[T]):
    """A queued request: a function that stages it within a round, and the future of its caller."""

    run: Callable[[Round], T]
    done: asyncio.Future[T]
    alone: bool = False
    together: bool = False
    without: Without[T] | None = None
    names: set[str] = field(default_factory=set)
    """The computations that the request has touched."""
    needs_root: bool = True
    """True if the answer waits until the roots of all touched slices have confirmed them."""
    refusal: errors.LowwaterError | None = None
    """Why the request was refused. The caller gets this with the round, because only the store
    knows whether this process may still refuse anything."""

    def end(
        self, result: T, dropped: Mapping[str, Exception], unconfirmed: Mapping[str, errors.Unavailable] = NOTHING
    ) -> None:
        """Answer with the result, or with its rest without dropped and unconfirmed computations."""
        touched = [name for name in dropped if name in self.names]
        if not touched and not unconfirmed:
            self.succeed(result)
        elif self.without is not None and self.refusal is None:
            self.succeed(self.without(result, touched, unconfirmed))
        else:
            self.fail(dropped[touched[0]] if touched else next(iter(unconfirmed.values())))

    def succeed(self, result: T) -> None:
        if self.refusal is not None:
            self.fail(self.refusal)
        elif not self.done.done():
            self.done.set_result(result)

    def fail(self, error: Exception) -> None:
        """Refuse with a copy of the error, which other callers may get too."""
        if not self.done.done():
            self.done.set_exception(own_copy(error))


_Staged: TypeAlias = "list[tuple[_Request[Any], Any]]"
"""Requests that were staged, each with its result."""


class Rounds:
    """Runs requests in rounds.

    Answers come when their effect is durable; a refused request has changed nothing.
    """

    def __init__(
        self,
        served: Served,
        repair: Repair,
        observer: Observer,
        *,
        processing_time: Callable[[], int],
        clock: Callable[[], int],
    ) -> None:
        self._served = served
        self._holdings = served.held
        self._repair = repair
        self._observer = observer
        self._processing_time = processing_time
        self._clock = clock
        self._writes: deque[_Request[Any]] = deque()
        self._reads: deque[_Request[Any]] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._answers: set[asyncio.Task[None]] = set()
        """Answers that wait for the root of a slice."""
        self._gate: Gate[None] = Gate("requests", served.settings.queued_requests, 0)
        self._to_snapshot: dict[str, None] = {}
        """Computations whose logs the next round replaces by snapshots; a set that keeps order."""
        self.on_fenced: Callable[[Fenced], None] = lambda _: None
        """Listener, called for each claim that has ended, when that is durable."""
        self.on_published: Callable[[Collection[str]], None] = lambda _: None
        """Listener, called with the names that a round has touched, when that round is durable."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._writes) + len(self._reads)

    # -- the queue ---------------------------------------------------------------------------------

    def write(
        self,
        stage: Callable[[Round], T],
        *,
        alone: bool = False,
        together: bool = False,
        needs_root: bool = True,
        without: Without[T] | None = None,
    ) -> asyncio.Future[T]:
        """Queue a change.

        ``alone``: no other request shares its round. With ``together`` as well, others like it do,
        up to ``TOGETHER``. ``needs_root``: see ``_Request``. ``without`` rewrites the result when
        some computations that the request touched drop out of the round. If it is None, the whole
        request fails then.
        """
        done = asyncio.get_running_loop().create_future()
        return self._queue(self._writes, _Request(stage, done, alone, together, without, needs_root=needs_root))

    def read(self, read: Callable[[Round], T]) -> asyncio.Future[T]:
        """Queue a question about the staged state. The answer comes when all of it is durable."""
        return self._queue(self._reads, _Request(read, asyncio.get_running_loop().create_future()))

    def snapshot(self, names: Collection[str]) -> None:
        """Begin to replace the logs of served computations by snapshots, if they have changed.

        No reader needs the damaged part of such a log any more. During a stop or an overload
        nothing is done.
        """

        def begin(_: Round) -> None:
            self._to_snapshot.update(dict.fromkeys(names))

        self.read(begin).add_done_callback(lambda done: done.cancelled() or done.exception())

    def stop(self) -> None:
        """Let :meth:`run` finish the queue and end. New requests are refused with ShuttingDown."""
        self._stopping = True
        self._arrived.set()

    async def run(self) -> None:
        """Run rounds until :meth:`stop`. Raises the error of an append that ends this process."""
        try:
            while len(self) or not self._stopping:
                if not len(self):
                    await self._arrived.wait()
                self._arrived.clear()
                await self._round()
                self._make_room()
        finally:
            self._stopping = True
            for request in (*self._writes, *self._reads):
                request.fail(errors.ShuttingDown(STOPPING))
            self._writes.clear()
            self._reads.clear()
            await asyncio.gather(*self._answers, return_exceptions=True)

    def _queue(self, queue: deque[_Request[Any]], request: _Request[T]) -> asyncio.Future[T]:
        if self._stopping:
            request.fail(errors.ShuttingDown(STOPPING))
            return request.done
        try:
            self._gate.enter(None, asyncio.get_running_loop().time())
        except errors.Overloaded as error:
            request.fail(error)
            return request.done
        queue.append(request)
        self._arrived.set()
        return request.done

    def _make_room(self) -> None:
        """Let in as many requests as have left the queue."""
        now = asyncio.get_running_loop().time()
        for _ in range(self._gate.inside - len(self)):
            self._gate.leave(now)

    # -- a round -----------------------------------------------------------------------------------

    async def _round(self) -> None:
        round_ = Round(self._processing_time(), self._clock())
        staged: _Staged = []
        refusal = self._stage(round_, staged)
        self._make_room()
        healed: Collection[str] = ()
        try:
            refusal = refusal or await self._append(round_)
            if refusal is not None:
                healed = await self._roll_back(round_)
        except BaseException:
            # This process was killed, or another one has the journal. Nothing of this round was
            # published, and nothing will be.
            for request, _ in staged:
                request.fail(errors.ShuttingDown(STOPPING))
            raise
        if refusal is not None:
            self._refuse(staged, refusal, healed)
            self._answer_reads(round_)
            return
        self._publish(round_, len(staged))
        self._answer(round_, staged)
        self._answer_reads(round_)
        await self._tidy(round_)

    # -- stage -------------------------------------------------------------------------------------

    def _stage(self, round_: Round, staged: _Staged) -> Exception | None:
        """Stage requests in arrival order. Returns why to roll back the whole round, or None."""
        while self._writes and not (staged and self._writes[0].alone):
            if self._writes[0].together:
                return self._stage_together(round_, staged)
            request = self._writes.popleft()
            refusal = self._stage_one(round_, request, staged)
            if refusal is not None:
                return refusal
            if request.alone:
                break
        return None

    def _stage_together(self, round_: Round, staged: _Staged) -> Exception | None:
        """Stage requests like the first in the queue. The rest of them goes behind all others."""
        time = asyncio.get_running_loop().time
        until = time() + self._served.settings.round_seconds
        alike = deque(request for request in self._writes if request.together)
        self._writes = deque(request for request in self._writes if not request.together)
        refusal = None
        for _ in range(min(TOGETHER, len(alike))):
            refusal = self._stage_one(round_, alike.popleft(), staged)
            if refusal is not None or time() >= until:
                break
        self._writes.extend(alike)
        return refusal

    def _stage_one(self, round_: Round, request: _Request[Any], staged: _Staged) -> errors.LowwaterError | None:
        round_.request_names = request.names
        graph = round_.topology
        try:
            staged.append((request, request.run(round_)))
        except errors.OldStream as error:
            # Fail at once: later reports of its stream, in this very round, must see the failure.
            request.fail(error)
        except errors.LowwaterError as error:
            request.refusal = error
            # A request that shares its round may be refused because of a change that is staged in
            # front of it. So its refusal is as uncertain as that change.
            if self._served.shared or request.together:
                staged.append((request, None))
            else:
                request.fail(error)
        except GivenUp as error:
            request.fail(error)
        except Exception:
            if request.together and not request.names:
                # This request can have changed only the graph, which is an immutable value. The
                # requests in front of it go on.
                round_.topology = graph
                log.exception("a request failed in a way it never should", extra=event("internal_error"))
                request.fail(errors.LowwaterError("internal error, nothing was changed; see the authority's log"))
                return None
            # Half a change may be staged: nothing of this round may reach the journal.
            log.exception(
                "a request failed in a way it never should; the round is rolled back", extra=event("internal_error")
            )
            staged.append((request, None))
            round_.torn |= request.names
            return errors.LowwaterError("internal error, nothing was changed; see the authority's log")
        return None

    # -- append ------------------------------------------------------------------------------------

    async def _append(self, round_: Round) -> Exception | None:
        """Make a round durable, or return why to roll it back. Raises what ends this process."""
        try:
            await self._append_records(round_)
        except InDoubt as error:
            refusal = self._refusal_of(error.after)
            if refusal is None:
                raise error.after from error
            return errors.Unavailable(f"it is not known whether the write took effect; look, or repeat it: {error}")
        except (JournalFailed, JournalFenced, JournalPosition) as error:
            refusal = self._refusal_of(error)
            if refusal is None:
                raise
            return refusal
        return None

    def _refusal_of(self, error: JournalError) -> Exception | None:
        """Return the error of the callers of a round that was surely not written.

        None: this process has to end.
        """
        if isinstance(error, JournalFailed):
            return errors.JournalFailed(f"the journal refused the write, nothing was changed: {error}")
        if isinstance(error, JournalFenced) and self._served.shared:
            self._served.lose(error.owners)
            return GivenUp()
        if isinstance(error, JournalPosition) and error.log == GRAPH and self._served.shared:
            return GraphMoved()
        return None

    async def _append_records(self, round_: Round) -> None:
        """Return when all of a round is durable, but for the computations that drop out of it.

        JournalFailed, JournalFenced, JournalPosition: the round surely is not durable. After any
        other error this process must stop.
        """
        holdings, touched = self._holdings, round_.touched
        logs = {name: holdings.of(name).log for name in touched}
        round_.readings = {log: log.reading for log in logs.values()}
        await self._heal(round_)
        records = []
        for name, computation in touched.items():
            record = computation.take_record(round_.now)
            if record is not None:
                records.append(Record(logs[name], *record))
        changed = {record.log.name for record in records}
        # A computation without a record is confirmed. Otherwise a process that was replaced could,
        # say, refuse a claim as stale that its successor has granted.
        unchanged = [name for name in touched if name not in changed] if self._served.shared else []
        if round_.topology is not None and not round_.read:
            graph = holdings.graph.record(round_.topology, whole=round_.merged)
            records.append(Record(holdings.graph.log, graph, strong=True, newest=round_.topology.needs_newest))
        specs = holdings.topology.computations
        raised = {
            computation: computation.input_version
            for name, computation in touched.items()
            if name in specs and not specs[name].slice_of and computation.input_version > specs[name].input_version
        }
        # The records of these belong together: all of them are appended, or none.
        apart = {GRAPH, *(name for name, c in touched.items() if holdings.computation(name) is not c or c in raised)}
        await holdings.logs.append(
            records,
            round_.now,
            readings=round_.readings,
            apart=apart,
            beside=unchanged,
            drop=partial(self._drop_out, round_) if self._divisible(round_) else None,
        )
        for computation, version in raised.items():
            computation.input_version = version  # a heal during the append has put back the old one

    async def _heal(self, round_: Round) -> None:
        """Put into the store what it has lost or damaged, and renew ownerships that are too low."""
        if round_.lost is not None:
            await self._holdings.logs.heal(round_.lost)
        if round_.damage is not None:
            await self._holdings.graph.heal_damage(round_.damage)
        for name, newer in round_.above.items():
            if (holding := self._holdings.served.get(name)) is not None:  # else it was lost meanwhile
                await holding.rise(newer)

    def _divisible(self, round_: Round) -> bool:
        """Return whether computations may drop out of a round.

        Not out of a round that changes the graph, because a change of two logs is appended whole.
        """
        return self._served.shared and round_.topology is None

    def _drop_out(self, round_: Round, refusal: JournalFenced, *, in_doubt: bool) -> None:
        """Lose the computations that other processes own now; the rest of the round goes on."""
        self._served.lose(refusal.owners)
        for name in refusal.owners:
            msg = f"it is not known whether the write took effect; look, or repeat it: {refusal}"
            round_.dropped[name] = errors.Unavailable(msg) if in_doubt else GivenUp()

    async def _roll_back(self, round_: Round) -> Collection[str]:
        """Forget what a round staged, by reading the journal back, which is the truth.

        Only where the store has lost or damaged records, memory counts. Returns the names of those
        computations: their staged state counts all the same, now or soon.
        """
        holdings = self._holdings
        if round_.read or round_.merged:
            holdings.graph.forget()  # the graph was read for this round, so it is read again
        for name in round_.torn & holdings.served.keys():
            holdings.served[name].tear()
            if not self._served.confirms(name):
                # Readers learn at once: reading back may take long, and each beat states the age of
                # all that this process confirms.
                self._served.hub.move(name)
        counting: set[str] = set()
        for name in round_.touched:
            while (holding := holdings.served.get(name)) is not None and not holding.is_log_unreadable():
                with self._served.losing() as lost:
                    try:
                        computation, healed = await holding.reload()
                    except (JournalCorrupt, JournalVersion) as damage:
                        holding.note_unreadable(damage)
                    else:
                        counting.update(healed)
                        if computation is not None:
                            self._served.publish([computation])
                if not lost or name in lost:
                    break
            if (holding := holdings.served.get(name)) is not None and holding.is_log_unreadable():
                self._repair.begin(holding)
                counting.add(name)
        # Half a change counts nowhere, so its caller gets the same refusal as all others.
        return {name for name in counting if not holdings.is_torn(name)}

    # -- publish -----------------------------------------------------------------------------------

    def _publish(self, round_: Round, requests: int) -> None:
        """Publish the durable computations of a round, and the graph that it has begun."""
        served = self._holdings.served
        durable = {
            name: computation
            for name, computation in round_.touched.items()
            if name in served and round_.may_publish(served[name])
        }
        for name, computation in durable.items():
            served[name].held = computation
        self._served.publish(durable.values(), round_.topology)
        for name in round_.behind.keys() & durable:
            logged, version = round_.behind[name]
            log.error(
                "the log of %s had version %d of its inputs and the graph had version %d: the store "
                "has lost records of that log. The claims are revoked, and no range is above what "
                "is published",
                name,
                logged,
                version,
                extra=event("store_lost_inputs", computation=name, known=logged, version=version),
            )
        self.on_published(round_.touched)
        losses = [fenced for fenced in round_.fenced if fenced.computation not in round_.dropped]
        for fenced in losses:
            self.on_fenced(fenced)
        _log_losses(losses)
        self._served.count()
        self._observer.round(requests)

    # -- answer ------------------------------------------------------------------------------------

    def _answer(self, round_: Round, staged: _Staged) -> None:
        """Answer the callers of a round. An answer that needs roots waits beside the rounds."""
        for request, result in staged:
            slices: Sequence[tuple[Answer, int]] = ()
            if request.needs_root and request.refusal is None:
                slices = self._served.slices.unsettled(request.names - round_.dropped.keys())
            if not slices:
                request.end(result, round_.dropped)
                continue
            task = asyncio.create_task(self._answer_confirmed(request, result, round_.dropped, slices))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer_confirmed(
        self,
        request: _Request[Any],
        result: Any,
        dropped: Mapping[str, Exception],
        slices: Sequence[tuple[Answer, int]],
    ) -> None:
        """Answer one caller when the roots have confirmed the slices, or refuse it in the end."""
        refusals = await asyncio.gather(*(one.settle(turn) for one, turn in slices))
        unconfirmed = {one.name: refusal for (one, _), refusal in zip(slices, refusals, strict=True) if refusal}
        request.end(result, dropped, unconfirmed)

    def _answer_reads(self, round_: Round) -> None:
        for _ in range(len(self._reads)):
            request = self._reads.popleft()
            try:
                request.succeed(request.run(round_))
            except errors.LowwaterError as error:
                request.fail(error)
            except Exception:
                # A read stages nothing, so only its own caller is concerned.
                log.exception("a question failed in a way it never should", extra=event("internal_error"))
                request.fail(errors.LowwaterError("internal error while reading; see the authority's log"))

    @staticmethod
    def _refuse(staged: _Staged, refusal: Exception, healed: Collection[str]) -> None:
        """Refuse the callers of a round that was rolled back."""
        unknown = errors.Unavailable(
            "the store has lost or damaged records, and this process writes them again from memory; look whether this took effect, "
            "or repeat it"
        )
        for request, _ in staged:
            request.fail(refusal if request.names.isdisjoint(healed) else unknown)

    # -- tidy --------------------------------------------------------------------------------------

    async def _tidy(self, round_: Round) -> None:
        """Make the snapshots that are due.

        All that is staged is durable here, and the callers have their answers. The next round would
        change the state under the snapshot, so it waits; the event loop does not.
        """
        holdings, now = self._holdings, round_.now
        requested, self._to_snapshot = self._to_snapshot, {}
        for name in {**round_.touched, **requested}:
            holding = holdings.served.get(name)
            if holding is None:
                continue
            if holding.log.due(now) or (name in requested and holding.unwritten is None and holding.log.changed(now)):
                await holdings.logs.snapshot(holding.log, partial(recovery.pieces, holding.computation), now)
        if round_.topology is not None and holdings.graph.log.due(now):
            graph = holdings.topology
            await holdings.logs.snapshot(holdings.graph.log, lambda: [graph.encode()], now, newest=graph.needs_newest)


def _log_losses(fenced: Iterable[Fenced]) -> None:
    """Log one line a computation and reason: a reset takes the ranges of thousands of claims."""
    lost: dict[tuple[str, str], list[int]] = {}
    for loss in fenced:
        lost.setdefault((loss.computation, loss.reason), []).append(loss.sequencer)
    for (name, reason), sequencers in lost.items():
        facts = event("owner_lost", computation=name, claims=len(sequencers), sequencer=min(sequencers), reason=reason)
        log.info("%s of %s lost key ranges: %s", counted(len(sequencers), "claim"), name, reason, extra=facts)
