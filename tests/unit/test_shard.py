"""The commit loop over a journal in memory, one event loop, a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core import batches, recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import (
    NO_FOLD,
    ClaimRequest,
    Fold,
    Grant,
    GroupReport,
    Prepare,
    Refused,
    TaskAttempt,
)
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine import owner_requests
from lowwater_authority.engine.graph_log import replayed
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.journal import GRAPH, Entry, Journal, JournalFenced, JournalUnknown
from tests.kit.eventually import eventually_async
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.shards import turns
from tests.kit.times import HOUR
from tests.property.core_driver import part

SENDER = b"s" * 16
ids = count(1)
streams = count(1)
"""Shards that were restarted hear of greater ones."""


class Gate(FaultPlan):
    """Holds writes until the test lets them through."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def before(self, operation: Operation) -> Outcome:
        self.reached.set()
        await self.open.wait()
        return await super().before(operation)


class Running:
    """A shard whose rounds run, and short words for what tests do with it."""

    def __init__(
        self,
        disk: MemoryDisk,
        faults: FaultPlan | None = None,
        settings: ShardSettings | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.now = 1_000 * HOUR
        journal = journal or MemoryJournal(disk, faults=faults)
        self.shard = Shard(journal, clock=lambda: self.now, observer=Observer(), settings=settings)
        self.stream, self._number = next(streams), count(1)

    async def start(self) -> Running:
        await self.shard.start()
        self.task = asyncio.create_task(self.shard.run())
        return self

    async def stop(self) -> None:
        self.shard.stop()
        with contextlib.suppress(Exception):
            await self.task

    async def claim(self, name: str = "a", *keys: bytes, **options: object) -> Grant:
        bounds = list(keys) or [b"", b""]
        return await self.shard.owners.claim(name, ClaimRequest(bounds, request_id=next(ids).to_bytes(16), **options))  # type: ignore[arg-type]

    def report(
        self, grant: Grant, *hours: int, name: str = "a", finish: bool = False, incarnations: tuple[int, ...] = ()
    ) -> asyncio.Future[list[tuple[str, Refused]]]:
        values = np.array([h if h in (MIN, MAX) else h * HOUR for h in hours], dtype=np.int64)
        registered = name in self.shard.topology.computations
        fold = Fold(self.shard.topology.required(name).input_version if registered else 1, incarnations)
        report = GroupReport(grant.sequencer, values, finish=finish, fold=fold)
        return self.shard.owners.report([(name, report)], sender=SENDER, number=(self.stream, next(self._number)))

    def low(self, name: str = "a") -> float:
        view = self.shard.served.view(name)
        assert view is not None
        return view.low if view.low in (MIN, MAX) else view.low / HOUR


@pytest.fixture
async def running(disk: MemoryDisk) -> AsyncIterator[Running]:
    one = await Running(disk).start()
    await one.shard.graph.register(Spec("a"))
    yield one
    await one.stop()


async def gated(disk: MemoryDisk, settings: ShardSettings | None = None) -> tuple[Running, Gate]:
    gate = Gate()
    one = await Running(disk, gate, settings).start()
    await one.shard.graph.register(Spec("a"))
    return one, gate


async def test_rule2_nothing_is_published_or_acknowledged_before_its_record_is_durable(disk: MemoryDisk) -> None:
    one, gate = await gated(disk)
    grant = await one.claim()
    gate.open.clear()
    gate.reached.clear()
    acknowledged = one.report(grant, 14)
    await gate.reached.wait()
    assert one.low() == MIN
    assert not acknowledged.done()
    assert (await one.shard.journal.load("a")).last == 1, "only the claim"
    gate.open.set()
    assert await acknowledged == []
    assert one.low() == 14
    await one.stop()


async def test_reads_that_wait_for_a_store_that_hangs_end_in_time(disk: MemoryDisk, running: Running) -> None:
    await running.stop()
    gate = Gate()
    one = await Running(disk, gate, ShardSettings(wait_seconds=0.01)).start()
    grant = await one.claim()
    gate.open.clear()
    acknowledged = one.report(grant, 14)
    for read in (one.shard.reads.ranges("a", below=None, limit=1), one.shard.reads.history("a", since=None, limit=1)):
        with pytest.raises(errors.Unavailable, match=r"its store has not answered within 0.01 s"):
            await read
    gate.open.set()
    assert await acknowledged == []
    await one.stop()


async def test_rule4_a_replaced_shard_stops_and_shows_nothing(disk: MemoryDisk, running: Running) -> None:
    grant = await running.claim()
    newer = await Running(disk).start()
    refused = running.report(grant, 14)
    with pytest.raises(errors.ShuttingDown):
        await refused
    with pytest.raises(JournalFenced):
        await running.task
    assert running.low() == MIN
    with pytest.raises(errors.ShuttingDown):
        await running.claim()
    assert await newer.report(grant, 14) == []
    await newer.stop()


async def test_rule10_the_journal_learns_which_records_must_not_be_lost(disk: MemoryDisk) -> None:
    writes: list[tuple[list[tuple[str, int]], bool]] = []

    class Watching(FaultPlan):
        async def before(self, operation: Operation) -> Outcome:
            writes.append((operation.places, operation.strong))
            return await super().before(operation)

    one = await Running(disk, Watching()).start()
    one.stream = 1  # before it there was none whose reports might still come
    await one.shard.graph.register(Spec("a"))
    grant = await one.claim()
    await one.report(grant, 14)
    await one.report(grant, 13)
    await one.shard.owners.release("a", grant.sequencer)
    await one.shard.graph.reset("a")
    assert writes == [
        ([("", 1)], True),
        ([("a", 0)], True),  # who owns it
        ([("a", 1)], True),
        ([("a", 2)], False),  # an advance
        ([("a", 3)], True),  # a lowering
        ([("a", 4)], True),
        ([("", 2)], True),
    ]
    await one.stop()


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.WRITTEN])
async def test_an_append_of_unknown_outcome_is_retried_and_shows_nothing(disk: MemoryDisk, outcome: Outcome) -> None:
    shown: list[float] = []
    states: list[StoreState] = []
    one: Running

    class Watching(FaultPlan):
        async def before(self, operation: Operation) -> Outcome:
            if operation.places == [("a", 2)]:
                shown.append(one.low())
                states.append(one.shard.confirmation.store_state(one.now))
                assert one.shard.confirmation.confirmed == one.now, "stale since the round began"
            return await super().before(operation)

    faults = Watching()
    one = await Running(disk, faults).start()
    await one.shard.graph.register(Spec("a"))
    grant = await one.claim()
    faults.then(outcome, outcome)
    assert await one.report(grant, 14) == []
    assert shown == [MIN] * 3
    assert states == [StoreState.TAKES, StoreState.SILENT, StoreState.SILENT]
    assert one.shard.confirmation.store_state(one.now) is StoreState.TAKES
    assert one.low() == 14
    assert (await one.shard.journal.load("a")).last == 2, "written once"
    await one.stop()


async def test_a_reset_starts_new_incarnations_downstream_and_makes_every_sequencer_stale(running: Running) -> None:
    shard = running.shard
    await shard.graph.register(Spec("b", ("a",)))
    await shard.graph.register(Spec("c", ("b",)))
    await shard.graph.register(Spec("other"))
    a, b = await running.claim("a"), await running.claim("b")
    await running.report(a, 15)
    await running.report(b, 15, name="b", incarnations=(1,))
    assert [spec.name for spec in await shard.graph.reset("a")] == ["a", "b", "c"]
    assert (running.low("a"), running.low("b")) == (MIN, MIN)
    ((_, refused),) = await running.report(a, 16)  # C5a: it was on the wire
    assert refused.reason == "STALE_SEQUENCER"
    again = await running.claim("b")
    await running.report(
        again, 15, name="b", incarnations=(1,)
    )  # C5b: a fold over the incarnation that is being rewritten
    assert running.low("b") == MIN
    await running.report(again, 9, name="b", incarnations=(2,))
    assert running.low("b") == 9
    assert shard.served.view("other").incarnation == 1  # type: ignore[union-attr]


async def test_h4_an_input_behind_what_an_output_says_is_refused(disk: MemoryDisk) -> None:
    """The output says so before the batch is reported: also when that never is, and after a crash."""
    running = await Running(disk).start()
    shard = running.shard
    await shard.graph.register(Spec("a"))
    await shard.graph.register(Spec("b", ("a",)))
    await shard.graph.register(Spec("other", ("a",)))
    await shard.graph.register(Spec("c"))
    b, c = await running.claim("b"), await running.claim("c")
    await running.report(b, 9, name="b", incarnations=(1,))
    await running.report(await running.claim("other"), 9, name="other", incarnations=(1,))
    await running.report(c, 14, name="c")
    with pytest.raises(errors.InputVersion):
        await shard.owners.vouch("b", b.sequencer, 99 * HOUR, Fold(2, (1, 1)))
    with pytest.raises(errors.IncarnationChanged):
        await shard.owners.vouch("b", b.sequencer, 99 * HOUR, Fold(1, (2,)))
    with pytest.raises(errors.InvalidArgument, match="a is folded as not registered"):
        await shard.owners.vouch("b", b.sequencer, 15 * HOUR, Fold(1, (0,)))
    await shard.owners.vouch("b", b.sequencer, 15 * HOUR, Fold(1, (1,)))
    await shard.owners.vouch("b", b.sequencer, 10 * HOUR, Fold(1, (1,)))
    await running.stop()
    disk.crash()
    running = await Running(disk).start()
    shard = running.shard
    with pytest.raises(errors.WouldRegress, match="c is behind what b has let its output say"):
        await shard.graph.set_inputs("b", ["a", "c"])
    assert running.low("b") == 9
    await shard.graph.set_inputs("other", ["a", "c"])
    await running.report(c, 15, name="c")
    await shard.graph.set_inputs("b", ["a", "c"])
    with pytest.raises(errors.StaleSequencer):
        await shard.owners.vouch("b", b.sequencer, 16 * HOUR, Fold(1, (1,)))
    await shard.graph.reset("b")
    await shard.graph.register(Spec("d"))
    await shard.graph.set_inputs("b", ["a", "c", "d"])  # another life has said nothing
    await running.stop()


async def test_h4_what_was_retired_comes_back_no_further_than_the_inputs(running: Running) -> None:
    """Its owner restarts from a state that knows nothing of the input that was added meanwhile."""
    shard = running.shard
    await shard.graph.register(Spec("b", ("a",)))
    await shard.graph.register(Spec("c"))
    await running.report(await running.claim("a"), 15)
    await running.report(await running.claim("c"), 14, name="c")
    first = await running.claim("b", b"", b"m")
    second = await running.claim("b", b"m", b"")
    await running.report(first, 13, name="b", incarnations=(1,))
    await running.report(second, 15, name="b", incarnations=(1,))
    await shard.owners.retire("b", b"m", b"", force=True)
    await shard.graph.set_inputs("b", ["a", "c"])
    bounds = np.array([15 * HOUR])
    revived = await shard.owners.claim("b", ClaimRequest([b"m", b""], request_id=b"r" * 16, bound_micros=bounds))
    assert revived.watermarks.tolist() == [14 * HOUR]


async def test_an_adopt_and_its_reset_are_durable_together(disk: MemoryDisk) -> None:
    faults = FaultPlan()
    one = await Running(disk, faults).start()
    await one.shard.graph.register(Spec("a"))
    await one.shard.graph.register(Spec("b", ("a",)))
    grant = await one.claim("a", identity="first")
    await one.report(grant, 12)
    faults.then(Outcome.FAILED)
    request = ClaimRequest([b"", b""], identity="second", request_id=b"r" * 16)
    with pytest.raises(errors.JournalFailed):
        await one.shard.owners.claim("a", request, adopt=True)
    assert (one.shard.topology.get("a").incarnation, one.low()) == (1, 12)
    assert await one.report(grant, 13) == []
    adopted = await one.shard.owners.claim("a", request, adopt=True)
    disk.crash()
    again = await Running(disk).start()
    assert [again.shard.topology.get(name).incarnation for name in "ab"] == [2, 2]
    assert await again.report(adopted, 5) == []
    assert again.low() == 5
    await again.stop()


async def test_a_stop_gives_up_an_append_of_unknown_outcome(disk: MemoryDisk) -> None:
    faults = FaultPlan()
    one = await Running(disk, faults).start()
    await one.shard.graph.register(Spec("a"))
    grant = await one.claim()
    faults.then(*[Outcome.LOST] * 1000)
    waiting = one.report(grant, 14)
    await eventually_async(lambda: one.shard.held.logs.unconfirmed_since is not None)
    one.shard.stop()
    with pytest.raises(errors.ShuttingDown):
        await waiting
    with pytest.raises(JournalUnknown):
        await one.task
    assert one.low() == MIN


def keys_of(ranges: int) -> list[bytes]:
    return [b"", *(number.to_bytes(4) for number in range(1, ranges)), b""]


async def test_rule7_a_large_snapshot_lets_others_have_the_event_loop(running: Running) -> None:
    for low in range(0, 200_000, 20_000):
        end = b"" if low == 180_000 else (low + 20_000).to_bytes(4)
        await running.claim(
            "a", low.to_bytes(4) if low else b"", *(at.to_bytes(4) for at in range(low + 1, low + 20_000)), end
        )
    holding, turns = running.shard.held.of("a"), 0

    async def look() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    looking = asyncio.create_task(look())
    await running.shard.held.logs.snapshot(holding.log, partial(recovery.pieces, holding.computation))
    looking.cancel()
    assert turns >= 9, "all but the last of ten claims"
    assert max(map(len, recovery.pieces(holding.computation))) < len(recovery.snapshot(holding.computation)) / 9


async def test_rule2_what_comes_during_a_snapshot_is_not_in(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is of one position of the log: reports that arrive meanwhile wait for it, and are in the records behind it."""
    running = await Running(disk, settings=ShardSettings(snapshot_piece=1)).start()
    await running.shard.graph.register(Spec("a"))
    keys = keys_of(40)
    first, second = await running.claim("a", *keys[:21]), await running.claim("a", *keys[20:])
    later: list[asyncio.Future[Any]] = []
    begun = asyncio.Event()
    pieces = recovery.pieces

    def interrupted(computation: Computation) -> Iterator[bytes]:
        for number, piece in enumerate(pieces(computation)):
            yield piece
            if number == 1 and not later:
                later.extend([running.report(first, *[15] * 20), running.report(second, *[15] * 20)])
                begun.set()

    monkeypatch.setattr(recovery, "pieces", interrupted)
    assert await running.report(first, *[14] * 20) == []
    position = disk.logs["a"].last
    running.shard.rounds.snapshot(["a"])
    await begun.wait()
    assert [await report for report in later] == [[], []]
    await running.shard.held.logs.settle()
    assert running.low() == 15
    log_ = await running.shard.journal.load("a")
    assert log_.snapshot is not None
    assert log_.snapshot_position == position
    then = recovery.recover(running.shard.topology.get("a"), log_.snapshot, [], epoch_base=0)
    assert set(then.map.columns.values[: then.map.columns.size].tolist()) == {14 * HOUR, MIN}
    now = recovery.recover(running.shard.topology.get("a"), log_.snapshot, [it for _, it in log_.records], epoch_base=0)
    assert now.low == 15 * HOUR
    await running.stop()


async def test_a_snapshot_is_not_written_by_who_let_its_log_go_meanwhile(running: Running, disk: MemoryDisk) -> None:
    """A snapshot is written beside the rounds: by then the log may be taken again, behind what another shard has written."""
    holdings = running.shard.held
    assert await running.report(await running.claim("a", b"", b""), 14) == []
    log, computation = holdings.served["a"].log, holdings.served["a"].computation
    await holdings.logs.snapshot(log, partial(recovery.pieces, computation))
    log.forget()
    await holdings.logs.settle()
    assert disk.logs["a"].snapshot is None
    assert log.snapshotting is None


async def test_rule7_the_queue_has_a_bound(disk: MemoryDisk) -> None:
    one, gate = await gated(disk, ShardSettings(queued_requests=3))
    grant = await one.claim()
    gate.open.clear()
    gate.reached.clear()
    waiting = [one.report(grant, 1)]
    await gate.reached.wait()
    waiting += [one.report(grant, hour) for hour in (2, 3, 4)]
    with pytest.raises(errors.Overloaded):
        await one.report(grant, 5)
    gate.open.set()
    assert await asyncio.gather(*waiting) == [[]] * 4
    await one.stop()


async def test_rule7_parts_of_all_computations_are_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stages parts until it is refused, then 3 neighbours one each, then it commits, and stages again: what was committed counts no more."""
    size = batches.PART_BYTES + 12
    monkeypatch.setattr(owner_requests, "ALL_PART_BYTES", 8 * size)
    part_ = part({0: 5})
    for name in ("b", "c", "d"):
        await running.shard.graph.register(Spec(name))
    owners = {name: (await running.claim(name)).sequencer for name in "abcd"}

    def stage(name: str, batch: int, task: int) -> None:
        running.shard.owners.stage_task(name, owners[name], batch, TaskAttempt(0, task, 0), part_)

    def fill(batch: int) -> int:
        for task in range(20):
            try:
                stage("a", batch, task)
            except errors.Overloaded:
                return task
        return 20

    first = fill(0)
    for name in ("b", "c", "d"):
        stage(name, 0, 0)
    with pytest.raises(errors.Overloaded, match="those of all computations"):
        stage("a", 0, 20)
    stage("a", 0, 0)  # the repeat of a part that is kept, whose answer was lost
    tasks = [TaskAttempt(0, task, 0) for task in range(first)]
    for batch, named in ((0, tasks), (1, [])):
        request = Prepare(owners["a"], batch, b"", named, 5, False, NO_FOLD, 0, {})
        assert running.shard.owners.prepare("a", request) == []
        await running.shard.owners.commit("a", owners["a"], batch)
    assert (first, fill(2)) == (8, 5)


async def test_rule8_nothing_of_a_stream_counts_behind_a_report_that_failed(disk: MemoryDisk) -> None:
    """The first range goes down in a report that the journal refuses; the next one says only that the second goes up."""
    one, gate = await gated(disk)
    grant = await one.claim("a", b"", b"m", b"")
    await one.report(grant, 14, 10)

    def changed(hour: int, handle: int, number: int, after: asyncio.Future[Any] | None) -> asyncio.Future[Any]:
        report = GroupReport(grant.sequencer, np.array([hour * HOUR]), np.array([handle], dtype=np.uint32))
        return one.shard.owners.report([("a", report)], sender=SENDER, number=(one.stream, number), after=after)

    gate.then(Outcome.FAILED)
    gate.reached.clear()
    lowered = changed(12, 0, 2, None)
    await gate.reached.wait()
    raised = changed(15, 1, 3, lowered)
    with pytest.raises(errors.JournalFailed):
        await lowered
    with pytest.raises(errors.OldStream, match="open a new stream"):
        await raised
    assert one.low() == 10
    await one.stop()


class Plan(FaultPlan):
    """Keeps which logs each write was of; holds, refuses or stops at appends as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.takes = asyncio.Event()
        self.takes.set()
        self.taking = 0
        """Takes under way."""
        self.remaining: dict[bool, int] = {}
        """The number of writes that still begin, or end: behind these, none does."""

    async def before(self, operation: Operation) -> Outcome:
        await self._stop(begins=True)
        await self.open.wait()
        if operation.name == "append":
            self.writes.append([log for log, _ in operation.places])
            return await super().before(operation)
        if operation.name == "take":
            self.taking += 1
            await self.takes.wait()
            self.taking -= 1
        return Outcome.DONE

    async def after(self, operation: Operation) -> None:
        await self._stop(begins=False)

    async def _stop(self, *, begins: bool) -> None:
        if begins in self.remaining:
            if not self.remaining[begins]:
                await asyncio.Event().wait()
            self.remaining[begins] -= 1


class One(Running):
    def __init__(self, disk: MemoryDisk, graph_bytes: int = 64 << 10) -> None:
        self.plan = Plan()
        # How many share a write is not to depend on the machine.
        super().__init__(disk, self.plan, ShardSettings(graph_bytes=graph_bytes, round_seconds=float("inf")))

    async def start(self) -> One:
        await super().start()
        return self

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def register(self, name: str, *inputs: str) -> asyncio.Task[Spec]:
        return asyncio.create_task(self.shard.graph.register(Spec(name, inputs)))

    async def held_up(self, *names: str) -> list[asyncio.Task[Spec]]:
        self.plan.open.clear()
        tasks = [self.register(name) for name in names]
        await turns()
        return tasks


@pytest.fixture
async def one() -> AsyncIterator[One]:
    one_ = await One(MemoryDisk()).start()
    yield one_
    await one_.kill()


async def outcomes(tasks: Sequence[asyncio.Task[Spec]]) -> list[str]:
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result.name if isinstance(result, Spec) else getattr(result, "reason", repr(result)) for result in results]


async def test_one_that_fails_as_it_never_should_is_refused_alone(one: One, caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: Collection[str]) -> None:
        raise RuntimeError("a fault of this one alone")

    tasks = await one.held_up("first")
    tasks += [
        one.register("a"),
        asyncio.create_task(one.shard.graph.register(Spec("bad"), room=bad)),
        one.register("b", "a"),
    ]
    await turns()
    one.plan.open.set()
    assert await outcomes(tasks) == ["first", "a", "UNKNOWN", "b"]
    assert one.plan.writes == [[GRAPH], [GRAPH]]
    assert one.shard.topology.computations.keys() == {"first", "a", "b"}
    assert "a request failed in a way it never should" in caplog.text


async def test_one_that_is_refused_is_refused_alone(one: One) -> None:
    tasks = await one.held_up("first")
    tasks += [
        one.register("a"),
        one.register("a", "first"),  # for what waits in front of it
        one.register("a"),
        one.register("b", "c"),
        one.register("c", "b"),
        one.register("no name"),
        one.register("d", "a"),
    ]
    await turns()
    one.plan.open.set()
    conflict, cycle, invalid = "REGISTRATION_CONFLICT", "CYCLE", "INVALID_ARGUMENT"
    assert await outcomes(tasks) == ["first", "a", conflict, "a", "b", cycle, invalid, "d"]
    assert one.plan.writes == [[GRAPH], [GRAPH]]
    assert one.shard.topology.computations.keys() == {"first", "a", "b", "d"}


async def test_the_log_of_the_graph_stays_bounded() -> None:
    one = await One(MemoryDisk(), graph_bytes=500).start()
    for number in range(20):
        await one.register(f"c{number}")
    longest = 0
    for _ in range(100):
        await one.shard.graph.reset("c7")
        await one.shard.held.logs.settle()
        loaded = await one.shard.journal.load(GRAPH)
        longest = max(longest, sum(len(payload) for _, payload in loaded.records))
        assert replayed(loaded).topology == one.shard.topology
    whole = len(one.shard.topology.encode())
    assert longest <= max(500, 2 * whole) + 100, "the changes since then never outweigh a whole graph by much"
    await one.kill()


@pytest.mark.parametrize("begins", [True, False])
async def test_a_crash_at_any_write_keeps_what_was_acknowledged(begins: bool) -> None:
    """Each write in turn is the first that does not begin, or is not told of: of a change, of the whole graph in its place, of a take."""
    crashes = 0
    while True:
        disk = MemoryDisk()
        one = await One(disk, graph_bytes=60).start()
        one.plan.remaining[begins] = crashes
        answers: dict[str, Spec | None] = {}

        async def live(one: One, answers: dict[str, Spec | None]) -> None:
            for name in "abcdef":
                answers[name] = await one.register(name)
            [answers["b"]] = await one.shard.graph.reset("b")
            await one.shard.graph.drop("c", force=True)
            answers["c"] = None
            await one.register("g")
            await one.shard.held.logs.settle()

        task = asyncio.create_task(live(one, answers))
        await turns(300)
        done = task.done()
        task.cancel()
        await one.kill()
        disk.crash()
        again = await One(disk, graph_bytes=60).start()
        for name, spec in answers.items():
            spec_now = again.shard.topology.computations.get(name)
            assert spec_now == spec or name in "bc", f"{name} behind write {crashes}"
        if (b := answers.get("b")) is not None and b.incarnation == 2:
            assert again.shard.topology.get("b").incarnation == 2
        if "c" in answers and answers["c"] is None:
            assert "c" in again.shard.topology.dropped
        assert (await again.register("new")).name == "new"
        await again.kill()
        if done:
            break
        crashes += 1
    assert crashes > 12


async def test_a_journal_of_whole_graphs_is_gone_on_with(one: One) -> None:
    """Release 0.1 wrote the graph whole."""
    await one.kill()
    graphs = [Topology().register(Spec("a"))]
    graphs.append(graphs[-1].register(Spec("b", ("a",))))
    graphs.append(graphs[-1].reset("a")[0])
    disk = MemoryDisk()
    journal = MemoryJournal(disk)
    await journal.open()
    for position, graph in enumerate(graphs, 1):
        await journal.append([Entry(GRAPH, position, graph.encode(), strong=True)])
    again = await One(disk).start()
    assert again.shard.topology == graphs[-1]
    await again.register("c", "b")
    loaded = await again.shard.journal.load(GRAPH)
    assert len(loaded.records[-1][1]) < len(loaded.records[0][1]) + 10, "from here on, what changes"
    await again.kill()
    assert (await One(disk).start()).shard.topology == graphs[-1].register(Spec("c", ("b",)))
