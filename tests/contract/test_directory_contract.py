"""The contract of ``Directory``, promise by promise, over every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lowwater_authority.cluster.directory import Directory
from lowwater_authority.cluster.membership import Member, View
from lowwater_authority.cluster.redis_directory import RedisDirectory
from lowwater_authority.journal.contract import JournalClosed, JournalCorrupt, JournalFailed, JournalUnknown
from tests.contract.journal_stores import repeated
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.memory_directory import MemoryDirectory, MemoryMembers
from tests.kit.times import SECOND

DEAD_AFTER = 600 * SECOND
A, B, C = (Member(f"{letter}1", f"{letter}:1") for letter in "abc")


class DirectorySubject:
    """A store of a deployment's view, and the directories that a test opened over it."""

    def __init__(self) -> None:
        self._opened: list[Directory] = []

    async def open(self) -> Directory:
        directory = self.make()
        await directory.open()
        self._opened.append(directory)
        return directory

    async def close(self) -> None:
        for directory in self._opened:
            await directory.close()

    def make(self) -> Directory:
        raise NotImplementedError

    def turn_clock(self, micros: int) -> None: ...
    def put_back(self, view: View) -> None: ...  # a fail-over brings back an older view
    def go_away(self) -> None: ...
    def come_back(self) -> None: ...


class MemoryDirectorySubject(DirectorySubject):
    def __init__(self, _: Path) -> None:
        super().__init__()
        self.now = 1_000_000 * SECOND
        self.members = MemoryMembers(lambda: self.now, dead_after=DEAD_AFTER)

    def make(self) -> MemoryDirectory:
        return MemoryDirectory(self.members)

    def turn_clock(self, micros: int) -> None:
        self.now += micros

    def put_back(self, view: View) -> None:
        while self.members.view != view:
            self.members.lose()

    def go_away(self) -> None:
        self.members.away = True

    def come_back(self) -> None:
        self.members.away = False


class RedisDirectorySubject(DirectorySubject):
    """RedisDirectory over a redis-server. Its clock is not ours to turn: what is stored goes the other way."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.server = RedisServer(directory / "redis", *DURABLE).start()

    async def close(self) -> None:
        with self.server:
            await super().close()

    def make(self, *, timeout: float = 5.0, namespace: str = "default") -> RedisDirectory:
        return RedisDirectory(self.server.url, timeout=timeout, namespace=namespace, dead_after=DEAD_AFTER)

    def turn_clock(self, micros: int) -> None:
        for key, fields in (("{lowwater:default}:beats", None), ("{lowwater:default}:view", [b"since"])):
            stored = self.server.execute("HGETALL", key)
            for field in fields or stored:
                self.server.execute("HSET", key, field, int(stored[field]) - micros)

    def put_back(self, view: View) -> None:
        self.server.execute("HSET", "{lowwater:default}:view", "version", view.version, "view", view.encode())

    def go_away(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()


SUBJECTS = {"memory": MemoryDirectorySubject, "redis": RedisDirectorySubject}
"""Every directory, by name, made in a folder of its own."""


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisDirectorySubject]:
    store = RedisDirectorySubject(tmp_path)
    yield store
    await store.close()


@pytest.fixture(params=SUBJECTS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DirectorySubject]:
    subject = SUBJECTS[request.param](tmp_path)
    yield subject
    await subject.close()


async def join(directory: Directory, member: Member) -> View:
    view, beats = await directory.beat(member.id)
    joined = view.joined(member).dated(beats.now)
    assert await directory.propose(joined, over=view.version)
    return joined


async def test_a_view_replaces_only_the_one_it_was_made_of(store: DirectorySubject) -> None:
    a, b = await store.open(), await store.open()
    first = await join(a, A)
    assert not await b.propose(View().joined(B).dated(first.version + 1), over=0)
    assert not await b.propose(first.joined(B), over=first.version + 1)
    second = await join(b, B)
    assert not await a.propose(first.joined(C).dated(second.version + 1), over=first.version)
    assert (await a.beat("a1"))[0] == second
    assert second.members == (A, B)


async def test_an_older_view_may_come_back(store: DirectorySubject) -> None:
    directory = await store.open()
    first = await join(directory, A)
    second = await join(directory, B)
    store.put_back(first)
    view, _ = await directory.beat("a1")
    assert view == first
    assert not await directory.propose(second.joined(C), over=second.version)
    assert await directory.propose(second.joined(C), over=first.version)


async def test_a_proposal_forgets_who_is_not_in_it(store: DirectorySubject) -> None:
    directory = await store.open()
    view = await join(directory, A)
    await directory.beat("b1")
    await directory.beat("stranger")
    assert await directory.propose(view.joined(B).joined(C), over=view.version)
    store.turn_clock(SECOND)
    _, beats = await directory.beat("a1")
    assert beats.last.keys() == {"a1", "b1", "c1"}
    # Nobody ever heard of c1: it counts from the proposal on.
    assert SECOND <= beats.now - beats.last["c1"] <= beats.now - beats.last["b1"]


async def test_a_gap_is_noted(store: DirectorySubject) -> None:
    a, b = await store.open(), await store.open()
    await a.beat("a1")
    _, before = await b.beat("b1")
    store.turn_clock(DEAD_AFTER // 2 + SECOND)
    _, beats = await a.beat("a1")
    assert beats.since == beats.now
    assert beats.now - beats.last["b1"] > DEAD_AFTER // 2
    _, later = await b.beat("b1")
    assert later.since == beats.since > before.since


async def test_a_clock_that_goes_back(store: DirectorySubject) -> None:
    a, b = await store.open(), await store.open()
    await b.beat("b1")
    await a.beat("a1")
    store.turn_clock(-100 * DEAD_AFTER)
    _, beats = await a.beat("a1")
    assert beats.since == beats.now
    store.turn_clock(10 * SECOND)
    _, later = await a.beat("a1")
    assert 10 * SECOND <= later.now - later.last["b1"] < DEAD_AFTER // 2


async def test_open_and_closed(store: DirectorySubject) -> None:
    directory = store.make()
    with pytest.raises(JournalClosed):
        await directory.beat("a1")
    await directory.open()
    view = await join(directory, A)
    await directory.close()
    await directory.close()
    with pytest.raises(JournalClosed):
        await directory.beat("a1")
    with pytest.raises(JournalClosed):
        await directory.propose(view.joined(B), over=view.version)
    assert (await (await store.open()).beat("b1"))[0] == view


async def test_a_store_that_is_away_and_comes_back(store: DirectorySubject) -> None:
    directory = await store.open()
    view = await join(directory, A)
    store.go_away()
    with pytest.raises((JournalFailed, JournalUnknown)):
        await directory.beat("a1")
    with pytest.raises(JournalFailed):
        await directory.propose(view.joined(B), over=view.version)
    late = store.make()
    with pytest.raises(JournalFailed):
        await late.open()
    store.come_back()
    assert (await directory.beat("a1"))[0] == view
    await late.open()
    assert (await late.beat("b1"))[0] == view
    await late.close()


async def test_a_cancelled_call_leaves_the_directory_whole(store: DirectorySubject) -> None:
    directory = await store.open()
    view = await join(directory, A)
    calls: list[asyncio.Task[object]] = [asyncio.create_task(directory.beat("a1")) for _ in range(3)]
    calls.append(asyncio.create_task(directory.propose(view.joined(B), over=view.version)))
    begun = asyncio.Event()
    asyncio.get_running_loop().call_soon(begun.set)
    await begun.wait()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (await directory.beat("a1"))[0] in (view, view.joined(B))


async def test_namespaces_do_not_see_each_other(redis: RedisDirectorySubject) -> None:
    mine, other = await redis.open(), redis.make(namespace="other")
    await other.open()
    await join(mine, A)
    view, beats = await other.beat("b1")
    await other.close()
    assert (view, [*beats.last]) == (View(), ["b1"])
    with pytest.raises(ValueError, match="no braces"):
        redis.make(namespace="{x}")


async def test_a_hanging_redis_is_given_up(redis: RedisDirectorySubject) -> None:
    hasty = redis.make(timeout=0.2)
    view = await join(await redis.open(), A)
    await repeated(hasty.open)
    redis.server.pause()
    with pytest.raises(JournalUnknown, match=r"within 0\.2 s; the next beat tells"):
        await hasty.propose(view.joined(B), over=view.version)
    redis.server.resume()
    # What hung in the pipe comes first.
    assert (await repeated(lambda: hasty.beat("a1")))[0] in (view, view.joined(B))
    await hasty.close()


async def test_a_full_redis_refuses(redis: RedisDirectorySubject) -> None:
    directory = await redis.open()
    view = await join(directory, A)
    redis.server.execute("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(JournalFailed, match="nothing was done"):
        await directory.beat("a1")
    with pytest.raises(JournalFailed, match="nothing was done"):
        await directory.propose(view.joined(B), over=view.version)
    redis.server.execute("CONFIG", "SET", "maxmemory", "0")
    assert (await directory.beat("a1"))[0] == view


@pytest.mark.parametrize(("field", "value"), [("view", b"\xff\xff"), ("view", b""), ("version", b"7")])
async def test_a_damaged_view_is_refused_till_deleted(redis: RedisDirectorySubject, field: str, value: bytes) -> None:
    directory = await redis.open()
    await join(directory, A)
    key = "{lowwater:default}:view"
    redis.server.execute("HSET", key, field, value)
    with pytest.raises(JournalCorrupt, match="delete it"):
        await directory.beat("a1")
    redis.server.execute("DEL", key)
    view, beats = await directory.beat("a1")
    assert view == View()
    assert beats.since == beats.now


async def test_a_script_cache_that_was_emptied(redis: RedisDirectorySubject) -> None:
    directory = await redis.open()
    view = await join(directory, A)
    redis.server.execute("SCRIPT", "FLUSH")
    assert (await directory.beat("a1"))[0] == view
    redis.server.execute("SCRIPT", "FLUSH")
    assert await directory.propose(view.joined(B), over=view.version)
