"""The loop and the processes of the simulator."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from tests.simulation.kernel import Crashed, Simulation, SimulationStuck


def test_an_hour_of_sleeps_costs_only_its_callbacks() -> None:
    sim = Simulation(1)

    async def hour() -> float:
        started = asyncio.get_running_loop().time()
        for _ in range(3600):
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time() - started

    assert sim.run(hour(), 3601) == sim.now == 3600
    assert sim.loop.callbacks < 3 * 3600


async def forever() -> None:
    await asyncio.Event().wait()


async def ticking() -> None:
    while True:  # noqa: ASYNC110 - to be found out
        await asyncio.sleep(1)


async def spinning() -> None:
    while True:  # noqa: ASYNC110 - to be found out
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("main", "reason"),
    [(forever, "nothing is scheduled"), (ticking, "limit of 100 virtual seconds"), (spinning, "time stands still")],
)
def test_a_stuck_simulation_says_who_waits_where(main: object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.kernel.loop.STANDSTILL", 10_000)
    sim = Simulation(1)

    async def world() -> None:
        sim.process("waiter").start(forever)
        await main()  # type: ignore[operator]

    with pytest.raises(SimulationStuck, match=reason) as stuck:
        sim.run(world(), 100)
    assert any(line.startswith("waiter#1: forever waits at") and "locks.py" in line for line in stuck.value.pending)


def test_nothing_of_a_killed_process_runs_again() -> None:
    sim, ran, generators = Simulation(1), list[str](), list[AsyncIterator[int]]()

    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
            await forever()
        finally:
            ran.append("generator")

    async def nobody_holds() -> None:
        try:
            await forever()
        finally:
            ran.append("garbage")

    async def program() -> None:
        generators.append(generate())
        await anext(generators[0])
        asyncio.get_running_loop().call_later(5, ran.append, "timer")
        inner = asyncio.create_task(forever())
        inner.add_done_callback(lambda _: ran.append("callback"))
        try:
            async for _ in generate():
                pass
        except BaseException:
            ran.append("except")
            raise
        finally:
            ran.append("finally")

    async def world() -> list[str]:
        process = sim.process("p")
        task = process.start(program)
        process.start(nobody_holds)
        await asyncio.sleep(1)
        process.crash()
        task.cancel()
        generators.clear()
        del task
        gc.collect()
        await asyncio.sleep(10)
        gc.collect()
        assert not process.alive
        with pytest.raises(Crashed, match="restarted"):
            process.start(forever)
        return list(ran)

    assert sim.run(world(), 100) == []
    assert not sim.errors


def test_a_paused_process_goes_on_in_order() -> None:
    sim, ran = Simulation(1), list[str]()

    async def program(wake: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        cancelled = loop.call_later(3, ran.append, "cancelled")
        sim.god.start(_cancel_at, cancelled, 5)
        loop.call_later(4, ran.append, "second timer")
        loop.call_later(2, ran.append, "first timer")
        loop.call_later(20, ran.append, "later timer")
        await wake.wait()
        ran.append("event")
        await forever()

    async def _cancel_at(handle: asyncio.Handle, seconds: float) -> None:
        await asyncio.sleep(seconds)
        handle.cancel()

    async def world() -> None:
        process, wake = sim.process("p"), asyncio.Event()
        process.start(program, wake)
        await asyncio.sleep(1)
        process.pause()
        await asyncio.sleep(2)
        wake.set()
        await asyncio.sleep(7)
        assert ran == []
        sim.loop.call_soon(ran.append, "after", context=process.context)
        process.resume()
        await asyncio.sleep(0)
        assert ran == ["first timer", "event", "second timer", "after"]
        await asyncio.sleep(11)
        assert ran[4:] == ["later timer"]

    sim.run(world(), 100)


def test_each_label_has_its_own_randomness() -> None:
    one, two, other = Simulation(1), Simulation(1), Simulation(2)
    one.rng("b").random()
    assert one.rng("a").random() == two.rng("a").random()
    assert one.rng("a") is one.rng("a")
    assert one.rng("a").random() != other.rng("a").random()
