"""A source says from its rows how far it has come: the rule alone. The oracle keeps whole logs and looks at each row."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowwater.watermark import MIN
from lowwater_spark.track.rows.frontier import Bounds, Example, Found, Seen
from tests.kit.times import DAY, HOUR

PARTS = ("a", "b", "c")

Append = tuple[str, int]


@dataclass
class Logs:
    """The oracle: the rows in the order of their logs, and how far each was read."""

    appended: list[tuple[str, int, int]] = field(default_factory=list)
    """Part, event time, and the clock."""
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    clock: int = 0

    def log(self, part: str) -> list[int]:
        return [micros for name, micros, _ in self.appended if name == part]

    def append(self, part: str, micros: int) -> None:
        self.clock += 1
        self.appended.append((part, micros, self.clock))

    def disorder(self) -> int:
        return max(
            [0, *(old - new for part in PARTS for i, new in enumerate(self.log(part)) for old in self.log(part)[:i])]
        )

    def across(self) -> int:
        times = [micros for _, micros, _ in self.appended]
        return max([0, *(old - new for i, new in enumerate(times) for old in times[:i])])

    def delay(self) -> int:
        return max([0, *(clock - micros for _, micros, clock in self.appended)])

    def to_come(self) -> list[int]:
        """Every row that no batch has read."""
        return [micros for part in PARTS for micros in self.log(part)[self.read[part] :]]


appends = st.tuples(st.sampled_from(PARTS), st.integers(0, 30))
batches = st.tuples(st.tuples(*[st.integers(0, 3)] * 3), st.none() | appends)
"""The most rows that are taken of each part, and the row that is appended between the plan and the listing."""


@given(st.lists(appends | batches, max_size=14), st.booleans(), st.booleans())
@example([("a", 9), ("b", 3), ((3, 0, 3), None), ((0, 3, 0), ("c", 1)), ("c", 2)], True, True)
def test_exact_no_later_row_is_below_the_frontier(steps: Sequence[Any], with_across: bool, with_delay: bool) -> None:
    whole = Logs()
    for step in steps:
        append = step if isinstance(step[0], str) else step[1]
        if append is not None:
            whole.append(*append)
    bounds = Bounds(
        whole.disorder(), whole.across() if with_across else None, whole.delay() if with_delay else None, ahead=DAY
    )
    logs, state = Logs(), Seen()
    for step in steps:
        if isinstance(step[0], str):
            logs.append(*step)
            continue
        limits, between = step
        ends = {part: min(len(logs.log(part)), logs.read[part] + n) for part, n in zip(PARTS, limits, strict=True)}
        batch = {part: logs.log(part)[logs.read[part] : ends[part]] for part in PARTS}
        now = logs.clock
        if between is not None:
            logs.append(*between)
        at_end = {part for part in PARTS if ends[part] >= len(logs.log(part))} if bounds.lists else set()
        newest = {part: Found(max(rows)) for part, rows in batch.items() if rows}
        before, state = state, bounds.advanced(state, newest, PARTS, at_end, now)
        logs.read = ends
        assert state.frontier >= before.frontier
        whole.read = ends
        assert state.frontier <= min(whole.to_come(), default=state.frontier), "a row to come is older"
        if not bounds.lists:
            least = min(max(logs.log(part)[: ends[part]], default=MIN) for part in PARTS)
            assert state.frontier == (MIN if least == MIN else max(before.frontier, least - bounds.disorder))


def test_unknown_holds_a_part_without_rows_and_one_that_nobody_expects() -> None:
    bounds = Bounds(0)
    state = bounds.advanced(Seen(), {"a": Found(9)}, ("a", "b"), (), 0)
    assert (state.frontier, bounds.holding(state)) == (MIN, ["b (no row yet)"])
    state = bounds.advanced(state, {"b": Found(7)}, ("a", "b"), (), 0)
    assert state.frontier == 7
    state = bounds.advanced(state, {"a": Found(20), "b": Found(20), "x": Found(3)}, ("a", "b"), (), 0)
    assert (state.frontier, bounds.holding(state)) == (7, ["x (not declared, and it has rows)"])
    state = bounds.advanced(state, {"a": Found(30), "b": Found(30)}, ("a", "b"), (), 0)
    assert state.frontier == 7, "it may still have more"
    state = bounds.advanced(state, {}, ("a", "b", "x"), (), 0)
    assert state.frontier == 7, "declared, it is waited for"
    state = bounds.advanced(state, {"x": Found(25)}, ("a", "b", "x"), (), 0)
    assert (state.frontier, bounds.holding(state)) == (25, ["x (at 1970-01-01T00:00:00.000025Z)"])
    state = bounds.advanced(state, {}, ("a", "b"), (), 0)
    assert (state.frontier, state.newest) == (30, {"a": 30, "b": 30}), "who is not expected any more is forgotten"


@pytest.mark.parametrize("other", [Bounds(0, delay=8), Bounds(0), Bounds(0, across=0, delay=2)])
def test_what_was_proven_stands_on_what_was_declared_then(other: Bounds) -> None:
    """A declaration that was found too small is made greater: what was proven by the old one of a part that is ahead counts no more."""
    bounds, parts = Bounds(0, delay=2), ("a", "b")
    state = bounds.advanced(Seen(), {"a": Found(5)}, parts, ("b",), 20)
    assert state.frontier == 5, "b stands at 18"
    same = bounds.advanced(state, {"a": Found(30)}, parts, (), 30)
    assert same.frontier == 18
    again = other.advanced(state, {"a": Found(30)}, parts, (), 30)
    assert again.frontier == 5, "it holds until something is proven anew, and does not go back"
    state = Seen.from_json(json.loads(json.dumps(state.to_json())))
    assert bounds.advanced(state, {"a": Found(30)}, parts, (), 30) == same


def test_the_clock_alone_asks_for_a_batch_at_most_every_second_and_only_when_it_helps() -> None:
    second = 1_000_000
    state = Seen(frontier=0, at=0)
    assert not Bounds(0).would_move(state, DAY)
    assert not Bounds(0, across=0).would_move(state, DAY)
    assert Bounds(0, across=0).would_move(dataclasses.replace(state, unlisted=True), second)
    assert not Bounds(0, delay=0).would_move(state, second - 1)
    assert Bounds(0, delay=0).would_move(state, second)
    assert not Bounds(0, delay=0).would_move(dataclasses.replace(state, strangers=("x",)), second)
    assert not Bounds(0, delay=0).would_move(dataclasses.replace(state, frontier=second), second)
    assert not Bounds(0, delay=HOUR).would_move(dataclasses.replace(state, at=HOUR), HOUR + second)


def test_what_was_seen_is_kept_as_it_is() -> None:
    state = Seen(
        {"a": 9}, {"a": 7}, 7, ("x",), ("a",), 5, 1, Example(3, "a", 2), 2, Example(DAY, "", None), unlisted=True
    )
    assert Seen.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert Seen.from_json(json.loads(json.dumps(Seen().to_json()))) == Seen()
    stored = json.loads(json.dumps(state.to_json()))
    del stored["by"]
    assert Seen.from_json(stored) == state, "of a batch before that was noted"
    assert str(state.late_example) == "1970-01-01T00:00:00.000003Z of a at offset 2"
    assert "rows that name no producer" in str(state.ahead_example)


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("declared", "error", "text"),
    [
        ({"disorder": -MINUTE}, ValueError, "disorder is a length"),
        ({"across": MINUTE}, ValueError, "across says .* pass disorder="),
        ({"producers": ["a"], "producer": "p"}, ValueError, "producer says"),
        ({"disorder": MINUTE, "producer": "p"}, ValueError, "pass both or none"),
        ({"disorder": MINUTE, "producers": ["a"]}, ValueError, "pass both or none"),
        (
            {"disorder": 600},
            TypeError,
            r"disorder must be a length of event time, like timedelta\(minutes=10\), not 600",
        ),
        ({"disorder": MINUTE, "producer": "p", "producers": [7]}, TypeError, "compared as text: pass '7', not 7"),
        ({"disorder": MINUTE, "producer": "p", "producers": "web"}, TypeError, r"\['web'\]"),
    ],
)
def test_arguments_that_say_nothing_are_refused(declared: dict[str, Any], error: type[Exception], text: str) -> None:
    nothing = dict.fromkeys(("disorder", "across", "delay", "ahead", "producer", "producers"))
    with pytest.raises(error, match=text):
        Bounds.of(**{**nothing, **declared})
