"""A slice is cut in two while its workers run, and each step may be the last one of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.requests import ClaimRequest, GroupReport
from lowwater_authority.core.times import MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine import slices
from lowwater_authority.engine.shard import Shard
from lowwater_authority.ops.observer import Observer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR
from tests.kit.tree import Tree, rest, until
from tests.property import slice_switches as switches

AT = b"\xc0"
"""Where ``a~1`` is cut, which begins at 0x80: its keys from there on are those of ``a~2``."""


@pytest.fixture
async def tree() -> AsyncIterator[Tree]:
    made = await Tree(MemoryDisk(), beside=True).start()
    yield made
    await made.stop()


async def settled(tree: Tree, *names: str) -> None:
    """Wait until the root knows of slices as they are."""
    await until(lambda: all(tree.owner(name).slice(name).is_settled() for name in names))
    await tree.hear()
    await rest()


async def work(tree: Tree, name: str, hour: int) -> None:
    """A worker claims all of a slice and reports."""
    one = tree.owner(name)
    assert await one.report(name, await one.claim(name), hour) == []


async def test_workers_lose_what_moved_and_are_told_where_to_claim(tree: Tree) -> None:
    _, grant = await tree.both(9, 7)
    lost: list[Any] = []
    tree.below.shard.on_fenced = lost.append
    await tree.split("a~1", AT)
    await settled(tree, "a~2")
    assert [(each.sequencer, "claim them again" in each.reason) for each in lost] == [(grant.sequencer, True)]
    [(_, refused)] = await tree.below.report("a~1", grant, 8)
    assert refused.reason == "STALE_SEQUENCER"
    with pytest.raises(errors.OtherSlice) as caught:
        await tree.below.claim("a~1", AT, b"")
    assert caught.value.metadata["slice_of"] == "a"
    with pytest.raises(errors.OtherSlice) as caught:
        await tree.top.claim("a", AT, b"")
    assert caught.value.metadata["slice"] == "a~2"


async def _lowered(tree: Tree) -> asyncio.Future[Any]:
    """A worker lowers its range of ``a~1``, of which the root does not hear; then the slice is cut, and nobody serves the new one."""
    grants = await tree.both(9, 7)
    await tree.beside.stop()
    tree.way.hold("say")
    tree.way.lost["say"] = "there"
    answer = asyncio.ensure_future(tree.below.report("a~1", grants[1], 3))
    await rest()
    await tree.top.shard.split("a", "a~1", AT)
    await tree.below.shard.refresh()
    await rest()
    tree.way.let("say")
    await until(lambda: tree.below.slice("a~1").is_settled())
    tree.way.lost.clear()
    return answer


async def test_an_answer_that_waited_is_not_given_by_what_is_left(tree: Tree) -> None:
    [(_, refused)] = await (await _lowered(tree))
    assert refused.reason == "UNAVAILABLE"
    assert tree.stands(1) == 3
    assert tree.stands(2) == 7, "nobody tells the root of it"
    tree.beside = await tree.another("beside:2", tree.beside.placement.names)
    await settled(tree, "a~2")
    assert tree.stands(2) == 3, "it is known all the same"


async def test_an_answer_that_is_given_all_the_same_is_noticed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.moved_answers_leave(monkeypatch)
    assert await (await _lowered(tree)) == []
    assert tree.stands(2) == 7, "the root leads what a worker was told"


async def test_nothing_is_granted_before_the_keys_are_taken_in(tree: Tree) -> None:
    await tree.both(9, 7)
    await tree.below.stop()  # so that nobody hands anything over
    made = await tree.top.shard.split("a", "a~1", AT)
    await tree.beside.shard.refresh()
    await tree.beside.shard.serve_those([made.name])
    for refused in (
        tree.beside.claim("a~2"),
        tree.beside.shard.retire("a~2", AT, b"", force=True),
    ):
        with pytest.raises(errors.Unavailable, match="taking its keys over"):
            await refused
    assert tree.stands(2) == 7
    with pytest.raises(errors.Unavailable, match="still taking over"):
        await tree.top.shard.split("a", "a~0", b"\x40")
    tree.below = await tree.another("below:2", tree.below.placement.names)
    await settled(tree, "a~1", "a~2")
    await tree.top.shard.refresh()
    await tree.top.shard.split("a", "a~0", b"\x40")


async def test_rule3_what_is_taken_in_goes_by_the_inputs_of_who_handed_it_over(disk: MemoryDisk) -> None:
    tree = await Tree(disk, beside=True).start(inputs=("x",))
    try:
        await tree.top.shard.register(Spec("y"))
        for name, hour in (("x", 100), ("y", 50)):
            assert await tree.top.report(name, await tree.top.claim(name), hour) == []
        await tree.both(40, 95)
        await tree.below.stop()
        await tree.top.shard.split("a", "a~1", AT)
        await tree.top.shard.set_inputs("a", ("x", "y"))
        await tree.hear()
        await rest()
        tree.below = await tree.another("below:2", tree.below.placement.names)
        await settled(tree, "a~1", "a~2")
        taken = tree.beside.shard.held.computation("a~2")
        assert taken is not None
        assert taken.map.minimum() <= 50 * HOUR
        assert [tree.stands(number) for number in (1, 2)] == [50, 50]
    finally:
        await tree.stop()


@pytest.mark.parametrize("which", ["top", "below", "beside"])
@pytest.mark.parametrize("step", range(6))
async def test_whoever_dies_at_any_step_the_next_one_goes_on(tree: Tree, which: str, step: int) -> None:
    _, grant = await tree.both(9, 7)
    assert await tree.below.report("a~1", grant, 6) == []  # a lowering that was acknowledged
    reached, go_on, planted = asyncio.Event(), asyncio.Event(), pytest.MonkeyPatch()

    def stop_at(name: str, *, before: bool) -> None:
        real: Callable[..., Awaitable[object]] = getattr(Shard, name)

        async def stopped(self: Shard, *more: Any) -> object:
            done = None if before else await real(self, *more)
            reached.set()
            await go_on.wait()
            return await real(self, *more) if before else done

        planted.setattr(Shard, name, stopped)

    if step < 4:
        stop_at(["_move_out", "_take_in"][step // 2], before=step % 2 == 0)
    else:
        tree.way.hold("claim")
    await tree.split("a~1", AT)
    if step < 4:
        await until(reached.is_set)
    else:
        await until(lambda: len(tree.way.sent("claim")) > 2)
    await tree.fail_over(which=which) if which != "top" or step % 2 else await rest()
    planted.undo()
    go_on.set()
    if step >= 4:
        tree.way.let("claim")
    if which == "top" and not step % 2:
        await tree.fail_over(which=which)
    await tree.hear()
    await settled(tree, "a~1", "a~2")
    assert [tree.stands(number) for number in range(3)] == [9, 6, 6]
    assert not tree.top.shard.topology.get("a~2").source
    await work(tree, "a~1", 8)
    await work(tree, "a~2", 8)
    await until(lambda: tree.low() == 8)


async def _sequencers_around_a_reset(tree: Tree) -> tuple[int, int]:
    """Return those of two claims of the same keys, which are cut and reset in between."""
    for _ in range(3):
        await tree.fail_over(which="below")
    await tree.hear()
    before = await tree.below.claim("a~1")
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    await tree.top.shard.reset("a")
    tree.below = await tree.another("below:9", tree.below.placement.names)
    await tree.hear()
    [name] = tree.top.shard.topology.get("a").slices_over(AT, b"")
    return before.sequencer, (await tree.owner(name).claim(name)).sequencer


async def test_sequencers_of_keys_go_on_behind_a_reset_in_the_middle(tree: Tree) -> None:
    before, after = await _sequencers_around_a_reset(tree)
    assert before < after


async def test_a_cut_that_a_reset_leaves_as_it_is_is_noticed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.resets_keep_a_cut_under_way(monkeypatch)
    before, after = await _sequencers_around_a_reset(tree)
    assert before > after


async def test_records_are_counted_once_though_the_new_half_claims_first_and_is_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = await Tree(MemoryDisk(), beside=True).start(budgets=(100_000,))
    for number, grant in enumerate(await tree.both()):
        late = Lateness({0: 1000}, 9 * HOUR, 9 * HOUR, {100_000: (3, MIN)})
        report = GroupReport(grant.sequencer, np.array([7 * HOUR]), lateness=late)
        assert await tree.below.shard.report([(f"a~{number}", report)], sender=b"s" * 16, number=(1, number + 1)) == []
    await tree.below.shard.retire("a~1", AT, b"", force=True)

    def counted() -> list[tuple[int, int]]:
        view = tree.top.shard.view("a")
        assert view is not None
        return [(kept.records, kept.behind) for kept in view.budgets]

    await until(lambda: counted() == [(2000, 6)])
    real = tree.way.claim

    async def claim(asked: slices.Asked) -> slices.Range:
        if asked.name == "a~1" and len(tree.root.map) < 3:
            msg = "the new one is first"
            raise errors.Unavailable(msg)
        return await real(asked)

    monkeypatch.setattr(tree.way, "claim", claim)
    await tree.split("a~1", AT)
    await settled(tree, "a~1", "a~2")
    assert counted() == [(2000, 6)]
    await tree.stop()


async def test_a_log_that_cannot_be_read_any_more_holds_until_a_reset_undoes_the_cut(tree: Tree) -> None:
    await tree.both(9, 7)
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    one = tree.beside
    tree.disk.logs["a~1"].damage()
    await one.shard.refresh()
    await one.shard.serve_those(["a~2"])
    await rest()
    with pytest.raises(errors.Unavailable):
        await one.claim("a~2")
    assert tree.low() == 7
    await tree.top.shard.reset("a")
    await one.shard.refresh()
    assert "a~2" not in one.shard.topology.computations, "the cut is undone"
    with pytest.raises(errors.UnknownComputation):
        await one.claim("a~2")


async def test_one_process_cuts_what_it_serves_alone(disk: MemoryDisk) -> None:
    shard = Shard(MemoryJournal(disk, shared=False), clock=lambda: 1_000 * HOUR, observer=Observer())
    await shard.start()
    rounds = asyncio.create_task(shard.run())
    await shard.register(Spec("a", slices=(b"\x80",)))
    await shard.split("a", "a~1", AT)
    for number, span in enumerate(((b"", b"\x80"), (b"\x80", AT), (AT, b""))):
        asked = ClaimRequest(span, request_id=bytes([number] * 16))
        grant = await shard.claim(f"a~{number}", asked)
        report = GroupReport(grant.sequencer, np.array([5 * HOUR]))
        assert await shard.report([(f"a~{number}", report)], sender=b"s" * 16, number=(1, number + 1)) == []
    await until(lambda: (view := shard.view("a")) is not None and view.low == 5 * HOUR)
    shard.stop()
    await rounds
    await shard.close()
