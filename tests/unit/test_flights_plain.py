"""The three jobs in plain Python: what they hold, what they say, what a broken promise looks like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from examples.flights import compare, data, expected, plain
from examples.flights.data import HOUR
from examples.flights.expected import Hourly, Window
from examples.flights.plain import EnrichedStage, FlightsStage, HourlyStage, Inbox, Record
from examples.flights.replay import Beat, Row
from examples.flights.simulate import Computation, Inputs, ModelLease, simulate
from lowwater.watermark import MAX, MIN, Watermark
from tests.unit.flights_year import START, demo_slice, simulated

NAMES = {"AA": "American Airlines Inc."}, {"MIA": "Miami Intl"}


def at(hours: float) -> int:
    return START + int(hours * HOUR)


def record(number: int, hours: float, origin: str = "JFK", delay: int | None = 5, dest: str = "MIA") -> Record:
    return Record(number, "AA", origin, dest, at(hours), delay)


class Spy:
    """Keeps what a stage said last."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}
        self.finished = False

    def advance(self, seen: Any, **said: Any) -> None:
        self.said = {"seen": seen, **said}

    def finish(self) -> None:
        self.finished = True


class Source:
    """Inputs that stand where the test puts them."""

    def __init__(self) -> None:
        self.low = MIN

    def read(self) -> Inputs:
        return Inputs(Watermark(self.low), {0.99: Watermark(self.low)})


def enriched() -> tuple[EnrichedStage, Source, Inbox, Spy, list[Record]]:
    source, inbox, lease, sent = Source(), Inbox(), Spy(), list[Record]()
    return EnrichedStage(source.read, inbox, lease, sent.extend, NAMES), source, inbox, lease, sent


def hourly() -> tuple[HourlyStage, Source, Inbox, Spy, list[tuple[Window, Hourly]]]:
    source, inbox, lease, rows = Source(), Inbox(), Spy(), list[tuple[Window, Hourly]]()
    return HourlyStage(source.read, inbox, lease, lambda *row: rows.append(row)), source, inbox, lease, rows


def board(number: int, hours: float) -> Row:
    return Row("board", id=number, carrier="AA", origin="JFK", dest="MIA", sched_dep=at(hours))


def landed(number: int, hours: float) -> Row:
    return board(number, hours)._replace(kind="flight", dep_delay=0)


def test_the_whole_slice_is_exact_with_duplicates_removed() -> None:
    run = simulated()
    assert compare.differences(run.rows, expected.hourly(data.SLICE_START, data.SLICE_END)) == []
    assert run.late == 0
    assert run.duplicates > 40
    assert sum(len(batch.records) for batch in run.batches) == len(demo_slice())


def test_a_watermark_that_leads_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Injectors that report the clock alone, as if nothing were out: what lands later is taken for a duplicate."""
    honest = ModelLease.advance

    def leading(self: ModelLease, seen: Any, **said: Any) -> None:
        honest(self, seen, **(said if seen is not None else {**said, "oldest": None}))

    monkeypatch.setattr(ModelLease, "advance", leading)
    run = simulate(demo_slice(), START)
    assert run.duplicates > 1000
    assert len(compare.differences(run.rows, expected.hourly(data.SLICE_START, data.SLICE_END))) > 100


def test_an_injector_holds_its_oldest_flight_that_is_out() -> None:
    lease, sent = Spy(), list[Record]()
    steps = [
        (board(1, 0.1), board(2, 0.2)),
        (landed(2, 0.2),),
        (landed(1, 0.1), landed(2, 0.2)),
        (),
    ]
    feed = [Beat(n, at(n + 1), (*rows, Row("beat", beat=n, clock=at(n + 1)))) for n, rows in enumerate(steps)]
    stage = FlightsStage(iter([*feed, Beat(4, at(5), (Row("end", beat=4, clock=at(5)),))]), lease, sent.extend)
    said = []
    for _ in steps:
        assert not stage.turn()
        said.append(
            (lease.said["oldest"], lease.said["frontier"], sorted(lease.said["pending"]), lease.said["finished"])
        )
    assert said == [
        (at(0.1), at(1), [at(0.1), at(0.2)], 0),
        (at(0.1), at(2), [at(0.1)], 1),
        (None, at(3), [], 1),
        (None, at(4), [], 0),
    ]
    assert [each.id for each in sent] == [2, 1, 2]
    assert not lease.finished
    assert stage.turn()
    assert lease.finished


def test_enriched_joins_names_and_passes_unknown_airports() -> None:
    stage, _, inbox, _, sent = enriched()
    inbox.put([record(1, 0), record(2, 0, dest="SJU")])
    stage.turn()
    assert [(each.airline, each.destination) for each in sent] == [
        ("American Airlines Inc.", "Miami Intl"),
        ("American Airlines Inc.", None),
    ]


def test_a_duplicate_is_removed_in_the_same_turn_later_and_behind_the_watermark() -> None:
    stage, source, inbox, lease, sent = enriched()
    inbox.put([record(1, 0.5), record(1, 0.5)])
    stage.turn()
    inbox.put([record(1, 0.5)])
    stage.turn()
    source.low = at(3)
    stage.turn()
    assert not stage._ids
    inbox.put([record(1, 0.5), record(2, 3)])
    stage.turn()
    assert [each.id for each in sent] == [1, 2]
    assert stage.duplicates == 3
    assert lease.said["finished"] == 1


def test_a_record_that_came_with_the_watermark_that_covers_it_is_no_duplicate() -> None:
    """It was there before the watermark was read, and is taken after: behind the watermark, and new."""
    stage, source, inbox, _, sent = enriched()
    inbox.put([record(1, 0.5)])
    source.low = at(3)
    stage.turn()
    assert [each.id for each in sent] == [1]


def test_hourly_closes_a_window_once_its_end_is_reached() -> None:
    stage, source, inbox, _, rows = hourly()
    inbox.put([record(1, 0.2), record(2, 0.9, delay=None), record(3, 0.9, "LGA", -4), record(4, 1.0)])
    source.low = at(1) - 1
    stage.turn()
    assert rows == []
    source.low = at(1)
    stage.turn()
    stage.turn()
    assert sorted(rows) == [(("JFK", at(0)), Hourly(2, 1, 1, 5)), (("LGA", at(0)), Hourly(1, 0, 1, -4))]


def test_records_of_the_closing_turn_still_count() -> None:
    stage, source, inbox, _, rows = hourly()
    inbox.put([record(1, 0.2)])
    source.low = at(1)
    stage.turn()
    assert rows == [(("JFK", at(0)), Hourly(1, 0, 1, 5))]
    assert stage.late == 0


def test_a_record_of_a_closed_window_is_counted_and_never_written() -> None:
    stage, source, inbox, _, rows = hourly()
    source.low = at(1)
    stage.turn()
    inbox.put([record(1, 0.5)])
    stage.turn()
    source.low = MAX
    stage.turn()
    assert (stage.late, rows) == (1, [])


def test_a_range_without_windows_says_the_start_of_the_hour_not_the_watermark() -> None:
    """A record at 14:25 opens the window stamped 14:00, so a watermark of 14:20 promises no more than 14:00."""
    stage, source, inbox, lease, _ = hourly()
    inbox.put([record(1, 12.5, "LGA")])
    source.low = at(12) + HOUR // 3
    stage.turn()
    assert lease.said["oldest"] == [at(12), at(12), at(12)]
    source.low = at(14) + HOUR // 3
    stage.turn()
    assert lease.said["oldest"] == [at(14), at(14), at(14)]
    inbox.put([record(2, 16.5, "JFK")])
    stage.turn()
    assert lease.said["oldest"] == [at(14), at(14), at(14)]
    assert lease.said["pending"] == [at(16)]


def test_ranges_of_hourly_can_differ() -> None:
    stage, source, inbox, lease, _ = hourly()
    source.low = at(5)
    inbox.put([record(1, 5, "EWR")])
    stage._open["JFK", at(4)] = Hourly(1, 0, 1, 0)
    source.low = at(5) - 1
    stage.turn()
    assert lease.said["oldest"] == [at(4), at(4), at(4)]


def test_unknown_and_finished_inputs_hold_nothing_back() -> None:
    stage, source, _, lease, _ = hourly()
    assert not stage.turn()
    assert lease.said["oldest"] == [None, None, None]
    source.low = MAX
    assert stage.turn()
    assert lease.said["oldest"] == [None, None, None]


def test_rows_without_what_they_must_have_are_named() -> None:
    for row in (Row("board", id=1), Row("flight", id=1, carrier="AA")):
        stage = FlightsStage(iter([Beat(0, at(1), (row, Row("beat")))]), Spy(), lambda _: None)
        with pytest.raises(ValueError, match=f"a {row.kind} row needs id"):
            stage.turn()


@pytest.mark.parametrize("bounds", [plain.ORIGIN_BOUNDS, plain.CARRIER_BOUNDS])
def test_every_key_has_its_range(bounds: Sequence[bytes]) -> None:
    for key in (*plain.ORIGINS, *data.airlines()):
        index = plain.range_of(key, bounds)
        assert bounds[index] <= key.encode()
        assert not bounds[index + 1] or key.encode() < bounds[index + 1]


def model(values: list[int], masses: Iterable[tuple[list[int], int, int]]) -> tuple[int, int]:
    computation = Computation(values, list(masses))
    computation.publish()
    return computation.low, computation.heuristic


def test_the_models_arithmetic() -> None:
    # 3 old records of 300: 99 % of the mass is at or above 50.
    assert model([1, 50], [([1, 2, 3], 0, 100), ([50] * 7, 290, 90)]) == (1, 50)
    # 4 old records of 300: it is not.
    assert model([1, 50], [([1, 2, 3, 4], 0, 100), ([50] * 6, 290, 90)]) == (1, 4)
    assert model([7], [([], 0, 30)]) == (7, 30)
    assert model([MAX], [([], 5, MAX)]) == (MAX, MAX)
