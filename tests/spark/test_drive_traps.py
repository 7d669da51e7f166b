"""Each way in which a driven query could drop rows, or keep its windows for ever; and that it would, without the care taken."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.drive import frame as frame_module
from lowwater_spark.drive import watermark as watermark_module
from lowwater_spark.drive.watermark import Driving
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import END, Offset, Told
from lowwater_spark.sources.head import Heads
from lowwater_spark.track.authority import Authority
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.spark.drive_support import CARE, HOUR, Driven, counts, driven, millis, record, say
from tests.spark.support import Upstream

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)


def newest_at_once(self: Driving) -> Any:
    """Give out what was read last, wherever its head is."""
    Driving.read_plans(self)
    return self._seen


@CARE
def test_rows_that_a_rate_limit_leaves_behind(
    care: bool, driven: Driven, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W covers six files, Spark takes one a batch, and the last ones come many batches after the control row could have come."""
    if not care:
        monkeypatch.setattr(Driving, "_reached", newest_at_once)
    rows = [record(f"k{hour}", at(hour, 30)) for hour in (14, 13, 12, 11, 10, 9)]
    for row in rows:
        driven.feed().put([row])
    say(upstream, at(15))
    driven.start(driven.hourly(driven.drive(driven.read(maxFilesPerTrigger=1))), stamp=HOUR)
    driven.await_read(3)  # each wait has its own deadline
    driven.await_read(6)
    driven.await_watermark(at(15))
    assert driven.rows == counts(rows, at(15))


def slower_than_the_query(self: Driving) -> None:
    """A clock that comes late: it looks at the start, and then only when it is waited for."""
    asked = any(each.control.asked() > each.told.answered for each in self._driven.values())
    if self._seen is None or asked:
        _tick(self)


_tick = Driving.tick


@CARE
def test_a_query_that_ends_by_itself_closes_its_windows_first(
    care: bool, driven: Driven, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """availableNow: everything that was there, and complete, is out when the query has ended."""
    monkeypatch.setattr(Driving, "tick", slower_than_the_query)
    if not care:
        monkeypatch.setattr(
            watermark_module, "Told", lambda offset, answered=0, final=True: Told(offset, answered, final=True)
        )
    rows = [record("a", at(9, 10 * i)) for i in range(3)]
    for row in rows:
        driven.feed().put([row])
    say(upstream, at(10))
    frame = driven.hourly(driven.drive(driven.read(maxFilesPerTrigger=1)))
    query = driven.start(frame, stamp=HOUR, trigger={"availableNow": True})
    assert query.await_termination(100)
    assert driven.rows == counts(rows, at(10))


def test_what_was_promised_later_is_for_the_next_run(driven: Driven, upstream: Upstream) -> None:
    """The query ends, also when the inputs go on; the next run takes them up, from the watermark of the last."""
    rows = [record("a", at(9, 30)), record("a", at(10, 30))]
    driven.feed().put(rows[:1])
    say(upstream, at(10))
    query = driven.start(driven.hourly(driven.drive()), stamp=HOUR, trigger={"availableNow": True})
    assert query.await_termination(100)
    assert driven.rows == counts(rows[:1])
    driven.feed().put(rows[1:])
    upstream.lease.finish()
    query = driven.start(driven.hourly(driven.drive()), stamp=HOUR, trigger={"availableNow": True})
    assert query.await_termination(100)
    assert driven.rows == counts(rows)
    assert driven.watermark() == END


def test_rule_8_a_restart_goes_on_from_the_last_value(driven: Driven, upstream: Upstream) -> None:
    """Stopped between batches, and killed in the batch that carries the control row: every window comes out, whole."""
    rows = [record("a", at(9, 30)), record("a", at(9, 45)), record("b", at(10, 15)), record("b", at(10, 45))]
    driven.feed().put(rows[:1])
    driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    say(upstream, at(9))
    driven.await_watermark(at(9))
    driven.stop()
    driven.feed().put(rows[1:2])
    query = driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    driven.await_read(2)
    assert driven.watermark() == millis(at(9))
    # The batch with the control row is planned, and dies.
    log = query._run.log
    last = log.last_committed()
    assert last is not None
    driven.fails_in = last + 1
    say(upstream, at(10))
    with pytest.raises(RuntimeError, match="told to fail"):
        query.await_termination(90)
    assert not log.committed(last + 1)
    driven.stop()
    driven.feed().put(rows[2:])
    driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    driven.await_watermark(at(10))
    say(upstream, at(11))
    driven.await_watermark(at(11))
    assert driven.rows == counts(rows)


def test_several_controls_say_everything_again_after_a_restart(driven: Driven, lw: lowwater.Client) -> None:
    """One input is finished before the restart. Spark does not remember that, and would wait for it for ever."""
    run_two(driven, lw)


def test_a_watermark_that_spark_does_not_follow_ends_the_query(
    driven: Driven, lw: lowwater.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same restart without saying everything again: found out at the first batch."""

    class Forgetful(Offset):
        def __init__(self, watermark: int = 0, incarnations: Any = None, run: int = 0) -> None:
            super().__init__(watermark, incarnations or {}, 0 * run)

    monkeypatch.setattr(watermark_module, "Offset", Forgetful)
    with pytest.raises(lws.WatermarkLost, match="as its control rows say"):
        run_two(driven, lw)


def run_two(driven: Driven, lw: lowwater.Client) -> None:
    left, right = Upstream(lw, "left"), Upstream(lw, "right")

    def both() -> DataFrame:
        one = driven.drive(driven.read("left"), inputs=["left"])
        return driven.hourly(one.union(driven.drive(driven.read("right"), inputs=["right"])))

    rows = [record("a", at(9, 30)), record("b", at(9, 40)), record("b", at(10, 10))]
    driven.feed("left").put(rows[:1])
    driven.feed("right").put(rows[1:])
    driven.start(both(), inputs=["left", "right"], stamp=HOUR)
    left.lease.finish()
    say(right, at(10))
    driven.await_watermark(at(10))
    driven.stop()
    driven.start(both(), inputs=["left", "right"], stamp=HOUR)
    say(right, at(11))
    driven.await_watermark(at(11))
    assert driven.rows == counts(rows)


def test_rule_9_a_reset_input_ends_the_query_and_keeps_it_from_starting(
    driven: Driven, lw: lowwater.Client, upstream: Upstream
) -> None:
    driven.feed().put([record("a", at(9, 30))])
    query = driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    say(upstream, at(9))
    driven.await_watermark(at(9))
    lw.reset("source")
    with pytest.raises((errors.IncarnationChanged, errors.StaleSequencer)):
        query.await_termination(60)
    assert driven.watermark() == millis(at(9))
    with pytest.raises(errors.IncarnationChanged, match="earlier incarnation"):
        driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    # A stage of another name, that nobody has reset, over the same checkpoint's offsets: the drive's own check.
    Upstream(lw)
    opened = Driving.of(driven.spark, *_plan(driven), driven.folder / "ck", ["source"], {})
    assert opened is not None
    authority = Authority(lw, dataclasses.replace(query._run.authority.registration, name="other"))
    authority.register()
    authority.claim([MIN, MIN])
    opened.reserve(authority.registration, Heads.of(Manifest(driven.folder / "ck"), opened.checked.sources))
    with pytest.raises(errors.IncarnationChanged, match="source was reset"):
        opened.open(authority)
    opened.close()
    authority.close()


def _plan(driven: Driven, read: DataFrame | None = None) -> tuple[DataFrame, Any]:
    from lowwater_spark.track.plan import check_plan

    frame = driven.hourly(driven.drive(read))
    return frame, check_plan(driven.spark, frame, event_time="t")


def test_a_session_in_which_timestamps_have_no_zone_is_driven(driven: Driven) -> None:
    """The control's time is a moment whatever ``timestamp`` means in the session."""
    driven.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        _plan(driven, driven.read(schema="key string, t timestamp_ltz"))
    finally:
        driven.spark.conf.unset("spark.sql.timestampType")


def test_filters_of_the_user_stay_above_the_watermark(driven: Driven, upstream: Upstream) -> None:
    """The control row is null in every column that a filter may ask for."""
    rows = [record("a", at(9, 30)), record("b", at(9, 40))]
    driven.feed().put(rows)
    frame = driven.drive().where("key = 'a'").where(sf.length("key") > 0)
    driven.start(driven.hourly(frame), stamp=HOUR)
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert driven.rows == counts(rows[:1])


def pushed_down(_: str) -> Column:
    """Take the control row out by a filter that Spark can push wherever it likes."""
    return ~sf.col(frame_module._MARK)


def test_a_filter_below_the_watermark_is_refused(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "_data_rows", pushed_down)
    with pytest.raises(Unsupported, match="would be filtered out below the watermark"):
        driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    assert not (driven.folder / "ck").exists()


@CARE
def test_the_control_row_is_in_no_window(
    care: bool, driven: Driven, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not care:
        monkeypatch.setattr(frame_module, "_data_rows", lambda _: sf.spark_partition_id() >= 0)
    rows = [record("a", at(9, 30))]
    driven.feed().put(rows)
    driven.start(driven.hourly(driven.drive(step=timedelta(minutes=1))), stamp=HOUR)
    say(upstream, at(9, 45))
    driven.await_watermark(at(9, 45))
    say(upstream, at(10, 1))
    driven.await_watermark(at(10, 1))
    assert driven.rows == counts(rows)


def test_the_control_comes_first(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes a watermark from a union's first child; the other way round nothing would be driven."""
    monkeypatch.setattr(frame_module, "_unite", lambda control, data: data.union(control))
    with pytest.raises(Unsupported):
        driven.start(driven.hourly(driven.drive()), stamp=HOUR)


@pytest.mark.parametrize(
    ("micros", "why"),
    [(0, "at or before 1970-01-01"), pytest.param(2**61, "of the year 75,042 or later", marks=pytest.mark.long)],
)
def test_rows_that_no_watermark_serves_end_the_query(micros: int, why: str, driven: Driven) -> None:
    """Spark would drop a row of 1970 as late without a word.

    The watermark for MAX would never close the window of a row of 75,042.
    """
    driven.feed().put([{"key": "a", "t": micros}])
    rows = driven.read(schema="key string, t bigint").withColumn("t", sf.timestamp_micros("t"))
    query = driven.start(driven.hourly(driven.drive(rows)), stamp=HOUR)
    with pytest.raises(Exception, match=why):
        query.await_termination(90)


def test_a_broken_promise_is_seen(driven: Driven, upstream: Upstream) -> None:
    """Late rows are dropped by Spark, two batches after the control row at the earliest; they are counted."""
    driven.feed().put([record("a", at(9, 30))])
    query = driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    say(upstream, at(10))
    driven.await_watermark(at(10))
    driven.feed().put([record("a", at(9, 45))])
    driven.await_read(2)
    driven.eventually(
        lambda: query.stage_status().dropped_rows >= 1, "the row is counted, once for each job of its batch"
    )
    assert driven.rows == [("a", at(9), 1)]


def test_nobody_drives_a_frame_that_spark_starts(driven: Driven) -> None:
    driven.feed().put([record("a", at(9))])
    writer = driven.hourly(driven.drive()).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(driven.folder / "ck")).start()
    eventually(lambda: not query.isActive, "it fails")
    assert "is started by stage.start(...)" in str(query.exception())
