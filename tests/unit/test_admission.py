"""Bounded admission in virtual time, and streams that wait for their turn."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from lowwater import errors
from lowwater_authority.engine.admission import Gate
from lowwater_authority.rpc.streams import Outbox, Streams


def test_rule7_a_principal_that_takes_all_it_may_keeps_no_neighbour_away() -> None:
    gate = Gate[int]("watch_streams", 64, 0)
    for number in range(48):
        assert gate.enter(number, 0.0, "greedy")
    with pytest.raises(
        errors.Overloaded, match=r"greedy has 48 of 64 watch streams; .* three quarters .* add a shard; try again"
    ) as refused:
        gate.enter(99, 0.0, "greedy")
    assert (gate.refused, gate.saturated, refused.value.metadata) == (
        1,
        False,
        {"bound": "watch_streams", "limit": "64"},
    )
    others = [f"principal {number}" for number in range(4)]
    for each in others:
        while gate._places.get(each, 0) < gate.bound - gate.inside:
            assert gate.enter(0, 0.0, each)
    assert gate.enter(0, 0.0, "one who wants one stream")
    gate.leave(0.0, others[0])
    assert gate.enter(0, 0.0, "another"), "what is given back is there for all"


def test_rule7_principals_that_wait_are_let_in_by_turns() -> None:
    gate = Gate[str]("starting_report_streams", 1, 100)
    for number in range(10):
        gate.enter(f"greedy {number}", 0.0, "greedy")
    gate.enter("neighbour", 0.0, "neighbour")
    gate.enter("gone", 0.0, "neighbour")
    assert gate.give_up("gone")
    assert [gate.leave(0.0, "greedy") for _ in range(2)] == ["greedy 1", "neighbour"], "the second one, not the tenth"
    let_in = [gate.leave(0.0, who) for who in ("neighbour", *["greedy"] * 8)]
    assert let_in == [*(f"greedy {number}" for number in range(2, 10)), None]
    assert (gate._places, gate._lines) == ({}, {})


def test_delays_grow_with_those_that_wait_and_with_the_time_that_each_takes() -> None:
    """Little's law: with 100 in the line and 20 a second served, the next turn is in five seconds, and more later for each."""
    gate = Gate[int]("calls", 1, 100)
    now = 0.0
    for caller in range(1000):
        now += 0.05
        gate.enter(caller, now)
        if caller >= 100:
            gate.leave(now)
    assert gate.rate(now) == pytest.approx(20, rel=0.05)
    assert len(gate.waiting) == 99
    gate.enter(1000, now)
    delays = [refusal(gate, now) for _ in range(20)]
    assert delays[0] == pytest.approx(101 / 20 / 1.5, rel=0.05)
    assert all(after - before == pytest.approx(1 / 20 / 1.5, rel=0.05) for before, after in pairwise(delays))
    for caller in range(20):
        now += 0.05
        gate.leave(now)
        gate.enter(2000 + caller, now)
    # Those whose turn has come are not in front of the next one any more.
    assert refusal(gate, now) == pytest.approx(delays[0], rel=0.05)


BOUNDS = ("report_streams", "starting_report_streams", "starting_watch_streams", "watch_streams", "task_waits")


async def test_a_stream_that_ends_or_is_refused_gives_its_place_back() -> None:
    streams = narrow()
    outbox = await streams.admit(name(1), 1)
    streams.close(name(1), outbox)
    with pytest.raises(errors.OldStream):
        await streams.admit(name(1), 1)
    streams.admission.streams.bound = 0
    with pytest.raises(errors.Overloaded, match="report streams"):
        await streams.admit(name(2), 1)
    assert {gate.name: gate.inside for gate in streams.admission.gates} == dict.fromkeys(BOUNDS, 0)


async def test_a_stream_that_says_nothing_keeps_no_other_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowwater_authority.rpc.streams.SILENCE", 0.0)
    streams = narrow()
    silent = await streams.admit(name(1), 1)
    await streams.admit(name(2), 1)
    assert not silent.starting
    assert silent.closed is None


@pytest.mark.parametrize("when", ["waiting", "just let in", "let in meanwhile"])
async def test_a_caller_that_goes_away_keeps_no_place(when: str) -> None:
    streams = narrow()
    first = await streams.admit(name(1), 1)
    second, third = await parked(streams, 2), await parked(streams, 3)
    if when == "just let in":
        streams.started(first)
    second.cancel()
    if when == "let in meanwhile":
        streams.started(first)
    await asyncio.wait([second])
    streams.started(first)
    await third
    assert second.cancelled()
    assert (streams.admission.starting.inside, len(streams.admission.starting.waiting)) == (1, 0)


async def test_whoever_waits_is_told_when_the_process_stops() -> None:
    streams = narrow()
    await streams.admit(name(1), 1)
    second = await parked(streams, 2)
    streams.wake()
    with pytest.raises(errors.ShuttingDown):
        await second
    assert (streams.admission.starting.inside, len(streams.admission.starting.waiting)) == (1, 0)


def narrow() -> Streams:
    """Streams that start one by one."""
    streams = Streams()
    streams.admission.starting.bound = 1
    return streams


def name(sender: int) -> bytes:
    return sender.to_bytes(16)


async def parked(streams: Streams, sender: int) -> asyncio.Task[Outbox]:
    """A stream that waits for its turn."""
    before = len(streams.admission.starting.waiting)
    task = asyncio.create_task(streams.admit(name(sender), 1))
    while len(streams.admission.starting.waiting) == before:
        assert not task.done()
        await asyncio.sleep(0)
    return task


def refusal(gate: Gate[int], now: float) -> float:
    """The delay that the next one is told."""
    with pytest.raises(errors.Overloaded) as refused:
        gate.enter(-1, now)
    return refused.value.retry_after
