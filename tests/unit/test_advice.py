"""What the advice says, what it refuses to say, and where its event times come from."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lowwater import Completion, History, InvalidArgument, LatenessBudget, Watermark, WatermarkView
from lowwater.cli.advise import counted_behind, read_event_times
from lowwater.core.advice import Advice, advise
from lowwater.core.advice_picture import BOTTOM, LEFT, RIGHT, TOP, picture
from lowwater.core.event_times import EventTimes, read_batch_times
from tests.kit.times import mark

HOUR = 3_600_000_000


def text(hour: float) -> str:
    return f"{Watermark(mark(0).micros + int(hour * HOUR))}".replace("Z", ".000Z")


def progress(batch: int, at: float, least: float, mean: float, greatest: float, **more: Any) -> dict[str, Any]:
    """A report of a batch of a hundred rows that takes a minute; times are hours of 2013-01-09."""
    return {
        "id": "q1",
        "name": "guess",
        "batchId": batch,
        "timestamp": text(at),
        "batchDuration": 60_000,
        "numInputRows": 100,
        "eventTime": {"min": text(least), "avg": text(mean), "max": text(greatest)},
        **more,
    }


REPORTS = [
    progress(0, 10, 10, 10, 10),
    progress(1, 10.1, 10, 10, 10),
    progress(2, 10.2, 7, 9.5, 11),
    progress(3, 10.3, 11, 11.5, 12),
    progress(4, 12.2, 8, 8, 8),
]
"""Nothing is behind but in batch 2, up to three hours, and in all of batch 4, three hours behind batch 2."""


def complete(after: float, through: float, at: float) -> Completion:
    ends = [Watermark.UNKNOWN if hour < 0 else mark(0).micros + int(hour * HOUR) for hour in (after, through)]
    return Completion(1, Watermark.of(ends[0]), Watermark.of(ends[1]), mark(0).micros + int(at * HOUR))


def history(*completions: Completion) -> History:
    return History("hourly", timedelta(hours=1), completions, len(completions))


def hours(*delays: float) -> list[timedelta]:
    return [timedelta(hours=delay) for delay in delays]


def read(reports: list[dict[str, Any]] = REPORTS) -> EventTimes:
    return EventTimes(map(read_batch_times, reports))


def test_it_says_what_a_delay_loses_and_what_the_low_watermark_costs() -> None:
    completions = history(complete(-1, 8, 9), complete(8, 9, 10.31), complete(9, 10, 12.21))
    advice = advise(read(), completions, query="guess", delays=hours(4, 1, 2))
    assert str(advice).splitlines() == [
        "guess read 300 rows in 3 batches, with event times from 2013-01-09T07:00:00Z to 2013-01-09T12:00:00Z.",
        "The low watermark of hourly loses none, as long as its sources keep their promises.",
        "hourly completed 2 steps, 2 h after the end of a step at the median, and between 2 h and 3 h at worst, "
        "by the event times that Spark had read.",
        "With a delay of 1 h Spark's watermark would have lost between 33 % and 58 % of the rows; hourly came 1 h later "
        "at the median, and between 1 h and 2 h later at worst.",
        "With a delay of 2 h Spark's watermark would have lost between 33 % and 50 % of the rows; hourly came at the same "
        "time at the median, and between 0 ms and 1 h later at worst.",
        "With a delay of 4 h Spark's watermark would have lost none of the rows; hourly came 2 h sooner at the median, "
        "and between 1 h and 2 h sooner at worst.",
        "To lose at most 1 % of the rows Spark would have needed a delay of 3 h.",
        "To lose at most 0.1 % of the rows Spark would have needed a delay of 3 h.",
        "To lose none of the rows Spark would have needed a delay of 3 h.",
        "Not judged: 200 rows of the first two batches, or without a usable event time.",
        "Who held it in the past is not kept; 'lowwater why' names the holder of this moment.",
    ]
    later = advise(read(), completions, since=mark(11).micros + 1, delays=hours(1))
    assert (later.rows, later.waits) == (100, None), (
        "since: only the batch with rows of twelve, and no step that ends later"
    )


def test_without_event_times_the_clock_bounds_what_waiting_costs() -> None:
    completions = history(complete(-1, 8, 9), complete(8, 9, 10.5), complete(9, 10, 11.5), complete(10, 11, 15))
    lines = str(advise(None, completions, delays=hours(1, 2), estimated=True)).splitlines()
    assert lines[:4] == [
        "hourly is an estimate, so what its watermark loses is not known.",
        "hourly completed 3 steps, 1 h 30 min after the end of a step at the median, and 4 h at worst, by the clock.",
        "With a delay of 1 h hourly came at most 30 min later at the median, and at most 3 h later at worst.",
        "With a delay of 2 h hourly came at least 30 min sooner at the median, and at most 2 h later at worst.",
    ]
    assert lines[4].startswith(
        "What a delay loses is not known: no event times of a query are there. Give Spark's event log"
    )


def test_what_cannot_be_known_is_said() -> None:
    replay = [complete(step, step + 1, 20 + step / 60) for step in range(8)]
    assert "its history is of a replay, 7 h of event time in 7 min" in str(advise(None, history(*replay)))
    assert "no steps yet that became complete while it ran" in str(advise(None, history(complete(-1, 8, 9))))
    assert "no batch of guess has rows with event times and two" in str(advise(read(REPORTS[:2]), query="guess"))
    odd = progress(7, 12.3, 8, 8, 8, eventTime={"max": "+292278994-08-17T07:12:55.807Z"})
    advice = advise(read([*REPORTS, REPORTS[-1], odd]))
    assert (advice.rows, advice.unjudged_rows, advice.missing_batches) == (300, 300, 2)
    assert "Not seen: 2 of the later batches." in str(advice)
    assert "Not seen: batches before 2." in str(advise(read(REPORTS[2:])))
    with pytest.raises(ValueError, match="give a positive number of milliseconds"):
        advise(None, delays=[timedelta(microseconds=1_500)])
    with pytest.raises(ValueError, match="no picture without event times"):
        picture(advise(None))


def test_a_query_that_makes_several_rows_of_one_is_judged_by_whole_batches() -> None:
    exploded = [*REPORTS[:2], progress(2, 10.2, 7, 9.5, 11, numInputRows=1)]
    (loss,) = advise(read(exploded), delays=hours(1)).losses
    assert (loss.rows.least, loss.rows.most) == (0, 1)


@pytest.mark.parametrize(
    "more", [{"numInputRows": 10**30}, {"numInputRows": 1e400}, {"batchDuration": 10**30}, {"numInputRows": -1}]
)
def test_a_line_that_no_spark_writes_is_passed_over(tmp_path: Path, more: dict[str, Any]) -> None:
    lines = [*map(json.dumps, [*REPORTS, progress(5, 12.3, 8, 8, 8, **more)]), '{"batchId":' + "[" * 100_000]
    (tmp_path / "lines").write_text("\n".join(lines).replace("Infinity", "1e400"))
    assert list(read_event_times([tmp_path / "lines"], None)[1] or ()) == list(read())


@pytest.mark.parametrize("name", ["\x1b[31m\nfake", "\u202edesrever", "\ud800", 5, ["x"]])
def test_a_hostile_name_of_a_query_is_shown_on_one_line(tmp_path: Path, name: object) -> None:
    (tmp_path / "lines").write_text("\n".join(json.dumps(one | {"name": name}) for one in REPORTS))
    query, event_times = read_event_times([tmp_path / "lines"], None)
    advice = advise(event_times, query=query)
    assert all(line.isprintable() for line in str(advice).splitlines())
    ET.fromstring(picture(advice))
    assert all(line.isprintable() for line in str(advise(read(REPORTS[:2]), query=query)).splitlines())


def test_one_lost_row_of_a_hundred_million_is_not_zero_percent() -> None:
    reports = [
        *REPORTS[:2],
        progress(2, 10.2, 10, 10, 10, numInputRows=10**8),
        progress(3, 10.3, 7, 7, 7, numInputRows=1),
    ]
    assert "would have lost less than 0.0001 % of the rows" in str(advise(read(reports), delays=hours(1)))


def test_rows_that_are_all_older_than_asked_for_are_said_to_be() -> None:
    text = str(advise(read(), query="guess", since=mark(20).micros))
    assert "What a delay loses since 2013-01-09T20:00:00Z is not known: all rows of guess are older." in text
    assert "no event times" not in text


def test_the_past_gets_coarser_and_stays_bounded() -> None:
    times = read([progress(batch, batch / 60, 8, 8, 9) for batch in range(5_000)])
    advice: Advice = advise(times, delays=hours(0.5))
    assert (len(times) <= 1_024, advice.batches, advice.rows) == (True, 4_998, 499_800)
    assert "(merged into " in str(advice)


def test_event_times_come_from_an_event_log_or_lines(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", tmp_path / "lines"
    event = {"Event": "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"}
    without_total = {name: value for name, value in REPORTS[2].items() if name != "numInputRows"}
    without_total["sources"] = [{"numInputRows": 60}, {"numInputRows": 40}]
    reports = [*REPORTS[:2], without_total, *REPORTS[3:]]
    log.write_text("\n".join(["no JSON", '{"batchId"', *(json.dumps(event | {"progress": one}) for one in reports)]))
    query, event_times = read_event_times([log], None)
    assert (query, list(event_times or ())) == ("guess", list(read()))
    lines.write_text("\n".join(json.dumps(one) for one in (REPORTS[3:] + REPORTS[:3])))
    assert list(read_event_times([lines], None)[1] or ()) == list(read()), "the parts of a rolling log in any order"
    lines.write_text("".join(f"{json.dumps(one | {'id': 'q2', 'name': None})}\n" for one in REPORTS))
    assert read_event_times([log, lines], "q2")[0] == "q2"
    with pytest.raises(InvalidArgument, match="several queries; choose one with --query; it has guess, q2"):
        read_event_times([log, lines], None)
    with pytest.raises(InvalidArgument, match="has no query other; it has guess"):
        read_event_times([log], "other")
    with pytest.raises(InvalidArgument, match="name the file of its progress as well"):
        read_event_times([], "guess")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidArgument, match="no progress of a streaming query"):
        read_event_times([tmp_path / "empty"], None)
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        read_event_times([tmp_path / "nowhere"], None)
    (tmp_path / "log.gz").write_bytes(gzip.compress(log.read_bytes()))
    with pytest.raises(InvalidArgument, match="is no text; decompress an event log first"):
        read_event_times([tmp_path / "log.gz"], None)


def test_records_behind_other_watermarks_are_facts() -> None:
    assert "Register it with lateness_budget=0.01" in counted_behind(WatermarkView("hourly"))[0]
    budget = LatenessBudget(0.01, Watermark.UNKNOWN, 1_000, 9, 0, 0.0)
    assert counted_behind(WatermarkView("hourly", budgets=(budget,), passed=((990_000, 2_000, 74),))) == [
        "Behind its heuristic watermark of 99 % came at most 3.7 % of 2000 records.",
        "Behind its lateness budget of 1 % came at most 0.9 % of 1000 records.",
    ]


def test_the_picture_shows_delays_and_the_wait() -> None:
    completions = history(complete(-1, 8, 9), complete(8, 9, 10.31), complete(9, 10, 12.21))
    drawn = ET.fromstring(picture(advise(read(), completions, query="guess <1>", delays=hours(1, 2))))
    texts = ["".join(each.itertext()) for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Rows that a constant delay would have lost: guess <1>, 300 rows"
    assert "hourly: loses none, waits 2 h at the median" in texts
    (band,) = drawn.iter("{http://www.w3.org/2000/svg}polygon")
    points = [tuple(map(float, point.split(","))) for point in band.attrib["points"].split()]
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in points), points
    assert len({y for _, y in points}) > 2, "the band falls"
