"""One world: a pipeline under chaos, then in peace. The safety phase lets everything go wrong; the liveness phase lets nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from random import Random
from typing import Any, Final
from unittest import mock

from lowwater import errors
from lowwater_authority import logs
from lowwater_authority.journal import JournalUnknown
from lowwater_authority.journal.faults import Operation, Outcome
from lowwater_authority.journal.memory import MemoryDisk
from tests.simulation import points, programs
from tests.simulation.chaos import Move, length
from tests.simulation.kernel import Process, SimFaults, Simulation, StoreWeather, Weather
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


BATCHED: Final = "hourly"
"""The computation that works in micro-batches."""


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
        self._weathers: list[Weather] = []
        self._stores: list[StoreWeather] = []
        self._away = False
        self._asked_to_leave: Process | None = None
        sim.network.taps.append(self.oracle.sent)

    def run(self) -> Result:
        """Live through it."""
        logging.disable(logging.CRITICAL)
        with mock.patch.object(logs, "SNAPSHOT_BYTES", self.snapshot_bytes):
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
            self._share_out(node, self.sim.rng(f"shares of {node.name}"))
        place = self.place
        self._read("watcher", lambda process: programs.watch(place, process))
        self._read("asker", lambda process: programs.ask(place, process))
        self._read("folder", lambda process: programs.fold(place, process, ["enriched", "hourly"]))
        self._later(self._supervise)
        for move in self.moves:
            await asyncio.sleep(max(0.0, move.at - self.sim.now))
            if self.oracle.violations:
                return
            self.sim.trace("move", what=str(move))
            self._do(move)
        await asyncio.sleep(self.seconds - self.sim.now)
        await self._make_peace()

    def _later(self, run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self._tasks.append(asyncio.ensure_future(run(*arguments)))

    # -- life ------------------------------------------------------------------------------------------------------

    def _start_authority(self) -> None:
        self.authority = self.authority.restarted()
        self.authority.start(programs.serve, self.place, self.authority, self.disk, self.faults, self.running)

    def _share_out(self, node: Node, random: Random) -> None:
        self.leaving += [slot.process for slot in self.slots if slot.name == node.name]
        self.slots = [slot for slot in self.slots if slot.name != node.name]
        for share in shares(random, node):
            slot = Slot(node.name, share, self._named(node.name))
            self.slots.append(slot)
            self._start_worker(slot)

    def _named(self, name: str) -> Process:
        self._names += 1
        return self.sim.process(f"{name}-{self._names}")

    def _start_worker(self, slot: Slot) -> None:
        program = programs.run_batches if slot.name == BATCHED else programs.work
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
            if not self.authority.alive and not self._away:
                self._start_authority()
            for slot in self.slots:
                if not slot.process.alive:
                    slot.process = slot.process.restarted()
                    self._start_worker(slot)
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
        if process is self._asked_to_leave and isinstance(failure, JournalUnknown):
            self.sim.reach("an append of unknown outcome was given up")  # it was asked to leave
        elif isinstance(failure, errors.InvalidArgument) or not isinstance(failure, errors.LowwaterError):
            self.oracle.fail(f"{process.name} ended with {failure!r}")
        else:
            self.sim.reach(f"ended by {failure.reason}")

    # -- moves -----------------------------------------------------------------------------------------------------

    def _do(self, move: Move) -> None:
        facts = move.facts
        self.sim.reach(f"move: {move.kind}")
        match move.kind:
            case "crash the authority":
                self._later(self._crash, facts["down"], facts["keep"])
            case "stop the authority":
                self._later(self._stop, facts["down"])
            case "pause the authority":
                self._later(self._pause, self.authority, facts["seconds"])
            case "turn the authority's clock":
                self.authority.skew += facts["by"]
            case "bad network" | "hostile reports":
                self._later(self._bad_network, move.kind, facts)
            case "bad store":
                self._later(self._bad_store, facts)
            case "cut":
                self._later(self._cut, self._pick(self._living(), facts["pick"]), facts["seconds"])
            case "crash a worker" | "crash a reader":
                victim = self._pick(
                    self._workers() if move.kind == "crash a worker" else [p for p, _ in self.readers], facts["pick"]
                )
                if victim is not None:
                    victim.crash()
            case "pause a worker" | "pause a reader":
                chosen = self._workers() if move.kind == "pause a worker" else [p for p, _ in self.readers]
                self._later(self._pause, self._pick(chosen, facts["pick"]), facts["seconds"])
            case "replace a paused worker":
                slot = self.slots[int(facts["pick"] * len(self.slots))]
                self._later(self._pause, slot.process, facts["seconds"])
                self._replace(slot)
            case "replace a run":
                self._replace(*(slot for slot in self.slots if slot.name == BATCHED))
            case "share out anew":
                nodes = list(self.pipeline.nodes.values())
                self._share_out(nodes[int(facts["pick"] * len(nodes))], Random(facts["cut"]))
            case "reset":
                names = list(self.pipeline.nodes)
                self._operate("reset", names[int(facts["pick"] * len(names))])
            case "new inputs":
                self._operate("set_inputs", "daily")
            case kind:
                raise ValueError(kind)

    def _replace(self, slot: Slot) -> None:
        """Start another process for a share; the old one lives on until it notices."""
        self.leaving.append(slot.process)
        slot.process = self._named(slot.name)
        self._start_worker(slot)

    def _workers(self) -> list[Process]:
        return [slot.process for slot in self.slots if slot.process.alive]

    def _living(self) -> list[Process]:
        return [*self._workers(), *(process for process, _ in self.readers if process.alive)]

    @staticmethod
    def _pick(processes: Sequence[Process], pick: float) -> Process | None:
        return processes[int(pick * len(processes))] if processes else None

    async def _crash(self, down: float, keep: int) -> None:
        if self._away:
            return
        self._away = True
        if self.faults.writing:
            self.sim.reach("a crash in the middle of a write")
        if self.disk.unsynced:
            lost = self.disk.unsynced > keep
            self.sim.reach("a crash that lost what was cached" if lost else "a crash that kept some of what was cached")
        self.faults.writing = 0
        self.authority.crash()
        self.disk.crash(keep)
        await asyncio.sleep(down)
        self._away = False

    async def _stop(self, down: float) -> None:
        authority = self.running.authority
        if self._away or not self.authority.alive or authority is None:
            return
        self._away = True
        self._asked_to_leave = leaving = self.authority
        authority.leave()
        try:
            async with asyncio.timeout(30):
                await leaving.ended.wait()
        except TimeoutError:
            # What supervises processes loses patience in the end.
            leaving.crash()
            self.disk.crash()
        await asyncio.sleep(down)
        self._away = False

    async def _pause(self, process: Process | None, seconds: float) -> None:
        if process is None or not process.alive or process.paused:
            return
        process.pause()
        await asyncio.sleep(seconds)
        process.resume()

    async def _cut(self, process: Process | None, seconds: float) -> None:
        if process is None:
            return
        self.sim.network.cut(process)
        await asyncio.sleep(seconds)
        self.sim.network.heal(process)

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
        self._weathers.append(weather)
        self.sim.network.weather = _worst(Weather(), self._weathers)
        await asyncio.sleep(facts["seconds"])
        if weather in self._weathers:
            self._weathers.remove(weather)
        self.sim.network.weather = _worst(Weather(), self._weathers)

    async def _bad_store(self, facts: dict[str, Any]) -> None:
        weather = StoreWeather(
            p_slow=facts["slow"],
            slow=(0.02, facts["slowness"]),
            p_failed=facts["failed"],
            p_lost=facts["lost"],
            p_written=facts["written"],
            hang=facts["hang"],
        )
        self._stores.append(weather)
        self.faults.weather = _worst(StoreWeather(), self._stores)
        await asyncio.sleep(facts["seconds"])
        if weather in self._stores:
            self._stores.remove(weather)
        self.faults.weather = _worst(StoreWeather(), self._stores)

    def _operate(self, what: str, name: str) -> None:
        process = self._named("operator")
        process.start(self._operator, process, what, name)
        self.leaving.append(process)

    async def _operator(self, process: Process, what: str, name: str) -> None:
        async with self.place.client(process) as lw:
            if what == "reset":
                await lw.reset(name)
                return
            node = self.pipeline.nodes[name]
            inputs = ["hourly"] if "late" in node.inputs else ["hourly", "late"]
            if len(inputs) == 1:
                return  # what is read once is read for good: nobody can say when the last record was
            await lw.set_inputs(name, inputs)
            node.inputs = inputs
            self.pipeline.changed()

    # -- peace -----------------------------------------------------------------------------------------------------

    async def _make_peace(self) -> None:
        self.place.calm = True
        self._weathers.clear()
        self._stores.clear()
        self.sim.network.weather, self.faults.weather = Weather(), StoreWeather()
        for process in [self.authority, *self._living(), *self.leaving]:
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


def _worst(calm: Any, active: Sequence[Any]) -> Any:
    """All that is wrong at a time."""
    for each in active:
        for field in fields(each):
            setattr(calm, field.name, max(getattr(calm, field.name), getattr(each, field.name)))
    return calm
