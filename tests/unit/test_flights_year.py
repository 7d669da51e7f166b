"""The year's run: its threads over the arithmetic of watermarks, on the four days of the demo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from examples.flights import compare, data, expected, plain, table, year
from examples.flights.data import DAY, HOUR
from examples.flights.simulate import Computation, Inputs, ModelLease
from lowwater.watermark import MAX, Watermark
from tests.unit.flights_year import START, demo_slice


class SharedLease(ModelLease):
    """A lease whose computation publishes at once, under one lock for all."""

    def __init__(self, authority: SharedAuthority, computation: Computation, ranges: int) -> None:
        super().__init__(computation, ranges)
        self._authority = authority
        self._shared = computation

    def advance(self, seen: Any, **said: Any) -> None:
        with self._authority.lock:
            super().advance(seen, **said)
            self._shared.publish()
            self._authority.moved()

    def finish(self) -> None:
        with self._authority.lock:
            super().finish()
            self._shared.publish()


class SharedClaim:
    """What one worker works with."""

    def __init__(self, authority: SharedAuthority, computation: str, ranges: int) -> None:
        self._authority = authority
        self._inputs = plain.INPUTS[computation]
        self.lease: plain.Lease = SharedLease(authority, authority.computations[computation], ranges)
        self.flushed = False

    def read(self) -> Inputs:
        with self._authority.lock:
            return self._authority.computations[self._inputs[0]].read()

    def flush(self) -> None:
        self.flushed = True


class SharedAuthority:
    """The arithmetic alone, for threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.computations = {name: Computation() for name in plain.INPUTS}
        self.claims: list[SharedClaim] = []
        self.farthest = 0

    def claim(self, computation: str, worker: str, bounds: Sequence[bytes]) -> SharedClaim:
        assert worker
        self.claims.append(SharedClaim(self, computation, len(bounds) - 1))
        return self.claims[-1]

    def low(self, computation: str) -> Watermark:
        with self.lock:
            return self.computations[computation].read().low

    def lines(self) -> tuple[table.Line, ...]:
        with self.lock:
            seen = {name: computation.read() for name, computation in self.computations.items()}
        return tuple(table.Line(name, each.low, each.heuristic[0.99]) for name, each in seen.items())

    def moved(self) -> None:
        """Keep how far the injectors' reports were ahead of hourly."""
        behind = self.computations[plain.HOURLY].low
        ahead = [mass[2] for mass in self.computations[plain.FLIGHTS].masses if mass[2] != MAX]
        if behind > 0:
            self.farthest = max(self.farthest, *(frontier - behind for frontier in ahead), 0)


def test_every_window_is_exact_whatever_the_threads_do() -> None:
    step = 6 * HOUR
    authority = SharedAuthority()
    shown: list[table.Snapshot] = []
    result = year.Run(demo_slice(), START, authority, step=step, ahead=2 * DAY).run(shown.append)
    assert compare.differences(result.rows, expected.hourly(data.SLICE_START, data.SLICE_END)) == []
    assert result.late == 0
    assert result.duplicates > 40
    assert all(claim.flushed for claim in authority.claims)
    assert len(authority.claims) == 8
    assert {line.low for line in shown[-1].lines} == {Watermark.FINISHED}
    assert shown[-1].note == "212 windows closed"
    # The bound, and one step that was decided on before.
    assert authority.farthest <= 2 * DAY + step


def test_a_failing_worker_stops_all_and_is_raised() -> None:
    class Broken(SharedAuthority):
        def claim(self, computation: str, worker: str, bounds: Sequence[bytes]) -> SharedClaim:
            claimed = super().claim(computation, worker, bounds)
            if worker == "enriched-2":
                claimed.read = self.fail  # type: ignore[method-assign]
            return claimed

        def fail(self) -> Inputs:
            raise ConnectionError("the authority is gone")

    before = set(threading.enumerate())
    run = year.Run(demo_slice(), START, Broken(), ahead=2 * DAY)
    with pytest.raises(ConnectionError, match="the authority is gone"):
        run.run(lambda _: None)
    assert set(threading.enumerate()) <= before


def test_the_table_of_a_run_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    result = year.shown(year.Run(demo_slice(), START, SharedAuthority(), ahead=2 * DAY))
    assert len(result.rows) == 212
    said = capsys.readouterr()
    assert said.out == ""
    assert "hourly finished | 212 windows closed" in said.err.splitlines()[-1]
