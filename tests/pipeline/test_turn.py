"""One key's turn: against an oracle that has sorted lists and looks at all of them before each step, and what breaks without each sentence of the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater_pipeline.computation.codec import Codec
from lowwater_pipeline.computation.computation import END, Computation, Input, Output, Record, Timer, floor
from lowwater_pipeline.computation.turn import Context, Kept, Turns
from tests.kit.times import MAX, MIN

LOG = Codec[list[str]](list[str])

Action = tuple[str, str, int, int | None]
"""An action, a tag, how much later than the record or the timer it is, and a hold or a timestamp, as much later."""

TAGS: dict[str, list[Action]] = {
    "quiet": [],
    "loud": [("produce", "", 0, None)],
    "parent": [("set", "loud", 3, None)],
    "past": [("set", "loud", -4, None), ("produce", "", 0, -4)],
    "rings": [("wall", "loud", 2, None)],
    "clears": [("clear", "loud", 2, None), ("set", "quiet", 1, 1)],
}
"""The actions of a timer, by its tag."""


class Script(Computation):
    """Does what its records and the tags of its timers say, and keeps a log of that."""

    name = "script"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", id="id")]
    outputs: ClassVar[Mapping[str, str | Output]] = {"out": "what string"}
    state = LOG

    def __init__(self, length: int = 1, *, in_order: bool = False) -> None:
        self.stamp = timedelta(microseconds=length) if length > 1 else None  # type: ignore[misc]
        self.in_order = in_order  # type: ignore[misc]

    def process_record(self, ctx: Context, record: Record) -> None:
        ctx.state.append(f"record {record.id} {record.timestamp}")
        self.act(ctx, record["do"], record.timestamp)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state.append(f"{'wall' if timer.wall else 'timer'} {timer.tag} {timer.at} {timer.hold}")
        self.act(ctx, TAGS[timer.tag], timer.at)

    def act(self, ctx: Context, actions: Sequence[Action], at: int) -> None:
        for what, tag, later, other in actions:
            try:
                if what == "produce":
                    ctx.produce("out", {"what": "x"}, None if other is None else at + other)
                elif what == "clear":
                    ctx.clear_timer(tag, at + later)
                elif what == "unring":
                    ctx.clear_wall_timer(tag, at + later)
                else:
                    sets = ctx.set_timer if what == "set" else ctx.set_wall_timer
                    sets(tag, at + later, hold=None if other is None else at + other)
            except ValueError:
                ctx.state.append(f"refused {what}")


OUTPUTS = {"out": frozenset({"what"})}


@dataclass
class Oracle:
    """One key. Before each step it looks for what comes next, among all there is."""

    length: int = 1
    log: list[str] = field(default_factory=list[str])
    out: list[int] = field(default_factory=list[int])
    timers: dict[str, list[tuple[int, str, int]]] = field(default_factory=lambda: {"set": [], "wall": []})

    def turn(self, records: Sequence[Record], low: int, now: int) -> None:
        waiting = sorted(records, key=lambda record: (record.timestamp, record.id))
        while True:
            due = sorted(timer for timer in self.timers["set"] if timer[0] <= low)
            if waiting:
                due = [timer for timer in due if timer[0] <= waiting[0].timestamp]
            rings = sorted(timer for timer in self.timers["wall"] if timer[0] <= now)
            if due:
                self.fire("set", due[0])
            elif waiting:
                record = waiting.pop(0)
                self.log.append(f"record {record.id} {record.timestamp}")
                start = record.timestamp // self.length * self.length
                self.act(record["do"], record.timestamp, start, record.timestamp)
            elif rings:
                self.fire("wall", rings[0])
            else:
                return

    def fire(self, kind: str, timer: tuple[int, str, int]) -> None:
        self.timers[kind].remove(timer)
        at, tag, hold = timer
        self.log.append(f"{'wall' if kind == 'wall' else 'timer'} {tag} {at} {hold}")
        self.act(TAGS[tag], at, hold, hold if kind == "wall" else max(at, hold))

    def act(self, actions: Sequence[Action], at: int, bound: int, stamp: int) -> None:
        for what, tag, later, other in actions:
            least = min([bound, *(hold for timers in self.timers.values() for _, _, hold in timers)])
            if what == "produce":
                moment = stamp if other is None else at + other
                if moment < least:
                    self.log.append("refused produce")
                else:
                    self.out.append(moment)
            elif what in ("clear", "unring"):
                kind = "set" if what == "clear" else "wall"
                self.timers[kind] = [timer for timer in self.timers[kind] if timer[:2] != (at + later, tag)]
            else:
                default = max(at + later, bound) if what == "set" and self.length == 1 else bound
                hold = default if other is None else at + other
                if hold < least:
                    self.log.append(f"refused {what}")
                    continue
                same = [timer for timer in self.timers[what] if timer[:2] == (at + later, tag)]
                others = [timer for timer in self.timers[what] if timer not in same]
                self.timers[what] = [*others, min([*same, (at + later, tag, hold)])]


def take(turns: Turns, entry: Kept, records: Sequence[Record]) -> tuple[Kept, list[int]]:
    before = len(turns.productions)
    entry = turns.take("k", entry, records)
    return entry, [timestamp for _, _, timestamp in turns.productions[before:]]


def log(entry: Kept) -> list[str]:
    return [] if entry.state is None else LOG.decode(entry.state)


def record(timestamp: int, identity: int, *actions: Action) -> Record:
    return Record(timestamp, identity, {"do": list(actions)})


actions = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "wall", "clear", "unring", "produce"]),
        st.sampled_from(sorted(TAGS)),
        st.integers(-6, 12),
        st.one_of(st.none(), st.integers(-6, 4)),
    ),
    max_size=3,
)
batches = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 40), actions), max_size=6), st.integers(0, 15), st.integers(0, 15)),
    min_size=1,
    max_size=6,
)


@given(batches, st.sampled_from([1, 5]), st.booleans())
def test_a_key_meets_records_and_timers_in_the_order_of_the_oracle(
    batches: list[tuple[list[tuple[int, list[Action]]], int, int]], length: int, finished: bool
) -> None:
    oracle, entry = Oracle(length), Kept()
    low, now, number = MIN, 0, 0
    for i, (rows, step, tick) in enumerate(batches):
        low = MAX if finished and i == len(batches) - 1 else max(low, 0) + step if i else MIN
        now += tick
        records = [record(timestamp, number + j, *actions) for j, (timestamp, actions) in enumerate(rows)]
        number += len(records)
        oracle.turn(records, low, now)
        turns = Turns(Script(length), OUTPUTS, low, now)
        entry, out = take(turns, entry, records[::-1])
        assert log(entry) == oracle.log
        assert out == oracle.out
        oracle.out.clear()
        assert sorted((*timer, hold) for timer, hold in entry.timers.items()) == sorted(oracle.timers["set"])
        assert sorted((*timer, hold) for timer, hold in entry.wall_timers.items()) == sorted(oracle.timers["wall"])
        held = [hold for timers in oracle.timers.values() for _, _, hold in timers]
        assert entry.hold(length) == min(held, default=MAX)
        assert entry.due == min((at for at, _, _ in oracle.timers["set"]), default=MAX)
        assert entry.wall == min((at for at, _, _ in oracle.timers["wall"]), default=MAX)


@given(
    st.lists(st.tuples(st.integers(0, 40), actions), max_size=12),
    st.lists(st.integers(0, 12), max_size=5),
    st.randoms(use_true_random=False),
)
def test_in_order_batches_do_not_matter(steps: list[tuple[int, list[Action]]], cuts: list[int], chance: Any) -> None:
    steps = [(t, [action for action in actions if action[0] not in ("wall", "unring")]) for t, actions in steps]
    # A clock that the hooks can see tells batches apart.
    steps = [(t, [action for action in actions if action[1] != "rings"]) for t, actions in steps]
    records = [record(timestamp, number, *actions) for number, (timestamp, actions) in enumerate(steps)]
    whole, expected = take(Turns(Script(5, in_order=True), OUTPUTS, MAX), Kept(), records)
    entry, out, rest = Kept(), list[int](), list(records)
    chance.shuffle(rest)
    for cut in cuts:
        now, rest = rest[:cut], rest[cut:]
        low = min((record.timestamp for record in rest), default=MAX)
        entry, more = take(Turns(Script(5, in_order=True), OUTPUTS, low), entry, now)
        waiting = [record.timestamp for record in entry.waiting]
        assert all(time >= low for time in waiting)
        assert entry.hold(5) == min([*(floor(time, 5) for time in waiting), *entry.timers.values()], default=MAX)
        assert entry.due == min([*(time + 1 for time in waiting), *(at for at, _ in entry.timers)], default=MAX)
        out += more
    entry, more = take(Turns(Script(5, in_order=True), OUTPUTS, MAX), entry, rest)
    assert (log(entry), out + more) == (log(whole), expected)
    records_seen = [int(line.split()[2]) for line in log(entry) if line.startswith("record")]
    assert all(a <= b for a, b in pairwise(records_seen))


class Once(Computation):
    name = "once"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "out": "a long, b long",
        "other": "a long",
        "times": Output("a long, start timestamp", event_time="START"),
    }

    def __init__(
        self, record: Callable[[Context], None], timer: Callable[[Context], None] = lambda _: None, length: int = 1
    ) -> None:
        self.stamp = timedelta(microseconds=length) if length > 1 else None  # type: ignore[misc]
        self.on_record, self.on_timer = record, timer

    def process_record(self, ctx: Context, record: Record) -> None:
        self.on_record(ctx)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        self.on_timer(ctx)


def once(computation: Computation, low: int = 100, entry: Kept | None = None, now: int = 0, most: int = 1000) -> Turns:
    outputs = {"out": frozenset("ab"), "other": frozenset("a"), "times": frozenset({"a", "start"})}
    turns = Turns(computation, outputs, low, now, most)
    turns.take("k", entry or Kept(), [Record(25)] if entry is None else [])
    return turns


ROW = {"a": 1, "b": None}


@pytest.mark.parametrize(
    ("does", "error", "text"),
    [
        (lambda ctx: ctx.produce("aut", ROW), ValueError, "once has no output 'aut'; it declares out, other, times"),
        (lambda ctx: ctx.produce("out", {"a": 1, "c": 2}), ValueError, "b is missing, c is not declared"),
        (lambda ctx: ctx.produce("out", [1, None]), TypeError, r"is a dict of its columns, not \[1, None\]"),
        (lambda ctx: ctx.produce("out", ROW, timestamp=1.5), TypeError, r"timestamp= of once is 1\.5; times are micro"),
        (lambda ctx: ctx.set_timer("t", None), TypeError, "at= of once is None; times are microseconds"),
        (lambda ctx: ctx.set_timer("t", MAX), ValueError, "below MAX. For the end of all input take END"),
        (lambda ctx: ctx.set_timer(3, 30), TypeError, "the tag of a timer of once is a text, not 3"),
        (lambda ctx: ctx.state, ValueError, r"once declares no state: write state = Codec\(...\)"),
    ],
    ids=["output", "columns", "row", "timestamp", "at", "end", "tag", "state"],
)
def test_a_wrong_hook_is_told_with_the_fix(does: Callable[[Context], None], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        once(Once(does))


def test_a_timer_that_sets_itself_anew_for_ever_ends_with_a_reason() -> None:
    class Every(Once):
        def process_timer(self, ctx: Context, timer: Timer) -> None:
            ctx.set_timer("t", timer.at + 1)

    every = Every(lambda ctx: ctx.set_timer("t", 30))
    once(every, low=9000)
    turns = Turns(every, {"out": frozenset("ab")}, MAX, most=1000)
    text = r"once, key 'k': timers .* fired 1,000 times in one batch, the last one 't' at .*\. The inputs are finished, .* only while not ctx\.finished"
    with pytest.raises(ValueError, match=text):
        turns.take("k", Kept(), [Record(25)])


def produces(column: Any, timestamp: int | None = None) -> Callable[[Context], None]:
    return lambda ctx: ctx.produce("times", {"a": 1, "start": column}, timestamp=timestamp)


MOMENT = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("does", "length", "stamp"),
    [
        (produces(25), 1, 25),
        (produces(30), 1, 30),
        (produces(20), 10, 20),
        (produces(26, 26), 1, 26),
        (produces(MOMENT + timedelta(microseconds=27)), 1, 27),
    ],
)
def test_a_row_has_the_timestamp_of_its_event_times(does: Callable[[Context], None], length: int, stamp: int) -> None:
    [(_, _, timestamp)] = once(Once(does, length=length)).productions
    assert timestamp == stamp


@pytest.mark.parametrize(
    ("does", "error", "text"),
    [
        (produces(24), ValueError, "gives times a row of timestamp .*000024Z, below .*000025Z"),
        (
            produces(24, 25),
            ValueError,
            "column start of once's output times, its event time, is .*leave timestamp= out",
        ),
        (produces(None), TypeError, "its event time, got None: give microseconds"),
        (produces(MOMENT.replace(tzinfo=None)), TypeError, "or an aware datetime"),
        (produces(True), TypeError, "its event time, got True"),
        (produces(MAX), ValueError, "times are above MIN and below MAX"),
    ],
)
def test_a_row_below_reports_is_refused(does: Callable[[Context], None], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        once(Once(does))


def test_a_timer_that_nothing_takes_is_refused_before_it_stands() -> None:
    class Sets(Computation):
        name = "sets"
        inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]

        def process_record(self, ctx: Context, record: Record) -> None:
            ctx.set_timer("t", 10**9)

    with pytest.raises(ValueError, match="sets sets timers and does not say what they do"):
        Turns(Sets(), {}, 100).take("k", Kept(), [Record(25)])


def test_names_are_compared_as_spark_does() -> None:
    [(_, row, _)] = once(Once(lambda ctx: ctx.produce("out", {"A": 1, "b": 2}))).productions
    assert row == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="does not have its columns: one is there twice"):
        once(Once(lambda ctx: ctx.produce("out", {"A": 1, "a": 1, "b": 2})))


def test_a_timer_at_the_end_fires_when_the_inputs_are_finished() -> None:
    finished = []
    ends = Once(lambda ctx: ctx.set_timer("t", END), lambda ctx: finished.append(ctx.finished))
    entry = Turns(ends, {}, END - 1).take("k", Kept(), [Record(25)])
    assert entry.due == END
    assert not Turns(ends, {}, MAX).take("k", entry, [])
    assert finished == [True]


@pytest.mark.parametrize("kind", ["set_wall_timer", "both"])
def test_timers_that_do_not_go_on_in_time_end_with_a_reason(kind: str) -> None:
    class Stays(Once):
        def process_timer(self, ctx: Context, timer: Timer) -> None:
            to_wall = kind == "set_wall_timer" or (kind == "both" and not timer.wall)
            (ctx.set_wall_timer if to_wall else ctx.set_timer)("t", 30)

    with pytest.raises(ValueError, match=r"fired 1,000 times in one batch.* set anew for no later time"):
        once(Stays(lambda ctx: (ctx.set_timer if kind != "set_wall_timer" else ctx.set_wall_timer)("t", 30)), now=99)


def test_a_state_as_it_began_and_no_timer_leave_nothing() -> None:
    script = Script()
    turns = Turns(script, OUTPUTS, MIN)
    assert not turns.take("k", Kept(), [])
    entry = Kept(b'["a"]', {(5, "quiet"): 5})
    assert turns.take("k", entry, []) == entry

    class Forgets(Script):
        def process_record(self, ctx: Context, record: Record) -> None:
            ctx.state = []

    assert not Turns(Forgets(), OUTPUTS, MIN).take("k", Kept(b'["a"]'), [record(1, 1)])


def test_an_equal_timer_keeps_the_lower_hold() -> None:

    def sets(ctx: Context) -> None:
        ctx.set_timer("t", 200, hold=26)
        ctx.set_timer("t", 200)

    turns = Turns(Once(sets), {"out": frozenset("ab")}, 100)
    assert turns.take("k", Kept(), [Record(25)]).timers == {(200, "t"): 26}
