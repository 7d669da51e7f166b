"""A simulation: one seed, one loop, one network, any number of processes, and a record of all that happened."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from tests.simulation.kernel.loop import VirtualLoop
from tests.simulation.kernel.network import Network
from tests.simulation.kernel.process import Process

T = TypeVar("T")


class Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.points: Counter[str] = Counter()
        self.errors: list[tuple[float, str, BaseException | None]] = []
        """The errors that were not caught, with time and place: of handlers, callbacks, tasks that nobody awaits. Empty in a
        healthy world."""
        self._rngs: dict[str, Random] = {}
        self._hash = hashlib.sha256()
        self.loop = VirtualLoop(self._uncaught)  # type: ignore[abstract]  # the rest raises, which is meant
        self.network = Network(self)
        self.processes: dict[str, Process] = {}
        self.god = self.process("god")
        """Runs the simulation itself; it is neither killed nor paused, and may have channels."""

    @property
    def now(self) -> float:
        return self.loop.now

    @property
    def ended(self) -> bool:
        return self.loop.is_closed()

    def rng(self, label: str) -> Random:
        if label not in self._rngs:
            # A string, not a tuple: its seeding does not depend on PYTHONHASHSEED.
            self._rngs[label] = Random(f"{self.seed}/{label}")
        return self._rngs[label]

    def process(self, name: str) -> Process:
        if name not in self.processes:
            self.processes[name] = Process(self, name)
        return self.processes[name]

    def trace(self, kind: str, **facts: object) -> None:
        if self.ended:
            return
        self._hash.update(f"{self.loop.now:.9f} {kind} {facts}".encode())

    def digest(self) -> str:
        return self._hash.hexdigest()

    def reach(self, point: str) -> None:
        if not self.ended:
            self.points[point] += 1

    def error(self, where: str, error: BaseException | None) -> None:
        if not self.ended:
            self.errors.append((self.now, where, error))
            self.trace("error", error=type(error).__name__)

    def abort(self, error: BaseException) -> None:
        self.loop.abort(error)

    def run(self, coro: Coroutine[Any, Any, T], limit: float) -> T:
        """Run a coroutine in ``god`` until it is done, then end everything as it stands.

        Raises what it raises, and SimulationStuck when that takes more than ``limit`` virtual seconds or can never be.
        Coroutines that are left are closed at the end, so their ``finally`` blocks run then: judge before that, inside
        the coroutine. Nothing is recorded, sent or scheduled any more by then.
        """
        return self.loop.run(coro, limit, self.god.context.copy())

    def _uncaught(self, message: str, error: BaseException | None) -> None:
        self.error(message, error)
