"""Storms of registrations into a graph, and the waits of another client's reports meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import child, wire, workload
from benchmarks.child import UNLIMITED
from benchmarks.owner import COMPUTATION, PATIENCE, Owner, channel, check
from benchmarks.result import Result, Spread
from lowwater.v1 import topology_pb2, topology_pb2_grpc
from tests.process.sharding import Sharded


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    present: int
    """Computations that are there already, where there are any."""
    at_once: int
    """Registrations of one storm."""
    rounds: int


FULL: Final = Size(3500, at_once=500, rounds=3)
QUICK: Final = Size(40, at_once=20, rounds=1)

WINDOW: Final = 20
"""Registrations under way at a time while those are made that are to be there already."""

RANGES: Final = 2
"""Number of ranges of the computation that is reported for."""

PAUSE: Final = 0.005
"""Seconds from an acknowledgement to the next report of the other client."""

DEAD_AFTER: Final = 10.0
"""Seconds after which a shard gives up that does not hear of its store: a busy machine is not to
end the run."""

QUIET: Final = 1.0
"""Seconds of reports before a storm."""

NONE: Final = "none present"
NOBODY: Final = "nobody registers"


@dataclass(frozen=True, slots=True)
class Storm:
    """Figures of one storm of registrations."""

    per_second: float
    """Registrations answered, from the first call to the last answer."""
    longest: float
    """The longest wait of a report meanwhile, milliseconds."""
    quiet: float
    """The longest one before it."""
    processor: float
    """Processor time of the authority for one registration, milliseconds."""


class Reporter:
    """Another client, which sends its next report when the last one is acknowledged as durable."""

    def __init__(self, address: str) -> None:
        self._owner = Owner(address, workload.keys(RANGES), claims=1)
        self._waits: list[tuple[float, float]] = []
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._reporting = self._pool.submit(self._report)

    def longest(self, since: float, until: float) -> float:
        """Return the longest wait, in milliseconds, of reports under way between two moments."""
        while not self._reporting.done() and not (self._waits and self._waits[-1][1] > until):
            time.sleep(PAUSE)
        return 1e3 * max(end - sent for sent, end in self._waits if sent <= until and end >= since)

    def close(self) -> None:
        """Stop. Raises what has ended it before."""
        self._stop.set()
        self._pool.shutdown()
        self._owner.close()
        self._reporting.result()

    def _report(self) -> None:
        self._requests.put(self._owner.opening())
        responses = self._owner.open(iter(self._requests.get, None))
        value = time.time_ns() // 1000
        for number in count(1):
            sent = time.monotonic()
            values = np.full(RANGES, value + number)
            self._requests.put(wire.report(number, COMPUTATION, self._owner.sequencers[0], values))
            for response in responses:
                if response.HasField("ack"):
                    check(response.ack)
                    if response.ack.number == number:
                        break
            self._waits.append((sent, time.monotonic()))
            if self._stop.wait(PAUSE):
                break
        self._requests.put(None)


class Registrar:
    """Registers computations, each of which reads the one that is reported for."""

    def __init__(self, address: str) -> None:
        self._channel = channel(address)
        self._stub = topology_pb2_grpc.TopologyServiceStub(self._channel)
        self._counter = count()

    def register(self, computations: int, window: int) -> float:
        """Register some more, so many at a time; returns the seconds until all are answered."""
        free = threading.BoundedSemaphore(window)
        calls = []
        began = time.monotonic()
        for number in self._numbers(computations):
            free.acquire()
            request = topology_pb2.RegisterRequest(name=f"team/job-{number:06}", inputs=[COMPUTATION])
            call = self._stub.Register.future(request, timeout=PATIENCE)
            call.add_done_callback(lambda _: free.release())
            calls.append(call)
        for call in calls:
            call.result()
        return time.monotonic() - began

    def _numbers(self, computations: int) -> Iterable[int]:
        return (next(self._counter) for _ in range(computations))

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


@contextmanager
def _redis(folder: Path) -> Iterator[child.Server]:
    """One shard over a Redis that syncs before it answers."""
    with Sharded(folder, 1, dead_after=DEAD_AFTER, flags=UNLIMITED) as sharded:
        [shard] = sharded.shards
        assert shard.process is not None
        yield child.Server(shard.address, shard.process.pid)


STORES: Final[dict[str, Callable[[Path], AbstractContextManager[child.Server]]]] = {
    "sqlite": child.authority,
    "redis": _redis,
}


class Deployment:
    """An authority with so many computations, one of which is reported for all the time."""

    def __init__(self, server: child.Server, present: int, stack: ExitStack) -> None:
        self._server = server
        self._reporter = stack.enter_context(closing(Reporter(server.address)))
        self._registrar = stack.enter_context(closing(Registrar(server.address)))
        self._registrar.register(present, WINDOW)

    def storm(self, at_once: int) -> Storm:
        """Have so many computations registered at once."""
        calm = time.monotonic()
        time.sleep(QUIET)
        before, began = self._server.processor_seconds() or 0.0, time.monotonic()
        seconds = self._registrar.register(at_once, at_once)
        processor = 1e3 * ((self._server.processor_seconds() or 0.0) - before) / at_once
        longest = self._reporter.longest(began, began + seconds)
        return Storm(at_once / seconds, longest, self._reporter.longest(calm, began), processor)


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure.

    Each storm into an empty authority has a new one; those that are not empty have the earlier
    storms' beside what is said.
    """
    size = QUICK if quick else FULL
    results = []
    for store, serve in STORES.items():
        empty, full = [], []
        with ExitStack() as stack:
            many = Deployment(stack.enter_context(serve(folder / store / "many")), size.present, stack)
            for number in range(size.rounds):
                with ExitStack() as alone:
                    none = Deployment(alone.enter_context(serve(folder / store / f"none-{number}")), 0, alone)
                    empty.append(none.storm(size.at_once))
                full.append(many.storm(size.at_once))
        facts = {"store": store, "present": size.present, "n": size.at_once, "ranges": RANGES}
        results += _results(store, empty, full, facts)
    return results


def _results(store: str, empty: list[Storm], full: list[Storm], facts: dict[str, object]) -> list[Result]:
    def line(metric: str, unit: str, value: Iterable[float], baseline: str, theirs: Iterable[float]) -> Result:
        name = f"{store}_{metric}"
        return Result("register", name, Spread(tuple(value)), unit, baseline, Spread(tuple(theirs)), facts)

    rates, waits = [storm.per_second for storm in full], [storm.longest for storm in full]
    return [
        line("per_second", "1/s", rates, NONE, (storm.per_second for storm in empty)),
        line("processor_ms", "ms", (storm.processor for storm in full), NONE, (storm.processor for storm in empty)),
        line("longest_wait_of_a_report", "ms", waits, NONE, (storm.longest for storm in empty)),
        line("longest_wait_of_a_report", "ms", waits, NOBODY, (storm.quiet for storm in full)),
    ]
