"""A shard: owns computations and runs the group-commit loop.

    requests -> [round: check and stage in arrival order -> one append -> publish and answer] -> the next round

No timer: the next round starts when the append returns, so an idle shard answers in one journal round trip and a busy
one batches by itself. Nothing is published, acknowledged or granted before its record is durable (rule 2). Everything
runs on one event loop; time, journal and randomness are passed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lowwater import errors

from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation, View
from lowwater_authority.core.requests import Fenced, Refused
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.hub import Hub
from lowwater_authority.journal import Entry, JournalCorrupt, JournalFailed, JournalUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater_authority.core.interval_map import Range
    from lowwater_authority.core.requests import ClaimRequest, Grant, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.journal import Journal
    from lowwater_authority.observer import Observer

T = TypeVar("T")

TOPOLOGY_LOG: Final = ""
"""The log of the pipeline graph; every record is the whole graph."""

QUEUE_BOUND: Final = 65_536
"""Requests waiting for a round; one more is refused with Overloaded."""

SNAPSHOT_BYTES: Final = 4 << 20
"""A log is snapshotted when the records behind its snapshot outgrow this and twice the snapshot."""

RETRY_SECONDS: Final = (0.05, 2.0)
"""First and longest wait before an append of unknown outcome is tried again."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work(Generic[T]):
    """A queued request: what to do within a round, and who waits for it to be durable."""

    stage: Callable[[Round], T]
    done: asyncio.Future[T]
    alone: bool = False


@dataclass(slots=True)
class Round:
    """What one round has staged so far. All of it gets the same processing time."""

    now: int
    touched: dict[str, Computation] = field(default_factory=dict)
    topology: Topology | None = None
    restarts: tuple[str, ...] = ()
    fenced: list[Fenced] = field(default_factory=list)


@dataclass(slots=True)
class _Log:
    """How far a log has been written, and how much of it is behind its snapshot."""

    position: int = 0
    behind: int = 0
    snapshot_bytes: int = 0

    @property
    def due(self) -> bool:
        """Whether a snapshot would bound the replay."""
        return self.behind > max(SNAPSHOT_BYTES, 2 * self.snapshot_bytes)


class Shard:
    """Serves a set of computations: all of a deployment, with an embedded journal.

    Every request method returns when its effect is durable. They raise errors of :mod:`lowwater.errors`; a refused
    request has changed nothing. JournalFailed: the store surely refused the write, and the staged state is rolled back.
    """

    def __init__(self, journal: Journal, *, clock: Callable[[], int], observer: Observer) -> None:
        self.journal = journal
        self.hub = Hub()
        self.topology = Topology()
        self.on_fenced: Callable[[Fenced], None] = lambda _: None
        self._clock = clock
        self._observer = observer
        self._computations: dict[str, Computation] = {}
        self._logs: dict[str, _Log] = {}
        self._queue: deque[_Work[Any]] = deque()
        self._reads: deque[_Work[Any]] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._now = 0
        self._unconfirmed_since: int | None = None

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal and recover every computation. Raises what the journal raises, and ReplayError."""
        await self.journal.open()
        loaded = await self._load(TOPOLOGY_LOG)
        newest = loaded[-1] if loaded else None
        if newest is not None:
            self.topology = Topology.decode(newest)
        for spec in self.topology.computations.values():
            await self._recover(spec)
        self.hub.publish(computation.published for computation in self._computations.values())
        self._observer.computations(len(self._computations))

    async def run(self) -> None:
        """Run rounds until :meth:`stop`. Raises JournalFenced and its like: this process must not go on."""
        try:
            while not self._stopping or self._queue or self._reads:
                if not (self._queue or self._reads):
                    await self._arrived.wait()
                self._arrived.clear()
                await self._round()
        finally:
            self._stopping = True
            self._refuse_all(errors.ShuttingDown("the authority is stopping; connect again"))

    async def stop(self) -> None:
        """Finish what is queued, then end :meth:`run`. New requests are refused with ShuttingDown."""
        self._stopping = True
        self._arrived.set()

    async def close(self) -> None:
        """Write a snapshot of every computation, so that the next start is quick, and close the journal."""
        for name in self._computations:
            if self._logs[name].behind:
                await self._snapshot(name)
        await self.journal.close()

    @property
    def confirmed(self) -> int:
        """Processing time up to which the published values are known to be the newest durable ones."""
        return self._tick() if self._unconfirmed_since is None else self._unconfirmed_since

    @property
    def queued(self) -> int:
        """Requests waiting for a round."""
        return len(self._queue)

    # -- the graph -----------------------------------------------------------------------------------------

    async def register(self, spec: Spec) -> Spec:
        """Register a computation. Raises InvalidArgument, RegistrationConflict, Cycle."""

        def stage(round_: Round) -> Spec:
            changed = self.topology.register(spec)
            if changed is not self.topology:
                round_.topology, round_.restarts = changed, (spec.name,)
            return changed.get(spec.name)

        return await self._submit(stage, alone=True)

    async def set_inputs(self, name: str, inputs: Sequence[str]) -> Spec:
        """Change what a computation reads. Raises as register does, and WouldRegress.

        Its claims are revoked first, so that what it has published is frozen when the new inputs are compared with it.
        """

        def stage(round_: Round) -> Spec:
            changed = self.topology.set_inputs(name, inputs)
            computation = self._computation(name)
            for new in set(inputs) - set(self.topology.get(name).inputs):
                low = self._computations[new].low if new in self._computations else None
                if low is None or low < computation.low:
                    msg = (
                        f"{new} is behind what {name} has published: {name} would have to go back. Reset {name} first, or wait "
                        f"until {new} has caught up."
                    )
                    raise errors.WouldRegress(msg, metadata={"computation": name, "input": new})
            round_.touched[name] = computation
            round_.fenced += computation.revoke(changed.get(name).input_version)
            round_.topology = changed
            return changed.get(name)

        return await self._submit(stage, alone=True)

    async def reset(self, name: str) -> list[Spec]:
        """Start a new life of a computation and of all that reads it. Raises UnknownComputation."""

        def stage(round_: Round) -> list[Spec]:
            self._stage_reset(round_, name)
            assert round_.topology is not None
            return [round_.topology.get(n) for n in round_.restarts]

        return await self._submit(stage, alone=True)

    def _stage_reset(self, round_: Round, name: str) -> None:
        changed, names = self.topology.reset(name)
        round_.topology, round_.restarts = changed, tuple(names)
        round_.fenced += [
            Fenced(n, sequencer, None, f"{name} was reset")
            for n in names
            for sequencer in self._computations[n].map.groups
        ]

    # -- owners --------------------------------------------------------------------------------------------

    async def claim(self, name: str, request: ClaimRequest, *, adopt: bool = False) -> Grant:
        """Grant ranges. With ``adopt``, take the computation over from another identity by a new life."""
        computation = self._computation(name)
        if adopt and computation.identity not in (None, request.identity):
            await self.reset(name)

        def stage(round_: Round) -> Grant:
            grant = self._touch(round_, name).claim(request, round_.now)
            round_.fenced += grant.fenced
            return grant

        return await self._submit(stage)

    def report(
        self, reports: Sequence[tuple[str, GroupReport]], *, sender: bytes, number: tuple[int, int]
    ) -> asyncio.Future[list[tuple[str, Refused]]]:
        """Take over the states of several claims; the future ends with what was refused, by computation."""

        def stage(round_: Round) -> list[tuple[str, Refused]]:
            refused: list[tuple[str, Refused]] = []
            for name, report in reports:
                try:
                    computation = self._touch(round_, name)
                except errors.UnknownComputation as error:
                    refused.append((name, _refusal(report, error)))
                    continue
                required = self.topology.required(name)
                found = computation.report(report, sender=sender, number=number, required=required, now=round_.now)
                refused += [(name, refusal) for refusal in found]
            return refused

        return self._enqueue(stage)

    async def release(self, name: str, sequencer: int) -> None:
        """Leave a claim's ranges unowned. Raises StaleSequencer."""
        await self._submit(lambda round_: self._touch(round_, name).release(sequencer))

    async def retire(self, name: str, start: bytes, end: bytes, *, force: bool) -> int:
        """Take an interval out; returns how many ranges. Raises OwnedRanges."""

        def stage(round_: Round) -> int:
            ranges, fenced = self._touch(round_, name).retire(start, end, force=force, now=round_.now)
            round_.fenced += fenced
            return ranges

        return await self._submit(stage)

    def stage_task(self, name: str, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart) -> None:
        """Keep a task's part, in memory only: it promises nothing until it is prepared and committed."""
        self._computation(name).stage_task(sequencer, batch, task, part)

    def prepare(self, name: str, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch, in memory only; returns the missing ones."""
        return self._computation(name).prepare(request)

    async def commit(self, name: str, sequencer: int, batch: int) -> list[Refused]:
        """Apply a prepared batch. Raises StaleSequencer, NotPrepared, InputVersion, IncarnationChanged."""

        def stage(round_: Round) -> list[Refused]:
            required = self.topology.required(name)
            return self._touch(round_, name).commit(sequencer, batch, required, round_.now)

        return await self._submit(stage)

    # -- readers -------------------------------------------------------------------------------------------

    def view(self, name: str) -> View | None:
        """Return what is published of a computation; None when it is not registered."""
        computation = self._computations.get(name)
        return computation.published if computation else None

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._computations)

    def claims(self, name: str) -> int:
        """Return how many claims a computation has."""
        return len(self._computations[name].map.groups)

    def reference(self, name: str) -> int:
        """Return the event time that ages of a computation's histograms count from."""
        return self._computation(name).reference()

    async def ranges(self, name: str, *, below: int | None, limit: int) -> tuple[list[Range], int]:
        """Return the ranges furthest behind, as of the last durable round."""

        def read(_: Round) -> tuple[list[Range], int]:
            ranges = self._computation(name).map
            return ranges.all_ranges(limit) if below is None else ranges.held_below(below, limit)

        return await self._enqueue(read, read=True)

    # -- rounds --------------------------------------------------------------------------------------------

    async def _submit(self, stage: Callable[[Round], T], *, alone: bool = False) -> T:
        return await self._enqueue(stage, alone=alone)

    def _enqueue(self, stage: Callable[[Round], T], *, alone: bool = False, read: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._stopping:
            done.set_exception(errors.ShuttingDown("the authority is stopping; connect again"))
        elif len(self._queue) + len(self._reads) >= QUEUE_BOUND:
            done.set_exception(errors.Overloaded(f"{QUEUE_BOUND} requests wait already; try again later"))
        else:
            (self._reads if read else self._queue).append(_Work(stage, done, alone))
            self._arrived.set()
        return done

    async def _round(self) -> None:
        round_ = Round(self._tick())
        staged: list[tuple[_Work[Any], Any]] = []
        while self._queue and not (staged and self._queue[0].alone):
            work = self._queue.popleft()
            try:
                staged.append((work, work.stage(round_)))
            except errors.LowwaterError as error:
                _fail(work, error)
            except Exception:
                # Half a change may be staged: nothing of this round may reach the journal.
                log.exception("a request failed in a way it never should; the round is rolled back")
                staged.append((work, None))
                await self._roll_back(round_, staged, errors.LowwaterError("internal error; see the authority's log"))
                return
            if work.alone:
                break
        try:
            await self._append(round_)
        except JournalFailed as error:
            refusal = errors.JournalFailed(f"the journal refused the write, nothing was changed: {error}")
            await self._roll_back(round_, staged, refusal)
            return
        self._publish(round_)
        for work, result in staged:
            _succeed(work, result)
        self._observer.round(len(staged))
        for _ in range(len(self._reads)):
            work = self._reads.popleft()
            try:
                _succeed(work, work.stage(round_))
            except errors.LowwaterError as error:
                _fail(work, error)
        for name in [*round_.touched, *([TOPOLOGY_LOG] if round_.topology else ())]:
            if name in self._logs and self._logs[name].due:
                await self._snapshot(name)

    async def _append(self, round_: Round) -> None:
        """Make the round durable; returns when it is. Raises JournalFailed when it surely is not."""
        entries = []
        for name, computation in round_.touched.items():
            record = computation.take_record(round_.now)
            if record is not None:
                entries.append(Entry(name, self._logs[name].position + 1, *record))
        if round_.topology is not None:
            entries.append(
                Entry(TOPOLOGY_LOG, self._log(TOPOLOGY_LOG).position + 1, round_.topology.encode(), strong=True)
            )
        if not entries:
            return
        self._unconfirmed_since = round_.now
        wait = RETRY_SECONDS[0]
        while True:
            try:
                with self._observer.append(sum(len(entry.payload) for entry in entries)):
                    await self.journal.append(entries)
                break
            except JournalUnknown as error:
                # Until it is known whether the append happened, nothing may be shown and nothing else appended.
                log.warning("append of unknown outcome, trying again as is in %.2f s: %s", wait, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_SECONDS[1])
            except JournalFailed:
                self._unconfirmed_since = None
                raise
        self._unconfirmed_since = None
        for entry in entries:
            state = self._log(entry.log)
            state.position = entry.position
            state.behind += len(entry.payload)

    def _publish(self, round_: Round) -> None:
        views = [computation.publish() for computation in round_.touched.values()]
        if round_.topology is not None:
            self.topology = round_.topology
            for name in round_.restarts:
                views.append(self._restart(self.topology.get(name)))
            for name, computation in self._computations.items():
                computation.spec = self.topology.get(name)
        self.hub.publish(views)
        for fenced in round_.fenced:
            self.on_fenced(fenced)
        self._observer.computations(len(self._computations))

    def _restart(self, spec: Spec) -> View:
        old = self._computations.get(spec.name)
        new = recovery.restarted(old, spec) if old else Computation(spec, epoch_base=self._epoch_base)
        self._computations[spec.name] = new
        self._log(spec.name)
        return new.publish()

    async def _roll_back(
        self, round_: Round, staged: Sequence[tuple[_Work[Any], Any]], refusal: errors.LowwaterError
    ) -> None:
        """Forget what was staged and refuse it: the journal is the truth, and recovery the one way to it."""
        for name in round_.touched:
            await self._recover(self.topology.get(name))
        for work, _ in staged:
            _fail(work, refusal)

    async def _recover(self, spec: Spec) -> None:
        loaded = await self.journal.load(spec.name)
        records = [payload for _, payload in loaded.records]
        try:
            computation = recovery.recover(spec, loaded.snapshot, records, epoch_base=self._epoch_base)
        except recovery.ReplayError as error:
            raise JournalCorrupt(spec.name, loaded.snapshot_position, str(error)) from error
        self._computations[spec.name] = computation
        self._logs[spec.name] = _Log(
            loaded.records[-1][0] if loaded.records else loaded.snapshot_position,
            sum(map(len, records)),
            len(loaded.snapshot or b""),
        )

    async def _load(self, name: str) -> list[bytes]:
        loaded = await self.journal.load(name)
        records = [payload for _, payload in loaded.records]
        self._log(name).position = loaded.records[-1][0] if loaded.records else loaded.snapshot_position
        self._log(name).behind = sum(map(len, records))
        return ([] if loaded.snapshot is None else [loaded.snapshot]) + records

    async def _snapshot(self, name: str) -> None:
        state = self._logs[name]
        payload = self.topology.encode() if name == TOPOLOGY_LOG else recovery.snapshot(self._computations[name])
        try:
            await self.journal.snapshot(name, state.position, payload)
        except (JournalFailed, JournalUnknown) as error:
            # A snapshot only shortens the replay; the next one will do.
            log.warning("no snapshot of %r: %s", name, error)
            return
        state.behind, state.snapshot_bytes = 0, len(payload)

    # -- shared --------------------------------------------------------------------------------------------

    @property
    def _epoch_base(self) -> int:
        """The epoch's number and nonce above a counter of 28 bits: sequencers grow even past a lost journal tail."""
        return self.journal.epoch << 40 | (self.journal.nonce & 0xFFF) << 28

    def _log(self, name: str) -> _Log:
        return self._logs.setdefault(name, _Log())

    def _computation(self, name: str) -> Computation:
        self.topology.get(name)
        return self._computations[name]

    def _touch(self, round_: Round, name: str) -> Computation:
        computation = self._computation(name)
        round_.touched[name] = computation
        return computation

    def _tick(self) -> int:
        self._now = max(self._now, self._clock())
        return self._now

    def _refuse_all(self, error: errors.LowwaterError) -> None:
        for work in [*self._queue, *self._reads]:
            _fail(work, error)
        self._queue.clear()
        self._reads.clear()


def _refusal(report: GroupReport, error: errors.LowwaterError) -> Refused:
    return Refused(report.sequencer, error.reason, error.message)


def _succeed(work: _Work[T], result: T) -> None:
    if not work.done.done():
        work.done.set_result(result)


def _fail(work: _Work[Any], error: Exception) -> None:
    if not work.done.done():
        work.done.set_exception(error)
