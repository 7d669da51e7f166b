"""A computation that is cut into slices: the root never leads what was acknowledged of a slice, and arrives (rules T1 to T7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater.core.columns import Column
from lowwater.core.fold import Fold
from lowwater.core.lease import LeaseState
from lowwater_authority.cluster.peers import lateness_of
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.computation import LARGEST_EPOCH
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.names import slicing
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, GroupReport
from lowwater_authority.core.slicing import CLAIMS_OF_ONE, CUTS_OF_ONE, computation_of
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.cuts import Cuts
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.root_here import RangeHere
from lowwater_authority.engine.roots import Range, SliceClaim, SliceReport
from lowwater_authority.engine.round import GivenUp, Round
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, JournalVersion
from lowwater_authority.rpc.streams import Outbox
from tests.kit.faults import FaultPlan
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.releases import older_release
from tests.kit.times import HOUR
from tests.kit.tree import One, Tree, ids, numbers, rest, until
from tests.property import slice_switches as switches
from tests.unit.test_shard import Running

KEY = b"\x80"


def breaks(why: str) -> pytest.MarkDecorator:
    """Marks a test that runs with a rule switched off: it must fail, in an assertion."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"breaks when {why}")


@pytest.fixture
async def tree(disk: MemoryDisk) -> AsyncIterator[Tree]:
    tree_ = await Tree(disk).start()
    yield tree_
    await tree_.stop()


@pytest.fixture
async def reader(disk: MemoryDisk) -> AsyncIterator[Tree]:
    """One that reads ``x``, which stands at 100; ``y`` stands at 50, and ``z`` at 42."""
    tree_ = await Tree(disk).start(inputs=("x",))
    for name in ("y", "z"):
        await tree_.top.shard.graph.register(Spec(name))
    for name, hour in (("x", 100), ("y", 50), ("z", 42)):
        grant = await tree_.top.claim(name)
        assert await tree_.top.report(name, grant, hour) == []
    yield tree_
    await tree_.stop()


@pytest.mark.parametrize("hour", [15, 10])
async def test_T2_a_report_whose_answer_was_lost_may_count(tree: Tree, hour: int) -> None:
    first, _ = await tree.both(10, 10)
    tree.way.lost["say"] = "back"
    assert await tree.below.report("a~0", first, 20) == []
    await until(lambda: tree.stands(0) == 20)
    tree.way.lost["say"] = "there"
    lowering = tree.below.report("a~0", first, hour)
    await rest()
    assert not lowering.done()
    del tree.way.lost["say"]
    await until(lowering.done)
    assert (await lowering, tree.stands(0)) == ([], hour)


@breaks("only what was answered may count")
async def test_T2_breaks_when_only_what_was_answered_may_count(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.only_answers_count(monkeypatch)
    await test_T2_a_report_whose_answer_was_lost_may_count(tree, 15)


async def test_a_claim_that_a_reset_has_ended_is_not_answered_as_one_of_the_next_incarnation(tree: Tree) -> None:
    first, _ = await tree.both(10, 10)
    assert await tree.below.report("a~0", first, MAX, finish=True) == []
    await until(lambda: tree.stands(0) == MAX)
    tree.way.hold("say")
    request = ClaimRequest([b"", KEY], request_id=b"r" * 16, bound_micros=np.array([HOUR], dtype=np.int64))
    claim = asyncio.create_task(tree.below.shard.owners.claim("a~0", request))
    await rest()
    assert not claim.done()
    await tree.top.shard.graph.reset("a")
    await tree.below.shard.confirmation.refresh()
    tree.way.let("say")
    with pytest.raises(errors.Unavailable, match="began a new incarnation before this claim"):
        await claim
    with pytest.raises(errors.StaleSequencer):
        await tree.below.shard.owners.claim("a~0", request)


@pytest.mark.parametrize("between", ["nothing", "a snapshot", "a fail-over", "a fail-over of the root"])
async def test_T4_a_granted_version_of_the_inputs_is_not_told_of_older_folds(reader: Tree, between: str) -> None:
    if between == "a snapshot":
        await reader.fail_over(snapshot_bytes=1)
    first, second = await reader.both(40, 45)
    if between == "a snapshot":
        stored = reader.disk.logs["a~0"]
        assert stored.snapshot is not None, "of the claim"
    reader.way.hold("say")
    assert await reader.below.report("a~0", first, 90) == []
    assert await reader.below.report("a~1", second, 95) == []
    await reader.top.shard.graph.set_inputs("a", ["x", "y"])
    if between in ("a snapshot", "a fail-over"):
        await reader.fail_over()
    elif between == "a fail-over of the root":
        await reader.fail_over(top=True)
    reader.way.let("say")
    reader.below.look("a~0", "a~1")
    await until(lambda: reader.below.shard.topology.get("a~0").input_version == 2)
    await rest()
    assert max(reader.stands(0), reader.stands(1)) <= 50, "what was folded without y does not stand beyond it"
    assert reader.low() <= 50
    old = await reader.below.report("a~0", first, 90)
    assert [refused.reason for _, refused in old] == ["STALE_SEQUENCER"]
    await reader.both(48, 50)
    assert reader.low() == 48


@breaks("the newest version is told of any folds")
async def test_T4_breaks_when_a_granted_version_is_echoed(reader: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.versions_are_echoed(monkeypatch)
    await test_T4_a_granted_version_of_the_inputs_is_not_told_of_older_folds(reader, "nothing")


@breaks("a snapshot forgets the version")
async def test_T4_breaks_when_a_snapshot_forgets_the_version(reader: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.snapshots_forget_the_version(monkeypatch)
    await test_T4_a_granted_version_of_the_inputs_is_not_told_of_older_folds(reader, "a snapshot")


async def test_a_finished_range_stays_finished_when_the_same_inputs_are_set_again(reader: Tree) -> None:
    for keys in ((b"", b"\x40"), (b"\x40", KEY)):
        grant = await reader.below.claim("a~0", *keys)
        assert await reader.below.report("a~0", grant, MAX if not keys[0] else 40, finish=not keys[0]) == []
    await until(lambda: reader.stands(0) == 40)
    await reader.top.shard.graph.set_inputs("a", ["x"])
    await reader.below.shard.confirmation.refresh()
    slice_ = reader.below.shard.held.computation("a~0")
    assert slice_ is not None
    await until(lambda: slice_.input_version == 2)
    assert [held.value for held in slice_.map.all_ranges(2)[0]] == [40 * HOUR, MAX]


async def test_T4_an_output_says_nothing_before_the_root_knows(reader: Tree) -> None:
    first, _ = await reader.both(10, 10)
    fold = reader.below.shard.topology.required("a~0")
    reader.way.hold("vouch")
    says = asyncio.create_task(reader.below.shard.owners.vouch("a~0", first.sequencer, 80 * HOUR, fold))
    await rest()
    assert not says.done()
    beside = reader.below.report("a~0", first, 11)
    assert await beside == [], "who lets no output say anything waits for nothing"
    reader.way.let("vouch")
    await says
    with pytest.raises(errors.WouldRegress, match="y is behind what a has let its output say"):
        await reader.top.shard.graph.set_inputs("a", ["x", "y"])


async def test_T4_an_output_that_the_root_is_not_known_to_wait_for_is_refused(reader: Tree) -> None:
    first, _ = await reader.both(10, 10)
    await reader.fail_over(slice_answer_seconds=0.0)
    reader.way.hold("vouch")
    fold = reader.below.shard.topology.required("a~0")
    with pytest.raises(errors.Unavailable, match="state nothing, and ask again"):
        await reader.below.shard.owners.vouch("a~0", first.sequencer, 80 * HOUR, fold)
    reader.way.let("vouch")


@breaks("an output waits for the log of its slice alone")
async def test_T4_breaks_when_outputs_wait_for_their_slice_alone(reader: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.outputs_wait_for_the_slice_alone(monkeypatch)
    await test_T4_an_output_says_nothing_before_the_root_knows(reader)


async def test_T4_a_process_that_is_alone_does_not_read_its_graph_again(disk: MemoryDisk) -> None:
    """The process has all of the graph in memory. If it read its own new record, it would take that for another process's, and end."""
    read: list[str] = []

    class Noting(FaultPlan):
        async def load(self, log: str) -> None:
            read.append(log)

    alone = await Running(disk, Noting()).start()
    for name in ("x", "y"):
        await alone.shard.graph.register(Spec(name))
        assert await alone.report(await alone.claim(name), 50, name=name) == []
    await alone.shard.graph.register(Spec("a", inputs=("x",), slicing=Cut((KEY,))))
    await alone.claim("a~0", b"", KEY)
    read.clear()
    await alone.shard.graph.set_inputs("a", ["x", "y"])
    computation = alone.shard.held.computation("a~0")
    assert computation is not None
    await until(lambda: computation.input_version == 2)
    assert read == []
    await alone.stop()


@pytest.mark.parametrize("retired", [False, True])
async def test_a_queued_claim_of_a_dead_owner_is_refused(tree: Tree, retired: bool) -> None:
    first, _ = await tree.both(10, 10)
    dead = tree.way.sent("claim")[0]
    new = await tree.fail_over()
    if retired:
        await new.shard.owners.retire("a~0", b"", KEY, force=True)
        await until(lambda: tree.state(0) is GroupState.RETIRED)
    else:
        assert await new.report("a~0", first, 20) == []
        await until(lambda: tree.stands(0) == 20)
    tree.root.granted.clear()  # so long ago that nobody knows it any more
    with pytest.raises(errors.OlderClaim):
        await dead()
    assert tree.state(0) is (GroupState.RETIRED if retired else GroupState.OWNED)


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="breaks when claims win in order of arrival")
async def test_breaks_when_claims_win_in_order_of_arrival(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.no_order(monkeypatch)
    await test_a_queued_claim_of_a_dead_owner_is_refused(tree, retired=False)


async def test_a_process_that_another_one_has_the_number_of_takes_a_greater_one(tree: Tree) -> None:
    await tree.both(10, 10)
    epoch = tree.below.shard.served.epoch("a~0")
    await tree.below.stop()
    await tree.another("elsewhere:1", lambda name: name == "a~1")
    owner = tree.disk.owners["a~0"]
    tree.disk.owners["a~0"] = owner._replace(epoch=owner.epoch - 1)
    new = await tree.another("below:9", lambda name: name == "a~0")
    tree.below = new
    assert new.shard.served.epoch("a~0") == epoch
    await until(lambda: new.shard.served.epoch("a~0") > epoch and new.slice("a~0").is_settled())
    assert await new.report("a~0", await new.claim("a~0"), 20) == []
    await until(lambda: tree.stands(0) == 20)


async def test_T6_a_retirement_whose_answer_is_lost_is_repeated(tree: Tree) -> None:
    await tree.both(10, 12)
    tree.way.lost["retire"] = "back"
    await tree.below.shard.owners.retire("a~0", b"", KEY, force=True)
    await until(lambda: tree.state(0) is GroupState.RETIRED)
    del tree.way.lost["retire"]
    await rest()
    await until(lambda: tree.state(0) is GroupState.RETIRED)
    await rest()
    assert tree.low() == 12


async def test_T6_a_late_retirement_does_not_take_out_what_the_same_process_has_revived(tree: Tree) -> None:
    await tree.both(10, 12)
    tree.way.lost["retire"] = "there"
    await tree.below.shard.owners.retire("a~0", b"", KEY, force=True)
    await until(lambda: tree.way.sent("retire"))
    sent = tree.way.sent("retire")
    assert await tree.below.report("a~0", await tree.below.claim("a~0", bound=9), 9) == []
    for late in sent:
        with pytest.raises(errors.StaleSequencer):
            await late()
    assert (tree.state(0), tree.stands(0)) == (GroupState.OWNED, 9)


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="breaks when retirements name no claim")
async def test_T6_breaks_when_retirements_name_no_claim(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.retirements_name_no_claim(monkeypatch)
    await test_T6_a_late_retirement_does_not_take_out_what_the_same_process_has_revived(tree)


async def test_T5_keys_of_others_are_refused(tree: Tree) -> None:
    below, top = tree.below, tree.top
    for keys in ((b"", b""), (b"\x10", b"\x81"), (KEY, b"\x90")):
        with pytest.raises(errors.OtherSlice, match="a~0 is slice 0 of a") as refused:
            await below.claim("a~0", *keys)
        assert refused.value.metadata["slice_of"] == "a"
        with pytest.raises(errors.OtherSlice):
            await below.shard.owners.retire("a~0", *keys, force=True)
    with pytest.raises(errors.OtherSlice) as named:
        await top.claim("a", b"\x10", b"\x20")
    assert named.value.metadata["slice"] == "a~0"
    with pytest.raises(errors.OtherSlice) as several:
        await top.claim("a", b"", b"")
    assert (several.value.metadata["first"], several.value.metadata["last"]) == ("a~0", "a~1")
    for keys in ((b"\x10", b"\x20"), (b"", KEY), (b"", b"")):
        with pytest.raises(errors.OtherSlice):
            await top.shard.owners.retire("a", *keys, force=True)


async def test_rule7_while_the_root_is_away_an_advancing_slice_and_its_neighbours_go_on(tree: Tree) -> None:
    await tree.fail_over(slice_answer_seconds=0.5)
    first, second = await tree.both(10, 10)
    tree.below.placement.names = lambda name: "~" in name or name == "beside"
    await tree.below.shard.graph.register(Spec("beside"))
    beside = await tree.below.claim("beside")
    tree.way.hold("say")
    for hour in (11, 12, 13):
        assert await tree.below.report("a~0", first, hour) == []
    [(name, refused)] = await tree.below.report("a~0", first, 9)
    assert (name, refused.reason) == ("a~0", "UNAVAILABLE")
    assert "a has not confirmed this change of its slice a~0" in refused.message
    both = [
        ("a~0", GroupReport(first.sequencer, np.array([8 * HOUR]))),
        ("beside", GroupReport(beside.sequencer, np.array([7 * HOUR]))),
        ("a~1", GroupReport(second.sequencer, np.array([17 * HOUR]))),
    ]
    answer = tree.below.shard.owners.report(both, sender=b"s" * 16, number=(1, next(numbers)))
    await rest()
    assert answer.done(), "it is waited for once, and not each time"
    assert [name for name, _ in await answer] == ["a~0"]
    assert tree.low("beside") == 7
    tree.way.let("say")
    await until(lambda: (tree.stands(0), tree.stands(1)) == (8, 17))
    assert await tree.below.report("a~0", first, 6) == [], "and again when it is there"
    assert tree.stands(0) == 6


@pytest.mark.parametrize("first", [0, 1])
async def test_an_acknowledgement_covers_no_report_in_front_of_it_that_waits(first: int) -> None:
    outbox, order = Outbox(), list[int]()
    waiting = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for number, future in enumerate(waiting):
        how: Callable[[object], None] = lambda _, number=number: order.append(number)  # type: ignore[misc]  # noqa: E731
        outbox.answer(future, how)
    for future in (waiting[first], waiting[1 - first]):
        future.set_result([])
        await rest()
        assert order == list(range(len(order)))
    assert order == [0, 1]


def test_a_lease_tells_how_a_slice_keeps_its_budgets_and_not_what_it_counts_itself() -> None:
    state = LeaseState("a", 1, Column(1, MIN), reference=MIN, budgets={50_000: MIN})
    state.whole_lateness = lateness_of(((50_000, 5, 10, 1),))
    state.advance(Fold(MAX, (), 1, ()), 7, now=0.0)
    assert state.arrivals is not None
    state.arrivals.raise_marks({50_000: 3})
    group = state.take()
    assert group is not None
    assert group.lateness is not None
    assert group.lateness.behind == ((50_000, 1, 5),)
    assert group.lateness.counts == ((0, 10),)
    assert state.take() is None
    repeated = state.beat()
    assert repeated is not None
    assert repeated.lateness is None


def test_who_claims_for_no_slice_that_there_is_claims_nothing() -> None:
    computation = computation_of(Spec("a", slicing=Cut((b"c", b"f"))))
    for keys in ([b"", b"f"], [b"c", b"e"], [b"d", b"f"], [b"c", b"d", b"f"], [b"", b""]):
        with pytest.raises(errors.InvalidArgument, match="is no slice of a, which is cut elsewhere"):
            computation.claim(ClaimRequest(keys, identity="a~", request_id=next(ids).to_bytes(16)), 0)
    computation.claim(ClaimRequest([b"c", b"f"], identity="a~", request_id=next(ids).to_bytes(16)), 0)


def without_slices(graph: Topology) -> Mapping[str, Spec]:
    return {name: replace(spec, slicing=None) for name, spec in graph.computations.items()}


async def merge(shard: Shard, computations: Mapping[str, Spec]) -> None:
    """Let a shard go on with a graph in which computations are as another process registered them."""

    def stage(round_: Round) -> None:
        graph = shard.topology
        round_.topology, round_.merged = Topology(graph.version + 1, computations, graph.dropped), True

    await shard.confirmation.write(stage, alone=True)


async def test_a_served_computation_is_cut_or_not_as_a_merged_graph_says(tree: Tree) -> None:
    await tree.both(10, 10)
    shard = tree.top.shard
    cut = shard.topology.computations
    claim = ClaimRequest([b"", b""], identity="job", request_id=next(ids).to_bytes(16))
    for computations, refusal in (without_slices(shard.topology), errors.IdentityMismatch), (cut, errors.OtherSlice):
        await merge(shard, computations)
        assert tree.low() == 10
        with pytest.raises(refusal):
            await shard.owners.claim("a", claim)


async def test_a_slice_that_its_root_does_not_have_tells_nothing_and_acknowledges_nothing(tree: Tree) -> None:
    first, _ = await tree.both(10, 10)
    await merge(tree.top.shard, without_slices(tree.top.shard.topology))
    new = await tree.fail_over(slice_answer_seconds=0.0)
    await rest()
    claims = len(tree.way.sent("claim"))
    [(_, refused)] = await new.report("a~0", first, 12)
    assert refused.reason == "UNAVAILABLE"
    await rest()
    assert len(tree.way.sent("claim")) == claims, "nobody is asked in its name"


async def test_a_release_that_knows_no_slices_does_not_write_over_what_is_cut(disk: MemoryDisk) -> None:
    tree = Tree(disk)
    top = await tree.another("top:1", lambda name: "~" not in name and name != "b")
    old = await tree.another("older:1", lambda name: name == "b")
    await top.shard.graph.register(Spec("b"))
    await old.shard.confirmation.refresh()
    await top.shard.graph.register(Spec("a", slicing=Cut((KEY,))))
    before = dict(disk.logs[GRAPH].records)
    with older_release():
        for act in (old.shard.confirmation.refresh(), old.shard.graph.register(Spec("c")), old.shard.graph.reset("b")):
            with pytest.raises(errors.Unavailable, match="format 3"):
                await act
        with pytest.raises(JournalVersion):
            await tree.another("older:2", lambda name: name == "b")
    assert disk.logs[GRAPH].records == before
    await tree.stop()


@pytest.mark.parametrize("cut", [False, True])
async def test_the_graph_is_for_every_release_as_long_as_nothing_is_cut(tree: Tree, cut: bool) -> None:
    if not cut:
        await tree.top.shard.graph.drop("a", force=True)
    await tree.fail_over(top=True, graph_bytes=0)
    await tree.top.shard.graph.register(Spec("b"))
    await tree.top.shard.held.logs.settle()
    assert tree.disk.logs[GRAPH].snapshot is not None
    with older_release():
        if cut:
            with pytest.raises(JournalVersion):
                await tree.below.journal.load(GRAPH)
        else:
            await tree.below.journal.load(GRAPH)


async def test_a_slice_goes_on_after_a_failure_that_cannot_be(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = await tree.both(10, 10)
    tree.way.lost["say"] = "fails"
    assert await tree.below.report("a~0", first, 11) == []
    await until(lambda: "in a way it never should" in caplog.text)
    del tree.way.lost["say"]
    await until(lambda: tree.stands(0) == 11)
    failures = [record for record in caplog.records if getattr(record, "lowwater", {}).get("event") == "slice_failed"]
    assert {record.levelname for record in failures} == {"ERROR"}
    assert failures[0].__dict__["lowwater"] == {"event": "slice_failed", "computation": "a~0", "root": "a"}


async def test_a_slice_pauses_when_it_cannot_follow_the_inputs(reader: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    await reader.both(10, 10)

    async def nothing(*_: object) -> None:
        return

    monkeypatch.setattr(Cuts, "follow_inputs", nothing)
    await reader.fail_over(slice_again_seconds=(600.0, 600.0))
    before = len(reader.way.sent("claim"))
    await reader.top.shard.graph.set_inputs("a", ["x", "y"])
    await reader.below.shard.confirmation.refresh()
    await rest()
    assert 0 < len(reader.way.sent("claim")) - before <= 4


async def test_an_idle_slice_hears_of_a_reset_without_waiting_for_its_beat(tree: Tree) -> None:
    await tree.fail_over(slice_beat_seconds=600.0, slice_look_seconds=0.0)
    await tree.both(10, 10)
    await tree.top.shard.graph.reset("a")
    await until(lambda: tree.below.shard.topology.get("a~0").incarnation == 2)


async def test_a_retirement_that_the_store_has_lost_is_made_again(tree: Tree) -> None:
    await tree.fail_over(slice_beat_seconds=0.0, slice_look_seconds=0.0)
    await tree.both(10, 12)
    stored, closed = tree.disk.logs["a"].copy(), tree.way.closed
    await tree.below.shard.owners.retire("a~0", b"", KEY, force=True)
    await until(lambda: tree.state(0) is GroupState.RETIRED and tree.low() == 12 and tree.way.closed > closed)
    tree.top.ended = True
    await until(lambda: tree.below.shard.slices.unheard == 2)
    tree.top.ended = False
    await until(lambda: tree.below.shard.slices.unheard == 0)
    claims = len(tree.way.sent("claim"))
    await rest()
    assert len(tree.way.sent("claim")) == claims, "as long as one process has it in memory, nothing is lost"
    await tree.top.stop()
    tree.disk.logs["a"] = stored
    await tree.fail_over(top=True)
    await until(lambda: tree.state(0) is GroupState.RETIRED)


async def claim_as(one: One, name: str, identity: str) -> None:
    """Claim all of a slice. Raises as Shard.claim does."""
    span = list(one.shard.topology.get(name).keys.span)
    await one.shard.owners.claim(name, ClaimRequest(span, identity=identity, request_id=next(ids).to_bytes(16)))


async def claimed_by(one: One, name: str, identity: str) -> bool:
    try:
        await claim_as(one, name, identity)
    except errors.IdentityMismatch:
        return False
    return True


@pytest.mark.parametrize("between", ["nothing", "a fail-over", "a fail-over of the root"])
async def test_the_first_worker_of_any_slice_binds_the_computation(tree: Tree, between: str) -> None:
    assert await claimed_by(tree.below, "a~0", "X")
    if between != "nothing":
        await tree.fail_over(top="root" in between)
    for name in ("a~1", "a~0", "a~1"):
        assert not await claimed_by(tree.below, name, "Y")
    with pytest.raises(errors.IdentityMismatch, match=r"bound to the identity 'X', not 'Y'.* reset a to") as refused:
        await claim_as(tree.below, "a~1", "Y")
    assert refused.value.metadata["bound_to"] == "X"
    for name in ("a~1", "a~0"):
        assert await claimed_by(tree.below, name, "X")
    await until(lambda: tree.below.slice("a~1").is_settled())
    assert not await claimed_by(tree.below, "a~1", "Y")


@pytest.mark.parametrize("same", [False, True])
async def test_of_two_workers_at_once_one_wins(tree: Tree, same: bool) -> None:
    names = ("a~0", "a~0" if same else "a~1")
    won = await asyncio.gather(claimed_by(tree.below, names[0], "X"), claimed_by(tree.below, names[1], "Y"))
    assert sorted(won) == [False, True]
    winner = "XY"[won.index(True)]
    for name in ("a~0", "a~1"):
        assert await claimed_by(tree.below, name, winner)


async def test_nothing_is_granted_while_the_root_does_not_know_to_whom(tree: Tree) -> None:
    tree.way.hold("claim")
    await tree.fail_over(slice_answer_seconds=0.0)
    with pytest.raises(errors.Unavailable, match="whose worker claims its slice a~0"):
        await claimed_by(tree.below, "a~0", "Y")
    await tree.fail_over(slice_answer_seconds=600.0)
    first = asyncio.create_task(claimed_by(tree.below, "a~0", "X"))
    await rest()
    assert not first.done()
    computation = tree.below.shard.held.computation("a~0")
    assert computation is not None
    assert computation.identity is None
    tree.way.let("claim")
    assert await first


@pytest.mark.parametrize(
    ("field", "generation", "ordinal"),
    [
        ("ordinal", CUTS_OF_ONE, (LARGEST_EPOCH + 1) * CLAIMS_OF_ONE),
        ("ordinal", CUTS_OF_ONE, 2**64 - 1),
        ("generation", 2 * CUTS_OF_ONE, CLAIMS_OF_ONE),
        ("generation", 2**64 - 1, CLAIMS_OF_ONE),
    ],
)
async def test_rule4_a_made_up_order_uses_up_no_numbers(tree: Tree, field: str, generation: int, ordinal: int) -> None:
    await tree.both(10, 12)
    made_up = ClaimRequest(
        [b"", KEY], identity=slicing("a"), generation=generation, ordinal=ordinal, request_id=next(ids).to_bytes(16)
    )
    with pytest.raises(errors.InvalidArgument) as refused:
        await tree.top.shard.owners.claim("a", made_up)
    assert refused.value.metadata["field"] == field
    assert str(refused.value).startswith(f"{field} is {getattr(made_up, field)}, which no slice of a can have")
    revived = await tree.below.claim("a~0")
    assert await tree.below.report("a~0", revived, 11) == []
    await until(lambda: tree.low() == 11)


async def test_rule4_a_made_up_ownership_number_is_not_taken(tree: Tree) -> None:
    await tree.both(10, 12)
    epoch = tree.below.shard.served.epoch("a~0")
    await tree.below.shard.confirmation.rise("a~0", LARGEST_EPOCH + 1)
    assert tree.below.shard.served.epoch("a~0") == epoch


async def test_a_claim_for_which_there_is_no_room_binds_nothing(tree: Tree) -> None:
    def none(ranges: int) -> None:
        msg = f"there is no room for {ranges}"
        raise errors.Overloaded(msg)

    request = ClaimRequest([b"", KEY], identity="X", request_id=next(ids).to_bytes(16))
    with pytest.raises(errors.Overloaded):
        await tree.below.shard.owners.claim("a~0", request, room=none)
    await claim_as(tree.below, "a~0", "Y")


def test_slices_take_no_more_of_the_graph_than_others_can_read_beside_them() -> None:
    keys = tuple(number.to_bytes(2) for number in range(1, 1000))
    inputs = [f"i{number}" for number in range(101)]
    with pytest.raises(errors.InvalidArgument, match=r"1000 slices with 101 inputs each.*may have 100000"):
        Topology().register(Spec("a", inputs=tuple(inputs), slicing=Cut(keys)))
    topology = Topology().register(Spec("a", inputs=tuple(inputs[1:]), slicing=Cut(keys)))
    with pytest.raises(errors.InvalidArgument, match="cut it into fewer slices, or read fewer inputs"):
        topology.set_inputs("a", inputs)
    assert len(topology.set_inputs("a", inputs[:100]).computations) == 1001
    full = Topology().register(Spec("a", inputs=tuple(f"i{number}" for number in range(200)), slicing=Cut(keys[:499])))
    with pytest.raises(errors.InvalidArgument, match="slice: '501 slices with 200 inputs each") as refused:
        full.split("a", "a~0", b"\x00")
    assert refused.value.metadata["field"] == "slice"


def test_a_graph_that_is_put_together_has_the_newest_inputs_and_the_newest_cut() -> None:
    """Each changed by a process that did not know of the other: the logs of the slices have these keys, and no reset is needed to go on."""
    before = Topology().register(Spec("x")).register(Spec("y")).register(Spec("a", inputs=("x",), slicing=Cut((b"m",))))
    cut, new = before.split("a", "a~1", b"t")
    fed = before.set_inputs("a", ["x", "y"])
    for merged in (cut.received(new).merged(fed), fed.merged(cut.received(new))):
        assert merged.get("a").inputs == ("x", "y")
        assert merged.get("a").cut.parts == cut.received(new).get("a").cut.parts
        assert {name: merged.get(name) for name in ("a~0", "a~1", "a~2")} == merged.get("a").slice_specs()
        assert Topology.decode(merged.encode()) == merged


async def test_a_root_that_another_process_takes_meanwhile_is_a_reason_to_try_again() -> None:
    def report(*_: Any, **__: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(GivenUp())
        return answer

    graph = SimpleNamespace(get=lambda _: SimpleNamespace(incarnation=1), required=lambda _: NO_FOLD)
    claim = SliceClaim(
        "hourly", "hourly~0", (b"", KEY), host="", epoch=1, claims=1, bound=0, request_id=b"id", identity="hourly~"
    )
    message = SliceReport(
        1, NO_FOLD, current=True, vouched=MIN, low=5, retired=False, budgets=(), oldest_operation=0, waiting_for=""
    )
    served: Any = SimpleNamespace(topology=graph)
    owners: Any = SimpleNamespace(report=report)
    with pytest.raises(errors.Unavailable, match="has taken hourly over"):
        await RangeHere(served, owners, claim, 1, 0).report(message, None)


AT = b"\xc0"
"""Where ``a~1`` is cut, which begins at 0x80: its keys from there on are those of ``a~2``."""


@pytest.fixture
async def wide() -> AsyncIterator[Tree]:
    tree_ = await Tree(MemoryDisk(), beside=True).start()
    yield tree_
    await tree_.stop()


async def settled(wide: Tree, *names: str) -> None:
    """Wait until the root knows of slices as they are."""
    await until(lambda: all(wide.owner(name).slice(name).is_settled() for name in names))
    await wide.hear()
    await rest()


async def work(wide: Tree, name: str, hour: int) -> None:
    one = wide.owner(name)
    assert await one.report(name, await one.claim(name), hour) == []


async def test_workers_lose_what_moved_and_are_told_where_to_claim(wide: Tree) -> None:
    _, grant = await wide.both(9, 7)
    lost: list[Any] = []
    wide.below.shard.rounds.on_fenced = lost.append
    await wide.split("a~1", AT)
    await settled(wide, "a~2")
    assert [(refusal.sequencer, "claim them again" in refusal.reason) for refusal in lost] == [(grant.sequencer, True)]
    [(_, refused)] = await wide.below.report("a~1", grant, 8)
    assert refused.reason == "STALE_SEQUENCER"
    with pytest.raises(errors.OtherSlice) as caught:
        await wide.below.claim("a~1", AT, b"")
    assert caught.value.metadata["slice_of"] == "a"
    with pytest.raises(errors.OtherSlice) as caught:
        await wide.top.claim("a", AT, b"")
    assert caught.value.metadata["slice"] == "a~2"


async def _lowered(wide: Tree) -> asyncio.Future[Any]:
    """A worker lowers its range of ``a~1``, of which the root does not hear; then the slice is cut, and nobody serves the new one."""
    grants = await wide.both(9, 7)
    await wide.beside.stop()
    wide.way.hold("say")
    wide.way.lost["say"] = "there"
    answer = asyncio.ensure_future(wide.below.report("a~1", grants[1], 3))
    await rest()
    await wide.top.shard.graph.split("a", "a~1", AT)
    await wide.below.shard.confirmation.refresh()
    await rest()
    wide.way.let("say")
    await until(lambda: wide.below.slice("a~1").is_settled())
    wide.way.lost.clear()
    return answer


async def test_an_answer_that_waited_is_not_given_by_what_is_left(wide: Tree) -> None:
    [(_, refused)] = await (await _lowered(wide))
    assert refused.reason == "UNAVAILABLE"
    assert wide.stands(1) == 3
    assert wide.stands(2) == 7, "nobody tells the root of it"
    wide.beside = await wide.another("beside:2", wide.beside.placement.names)
    await settled(wide, "a~2")
    assert wide.stands(2) == 3, "it is known all the same"


async def test_an_answer_that_is_given_all_the_same_is_noticed(wide: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.moved_answers_leave(monkeypatch)
    assert await (await _lowered(wide)) == []
    assert wide.stands(2) == 7, "the root leads what a worker was told"


async def test_nothing_is_granted_before_the_keys_are_taken_in(wide: Tree) -> None:
    await wide.both(9, 7)
    await wide.below.stop()  # so that nobody hands anything over
    slice_ = await wide.top.shard.graph.split("a", "a~1", AT)
    await wide.beside.shard.confirmation.refresh()
    await wide.beside.shard.takeover.serve_those([slice_.name])
    for refused in (wide.beside.claim("a~2"), wide.beside.shard.owners.retire("a~2", AT, b"", force=True)):
        with pytest.raises(errors.Unavailable, match="taking its keys over"):
            await refused
    assert wide.stands(2) == 7
    with pytest.raises(errors.Unavailable, match="still taking over"):
        await wide.top.shard.graph.split("a", "a~0", b"\x40")
    wide.below = await wide.another("below:2", wide.below.placement.names)
    await settled(wide, "a~1", "a~2")
    await wide.top.shard.confirmation.refresh()
    await wide.top.shard.graph.split("a", "a~0", b"\x40")


async def test_rule3_what_is_taken_in_goes_by_the_inputs_of_who_handed_it_over(disk: MemoryDisk) -> None:
    wide = await Tree(disk, beside=True).start(inputs=("x",))
    try:
        await wide.top.shard.graph.register(Spec("y"))
        for name, hour in (("x", 100), ("y", 50)):
            assert await wide.top.report(name, await wide.top.claim(name), hour) == []
        await wide.both(40, 95)
        await wide.below.stop()
        await wide.top.shard.graph.split("a", "a~1", AT)
        await wide.top.shard.graph.set_inputs("a", ("x", "y"))
        await wide.hear()
        await rest()
        wide.below = await wide.another("below:2", wide.below.placement.names)
        await settled(wide, "a~1", "a~2")
        received = wide.beside.shard.held.computation("a~2")
        assert received is not None
        assert received.map.minimum() <= 50 * HOUR
        assert [wide.stands(number) for number in (1, 2)] == [50, 50]
    finally:
        await wide.stop()


@pytest.mark.parametrize("which", ["top", "below", "beside"])
@pytest.mark.parametrize("step", range(6))
async def test_whoever_dies_at_any_step_the_next_one_goes_on(wide: Tree, which: str, step: int) -> None:
    _, grant = await wide.both(9, 7)
    assert await wide.below.report("a~1", grant, 6) == []  # a lowering that was acknowledged
    reached, go_on, planted = asyncio.Event(), asyncio.Event(), pytest.MonkeyPatch()

    def stop_at(name: str, *, before: bool) -> None:
        real: Callable[..., Awaitable[object]] = getattr(Cuts, name)

        async def stopped(self: Cuts, *more: Any) -> object:
            done = None if before else await real(self, *more)
            reached.set()
            await go_on.wait()
            return await real(self, *more) if before else done

        planted.setattr(Cuts, name, stopped)

    if step < 4:
        stop_at(["_hand_over", "_receive"][step // 2], before=step % 2 == 0)
    else:
        wide.way.hold("claim")
    await wide.split("a~1", AT)
    if step < 4:
        await until(reached.is_set)
    else:
        await until(lambda: len(wide.way.sent("claim")) > 2)
    await wide.fail_over(which=which) if which != "top" or step % 2 else await rest()
    planted.undo()
    go_on.set()
    if step >= 4:
        wide.way.let("claim")
    if which == "top" and not step % 2:
        await wide.fail_over(which=which)
    await wide.hear()
    await settled(wide, "a~1", "a~2")
    assert [wide.stands(number) for number in range(3)] == [9, 6, 6]
    assert not wide.top.shard.topology.get("a~2").keys.source
    await work(wide, "a~1", 8)
    await work(wide, "a~2", 8)
    await until(lambda: wide.low() == 8)


async def _sequencers_around_a_reset(wide: Tree) -> tuple[int, int]:
    """Return those of two claims of the same keys, which are cut and reset in between."""
    for _ in range(3):
        await wide.fail_over(which="below")
    await wide.hear()
    before = await wide.below.claim("a~1")
    await wide.below.stop()
    await wide.top.shard.graph.split("a", "a~1", AT)
    await wide.top.shard.graph.reset("a")
    wide.below = await wide.another("below:9", wide.below.placement.names)
    await wide.hear()
    [name] = wide.top.shard.topology.get("a").slices_over(AT, b"")
    return before.sequencer, (await wide.owner(name).claim(name)).sequencer


async def test_sequencers_of_keys_go_on_behind_a_reset_in_the_middle(wide: Tree) -> None:
    before, after = await _sequencers_around_a_reset(wide)
    assert before < after


async def test_a_cut_that_a_reset_leaves_as_it_is_is_noticed(wide: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    switches.resets_keep_a_cut_under_way(monkeypatch)
    before, after = await _sequencers_around_a_reset(wide)
    assert before > after


async def test_records_are_counted_once_though_a_new_half_is_first_and_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root also keeps the budget of its slowest slice, and both over a fail-over."""
    wide = await Tree(MemoryDisk(), beside=True).start(budgets=(100_000,))
    for i, grant in enumerate(await wide.both()):
        newest = wide.now + (i - 2) * HOUR  # within max_skew of the clock
        late = Lateness({0: 1000}, newest, newest, {100_000: (3, MIN)})
        report = GroupReport(grant.sequencer, np.array([7 * HOUR]), lateness=late)
        assert await wide.below.shard.owners.report([(f"a~{i}", report)], sender=b"s" * 16, number=(1, i + 1)) == []

    def budget(name: str) -> tuple[int, int, int]:
        view = wide.owner(name).shard.served.view(name)
        assert view is not None
        [kept] = view.budgets
        return kept.micros, kept.records, kept.behind

    least = min(budget(name)[0] for name in ("a~0", "a~1"))
    assert least > 7 * HOUR
    await wide.below.shard.owners.retire("a~1", AT, b"", force=True)
    await until(lambda: budget("a") == (least, 2000, 6))
    real = wide.way.claim

    async def claim(request: SliceClaim) -> Range:
        if request.name == "a~1" and len(wide.root.map) < 3:
            msg = "the new one is first"
            raise errors.Unavailable(msg)
        return await real(request)

    monkeypatch.setattr(wide.way, "claim", claim)
    await wide.split("a~1", AT)
    await settled(wide, "a~1", "a~2")
    assert budget("a") == (least, 2000, 6)
    wide.way.hold("say")
    await wide.fail_over(top=True)
    assert budget("a") == (least, 2000, 6)
    await wide.stop()


async def test_a_log_that_cannot_be_read_any_more_holds_until_a_reset_undoes_the_cut(wide: Tree) -> None:
    await wide.both(9, 7)
    await wide.below.stop()
    await wide.top.shard.graph.split("a", "a~1", AT)
    one = wide.beside
    wide.disk.logs["a~1"].damage()
    await one.shard.confirmation.refresh()
    await one.shard.takeover.serve_those(["a~2"])
    await rest()
    with pytest.raises(errors.Unavailable):
        await one.claim("a~2")
    assert wide.low() == 7
    await wide.top.shard.graph.reset("a")
    await one.shard.confirmation.refresh()
    assert "a~2" not in one.shard.topology.computations, "the cut is undone"
    with pytest.raises(errors.UnknownComputation):
        await one.claim("a~2")


async def test_one_process_cuts_what_it_serves_alone(disk: MemoryDisk) -> None:
    shard = Shard(MemoryJournal(disk, shared=False), clock=lambda: 1_000 * HOUR, observer=Observer())
    await shard.start()
    rounds = asyncio.create_task(shard.run())
    await shard.graph.register(Spec("a", slicing=Cut((b"\x80",))))
    await shard.graph.split("a", "a~1", AT)
    for number, span in enumerate(((b"", b"\x80"), (b"\x80", AT), (AT, b""))):
        request = ClaimRequest(span, request_id=bytes([number] * 16))
        grant = await shard.owners.claim(f"a~{number}", request)
        report = GroupReport(grant.sequencer, np.array([5 * HOUR]))
        assert await shard.owners.report([(f"a~{number}", report)], sender=b"s" * 16, number=(1, number + 1)) == []
    await until(lambda: (view := shard.served.view("a")) is not None and view.low == 5 * HOUR)
    shard.stop()
    await rounds
    await shard.close()
