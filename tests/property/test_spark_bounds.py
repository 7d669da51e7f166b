"""The rows that Spark still emits are never below the bound of them, and can be exactly at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from lowwater_spark.drive.plan import Steps, holdback_of, steps_of
from lowwater_spark.track.plan.bounds import Stamp, Truncated, Window, least_retention, lowest_stamp
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.rows.keyed import floor_stamp

MILLI = 1_000
HOUR = timedelta(hours=1)


@dataclass
class Windows:
    """A windowed aggregation of Spark's, in append mode: it knows which windows are open. Microseconds."""

    length: int
    slide: int
    start: int
    open: set[tuple[int, int]] = field(default_factory=set)

    def batch(self, times: Sequence[int], late: int, watermark: int) -> list[tuple[int, int]]:
        for time in times:
            first = time - (time - self.start) % self.slide
            covering = [(begin, begin + self.length) for begin in range(first, time - self.length, -self.slide)]
            self.open |= {window for window in covering if window[1] > late}
        out = {window for window in self.open if window[1] <= watermark}
        self.open -= out
        return sorted(out)


@dataclass
class Join:
    """A join of two streams without a key, ``t <= u <= t + span``: it keeps each t until no u can match it any more, and each u likewise."""

    span: int
    outer: bool
    lefts: dict[int, bool] = field(default_factory=dict)
    rights: set[int] = field(default_factory=set)

    @property
    def lag(self) -> int:
        return self.span + MILLI

    def batch(self, lefts: Sequence[int], rights: Sequence[int], late: int, watermark: int) -> list[int]:
        self.lefts.update({t: self.lefts.get(t, False) for t in lefts if t > late})
        new = {u for u in rights if u > late}
        fresh = {t for t in lefts if t > late}
        out = []
        for t in self.lefts:
            matches = [u for u in self.rights | new if t <= u <= t + self.span and (u in new or t in fresh)]
            out += [t] * len(matches)
            self.lefts[t] |= bool(matches)
        self.rights = {u for u in self.rights | new if u > watermark - MILLI}
        dropped = [t for t in self.lefts if t <= watermark - self.lag]
        out += [t for t in dropped if self.outer and not self.lefts[t]]
        for t in dropped:
            del self.lefts[t]
        return out


Run = Sequence[tuple[Sequence[int], Sequence[int], int]]
"""Batches: rows of the left and the right side, and the watermark that the batch ran with."""


def micros(length: int) -> timedelta:
    return timedelta(microseconds=length)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Length, slide and start of windows: tumbling, sliding, with gaps, and shifted; lengths that are no multiple of a slide as well."""
    slide = draw(st.integers(1, 8)) * MILLI
    length = draw(st.sampled_from([slide, slide * 2, slide * 3])) + draw(st.sampled_from([0, 0, MILLI, 500]))
    return length, slide, draw(st.sampled_from([0, 0, MILLI, -MILLI, 2 * MILLI, 300]))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    watermark, run = draw(st.integers(1, 30)) * MILLI, []
    times = st.lists(st.integers(0, 90_000).map(lambda time: time if time % 3 else time - time % MILLI), max_size=5)
    for _ in range(draw(st.integers(2, 7))):
        watermark += draw(st.sampled_from([0, 1, 2, 5, 13])) * MILLI
        run.append((draw(times), draw(times), watermark))
    return [*run, ([], [], 300 * MILLI)]


def check(run: Run, batch: Callable[[Sequence[int], Sequence[int], int, int], list[int]], stamp: Stamp) -> None:
    """The rows that a batch emits are never below the bound as of that batch, nor further below its watermark than the least retention."""
    late = lowest = 0
    retention = least_retention([stamp], at_ends=False) // timedelta(microseconds=1)
    for lefts, rights, watermark in run:
        out = batch(lefts, rights, late, watermark)
        if late:  # before the first batch nothing is told
            assert min(out, default=lowest) >= lowest, (out, lowest)
            assert min(out, default=late) >= late - retention - MILLI, "a window's microseconds add no more"
        late, lowest = watermark, lowest_stamp([stamp], watermark)


@given(cuts(), runs(), st.sampled_from(["start", "end"]))
def test_windows_come_out_at_the_bound_or_above(cut: tuple[int, int, int], run: Run, kind: str) -> None:
    windows = Windows(*cut)
    field_of = 0 if kind == "start" else 1
    stamp = Stamp("start" if kind == "start" else "end", Window(*map(micros, cut)))
    check(run, lambda lefts, _, late, mark: [row[field_of] for row in windows.batch(lefts, late, mark)], stamp)


@given(cuts(), st.integers(1, 100), st.sampled_from(["start", "end"]))
def test_a_row_can_still_open_the_window_at_the_bound(cut: tuple[int, int, int], watermark: int, kind: str) -> None:
    """The bound is tight: a row that is not late gives exactly that stamp. So is nothing lower: all older windows are passed."""
    length, slide, _ = cut
    windows, late = Windows(*cut), watermark * MILLI
    bound = lowest_stamp([Stamp("start" if kind == "start" else "end", Window(*map(micros, cut)))], late)
    begin = bound if kind == "start" else bound - length
    out = windows.batch(range(begin, begin + length, max(1, min(length, slide) // 4)), late, 1_000 * MILLI)
    assert min(row[0] for row in out) == begin


def checked_and_steps(stamps: Sequence[Stamp], step: timedelta | None) -> tuple[Checked, Steps]:
    """Return a driven query with these stamps, and its steps.

    Without stamps: a join with a declared retention of 7 ms.
    """
    windows = [stamp.window for stamp in stamps if stamp.window is not None]
    retention = least_retention(stamps, at_ends=False) if stamps else micros(7 * MILLI)
    steps = steps_of(windows, step=step, before=not windows)
    return Checked([], retention=retention, stamps=stamps, declared=not stamps), steps


@given(
    st.lists(cuts(), max_size=2),
    st.sampled_from(["start", "end"]),
    st.integers(0, 10**9),
    st.none() | st.integers(1, 9),
    st.booleans(),
    st.none() | st.integers(1, 9_999).map(micros),
)
def test_a_driven_stage_stays_below_its_inputs_by_less_than_it_says(
    kinds: list[tuple[int, int, int]], kind: str, low: int, step: int | None, before: bool, rounding: timedelta | None
) -> None:
    stamps = [Stamp("start" if kind == "start" else "end", Window(*map(micros, cut))) for cut in kinds]
    checked, steps = checked_and_steps(stamps, None if step is None else micros(step * MILLI))
    steps, low = replace(steps, before=steps.before or before), low + 30_000 * 86_400_000_000
    bound = floor_stamp(checked.bound_at(steps.value(low) * MILLI), rounding)
    assert low <= bound or low - bound < holdback_of(checked, steps, rounding)


@given(runs(), st.integers(0, 20), st.booleans())
def test_a_join_gives_nothing_below_what_it_keeps(run: Run, span: int, outer: bool) -> None:
    join = Join(span * MILLI, outer)
    check(run, join.batch, Stamp("time", lag=micros(join.lag)))


@given(cuts(), runs(), st.integers(0, 20), st.booleans())
def test_windows_above_a_join_wait_for_both(cut: tuple[int, int, int], run: Run, span: int, outer: bool) -> None:
    """Spark gives the windows the join's own watermark: the windows wait for the sum."""
    join, windows = Join(span * MILLI, outer), Windows(*cut)

    def batch(lefts: Sequence[int], rights: Sequence[int], late: int, watermark: int) -> list[int]:
        joined = join.batch(lefts, rights, late, watermark)
        return [begin for begin, _ in windows.batch(joined, late - join.lag, watermark - join.lag)]

    check(run, batch, Stamp("start", Window(*map(micros, cut)), lag=micros(join.lag)))


@dataclass
class Clocks:
    """A zone whose clocks are ``before`` ahead of UTC, and ``after`` from a transition on. Hours."""

    transition: int
    before: int
    after: int

    def day(self, moment: int) -> int:
        """Return when the local day of a moment begins: the first time that the clocks show its midnight, or the next they can."""
        clock = moment + (self.after if moment >= self.transition else self.before)
        midnight = clock - clock % 24
        early = midnight - self.before
        return early if early < self.transition else max(self.transition, midnight - self.after)


@given(st.integers(90, 150), st.integers(-12, 12), st.integers(-12, 12), st.integers(40, 200))
def test_no_day_from_a_moment_on_begins_below_the_bound(transition: int, before: int, after: int, moment: int) -> None:
    clocks, hour = Clocks(transition, before, after), 3_600_000_000

    def transitions(since: int, until: int) -> Sequence[int]:
        return [transition * hour] if since < transition * hour <= until else []

    day = Truncated("day", "made up", lambda micros: clocks.day(micros // hour) * hour, transitions)
    days = [clocks.day(at) for at in range(moment, moment + 24 * 4)]
    assert day.after(moment * hour) == min(days) * hour
