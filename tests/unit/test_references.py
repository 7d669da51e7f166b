"""Which region owns what: the state machine of references, rule by rule.

The tests of `test_row_...` are the rows about regions of the table of executions that break naive versions: each plays one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lowwater import errors
from lowwater.v1 import regions_pb2 as pb
from lowwater_authority.core.times import MAX, MIN
from lowwater_regions import change, json_records
from lowwater_regions.change import Change
from lowwater_regions.commands.references import adopt_and_write_off
from lowwater_regions.json_records import FORMAT
from lowwater_regions.records import references_pb2 as records
from lowwater_regions.reference import (
    LOCAL,
    MOST_LIFE,
    REPLICATED,
    SERVING,
    Broken,
    Position,
    Reference,
    Replica,
    Sink,
    name_of,
)
from lowwater_regions.references import GAP, Agent, Caller, Progress, References
from tests.kit.times import SECOND

HOURLY = name_of("hourly", ["clicks"])
DAILY = name_of("daily", ["clicks"])
SUSPECT = 10 * SECOND
LATELY = 600 * SECOND
LAKE = (Sink("lake", fences=True),)


def at(offset: int, cluster: str = "a") -> tuple[Position, ...]:
    return (Position(cluster, "clicks", 0, offset),)


class World:
    """A global authority and what its journal holds; regions whose agents number their requests."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[bytes] = []
        self.turns = 0
        self.starts = 0
        self.callers: dict[str, Caller] = {}
        self.core = self._fresh()
        self.do(self.core.begin("store"))
        for region in "AB":
            self.start(region)

    def _fresh(self) -> References:
        return References(SUSPECT, LATELY, self.now)

    def do(self, change: Change) -> Change:
        if not change.empty:
            self.log.append(change.encode())
            self.core.apply(self.log[-1])
        if change.raises is not None:
            raise change.raises
        return change

    def restart(self, *, from_snapshot: bool = False) -> None:
        log = [self.core.snapshot()] if from_snapshot else self.log
        self.core = self._fresh()
        for record in log:
            self.core.apply(record)

    def start(self, region: str) -> None:
        """An agent starts, over the state file of the last one."""
        self.starts += 1
        before = self.callers.get(region)
        run = 1 if before is None else before.agent.run + 1
        self.callers[region] = Caller(region, Agent(region, run, f"nonce-{self.starts}"), 0, self.core.store.token)

    def caller(self, region: str) -> Caller:
        self.turns += 1
        return self.callers[region]._replace(turn=self.turns, seen=len(self.log))

    def confirm(self, region: str, **numbers: int) -> None:
        numbers_told = {name_of(name, ["clicks"]): number for name, number in numbers.items()}
        self.do(self.core.confirm(self.caller(region), numbers_told, self.now, len(self.log)))

    def register(
        self,
        computation: str = "hourly",
        policy: str = REPLICATED,
        sinks: tuple[Sink, ...] = LAKE,
        home: str = "A",
        regions: str = "AB",
    ) -> None:
        reference = Reference(computation, ("clicks",), tuple(regions), policy, home, sinks=sinks)
        self.do(self.core.register(self.caller("A"), reference, self.now, len(self.log)))

    def report(self, region: str, number: int, low: int, batch: int = -1, *, name: str = HOURLY, **more: Any) -> Change:
        progress = Progress(name, number, more.pop("life", 1), low, batch, **more)
        return self.do(self.core.progress(self.caller(region), [progress], {}, self.now, len(self.log)))

    def mirror(self, region: str, frontier: int, positions: tuple[Position, ...] = (), *, name: str = HOURLY) -> Change:
        replica = Replica(region, frontier, MAX, positions, self.core.get(name).number)
        return self.do(self.core.progress(self.caller(region), [], {name: replica}, self.now, len(self.log)))

    def pass_time(self, micros: int, *reporting: str) -> None:
        until = self.now + micros
        while self.now < until:
            self.now = min(until, self.now + SUSPECT // 2)
            for region in reporting:
                self.do(self.core.progress(self.caller(region), [], {}, self.now, len(self.log)))

    def lose(self, region: str) -> None:
        self.pass_time(SUSPECT, *({"A", "B"} - {region}))

    def adopt(self, to: str, name: str = HOURLY) -> None:
        self.do(self.core.adopt(name, to, "ops", 7, self.now))
        self.core.adopted(name, self.now)

    def fail_over(self, name: str = HOURLY) -> None:
        """A is lost, and B adopts."""
        self.lose("A")
        self.adopt("B", name)

    def recover(self, token: str) -> None:
        """The store begins anew, and waits for both regions."""
        self.do(self.core.recover(token, "", ["A", "B"], []))

    def know_token(self) -> None:
        """Every agent has heard of the store as it is now."""
        self.callers = {region: caller._replace(token=self.core.store.token) for region, caller in self.callers.items()}

    @property
    def hourly(self) -> Reference:
        return self.core.get(HOURLY)


@pytest.fixture
def world() -> World:
    """Regions A and B; A owns hourly by 1, and both are confirmed."""
    world_ = World()
    world_.confirm("A")
    world_.confirm("B")
    world_.register()
    return world_


def refused(change: Change, name: str = HOURLY) -> str:
    return change.refused[name].reason


def test_row_l_is_1400_with_the_policy_local_breaks_visibly(world: World) -> None:
    world.register("daily", LOCAL)
    world.mirror("B", 1350, name=DAILY)
    world.report("A", 1, 1400, name=DAILY)
    assert world.core.get(DAILY).published == 1400
    assert not world.core.get(DAILY).written_off
    world.fail_over(DAILY)
    reference = world.core.get(DAILY)
    assert reference.broken == (Broken(1350, 1400, "ops", 7, "A"),)
    assert (reference.published, reference.accepted, reference.written_off) == (1400, 1350, True)
    assert world.core.watermarks()["daily"] == (1, 1400, True)


def test_row_lease_checked_pause_write_is_refused_by_the_token_in_the_write(world: World) -> None:
    """The number grows with each owner, so that a sink which compares it in the write refuses the one that was paused."""
    token = world.hourly.number
    checked = token == world.hourly.number
    world.fail_over()
    sink = world.hourly.number
    assert checked
    assert token < sink
    world.do(world.core.fenced(world.caller("B"), HOURLY, sink, "lake", "", world.now, len(world.log)))
    assert world.hourly.sinks == (Sink("lake", fences=True, fenced=2),)
    for cut in ("7", ""):  # said again after a restart
        world.do(world.core.fenced(world.caller("B"), HOURLY, sink, "lake", cut, world.now, len(world.log)))
    assert world.hourly.sinks == (Sink("lake", fences=True, fenced=2, cut="7"),)


def test_row_a_tail_is_not_merged_after_a_write_off(world: World) -> None:
    world.mirror("B", 50, at(100))
    world.report("A", 1, 60, 6, digest="x", positions=at(120))
    world.fail_over()
    with pytest.raises(errors.RegionRefused, match="holds for no lost region C"):
        world.core.write_off(HOURLY, "ops", 8, "C")
    world.do(world.core.write_off(HOURLY, "ops", 8))
    assert world.hourly.written_off
    assert world.hourly.write_offs[0].positions == at(100)
    world.mirror("A", 80)
    assert world.hourly.published == 50, "B has said nothing yet"
    assert refused(world.report("B", 2, 60, 0, digest="y", positions=at(121))) == "REGION_REFUSED"
    world.report("B", 2, 60, 0, digest="y", positions=at(100))
    assert (world.hourly.published, world.hourly.accepted) == (60, 50)
    world.report("B", 2, 55, 1, digest="z", positions=at(121), life=2)
    reference = world.hourly
    assert (reference.incarnation, reference.written_off, reference.published) == (2, True, 55)


def test_a_reset_alone_does_not_say_that_rows_are_included(world: World) -> None:
    """The reset may be one of an input's, long after: the lost region is still lost, and its rows are in no window."""
    world.register("daily", LOCAL)
    for name in (HOURLY, DAILY):
        world.mirror("B", 50, name=name)
        world.report("A", 1, 60, name=name)
    world.lose("A")
    for name in (HOURLY, DAILY):
        world.adopt("B", name)
        world.report("B", 2, 60, name=name)
    world.do(world.core.write_off(HOURLY, "ops", 8))
    for name in (HOURLY, DAILY):
        with pytest.raises(errors.RegionRefused, match="windows were closed without these rows"):
            world.core.arrived(name, world.now)
        world.report("B", 2, 70, name=name, life=2)
        reference = world.core.get(name)
        assert (reference.incarnation, reference.written_off, reference.accepted <= 50) == (2, True, True)
        with pytest.raises(errors.RegionRefused, match="A is silent"):
            world.core.arrived(name, world.now)
    world.confirm("A")
    for name in (HOURLY, DAILY):
        world.mirror("A", 70, name=name)
        world.do(world.core.arrived(name, world.now, "A"))
        reference = world.core.get(name)
        assert (reference.published, reference.accepted, reference.written_off) == (70, 70, False)


def test_row_a_global_store_from_a_backup_reissues_no_number(world: World) -> None:
    backup = list(world.log)
    world.fail_over()
    records = {region: {HOURLY: json_records.encode(world.hourly)} for region in "AB"}
    position = len(world.log)
    world.log = backup
    world.restart()
    with pytest.raises(errors.Recovering, match="has seen more of it"):
        world.do(world.core.confirm(world.caller("A")._replace(seen=position), {HOURLY: 1}, world.now, len(world.log)))
    with pytest.raises(errors.Recovering):
        world.confirm("A", hourly=1)  # whoever was right before the backup is not believed either
    world.restart()
    with pytest.raises(errors.Recovering):
        world.confirm("A", hourly=1)
    world.do(world.core.recover("store-2", "", ["A", "B"], []))
    for region in "AB":
        world.do(world.core.enrol(world.caller(region), records[region], world.now))
    assert (world.hourly.owner, world.hourly.number) == ("B", 3)
    assert world.core.store.token == "store-2"


def test_row_a_higher_number_alone_stops_an_old_store(world: World) -> None:
    """Its log may have grown as long as the one that was lost."""
    with pytest.raises(errors.Recovering, match="B has a greater number of hourly:clicks"):
        world.confirm("B", hourly=2)


@pytest.mark.parametrize("numbers", [{}, {"anything": 1}])
def test_a_region_of_no_reference_does_not_stop_the_store(world: World, numbers: dict[str, int]) -> None:
    """Whatever it says of the store: its word would stop the store for all others."""
    world.start("nowhere")
    caller = world.caller("nowhere")._replace(seen=10**12)
    for _ in range(2):
        with pytest.raises(errors.RegionRefused, match="it is in no reference here"):
            world.do(world.core.confirm(caller, numbers, world.now, len(world.log)))
        late = world.caller("nowhere")._replace(seen=10**12)
        with pytest.raises(errors.Unconfirmed):
            world.do(world.core.progress(late, [], {}, world.now, len(world.log)))
        caller = world.caller("nowhere")._replace(seen=10**12)
    assert world.core.store.state == SERVING
    world.report("A", 1, 20)


def test_a_second_agent_of_a_region_is_refused_and_does_not_stop_the_store(world: World) -> None:
    mine = world.callers["A"]
    world.callers["A"] = mine._replace(agent=Agent("other", 1, "other"))
    with pytest.raises(errors.SecondAgent):
        world.confirm("A")
    world.callers["A"] = mine._replace(agent=mine.agent._replace(nonce="copy"))  # of a state file that was copied
    with pytest.raises(errors.SecondAgent):
        world.confirm("A")
    other = world.caller("A")._replace(seen=10**12)
    with pytest.raises(errors.SecondAgent):
        world.do(world.core.confirm(other, {}, world.now, len(world.log)))
    assert world.core.store.state == SERVING
    world.callers["A"] = mine
    assert not world.report("A", 1, 20).refused
    world.pass_time(SUSPECT, "B")
    world.callers["A"] = mine._replace(agent=Agent("other", 1, "other"))
    world.confirm("A", hourly=1)
    world.callers["A"] = mine
    with pytest.raises(errors.SecondAgent):
        world.report("A", 1, 20)


def test_rule2_what_is_only_planned_changes_nothing(world: World) -> None:
    """The change counts when its record is durable: another process may write first."""
    world.report("A", 1, 20)
    world.lose("A")
    plans: tuple[Callable[[], Change], ...] = (
        lambda: world.core.adopt(HOURLY, "B", "ops", 7, world.now),
        lambda: world.core.write_off(HOURLY, "ops", 8),
        lambda: world.core.begin_move(HOURLY, "A", world.now),
        lambda: world.core.arrived(HOURLY, world.now, "A"),
        lambda: world.core.forget(HOURLY, world.now),
        lambda: world.core.recover("new", "", ["A", "B"], []),
    )
    for plan in plans:
        before = world.core.snapshot()
        with contextlib.suppress(errors.LowwaterError):
            assert not plan().empty
        assert world.core.snapshot() == before


def test_another_store_is_not_mixed_in(world: World) -> None:
    world.callers["A"] = world.callers["A"]._replace(token="another")
    with pytest.raises(errors.ServerTokenMismatch):
        world.confirm("A")


def test_a_batch_that_comes_as_another_one_is_refused(world: World) -> None:
    world.report("A", 1, 40, 4, digest="d")
    assert refused(world.report("A", 1, 40, 4, digest="other")) == "REWOUND"
    assert refused(world.report("A", 1, 40, 3, digest="c")) == "REWOUND"
    assert not world.report("A", 1, 40, 4, digest="d").refused


def test_a_reset_at_home_is_a_new_incarnation_and_an_older_one_is_refused(world: World) -> None:
    world.mirror("B", 90)
    world.report("A", 1, 40, life=3)
    world.report("A", 1, 10, life=4)
    assert (world.hourly.incarnation, world.hourly.published) == (2, 10)
    assert refused(world.report("A", 1, 40, life=3)) == "REWOUND"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 0),
        ("published", 1 << 70),
        ("owner", None),
        ("positions", [["a", "clicks", 0, "x"]]),
        ("sinks", [["lake", 1, 0, ""]]),
        ("move", [7, "wanted"]),
        ("unheard_of", 1),
    ],
)
def test_a_record_that_would_break_others_later_is_damaged_at_once(world: World, field: str, value: Any) -> None:
    good = json.loads(json_records.encode(world.hourly))
    assert json_records.decode(good) == world.hourly
    with pytest.raises((ValueError, TypeError, KeyError)):
        json_records.decode({**good, field: value})


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_damaged_reference_keeps_its_number_over_snapshots(world: World, from_snapshot: bool) -> None:
    """Without its name in the snapshot its regions would know a greater number than the store, which would stop for all."""
    world.register("daily", LOCAL)
    world.log.append(b'{"format":1,"put":{"hourly:clicks":{"computation":"hourly"}}}')
    world.restart()
    for _ in range(2):
        world.restart(from_snapshot=from_snapshot)
    world.confirm("A", daily=1, hourly=1)
    assert not world.report("A", 1, 30, name=DAILY).refused
    with pytest.raises(errors.RegionRefused, match="damaged"):
        world.register()
    world.recover("new")
    good = json_records.encode(Reference("hourly", ("clicks",), ("A", "B"), REPLICATED, "A", number=7, sinks=LAKE))
    world.do(world.core.enrol(world.caller("A"), {HOURLY: good}, world.now))
    world.do(world.core.enrol(world.caller("B"), {}, world.now))
    world.restart(from_snapshot=True)
    assert (world.hourly.number, world.core.damaged) == (8, {})


def test_a_record_of_a_newer_format_is_refused_as_a_whole(world: World) -> None:
    for record in (b'{"format":2}', records.Change(format=change.FORMAT + 1).SerializeToString()):
        with pytest.raises(change.NewerFormat):
            world.core.apply(record)


def test_a_message_that_cannot_be_read_damages_one_reference_or_is_refused_as_a_whole(world: World) -> None:
    [good] = records.Change.FromString(world.core.snapshot()).references
    bad = [
        records.StoredReference(name=HOURLY, record=b"\xff"),
        records.StoredReference(name=DAILY, record=good.record),
    ]
    stored = records.Change(format=change.FORMAT, references=bad).SerializeToString()
    world.log.append(stored)
    for from_snapshot in (False, True):
        world.restart(from_snapshot=from_snapshot)
        assert {key: entry.record for key, entry in world.core.damaged.items()} == {HOURLY: b"\xff", DAILY: good.record}
    for record in (b"", b"\xff", b"{", stored[2:]):
        with pytest.raises(ValueError, match=r".+"):
            world.core.apply(record)


def test_homes_of_one_computation_share_no_input(world: World) -> None:
    reference = Reference("hourly", ("clicks", "views"), ("A", "B"), REPLICATED, "A")
    with pytest.raises(errors.RegistrationConflict, match="has the home input clicks already"):
        world.core.register(world.caller("A"), reference, world.now, len(world.log))


def test_the_policy_that_an_operator_has_decided_takes_the_place_of_the_one_in_the_files(world: World) -> None:
    with pytest.raises(errors.RegistrationConflict, match=r"replicated is in force; .*references policy"):
        world.register(policy=LOCAL)
    for policy in (LOCAL, REPLICATED):
        world.do(world.core.set_policy(HOURLY, policy))
        world.restart()
        for choice in (LOCAL, REPLICATED):
            world.register(policy=choice)
        assert world.hourly.policy == policy
    with pytest.raises(errors.RegistrationConflict, match="forget"):
        world.register(sinks=())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("computation", "no name"),
        ("inputs", ()),
        ("inputs", ("b", "a")),
        ("regions", ("A",)),
        ("regions", ("A", "B\n")),
        ("owner", "C"),
        ("policy", "best effort"),
        ("sinks", (Sink("x", fences=True), Sink("x", fences=False))),
        ("sinks", (Sink("", fences=True),)),
        ("sinks", (Sink("x" * 200, fences=True),)),
        ("inputs", tuple(f"clicks-{number:03}" for number in range(101))),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(world: World, field: str, value: Any) -> None:
    reference = replace(Reference("weekly", ("clicks",), ("A", "B"), REPLICATED, "A"), **{field: value})
    with pytest.raises(errors.InvalidArgument, match=field):
        world.core.register(world.caller("A"), reference, world.now, len(world.log))


def test_names_that_would_be_relayed_as_one_are_refused(world: World) -> None:
    world.register("sales/hourly")
    with pytest.raises(errors.RegistrationConflict, match=r"would both be relayed as global/sales\.hourly"):
        world.register("sales.hourly")


def test_more_than_can_be_told_every_second_is_refused_of_one_reference_alone(world: World) -> None:
    world.register("daily", LOCAL)
    many = tuple(Position("a", "clicks", partition, 1) for partition in range(1001))
    progress = [Progress(HOURLY, 1, 1, 30, positions=many), Progress(DAILY, 1, 1, 30)]
    change = world.do(world.core.progress(world.caller("A"), progress, {}, world.now, len(world.log)))
    assert refused(change) == "REGION_REFUSED"
    assert world.core.get(DAILY).published == 30
    assert refused(world.report("A", 1, 30, digest="x" * 2000)) == "REGION_REFUSED"
    assert refused(world.mirror("B", 30, (Position("a", "x" * 2000, 0, 1),))) == "REGION_REFUSED"


def test_numbers_and_incarnations_go_on_after_a_reference_was_forgotten(world: World) -> None:
    world.fail_over()
    before = world.core.watermarks()["hourly"][0]
    with pytest.raises(errors.RegionRefused, match="its owner B is alive"):
        world.core.forget(HOURLY, world.now)
    world.pass_time(SUSPECT, "A")
    world.do(world.core.forget(HOURLY, world.now))
    world.restart(from_snapshot=True)
    world.confirm("A", hourly=1)
    world.register()
    assert world.hourly.number == 3
    assert world.core.watermarks()["hourly"][0] > before


def test_a_region_that_is_not_heard_of_adopts_nothing(world: World) -> None:
    world.pass_time(SUSPECT)
    with pytest.raises(errors.RegionRefused, match="B is silent"):
        world.adopt("B")
    with pytest.raises(errors.RegionRefused, match="'C' is none of its regions"):
        world.adopt("C")


def automatic(world: World) -> list[tuple[str, str]]:
    return world.core.adoptions(world.now)


def test_automatic_adoption_needs_everything_to_be_known(world: World) -> None:
    world.mirror("B", 50, at(100))
    world.pass_time(LATELY, "A", "B")
    world.lose("A")
    assert automatic(world) == []  # the operator has not allowed it
    world.do(world.core.allow_automatic(HOURLY, allowed=True))
    assert automatic(world) == [(HOURLY, "B")]
    for positions in ((), at(-1)):
        world.mirror("B", 50, positions)
        assert automatic(world) == []
    world.mirror("B", MIN, at(100))
    assert automatic(world) == []
    world.mirror("B", 50, at(100))
    world.adopt("B")
    world.confirm("A")
    world.mirror("A", 60, at(100))
    world.lose("B")
    assert automatic(world) == []  # it was adopted lately
    world.pass_time(LATELY, "A")
    assert automatic(world) == [(HOURLY, "A")]
    world.restart()
    world.confirm("A")
    world.pass_time(SUSPECT, "A")
    assert automatic(world) == []  # nobody knows any more when it was
    world.pass_time(LATELY, "A")
    assert automatic(world) == [(HOURLY, "A")]


def test_a_replica_in_a_record_of_an_older_version_counts_when_it_is_told_again(world: World) -> None:
    world.mirror("B", 50)
    fields = json.loads(json_records.encode(world.hourly))
    fields["replicas"] = [replica[:4] for replica in fields["replicas"]]
    world.core.apply(json.dumps({"format": FORMAT, "put": {HOURLY: fields}}).encode())
    world.report("A", 1, 60)
    assert world.hourly.published == MIN
    world.mirror("B", 50)
    assert world.hourly.published == 50


def test_an_agent_that_does_not_say_whose_rows_it_has_is_told_to_be_upgraded(world: World) -> None:
    change = world.core.progress(world.caller("B"), [], {HOURLY: Replica("B", 50)}, world.now, len(world.log))
    assert "upgrade its `lowwater region`" in change.refused[HOURLY].message
    world.mirror("A", 50)
    assert world.hourly.replicas == (), "an owner keeps no replica of itself"


def test_the_next_owner_has_to_have_read_what_it_has_of_the_owner_that_stopped(world: World) -> None:
    world.mirror("B", 20)
    stop_to_move(world)
    with pytest.raises(errors.RegionRefused, match="is of number 2, and A stopped by 1"):
        arrive(world, Replica("B", 20, MAX, at(40), 2))


def stop_to_move(world: World) -> None:
    world.report("A", 1, 20, 4, digest="d", positions=at(40))
    world.do(world.core.begin_move(HOURLY, "B", world.now))
    progress = Progress(HOURLY, 1, 1, 20, 4, "d", at(40))
    for _ in range(2):
        world.do(world.core.stop(world.caller("A"), progress, world.now, len(world.log)))


def arrive(world: World, replica: Replica, digest: str = "d") -> None:
    for _ in range(2):
        world.do(
            world.core.arrive(
                world.caller("B"), HOURLY, replica, 4, digest, replica.positions, world.now, len(world.log)
            )
        )


def release(world: World) -> None:
    for _ in range(2):
        world.do(world.core.release(world.caller("A"), HOURLY, 1, "d", world.now, len(world.log)))


def claim(world: World, positions: tuple[Position, ...] = at(40)) -> None:
    for _ in range(2):
        world.do(world.core.claim(world.caller("B"), HOURLY, 1, 4, "d", positions, world.now, len(world.log)))


def test_a_planned_move_loses_nothing_and_writes_nothing_off(world: World) -> None:
    world.mirror("B", 20)
    stop_to_move(world)
    assert refused(world.report("A", 1, 30, 5, digest="e")) == "REGION_REFUSED"
    with pytest.raises(errors.RegionRefused, match="R is at 19"):
        arrive(world, Replica("B", 19, MAX, at(40), 1))
    with pytest.raises(errors.RegionRefused, match="the output's replica is at 19"):
        arrive(world, Replica("B", 20, 19, at(40), 1))
    with pytest.raises(errors.RegionRefused, match="does not have everything yet"):
        release(world)
    with pytest.raises(errors.RegionRefused, match="its state is of batch 4"):
        arrive(world, Replica("B", 20, MAX, at(40), 1), digest="other")
    arrive(world, Replica("B", 20, MAX, at(40), 1))
    with pytest.raises(errors.RegionRefused, match="has not released"):
        claim(world)
    release(world)
    assert refused(world.report("A", 1, 20, 4, digest="d")) == "STALE_ADOPTION"
    with pytest.raises(errors.RegionRefused, match="positions"):
        claim(world, at(39))
    claim(world)
    state = world.hourly
    assert (state.owner, state.number, state.move, state.holds, state.written_off) == ("B", 2, None, (), False)
    assert state.published == 20
    world.mirror("A", 90)
    world.report("B", 2, 30)
    assert world.hourly.published == 30


@pytest.mark.parametrize("steps", range(1, 4))
def test_a_move_is_cancelled_before_the_release(world: World, steps: int) -> None:
    world.mirror("B", 20)
    world.report("A", 1, 20, 4, digest="d", positions=at(40))
    world.do(world.core.begin_move(HOURLY, "B", world.now))
    if steps > 1:
        progress = Progress(HOURLY, 1, 1, 20, 4, "d", at(40))
        world.do(world.core.stop(world.caller("A"), progress, world.now, len(world.log)))
    if steps > 2:
        arrive(world, Replica("B", 20, MAX, at(40), 1))
    world.restart()
    world.confirm("A", hourly=1)
    world.do(world.core.cancel_move(HOURLY))
    assert not world.report("A", 1, 30, 5, digest="e").refused
    with pytest.raises(errors.RegionRefused, match="not being moved"):
        release(world)


def test_a_move_is_not_cancelled_behind_the_release_and_may_be_adopted(world: World) -> None:
    world.mirror("B", 20)
    stop_to_move(world)
    arrive(world, Replica("B", 20, MAX, at(40), 1))
    release(world)
    with pytest.raises(errors.RegionRefused, match="has released it"):
        world.core.cancel_move(HOURLY)
    world.adopt("A")  # no wait: nobody owns it
    assert (world.hourly.owner, world.hourly.number, world.hourly.holds) == ("A", 2, ())


def test_a_lost_store_is_made_again_from_what_the_regions_were_told(world: World) -> None:
    world.mirror("B", 50, at(100))
    world.report("A", 1, 60)
    world.fail_over()
    world.do(world.core.write_off(HOURLY, "ops", 8))
    record = json_records.encode(world.hourly)
    lost = World()
    lost.do(lost.core.recover("new", "store", ["A", "B"], []))
    for region in "AB":
        lost.callers[region] = lost.callers[region]._replace(token="store")
    lost.do(lost.core.enrol(lost.caller("A"), {}, lost.now))
    with pytest.raises(errors.Recovering, match="waits for B"):
        lost.confirm("A")
    for _ in range(2):
        lost.do(lost.core.enrol(lost.caller("B"), {HOURLY: record}, lost.now))
    assert (lost.hourly.owner, lost.hourly.number) == ("B", 3)
    assert lost.hourly.write_offs == world.hourly.write_offs
    with pytest.raises(errors.ServerTokenMismatch):
        lost.report("B", 3, 60)
    lost.callers["B"] = lost.callers["B"]._replace(token="new")
    with pytest.raises(errors.Unconfirmed):
        lost.report("B", 3, 60)


@pytest.mark.parametrize(("regions", "fenced"), [("eu,us", ""), ("eu", "us")])
def test_a_recovery_serves_nobody_while_a_record_names_a_region_that_it_leaves_out(regions: str, fenced: str) -> None:
    """The store is a new one and knows nobody. us adopted before the loss, by a number that eu has not heard of."""
    record = json_records.encode(Reference("hourly", ("clicks",), ("eu", "us"), REPLICATED, "eu", sinks=LAKE))
    world = World()
    world.start("eu")
    world.start("us")
    world.do(world.core.recover("new", "store", ["eu"], []))
    for _ in range(2):
        world.do(world.core.enrol(world.caller("eu"), {HOURLY: record}, world.now))
        with pytest.raises(errors.Recovering, match=r"eu name us, .* us added to --regions, or to --fenced"):
            world.confirm("eu")
        world.restart(from_snapshot=True)
    with pytest.raises(errors.InvalidArgument, match="leaves out us"):
        world.core.recover("newer", "", ["eu"], [])
    world.do(world.core.recover("newer", "", regions.split(","), fenced.split(",") if fenced else []))
    for region in regions.split(","):
        world.do(world.core.enrol(world.caller(region), {HOURLY: record} if region == "eu" else {}, world.now))
    assert world.core.store.state == SERVING
    assert (world.hourly.number > 1000) == bool(fenced)


def test_what_was_forgotten_stays_so_over_a_recovery(world: World) -> None:
    """Each region still has its record, by which it would come back with its old owner, and hold for it."""
    world.register("daily", LOCAL)
    world.report("A", 1, 30, name=DAILY)
    records = {name: json_records.encode(world.core.get(name)) for name in (HOURLY, DAILY)}
    world.lose("A")
    world.do(world.core.forget(HOURLY, world.now))
    before = world.core.watermarks()
    world.recover("new")
    for region in "AB":
        world.do(world.core.enrol(world.caller(region), records, world.now))
    assert world.core.watermarks() == before == {"daily": (1, 30, False)}
    with pytest.raises(errors.UnknownReference):
        world.core.get(HOURLY)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"number": 9}', "null", "another", "surrogate"])
@pytest.mark.parametrize("order", ["AB", "BA"])
def test_an_unreadable_record_is_refused_alone_when_a_region_enrols(world: World, damaged: str, order: str) -> None:
    """The unreadable record may be the newest, with a greater number and a hold that nobody else knows: no other record of the reference counts."""
    world.register("daily", LOCAL)
    hourly, daily = json_records.encode(world.hourly), json_records.encode(world.core.get(DAILY))
    variants = {"another": daily, "surrogate": json.dumps({**json.loads(hourly), "\ud800": 1})}
    records = {"A": {HOURLY: variants.get(damaged, damaged), DAILY: daily}, "B": {HOURLY: hourly, DAILY: daily}}
    world.recover("new")
    for region in order:
        change = world.do(world.core.enrol(world.caller(region), records[region], world.now))
        assert list(change.refused) == ([HOURLY] if region == "A" else [])
        world.restart(from_snapshot=region == "B")
    assert (world.core.store.state, world.core.get(DAILY).number) == ("serving", 2)
    with pytest.raises(errors.RegionRefused, match="the record that A has of it cannot be read"):
        world.core.get(HOURLY)
    world.do(world.core.recover("newer", "store", ["B"], ["A"]))
    world.do(world.core.enrol(world.caller("B"), records["B"], world.now))
    assert world.hourly.number == 1 + 1 + GAP, "its folder was removed, and its sinks are fenced"


def test_the_greatest_local_incarnation_survives_a_recovery(world: World) -> None:
    record = json_records.encode(replace(world.hourly, number=2, life=MOST_LIFE))
    world.do(world.core.recover("new", "", ["A"], ["B"]))
    world.do(world.core.enrol(world.caller("A"), {HOURLY: record}, world.now))
    assert (world.core.store.state, world.hourly.life) == ("serving", MOST_LIFE)


def test_a_region_of_another_store_does_not_enrol(world: World) -> None:
    world.recover("new")
    world.callers["A"] = world.callers["A"]._replace(token="foreign")
    with pytest.raises(errors.ServerTokenMismatch):
        world.core.enrol(world.caller("A"), {}, world.now)


def test_two_that_own_it_by_one_number_own_nothing_after_a_recovery(world: World) -> None:
    mine = world.hourly
    world.recover("new")
    world.do(world.core.enrol(world.caller("A"), {HOURLY: json_records.encode(mine)}, world.now))
    world.do(world.core.enrol(world.caller("B"), {HOURLY: json_records.encode(replace(mine, owner="B"))}, world.now))
    assert world.hourly.owner == ""
    world.know_token()
    world.confirm("A", hourly=1)
    world.confirm("B")
    world.mirror("B", 50, at(100))
    assert world.hourly.replicated == MIN, "nobody can say whose rows these are"
    world.adopt("B")
    assert (world.hourly.owner, world.hourly.number) == ("B", 3)


def test_rows_of_an_owner_that_nobody_knows_have_arrived_when_all_regions_are_heard_of(world: World) -> None:
    """Any of the regions may be the one that was lost."""
    test_two_that_own_it_by_one_number_own_nothing_after_a_recovery(world)
    assert [(hold.at, hold.region) for hold in world.hourly.holds] == [(MIN, "")]
    world.pass_time(SUSPECT, "B")
    with pytest.raises(errors.RegionRefused, match="A is silent"):
        world.core.arrived(HOURLY, world.now)
    world.confirm("A")
    world.do(world.core.arrived(HOURLY, world.now))
    assert (world.hourly.holds, world.hourly.written_off) == ((), False)


def everything(world: World) -> None:
    world.mirror("B", 50, at(100))
    world.report("A", 1, 60, 6, digest="x", positions=at(120))
    world.fail_over()
    world.do(world.core.write_off(HOURLY, "ops", 8))
    world.confirm("A")
    world.mirror("A", 10)
    world.do(world.core.begin_move(HOURLY, "A", world.now))
    world.register("daily", LOCAL, home="B")


def test_rule8_a_late_decision_changes_nothing_of_a_reference_that_has_changed_since(world: World) -> None:
    world.register()
    reference = world.core.get(HOURLY)
    state = reference.number, reference.decision_number
    for policy in (LOCAL, REPLICATED):  # the record is as it was, but for the count
        world.core.check_decision(HOURLY, reference.number, world.core.get(HOURLY).decision_number)
        world.do(world.core.decided(world.core.set_policy(HOURLY, policy)))
    assert world.core.get(HOURLY).policy == REPLICATED
    world.restart()
    with pytest.raises(errors.RegionRefused, match="it has changed since this was decided"):
        world.core.check_decision(HOURLY, *state)
    world.core.check_decision(HOURLY, 0, 0)  # of a release that names none
    world.core.check_decision("nothing:clicks", *state)


def test_rule8_a_late_recovery_begins_no_second_one(world: World) -> None:
    world.register()
    world.do(world.core.recover("second", "", ["A", "B"], [], "store"))
    with pytest.raises(errors.ServerTokenMismatch, match="another token than the one that this was decided on"):
        world.core.recover("third", "", ["A", "B"], [], "store")
    world.do(world.core.recover("third", "", ["A", "B"], [], "second"))


def test_a_record_of_a_release_that_counted_no_decisions_is_read(world: World) -> None:
    world.register()
    record = json.loads(json_records.encode(world.core.get(HOURLY)))
    del record["decision_number"]
    assert json_records.decode(record).decision_number == 0


class Center:
    """A global authority with one reference; ``holds`` is what an adoption leaves behind."""

    def __init__(self, owner: str, before: tuple[str, ...], holds: tuple[str, ...]) -> None:
        self.view = pb.ReferenceView(owner=owner, holds_for=before)
        self.holds = holds
        self.decisions: list[tuple[Any, str]] = []

    def list(self, _: str) -> pb.ListReferencesResponse:
        return pb.ListReferencesResponse(references=[self.view])

    def decide(self, decision: Any, _: Any, region: str) -> pb.ListReferencesResponse:
        self.decisions.append((decision, region))
        self.view = pb.ReferenceView(owner="us", holds_for=self.holds)
        return pb.ListReferencesResponse(references=[self.view])


ADOPT, WRITE_OFF = (pb.DECISION_ADOPT, "us"), pb.DECISION_WRITE_OFF


@pytest.mark.parametrize(
    ("center", "decisions"),
    [
        (Center("eu", (), ("eu",)), [ADOPT, (WRITE_OFF, "eu")]),
        (Center("eu", ("asia",), ("asia", "eu")), [ADOPT, (WRITE_OFF, "eu")]),  # not what asia has
        (Center("us", ("eu",), ("eu",)), [(WRITE_OFF, "eu")]),  # the rest of a command that was broken off
        (Center("eu", (), ()), [ADOPT]),  # of a local reference, or one that was released
        (Center("", (), ("",)), [ADOPT, (WRITE_OFF, "")]),
        (Center("", ("asia",), ("asia", "")), [ADOPT]),  # an empty name would mean both
    ],
)
def test_it_gives_up_what_the_last_owner_has(center: Center, decisions: list[tuple[Any, str]]) -> None:
    args = argparse.Namespace(reference="hourly:clicks", to="us")
    adopt_and_write_off(center, args)  # type: ignore[arg-type]
    assert center.decisions == decisions
