"""A stage claims no more than is true, against a small pipeline in which everything that is still unread is known.

Files arrive, Spark plans and commits batches in any order its options allow, the driver reads W and lists at any
moments. The oracle knows every row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

from lowwater.watermark import MAX, MIN
from lowwater_spark.sources.head import KEPT, Candidates
from lowwater_spark.sources.source_log import File, Head
from lowwater_spark.track.inputs import UNREAD, Origin, Reading
from lowwater_spark.track.rows.keyed import floor_stamp
from lowwater_spark.track.run.progress import RELIST, AfterBatch, Progress, bound_of, stamped
from lowwater_spark.track.segments import Due
from lowwater_spark.track.state.update import held_micros, least_record, lowest_stamp, times_in
from tests.kit.times import at
from tests.spark.retained import HOUR
from tests.spark.support import Log

WINDOW = timedelta(microseconds=4)


def named(path: str) -> File:
    return File(path, 0)


class Pipeline:
    """Files with one row each, an input that promises, a Spark that plans and commits, a stage that reports.

    The trap ``newest_at_once`` is a stage that counts W without asking for its head.
    """

    def __init__(self, sources: int, *, newest_at_once: bool = False) -> None:
        self.names = 0
        self.rows: dict[File, int] = {}
        self.where: dict[File, int] = {}
        self.promise = 0
        self.logs = [Log() for _ in range(sources)]
        self.offsets = [-1] * sources
        self.planned: dict[File, int] = {}
        self.committed: set[File] = set()
        self.batch = -1
        self.running: tuple[list[int], Reading] | None = None
        self.reading: Reading | None = None
        self.trap = newest_at_once
        self.removed: set[File] = set()
        self.progress = Progress(2, None, self.logs, AfterBatch())
        self.now = 0.0

    def put(self, source: int, ahead: int) -> None:
        self.names += 1
        path = named(f"/in/{source}/{self.names}")
        self.rows[path] = self.promise + ahead
        self.where[path] = source

    def lose(self, which: int, *, renamed: bool) -> None:
        """A file vanishes before Spark took it, or gets another name."""
        unread = [p for p in self.rows if p not in self.planned]
        if unread:
            path = unread[which % len(unread)]
            t, source = self.rows.pop(path), self.where.pop(path)
            self.names += 1
            if renamed:
                new = named(f"/in/{source}/{self.names}")
                self.rows[new], self.where[new] = t, source

    def rewrite(self, which: int, ahead: int) -> None:
        """A file is written anew in its place: Spark does not read it again if it has read it before."""
        present = [file for file in self.rows if file not in self.removed]
        if present:
            old = present[which % len(present)]
            new = File(old.path, old.modified + 1)
            self.rows[new], self.where[new] = self.promise + ahead, self.where[old]
            self.removed.add(old)
            if old not in self.planned:
                del self.rows[old]

    def clean_up(self, which: int) -> None:
        """A file vanishes that a batch has read, which may still run."""
        present = [p for p in self.planned if p not in self.removed]
        if present:
            self.removed.add(present[which % len(present)])

    def wait(self) -> None:
        self.now += RELIST

    def promise_more(self, step: int) -> None:
        self.promise += step

    def read(self) -> None:
        self.reading = Reading(self.promise)

    def list_sources(self) -> None:
        if self.reading is not None and self.progress.must_list(self.reading, self.now):
            present = self.rows.keys() - self.removed
            heads = [Head({p for p in present if self.where[p] == i}) for i in range(len(self.logs))]
            self.leave_out_what_is_settled(heads)
            self.progress.observe(
                self.reading, [set()] * len(self.logs) if self.trap else heads, self.now, list(self.offsets)
            )

    def leave_out_what_is_settled(self, heads: Sequence[Head]) -> None:
        """A listing leaves out what committed batches have taken."""
        for head, log, offset in zip(heads, self.logs, self.progress.committed.lines, strict=False):
            settled = {file for file in head if (batch := log.batch_of(file)) is not None and batch <= offset}
            head -= settled
            head.settled += settled

    def plan(self, chosen: Sequence[int]) -> None:
        """Spark plans a batch: of the files that are there, it takes what its limits and its order make it take."""
        if self.running is not None:
            return
        # Spark does not forget a path that is gone.
        planned = {file.path for file in self.planned}
        unread = [p for p in self.rows if p.path not in planned]
        chosen_files = {unread[i % len(unread)] for i in chosen} if unread else set()
        for source, log in enumerate(self.logs):
            mine = [path for path in chosen_files if self.where[path] == source]
            if mine:
                self.offsets[source] += 1
            for path in mine:
                log.take(path, self.offsets[source])
                self.planned[path] = self.batch + 1
        used = self.progress.choose(self.offsets)
        self.running = (list(self.offsets), used)
        self.check(used, set(self.planned), "used")

    def commit(self) -> None:
        if self.running is None:
            return
        offsets, used = self.running
        self.running = None
        self.batch += 1
        self.committed = set(self.planned)
        self.progress.record(AfterBatch(self.batch, offsets, used), "")

    def look(self) -> None:
        """The clock: what the stage reports now must be true of what is committed."""
        self.check(self.progress.renew(), self.committed, "reported")

    def check(self, reading: Reading, read: set[File], what: str) -> None:
        unread = [t for path, t in self.rows.items() if path not in read]
        assert reading.low <= min([*unread, MAX]), f"{what} {reading.low}, but a row of {min(unread)} is unread"


REWRITE = st.tuples(st.just("rewrite"), st.integers(0, 50), st.integers(0, 5))
STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 1), st.integers(0, 5)),
    st.tuples(st.just("promise_more"), st.integers(1, 4)),
    st.tuples(st.just("read")),
    st.tuples(st.just("list_sources")),
    st.tuples(st.just("plan"), st.lists(st.integers(0, 50), max_size=3)),
    st.tuples(st.just("lose"), st.integers(0, 50)),
    st.tuples(st.just("rename"), st.integers(0, 50)),
    st.tuples(st.just("clean_up"), st.integers(0, 50)),
    st.tuples(st.just("wait")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("look")),
)
STEPS = st.lists(STEP, max_size=60)


def live(pipeline: Pipeline, steps: Sequence[tuple[Any, ...]]) -> None:
    for name, *arguments in steps:
        if name in ("lose", "rename"):
            pipeline.lose(*arguments, renamed=name == "rename")
        else:
            getattr(pipeline, name)(*arguments)
        pipeline.look()


@given(st.lists(st.one_of(STEP, STEP, REWRITE), max_size=60))
@settings(max_examples=400, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_head_of_w_no_watermark_passes_a_row_that_is_not_read(steps: list[tuple[Any, ...]]) -> None:
    live(Pipeline(2), steps)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when the head is not asked for")
def test_head_of_w_breaks_when_the_rule_is_off() -> None:
    pipeline = Pipeline(1, newest_at_once=True)
    live(
        pipeline,
        [("put", 0, 3), ("put", 0, 0), ("promise_more", 2), ("read",), ("list_sources",), ("plan", [0]), ("commit",)],
    )


REWRITTEN: list[tuple[Any, ...]] = [
    ("put", 0, 0),
    ("plan", [0]),
    ("commit",),
    ("rewrite", 0, 0),
    ("promise_more", 2),
    ("read",),
    ("list_sources",),
]


def test_head_of_w_a_file_written_anew_after_it_was_read_is_waited_for_and_named() -> None:
    """The daily file: its batch has taken the old one, and nobody will ever read the new one."""
    pipeline = Pipeline(1)
    live(pipeline, REWRITTEN)
    assert pipeline.progress.reading == UNREAD
    assert pipeline.progress.waiting_for() == ["/in/0/1 (written again after it was read: give it another name)"]
    # Under another name it is read, and what is read again comes twice; that is up to whoever writes it.
    live(pipeline, [("rename", 0), ("wait",), ("list_sources",), ("plan", [0]), ("commit",)])
    assert pipeline.progress.reading.low == 2
    assert pipeline.progress.waiting_for() == []


@given(STEPS)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_when_everything_is_read_the_promise_arrives(steps: list[tuple[Any, ...]]) -> None:
    """The rule only delays: it never sticks."""
    pipeline = Pipeline(2)
    live(pipeline, steps)
    pipeline.commit()
    pipeline.wait()
    pipeline.read()
    pipeline.list_sources()
    while any(path not in pipeline.planned for path in pipeline.rows):
        pipeline.plan(range(50))
        pipeline.commit()
    assert pipeline.progress.renew().low == max(
        pipeline.promise, MIN if pipeline.reading is None else pipeline.reading.low
    )


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 20)),
        st.tuples(st.just("read"), st.integers(0, 20)),
        st.tuples(st.just("arrive"), st.integers(0, 1)),
        st.tuples(st.just("plan"), st.sets(st.integers(0, 9), max_size=6)),
        st.tuples(st.just("commit"), st.just(0)),
    ),
    max_size=60,
)


@given(MOVES)
@settings(max_examples=300, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_a_reading_counts_if_and_only_if_all_there_at_the_time_is_committed(moves: list[tuple[str, Any]]) -> None:
    logs = [Log(), Log()]
    waiting = Candidates[tuple[int, int]](logs)
    model: list[tuple[tuple[int, int], list[set[File]], int]] = []
    heads: list[set[File]] = [set(), set()]
    planned = committed = -1

    def counts(head: list[set[File]], after: int) -> bool:
        return after <= committed and all(
            (batch := log.batch_of(file)) is not None and batch <= committed
            for log, files in zip(logs, head, strict=True)
            for file in files
        )

    for step, (move, what) in enumerate(moves):
        if move == "arrive":
            heads[what].add(named(f"/in/{step}"))
        elif move == "read":
            model.append(((step, what), [set(head) for head in heads], planned))
            waiting.add((step, what), [set(head) for head in heads], [planned, planned])
        elif move == "plan" and planned == committed:
            planned += 1
            for log, head in zip(logs, heads, strict=True):
                new = sorted(file for file in head if file.path not in log.taken)
                for i in what & set(range(len(new))):
                    log.take(new[i], planned)
        elif move == "commit":
            committed = planned
        expected = [i for i, (_, head, after) in enumerate(model) if counts(head, after)]
        distinct = [model[i][1:] for i in range(len(model)) if i == 0 or model[i][1:] != model[i - 1][1:]]
        reading = waiting.newest_reached([committed, committed], forget=True)
        index = None if reading is None else [reading for reading, _, _ in model].index(reading)
        assert index is None or index in expected, "it may not count yet"
        if len(distinct) <= KEPT:
            assert index == max(expected, default=None), "the newest that may counts"
        del model[: 0 if index is None else index + 1]


def test_stamps_of_windows_are_floored_also_where_nothing_is_held() -> None:
    progress = Progress(3, WINDOW, [Log()], AfterBatch(0, [0], Reading(14), held=[None, 4, 12]))
    assert progress.values(Reading(14)) == [12, 4, 12]
    assert progress.values(Reading(MAX)) == [MAX, 4, 12]
    assert progress.values(UNREAD) == [MIN] * 3
    assert [floor_stamp(t, WINDOW) for t in (-1, 0, 3, 4, MIN, MAX)] == [-4, 0, 0, 4, MIN, MAX]
    assert floor_stamp(13, None) == 13


@pytest.mark.parametrize(
    ("window", "holds", "low", "closes"),
    [
        (WINDOW, [8, None], 11, False),
        (WINDOW, [8, None], 12, True),
        (WINDOW, [None, None], 99, False),
        (WINDOW, [0], 10, False),  # the last batch ran with 10 and left it open
        (None, [11], 11, False),
        (None, [10], 11, True),
    ],
)
def test_a_forced_batch_ends_windows(window: timedelta | None, holds: list[int | None], low: int, closes: bool) -> None:
    progress = Progress(len(holds) or 1, window, [Log()], AfterBatch(0, [0], Reading(10), held=holds))
    progress.observe(Reading(low), [set()], 0.0, [])
    progress.renew()
    assert progress.would_close() == closes


@pytest.mark.parametrize(
    ("due", "low", "closes"),
    [
        (Due(11, None), 11, True),  # a timer at W fires, though W has not passed what it holds
        (Due(12, None), 11, False),  # what is held is older, and nothing is due
        (Due(None, 3), 99, False),
        (Due(10, None), 10, False),
        (Due(None, None), MAX, False),
        (None, 11, True),
    ],
)
def test_a_stage_that_tells_when_it_is_due_is_asked_for_nothing_before(due: Due | None, low: int, closes: bool) -> None:
    progress = Progress(1, None, [Log()], AfterBatch(0, [0], Reading(10), held=[5], due=due))
    progress.observe(Reading(low), [set()], 0.0, [])
    progress.renew()
    assert progress.would_close() == closes


def test_a_batch_is_forced_when_the_clock_is_there() -> None:
    for due, fires in ((None, False), (Due(1, None), False), (Due(None, 8), False), (Due(None, 7), True)):
        assert Progress(1, None, [Log()], AfterBatch(due=due)).would_fire(7) == fires


@pytest.mark.parametrize(
    ("window", "low", "spark_bound", "values"),
    [
        (None, 14, MAX, [14, 9]),
        (None, 14, 11, [11, 9]),
        (None, 14, 7, [7, 7]),
        (WINDOW, 14, 13, [12, 9]),
        (WINDOW, MAX, 13, [12, 9]),
        (None, 14, MIN, [MIN, MIN]),
        (None, MIN, MAX, [MIN, MIN]),
    ],
)
def test_held_rows_bound_ranges(window: timedelta | None, low: int, spark_bound: int, values: list[int]) -> None:
    progress = Progress(2, window, [Log()], AfterBatch(0, [0], Reading(low), held=[None, 9], spark_bound=spark_bound))
    assert progress.values(Reading(low)) == values
    assert progress.promised == min(low, spark_bound), "of rows, which are not stamped by a window yet"
    assert not progress.would_close(), "Spark runs a batch by itself when its watermark has moved"


def test_a_file_that_is_gone_before_it_was_read_does_not_hold_for_ever() -> None:
    log = Log()
    progress = Progress(1, None, [log], AfterBatch(0, [0]))
    progress.observe(Reading(10), [{named("/in/gone"), named("/in/taken"), named("/in/there")}], 0.0, [])
    assert not progress.must_list(Reading(10), RELIST / 2)
    assert progress.must_list(Reading(10), RELIST)
    # A batch that is not committed has taken one, and it was removed then: its rows may still be written.
    log.take(named("/in/taken"), 1)
    progress.observe(Reading(10), [{named("/in/renamed"), named("/in/there")}], RELIST, [])
    assert progress.waiting_for() == ["/in/renamed", "/in/there"]
    assert not progress.must_list(Reading(10), RELIST * 1.5)
    log.take(named("/in/renamed"), 0)
    log.take(named("/in/there"), 0)
    assert progress.renew() == UNREAD
    progress.record(AfterBatch(1, [1]), "")
    assert progress.renew() == Reading(10)
    assert not progress.must_list(Reading(10), RELIST * 9), "nothing waits"


@pytest.mark.parametrize(
    ("hold", "oldest_row", "promised", "lowest"),
    [
        (None, None, MIN, MIN),
        (None, None, 14, 12),
        (None, 99, 14, 12),
        (None, 9, 14, 8),  # a late row
        (4, None, 14, 4),
        (13, None, 14, 12),
        (None, None, MAX, MAX),
    ],
)
def test_the_lowest_stamp_of_a_range(hold: int | None, oldest_row: int | None, promised: int, lowest: int) -> None:
    assert lowest_stamp(hold, oldest_row, promised, WINDOW) == lowest


class CountsPlans(Progress):
    """Rule 6 switched off: what is planned counts as if it were committed."""

    planned: Sequence[int] = ()

    def renew(self) -> Reading:
        return self._candidates.newest_reached(self.planned, forget=True) or self.reading


def claims_no_more_than_a_restart(kind: type[Progress]) -> None:
    """A batch has read all that W covers; only when it is committed would a restart know that."""
    log = Log()
    progress = kind(1, None, [log], AfterBatch())
    progress.observe(Reading(10), [{named("/in/a")}], 0.0, [])
    log.take(named("/in/a"), 0)
    if isinstance(progress, CountsPlans):
        progress.planned = [0]
    assert progress.choose([0]).low == 10, "the batch itself may use it"
    assert progress.renew().low == MIN, "and nobody may hear of it yet"
    progress.record(AfterBatch(0, [0], Reading(10)), "")
    assert progress.renew().low == 10


def test_rule6_a_report_counts_committed_batches_only() -> None:
    claims_no_more_than_a_restart(Progress)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when rule 6 is switched off")
def test_rule6_breaks_when_switched_off() -> None:
    claims_no_more_than_a_restart(CountsPlans)


def test_what_spark_holds_is_stamped_as_what_comes_is() -> None:
    """For windows of an hour that are stamped by their day, the bound of Spark's state is within the day, and its rows are at its beginning."""
    day, micros = timedelta(days=1), timedelta(microseconds=1)
    committed = AfterBatch(0, (), spark_bound=22 * HOUR // micros + day // micros)
    reading = Reading(2 * day // micros, {990_000: 2 * day // micros})
    assert bound_of(committed, reading, day) == day // micros
    assert stamped(committed, reading, day).heuristics == {990_000: day // micros}


def test_a_replay_that_was_planned_before_w_was_read_does_not_count_it() -> None:
    log = Log()
    log.take(named("/in/0"), 0)
    progress = Progress(1, None, [log], AfterBatch())
    progress.observe(Reading(14), [{named("/in/0"), named("/in/1")}], 0.0, [0])
    assert progress.choose([0]) == UNREAD
    log.take(named("/in/1"), 1)
    assert progress.choose([1]).low == 14


def test_a_reading_found_in_another_stage_never_goes_back() -> None:
    progress = Progress(1, None, [Log()], AfterBatch(0, [0], Reading(10)))
    for reading, stands in ((Reading(12), 12), (Reading(11), 12), (UNREAD, 12), (Reading(13), 13)):
        progress.advance(reading)
        assert progress.reading.low == stands


def test_a_replay_does_not_bring_back_the_w_of_inputs_that_were_changed() -> None:
    """The batch itself ran with it; but nothing was read of the inputs that are registered now."""
    old = Reading(10, {}, 1, (1,))
    progress = Progress(1, None, [Log()], AfterBatch())
    progress.inputs = Origin(2, (1, 1))
    progress.record(AfterBatch(0, [0], old), "")
    assert (progress.reading, progress.committed.reading, progress.renew()) == (UNREAD,) * 3
    progress.record(AfterBatch(1, [0], Reading(11, {}, 2, (1, 9))), "")
    assert progress.reading == UNREAD, "another incarnation of an input"
    for batch, reading in enumerate((Reading(12, {}, 2, (1, 1)), Reading(13, {}, 3, (1, 1, 1))), start=2):
        progress.record(AfterBatch(batch, [0], reading), "")
        assert progress.reading == reading


BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
MOMENTS = [at(9), BEFORE_1970, None, at(9, 30)]
MICROS = [1_357_722_000_000_000, -1, MAX, 1_357_723_800_000_000]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_arrow_times_are_what_their_datetimes_are(unit: str, zone: str) -> None:
    times: Any = pa.array(MOMENTS, pa.timestamp(unit, tz=zone))
    assert held_micros(times) == held_micros(times.to_pylist()) == MICROS
    chunks = pa.chunked_array([times.slice(1), times.slice(0, 1)])
    assert held_micros(chunks) == [*MICROS[1:], MICROS[0]]


def test_other_times_are_as_they_were() -> None:
    assert held_micros(()) == held_micros(pa.array([], pa.timestamp("us", tz="UTC"))) == []
    assert held_micros([at(9), 5]) == [MICROS[0], 5]
    assert held_micros(pa.array([5, None])) == [5, MAX]
    with pytest.raises(ValueError, match="time zone"):
        held_micros(pa.array([dt.datetime(2013, 1, 9)]))  # noqa: DTZ001 - the mistake itself


def test_the_least_record_is_in_what_is_pending_or_in_the_state() -> None:
    times = pa.array(MOMENTS, pa.timestamp("ns", tz="Europe/Berlin"))
    state = pa.table({"t": times, "due": times, "plain": [5, 6, 7, 8]})
    assert least_record([7], None, "t") == 7
    assert least_record([], None, "t") == least_record([], state.slice(0, 0), "t") == MAX
    assert least_record([7], state, "t") == -1
    assert least_record([-2], state, "t") == -2
    assert [least_record([], state, name) for name in ("plain", "missing", "")] == [MAX] * 3
    assert least_record([], state.slice(2, 1), "t") == MAX, "null is nothing"
    assert least_record([], state, "`T`") == -1, "the rule for names of columns holds in the state as well"
    assert least_record([], state.rename_columns(["Event Time", "t", "u"]), "event time") == -1


def test_the_event_times_are_taken_from_the_rows_own_column_where_that_is_surely_meant() -> None:
    """Spark takes another case for the same name, and a dot for a field of a struct: there they get a column of their own."""
    kinds = dict.fromkeys(["t", "T2", "a.b", "x", "X"], TimestampType()) | {
        "local": TimestampNTZType(),
        "n": LongType(),
    }
    schema = {name: SimpleNamespace(dataType=kind) for name, kind in kinds.items()}
    frame: Any = SimpleNamespace(columns=[*kinds], schema=schema)
    assert times_in(frame, "t") == "t"
    for name in ("T", "t2", "a.b", "x", "X", "`t`", "none", "local", "n"):
        assert times_in(frame, name) == "__lowwater_time"
