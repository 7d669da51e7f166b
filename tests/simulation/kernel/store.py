"""The faults of a simulated store: slow, hanging, failing, of unknown outcome, and a cache that a power cut empties."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowwater_authority.journal import JournalFailed, JournalUnknown
from tests.kit.faults import FaultPlan, Operation, Outcome

if TYPE_CHECKING:
    from tests.simulation.kernel.simulation import Simulation

HANG_POLL_SECONDS: Final = 0.05

GIVEN_UP_SECONDS: Final = 2.5
"""After which a process gives up a store across the network, on the way there and on the way back."""


@dataclass
class StoreWeather:
    """The store's treatment of writes; may be changed at any time. Seconds, and probabilities per write."""

    delay: tuple[float, float] = (0.0005, 0.003)
    """Taken twice: until the write is in the cache, and until it is on the disk."""
    p_slow: float = 0.0
    slow: tuple[float, float] = (0.1, 3.0)
    p_failed: float = 0.0
    p_lost: float = 0.0
    p_written: float = 0.0
    hang: bool = False
    """True while writes wait, before and behind the cache."""
    away: bool = False


class SimFaults(FaultPlan):
    """Decides by chance how each write of a MemoryJournal ends; what ``then`` has lined up goes first.

    Every write is in the disk's cache first, and durable later: ``disk.crash()`` in between loses it. It is acknowledged
    when it is durable. A ``weak`` store acknowledges what is not strong from the cache; a strong write then brings
    everything before it to the disk.
    """

    def __init__(self, sim: Simulation, name: str, *, weak: bool = False, weather: StoreWeather | None = None) -> None:
        super().__init__()
        self.weather = weather or StoreWeather()
        self._sim = sim
        self._name = name
        self._weak = weak
        self._random = sim.rng(f"store {name}")

    async def before(self, operation: Operation) -> Outcome:
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


class RemoteStore:
    """A store across the network, which many processes use. Its weather is the same for all."""

    def __init__(self) -> None:
        self.weather = StoreWeather()
        self.fail_overs = 0
        """The number of times that a replica took over: who waited for the old one never learns what became of a write."""
        self.cut: set[str] = set()
        self.lagging = 0
        """Number of reasons why the replica stands still. Meanwhile the master executes writes and shows them to every reader,
        and acknowledges none of them."""


class RemoteFaults(SimFaults):
    """The store as one process meets it: reads take their time too, and a process may be cut off from it.

    A call that cannot be sent surely did nothing. One that was sent when the link broke, the store failed over, or patience ended
    has an unknown outcome.
    """

    def __init__(
        self,
        sim: Simulation,
        name: str,
        store: RemoteStore,
        *,
        weak: bool = False,
        patience: float = GIVEN_UP_SECONDS,
        replicated: bool = False,
    ) -> None:
        super().__init__(sim, name, weak=weak, weather=store.weather)
        self._replicated = replicated
        """True if a write that must survive is acknowledged only when the replica has it."""
        self._store = store
        self._patience = patience
        self._sent: dict[int, int] = {}

    async def before(self, operation: Operation) -> Outcome:
        if self._unreachable():
            return Outcome.FAILED
        try:
            async with asyncio.timeout(self._patience):
                outcome = await super().before(operation)
        except TimeoutError:
            return Outcome.LOST
        self._sent[id(operation)] = self._store.fail_overs
        if outcome is Outcome.WRITTEN and self._replicated and self._store.lagging:
            # A fail-over can still take the write away, whoever is not told of it.
            self._sent[id(operation)] = -1
            outcome = Outcome.CACHED
        return Outcome.LOST if self._unreachable() else outcome

    async def after(self, operation: Operation) -> None:
        fail_overs = self._sent.pop(id(operation), -1)
        try:
            async with asyncio.timeout(self._patience):
                await super().after(operation)
                if not self._from_cache(operation):
                    await self._reach_the_replica()
        except TimeoutError:
            fail_overs = -1
        if self._unreachable() or fail_overs != self._store.fail_overs:
            raise JournalUnknown("the store did not answer: what became of this write is not known")

    async def read(self, name: str) -> None:
        if not self._unreachable():
            try:
                async with asyncio.timeout(self._patience):
                    await self._wait()
            except TimeoutError:
                raise JournalFailed("the store does not answer; nothing was read") from None
        if self._unreachable() or self._random.random() < self.weather.p_failed:
            self._sim.reach("store: a read failed")
            raise JournalFailed("the store cannot be read")
        self._sim.trace("read", store=self._name, what=name)

    async def settle(self, log: str) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._reach_the_replica()
        except TimeoutError:
            self._sim.reach("store: the replica did not confirm what was read")
            raise JournalFailed("the replica does not have yet what was read") from None
        await self.read("settle")
        self._sim.trace("settled", store=self._name, log=log)

    async def _reach_the_replica(self) -> None:
        while self._replicated and self._store.lagging:  # noqa: ASYNC110 - a plain switch, and virtual time costs nothing
            await asyncio.sleep(HANG_POLL_SECONDS)

    def _unreachable(self) -> bool:
        return self._name in self._store.cut or self.weather.away
