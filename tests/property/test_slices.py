"""A root and its slices under anything that may happen between them, beside a dictionary of what workers were told of each key.

The root never counts a slice beyond the least that a worker was told of any of its keys, its low watermark never goes back, and in peace it arrives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowwater import errors
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import GroupState, Mass
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Grant, GroupReport
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, slicing
from lowwater_authority.engine import slices
from tests.kit.memory_journal import MemoryDisk
from tests.kit.tree import NeverCame, Tree, rest, until
from tests.property import slice_switches as switches
from tests.property.search import play

SEED = int(os.environ.get("LOWWATER_SEED", "1"))
EXAMPLES = 25
MOST = 400
"""How many are tried at most for a rule that is switched off: the first that notices it ends the test."""

STEPS = 25
KEYS = 8
"""Keys of one byte, evenly; the last one has no upper bound."""

BEHIND = 50
"""Where the input stands that is added; the other one stands at 100."""

hours = st.integers(1, 99)
widths = st.sampled_from([1, 3, KEYS + 1, KEYS + 1, KEYS + 1])


def edge(key: int) -> bytes:
    return bytes([256 // KEYS * key]) if 0 < key < KEYS else b""


@dataclass
class Key:
    """What is known of a key by who was told what."""

    told: int | None = MIN
    """The last value that a worker was told to be durable; None: it is retired, nobody waits for it."""
    may: list[tuple[int, int | None]] = field(default_factory=list)
    """What was asked for since, by the number of the question, and was not answered: it may be durable."""
    newest: int = 0
    """The newest question that was answered: answers overtake each other."""

    @property
    def most(self) -> int:
        """The greatest value that may count."""
        values = (self.told, *(value for _, value in self.may))
        return max(MAX if value is None else value for value in values)

    def answered(self, number: int, value: int | None) -> None:
        if number < self.newest:
            return
        self.newest = number
        self.told = value
        self.may = [(asked, other) for asked, other in self.may if asked > number]


@dataclass
class Claim:
    """One that was granted."""

    name: str
    keys: list[int]
    grant: Grant
    life: int


class Slices(RuleBasedStateMachine):
    """One computation with two to four slices."""

    tree: Tree

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.keys = [Key() for _ in range(KEYS)]
        self.claims: list[Claim] = []
        self.asked = 0
        self.life = 1
        self.version = 1
        self.low = MIN
        self.before = [MIN] * KEYS
        self.tasks: list[asyncio.Task[None]] = []

    def run(self, what: Coroutine[Any, Any, Any]) -> None:
        """Do something, and let everything go on that can."""
        self.before = [key.most for key in self.keys]

        async def whole() -> None:
            await what
            await rest()

        self.loop.run_until_complete(whole())

    @initialize(cuts=st.sets(st.integers(1, KEYS - 1), min_size=1, max_size=3))
    def begin(self, cuts: set[int]) -> None:
        self.cuts = [0, *sorted(cuts), KEYS]
        self.numbers = list(range(len(self.cuts) - 1))
        """Of the slices, in the order of their keys."""

        async def start() -> None:
            self.tree = await Tree(MemoryDisk(), beside=True).start(
                inputs=("x",), slices=tuple(map(edge, self.cuts[1:-1]))
            )
            await self.tree.top.shard.register(Spec("y"))
            for name, hour in (("x", 100), ("y", BEHIND)):
                assert await self.tree.top.report(name, await self.tree.top.claim(name), hour) == []

        self.run(start())
        for key in self.cuts[:-1]:
            self.claim(key, KEYS + 1, None)
        for number in range(len(self.claims)):
            self.report(number, 30, finish=False)

    def slice_of(self, key: int) -> int:
        """Return the place of the slice of a key, in the order of their keys."""
        return next(place for place in range(len(self.cuts) - 1) if self.cuts[place] <= key < self.cuts[place + 1])

    def name_of(self, key: int) -> str:
        return f"a~{self.numbers[self.slice_of(key)]}"

    def span(self, first: int, more: int) -> list[int]:
        """Return some keys of one slice; all of it where ``more`` is more than there are keys."""
        start, end = self.cuts[self.slice_of(first)], self.cuts[self.slice_of(first) + 1]
        return list(range(start, end)) if more > KEYS else list(range(first, min(first + more, end)))

    def begin_asking(self, keys: Sequence[int], value: Any) -> int:
        self.asked += 1
        for key in keys:
            self.keys[key].may.append((self.asked, value(self.keys[key])))
        return self.asked

    def ask(self, what: Coroutine[Any, Any, None]) -> None:
        async def asking() -> None:
            try:
                await what
            except (errors.LowwaterError, asyncio.CancelledError):
                pass  # whether it was done is not known

        async def started() -> None:
            self.tasks.append(asyncio.ensure_future(asking()))

        self.run(started())

    # -- workers ----------------------------------------------------------------------------------------------------

    @rule(first=st.integers(0, KEYS - 1), more=widths, bound=st.none() | hours)
    def claim(self, first: int, more: int, bound: int | None) -> None:
        keys, life = self.span(first, more), self.life
        name = self.name_of(first)

        def value(key: Key) -> int | None:
            if key.told is None:
                return MIN if bound is None else bound
            return key.told if bound is None else min(key.told, bound)

        number = self.begin_asking(keys, value)

        async def claims() -> None:
            grant = await self.tree.owner(name).claim(name, edge(keys[0]), edge(keys[-1] + 1), bound=bound)
            if life != self.life:
                return
            self.claims.append(Claim(name, keys, grant, life))
            low = min(int(each) for each in grant.watermarks)
            for key in keys:
                self.keys[key].answered(number, low if low == MIN else low // (3600 * 10**6) if low != MAX else MAX)

        self.ask(claims())

    @rule(pick=st.integers(0, 99), hour=hours, finish=st.sampled_from([False, False, False, True]))
    def report(self, pick: int, hour: int, finish: bool) -> None:
        if not self.claims:
            return
        claim = self.claims[pick % len(self.claims)]
        if claim.name not in self.tree.top.shard.topology.computations:
            return
        try:
            below = self.tree.owner(claim.name)
        except errors.Unavailable:
            return
        known = below.shard.topology.get(claim.name).input_version
        hour = min(hour, BEHIND) if self.version > 1 else hour
        value = MAX if finish else hour
        counts = value if known == self.version else min(value, BEHIND)
        life, number = self.life, self.begin_asking(claim.keys, lambda _: counts)

        async def reports() -> None:
            refused = await below.report(claim.name, claim.grant, value, finish=finish)
            lost = {handle for _, each in refused for handle in ([0] if each.handles is None else each.handles)}
            if life == self.life and not lost:
                for key in claim.keys:
                    self.keys[key].answered(number, counts)

        self.ask(reports())

    @rule(pick=st.integers(0, 99))
    def release(self, pick: int) -> None:
        if self.claims:
            claim = self.claims[pick % len(self.claims)]

            async def releases() -> None:
                await self.tree.owner(claim.name).shard.release(claim.name, claim.grant.sequencer)

            self.ask(releases())

    # -- operators --------------------------------------------------------------------------------------------------

    @rule(first=st.integers(0, KEYS - 1), more=widths)
    def retire(self, first: int, more: int) -> None:
        keys, life = self.span(first, more), self.life
        number, name = self.begin_asking(keys, lambda _: None), self.name_of(first)

        async def retires() -> None:
            await self.tree.owner(name).shard.retire(name, edge(keys[0]), edge(keys[-1] + 1), force=True)
            if life == self.life:
                for key in keys:
                    self.keys[key].answered(number, None)

        self.ask(retires())

    @rule(key=st.integers(1, KEYS - 1))
    def split(self, key: int) -> None:
        if key in self.cuts:
            return
        place = self.slice_of(key)

        async def splits() -> None:
            try:
                made = await self.tree.split(self.name_of(key), edge(key))
            except errors.Unavailable:
                return  # another one is still taken in
            self.cuts.insert(place + 1, key)
            self.numbers.insert(place + 1, int(made.rpartition("~")[2]))

        self.run(splits())

    @rule(sure=st.integers(0, 3))
    def reset(self, sure: int) -> None:
        if sure:
            return
        self.run(self.tree.top.shard.reset("a"))
        left = self.tree.top.shard.topology.get("a").slice_specs()
        undone = [place for place, number in enumerate(self.numbers) if f"a~{number}" not in left]
        assert len(undone) <= 1, "one is cut at a time, and a reset undoes no cut that is done"
        for place in undone:
            del self.cuts[place], self.numbers[place]
        self.life += 1
        self.keys = [Key() for _ in range(KEYS)]
        self.claims, self.low, self.before = [], MIN, [MIN] * KEYS
        self.wake()

    @rule()
    def add_an_input(self) -> None:
        if self.version > 1:
            return

        async def adds() -> None:
            try:
                await self.tree.top.shard.set_inputs("a", ["x", "y"])
            except errors.WouldRegress:
                return
            self.version = 2
            for key in self.keys:
                key.told = key.told if key.told is None else min(key.told, BEHIND)
                key.may = [(number, value if value is None else min(value, BEHIND)) for number, value in key.may]

        self.run(adds())
        self.wake()

    def wake(self) -> None:
        """Let the slices look, as they do every few seconds."""

        async def look() -> None:
            for one in (self.tree.below, self.tree.beside):
                for each in one.shard._slices.values():
                    each._news.set()

        self.loop.run_until_complete(look())
        self.run(rest())

    # -- faults -----------------------------------------------------------------------------------------------------

    @rule(which=st.sampled_from(["top", "below", "beside"]))
    def fail_over(self, which: str) -> None:
        self.run(self.tree.fail_over(which=which))

    @rule(kind=st.sampled_from(["claim", "say", "retire"]))
    def hold(self, kind: str) -> None:
        if kind in self.tree.way.held:
            self.tree.way.let(kind)
        else:
            self.tree.way.hold(kind)
        self.run(rest())

    @rule(kind=st.sampled_from(["claim", "say", "retire"]), how=st.sampled_from(["", "", "there", "back"]))
    def lose(self, kind: str, how: str) -> None:
        self.tree.way.lost[kind] = how
        self.run(rest())

    @rule(pick=st.integers(0, 10**6))
    def say_again(self, pick: int) -> None:
        """What was sent long ago arrives once more. Claims have ids of their own, so that one that was granted is."""
        if self.tree.way.came:
            _, again = self.tree.way.came[pick % len(self.tree.way.came)]
            self.ask(_quietly(again()))

    # -- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def the_root_counts_no_slice_beyond_what_was_told_of_its_keys(self) -> None:
        if not hasattr(self, "tree") or not self.tree.top.shard.serves("a"):
            return
        for place, number in enumerate(self.numbers):
            keys = self.keys[self.cuts[place] : self.cuts[place + 1]]
            most = min(key.most for key in keys)
            if self.tree.state(number) is GroupState.RETIRED:
                assert most == MAX, f"slice {number} is retired, but there is {keys}"
            else:
                assert self.tree.stands(number) <= most, f"slice {number} leads {keys}"
        low = self.tree.low()
        assert low >= self.low
        if low > self.low:
            assert low <= min(max(key.most, before) for key, before in zip(self.keys, self.before, strict=True))
            finished = any(key.told == MAX or MAX in dict(key.may).values() for key in self.keys)
            assert low != MAX or finished, "nobody says that nothing will ever come where nobody is left"
        self.low = low

    def teardown(self) -> None:
        """In peace everything arrives."""
        try:
            if hasattr(self, "tree"):
                self.loop.run_until_complete(self._arrive())
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    async def _arrive(self) -> None:
        tree = self.tree
        tree.way.lost.clear()
        for kind in list(tree.way.held):
            tree.way.let(kind)
        for one in (tree.below, tree.beside):
            for each in one.shard._slices.values():
                each._news.set()
        await tree.hear()
        names = [f"a~{number}" for number in self.numbers]
        await until(lambda: all(tree.owner(name).slice(name).is_settled() for name in names))
        await rest()
        self.low = max(self.low, tree.low())  # by what was held until now
        most = max(self.low, 40)  # what is retired holds nobody up until it is claimed
        for place, name in enumerate(names):
            one = tree.owner(name)
            grant = await one.claim(name, bound=40)
            await rest()
            self.low = max(self.low, tree.low())
            assert await one.report(name, grant, 20 + place) == []
        await until(
            lambda: [tree.stands(number) for number in self.numbers] == [20 + place for place in range(len(names))]
        )
        assert list(self.tree.top.shard.topology.get("a").slice_specs()) == names
        await rest()
        assert tree.low() == max(self.low, 20)
        assert tree.low() <= most

    async def _end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if hasattr(self, "tree"):
            await self.tree.stop()
        rest_of_them = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest_of_them:
            task.cancel()
        await asyncio.gather(*rest_of_them, return_exceptions=True)


class Workers(Slices):
    """Where nobody operates: what workers and faults can do is tried more often."""

    retire = split = reset = add_an_input = None  # type: ignore[assignment]

    @rule(which=st.sampled_from(["below", "beside"]))
    def take_over_unheard(self, which: str) -> None:
        """Another process serves slices, and the root does not hear of it."""
        if "claim" not in self.tree.way.held:
            self.tree.way.hold("claim")
        self.fail_over(which)


class Fixed(Slices):
    """Where nobody cuts a slice in two."""

    split = None  # type: ignore[assignment]


async def _quietly(what: Any) -> None:
    await what


class Group(NamedTuple):
    """What a claim of one key tells."""

    low: int
    pending: tuple[int, ...]
    recent: int
    frontier: int
    told: bool


groups = st.builds(
    Group,
    st.integers(0, 90),
    st.lists(st.integers(0, 99), max_size=4).map(lambda times: tuple(sorted(set(times)))),
    st.integers(0, 5),
    st.integers(0, 99),
    st.sampled_from([True] * 9 + [False]),
)


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(
    cuts=st.sets(st.integers(1, 5), min_size=1, max_size=3),
    rounds=st.lists(st.lists(groups, min_size=6, max_size=6), min_size=1, max_size=3),
)
def test_the_heuristics_of_a_root_never_lead_those_of_the_same_claims_without_slices(
    cuts: set[int], rounds: list[list[Group]]
) -> None:
    """And its low watermark is the same."""
    edges = [bytes([index]) if 0 < index < 6 else b"" for index in range(7)]
    spec = Spec("a", heuristics=(990_000, 500_000), slices=tuple(edges[cut] for cut in sorted(cuts)))
    flat = Computation(replace(spec, slices=()))
    root = Computation(spec)
    parts = {name: Computation(each) for name, each in spec.slice_specs().items()}
    numbers = count(1)

    def part(index: int) -> Computation:
        return parts[spec.slices_over(edges[index], edges[index + 1])[0]]

    def claim(where: Computation, start: bytes, end: bytes, **more: Any) -> int:
        request = ClaimRequest([start, end], request_id=next(numbers).to_bytes(16), **more)
        return where.claim(request, 0).sequencer

    def report(where: Computation, sequencer: int, low: int, mass: Mass | None) -> None:
        told = GroupReport(sequencer, np.array([low], dtype=np.int64), fold=NO_FOLD, mass=mass)
        refused = where.report(told, sender=b"s", number=(1, next(numbers)), required=NO_FOLD, now=0, wall=10**9)
        assert refused == []

    def record(where: Computation) -> None:
        where.take_record(0)
        where.publish()

    claims = [[claim(where, edges[i], edges[i + 1]) for where in (flat, part(i))] for i in range(6)]
    above = {
        name: claim(root, *each.spec.span, identity=slicing("a"), generation=1, ordinal=1)
        for name, each in parts.items()
    }
    for told in rounds:
        for i, group in enumerate(told):
            times = np.array(group.pending, dtype=np.int64)
            frontiers = dict.fromkeys(spec.heuristics, group.frontier)
            mass = Mass(times, np.ones(len(times), dtype=np.int64), group.recent, frontiers) if group.told else None
            for where, sequencer in zip((flat, part(i)), claims[i], strict=True):
                report(where, sequencer, group.low, mass)
        record(flat)
        for name, each in parts.items():
            record(each)
            report(root, above[name], each.map.minimum(), each.whole_mass())
        record(root)
        assert root.low == flat.low
        for share in spec.heuristics:
            assert root.heuristics[share] <= flat.heuristics[share]


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the machine."""
    monkeypatch.setattr(slices, "AGAIN_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(slices, "ANSWER_SECONDS", 600.0)


def test_a_root_never_leads_what_was_told_of_its_slices_and_arrives() -> None:
    play(Slices, examples=EXAMPLES, steps=STEPS, seed_=SEED)


@pytest.mark.parametrize(
    ("broken", "machine"),
    [
        (switches.ratchet_is_told, Slices),
        (switches.lowerings_are_acknowledged_at_once, Slices),
        (switches.new_owners_answer_at_once, Workers),
        (switches.any_life_fits, Slices),
        (switches.retired_is_told_as_finished, Fixed),
        (switches.keys_are_exported_early, Slices),
    ],
)
def test_a_rule_that_is_switched_off_is_noticed(
    broken: Any, machine: type[Slices], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, NeverCame, ExceptionGroup)):
        play(machine, examples=MOST, steps=STEPS, seed_=SEED)
