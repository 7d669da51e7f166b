"""One bad second of the machine's clock, and a clock that is put right: what is stamped, and what is too far ahead."""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Callable

import numpy as np
import pytest

from lowwater_authority import serve as server
from lowwater_authority.core.requests import ClaimRequest, GroupReport
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.processing_time import ProcessingTime
from lowwater_authority.engine.rounds import Round
from lowwater_authority.engine.shard import Shard
from lowwater_authority.ops.observer import Observer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
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


def slept(machine: Machine, *, counted: bool) -> None:
    """The machine is suspended for five hours."""
    if counted:
        machine.passed += 5 * HOUR
    else:
        machine.off += 5 * HOUR


def behind_after_a_suspend(*, counted: bool) -> int:
    machine = Machine()
    time = ProcessingTime(machine.wall, machine.monotonic)
    time()
    slept(machine, counted=counted)
    return machine.wall() - time()


def test_a_suspend_leaves_nothing_behind() -> None:
    assert behind_after_a_suspend(counted=True) == 0
    assert server.STEADY == clocks.CLOCK_BOOTTIME, "the clock of Linux that counts it"
    before = clocks.clock_gettime(clocks.CLOCK_BOOTTIME)
    assert before <= server._steady_seconds() <= clocks.clock_gettime(clocks.CLOCK_BOOTTIME)
    assert int(before * SECOND) <= server._steady() <= clocks.clock_gettime(clocks.CLOCK_BOOTTIME) * SECOND


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks by a clock that stands still meanwhile")
def test_a_suspend_breaks_by_a_clock_that_stands_still_meanwhile() -> None:
    assert behind_after_a_suspend(counted=False) == 0


def test_a_clock_that_was_behind_at_the_start_is_never_led_nor_left_by_a_jump() -> None:
    """As before the first answer of a time server. It may as well be wrong from now on: that cannot be told."""
    machine = Machine()
    machine.off = -5 * HOUR
    time = ProcessingTime(machine.wall, machine.monotonic)
    last = time()
    machine.off = 0
    for _ in range(51 * 60):
        machine.passed += 60 * SECOND
        assert 60 * SECOND <= time() - last <= 66 * SECOND
        last = time()
        assert last <= machine.wall()
    assert last == machine.wall()


async def refused_far_ahead_after_a_bad_second() -> list[str]:
    """What a report 200 days ahead is refused for, once the clock is right again."""
    machine = Machine()
    shard = Shard(MemoryJournal(MemoryDisk()), clock=machine.wall, monotonic=machine.monotonic, observer=Observer())
    await shard.start()
    running = asyncio.create_task(shard.run())
    await shard.register(Spec("a"))
    grant = await shard.claim("a", ClaimRequest([b"", b""], request_id=b"1" * 16))
    bad_second(lambda: shard.now, machine, 365 * DAY)
    report = GroupReport(grant.sequencer, np.array([machine.wall() + 200 * DAY]))
    refused = await shard.report([("a", report)], sender=b"s" * 16, number=(1, 1))
    shard.stop()
    await running
    return [refusal.reason for _, refusal in refused]


async def test_max_skew_binds_after_a_bad_second() -> None:
    assert await refused_far_ahead_after_a_bad_second() == ["TOO_FAR_AHEAD"]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when the greatest time ever read decides")
async def test_max_skew_breaks_when_the_greatest_time_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Shard.begin

    def ratcheted(self: Shard) -> Round:
        round_ = begin(self)
        round_.wall = NOW + 365 * DAY
        return round_

    monkeypatch.setattr(Shard, "begin", ratcheted)
    assert await refused_far_ahead_after_a_bad_second() == ["TOO_FAR_AHEAD"]
