"""Computations in slices under attack: what comes between two steps of a slice and its root, and what of others may reach them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lowwater import errors
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine import slices
from lowwater_authority.engine.shard import Shard
from tests.kit.memory_journal import MemoryDisk
from tests.kit.tree import Tree, rest, until

KEY = b"\x80"


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the machine."""
    monkeypatch.setattr(slices, "AGAIN_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(slices, "ANSWER_SECONDS", 600.0)


@pytest.fixture
async def reader(disk: MemoryDisk) -> AsyncIterator[Tree]:
    """One that reads ``x``, which stands at 100; ``y`` stands at 50, and ``z`` at 42."""
    made = await Tree(disk).start(inputs=("x",))
    for name in ("y", "z"):
        await made.top.shard.register(Spec(name))
    for name, hour in (("x", 100), ("y", 50), ("z", 42)):
        grant = await made.top.claim(name)
        assert await made.top.report(name, grant, hour) == []
    yield made
    await made.stop()


# -- inputs -----------------------------------------------------------------------------------------------------------


async def test_inputs_that_change_again_before_a_slice_has_read_of_it_bound_it_all_the_same(
    reader: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the root has granted under one version of the inputs knows nothing of what the next one has added."""
    first, second = await reader.both(40, 45)
    reader.way.hold("say")
    assert await reader.below.report("a~0", first, 90) == []
    assert await reader.below.report("a~1", second, 95) == []
    reads, reading = asyncio.Event(), asyncio.Event()
    refresh = Shard.refresh

    async def slow(self: Shard) -> None:
        if self is reader.below.shard:
            reading.set()
            await reads.wait()
        await refresh(self)

    monkeypatch.setattr(Shard, "refresh", slow)
    await reader.top.shard.set_inputs("a", ["x", "y"])
    reader.way.let("say")
    await reading.wait()
    await reader.top.shard.set_inputs("a", ["x", "y", "z"])
    reads.set()
    for number in (0, 1):
        reader.below.slice(f"a~{number}")._news.set()
    await until(lambda: reader.below.shard.topology.get("a~0").input_version == 3)
    await until(lambda: all(reader.below.slice(f"a~{n}").is_settled() for n in (0, 1)))
    await rest()
    assert max(reader.stands(0), reader.stands(1)) <= 42, "nobody of them has folded z"
    assert reader.low() <= 42


@pytest.mark.parametrize("left", [["x"], []])
async def test_what_is_finished_stays_so_when_inputs_are_taken_away(reader: Tree, left: list[str]) -> None:
    """Its worker has gone, so nobody would finish it again."""
    await reader.top.shard.set_inputs("a", ["x", "y"])
    await reader.below.shard.refresh()
    first = await reader.below.claim("a~0", b"", b"\x40")
    second = await reader.below.claim("a~0", b"\x40", KEY)
    other = await reader.below.claim("a~1")
    assert await reader.below.report("a~0", first, MAX, finish=True) == []
    assert await reader.below.report("a~0", second, 40) == []
    assert await reader.below.report("a~1", other, 45) == []
    await until(lambda: (reader.stands(0), reader.stands(1)) == (40, 45))
    await rest()
    await reader.top.shard.set_inputs("a", left)
    await reader.below.shard.refresh()
    await until(lambda: all(reader.below.slice(f"a~{n}").is_settled() for n in (0, 1)))
    second = await reader.below.claim("a~0", b"\x40", KEY)
    other = await reader.below.claim("a~1")
    assert await reader.below.report("a~0", second, 60) == []
    assert await reader.below.report("a~1", other, 60) == []
    await until(lambda: reader.low() == 60)
