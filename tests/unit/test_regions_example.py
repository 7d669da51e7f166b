"""The pure parts of the example of two regions: the answer, the sink that fences, what a mirror may say, and what is committed."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.flights.data import HOUR
from examples.regions.answer import ARRIVED, MOVE, WRITE_OFF, Run, Seen, Take, batch, wrong
from examples.regions.clients import BURST, FIRST, Click, bursts, made
from examples.regions.committer import Closed, read_on, ready
from examples.regions.mirror import Replicated
from examples.regions.sink import Commit, Fenced, Hour, Sink, Written
from lowwater.watermark import MAX, MIN

POSITIONS = (("a", "clicks", 0, 3), ("b", "clicks", 0, 1))


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    made = Sink(tmp_path / "sink.sqlite")
    assert made.raise_(1) is None
    return made


def test_the_sink_takes_the_number_that_was_raised_last_alone(sink: Sink) -> None:
    first, second = Hour(0, (1, 2)), Hour(HOUR, (3,))
    sink.commit(1, 0, HOUR, [first], POSITIONS)
    with pytest.raises(Fenced):  # not raised: it has not read what is there
        sink.commit(2, 0, 2 * HOUR, [second], POSITIONS)
    last = sink.raise_(2)
    assert last is not None
    assert (last.number, last.until, last.positions) == (1, HOUR, POSITIONS)
    with pytest.raises(Fenced):
        sink.commit(1, 1, 2 * HOUR, [second], POSITIONS)
    with pytest.raises(Fenced):
        sink.raise_(1)
    assert sink.raise_(2) == last
    sink.commit(2, 0, 2 * HOUR, [second], POSITIONS)
    assert [(each.number, each.hour) for each in sink.hours().values()] == [(1, first), (2, second)]
    assert [(each.number, each.batch) for each in sink.commits()] == [(1, 0), (2, 0)]
    assert sink.until == 2 * HOUR
    assert set(sink.raised()) == {1, 2}


def test_a_closed_hour_does_not_change(sink: Sink) -> None:
    sink.commit(1, 0, HOUR, [Hour(0, (1,))], POSITIONS)
    with pytest.raises(sqlite3.IntegrityError):
        sink.commit(1, 1, 2 * HOUR, [Hour(0, (1, 2)), Hour(HOUR, (3,))], POSITIONS)
    with pytest.raises(AssertionError, match="not any more"):
        sink.commit(1, 1, 0, [], POSITIONS)
    assert list(sink.hours()) == [0]
    assert len(sink.commits()) == 1


def test_a_mirror_says_nothing_that_it_has_not_copied() -> None:
    """Against the clicks themselves: a source that grows while it is looked at, and a copy that is late."""
    chance = random.Random(7)
    times = sorted(chance.randrange(1000) for _ in range(300))
    seen, written, copied, said = Replicated(), 0, 0, []
    while copied < len(times):
        low = times[written] if written < len(times) else MAX
        written = min(len(times), written + chance.randrange(9))  # between W and the end there may come more
        seen.look(low, written)
        copied = chance.randint(copied, written)
        said.append(seen.frontier(copied))
        assert all(at >= said[-1] for at in times[copied:]), "it led"
    assert said == sorted(said)
    seen.look(MAX, written)
    assert seen.frontier(copied) == MAX


def test_what_was_committed_is_not_committed_again() -> None:
    hours = [Closed(Hour(start * HOUR, (start,)), {}) for start in (4, 0, 2, 1, 3)]
    assert [each.hour.start // HOUR for each in ready(hours, HOUR, 4 * HOUR)] == [1, 2, 3]
    assert [each.hour.start // HOUR for each in ready(hours, MIN, 2 * HOUR)] == [0, 1]
    assert ready(hours, MAX, MAX) == []
    assert len(ready(hours, MIN, MAX)) == 5


def test_positions_are_of_what_was_read_here() -> None:
    hours = [Closed(Hour(start * HOUR, ()), {"A": 10 * (start + 1), "B": start}) for start in (1, 0, 2)]
    assert [read_on(hours, until * HOUR, "A") for until in (0, 1, 2, 9)] == [0, 10, 20, 30]
    assert read_on(hours, 2 * HOUR, "B") == 1
    assert read_on(hours, MAX, "B") == 2
    assert read_on([], MAX, "A") == 0


def test_clicks_are_known_and_sent_in_order() -> None:
    clicks = made(random.Random(3), 200, 6)
    assert clicks == made(random.Random(3), 200, 6)
    assert [each for burst in bursts(clicks) for each in burst] == clicks
    assert all(len(burst) <= BURST and len({click.at // HOUR for click in burst}) == 1 for burst in bursts(clicks))


# -- the answer finds what is wrong ---------------------------------------------------------------------------------------

CLICKS = [Click(number, FIRST + number * HOUR // 2, "AB"[number == 5]) for number in range(8)]
"""Two an hour. A has closed the first two hours, R is one and a half; of the third hour A had clicks 4, which B has not."""


def taken(how: str = WRITE_OFF) -> Run:
    """A run that is right."""
    accepted = {click.id: ("A", click.id) if click.id < 5 else ("B", click.id) for click in CLICKS}
    take = Take(how, "A", "B", 2, times={"decided": 50.0})
    if how != MOVE:
        take.hold, take.cut = CLICKS[3].at, 3
    run = Run(1, CLICKS, [take], accepted, written_off=how == WRITE_OFF)
    survived = [click for click in CLICKS if how != WRITE_OFF or click.id != 4]
    for start, ids in batch(survived).items():
        run.hours[start] = Written(Hour(start, ids), 1 if start < FIRST + 2 * HOUR else 2, 0.0)
    run.commits = [Commit(1, 0, FIRST + 2 * HOUR, "", (), 0.0), Commit(2, 0, MAX, "", (), 0.0)]
    for region in ("A", "B"):
        for at, low in ((10.0, CLICKS[2].at), (20.0, CLICKS[3].at), (60.0, MAX)):
            run.seen.append(Seen(at, region, "global/hourly", 1, low))
    return run


@pytest.mark.parametrize("how", [WRITE_OFF, ARRIVED, MOVE])
def test_a_right_run_has_nothing_wrong(how: str) -> None:
    run = taken(how)
    [take] = run.takes
    assert wrong(run) == []
    assert run.lost(take) == ({3, 4} if how == WRITE_OFF else set())
    assert run.kept(take) == ({3} if how == WRITE_OFF else set())


def other_hour(run: Run, hour: int, ids: tuple[int, ...], number: int) -> None:
    start = FIRST + hour * HOUR
    run.hours[start] = Written(Hour(start, ids), number, 0.0)


def without(run: Run, hour: int) -> None:
    del run.hours[FIRST + hour * HOUR]


def see(run: Run, at: float, low: int, until: int = MAX, name: str = "global/hourly") -> None:
    run.seen.append(Seen(at, "A", name, 1, low, until))
    run.seen.sort(key=lambda each: each.at)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda run: other_hour(run, 3, (6,), 2), "lacks [7]"),
        (lambda run: other_hour(run, 2, (4, 5), 2), "has besides [4]"),
        (lambda run: other_hour(run, 1, (2,), 1), "lacks [3]"),
        (lambda run: without(run, 3), "0 clicks, 2 expected"),
        (lambda run: other_hour(run, 9, (7,), 2), "1 clicks, 0 expected"),
        (lambda run: setattr(run.takes[0], "hold", CLICKS[3].at + 1), "R led"),
        (lambda run: run.accepted.pop(6), "acknowledged by nobody"),
        (lambda run: see(run, 30.0, CLICKS[1].at), "went back"),
        (lambda run: see(run, 30.0, CLICKS[5].at), "passed the hold"),
        (lambda run: see(run, 30.0, CLICKS[3].at, CLICKS[2].at), "led the sink"),
        (lambda run: run.seen.pop(), "a reader in B was not told"),
        (lambda run: run.commits.append(run.commits[0]), "an older number has committed"),
        (lambda run: run.commits.pop(), "has committed nothing"),
        (lambda run: setattr(run, "written_off", False), "not written off"),
        (lambda run: run.wrong.append("planted"), "planted"),
    ],
)
def test_whatever_is_wrong_is_said(plant: Callable[[Run], object], said: str) -> None:
    run = taken()
    plant(run)
    found = wrong(run)
    assert any(said in each for each in found), found


def test_a_move_that_writes_off_is_wrong() -> None:
    run = taken(MOVE)
    run.written_off = True
    assert "written off" in wrong(run)[0]
