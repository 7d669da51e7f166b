"""Hundreds of computations of many teams, as one process: feeds, and stages that read them, in areas that read each other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.browser.fleet import client
from tests.kit.eventually import eventually

AREAS: Final = ("orders", "billing", "stock", "fraud", "search", "ads", "mail", "maps", "users", "logs")
FEEDS: Final = 5
STAGES: Final = 25
SIZE: Final = len(AREAS) * (FEEDS + STAGES)
LATE: Final = "billing.stage-07"


def graph() -> dict[str, tuple[str, ...]]:
    """Return the inputs of each computation, upstream first."""
    found: dict[str, tuple[str, ...]] = {}
    for number, area in enumerate(AREAS):
        for i in range(FEEDS):
            found[f"{area}.feed-{i}"] = ()
        for i in range(STAGES):
            inputs = [f"{area}.feed-{i}" if i < FEEDS else f"{area}.stage-{i // 3:02}"]
            if i % 8 == 7 and number:
                inputs.append(f"{AREAS[number - 1]}.stage-{i:02}")
            found[f"{area}.stage-{i:02}"] = tuple(inputs)
    return found


class Estate:
    """Ten areas of thirty computations each, by as many workers."""

    def __init__(self, address: str) -> None:
        self._lw = lw = client(address, "exec-1")
        self._pool = ThreadPoolExecutor(16)
        self._inputs = graph()
        for name, inputs in self._inputs.items():
            lw.register(name, inputs=inputs)
        self._workers = {name: lw.worker(name, name=f"exec-{i}") for i, name in enumerate(self._inputs)}
        leases = self._pool.map(lambda worker: worker.claim(), self._workers.values())
        self._leases = dict(zip(self._workers, leases, strict=True))

    def tell(self, behind: float, late: float) -> None:
        """Move everything to so many seconds behind the clock, but one stage, and with it what reads it."""
        now = time.time()
        ahead, held = int((now - behind) * 1e6), int((now - late) * 1e6)
        for name, inputs in self._inputs.items():
            if not inputs:
                self._leases[name].advance(None, oldest=None, frontier=ahead)
        for name, inputs in self._inputs.items():
            if inputs:
                least = min(held if self._is_late(each) else ahead for each in inputs)
                self._await(name, least)
                self._leases[name].advance(self._workers[name].inputs(), oldest=held if name == LATE else None)
        list(self._pool.map(lambda lease: lease.flush(60), self._leases.values()))

    def _await(self, name: str, least: int) -> None:
        worker = self._workers[name]
        eventually(lambda: worker.inputs().low.micros >= least, f"{name} hears of its inputs", seconds=60)

    def _is_late(self, name: str) -> bool:
        return name == LATE or any(map(self._is_late, self._inputs[name]))

    def close(self) -> None:
        """Leave."""
        self._pool.shutdown()
        self._lw.close()
