"""The moves of chaos, carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.chaos import Move
from tests.simulation.kernel import Process, StoreWeather, Weather

if TYPE_CHECKING:
    from tests.simulation.world import Slot, World

BATCHED = "hourly"
"""The computation that works in micro-batches."""


class Havoc:
    """What goes wrong in a world."""

    def __init__(self, world: World) -> None:
        self.away = False
        """Whether the authority is down, and comes back by itself."""
        self.asked_to_leave: Process | None = None
        """The authority that was last asked to stop."""
        self._world = world
        self._weathers: list[Weather] = []
        self._stores: list[StoreWeather] = []

    def end(self) -> None:
        """Let network and store be calm from now on."""
        self._weathers.clear()
        self._stores.clear()
        self._world.sim.network.weather, self._world.faults.weather = Weather(), StoreWeather()

    def do(self, move: Move) -> None:
        """Make a move; it goes on by itself."""
        facts = move.facts
        match move.kind:
            case "crash the authority":
                self._world.later(self._crash, facts["down"], facts["keep"])
            case "stop the authority":
                self._world.later(self._stop, facts["down"])
            case "pause the authority":
                self._world.later(self._pause, move.kind, self._world.authority, facts["seconds"])
            case "turn the authority's clock":
                self._acted(move.kind)
                self._world.authority.skew += facts["by"]
            case "bad network" | "hostile reports":
                self._world.later(self._bad_network, move.kind, facts)
            case "bad store":
                self._world.later(self._bad_store, facts)
            case "cut":
                self._world.later(self._cut, self._pick(self._world.living(), facts["pick"]), facts["seconds"])
            case "crash a worker" | "crash a reader":
                victim = self._pick(
                    self._world.workers() if move.kind == "crash a worker" else [p for p, _ in self._world.readers],
                    facts["pick"],
                )
                if victim is not None:
                    self._acted(move.kind)
                    victim.crash()
            case "pause a worker" | "pause a reader":
                chosen = self._world.workers() if move.kind == "pause a worker" else [p for p, _ in self._world.readers]
                self._world.later(self._pause, move.kind, self._pick(chosen, facts["pick"]), facts["seconds"])
            case "replace a paused worker":
                slot = self._world.slots[int(facts["pick"] * len(self._world.slots))]
                self._world.later(self._pause, move.kind, slot.process, facts["seconds"])
                self._replace(slot)
            case "replace a run":
                self._acted(move.kind)
                self._replace(*(slot for slot in self._world.slots if slot.name == BATCHED))
            case "share out anew":
                self._acted(move.kind)
                nodes = list(self._world.pipeline.nodes.values())
                self._world.share_out(nodes[int(facts["pick"] * len(nodes))], Random(facts["cut"]))
            case "reset":
                names = list(self._world.pipeline.nodes)
                self._acted(move.kind)
                self._operate("reset", names[int(facts["pick"] * len(names))])
            case "new inputs":
                if "late" not in self._world.pipeline.nodes["daily"].inputs:
                    self._acted(move.kind)
                    self._operate("set_inputs", "daily")
            case kind:
                raise ValueError(kind)

    def _acted(self, kind: str) -> None:
        self._world.sim.reach(f"move: {kind}")

    def _replace(self, slot: Slot) -> None:
        """Start another process for a share; the old one lives on until it notices."""
        self._world.leaving.append(slot.process)
        slot.process = self._world.named(slot.name)
        self._world.start_worker(slot)

    @staticmethod
    def _pick(processes: Sequence[Process], pick: float) -> Process | None:
        return processes[int(pick * len(processes))] if processes else None

    async def _crash(self, down: float, keep: int) -> None:
        if self.away:
            return
        self._acted("crash the authority")
        self.away = True
        if self._world.faults.writing:
            self._world.sim.reach("a crash in the middle of a write")
        if self._world.disk.unsynced:
            lost = self._world.disk.unsynced > keep
            self._world.sim.reach(
                "a crash that lost what was cached" if lost else "a crash that kept some of what was cached"
            )
        self._world.faults.writing = 0
        self._world.authority.crash()
        self._world.disk.crash(keep)
        await asyncio.sleep(down)
        self.away = False

    async def _stop(self, down: float) -> None:
        authority = self._world.running.authority
        if self.away or not self._world.authority.alive or authority is None:
            return
        self._acted("stop the authority")
        self.away = True
        self.asked_to_leave = leaving = self._world.authority
        authority.leave()
        try:
            async with asyncio.timeout(30):
                await leaving.ended.wait()
        except TimeoutError:
            # What supervises processes loses patience in the end.
            leaving.crash()
            self._world.disk.crash()
        await asyncio.sleep(down)
        self.away = False

    async def _pause(self, kind: str, process: Process | None, seconds: float) -> None:
        if process is None or not process.alive or process.paused:
            return
        self._acted(kind)
        process.pause()
        await asyncio.sleep(seconds)
        process.resume()

    async def _cut(self, process: Process | None, seconds: float) -> None:
        if process is None:
            return
        self._acted("cut")
        self._world.sim.network.cut(process)
        await asyncio.sleep(seconds)
        self._world.sim.network.heal(process)

    async def _bad_network(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "hostile reports":
            weather = Weather(
                p_report_lost=facts["lost"], p_report_doubled=facts["doubled"], p_report_swapped=facts["swapped"]
            )
        else:
            weather = Weather(
                p_slow=facts["slow"],
                slow=(0.05, facts["slowness"]),
                p_lose_request=facts["lose_request"],
                p_lose_response=facts["lose_response"],
                p_repeat_request=facts["repeat"],
                p_break=facts["break"],
            )
        self._acted(kind)
        self._weathers.append(weather)
        self._world.sim.network.weather = _worst(Weather(), self._weathers)
        await asyncio.sleep(facts["seconds"])
        if weather in self._weathers:
            self._weathers.remove(weather)
        self._world.sim.network.weather = _worst(Weather(), self._weathers)

    async def _bad_store(self, facts: dict[str, Any]) -> None:
        weather = StoreWeather(
            p_slow=facts["slow"],
            slow=(0.02, facts["slowness"]),
            p_failed=facts["failed"],
            p_lost=facts["lost"],
            p_written=facts["written"],
            hang=facts["hang"],
        )
        self._acted("bad store")
        self._stores.append(weather)
        self._world.faults.weather = _worst(StoreWeather(), self._stores)
        await asyncio.sleep(facts["seconds"])
        if weather in self._stores:
            self._stores.remove(weather)
        self._world.faults.weather = _worst(StoreWeather(), self._stores)

    def _operate(self, what: str, name: str) -> None:
        process = self._world.named("operator")
        process.start(self._operator, process, what, name)
        self._world.leaving.append(process)

    async def _operator(self, process: Process, what: str, name: str) -> None:
        async with self._world.place.client(process) as lw:
            if what == "reset":
                await lw.reset(name)
                return
            node = self._world.pipeline.nodes[name]
            # What is read once is read for good: nobody could say when the last record was.
            inputs = ["hourly", "late"]
            await lw.set_inputs(name, inputs)
            node.inputs = inputs
            self._world.pipeline.changed()


def _worst(calm: Any, active: Sequence[Any]) -> Any:
    """All that is wrong at a time."""
    for each in active:
        for field in fields(each):
            setattr(calm, field.name, max(getattr(calm, field.name), getattr(each, field.name)))
    return calm
