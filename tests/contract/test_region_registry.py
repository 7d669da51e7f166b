"""The global authority over each store: durable before visible, one writer, everything known again after a restart.

`region_store` is the journal of a build that wrote JSON, and what that build had in memory.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lowwater import errors
from lowwater_authority.core.times import MAX
from lowwater_authority.journal import Entry, JournalCorrupt, JournalFenced, JournalVersion
from lowwater_regions.change import FORMAT, Change
from lowwater_regions.json_records import encode
from lowwater_regions.records import references_pb2 as pb
from lowwater_regions.reference import LOCAL, Position, Reference, Replica, Sink, Tombstone
from lowwater_regions.references import Agent, Caller, Progress, References
from lowwater_regions.registry import LOG, Registry
from tests.contract.journal_stores import MemorySubject, SharedSubject, SqliteSubject, StoreSubject
from tests.kit.clock import Clock
from tests.kit.faults import FaultPlan, Outcome
from tests.kit.memory_journal import MemoryJournal
from tests.kit.times import SECOND

HOURLY = "hourly:clicks"
WRITTEN = Path(__file__).with_name("region_store")


class Deployment:
    def __init__(self, store: StoreSubject) -> None:
        self.store = store
        self.clock = Clock()
        self.turn = 0
        self.snapshot_records = 1000
        self.opened: list[Registry] = []

    async def start(self, journal: MemoryJournal | None = None) -> Registry:
        registry = Registry(
            self.store.make() if journal is None else journal,
            clock=lambda: 7,
            monotonic=lambda: int(self.clock() * SECOND),
            token=lambda: f"token-{len(self.opened)}",
            suspect_after=10 * SECOND,
            lately=600 * SECOND,
            snapshot_records=self.snapshot_records,
        )
        self.opened.append(registry)
        await registry.open()
        return registry

    async def close(self) -> None:
        for registry in self.opened:
            await registry.close()

    def caller(self, registry: Registry, region: str = "A", seen: int = 0) -> Caller:
        self.turn += 1
        return Caller(region, Agent(region, 1, "n"), self.turn, registry.references.store.token, seen)

    async def confirm(self, registry: Registry, region: str = "A", number: int = 0, seen: int = 0) -> None:
        caller, numbers = self.caller(registry, region, seen), {HOURLY: number} if number else {}
        await registry.change(lambda core: core.confirm(caller, numbers, registry.monotonic(), registry.position))

    async def register(self, registry: Registry) -> None:
        caller = self.caller(registry)
        reference = Reference("hourly", ("clicks",), ("A", "B"), LOCAL, "A", sinks=(Sink("lake", fences=True),))
        await registry.change(lambda core: core.register(caller, reference, registry.monotonic(), registry.position))

    async def report(self, registry: Registry, low: int, number: int = 1) -> Change:
        caller = self.caller(registry)
        progress = [Progress(HOURLY, number, 1, low)]
        return await registry.change(
            lambda core: core.progress(caller, progress, {}, registry.monotonic(), registry.position)
        )


@pytest.fixture
async def deployment(store: StoreSubject) -> AsyncIterator[Deployment]:
    subject = Deployment(store)
    yield subject
    await subject.close()


@pytest.fixture
async def shared_deployment(shared: SharedSubject) -> AsyncIterator[Deployment]:
    subject = Deployment(shared)
    yield subject
    await subject.close()


@pytest.fixture
async def memory() -> AsyncIterator[Deployment]:
    subject = Deployment(MemorySubject())
    yield subject
    await subject.close()


def journal_of(deployment: Deployment, plan: FaultPlan) -> MemoryJournal:
    assert isinstance(deployment.store, MemorySubject)
    return MemoryJournal(deployment.store.disk, shared=True, faults=plan)


async def ready(deployment: Deployment, journal: MemoryJournal | None = None) -> Registry:
    registry = await deployment.start(journal)
    await deployment.confirm(registry)
    await deployment.register(registry)
    await deployment.report(registry, 40)
    return registry


async def test_a_restart_knows_everything_and_confirms_anew(deployment: Deployment) -> None:
    registry = await ready(deployment)
    before, position = registry.references.snapshot(), registry.position
    await registry.close()
    deployment.store.crash()
    again = await deployment.start()
    assert (again.references.snapshot(), again.position) == (before, position)
    with pytest.raises(errors.Unconfirmed):
        await deployment.report(again, 50)
    await deployment.confirm(again, number=1, seen=position)
    await deployment.report(again, 50)
    assert again.references.get(HOURLY).published == 50


async def test_two_over_one_store_fence_each_other(shared_deployment: Deployment) -> None:
    first = await ready(shared_deployment)
    second = await shared_deployment.start()
    for refused in (
        shared_deployment.report(first, 50),
        shared_deployment.confirm(first, number=1),
        first.change(lambda _: Change()),
    ):
        with pytest.raises((errors.Unavailable, errors.ShuttingDown)):
            await refused
    assert first.ended is not None
    assert isinstance(first.ended.result(), JournalFenced)
    await shared_deployment.confirm(second, number=1)
    await shared_deployment.report(second, 60)
    assert second.references.get(HOURLY).published == 60


async def test_a_refused_write_has_changed_nothing(memory: Deployment) -> None:
    plan = FaultPlan()
    registry = await ready(memory, journal_of(memory, plan))
    before = registry.references.snapshot()
    plan.then(Outcome.FAILED)
    with pytest.raises(errors.JournalFailed):
        await memory.report(registry, 50)
    assert registry.references.snapshot() == before
    await memory.report(registry, 60)
    assert registry.references.get(HOURLY).published == 60


async def test_nothing_is_shown_before_it_is_durable(memory: Deployment) -> None:
    class Slow(FaultPlan):
        def __init__(self) -> None:
            super().__init__()
            self.go_on = asyncio.Event()
            self.go_on.set()
            self.written = asyncio.Event()

        async def after(self, operation: object) -> None:
            self.written.set()
            await self.go_on.wait()

    plan = Slow()
    registry = await ready(memory, journal_of(memory, plan))
    plan.go_on.clear()
    plan.written.clear()
    asking = asyncio.create_task(memory.report(registry, 50))
    await plan.written.wait()
    assert registry.references.get(HOURLY).published == 40
    asking.cancel()  # whoever asked has gone; what was begun is finished
    with pytest.raises(asyncio.CancelledError):
        await asking
    plan.go_on.set()
    await memory.report(registry, 60)
    assert registry.references.get(HOURLY).published == 60
    assert (await registry.journal.load(LOG)).last == registry.position


async def test_a_store_that_lost_records_gets_them_back(memory: Deployment) -> None:
    registry = await ready(memory)
    memory.store.forget(LOG, registry.position - 1)
    await memory.report(registry, 50)
    before = registry.references.snapshot()
    await registry.close()
    again = await memory.start()
    assert again.references.snapshot() == before


async def test_what_an_operator_allows_is_adopted_once(memory: Deployment) -> None:
    registry = await ready(memory)
    await memory.confirm(registry, "B")
    await registry.change(lambda core: core.allow_automatic(HOURLY, allowed=True))
    who = memory.caller(registry, "B")
    copy = Replica("B", 30, MAX, (Position("c", "clicks", 0, 3),), 1)
    await registry.change(lambda core: core.progress(who, [], {HOURLY: copy}, registry.monotonic(), registry.position))
    assert registry.references.adoptions(registry.monotonic()) == []
    memory.clock.now += 601
    await memory.confirm(registry, "B")
    assert registry.references.adoptions(registry.monotonic()) == [(HOURLY, "B")]
    for _ in range(2):
        await registry.adopt(HOURLY, "B", "automatic")
    assert (registry.references.get(HOURLY).owner, registry.references.get(HOURLY).number) == ("B", 2)


def test_a_process_that_was_asleep_suspects_nobody() -> None:
    core = References(10 * SECOND, 0, 0)
    for second in range(5):
        core.watched(second * SECOND)
    core.watched(60 * SECOND)
    assert not core.is_suspect("A", 60 * SECOND)
    for second in range(61, 71):
        core.watched(second * SECOND)
    assert core.is_suspect("A", 70 * SECOND)


async def test_a_store_of_json_records_is_read_and_becomes_messages(tmp_path: Path) -> None:
    written = json.loads((WRITTEN / "expected.json").read_text())
    store = SqliteSubject(tmp_path)
    shutil.copy(WRITTEN / "journal.sqlite", store.path)
    deployment = Deployment(store)
    registry = await deployment.start()
    core, damaged = registry.references, written["damaged"]
    assert {name: json.loads(encode(reference)) for name, reference in core.references.items()} == {
        name: record for name, record in written["put"].items() if name not in damaged
    }
    assert core.forgotten == {name: Tombstone(*fields) for name, fields in written["forget"].items()}
    assert json.loads(json.dumps(core.store._asdict())) == written["store"]
    assert list(core.damaged) == damaged
    before, position = core.snapshot(), registry.position
    await registry.close()
    again = await deployment.start()
    loaded = await again.journal.load(LOG)
    assert (loaded.snapshot, loaded.records, again.position) == (before, [], position)
    assert again.references.snapshot() == before
    await again.close()


@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        (b'{"format":2}', JournalVersion, "position 4 has format 2.*upgrade lowwater-regions"),
        (pb.Change(format=FORMAT + 1).SerializeToString(), JournalVersion, "upgrade lowwater-regions"),
        (b'{"put":{}}', JournalCorrupt, "position 4 .*restored copy"),
        (b"\xff", JournalCorrupt, "position 4 .*restored copy"),
    ],
)
async def test_a_bad_record_ends_a_start(memory: Deployment, record: bytes, error: type[Exception], words: str) -> None:
    registry = await ready(memory)
    await registry.journal.append([Entry(LOG, registry.position + 1, record, strong=True)])
    await registry.close()
    with pytest.raises(error, match=words):
        await memory.start()


async def test_a_snapshot_takes_the_place_of_the_records(deployment: Deployment) -> None:
    deployment.snapshot_records = 3
    registry = await ready(deployment)
    for low in range(50, 60):
        await deployment.report(registry, low)
    loaded = await registry.journal.load(LOG)
    assert loaded.snapshot is not None
    assert len(loaded.records) <= 3
    before = registry.references.snapshot()
    await registry.close()
    again = await deployment.start()
    assert again.references.snapshot() == before
    assert again.position == registry.position


async def test_a_zombie_confirms_nobody_by_an_older_record(shared_deployment: Deployment) -> None:
    first = await ready(shared_deployment)
    second = await shared_deployment.start()
    await shared_deployment.confirm(second, "B")
    shared_deployment.clock.now += 10
    await shared_deployment.confirm(second, "B")
    await second.adopt(HOURLY, "B", "ops")
    with pytest.raises(errors.Unavailable):
        await shared_deployment.confirm(first, "A", number=1)
