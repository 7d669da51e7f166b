"""A slice is cut in two while its workers run, and each step may be the last one of a process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.requests import ClaimRequest, GroupReport
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine import slices
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import JournalCorrupt
from lowwater_authority.ops.observer import Observer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR
from tests.kit.tree import Tree, rest, until
from tests.property import slice_switches as switches

AT = b"\xc0"
"""Where ``a~1`` is cut, which begins at 0x80: its keys from there on are those of ``a~2``."""


pytestmark = pytest.mark.usefixtures("unhurried_slices")


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


async def test_both_halves_stand_where_the_slice_stood_and_go_on(tree: Tree) -> None:
    await tree.both(9, 7)
    assert await tree.split("a~1", AT) == "a~2"
    await settled(tree, "a~1", "a~2")
    assert [tree.stands(number) for number in range(3)] == [9, 7, 7]
    await work(tree, "a~1", 8)
    await until(lambda: tree.stands(1) == 8)
    assert tree.low() == 7, "the other half holds it"
    await work(tree, "a~2", 9)
    await until(lambda: tree.low() == 8)
    assert not tree.below.shard.held.computation("a~1").handed_over, "it is kept no longer than it is needed"  # type: ignore[union-attr]


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
    """It may be of keys that are another slice's now, of which the root does not know it."""
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
    """The new slice has heard of an input before it has its keys, and the workers that had them never read it."""
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


async def test_what_is_finished_stays_so_when_a_cut_and_inputs_are_heard_of_together(disk: MemoryDisk) -> None:
    """The workers of the keys that stay knew all inputs that are left, and nobody would finish them once more."""
    tree = await Tree(disk, beside=True).start(inputs=("x", "y"))
    try:
        for name in ("x", "y"):
            assert await tree.top.report(name, await tree.top.claim(name), 90) == []
        await tree.both(40, 7)
        done = await tree.below.claim("a~1", b"\x80", AT)
        assert await tree.below.report("a~1", done, MAX, finish=True) == []
        await tree.top.shard.split("a", "a~1", AT)
        await tree.top.shard.set_inputs("a", ("x",))
        await tree.hear()
        await settled(tree, "a~1", "a~2")
        assert tree.stands(2) == 7
        assert tree.stands(1) == MAX
    finally:
        await tree.stop()


async def test_numbers_of_shards_say_nothing_of_each_other(tree: Tree) -> None:
    await tree.both(9, 7)
    for _ in range(3):
        await tree.fail_over()
    await settled(tree, "a~1")
    await tree.split("a~1", AT)
    await settled(tree, "a~1", "a~2")
    assert tree.beside.shard.epoch("a~2") == 1, "which is no number that a store has lost"
    await work(tree, "a~2", 8)
    await until(lambda: tree.stands(2) == 8)


async def test_what_was_said_of_all_keys_counts_no_more(tree: Tree) -> None:
    """Messages of the slice before the cut arrive behind it."""
    await tree.both(9, 7)
    late = [*tree.way.sent("claim"), *tree.way.sent("say")]
    await tree.split("a~1", AT)
    await settled(tree, "a~1", "a~2")

    def ranges() -> list[tuple[bytes, int, int]]:
        return [(each.start, each.value, each.owner.sequencer) for each in tree.root.map.all_ranges(10)[0]]

    before = ranges()
    for again in late:
        with contextlib.suppress(errors.LowwaterError):
            await again()
    assert ranges() == before


@pytest.mark.parametrize("which", ["top", "below", "beside"])
@pytest.mark.parametrize("step", range(6))
async def test_whoever_dies_at_any_step_the_next_one_goes_on(tree: Tree, which: str, step: int) -> None:
    """Before or after: the slice hands over, the other takes in, and both claim."""
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


@pytest.mark.parametrize("moved", [False, True])
async def test_a_snapshot_of_a_claim_over_the_cut_has_the_keys_that_are_left(tree: Tree, *, moved: bool) -> None:
    """Before or after the new slice has its keys. The claim has ranges on both sides, and one that is cut."""
    await work(tree, "a~0", 9)
    grant = await tree.below.claim("a~1", b"\x80", b"\xa0", b"\xb0", b"\xd0", b"")
    assert await tree.below.report("a~1", grant, 7, 8, 9, 6) == []
    if not moved:
        await tree.beside.stop()
    await tree.split("a~1", AT)
    await rest()
    if moved:
        await settled(tree, "a~1", "a~2")
    tree.below.shard.write_whole(["a~1"])
    await rest()
    await tree.fail_over(which="below")
    if not moved:
        tree.beside = await tree.another("beside:2", tree.beside.placement.names)
    await tree.hear()
    await settled(tree, "a~1", "a~2")
    left = tree.below.shard.held.computation("a~1")
    assert left is not None
    left._check()
    assert left.map.span == (b"\x80", AT)
    assert [tree.stands(number) for number in range(3)] == [9, 7, 6]
    for number in (1, 2):
        await work(tree, f"a~{number}", 10)
    await until(lambda: tree.low() == 9)


async def test_a_reset_in_the_middle_leaves_nothing_to_take_in(tree: Tree) -> None:
    await tree.both(9, 7)
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    await tree.beside.shard.refresh()
    await tree.beside.shard.serve_those(["a~2"])
    await tree.top.shard.reset("a")
    tree.below = await tree.another("below:2", tree.below.placement.names)
    await tree.hear()
    assert list(tree.top.shard.topology.get("a").slice_specs()) == ["a~0", "a~1"]
    assert "a~2" in tree.top.shard.topology.dropped
    for number in range(2):
        await work(tree, f"a~{number}", 4)
    await until(lambda: tree.low() == 4)
    assert tree.owner("a~1").shard.held.computation("a~1").map.span == (b"\x80", b"")  # type: ignore[union-attr]
    assert not tree.beside.shard.serves("a~2")
    assert await tree.split("a~1", AT) == "a~3", "a number is never used again"
    await settled(tree, "a~1", "a~3")


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
    """Sinks take the highest for the newest, and have seen those of the slice that was cut."""
    before, after = await _sequencers_around_a_reset(tree)
    assert before < after


async def test_a_cut_that_a_reset_leaves_as_it_is_is_noticed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.resets_keep_a_cut_under_way(monkeypatch)
    before, after = await _sequencers_around_a_reset(tree)
    assert before > after


async def test_a_drop_in_the_middle_ends_all_and_the_name_begins_anew() -> None:
    tree = await Tree(MemoryDisk(), beside=True).start()
    await tree.both(9, 7)
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    await tree.top.shard.drop("a", force=True)
    await tree.beside.shard.refresh()
    assert not [name for name in tree.top.shard.topology.computations if "~" in name]
    await tree.top.shard.register(Spec("a", slices=(b"\x80",)))
    assert list(tree.top.shard.topology.get("a").slice_specs()) == ["a~0", "a~1"]
    tree.below = await tree.another("below:2", tree.below.placement.names)
    for number in range(2):
        await work(tree, f"a~{number}", 4)
    await until(lambda: tree.low() == 4)
    await tree.stop()


async def test_inputs_that_are_added_in_the_middle_bound_the_keys_that_move() -> None:
    tree = await Tree(MemoryDisk(), beside=True).start(inputs=("x",))
    await tree.top.shard.register(Spec("y"))
    for name, hour in (("x", 20), ("y", 8)):
        assert await tree.top.report(name, await tree.top.claim(name), hour) == []
    await tree.both(7, 7)
    grant = await tree.below.claim("a~1")
    assert await tree.below.report("a~1", grant, 15) == []
    await until(lambda: tree.stands(1) == 15)
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    await tree.top.shard.set_inputs("a", ["x", "y"])
    await tree.beside.shard.refresh()
    await tree.beside.shard.serve_those(["a~2"])
    tree.below = await tree.another("below:2", tree.below.placement.names)
    await tree.hear()
    await settled(tree, "a~0", "a~1", "a~2")
    assert [tree.stands(number) for number in range(3)] == [7, 8, 8]
    await tree.stop()


async def test_a_slice_that_nobody_claimed_is_cut(tree: Tree) -> None:
    await tree.split("a~1", AT)
    await settled(tree, "a~1", "a~2")
    assert [tree.stands(number) for number in range(3)] == [MIN] * 3
    for number in range(3):
        await work(tree, f"a~{number}", 5)
    await until(lambda: tree.low() == 5)


async def test_what_is_finished_stays_finished(tree: Tree) -> None:
    _, grant = await tree.both(9, 7)
    assert await tree.below.report("a~1", grant, MAX, finish=True) == []
    await until(lambda: tree.low() == 9)
    await tree.split("a~1", AT)
    await settled(tree, "a~1", "a~2")
    assert tree.stands(2) == MAX
    assert tree.low() == 9


async def test_what_is_retired_stays_retired(tree: Tree) -> None:
    await tree.both(9, 7)
    await tree.below.shard.retire("a~1", b"\x80", b"", force=True)
    await until(lambda: tree.state(1) is GroupState.RETIRED)
    await tree.split("a~1", AT)
    await until(lambda: tree.state(1) is tree.state(2) is GroupState.RETIRED)
    await work(tree, "a~0", 12)
    await until(lambda: tree.low() == 12)


async def test_records_are_counted_once_though_the_new_half_claims_first_and_is_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says nothing of records that would take the place of what it was given."""
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


async def test_others_go_on_all_the_while(tree: Tree) -> None:
    grants = await tree.both(9, 7)
    await tree.beside.stop()
    await tree.top.shard.split("a", "a~1", AT)
    await tree.below.shard.refresh()
    for hour in (8, 10, 11):  # a lowering too, which the root has to hear of
        assert await tree.below.report("a~0", grants[0], hour) == []
    await until(lambda: tree.stands(0) == 11)


async def test_the_halves_are_cut_again(tree: Tree) -> None:
    await tree.both(9, 7)
    for name, at, new in (
        ("a~1", b"\xc0", "a~2"),
        ("a~2", b"\xe0", "a~3"),
        ("a~1", b"\xa0", "a~4"),
        ("a~0", b"\x10", "a~5"),
    ):
        assert await tree.split(name, at) == new
        await settled(tree, name, new)
    assert list(tree.top.shard.topology.get("a").slice_specs()) == ["a~0", "a~5", "a~1", "a~4", "a~2", "a~3"]
    for number in range(6):
        assert tree.stands(number) == (9 if number in (0, 5) else 7)
    await tree.fail_over(which="below")
    await tree.fail_over(which="beside")
    for number in range(6):
        await work(tree, f"a~{number}", 20 + number)
    await until(lambda: tree.low() == 20)


async def test_a_log_that_cannot_be_read_any_more_holds_until_a_reset_undoes_the_cut(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tree.both(9, 7)
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    one, load = tree.beside, tree.beside.journal.load

    async def damaged(log: str, **more: Any) -> Any:
        if log == "a~1":
            raise JournalCorrupt(log, 1, "it is damaged")
        return await load(log, **more)

    monkeypatch.setattr(one.journal, "load", damaged)
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


async def test_a_process_that_serves_both_reads_no_log(disk: MemoryDisk) -> None:
    tree = await Tree(disk, beside=True).start()
    tree.below.placement.names = lambda name: "~" in name
    tree.beside.placement.names = lambda _: False
    await tree.both(9, 7)
    await tree.split("a~1", AT)
    await settled(tree, "a~1", "a~2")
    assert tree.below.shard.serves("a~2")
    assert tree.stands(2) == 7
    await tree.stop()


async def test_one_process_cuts_what_it_serves_alone(disk: MemoryDisk) -> None:
    """As with an embedded journal."""
    shard = Shard(MemoryJournal(disk, shared=False), clock=lambda: 1_000 * HOUR, observer=Observer())
    await shard.start()
    rounds = asyncio.create_task(shard.run())
    await shard.register(Spec("a", slices=(b"\x80",)))
    await shard.split("a", "a~1", AT)
    for number, span in enumerate(((b"", b"\x80"), (b"\x80", AT), (AT, b""))):
        await until(lambda number=number: shard._slices[f"a~{number}"].is_settled())  # type: ignore[misc]
        asked = ClaimRequest(span, request_id=bytes([number] * 16))
        grant = await shard.claim(f"a~{number}", asked)
        report = GroupReport(grant.sequencer, np.array([5 * HOUR]))
        assert await shard.report([(f"a~{number}", report)], sender=b"s" * 16, number=(1, number + 1)) == []
    await until(lambda: (view := shard.view("a")) is not None and view.low == 5 * HOUR)
    shard.stop()
    await rounds
    await shard.close()


async def test_a_log_that_has_not_gone_on_is_not_read_again(tree: Tree) -> None:
    await tree.both(9, 7)
    await tree.below.stop()
    await tree.top.shard.split("a", "a~1", AT)
    one, read = tree.beside, tree.beside.journal.loads
    read.clear()
    await one.shard.refresh()
    await one.shard.serve_those(["a~2"])
    await rest()
    assert read["a~1"] == 1
    tree.below = await tree.another("below:2", tree.below.placement.names)
    await settled(tree, "a~1", "a~2")
    assert read["a~1"] == 2
    assert tree.stands(2) == 7
