"""The completeness history: which steps are complete since when, on every path to a computation's state."""

from __future__ import annotations

from lowwater_authority.core import recovery
from lowwater_authority.core.history import HOUR, KEPT, SECOND, Completion, History
from lowwater_authority.core.times import DAY, MAX, MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.records import journal_pb2 as pb
from tests.property.core_driver import Driver

STEP = 10 * SECOND
SPEC = Spec("c", max_skew=DAY, history_step=STEP)


def history(driver: Driver) -> list[tuple[int, int, int]]:
    return [(c.incarnation, seconds(c.after), seconds(c.through)) for c in driver.core.history]


def seconds(micros: int) -> int:
    return micros if micros in (MIN, MAX) else micros // SECOND


def moved(*seconds: float, spec: Spec = SPEC) -> tuple[Driver, int]:
    d = Driver(spec)
    sequencer = d.claim(b"", b"").sequencer
    for second in seconds:
        d.report(sequencer, int(second * SECOND))
    return d, sequencer


def test_the_newest_that_end_after_a_time() -> None:
    steps = [Completion(1, MIN, 10, 1), Completion(1, 10, 40, 2), Completion(2, MIN, 20, 3), Completion(2, 20, MAX, 4)]
    noted = History(steps)
    assert noted.newest(None, 9) == (steps, 4)
    assert noted.newest(None, 2) == (steps[2:], 4)
    assert noted.newest(10, 9) == (steps[1:], 3), "a step that ends at that time is left out"
    assert noted.newest(20, 1) == (steps[3:], 2)
    assert noted.newest(39, 9) == ([steps[1], steps[3]], 2)
    assert noted.newest(MAX, 9) == ([], 0)
    assert noted.newest(MIN, 9) == (steps, 4)
    assert noted.newest(None, 0) == ([], 4)


def test_the_newest_are_kept_and_the_oldest_go() -> None:
    noted = History()
    for hour in range(KEPT + 5):
        noted.note(1, HOUR, old=hour * HOUR, low=(hour + 1) * HOUR, now=hour)
    assert len(noted) == KEPT
    assert next(iter(noted)) == Completion(1, 5 * HOUR, 6 * HOUR, 5)
    assert noted.newest(None, 1) == ([Completion(1, (KEPT + 4) * HOUR, (KEPT + 5) * HOUR, KEPT + 4)], KEPT)


def test_a_snapshot_that_has_no_history_starts_one_that_claims_nothing_of_before() -> None:
    d, _ = moved(7, 38)
    old = pb.Snapshot.FromString(recovery.snapshot(d.core))
    del old.history[:]
    d.crash(snapshot=old.SerializeToString(), lose=len(d.records))
    assert history(d) == []
    sequencer = d.claim(b"", b"").sequencer
    d.report(sequencer, 55 * SECOND)
    assert history(d) == [(1, 30, 50)], "steps up to 30 s were complete before, nobody knows since when"
