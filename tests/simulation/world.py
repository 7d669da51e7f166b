"""One world: a pipeline under chaos, then in peace. The safety phase lets everything go wrong; the liveness phase lets nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final
from unittest import mock

from lowwater import errors
from lowwater_authority import logs
from lowwater_authority.journal import JournalUnknown
from lowwater_authority.journal.faults import Operation, Outcome
from lowwater_authority.journal.memory import MemoryDisk
from tests.simulation import batches, points, programs
from tests.simulation.chaos import Move, length
from tests.simulation.havoc import BATCHED, Havoc
from tests.simulation.kernel import Process, SimFaults, Simulation
from tests.simulation.oracle import Oracle
from tests.simulation.programs import Place, Running, Share
from tests.simulation.storage import Storage
from tests.simulation.truth import MAX, Cell, Node, Pipeline, Source

SECOND: Final = 1_000_000
HOUR: Final = 3600 * SECOND
BEGINNING: Final = 1_357_344_000 * SECOND
"""2013-01-05, four days before the clocks of the world."""

ARRIVES_WITHIN: Final = 180.0
"""Seconds of peace after which every watermark must be at the truth."""

LIMIT: Final = 3600.0
"""Seconds that a world lasts at most beyond its last move."""


@dataclass(frozen=True)
class Result:
    """What came of a world."""

    seed: int
    moves: int
    seconds: float
    faults: int
    points: dict[str, int]
    observations: int
    violations: tuple[str, ...]
    digest: str
    settled: float
    """Seconds of peace until every watermark was at the truth; infinite when they never were."""


@dataclass
class Slot:
    """One share of a computation, and the newest process that is to own it."""

    name: str
    share: Share
    process: Process


class WatchedFaults(SimFaults):
    """Tells the oracle what has become durable."""

    told: Callable[[Operation], None]
    writing = 0
    """Writes that are on their way."""

    async def before(self, operation: Operation) -> Outcome:
        """See FaultPlan."""
        self.writing += 1
        return await super().before(operation)

    async def after(self, operation: Operation) -> None:
        """See FaultPlan."""
        await super().after(operation)
        self.writing -= 1
        self.told(operation)


def pipeline(random: Random, seconds: float) -> Pipeline:
    """Two injectors, a join, windows made by micro-batches, and a reader of those."""

    def times() -> list[int]:
        records = int(seconds * random.uniform(0.5, 1.3)) + 5
        step = random.randrange(60, 900) * SECOND
        late = random.choice([0, HOUR, 6 * HOUR])
        return [BEGINNING + i * step - int(late * random.random() ** 3) for i in range(records)]

    # In the end every window can be closed: nothing comes behind the end of the longest.
    injected = [times() for _ in range(6)]
    end = max(map(max, injected)) // (3 * HOUR) * 3 * HOUR + 6 * HOUR
    sources = [Cell(source=Source(each, end)) for each in injected]

    def cells(count: int) -> list[Cell]:
        return [Cell() for _ in range(count)]

    return Pipeline(
        [
            Node("flights", [], 0, sources[:4]),
            Node("weather", [], 0, sources[4:]),
            Node("enriched", ["flights", "weather"], 0, cells(8)),
            Node("hourly", ["enriched"], HOUR, cells(4)),
            Node("late", ["enriched"], 3 * HOUR, cells(4)),
            Node("daily", ["hourly"], 0, cells(2)),
        ]
    )


def shares(random: Random, node: Node) -> list[Share]:
    """Divide a computation among workers, and their shares into ranges, at random edges."""
    count = len(node.cells)
    inner = sorted(random.sample(range(1, count), random.randrange(min(count, 4))))
    if node.name == BATCHED:
        return [Share((0, *inner, count))]
    outer = [0, *sorted(random.sample(inner, random.randrange(len(inner) + 1))), count]
    return [Share((low, *(edge for edge in inner if low < edge < high), high)) for low, high in pairwise(outer)]


class World:
    """Everything that there is, from one seed and one list of moves."""

    def __init__(self, seed: int, moves: Sequence[Move], seconds: float | None = None) -> None:
        self.moves = moves
        self.sim = sim = Simulation(seed)
        random = sim.rng("world")
        self.seconds = length(moves) if seconds is None else seconds
        self.weak = random.random() < 0.25
        self.snapshot_bytes = random.choice([2_000, 20_000, 200_000])
        self.disk = MemoryDisk()
        self.faults = WatchedFaults(sim, "store", weak=self.weak)
        self.pipeline = pipeline(random, self.seconds)
        self.oracle = Oracle(sim, self.pipeline, self.disk, weak=self.weak)
        self.faults.told = self.oracle.durable
        self.place = Place(sim, self.pipeline, Storage(self.pipeline, sim.rng("storage")), self.oracle)
        self.running = Running()
        self.authority = sim.process("authority")
        self.slots: list[Slot] = []
        self.readers: list[tuple[Process, Callable[[Process], Coroutine[Any, Any, None]]]] = []
        self.leaving: list[Process] = []
        """Processes that were replaced and live on, until they notice."""
        self.settled = float("inf")
        self._names = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.havoc = Havoc(self)
        sim.network.taps.append(self.oracle.sent)

    def run(self) -> Result:
        """Live through it."""
        with mock.patch.object(logs, "SNAPSHOT_BYTES", self.snapshot_bytes), _hearing(self.oracle):
            try:
                self.sim.run(self._live(), limit=self.seconds + LIMIT)
            except Exception as error:  # noqa: BLE001 - the worst that can happen to a world
                self.oracle.fail(f"the world ended: {error!r}")
        return Result(
            seed=self.sim.seed,
            moves=len(self.moves),
            seconds=self.sim.now,
            faults=sum(count for point, count in self.sim.points.items() if points.is_fault(point)),
            points=dict(self.sim.points),
            observations=self.oracle.observations,
            violations=tuple(self.oracle.violations),
            digest=self.sim.digest(),
            settled=self.settled,
        )

    async def _live(self) -> None:
        self._start_authority()
        for node in self.pipeline.nodes.values():
            self.share_out(node, self.sim.rng(f"shares of {node.name}"))
        place = self.place
        self._read("watcher", lambda process: programs.watch(place, process))
        self._read("asker", lambda process: programs.ask(place, process))
        self._read("folder", lambda process: programs.fold(place, process, ["enriched", "hourly"]))
        self.later(self._supervise)
        for move in self.moves:
            await asyncio.sleep(max(0.0, move.at - self.sim.now))
            if self.oracle.violations:
                return
            self.sim.trace("move", what=str(move))
            self.havoc.do(move)
        await asyncio.sleep(self.seconds - self.sim.now)
        await self._make_peace()

    def later(self, run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Let something happen beside everything else. It may not fail."""
        task = asyncio.ensure_future(run(*arguments))
        task.add_done_callback(lambda done: None if done.cancelled() else self._failed(done.exception()))
        self._tasks.append(task)

    def _failed(self, error: BaseException | None) -> None:
        if error is not None:
            self.oracle.fail(f"the world itself failed: {error!r}")

    # -- life ------------------------------------------------------------------------------------------------------

    def _start_authority(self) -> None:
        self.authority = self.authority.restarted()
        self.authority.start(programs.serve, self.place, self.authority, self.disk, self.faults, self.running)

    def workers(self) -> list[Process]:
        """Return the living workers that own something, or will."""
        return [slot.process for slot in self.slots if slot.process.alive]

    def living(self) -> list[Process]:
        """Return the living workers and readers."""
        return [*self.workers(), *(process for process, _ in self.readers if process.alive)]

    def share_out(self, node: Node, random: Random) -> None:
        """Divide a computation among new workers; the old ones live on until they notice."""
        self.leaving += [slot.process for slot in self.slots if slot.name == node.name]
        self.slots = [slot for slot in self.slots if slot.name != node.name]
        for share in shares(random, node):
            slot = Slot(node.name, share, self.named(node.name))
            self.slots.append(slot)
            self.start_worker(slot)

    def named(self, name: str) -> Process:
        """Return a new process for a computation."""
        self._names += 1
        return self.sim.process(f"{name}-{self._names}")

    def start_worker(self, slot: Slot) -> None:
        """Start the program of a share."""
        program = batches.run_batches if slot.name == BATCHED else programs.work
        slot.process.start(program, self.place, slot.process, slot.name, slot.share)

    def _read(self, name: str, program: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        process = self.sim.process(name)
        process.start(program, process)
        self.readers.append((process, program))

    async def _supervise(self) -> None:
        """Start again what ended: nothing else keeps a pipeline alive."""
        while True:
            await asyncio.sleep(0.5)
            for at, where, error in self.sim.errors:
                self.oracle.fail(f"nobody caught, at {at:.3f} s, {where}: {error!r}")
            for process in [
                self.authority,
                *(slot.process for slot in self.slots),
                *(p for p, _ in self.readers),
                *self.leaving,
            ]:
                self._judge(process)
            if self.oracle.violations:
                return
            if not self.authority.alive and not self.havoc.away:
                self._start_authority()
            for slot in self.slots:
                if not slot.process.alive:
                    slot.process = slot.process.restarted()
                    self.start_worker(slot)
            for position, (process, program) in enumerate(self.readers):
                if not process.alive:
                    fresh = process.restarted()
                    fresh.start(program, fresh)
                    self.readers[position] = (fresh, program)

    def _judge(self, process: Process) -> None:
        """Programs may be refused; nothing else may happen to them."""
        failure, process.failure = process.failure, None
        if failure is None:
            return
        self.sim.trace("ended", process=process.name, why=repr(failure))
        if process is self.havoc.asked_to_leave and isinstance(failure, JournalUnknown):
            self.sim.reach("an append of unknown outcome was given up")  # it was asked to leave
        elif isinstance(failure, errors.InvalidArgument) or not isinstance(failure, errors.LowwaterError):
            self.oracle.fail(f"{process.name} ended with {failure!r}")
        else:
            self.sim.reach(f"ended by {failure.reason}")

    # -- peace -----------------------------------------------------------------------------------------------------

    async def _make_peace(self) -> None:
        self.place.calm = True
        self.havoc.end()
        for process in [self.authority, *self.living(), *self.leaving]:
            self.sim.network.heal(process)
            process.resume()
        started = self.sim.now
        await self._arrive(
            "the truth", lambda: not self.pipeline.unfinished and not self.oracle.behind(self.pipeline.nodes)
        )
        self.settled = self.sim.now - started
        if self.oracle.violations:
            return
        self.place.finishing = True
        await self._arrive("the end", lambda: all(self.oracle.published(name) == MAX for name in self.pipeline.nodes))
        process = self.named("confirmer")
        process.start(programs.confirm, self.place, process)
        await process.ended.wait()
        self._judge(process)
        [watcher] = [process for process, _ in self.readers if process.name == "watcher"]
        await self._arrive("the watcher", lambda: self.oracle.has_seen(watcher, self.pipeline.nodes) == MAX)

    async def _arrive(self, where: str, there: Callable[[], bool]) -> None:
        deadline = self.sim.now + ARRIVES_WITHIN
        while not there() and not self.oracle.violations:
            if self.sim.now > deadline:
                lags = self.oracle.behind(self.pipeline.nodes)
                self.oracle.fail(
                    f"nothing went wrong for {ARRIVES_WITHIN:g} s, but not everything is at {where}: {lags}, "
                    f"{self.pipeline.unfinished} records are not finished"
                )
                return
            await asyncio.sleep(0.25)


class _Heard(logging.Handler):
    """Errors that the production code logs: it never should, whatever the network and the disk do."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(logging.ERROR)
        self._oracle = oracle

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self._oracle.fail(
            f"logged: {record.getMessage()} {record.exc_info[1]!r}" if record.exc_info else record.getMessage()
        )


@contextmanager
def _hearing(oracle: Oracle) -> Iterator[None]:
    """Listen to the loggers of the production code, and keep the rest of what they say to themselves."""
    handler = _Heard(oracle)
    loggers = [logging.getLogger(name) for name in ("lowwater", "lowwater_authority")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
