"""Rows that Spark drops, as a sidecar declares, judges and adds them up."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import Watermark
from lowwater_spark.drive.late import LateRule, windows_of
from lowwater_spark.sidecar.command import main
from lowwater_spark.sidecar.declaration import Declaration
from lowwater_spark.sidecar.dropped import HOUR, Dropped, DroppedRow, Tally
from lowwater_spark.track.plan.bounds import Window
from tests.kit.times import micros

MINUTES = st.integers(1, 90).map(lambda minutes: timedelta(minutes=minutes))


@given(st.lists(MINUTES, min_size=3, max_size=3), st.integers(-5, 9_000_000_000_000), st.integers(-7_200, 7_200))
def test_a_row_is_dropped_exactly_where_the_rule_of_windows_drops_it(
    parts: list[timedelta], watermark: int, seconds: int
) -> None:
    length, slide = max(parts[:2]), min(parts[:2])
    window = Window(length, slide, parts[2])
    bound = Dropped("t", window=window).bound(watermark)
    times = np.array([bound - 1, bound, watermark + seconds * 1_000_000])
    assert list(times < bound) == list(LateRule("", windows_of([window])).late(times, watermark))


def test_without_windows_rows_at_the_watermark_are_dropped() -> None:
    times = np.array([micros(9), micros(9) + 1])
    assert list(times < Dropped("t").bound(micros(9))) == list(LateRule("", at=True).late(times, micros(9)))


def test_a_tally_keeps_the_newest_hours_and_counts_all() -> None:
    tally = Tally("stage", -1)
    tally.add(0, {hour * HOUR: 1 for hour in range(1_500)}, DroppedRow(7, "b", 0))
    tally.add(1, {0: 1, 1_499 * HOUR: 2}, DroppedRow(8, "a", 1))
    assert (tally.rows, len(tally.hours), tally.hours[1_499 * HOUR], tally.earlier) == (1_503, 1_000, 3, 501)
    tally.give_up(4, "the file was removed")
    assert tally.not_counted == "3 batches are not counted, the last one because the file was removed"
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally
    assert tally.example == DroppedRow(7, "b", 0)
    assert next(iter(tally.shown()["dropped_hours"])) == str(Watermark(500 * HOUR))


def test_the_command_prints_what_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dropped", "--state", str(tmp_path)]) == 2
    assert "declare dropped" in capsys.readouterr().err
    tally = Tally("daily.sales", 3)
    tally.add(4, {micros(9): 2}, DroppedRow(micros(9, 1), "partition 0 of t, offset 7", 4))
    tally.give_up(5, "/in/a.json was removed")
    (tmp_path / "daily%2Esales").mkdir()
    content = {"declared": "", "tally": tally.to_json()}
    (tmp_path / "daily%2Esales" / "dropped.json").write_text(json.dumps(content))
    assert main(["dropped", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "daily.sales: Spark has dropped 2 rows up to batch 5, the oldest: 2013-01-09T09:01:00Z, partition 0 of t, offset 7, batch 4",
        "  2 of 2013-01-09T09:00:00Z",
        "  1 batches are not counted, the last one because /in/a.json was removed",
    ]
    assert main(["dropped", "--state", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"query": "daily.sales", **tally.shown()}


def declared(dropped: Any, source: str = "files:/in", **more: Any) -> Declaration:
    promises = ["nothing-skipped", "sink-visible-before-commit"]
    table = {"name": "q", "checkpoint": "/ck", "inputs": ["in"], "sources": [source], "promises": promises}
    return Declaration.parse({**table, "dropped": dropped, **more})


FILES = {"event_time": "t", "format": "json", "schema": "t timestamp"}


@pytest.mark.parametrize(
    ("dropped", "more", "message"),
    [
        ([], {}, ""),
        ([{**FILES, "row": True}], {}, ""),
        ([{**FILES}], {"windows": "1h"}, ""),
        ([{**FILES}], {}, "by what Spark drops"),
        ([{**FILES, "row": True, "session": "1h"}], {}, "one of window"),
        ([{**FILES, "slide": "1h", "row": True}], {}, "one of window"),
        ([{**FILES, "window": "1h", "slide": "2h"}], {}, "slide above 0 and not above window"),
        ([{"event_time": "t", "row": True}], {}, "needs format, a text"),
        ([{**FILES, "event_tme": "t"}], {}, "no key event_tme.*did you mean event_time"),
        ([{**FILES, "row": True, "options": {"multiLine": True}}], {}, "options is a table of texts"),
        ([{**FILES, "row": True}] * 2, {}, "one table for each of its 1 sources"),
        (
            [{"event_time": "t", "row": True}],
            {"sources": ["delta:/t"]},
            "delta:/t are not read again.*files, sink, kafka",
        ),
        ([{"event_time": "t", "row": True}], {"sources": ["iceberg:c.d.t"]}, "iceberg:c.d.t are not read again"),
        (
            [{**FILES, "row": True}],
            {"sources": ["kafka:a,lowwater.brokers=1,kafka.bootstrap.servers=one:9092"]},
            "has format, which only files have",
        ),
    ],
)
def test_what_is_declared_of_dropped_rows_is_checked(dropped: Any, more: dict[str, Any], message: str) -> None:
    if not message:
        assert len(declared(dropped, **more).dropped) == len(dropped)
        return
    with pytest.raises(ValueError, match=message):
        declared(dropped, **more)


def test_windows_of_the_query_count_if_nothing_else_is_named() -> None:
    hour = timedelta(hours=1)
    (dropped,) = declared([FILES], windows="1h", windows_start="15m").dropped
    assert dropped.window == Window(hour, hour, timedelta(minutes=15))
    (other,) = declared([{**FILES, "session": "1h"}], windows="1h").dropped
    assert (other.window, other.session) == (None, hour)
