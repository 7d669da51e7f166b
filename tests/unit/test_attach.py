"""The parts of attach() that need neither Spark nor an authority."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from lowwater.watermark import Watermark
from lowwater_spark.attach.book import Book, Saying
from lowwater_spark.attach.progress import BatchProgress, computation_name, read_progress
from lowwater_spark.attach.settings import AttachSettings, resolve
from lowwater_spark.tracked import is_tracked, started
from tests.kit.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NINE = 1_357_722_000_000_000
"""2013-01-09T09:00Z."""

PROGRESS: dict[str, Any] = {
    "id": "q1",
    "runId": "r1",
    "name": "hourly",
    "timestamp": "2013-01-09T12:00:00.000Z",
    "batchId": 7,
    "batchDuration": 1500,
    "numInputRows": 3,
    "inputRowsPerSecond": 2.5,
    "processedRowsPerSecond": 2.0,
    "durationMs": {"addBatch": 1200},
    "eventTime": {"max": "2013-01-09T10:00:00.000Z", "watermark": "2013-01-09T09:00:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 4, "numRowsDroppedByWatermark": 1},
        {"numRowsTotal": 5, "numRowsDroppedByWatermark": 2},
    ],
    "sources": [],
}


def test_the_rows_of_a_batch_are_those_of_its_sources_where_there_is_no_total() -> None:
    without = {key: value for key, value in PROGRESS.items() if key not in {"numInputRows", "inputRowsPerSecond"}}
    sources = [{"numInputRows": 3, "inputRowsPerSecond": 0.5}, {"numInputRows": 4, "inputRowsPerSecond": None}]
    batch = read_progress({**without, "sources": sources})
    assert (batch.rows, batch.rows_per_second) == (7, 0.5)
    assert read_progress({**PROGRESS, "sources": sources}).rows == 3


def progress(
    batch: int = 0, *, query: str = "q1", run: str = "r1", watermark: int | None = NINE, **more: Any
) -> BatchProgress:
    counts = {"rows": 2, "rows_per_second": 1.0, "late_rows": 1, "state_rows": 3, "seconds": 0.5, **more}
    return BatchProgress(query, run, "hourly", batch, watermark, **counts)


@pytest.mark.parametrize(
    "watermark",
    [
        *(None, "1970-01-01T00:00:00.000Z", "1969-12-31T00:00:00.000Z", "+292278994-08-17T07:12:55.807Z"),
        *("12345-01-01T00:00:00.000Z", ""),
    ],
)
def test_what_is_no_watermark_holds(watermark: str | None) -> None:
    """Spark's begins at 1970 and says nothing there; what no clock knows must not become a number."""
    event_time = {} if watermark is None else {"watermark": watermark}
    assert read_progress(PROGRESS | {"eventTime": event_time}).watermark is None


def test_names_are_usable_and_stay_apart() -> None:
    assert computation_name("", "hourly", "q1") == "hourly"
    assert computation_name("spark.", "", "q1") == "spark.query-q1"
    odd = {
        computation_name("spark.", name, "q1")
        for name in ("per hour", "per/hour", "per_hour", "pér hour", "x" * 200, "x" * 201)
    }
    assert len(odd) == 6
    assert all(len(name) <= 128 and name.isascii() and "/" not in name and " " not in name for name in odd)


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def book(clock: Clock) -> Book:
    return Book(lambda name, query: name or query, clock)


def test_the_newest_value_of_a_query_wins(book: Book) -> None:
    book.started("q1", "r1", "hourly")
    for batch in range(5):
        book.progressed(progress(batch, watermark=NINE + batch))
    assert book.take() == Saying("hourly", "q1", NINE + 4, ended=False)
    assert book.take() is None
    assert book.conflated == 5
    [status] = book.queries()
    assert (status.batch, status.batches, status.rows, status.late_rows, status.state_rows) == (4, 5, 10, 5, 3)


def test_what_failed_is_said_again_later_and_then_the_newest(book: Book, clock: Clock) -> None:
    book.progressed(progress())
    assert book.take() is not None
    book.failed("q1", "away", again=5.0)
    book.progressed(progress(1, watermark=NINE + 1))
    assert book.take() is None
    assert book.within() == 5.0
    assert book.queries()[0].problem == "away"
    clock.now = 5.0
    assert book.take() == Saying("hourly", "q1", NINE + 1, ended=False)
    book.reported("q1", NINE + 1, NINE + 2)
    [status] = book.queries()
    assert (status.reported, status.published, status.problem) == (Watermark(NINE + 1), Watermark(NINE + 2), "")


def test_a_query_that_ends_says_so_once(book: Book) -> None:
    book.started("q1", "r1", None)
    book.progressed(progress())
    book.terminated("q1", "r1", "it broke")
    book.idle("q1", "r1")
    assert book.take() == Saying("q1", "q1", NINE, ended=True, failure="it broke")
    assert book.take() is None
    assert (book.queries()[0].state, book.queries()[0].failure) == ("ended", "it broke")


def test_a_restart_goes_on_and_its_forerunner_says_nothing_any_more(book: Book) -> None:
    """Spark tells of a start at once, and all else later: events of the run before may come after it."""
    book.started("q1", "r1", "hourly")
    book.progressed(progress(0))
    book.started("q1", "r2", "hourly")
    book.progressed(progress(1, watermark=NINE + 1))
    book.terminated("q1", "r1", None)
    [status] = book.queries()
    assert (status.state, status.run, status.watermark, status.batches) == ("running", "r2", Watermark(NINE), 2)


def test_a_batch_that_is_told_again_after_a_lost_connection_counts_once(book: Book) -> None:
    book.started("q1", "r1", "hourly")
    for batch in (6, 7, 6, 7, 8):
        book.progressed(progress(batch))
    book.started("q1", "r2", "hourly")
    book.progressed(progress(8, run="r2"))
    [status] = book.queries()
    assert (status.batches, status.rows, status.batch) == (4, 8, 8)


def test_batches_from_before_the_attachment_do_not_count_after_a_lost_connection(book: Book) -> None:
    book.begins_after("q1", "r1", 6)
    book.started("q1", "r1", "hourly")
    for batch in (5, 6, 7):
        book.progressed(progress(batch))
    [status] = book.queries()
    assert (status.batches, status.batch) == (1, 7)
    book.begins_after("q1", "r1", 9)
    book.progressed(progress(8))
    assert book.queries()[0].batch == 8, "the first note counts"


def test_idle_queries_say_so_until_they_work_again(book: Book) -> None:
    book.idle("nobody", "r1")
    book.progressed(progress())
    book.idle("q1", "r1")
    book.idle("q1", "r1")
    assert [(query.state, query.idle_beats) for query in book.queries()] == [("idle", 2)]
    book.progressed(progress(1))
    assert book.queries()[0].state == "running"


def test_the_book_is_bounded_and_forgets_only_what_has_ended(clock: Clock) -> None:
    book = Book(lambda name, query: name or query, clock, most=3)
    for query in ("a", "b", "c"):
        book.started(query, "r1", None)
    book.started("d", "r1", None)
    book.progressed(progress(query="e"))
    assert book.dropped == 2
    book.terminated("b", "r1", None)
    book.started("d", "r1", None)
    assert book.dropped == 3, "the end of b was not said yet"
    while book.take() is not None:
        pass
    book.started("d", "r1", None)
    assert [query.query for query in book.queries()] == ["a", "c", "d"]
    # What became of the end of b is heard only now.
    book.failed("b", "away", again=1.0)
    book.reported("b", NINE, NINE)
    assert [query.query for query in book.queries()] == ["a", "c", "d"]
    assert book.take() == Saying("d", "d", None, ended=False)
    assert book.take() is None


def chosen(conf: dict[str, str], environ: dict[str, str], **arguments: Any) -> AttachSettings:
    choices = {"address": None, "namespace": None, "prefix": None, "data": None, "enabled": None, **arguments}
    return resolve(conf.get, environ, **choices)


def test_arguments_win_over_the_session_and_the_session_over_the_environment() -> None:
    environ = {"LOWWATER_ADDRESS": "c:1", "LOWWATER_ENABLED": "false"}
    conf = {f"spark.lowwater.{name}": to for name, to in {"address": "b:1", "enabled": "true", "prefix": "b-"}.items()}
    assert chosen({}, {}) == AttachSettings(True, None, "", "spark.", None)
    assert chosen({}, environ) == AttachSettings(False, "c:1", "", "spark.", None)
    assert chosen(conf, environ) == AttachSettings(True, "b:1", "", "b-", None)
    settings = chosen(conf, environ, address="a:1", prefix="", namespace="n", enabled=False)
    assert settings == AttachSettings(False, "a:1", "n", "", None)


@pytest.mark.parametrize(
    "wrong", [{"conf": {"spark.lowwater.enabled": "maybe"}}, {"prefix": "a/b"}, {"prefix": "ä"}, {"prefix": "x" * 65}]
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"use (true or false|at most 64)"):
        chosen(wrong.pop("conf", {}), {}, **wrong)


def test_an_input_that_is_a_query_is_its_computation() -> None:
    inputs = chosen({}, {}, inputs={"hourly": ["enriched", "flights"], "enriched": ["flights"], "per hour": []}).inputs
    assert inputs == {
        "spark.hourly": ("spark.enriched", "flights"),
        "spark.enriched": ("flights",),
        computation_name("spark.", "per hour", ""): (),
    }


@pytest.mark.parametrize("wrong", [{"hourly": "flights"}, {"hourly": [""]}, {"": ["flights"]}, {"hourly": ["hourly"]}])
def test_inputs_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="inputs"):
        chosen({}, {}, inputs=wrong)


def tracked_run(query: str, run: str, name: str, *, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Start a run of a query as a stage does. Spark tells its listeners before it returns the query."""

    def start() -> SimpleNamespace:
        meanwhile()
        return SimpleNamespace(id=query, runId=run)

    started(cast("DataStreamWriter", SimpleNamespace(start=start)), name)


def test_a_run_that_a_stage_tracks_is_in_no_book_from_its_start_to_its_last_event(clock: Clock) -> None:
    book = Book(lambda name, query: name or query, clock, left_out=is_tracked)
    tracked_run("t1", "r1", "hourly", meanwhile=lambda: book.started("t1", "r1", "hourly"))
    book.progressed(progress(query="t1"))
    book.idle("t1", "r1")
    tracked_run("t1", "r2", "hourly", meanwhile=lambda: book.started("t1", "r2", "hourly"))
    book.terminated("t1", "r1", None)
    book.progressed(progress(1, query="t1"))
    assert (book.queries(), book.take(), book.dropped) == ((), None, 0)
    book.started("t2", "r1", "hourly")
    assert [status.query for status in book.queries()] == ["t2"]


def test_a_checkpoint_that_goes_on_with_or_without_a_stage_is_in_the_book_without_it(clock: Clock) -> None:
    """Spark's id of a query is that of its checkpoint."""
    book = Book(lambda name, query: name or query, clock, left_out=is_tracked)
    book.started("t3", "r1", "hourly")
    book.terminated("t3", "r1", None)
    tracked_run("t3", "r2", "hourly", meanwhile=lambda: book.started("t3", "r2", "hourly"))
    book.progressed(progress(7, query="t3", run="r2"))
    (before,) = book.queries()
    assert (before.run, before.state, before.batches) == ("r1", "ended", 0)
    book.started("t3", "r3", "hourly")
    book.progressed(progress(8, query="t3", run="r2"))
    book.progressed(progress(9, query="t3", run="r3"))
    (after,) = book.queries()
    assert (after.run, after.state, after.batches, after.batch) == ("r3", "running", 1, 9)
