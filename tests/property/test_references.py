"""References against a naive oracle, which knows which rows are where: three regions, a sink, late and repeated requests, restarts at any point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowwater import errors
from lowwater_authority.core.times import MAX, MIN
from lowwater_regions.change import Change
from lowwater_regions.reference import REPLICATED, Position, Reference, Replica, Sink, name_of
from lowwater_regions.references import Agent, Caller, Progress, References
from tests.kit.planting import Bug, Part, bug
from tests.property.search import play

SUSPECT = 10
NAME = name_of("hourly", ["clicks"])
OTHER = name_of("other", ["clicks"])
REGIONS = st.sampled_from("ABC")
STEPS = st.integers(0, 3)
EXAMPLES = 300


class Region:
    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted: set[tuple[int, int]] = set()
        self.rows: set[tuple[int, int]] = set()
        self.promised = 0
        """W: no row below it will be accepted here any more. It never goes back."""
        self.mirrored: tuple[int, int] = (0, 0)
        """The adoption number of the owner that is mirrored, and R: all rows that the owner had or will accept below R are here."""
        self.believed: tuple[str, int] = ("A", 0)
        self.low = 0
        """L, as its pipeline believes: it knows nothing of rows that it does not have."""
        self.batch = -1
        self.number = 0
        self.confirmed = False
        self.returned = True
        self.run = 0
        self.turn = 0
        self.stopped = False


class Regions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.log: list[bytes] = []
        self.core = References(SUSPECT, 10**9, 0)
        self.regions = {name: Region(name) for name in "ABC"}
        self.on_the_way: list[tuple[str, int, bool, Callable[[], Change]]] = []
        self.published: dict[int, int] = {}
        self.token = 0
        self.output: set[tuple[int, int]] = set()
        self.writers: dict[int, str] = {}
        self.numbers: set[int] = set()
        self.write(self.core.begin("store"))

    # -- helpers ----------------------------------------------------------------------------------------------------

    def write(self, change: Change) -> None:
        if not change.empty:
            self.log.append(change.encode())
            self.core.apply(self.log[-1])
        if change.raises is not None:
            raise change.raises

    def caller(self, region: Region) -> Caller:
        region.turn += 1
        token = self.core.store.token
        return Caller(region.name, Agent(region.name, region.run, f"{region.run}"), region.turn, token, 0)

    def ask(self, plan: Callable[[], Change]) -> bool:
        try:
            change = plan()
            self.write(change)
        except errors.LowwaterError:
            return False
        return not change.refused

    def tell(self, method: Callable[..., Change], region: Region, *facts: Any) -> bool:
        return self.ask(lambda: method(self.caller(region), *facts, self.now, len(self.log)))

    @property
    def everything(self) -> set[tuple[int, int]]:
        return set().union(*(region.accepted for region in self.regions.values()))

    @property
    def record(self) -> Reference:
        return self.core.get(NAME)

    def inform(self, region: Region) -> None:
        record = self.record
        if record.owner == region.name and not record.released:
            if region.number != record.number:
                region.low, region.batch = 0, -1
            region.number = record.number
            region.promised = max(region.promised, record.published)
        else:
            region.number = 0
        if record.move is None or region.number == 0:
            region.stopped = False
        if region.believed != (record.owner, record.number):
            region.believed, region.mirrored = (record.owner, record.number), (record.number, 0)
        region.confirmed, region.returned = True, False

    # -- what happens -----------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for region in self.regions.values():
            self.start(region.name)
            self.confirm(region.name)
        for computation in ("hourly", "other"):
            reference = Reference(
                computation,
                ("clicks",),
                tuple("ABC" if computation == "hourly" else "AB"),
                REPLICATED,
                "A",
                sinks=(Sink("lake", fences=True),),
            )
            assert self.tell(self.core.register, self.regions["A"], reference)
        for name in self.regions:
            self.confirm(name)
        self.tell(self.core.progress, self.regions["B"], [], {OTHER: Replica("B", 7, number=1)})
        self.tell(self.core.progress, self.regions["A"], [Progress(OTHER, 1, 1, 7)], {})
        self.neighbour = self.core.get(OTHER)
        assert self.neighbour.published == 7

    @rule(name=REGIONS)
    def start(self, name: str) -> None:
        region = self.regions[name]
        region.run += 1
        region.turn = 0
        region.confirmed, region.returned = False, True

    @rule(name=REGIONS)
    def confirm(self, name: str) -> None:
        region = self.regions[name]
        numbers = {NAME: region.number} if region.number else {}
        if self.tell(self.core.confirm, region, numbers) and NAME in self.core.references:
            self.inform(region)

    @rule(name=REGIONS, ahead=STEPS)
    def accept(self, name: str, ahead: int) -> None:
        region = self.regions[name]
        if not region.number or region.stopped:
            return
        row = (region.promised + ahead, len(self.everything))
        region.accepted.add(row)
        region.rows.add(row)

    @rule(name=REGIONS, source=REGIONS, whole=st.booleans())
    def mirror(self, name: str, source: str, whole: bool) -> None:
        """Rows of another region come. When all that the owner has are here, R is what the owner had promised before they were read."""
        region, other = self.regions[name], self.regions[source]
        missing = sorted(other.rows - region.rows)
        region.rows.update(missing if whole else missing[:1])
        if other.rows <= region.rows and region.believed[0] == source != name:
            region.mirrored = (region.believed[1], other.promised)

    @rule(name=REGIONS, step=STEPS)
    def work(self, name: str, step: int) -> None:
        region = self.regions[name]
        if not region.number or not region.confirmed or region.stopped:
            return
        if self.token < region.number:
            self.token = region.number
        if self.token != region.number:
            region.confirmed = False
            return
        assert self.writers.setdefault(region.number, name) == name, "two regions commit by one number"
        self.output |= region.rows
        region.batch += 1
        region.promised += step
        region.low = region.promised

    @rule(name=REGIONS, ahead=STEPS)
    def live(self, name: str, ahead: int) -> None:
        self.accept(name, ahead)
        self.work(name, ahead + 1)
        self.report(name, late=False)

    @rule(name=REGIONS)
    def catch_up(self, name: str) -> None:
        self.confirm(name)
        self.mirror(name, self.regions[name].believed[0] or name, whole=True)
        self.report(name, late=False)

    @rule(to=REGIONS, crash=st.booleans(), ahead=STEPS)
    def take_over(self, to: str, crash: bool, ahead: int) -> None:
        self.confirm(to)
        self.time_passes(SUSPECT, {to})
        if crash:
            self.crash_before_the_append(to)
        self.adopt(to)
        self.confirm(to)
        self.live(to, ahead)

    @rule(to=REGIONS, before=st.sets(REGIONS), ahead=STEPS, after=st.sets(REGIONS))
    def move(self, to: str, before: set[str], ahead: int, after: set[str]) -> None:
        for name in sorted(before):
            self.catch_up(name)
        for name in self.regions:
            self.confirm(name)
        self.begin_move(to)
        for _ in range(4):
            self.step_of_a_move()
        self.live(to, ahead)
        for name in sorted(after):
            self.catch_up(name)

    @rule(name=REGIONS, late=st.booleans())
    def report(self, name: str, late: bool) -> None:
        region = self.regions[name]
        state = Progress(NAME, region.number or 1, 1, region.low, region.batch, f"{region.number}/{region.batch}")
        number, frontier = region.mirrored
        place = Position("c", "clicks", 0, frontier)
        replica = {NAME: Replica(name, frontier, MAX, (place,), number)} if number else {}
        caller = self.caller(region)
        returned, owns = region.returned, bool(region.number)

        def plan() -> Change:
            return self.core.progress(caller, [state] if owns else [], {} if owns else replica, self.now, len(self.log))

        self.on_the_way.append((name, region.number, returned, plan))
        if not late:
            self.deliver(len(self.on_the_way) - 1, again=False)

    @precondition(lambda self: self.on_the_way)
    @rule(which=st.integers(0, 1000), again=st.booleans())
    def deliver(self, which: int, again: bool) -> None:
        name, number, returned, plan = self.on_the_way[which % len(self.on_the_way)]
        if not again:
            self.on_the_way.remove((name, number, returned, plan))
        before, owner = self.core.snapshot(), (self.record.owner, self.record.number)
        good = self.ask(plan)
        if returned:
            assert self.core.snapshot() == before, "a region that came back has changed something too soon"
        assert not (good and number) or owner == (name, number), "who does not own it has told how far it is"
        if good and not returned and not self.regions[name].returned:
            self.inform(self.regions[name])

    @rule(steps=st.integers(1, SUSPECT), heard=st.sets(REGIONS))
    def time_passes(self, steps: int, heard: set[str]) -> None:
        self.now += steps
        for name in heard:
            region = self.regions[name]
            if self.tell(self.core.progress, region, [], {}):
                self.inform(region)

    @rule(to=REGIONS)
    def adopt(self, to: str) -> None:
        before = self.record
        if self.ask(lambda: self.core.adopt(NAME, to, "ops", 1, self.now)):
            assert before.released or self.core.is_suspect(before.owner, self.now)

    @rule()
    def arrived(self) -> None:
        replaced = [region for region in self.regions.values() if region.number not in (0, self.record.number)]
        if not replaced and all(region.rows >= self.everything for region in self.regions.values()):
            self.ask(lambda: self.core.arrived(NAME, self.now))

    @rule()
    def write_off(self) -> None:
        self.ask(lambda: self.core.write_off(NAME, "ops", 1))

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        log = [self.core.snapshot()] if from_snapshot else list(self.log)
        self.core = References(SUSPECT, 10**9, self.now)
        for record in log:
            self.core.apply(record)

    @rule(to=REGIONS)
    def crash_before_the_append(self, to: str) -> None:
        before = self.core.snapshot()
        for plan in (lambda: self.core.adopt(NAME, to, "op", 1, self.now), lambda: self.core.write_off(NAME, "op", 1)):
            try:
                plan()  # type: ignore[no-untyped-call]
            except errors.LowwaterError:
                pass
        assert self.core.snapshot() == before

    @rule(to=REGIONS)
    def begin_move(self, to: str) -> None:
        self.ask(lambda: self.core.begin_move(NAME, to, self.now))

    @rule()
    def cancel_move(self) -> None:
        if self.ask(lambda: self.core.cancel_move(NAME)):
            for region in self.regions.values():
                region.stopped = False

    @rule()
    def step_of_a_move(self) -> None:
        entry = self.record
        if entry.move is None or not entry.owner:
            return
        owner, target = self.regions[entry.owner], self.regions[entry.move.to]
        state = entry.batch, entry.digest, entry.positions
        if entry.move.step == "wanted" and owner.number == entry.number and owner.confirmed:
            self.work(owner.name, 4)  # past the times of all rows that were accepted
            owner.stopped = True
            progress = Progress(NAME, owner.number, 1, owner.low, owner.batch, f"{owner.number}/{owner.batch}")
            self.tell(self.core.stop, owner, progress)
        elif entry.move.step == "stopped":
            self.mirror(target.name, owner.name, whole=True)
            number, frontier = target.mirrored
            replica = Replica(target.name, frontier, MAX, entry.positions, number)
            self.tell(self.core.arrive, target, NAME, replica, *state)
        elif entry.move.step == "arrived":
            if self.tell(self.core.release, owner, NAME, owner.number, entry.digest):
                owner.number = 0
        elif self.tell(self.core.claim, target, NAME, entry.number, *state):
            self.inform(target)

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def it_does_not_go_back(self) -> None:
        if NAME in self.core.references:
            record = self.record
            assert record.published >= self.published.get(record.incarnation, MIN)
            self.published[record.incarnation] = record.published
            assert record.incarnation == max(self.published)

    @invariant()
    def it_does_not_lead(self) -> None:
        if NAME not in self.core.references:
            return
        for row in self.everything:
            if row[0] < self.record.accepted:
                for region in self.regions.values():
                    assert row in region.rows, f"row {row} is published, and {region.name} does not have it"

    @invariant()
    def numbers_grow(self) -> None:
        if NAME in self.core.references:
            assert self.record.number >= max(self.numbers, default=0)
            self.numbers.add(self.record.number)

    @invariant()
    def one_region_believes_to_own_a_number(self) -> None:
        numbers = [region.number for region in self.regions.values() if region.number]
        assert len(numbers) == len(set(numbers))

    @invariant()
    def the_neighbour_is_as_it_was(self) -> None:
        if hasattr(self, "neighbour"):
            assert self.core.get(OTHER) == self.neighbour


def test_nothing_leads_and_nothing_goes_back() -> None:
    play(Regions, examples=EXAMPLES, steps=40)


@bug("publishable", Reference)
def publish_l(_: Part) -> Part:
    return property(lambda record: max(record.published, record.low))


@bug("replicated", Reference)
def silent_replica_left_out(_: Part) -> Part:
    return property(lambda entry: min((min(one.replicated, one.output) for one in entry.current_replicas), default=MAX))


@bug("current_replicas", Reference)
def replica_of_the_owner_before(_: Part) -> Part:
    return property(lambda record: record.replicas)


@bug("publishable", Reference)
def no_ratchet(_: Part) -> Part:
    return property(lambda record: min([record.low, record.replicated, *(hold.at for hold in record.holds)]))


@bug("_owned_by", References)
def reissued_number(owned_by: Part) -> Part:
    return lambda self, record, region: replace(owned_by(self, record, region), number=record.number)


@bug("adopt", References)
def no_hold(adopt: Part) -> Part:
    return lambda *arguments: Change(tuple(replace(hold, holds=()) for hold in adopt(*arguments).put))


@bug("_check_owner", References)
def no_number_in_record(_: Part) -> Part:
    return lambda *_: None


@bug("_check_confirmed", References)
def no_confirm(_: Part) -> Part:
    return lambda *_: None


@bug("adopt", References)
def shown_before_durable(adopt: Part) -> Part:
    def shown(self: References, *arguments: Any) -> Change:
        change: Change = adopt(self, *arguments)
        self.apply(change.encode())
        return change

    return shown


BUGS = [
    *(publish_l, silent_replica_left_out, replica_of_the_owner_before, no_ratchet, reissued_number),
    *(no_hold, no_number_in_record, no_confirm, shown_before_durable),
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(plant: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup)):
        play(Regions, examples=8 * EXAMPLES, steps=40)
