"""Each way in which a driven query could drop rows, or keep its windows for ever."""

from __future__ import annotations

import sys
from typing import cast

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

import lowwater
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.drive import frame as frame_module
from lowwater_spark.drive.watermark import Driving
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control_reader import ControlDataSource
from lowwater_spark.track.plan.checked import check_plan
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, counts, driven, millis, record, say
from tests.spark.support import Upstream

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)


def slower_than_the_query(self: Driving) -> None:
    open_question = any(driven.control.asked() > driven.newest.answered for driven in self._driven.values())
    if self._listed_reading is None or open_question:
        _look(self)


_look = Driving.look


def test_a_query_closes_windows_at_its_end(driven: Driven, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driving, "look", slower_than_the_query)
    rows = [record("a", at(9, 10 * i)) for i in range(3)]
    for row in rows:
        driven.feed().put([row])
    say(upstream, at(10))
    frame = driven.hourly(driven.drive(driven.read(maxFilesPerTrigger=1)))
    query = driven.start(frame, stamp=HOUR, trigger={"availableNow": True})
    assert query.await_termination(100)
    assert driven.rows == counts(rows, at(10))


def test_rule_8_a_restart_goes_on_from_the_last_value(driven: Driven, upstream: Upstream) -> None:
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
    log = CheckpointLog(driven.folder / "ck")
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


@pytest.mark.long  # Spark waits 10 seconds for the process that is late
def test_a_machine_that_was_too_busy_is_tried_again(
    driven: Driven, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    python, late = driven.folder / "python", driven.folder / "late"
    late.touch()
    slow = f'case "$*" in *source_runner*) if [ -e {late} ]; then rm {late}; exec tail -f /dev/null; fi;; esac'
    python.write_text(f'#!/bin/sh\n{slow}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(driven.spark.sparkContext, "pythonExec", str(python))
        driven.spark.dataSource.register(ControlDataSource)
        rows = [record("a", at(9, 30))]
        driven.feed().put(rows)
        say(upstream, at(10))
        driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    driven.spark.dataSource.register(ControlDataSource)
    driven.await_watermark(at(10))
    assert driven.rows == counts(rows, at(10))
    assert "stage starts again" in caplog.text
    assert not driven.spark.streams.awaitAnyTermination(cast("int", 0.001)), "the first start does not end the program"


def test_several_controls_say_everything_again_after_a_restart(driven: Driven, lw: lowwater.Client) -> None:
    """One input is finished before the restart. Spark does not remember that, and would wait for the input for ever."""
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


def test_rows_that_no_watermark_serves_end_the_query(driven: Driven) -> None:
    driven.feed().put([{"key": "a", "t": 0}])
    rows = driven.read(schema="key string, t bigint").withColumn("t", sf.timestamp_micros("t"))
    query = driven.start(driven.hourly(driven.drive(rows)), stamp=HOUR)
    with pytest.raises(Exception, match="at or before 1970-01-01"):
        query.await_termination(90)


def test_a_session_in_which_timestamps_have_no_zone_is_driven(driven: Driven) -> None:
    driven.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = driven.hourly(driven.drive(driven.read(schema="key string, t timestamp_ltz")))
        check_plan(driven.spark, frame, event_time="t")
    finally:
        driven.spark.conf.unset("spark.sql.timestampType")


def pushed_down(_: str) -> Column:
    """Take the control row out by a filter that Spark can push wherever it likes."""
    return ~sf.col(frame_module._MARK)


def test_a_filter_below_the_watermark_is_refused(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "_data_rows", pushed_down)
    with pytest.raises(Unsupported, match="would be filtered out below the watermark"):
        driven.start(driven.hourly(driven.drive()), stamp=HOUR)
    assert not (driven.folder / "ck").exists()
