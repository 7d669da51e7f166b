"""Two computations whose every step the test makes: what the page shows then is known."""

from __future__ import annotations

import time
from typing import Final, Self

import lowwater
from tests.browser.fleet import client, even
from tests.kit.eventually import eventually

NAMES: Final = ("flights", "enriched")


class Story:
    """Flights, and enriched of eight key ranges, with event times a given number of seconds behind the clock."""

    def __init__(self, address: str) -> None:
        self._lw = client(address, "exec-1")
        self._lw.register("flights")
        self._lw.register("enriched", inputs=["flights"])
        self._flights = self._lw.worker("flights", name="exec-1").claim()
        self._worker = self._lw.worker("enriched", name="exec-2")
        self._enriched = self._worker.claim(bounds=even(8))

    def tell(self, flights: float, *behind: float, waiting_for: str = "") -> None:
        """Report: flights so many seconds behind the clock; the first ranges of enriched held there, the others as far as flights.

        ``waiting_for``: what the worker of enriched says that it waits for.
        """
        now = time.time()
        frontier = _micros(now - flights)
        self._flights.advance(None, oldest=None, frontier=frontier)
        self._flights.flush(60)
        oldest = [_micros(now - seconds) for seconds in behind]
        inputs = self._await_inputs(frontier)
        self._enriched.advance(inputs, oldest=oldest + [None] * (8 - len(behind)), waiting_for=waiting_for)
        self._enriched.flush(60)

    def release(self) -> None:
        self._enriched.release()

    def _await_inputs(self, frontier: int) -> lowwater.Inputs:
        eventually(lambda: self._worker.inputs().low.micros >= frontier, "flights comes to its reader", seconds=60)
        return self._worker.inputs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lw.close()


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)
