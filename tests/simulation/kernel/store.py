"""The faults of a simulated store: slow, hanging, failing, of unknown outcome, and a cache that a power cut empties."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowwater_authority.journal.faults import FaultPlan, Operation, Outcome

if TYPE_CHECKING:
    from tests.simulation.kernel.simulation import Simulation

HANG_POLL_SECONDS: Final = 0.05


@dataclass
class StoreWeather:
    """What the store does to writes; may be changed at any time. Seconds, and probabilities per write."""

    delay: tuple[float, float] = (0.0005, 0.003)
    """Taken twice: until the write is in the cache, and until it is on the disk."""
    p_slow: float = 0.0
    slow: tuple[float, float] = (0.1, 3.0)
    p_failed: float = 0.0
    p_lost: float = 0.0
    p_written: float = 0.0
    hang: bool = False
    """Whether writes wait, before and behind the cache, until this is False again."""


class SimFaults(FaultPlan):
    """Decides by chance how each write of a MemoryJournal ends; what ``then`` has lined up goes first.

    Every write is in the disk's cache first, and durable later: ``disk.crash()`` in between loses it. It is acknowledged
    when it is durable. A ``weak`` store acknowledges what is not strong from the cache; a strong write then brings
    everything before it to the disk.
    """

    def __init__(self, sim: Simulation, name: str, *, weak: bool = False) -> None:
        super().__init__()
        self.weather = StoreWeather()
        self._sim = sim
        self._name = name
        self._weak = weak
        self._random = sim.rng(f"store {name}")

    async def before(self, operation: Operation) -> Outcome:
        """See FaultPlan."""
        outcome = await super().before(operation)
        if outcome is Outcome.DONE:
            outcome = self._choose()
        self._sim.trace("write", store=self._name, what=operation.name, places=operation.places, outcome=outcome.name)
        if outcome is not Outcome.DONE:
            self._sim.reach(f"store: {outcome.name.lower()}")
        await self._wait()
        if outcome is not Outcome.DONE:
            return outcome
        return Outcome.UNSYNCED if self._from_cache(operation) else Outcome.CACHED

    async def after(self, operation: Operation) -> None:
        """See FaultPlan."""
        if not self._from_cache(operation):
            await self._wait()
        self._sim.trace("written", store=self._name, places=operation.places)

    def _from_cache(self, operation: Operation) -> bool:
        return self._weak and not operation.strong

    def _choose(self) -> Outcome:
        weather = self.weather
        draw = self._random.random()
        for outcome, probability in (
            (Outcome.FAILED, weather.p_failed),
            (Outcome.LOST, weather.p_lost),
            (Outcome.WRITTEN, weather.p_written),
        ):
            if draw < probability:
                return outcome
            draw -= probability
        return Outcome.DONE

    async def _wait(self) -> None:
        weather = self.weather
        seconds = self._random.uniform(*weather.delay)
        if weather.p_slow and self._random.random() < weather.p_slow:
            self._sim.reach("store: slow")
            seconds = self._random.uniform(*weather.slow)
        await asyncio.sleep(seconds)
        if self.weather.hang:
            self._sim.reach("store: hang")
            while self.weather.hang:  # noqa: ASYNC110 - a plain switch, and virtual time costs nothing
                await asyncio.sleep(HANG_POLL_SECONDS)
