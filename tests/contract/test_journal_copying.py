"""A copy of a journal: all of it or an unfinished one, whatever is cut off, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest

from lowwater_authority.journal import GRAPH, Entry, Journal, JournalReplaced, LoadedLog, SqliteJournal
from lowwater_authority.journal.copy import (
    BATCH_BYTES,
    Copy,
    CopyRefused,
    LogFacts,
    Progress,
    TargetNotEmpty,
    is_unfinished,
    survey,
)
from lowwater_authority.journal.redis import RedisJournal
from tests.contract.journal_stores import (
    SUBJECTS,
    RedisSubject,
    SharedSubject,
    SqliteSubject,
    StoreSubject,
    entry,
    fenced,
)
from tests.kit.faults import FaultPlan, Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal

TOO_MANY = 1000
"""Records of one log; more than one append takes."""


async def fill(journal: Journal) -> None:
    """A graph with records behind its snapshot, and logs with a snapshot, with records, and with both."""
    for log in ("records", "snapshot", "both"):
        await journal.take(log)
        await journal.take(log)
    await journal.append([entry(GRAPH, 1), entry(GRAPH, 2), entry("both", 1), entry("snapshot", 1)])
    await journal.append([entry("records", position) for position in range(1, TOO_MANY + 3)])
    await journal.append([entry("both", 2, b"x" * BATCH_BYTES), entry("both", 3, b"y")])
    for log, position in (("snapshot", 1), ("both", 1), (GRAPH, 2)):
        await journal.snapshot(log, position, f"snapshot of {log}".encode() * 40_000)
    await journal.append([entry(GRAPH, 3)])


async def contents(journal: Journal) -> dict[str, LoadedLog]:
    return {log: await journal.load(log) for log in await journal.logs()}


def newest(graph: LoadedLog) -> bytes:
    """The graph that a log ends with: here each record is all of it."""
    return graph.records[-1][1] if graph.records else graph.snapshot or b""


def copied(logs: dict[str, LoadedLog]) -> dict[str, LoadedLog]:
    """Return what a copy of these logs holds: the graph's log has only its newest state."""
    return logs | {GRAPH: LoadedLog(logs[GRAPH].last, newest(logs[GRAPH]), [])}


def sibling(store: StoreSubject, directory: Path, token: str) -> Journal:
    if isinstance(store, RedisSubject):
        return RedisJournal(store.server.url, namespace="target", server_token=token)
    if isinstance(store, SqliteSubject):
        return SqliteJournal(directory / "target.db", server_token=token)
    disk = MemoryDisk()
    disk.server_token = token
    return MemoryJournal(disk)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_store_of_another_deployment_than_wanted_is_not_opened(tmp_path: Path, kind: str) -> None:
    store = SUBJECTS[kind](tmp_path)
    try:
        first = sibling(store, tmp_path, "mine")
        await first.open()
        await first.take("a")
        await first.append([entry("a", 1)])
        await first.close()
        other = sibling(store, tmp_path, "another")
        with pytest.raises(JournalReplaced, match="belongs to the deployment mine now, this process to another"):
            await other.open()
        await other.close()
        anyone = sibling(store, tmp_path, "")
        await anyone.open()
        assert (anyone.server_token, (await anyone.load("a")).last) == ("mine", 1)
        await anyone.close()
    finally:
        await store.close()


@pytest.fixture
async def old() -> AsyncIterator[Journal]:
    journal = MemoryJournal(MemoryDisk(), shared=True)
    await journal.open()
    await fill(journal)
    yield journal
    await journal.close()


async def reopened(disk: MemoryDisk, token: str, faults: FaultPlan | None = None) -> MemoryJournal:
    disk.server_token = token
    journal = MemoryJournal(disk, faults=faults)
    await journal.open()
    return journal


@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.parametrize("direction", ["from", "to"])
async def test_everything_goes_along_and_every_epoch_is_greater(tmp_path: Path, kind: str, direction: str) -> None:
    store = SUBJECTS[kind](tmp_path)
    try:
        memory = MemoryJournal(MemoryDisk(), shared=True)
        source = await store.connect() if direction == "from" else memory
        if direction == "to":
            await source.open()
        await fill(source)
        facts = await survey(source, fence=True)
        token = source.server_token
        target = sibling(store, tmp_path, token) if direction == "to" else await reopened(MemoryDisk(), token)
        if direction == "to":
            await target.open()
        steps: list[Progress] = []
        await Copy(source, facts, target, progress=steps.append, whole=newest).run()
        assert await contents(target) == copied(await contents(source))
        assert target.server_token == token
        logs = [fact for fact in facts if fact.log != GRAPH]
        for log in logs:
            newer = await target.take(log.log)
            assert newer.epoch > log.owner.epoch >= 1
        total = sum(fact.bytes for fact in facts)
        assert steps[-1] == Progress(3, 3, total, total)
        assert [step.bytes for step in steps] == sorted(step.bytes for step in steps)
        await target.close()
        await memory.close()
    finally:
        await store.close()


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LOST, Outcome.WRITTEN])
async def test_a_copy_that_is_cut_off_anywhere_is_continued(old: Journal, outcome: Outcome) -> None:
    facts = await survey(old, fence=True)
    whole = copied(await contents(old))
    writes = 0
    while True:
        disk = MemoryDisk()
        plan = FaultPlan().then(*[Outcome.DONE] * writes, outcome)
        target = await reopened(disk, old.server_token, plan)
        refused = ""
        try:
            await Copy(old, facts, target, whole=newest).run()
        except CopyRefused as error:
            refused = str(error)
        present = await contents(target)
        if not refused:
            assert present == whole
            break
        assert ("run this command again" in refused) == (outcome is not Outcome.FAILED)
        # What a server would find: everything, or no graph.
        assert present == whole or GRAPH not in present
        again = await reopened(disk, old.server_token)
        await Copy(old, facts, again, whole=newest).run()
        assert await contents(again) == whole
        writes += 1
    # Three logs are taken, two of them restored, four appends, the graph.
    assert writes == 3 + 2 + 4 + 1


async def half(old: Journal, facts: Sequence[LogFacts], logs: int) -> MemoryDisk:
    disk = MemoryDisk()

    def stop(so_far: Progress) -> None:
        if so_far.logs == logs and so_far.bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await Copy(old, facts, await reopened(disk, old.server_token), progress=stop, whole=newest).run()
    return disk


async def test_an_unfinished_copy_is_known_as_one(old: Journal) -> None:
    facts = await survey(old, fence=True)
    disk = await half(old, facts, 1)
    unfinished = await reopened(disk, old.server_token)
    partial_facts = await survey(unfinished, fence=True)
    assert is_unfinished(partial_facts)
    assert not is_unfinished(facts)
    assert not is_unfinished([])
    with pytest.raises(CopyRefused, match="is itself an unfinished copy"):
        await Copy(unfinished, partial_facts, await reopened(MemoryDisk(), old.server_token), whole=newest).run()


async def test_an_unfinished_copy_of_an_older_state_is_refused(old: Journal) -> None:
    disk = await half(old, await survey(old, fence=True), 1)
    await old.snapshot("both", 3, b"newer")
    before = await contents(await reopened(disk, old.server_token))
    facts = await survey(old, fence=True)
    with pytest.raises(TargetNotEmpty, match="an older state: the source was written to since then, and log 'both'"):
        await Copy(old, facts, await reopened(disk, old.server_token), whole=newest).run()
    assert await contents(await reopened(disk, old.server_token)) == before


async def test_an_unfinished_copy_with_more_logs_is_refused(old: Journal) -> None:
    facts = await survey(old, fence=True)
    target = await reopened(MemoryDisk(), old.server_token)
    await target.take("strange")
    await target.append([entry("strange", 1)])
    with pytest.raises(TargetNotEmpty, match="its log 'strange' is not in"):
        await Copy(old, facts, target, whole=newest).run()
    assert await target.logs() == ["strange"]


@pytest.mark.parametrize("token", ["another", ""])
async def test_a_target_that_is_not_empty_is_refused(old: Journal, token: str) -> None:
    facts = await survey(old, fence=True)
    target = await reopened(MemoryDisk(), token or old.server_token)
    await target.append([entry(GRAPH, 1)])
    before = await contents(target)
    holder = "the deployment another" if token else "this deployment in another state"
    with pytest.raises(TargetNotEmpty, match=f"not empty: it holds 1 log of {holder}"):
        await Copy(old, facts, target, whole=newest).run()
    assert await contents(target) == before


@pytest.mark.parametrize("log", [GRAPH, "both"])
async def test_a_source_that_is_written_to_meanwhile_is_refused(shared: SharedSubject, log: str) -> None:
    source, shard = await shared.connect(), await shared.connect()
    await fill(source)
    facts = await survey(source, fence=True)
    end = next(fact.last for fact in facts if fact.log == log)
    if log != GRAPH:
        await shard.take(log)
    await shard.load(log)
    await shard.append([entry(log, end + 1)])
    target = await reopened(MemoryDisk(), source.server_token)
    with pytest.raises(CopyRefused, match="the source is being served, it has changed meanwhile"):
        await Copy(source, facts, target, whole=newest).run()
    assert GRAPH not in await target.logs()


async def test_the_survey_fences_whoever_wrote_before(shared: SharedSubject) -> None:
    frozen, source = await shared.open("a"), await shared.connect()
    await frozen.append([entry("a", 1)])
    before = (await source.owners(["a"]))["a"]
    (looked,) = await survey(source, fence=False)
    assert looked.owner == before
    (facts,) = await survey(source, fence=True)
    assert facts == LogFacts("a", 1, 0, 1, 3, (await source.owners(["a"]))["a"])
    assert facts.owner.epoch > before.epoch
    assert await fenced(frozen.append([entry("a", 2)])) == [{"a": (before.epoch, facts.owner.epoch)}]


class Forgetful(MemoryJournal):
    async def append(self, entries: Sequence[Entry], *, beside: Iterable[str] = ()) -> None:
        await super().append([Entry(e.log, e.position, e.payload + b"!", e.strong) for e in entries])


async def test_a_target_that_returns_something_else_is_refused(old: Journal) -> None:
    facts = await survey(old, fence=True)
    disk = MemoryDisk()
    disk.server_token = old.server_token
    target = Forgetful(disk)
    await target.open()
    with pytest.raises(CopyRefused, match="log 'both' comes back from the target other than it was written"):
        await Copy(old, facts, target, whole=newest).run()
    assert GRAPH not in disk.logs
