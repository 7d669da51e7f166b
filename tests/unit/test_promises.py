"""The file of promises: its entries, every mistake in one with the place and the fix, and who learns of them when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from lowwater.v1 import topology_pb2, topology_pb2_grpc, types_pb2, watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.authority import Authority
from lowwater_authority.files.table import BadFile
from lowwater_authority.promises import MOST_CACHED, MOST_ENTRIES, MOST_PATTERNS, NOTHING, Promises
from tests.kit.memory_journal import MemoryDisk
from tests.kit.served import authority_served
from tests.kit.times import HOUR
from tests.unit.test_shard import Running

GOOD = """
[[promise]]
computations = "prod/billing-*"
late = "15m"
owner = "Ana Č. <ana@example.org>"
team = "billing"
runbook = "https://wiki.example.org/{computation}#late"
logs = "http://[::1]:5601/?q={computation}&worker={worker}&host={host}"

[[promise]]
computations = "hourly"
team = "reports"

[[promise]]
computations = "exempt"

[[promise]]
computations = "[a-h]*"
late = "2 h"
"""


def promises(text: str = GOOD) -> Promises:
    return Promises.parse(text.encode(), "promises.toml")


def entry(**fields: str) -> str:
    lines = {"computations": "'*'", **fields}
    return "[[promise]]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())


def test_the_first_entry_that_fits_counts() -> None:
    read = promises()
    billing = read.of("prod/billing-eu")
    assert (billing.late_micros, billing.owner, billing.team) == (900_000_000, "Ana Č. <ana@example.org>", "billing")
    assert billing.runbook == "https://wiki.example.org/prod%2Fbilling-eu#late"
    assert billing.logs == "http://[::1]:5601/?q=prod%2Fbilling-eu&worker={worker}&host={host}"
    assert read.of("hourly") == types_pb2.Promise(team="reports"), "not what the last entry says of it"
    assert read.of("exempt") == NOTHING
    assert read.of("daily").late_micros == 2 * HOUR
    for nobody in ("x/billing-eu", "prod/billing", "Hourly", "zebra", ""):
        assert read.of(nobody) is NOTHING, nobody


def test_what_is_remembered_of_names_is_bounded() -> None:
    read = promises(entry(team="'all'"))
    for number in range(MOST_CACHED + 10):
        assert read.of(f"c{number}").team == "all"
    assert len(read._cache) <= MOST_CACHED


BAD = {
    "no TOML": ("[[promise", "promises.toml is not TOML", "correct it there"),
    "no computations": ("[[promise]]\nlate = '1m'", "promise[1].computations is missing", "a shell pattern such as"),
    "misspelt": (entry() + entry(run_book="''"), "promise[2].run_book is unknown", "did you mean runbook?"),
    "open bracket": (entry(computations="'a[b'"), "promise[1].computations is 'a[b'", "[abc]"),
    "late at once": (entry(late="'999ms'"), "promise[1].late is '999ms'", "from 1 s to 366 days"),
    "owner of two lines": (entry(owner='"a\\nb"'), "promise[1].owner is 'a\\nb'", "printable"),
    "script": (entry(runbook="'javascript:alert(1)'"), "promise[1].runbook is 'javascript:alert(1)'", "http or https"),
    "no host": (entry(runbook="'https:///x'"), "promise[1].runbook is 'https:///x', which has no host", "http or"),
    "a password": (entry(logs="'https://me:hush@a/x'"), "promise[1].logs has a user or a password in it", "leave them"),
    "a host to choose": (entry(logs="'https://{host}.a.org/'"), "promise[1].logs has braces in its host", "behind it"),
    "place": (entry(logs="'https://a/{pod}'"), "promise[1].logs has {pod}", "{computation} and {worker} and {host}"),
    "too many": (entry(computations="'a'") * (MOST_ENTRIES + 1), f"promise has {MOST_ENTRIES + 1} entries", "at most"),
    "too many patterns": (entry() * (MOST_PATTERNS + 1), f"promise has {MOST_PATTERNS + 1} patterns", "names in full"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_refused_with_its_place_and_the_fix(name: str) -> None:
    text, problem, fix = BAD[name]
    with pytest.raises(BadFile) as refused:
        promises(text)
    message = str(refused.value)
    assert message.startswith("promises.toml")
    assert problem in message
    assert fix in message.partition(problem)[2]
    assert "hush" not in message
    assert len(message) < 600, "it goes into a line of the log"


class Served:
    """An authority with promises, and what its readers hear."""

    def __init__(self, authority: Authority, channel: grpc.aio.Channel) -> None:
        self.authority = authority
        self._running = Running(MemoryDisk())
        self._running.shard = authority.shard
        self.graph: Any = topology_pb2_grpc.TopologyServiceStub(channel)
        self.watermarks: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)

    async def register(self, *names: str) -> None:
        for name in names:
            await self.graph.Register(topology_pb2.RegisterRequest(name=name))

    async def reach(self, name: str, hour: int) -> None:
        assert await self._running.report(await self._running.claim(name), hour, name=name) == []

    async def got(self, *names: str) -> dict[str, types_pb2.Watermark]:
        answer = await self.watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest(computations=names))
        return {watermark.computation: watermark for watermark in answer.watermarks}


class Heard:
    def __init__(self, served: Served, *names: str) -> None:
        self.stream = served.watermarks.Watch(watermarks_pb2.WatchRequest(computations=names))

    async def next(self) -> dict[str, types_pb2.Watermark]:
        """The watermarks of the next message that has some."""
        while True:
            views = {watermark.computation: watermark for watermark in (await self.stream.read()).watermarks}
            if views:
                return views

    async def reached(self, name: str, hour: int) -> list[types_pb2.Watermark]:
        """All that is told of a computation until it is at an hour."""
        marks: list[types_pb2.Watermark] = []
        while not marks or marks[-1].low_micros != hour * HOUR:
            marks += [view for view in (await self.next()).values() if view.computation == name]
        return marks


@asynccontextmanager
async def serving(text: str | None = GOOD) -> AsyncIterator[Served]:
    async with authority_served() as (here, place), grpc.aio.insecure_channel(place) as channel, asyncio.timeout(30):
        if text is not None:
            here.promise(promises(text))
        yield Served(here, channel)


async def test_answers_have_it_and_a_stream_only_what_is_new() -> None:
    async with serving() as served:
        await served.register("hourly", "zebra")
        views = await served.got()
        assert views["hourly"].promise == types_pb2.Promise(team="reports")
        assert not views["zebra"].HasField("promise")
        check = watermarks_pb2.CheckCompleteRequest(computation="hourly", until_micros=HOUR)
        assert (await served.watermarks.CheckComplete(check)).watermark.promise.team == "reports"

        named, everything = Heard(served, "hourly", "zebra"), Heard(served)
        for follower in (named, everything):
            first = await follower.next()
            assert first["hourly"].promise.team == "reports"
            assert not first["zebra"].HasField("promise")
        await served.reach("hourly", 5)
        for follower in (named, everything):
            moved = await follower.reached("hourly", 5)
            assert not any(one.HasField("promise") for one in moved), "it was told, and is as it was"

        # Another file: who follows is told at once, of what has changed only, and no watermark is another one.
        served.authority.promise(promises(entry(computations="'zebra'", owner="'zoe'")))
        for follower in (named, everything):
            changed = await follower.next()
            assert (changed["hourly"].HasField("promise"), changed["hourly"].promise) == (True, NOTHING)
            assert changed["zebra"].promise.owner == "zoe"
            assert changed["hourly"].low_micros == 5 * HOUR
        await served.register("new")
        assert not (await everything.next())["new"].HasField("promise")
        assert not (await served.got("hourly"))["hourly"].HasField("promise")
