"""The feed: what comes in which beat, how it is written, when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.flights import data, replay
from examples.flights.data import HOUR, MINUTE, Flight
from examples.flights.replay import FEED_DDL, FEED_SCHEMA, STEP, Beat, Row, beats
from tests.kit.clock import Clock
from tests.unit.flights_year import START, demo_slice


def feed(flights: tuple[Flight, ...] | None = None, **options: float) -> list[Beat]:
    wanted = {"duplicates": 0.02, "seed": 2013, **options}
    chosen = demo_slice() if flights is None else flights
    return list(beats(chosen, start=START, duplicates=wanted["duplicates"], seed=int(wanted["seed"])))


def rows(all_beats: list[Beat], kind: str) -> list[tuple[int, Row]]:
    return [(beat.number, row) for beat in all_beats for row in beat.rows if row.kind == kind]


def test_the_feed_depends_on_its_arguments_alone() -> None:
    assert feed() == feed()
    assert list(beats(demo_slice()[::-1], start=START)) == feed()
    assert feed(seed=1) != feed()


def test_every_flight_is_on_the_board_once_in_the_step_it_is_scheduled() -> None:
    boards = rows(feed(), "board")
    assert {row.id: number for number, row in boards} == {
        flight.id: (flight.sched_dep - START) // STEP for flight in demo_slice()
    }
    assert len(boards) == len(demo_slice())


def test_the_board_tells_nothing_that_is_not_known_yet() -> None:
    for _, row in rows(feed(), "board"):
        assert (row.tailnum, row.dep_delay, row.air_time, row.arr_delay, row.available) == (None,) * 5


def test_every_record_comes_in_the_step_it_becomes_available() -> None:
    records = rows(feed(duplicates=0), "flight")
    assert len(records) == len(demo_slice())
    assert {row.id: number for number, row in records} == {
        flight.id: (flight.available - START) // STEP for flight in demo_slice()
    }
    by_id = {flight.id: flight for flight in demo_slice()}
    for _, row in records:
        assert row[3:] == tuple(by_id[row.id or 0])


def test_two_per_cent_come_twice_exactly_alike_some_in_the_same_beat_some_later() -> None:
    first: dict[Row, int] = {}
    gaps: Counter[int] = Counter()
    for number, row in rows(feed(), "flight"):
        if row in first:
            gaps[number - first[row]] += 1
        first.setdefault(row, number)
    assert len(first) == len({row.id for row in first}) == len(demo_slice())
    assert gaps.total() / len(demo_slice()) == pytest.approx(0.02, abs=0.007)
    assert set(gaps) == set(replay.DUPLICATE_BEATS)


def test_each_beat_ends_with_its_clock_and_all_before_it_is_on_the_board() -> None:
    on_board: set[int | None] = set()
    *steps, last = feed()
    for number, beat in enumerate(steps):
        on_board |= {row.id for row in beat.rows if row.kind == "board"}
        clock = START + (number + 1) * STEP
        assert beat.number == number
        assert beat.clock == clock
        assert beat.rows[-1] == Row("beat", beat=number, clock=clock)
        assert on_board == {flight.id for flight in demo_slice() if flight.sched_dep < clock}
    assert last.rows == (Row("end", beat=len(steps), clock=last.clock),)


def test_the_clock_runs_until_every_record_has_come() -> None:
    steps = feed(duplicates=0)
    newest = max(flight.available for flight in demo_slice())
    assert steps[-2].clock - STEP <= newest < steps[-2].clock
    assert steps[-1].clock == steps[-2].clock + STEP


def test_what_the_feed_tells_is_enough_for_an_exact_low_watermark() -> None:
    """The least of the clock and the flights that are out never goes back, and no record is older than it."""
    out: dict[int | None, int] = {}
    low = START
    for beat in feed(duplicates=0)[:-1]:
        for row in beat.rows:
            if row.kind == "board":
                out[row.id] = row.sched_dep or 0
            elif row.kind == "flight":
                assert (row.sched_dep or 0) >= low
                out.pop(row.id)
        now = min(beat.clock, *out.values()) if out else beat.clock
        assert now >= low
        low = now
    assert not out


@pytest.mark.parametrize("step", [0, MINUTE // 2])
def test_a_step_that_file_names_cannot_tell_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match="whole minutes"):
        next(beats(demo_slice(), start=START, step=step))


def test_a_flight_before_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match=r"flight 5941 is scheduled before start"):
        next(beats(demo_slice(), start=START + HOUR))


def test_a_file_holds_the_beat_and_only_it(tmp_path: Path) -> None:
    beat = feed()[60]
    path = replay.write_beat(tmp_path, beat)
    assert list(tmp_path.iterdir()) == [path]
    assert path.name == "beat-000060-20130108T1515.parquet"
    table = pq.read_table(path)
    assert table.schema.equals(FEED_SCHEMA)
    read = [
        Row(**{**row, **{name: _micros(row[name]) for name in ("clock", "sched_dep", "available")}})
        for row in table.to_pylist()
    ]
    assert tuple(read) == beat.rows


def _micros(value: object) -> int | None:
    return data.micros(value) if isinstance(value, datetime) else None


def test_a_reader_never_sees_a_file_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    rename = Path.rename

    def spy(self: Path, target: Path) -> Path:
        seen.extend(path.name for path in tmp_path.iterdir())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", spy)
    replay.write_beat(tmp_path, feed()[0])
    assert seen == [".beat-000000-20130108T0015.parquet.writing"]


def test_spark_and_arrow_name_the_same_columns() -> None:
    spark = {"string": "STRING", "int64": "BIGINT", "int32": "INT", "timestamp[us, tz=UTC]": "TIMESTAMP"}
    assert ", ".join(f"{field.name} {spark[str(field.type)]}" for field in FEED_SCHEMA) == FEED_DDL
    assert tuple(FEED_SCHEMA.names) == Row._fields


def test_beats_are_written_at_the_rate_and_lost_time_is_caught_up(tmp_path: Path) -> None:
    clock = Clock()
    steps = feed()[:6]

    def slowly() -> Iterator[Beat]:
        for beat in steps:
            if beat.number == 2:
                clock.now += 0.2
            yield beat

    count = replay.run(slowly(), tmp_path, start=START, rate=2.0, now=clock, wait=clock.wait)
    assert count == len(list(tmp_path.iterdir())) == 6
    # A quarter of an hour at two hours a second is an eighth of a second; the third beat came too late to wait.
    assert clock.waits == pytest.approx([0.125, 0.125, 0.05, 0.125, 0.125])
    assert clock.now == pytest.approx(100 + 6 / 8)


def test_without_a_rate_limit_nothing_waits(tmp_path: Path) -> None:
    clock = Clock()
    replay.run(feed()[:3], tmp_path, start=START, rate=float("inf"), now=clock, wait=clock.wait)
    assert clock.waits == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_of_nothing_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        replay.run([], tmp_path, start=START, rate=rate)


def test_two_feeds_in_one_folder_are_refused(tmp_path: Path) -> None:
    replay.run(feed()[:1], tmp_path, start=START, rate=float("inf"))
    with pytest.raises(FileExistsError, match="holds a feed already"):
        replay.run(feed()[:1], tmp_path, start=START, rate=float("inf"))


def test_the_replay_clock_is_that_of_the_newest_file(tmp_path: Path) -> None:
    assert replay.replay_clock(tmp_path) is None
    for beat in feed()[:5]:
        replay.write_beat(tmp_path, beat)
        assert replay.replay_clock(tmp_path) == beat.clock


def test_the_command_writes_a_feed_and_says_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "feed"
    arguments = ["--out", str(out), "--rate", "inf", "--start", "2013-01-09", "--end", "2013-01-09T12:00"]
    assert replay.main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["beats"] == len(list(out.iterdir()))
    assert said["flights"] == sum(
        data.micros(data.SLICE_START) + 24 * HOUR <= flight.sched_dep < data.micros(data.SLICE_START) + 36 * HOUR
        for flight in demo_slice()
    )
