"""A shard: owns computations, and says what a round of requests does to them.

    requests -> [round: check and stage in arrival order -> one append -> publish and answer] -> the next round

Nothing is published, acknowledged or granted before its record is durable (rule 2). Everything runs on one event loop;
time, journal and randomness are passed in.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation, View
from lowwater_authority.core.requests import Fenced, Refused
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.hub import Hub
from lowwater_authority.journal import JournalCorrupt
from lowwater_authority.logs import Logs
from lowwater_authority.rounds import CommitLoop, Round

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from lowwater_authority.core.history import Completion
    from lowwater_authority.core.interval_map import Range
    from lowwater_authority.core.requests import ClaimRequest, Grant, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.journal import Journal
    from lowwater_authority.observer import Observer

TOPOLOGY_LOG: Final = ""
"""The log of the pipeline graph; every record is the whole graph."""


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
        self._logs = Logs(journal, observer)
        self._loop = CommitLoop(self)
        self._now = 0

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal and recover every computation. Raises what the journal raises."""
        await self.journal.open()
        loaded = await self._logs.load(TOPOLOGY_LOG)
        newest = loaded.records[-1][1] if loaded.records else loaded.snapshot
        if newest is not None:
            self.topology = Topology.decode(newest)
        for spec in self.topology.computations.values():
            await self._recover(spec)
        self._observer.computations(len(self._computations))

    async def run(self) -> None:
        """Run rounds until :meth:`stop`. Raises JournalFenced and its like: this process must not go on."""
        await self._loop.run()

    def stop(self) -> None:
        """Let :meth:`run` finish what is queued and end. New requests are refused with ShuttingDown.

        An append whose outcome is still unknown is given up: nothing of it was shown, and its callers may repeat it.
        """
        self._logs.stopping = True
        self._loop.stop()

    async def close(self) -> None:
        """Write a snapshot of every changed computation, so that the next start is quick, and close the journal."""
        await self._logs.settle()
        for name, computation in self._computations.items():
            if self._logs.behind(name):
                self._logs.snapshot(name, partial(recovery.snapshot, computation))
                await self._logs.settle()
        await self.journal.close()

    @property
    def confirmed(self) -> int:
        """Processing time up to which the published values are known to be the newest durable ones."""
        since = self._logs.unconfirmed_since
        return self._tick() if since is None else since

    @property
    def now(self) -> int:
        """Processing time, by a clock that never goes back."""
        return self._tick()

    @property
    def queued(self) -> int:
        """Requests waiting for a round."""
        return len(self._loop)

    # -- the graph -----------------------------------------------------------------------------------------

    async def register(self, spec: Spec) -> Spec:
        """Register a computation. Raises InvalidArgument, RegistrationConflict, Cycle."""

        def stage(round_: Round) -> Spec:
            changed = self.topology.register(spec)
            if changed is not self.topology:
                round_.topology, round_.restarts = changed, (spec.name,)
            return changed.get(spec.name)

        return await self._loop.write(stage, alone=True)

    async def set_inputs(self, name: str, inputs: Sequence[str]) -> Spec:
        """Change what a computation reads. Raises as register does, and WouldRegress.

        Its claims are revoked first, so that what it has published is frozen when the new inputs are compared with it. Ranges
        that stand beyond the low watermark of a new input go back to it: work may come to them from there on.
        """

        def stage(round_: Round) -> Spec:
            changed = self.topology.set_inputs(name, inputs)
            computation = self._computation(name)
            added = [each for each in inputs if each not in self.topology.get(name).inputs]
            lows = [self._computations[new].low if new in self._computations else MIN for new in added]
            for new, low in zip(added, lows, strict=True):
                if low < computation.low:
                    msg = (
                        f"{new} is behind what {name} has published: {name} would have to go back. Reset {name} first, or wait "
                        f"until {new} has caught up."
                    )
                    raise errors.WouldRegress(msg, metadata={"computation": name, "input": new})
            round_.touched[name] = computation
            bound = min(lows, default=None)
            round_.fenced += computation.revoke(changed.get(name).input_version, round_.now, bound=bound)
            round_.topology = changed
            return changed.get(name)

        return await self._loop.write(stage, alone=True)

    async def reset(self, name: str) -> list[Spec]:
        """Start a new life of a computation and of all that reads it. Raises UnknownComputation."""

        def stage(round_: Round) -> list[Spec]:
            self._stage_reset(round_, name)
            assert round_.topology is not None
            return [round_.topology.get(n) for n in round_.restarts]

        return await self._loop.write(stage, alone=True)

    def _stage_reset(self, round_: Round, name: str) -> None:
        changed, names = self.topology.reset(name)
        round_.topology, round_.restarts = changed, tuple(names)
        round_.fenced += [
            Fenced(n, sequencer, None, f"{name} was reset")
            for n in names
            for sequencer in self._computations[n].map.groups
        ]

    # -- owners --------------------------------------------------------------------------------------------

    async def claim(self, name: str, asked: ClaimRequest, *, adopt: bool = False) -> Grant:
        """Grant ranges. With ``adopt``, take the computation over from another identity by a new life."""

        def stage(round_: Round) -> Grant:
            computation = self._touch(round_, name)
            request = self._bounded(name, asked)
            adopts = adopt and computation.identity not in (None, request.identity)
            if not adopts or request.request_id in computation.granted:
                grant = computation.claim(request, round_.now)
                round_.fenced += grant.fenced
                return grant
            # The new life and its first claim are one record: a repeat of the request finds both, or neither.
            changed, _ = self.topology.reset(name)
            fresh = recovery.restarted(computation, changed.get(name))
            grant = fresh.claim(request, round_.now)
            self._stage_reset(round_, name)
            round_.touched[name] = fresh
            return grant

        return await self._loop.write(stage, alone=adopt)

    def _bounded(self, name: str, asked: ClaimRequest) -> ClaimRequest:
        """Let no bound lead what is published of the inputs.

        A retired range begins at its bound, and what its new owner knows may be older than a change of the inputs. The range of
        an owner never stands beyond them anyway, so for all others this changes nothing.
        """
        inputs = self.topology.get(name).inputs
        if not inputs or not len(asked.bound_micros):
            return asked
        views = [self.view(each) for each in inputs]
        low = min(MIN if view is None else view.low for view in views)
        bounds = np.where(asked.bound_micros == MAX, MAX, np.minimum(asked.bound_micros, low))
        return replace(asked, bound_micros=bounds)

    def report(
        self,
        reports: Sequence[tuple[str, GroupReport]],
        *,
        sender: bytes,
        number: tuple[int, int],
        after: asyncio.Future[Any] | None = None,
    ) -> asyncio.Future[list[tuple[str, Refused]]]:
        """Take over the states of several claims; the future ends with what was refused, by computation.

        ``after`` is the report before it in its stream: when that one failed, this one ends with OldStream, since it says
        only what changed since, and what was lost may have lowered a range.
        """

        def stage(round_: Round) -> list[tuple[str, Refused]]:
            if after is not None and after.done() and (after.cancelled() or after.exception() is not None):
                msg = "an earlier report of this stream failed; open a new stream and send the full state"
                raise errors.OldStream(msg, metadata={"number": str(number[1])})
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

        return self._loop.write(stage)

    async def release(self, name: str, sequencer: int) -> None:
        """Leave a claim's ranges unowned. Raises StaleSequencer."""
        await self._loop.write(lambda round_: self._touch(round_, name).release(sequencer))

    async def retire(self, name: str, start: bytes, end: bytes, *, force: bool) -> int:
        """Take an interval out; returns how many ranges. Raises OwnedRanges."""

        def stage(round_: Round) -> int:
            ranges, fenced = self._touch(round_, name).retire(start, end, force=force, now=round_.now)
            round_.fenced += fenced
            return ranges

        return await self._loop.write(stage)

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

        return await self._loop.write(stage)

    # -- readers -------------------------------------------------------------------------------------------

    def view(self, name: str) -> View | None:
        """Return what is published of a computation; None when it is not registered."""
        computation = self._computations.get(name)
        return computation.published if computation else None

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._computations)

    def claimed(self, name: str, sequencer: int) -> bool:
        """Return whether a computation has such a claim."""
        computation = self._computations.get(name)
        return computation is not None and sequencer in computation.map.groups

    def reference(self, name: str) -> int:
        """Return the event time that ages of a computation's histograms count from."""
        return self._computation(name).reference

    async def ranges(self, name: str, *, below: int | None, limit: int) -> tuple[list[Range], int]:
        """Return the ranges furthest behind, as of the last durable round."""

        def read(_: Round) -> tuple[list[Range], int]:
            ranges = self._computation(name).map
            return ranges.all_ranges(limit) if below is None else ranges.held_below(below, limit)

        return await self._loop.read(read)

    async def history(self, name: str, *, since: int | None, limit: int) -> tuple[list[Completion], int]:
        """Return when steps became complete, newest ones, as of the last durable round. See History.newest."""
        return await self._loop.read(lambda _: self._computation(name).history.newest(since, limit))

    # -- rounds --------------------------------------------------------------------------------------------

    def begin(self) -> Round:
        """See RoundOwner."""
        return Round(self._tick())

    async def append(self, round_: Round) -> None:
        """See RoundOwner."""
        records = []
        for name, computation in round_.touched.items():
            record = computation.take_record(round_.now)
            if record is not None:
                records.append((name, *record))
        if round_.topology is not None:
            records.append((TOPOLOGY_LOG, round_.topology.encode(), True))
        await self._logs.append(records, round_.now)

    def publish(self, round_: Round, requests: int) -> None:
        """See RoundOwner."""
        self._computations.update(round_.touched)
        views = [computation.publish() for computation in round_.touched.values()]
        if round_.topology is not None:
            self.topology = round_.topology
            for name, spec in self.topology.computations.items():
                if name in round_.restarts and name not in round_.touched:
                    views.append(self._restart(spec))
                self._computations[name].spec = spec
        self.hub.publish(views)
        for fenced in round_.fenced:
            self.on_fenced(fenced)
        self._observer.computations(len(self._computations))
        self._observer.round(requests)

    def _restart(self, spec: Spec) -> View:
        old = self._computations.get(spec.name)
        new = recovery.restarted(old, spec) if old else Computation(spec, epoch_base=self._epoch_base)
        self._computations[spec.name] = new
        return new.publish()

    async def roll_back(self, round_: Round) -> None:
        """See RoundOwner. The journal is the truth, and recovery the one way to it."""
        await self._logs.settle()
        for name in round_.touched:
            await self._recover(self.topology.get(name))

    def tidy(self, round_: Round) -> None:
        """See RoundOwner. All that is staged is durable here, so it can be snapshotted."""
        for name in round_.touched:
            if self._logs.due(name):
                self._logs.snapshot(name, partial(recovery.snapshot, self._computations[name]))
        if round_.topology is not None and self._logs.due(TOPOLOGY_LOG):
            self._logs.snapshot(TOPOLOGY_LOG, self.topology.encode)

    async def _recover(self, spec: Spec) -> None:
        loaded = await self._logs.load(spec.name)
        records = [payload for _, payload in loaded.records]
        try:
            computation = recovery.recover(spec, loaded.snapshot, records, epoch_base=self._epoch_base)
        except recovery.ReplayError as error:
            raise JournalCorrupt(spec.name, None, str(error)) from error
        self._computations[spec.name] = computation

    # -- shared --------------------------------------------------------------------------------------------

    @property
    def _epoch_base(self) -> int:
        """The epoch's number and nonce above a counter of 28 bits: sequencers grow even past a lost journal tail."""
        return int(self.journal.epoch) << 40 | (self.journal.nonce & 0xFFF) << 28

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


def _refusal(report: GroupReport, error: errors.LowwaterError) -> Refused:
    return Refused(report.sequencer, error.reason, error.message)
