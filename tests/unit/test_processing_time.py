"""One bad second of the machine's clock, and a clock that is put right: what is stamped, and what is too far ahead."""

from __future__ import annotations

import time as clocks
from collections.abc import Callable

import pytest

from lowwater_authority import serve as server
from lowwater_authority.engine.processing_time import ProcessingTime
from tests.kit.times import DAY, HOUR, SECOND

NOW = 1_700_000_000 * SECOND


class Machine:
    """Two clocks, of which one can be set."""

    def __init__(self) -> None:
        self.passed = 0
        self.off = 0

    def wall(self) -> int:
        return NOW + self.passed + self.off

    def monotonic(self) -> int:
        return self.passed


def bad_second(time: Callable[[], int], machine: Machine, off: int) -> None:
    """The clock is wrong for a second, in which everybody looks at it."""
    machine.off = off
    for _ in range(10):
        machine.passed += SECOND // 10
        time()
    machine.off = 0


@pytest.mark.parametrize("off", [365 * DAY, -365 * DAY])
def test_a_bad_second_of_the_clock_leaves_nothing_behind(off: int) -> None:
    machine = Machine()
    time = ProcessingTime(machine.wall, machine.monotonic)
    time()
    bad_second(time, machine, off)
    assert abs(time() - machine.wall()) <= SECOND // 10
    before = time()
    machine.passed += HOUR
    assert abs(time() - before - HOUR) <= SECOND // 10
    assert time() == machine.wall()


@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_a_clock_that_was_set_is_neared_without_a_jump(off: int) -> None:
    machine = Machine()
    time = ProcessingTime(machine.wall, machine.monotonic)
    last = time()
    machine.off = off
    for _ in range(11 * 60):
        machine.passed += 60 * SECOND
        assert 54 * SECOND <= time() - last <= 66 * SECOND
        last = time()
    assert last == machine.wall()


def test_a_suspend_leaves_nothing_behind() -> None:
    """The machine is suspended for five hours, which the steady clock counts."""
    machine = Machine()
    time = ProcessingTime(machine.wall, machine.monotonic)
    time()
    machine.passed += 5 * HOUR
    assert machine.wall() == time()
    assert server.STEADY == clocks.CLOCK_BOOTTIME, "the clock of Linux that counts it"
    before = clocks.clock_gettime(clocks.CLOCK_BOOTTIME)
    assert before <= server.steady_seconds() <= clocks.clock_gettime(clocks.CLOCK_BOOTTIME)
    assert int(before * SECOND) <= server.steady() <= clocks.clock_gettime(clocks.CLOCK_BOOTTIME) * SECOND
