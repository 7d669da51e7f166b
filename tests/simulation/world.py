"""One world: a pipeline under chaos, then in peace. The safety phase lets everything go wrong; the liveness phase lets nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, Final

from lowwater import errors
from lowwater_authority.engine import endings, holdings
from lowwater_authority.engine import slice as slice_module
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.journal import GRAPH
from tests.kit.planting import instead
from tests.simulation import batches, chaos, points, programs, timers
from tests.simulation.chaos import Move, is_budgeted, is_sharded, is_sliced, is_weak, length
from tests.simulation.deployment import Deployment, Seat
from tests.simulation.havoc import BATCHED, HALF_WAY, Havoc
from tests.simulation.kernel import Process, Simulation
from tests.simulation.ledger import Ledger
from tests.simulation.oracle import Oracle
from tests.simulation.programs import Place, Share
from tests.simulation.storage import Storage
from tests.simulation.truth import MAX, Cell, Node, Pipeline, Source

SECOND: Final = 1_000_000
HOUR: Final = 3600 * SECOND
BEGINNING: Final = 1_357_344_000 * SECOND

ARRIVES_WITHIN: Final = 180.0
"""Seconds of peace after which every watermark must be at the truth."""

REFUSED_AT_MOST: Final = 5
"""The number of refusals in a row that a call may meet in peace."""

LIMIT: Final = 3600.0


@dataclass(frozen=True)
class Result:
    seed: int
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


def pipeline(random: Random, seconds: float, *, timed: bool = False) -> Pipeline:
    """Two injectors, a join, windows made by micro-batches, and a reader of those; and perhaps a computation with timers."""

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
            *([Node(timers.TIMED, [timers.READ], HOUR, cells(timers.CELLS))] if timed else []),
            Node("hourly", ["enriched"], HOUR, cells(4)),
            Node("late", ["enriched"], 3 * HOUR, cells(4)),
            Node("daily", ["hourly"], 0, cells(2)),
        ]
    )


def cut(random: Random, nodes: Pipeline) -> None:
    """Let computations be cut into slices, at random edges of cells: the one that gets another input, and some others. Not those that one run has all of."""
    may = [node for node in nodes.nodes.values() if node.name not in (BATCHED, timers.TIMED, programs.GROWING)]
    for node in (nodes.nodes[programs.GROWING], *random.sample(may, random.randrange(1, len(may) + 1))):
        inner = range(1, len(node.cells))
        node.cuts = tuple(sorted(random.sample(inner, random.randrange(1, min(len(inner), 3) + 1))))


def cut_later(random: Random, nodes: Pipeline) -> None:
    """Choose where slices may be cut in two. Not those of the one that gets another input: what a slice stood at before nobody could tell of its halves."""
    for node in nodes.nodes.values():
        inner = [cell for cell in range(1, len(node.cells)) if cell not in node.cuts]
        if node.cuts and node.name != programs.GROWING:
            node.later = tuple(sorted(random.sample(inner, min(len(inner), 2))))


def shares(random: Random, node: Node) -> list[Share]:
    count = len(node.cells)
    inner = sorted(random.sample(range(1, count), random.randrange(min(count, 4))))
    if node.name in (BATCHED, timers.TIMED):
        return [Share((0, *inner, count))]
    outer = [0, *sorted({*random.sample(inner, random.randrange(len(inner) + 1)), *node.cuts, *node.later}), count]
    return [Share((low, *(edge for edge in inner if low < edge < high), high)) for low, high in pairwise(outer)]


class World:
    """Everything that there is, from one seed and one list of moves."""

    def __init__(self, seed: int, moves: Sequence[Move], seconds: float | None = None) -> None:
        self.moves = moves
        self.sim = sim = Simulation(seed)
        random = sim.rng("world")
        self.seconds = length(moves) if seconds is None else seconds
        self.weak = is_weak(seed)
        self.snapshot_bytes = random.choice([2_000, 20_000, 200_000])
        settings = ShardSettings(snapshot_bytes=self.snapshot_bytes, graph_bytes=self.snapshot_bytes // 10)
        if self.snapshot_bytes < 200_000:
            settings = replace(settings, piece_bytes=1)  # a record is read back at once, and not all of a log
        self.timed = timers.is_timed(seed)
        self.pipeline = pipeline(random, self.seconds, timed=self.timed)
        self.sliced = is_sliced(seed)
        if self.sliced:
            cut(sim.rng("slices"), self.pipeline)
            cut_later(sim.rng("later cuts"), self.pipeline)
        self.lasting = {"flights", "weather", timers.READ, timers.TIMED} if self.timed else set[str]()
        """Computations that nobody resets: a checkpoint is of one life of its inputs."""
        seats = random.randrange(2, 5) if is_sharded(seed) else 1
        ledger = Ledger()
        ledger.keeps_prefixes = any(move.kind in chaos.REPLICATED for move in moves)
        # Which shard serves what depends on its address: on the same ones, a slice would be with its root in all worlds, or in none.
        port = sim.rng("port").randrange(7000, 8000) if ledger.keeps_prefixes else 7420
        self.oracle = Oracle(sim, self.pipeline, ledger, weak=self.weak, sharded=seats > 1)
        self.deployment = Deployment(sim, seats, self.oracle, ledger, weak=self.weak, port=port, settings=settings)
        self.place = Place(sim, self.pipeline, Storage(self.pipeline, sim.rng("storage")), self.oracle)
        self.place.addresses = self.deployment.addresses
        self.slots: list[Slot] = []
        self.readers: list[tuple[Process, Callable[[Process], Coroutine[Any, Any, None]]]] = []
        self.leaving: list[Process] = []
        self.inputs_changed = False
        self.settled = float("inf")
        self._names = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.havoc = Havoc(self)
        self.place.budgeted = is_budgeted(seed)
        self.place.sliced = self.sliced
        if self.timed:
            self.place.timers = timers.Timers(sim, self.pipeline, self.oracle, weak=self.weak)
            sim.network.taps.append(self.place.timers.sent)
        sim.network.taps.append(self.oracle.sent)
        sim.network.late_taps.append(self.oracle.arrived_late)

    def run(self) -> Result:
        pauses = Pauses(self.sim)
        half_changes = self.havoc.half_changes() if chaos.is_visited(self.sim.seed) else ()
        with (
            instead(
                *half_changes,
                (holdings, "asyncio", pauses),
                (endings, "asyncio", pauses),
                (slice_module.Slice, "settle", _waiting(self.sim)),
            ),
            _hearing(self.oracle, weak=self.weak),
            timers.spark_away(self.sim) if self.timed else nullcontext(),
        ):
            try:
                self.sim.run(self._live(), limit=self.seconds + LIMIT)
            except Exception as error:  # noqa: BLE001 - the worst that can happen to a world
                self.oracle.fail(f"the world ended: {error!r}")
            finally:
                if self.place.timers is not None:
                    self.place.timers.close()
        return Result(
            seed=self.sim.seed,
            seconds=self.sim.now,
            faults=sum(count for point, count in self.sim.points.items() if points.is_fault(point)),
            points=dict(self.sim.points),
            observations=self.oracle.observations,
            violations=tuple(self.oracle.violations),
            digest=self.sim.digest(),
            settled=self.settled,
        )

    async def _live(self) -> None:
        for seat in self.deployment.seats:
            self.deployment.start(self.place, seat)
        for node in self.pipeline.nodes.values():
            self.share_out(node, self.sim.rng(f"shares of {node.name}"))
        place = self.place
        self._read("watcher", lambda process: programs.watch(place, process))
        self._read("asker", lambda process: programs.ask(place, process))
        self._read("folder", lambda process: programs.fold(place, process, ["enriched", "hourly"]))
        if place.timers is not None:
            self._read("layer", lambda process: timers.lay_out(place, process))
        self.later(self._supervise)
        if self.weak and self.deployment.sharded:
            self.later(self.havoc.upheaval.keep_backups)
        for move in self.moves:
            await asyncio.sleep(max(0.0, move.at - self.sim.now))
            if self.oracle.violations:
                return
            self.sim.trace("move", what=str(move))
            self.havoc.do(move)
        await asyncio.sleep(self.seconds - self.sim.now)
        await self._make_peace()

    def look_at_inputs(self) -> None:
        node = self.pipeline.nodes["daily"]
        if self.weak and "late" in node.inputs and not self.oracle.knows_inputs("daily", node.inputs):
            self.sim.reach("a change of the graph is lost for good")
            self.pipeline.forget_input("daily", "late")

    def later(self, run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = asyncio.ensure_future(run(*arguments))
        task.add_done_callback(lambda done: None if done.cancelled() else self._failed(done.exception()))
        self._tasks.append(task)

    def _failed(self, error: BaseException | None) -> None:
        if error is not None:
            self.oracle.fail(f"the world itself failed: {error!r}")

    # -- life ------------------------------------------------------------------------------------------------------

    def workers(self) -> list[Process]:
        return [slot.process for slot in self.slots if slot.process.alive]

    def living(self) -> list[Process]:
        return [*self.workers(), *(process for process, _ in self.readers if process.alive)]

    def share_out(self, node: Node, random: Random) -> None:
        self.leaving += [slot.process for slot in self.slots if slot.name == node.name]
        self.slots = [slot for slot in self.slots if slot.name != node.name]
        for share in shares(random, node):
            slot = Slot(node.name, share, self.named(node.name))
            self.slots.append(slot)
            self.start_worker(slot)

    def named(self, name: str) -> Process:
        self._names += 1
        return self.sim.process(f"{name}-{self._names}")

    def start_worker(self, slot: Slot) -> None:
        program = {BATCHED: batches.run_batches, timers.TIMED: timers.run}.get(slot.name, programs.work)
        slot.process.start(program, self.place, slot.process, slot.name, slot.share)

    def _read(self, name: str, program: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        process = self.sim.process(name)
        process.start(program, process)
        self.readers.append((process, program))

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for at, where, error in self.sim.errors:
                self.oracle.fail(f"nobody caught, at {at:.3f} s, {where}: {error!r}")
            for seat in self.deployment.seats:
                self._judge(seat.process, seat)
            for process in [
                *self.deployment.zombies,
                *(slot.process for slot in self.slots),
                *(p for p, _ in self.readers),
                *self.leaving,
            ]:
                self._judge(process)
            if self.oracle.violations:
                return
            self.look_at_inputs()
            for seat in self.deployment.seats:
                if not seat.process.alive and seat.wanted and not seat.away:
                    self.deployment.start(self.place, seat)
            for slot in self.slots:
                if not slot.process.alive:
                    slot.process = slot.process.restarted()
                    self.start_worker(slot)
            for position, (process, program) in enumerate(self.readers):
                if not process.alive:
                    fresh = process.restarted()
                    fresh.start(program, fresh)
                    self.readers[position] = (fresh, program)

    def _judge(self, process: Process, seat: Seat | None = None) -> None:
        failure, process.failure = process.failure, None
        if failure is None:
            return
        self.sim.trace("ended", process=process.name, why=repr(failure))
        if excuse := self.deployment.excused(seat, process, failure):
            self.sim.reach(excuse)
        elif isinstance(failure, errors.InvalidArgument) or not isinstance(failure, errors.LowwaterError):
            self.oracle.fail(f"{process.name} ended with {failure!r}")
        else:
            self.sim.reach(f"ended by {failure.reason}")

    # -- peace -----------------------------------------------------------------------------------------------------

    async def _make_peace(self) -> None:
        self.place.calm = True
        self.havoc.end()
        for process in [*self.havoc.upheaval.everybody(), *self.living(), *self.leaving]:
            self.sim.network.heal(process)
            process.resume()
        started = self.sim.now
        for name in dict.fromkeys(self.pipeline.whole(each).name for each in self.oracle.lost_incarnations()):
            self.havoc.reset(name)
        await self._arrive(
            "the truth", lambda: not self.pipeline.unfinished and not self.oracle.behind(self.pipeline.nodes)
        )
        self.settled = self.sim.now - started
        if self.oracle.violations:
            return
        self.place.finishing = True
        await self._arrive("the end", lambda: all(self.oracle.published(name) == MAX for name in self.pipeline.nodes))
        self.oracle.keeps_the_graph()
        # What is damaged stays with the owner that has it in memory, whomever the view names.
        names = [*self.pipeline.nodes, *self.pipeline.cut]
        whole = [name for name in names if self.pipeline.whole(name).name not in self.oracle.damaged]
        await self._arrive("its place", lambda: not self.deployment.misplaced(whole))
        if not self.weak:
            await self._arrive("the end of its log", lambda: not self.deployment.ledger.unended())
        confirmer, guest = self.named("confirmer"), self.havoc.visit()
        confirmer.start(programs.confirm, self.place, confirmer)
        for process in (confirmer, guest):
            await process.ended.wait()
            self._judge(process)
        self._look_back()
        if self.place.timers is not None:
            self.place.timers.audit()
        [watcher] = [process for process, _ in self.readers if process.name == "watcher"]
        await self._arrive("the watcher", lambda: self.oracle.has_seen(watcher, self.pipeline.nodes) == MAX)

    def _look_back(self) -> None:
        """Look at what nobody has asked for: tasks that failed and were not waited for, refusals, and figures."""
        for failed in self.sim.loop.failed():
            self.oracle.fail(f"a task failed, and nobody was told: {failed}")
        for call, refusals in self.place.outcomes.items():
            last = refusals[-REFUSED_AT_MOST:]
            always = len(last) == REFUSED_AT_MOST and all(last)
            self.oracle.expect(not always, f"in peace {call} was refused {len(last)} times in a row: {last[-1]}")
        for seat in self.deployment.seats:
            if seat.serving and seat.authority is not None and seat.observer is not None:
                told, serves = seat.observer.served, len(seat.authority.shard.served.names())
                self.oracle.expect(told == serves, f"{seat.name} serves {serves} computations, and counts {told}")

    async def _arrive(self, where: str, there: Callable[[], bool]) -> None:
        deadline = self.sim.now + ARRIVES_WITHIN
        while not there() and not self.oracle.violations:
            self._compare_budgets()
            if self.sim.now > deadline:
                lags = self.oracle.behind(self.pipeline.nodes)
                misplaced = self.deployment.misplaced(list(self.pipeline.nodes))
                self.oracle.fail(
                    f"nothing went wrong for {ARRIVES_WITHIN:g} s, but not everything is at {where}: {lags}, "
                    f"{self.pipeline.unfinished} records are not finished, {misplaced}"
                )
                return
            await asyncio.sleep(0.25)

    def _compare_budgets(self) -> None:
        """Look whether the lateness budget of a root is behind those of its slices, all of which it has confirmed."""
        shards = [seat.authority.shard for seat in self.deployment.seats if seat.serving and seat.authority]
        for root in self.pipeline.nodes.values() if self.place.budgeted else ():
            slices = [slice_ for shard in shards for name in root.slices if (slice_ := shard.slices.of(name))]
            reports = [slice_._report for slice_ in slices if slice_._report == slice_._confirmed]
            views = [view for shard in shards if (view := shard.served.view(root.name))]
            if reports and len(reports) == len(slices) == len(root.slices) and len(views) == 1:
                own, least = views[0].budgets[0].micros, min(report.budgets[0][1] for report in reports)
                same = {views[0].incarnation} == {report.incarnation for report in reports}
                self.oracle.expect(
                    own >= least or least == MAX or not same, f"{root.name} has its budget at {own}, not {least}"
                )


class Pauses:
    """Stands for ``asyncio`` in a module that works in pieces: behind each others have the event loop for a while, and time passes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._random = sim.rng("pauses")

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        if not seconds:
            self._sim.reach("others go on behind a piece")
            seconds = self._random.uniform(0.0001, 0.003)
        await asyncio.sleep(seconds)


def _waiting(sim: Simulation) -> Callable[[slice_module.Slice, int], Coroutine[Any, Any, errors.Unavailable | None]]:
    settle = slice_module.Slice.settle

    async def counted(self: slice_module.Slice, turn: int) -> errors.Unavailable | None:
        sim.reach("an answer waited for the root")
        refusal = await settle(self, turn)
        if refusal is not None:
            sim.reach("an answer waited for the root in vain")
        return refusal

    return counted


class _Heard(logging.Handler):
    """Errors that the production code logs: it never should, whatever the network and the disk do."""

    def __init__(self, oracle: Oracle, *, weak: bool) -> None:
        super().__init__(logging.ERROR)
        self._oracle = oracle
        self._weak = weak

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if record.exc_info and HALF_WAY in repr(record.exc_info[1]):
            return
        # The oracle says whether there was anything to put back; and a zombie was found out.
        if said.endswith(("putting it back from memory", "Its answer was not used.")):
            return
        if said.startswith("the store refuses writes"):  # by the fault plan, and it is told of as it should be
            return
        if any(f"log {name!r}" in said and "is damaged" in said for name in self._oracle.damaged):
            return
        if GRAPH in self._oracle.damaged and said.startswith("the graph is damaged in the store"):
            return
        if "has lost what it acknowledged" in said and (
            self._weak or any(said.startswith(f"{name} was served") for name in self._oracle.untaken)
        ):
            return
        self._oracle.fail(
            f"logged: {record.getMessage()} {record.exc_info[1]!r}" if record.exc_info else record.getMessage()
        )


@contextmanager
def _hearing(oracle: Oracle, *, weak: bool) -> Iterator[None]:
    handler = _Heard(oracle, weak=weak)
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
