"""The programs that run in the simulated processes: workers of every kind, and readers. They use what users use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import lowwater
from lowwater import Inputs, Watermark, errors
from lowwater.aio import Client
from lowwater.core.surroundings import Surroundings
from tests.simulation.storage import Fenced, Storage
from tests.simulation.truth import MAX, MIN, Node, Pipeline, Record

if TYPE_CHECKING:
    from lowwater.aio import Lease, Worker
    from tests.simulation.kernel import Process, Simulation
    from tests.simulation.oracle import Oracle
    from tests.simulation.timers import Timers

SHARES = (0.99, 0.5)
HOUR = 3_600_000_000
GROWING = "daily"
"""The computation that gets another input while it runs. No other reads it."""
CENTURY = 4_102_444_800_000_000


@dataclass
class Place:
    sim: Simulation
    pipeline: Pipeline
    storage: Storage
    oracle: Oracle
    finishing: bool = False
    calm: bool = False
    addresses: str = ""
    timers: Timers | None = None
    """The truth of the computation with timers; None: the world has none."""
    sliced: bool = False
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    """The refusal of each call in peace, when everything is at the truth; empty: it was not refused."""
    budgeted: bool = False
    """True if computations have a lateness budget: half of the records, or the few of a world would not warm it up."""

    def note_outcome(self, call: str, error: errors.LowwaterError | None = None) -> None:
        """Note what came of a call."""
        if error is not None:
            self.sim.reach(f"{call}: {error.reason}")
        if self.finishing:
            self.outcomes.setdefault(call, []).append("" if error is None else repr(error))

    def random(self, process: Process) -> Random:
        return self.sim.rng(f"{process.name}/{process.generation}")

    def client(self, process: Process, addresses: str = "") -> Client:
        random = self.random(process)
        surroundings = Surroundings(
            monotonic=lambda: self.sim.now,
            random=random.random,
            randbytes=random.randbytes,
            host=lambda: "host",
            pid=lambda: 1,
        )
        settings = lowwater.Settings(addresses or self.addresses, timeout=5.0)
        return Client(
            settings, surroundings=surroundings, channel=lambda address: self.sim.network.channel(process, address)
        )


@dataclass(frozen=True)
class Share:
    """The part of one worker: cells, cut into ranges at these edges."""

    edges: tuple[int, ...]

    def bounds(self, node: Node) -> list[bytes]:
        return [node.edge(edge) for edge in self.edges]

    @property
    def cells(self) -> range:
        return range(self.edges[0], self.edges[-1])

    def cells_of(self, handle: int) -> range:
        return range(self.edges[handle], self.edges[handle + 1])

    def handles(self) -> range:
        return range(len(self.edges) - 1)


async def register(place: Place, lw: Client, name: str) -> None:
    node = place.pipeline.nodes[name]
    try:
        budget = 0.5 if place.budgeted else ()
        slices = [node.edge(index) for index in node.cuts]
        await lw.register(name, inputs=node.inputs, heuristics=SHARES, lateness_budget=budget, slices=slices)
    except errors.RegistrationConflict:
        pass  # its inputs are being changed at this time


async def work(place: Place, process: Process, name: str, share: Share) -> None:
    random = place.random(process)
    node = place.pipeline.nodes[name]
    async with place.client(process) as lw:
        await register(place, lw, name)
        async with lw.worker(name, name=process.name) as worker:
            # A worker that comes back from an older state than was reported begins there: its ranges go down.
            older = None
            if node.inputs and not place.calm and random.random() < 0.2:
                least = place.pipeline.least_of(name, share.cells)
                back = random.randrange(10 * HOUR)
                older = node.stamp(max(least - back, 0)) if least != MAX or not place.sliced else None
            lease = await worker.claim(bounds=share.bounds(node), bound=older)
            place.oracle.claimed(process, name, lease.sequencer, share)
            try:
                await place.storage.open(name, share.cells, lease.sequencer)
                if node.inputs:
                    await _follow(place, process, lw, worker, lease, node, share)
                else:
                    await _inject(place, process, lease, node, share)
            except Fenced:
                place.sim.reach("storage refused a zombie")


async def _inject(place: Place, process: Process, lease: Lease, node: Node, share: Share) -> None:
    random = place.random(process)
    frontiers = {}
    for index in share.cells:
        frontiers[index] = await place.storage.inject(node.name, index, lease.sequencer, 0)
    acknowledged: set[int] = set()
    injected: list[int] = []
    while True:
        oldest = [min(frontiers[index] for index in share.cells_of(handle)) for handle in share.handles()]
        finished = [handle for handle in share.handles() if oldest[handle] == MAX]
        running = [micros for micros in oldest if micros != MAX]
        if running:
            # Nothing hinders a source from knowing less than is true, for a while.
            slack = 0 if place.calm or random.random() < 0.8 else random.randrange(60_000_000)
            # Only where a budget needs it: how many were finished takes part in other watermarks, too.
            new = injected if place.budgeted else 0
            lease.advance(None, oldest=[m - slack for m in oldest], frontier=max(running) - slack, finished=new)
            injected = []
            if not place.calm and random.random() < 0.02:
                # A wrong clock, a wrong unit: refused, and made good by the next state.
                lease.advance(None, oldest=None, frontier=CENTURY)
        if not set(finished) <= acknowledged and await _finish(lease, finished):
            acknowledged.update(finished)
        if len(acknowledged) == len(oldest):
            await asyncio.sleep(random.uniform(1, 5))
            continue
        await asyncio.sleep(random.uniform(0.1, 1.5))
        for index in share.cells:
            if frontiers[index] == MAX or random.random() < 0.3:
                continue
            source = node.cells[index].source
            assert source is not None
            if place.finishing and source.offset == len(source.times):
                source.finished = True
                place.pipeline.changed()
            before = source.offset
            frontiers[index] = await place.storage.inject(node.name, index, lease.sequencer, random.randrange(1, 4))
            injected += source.times[before : source.offset]


async def _finish(lease: Lease, handles: Sequence[int]) -> bool:
    try:
        await lease.finish(handles)
    except (errors.Timeout, errors.TooFarAhead):
        return False  # it stays staged
    return True


async def _follow(
    place: Place, process: Process, lw: Client, worker: Worker, lease: Lease, node: Node, share: Share
) -> None:
    random = place.random(process)
    while True:
        inputs = await worker.inputs()
        place.oracle.folded(process, node.name, inputs)
        pending = await place.storage.read(node.name, share.cells, lease.sequencer)
        finished: list[int] = []
        for index in share.cells:
            ready = [r for r in pending[index] if may_finish(node, r, inputs.low.micros)]
            chosen = [r for r in ready if place.calm or random.random() < 0.7]
            if not chosen:
                continue
            closed = inputs.low.micros if node.window else MIN
            # A worker may die after the step and before it knows: the records are done, and nobody was told.
            await place.storage.finish(node.name, index, lease.sequencer, chosen, results(node, chosen), closed)
            numbers = {record.number for record in chosen}
            pending[index] = [record for record in pending[index] if record.number not in numbers]
            finished += [node.stamp(record.time) for record in chosen]
        oldest = [oldest_of(node, share.cells_of(handle), pending, inputs) for handle in share.handles()]
        if node.name == GROWING and random.random() < 0.5:
            through = min(*oldest, node.stamp(inputs.low.micros))
            await _vouch(place, lw, lease, node, share, through, inputs, random)
        lease.advance(
            inputs,
            oldest=oldest,
            pending=[node.stamp(record.time) for records in pending.values() for record in records],
            finished=finished,
        )
        if random.random() < 0.1:
            try:
                await lease.flush(2.0)
                place.oracle.flushed(process, lease, oldest, inputs)
                place.note_outcome("flush")
            except (errors.Timeout, errors.TooFarAhead, errors.InputVersion, errors.IncarnationChanged) as error:
                place.note_outcome("flush", error)
        if not place.calm and random.random() < 0.1:
            await _go_back(place, process, node, share, lease, inputs, random)
        if lease.refused is not None and lease.refused.reason in {"INPUT_VERSION", "INCARNATION_CHANGED"}:
            return  # folds that do not count any more: claim again
        await asyncio.sleep(random.uniform(0.1, 1.5))
        if not place.calm and random.random() < 0.02:
            place.oracle.released(lease.computation, lease.sequencer)
            await lease.release()
            return


async def _vouch(
    place: Place, lw: Client, lease: Lease, node: Node, share: Share, through: int, inputs: Inputs, random: Random
) -> None:
    if through == MIN:
        return
    try:
        await lw.batches.vouch(lease.computation, lease.sequencer, Watermark(through), seen=inputs)
    except (errors.Timeout, errors.Unavailable, errors.ShuttingDown, errors.JournalFailed, errors.TooFarAhead) as error:
        place.note_outcome("vouch", error)
    except (errors.InputVersion, errors.IncarnationChanged, errors.StaleSequencer) as error:
        place.note_outcome("vouch", error)
        raise Fenced from error  # claim again
    else:
        place.note_outcome("vouch")
        place.oracle.vouched(lease.computation, lease.incarnation, through)
        place.oracle.says(node.name, lease.incarnation, share.cells, through)
        if not place.calm and random.random() < 0.3:
            await asyncio.sleep(random.uniform(0.0, 6.0))  # it takes long from the output to the report


async def _go_back(
    place: Place, process: Process, node: Node, share: Share, lease: Lease, inputs: Inputs, random: Random
) -> None:
    least = place.pipeline.least_of(node.name, share.cells)
    if least == MAX:
        return
    older = node.stamp(max(least - random.randrange(3 * HOUR), 0))
    lease.advance(inputs, oldest=older)
    try:
        await lease.flush(4.0)
    except (errors.Timeout, errors.TooFarAhead, errors.InputVersion, errors.IncarnationChanged):
        return  # perhaps it is durable, and then the ranges hold for nothing
    place.oracle.flushed(process, lease, [older] * len(share.handles()), inputs)
    await place.storage.take_on(node.name, share.cells, lease.sequencer, older, place.oracle)
    place.sim.reach("ranges went down")


def may_finish(node: Node, record: Record, low: int) -> bool:
    return not node.window or node.stamp(record.time) + node.window <= low


def results(node: Node, records: Sequence[Record]) -> list[int]:
    new = [record.time for record in records if not record.again]
    return new if not node.window else sorted({node.stamp(time) for time in new})


def oldest_of(node: Node, cells: range, pending: Mapping[int, Sequence[Record]], inputs: Inputs) -> int:
    """The least event time that cells hold. Of windows, also the one that a record at the inputs' low watermark would open."""
    times = [node.stamp(record.time) for index in cells for record in pending[index]]
    return min([node.stamp(inputs.low.micros) if node.window else MAX, *times])


async def watch(place: Place, process: Process) -> None:
    random = place.random(process)
    async with place.client(process) as lw:
        async for view in lw.watch():
            place.oracle.viewed(process, view)
            if random.random() < 0.05:
                await asyncio.sleep(random.uniform(0.5, 8))  # slow now and then: the newest value comes next


async def fold(place: Place, process: Process, names: Sequence[str]) -> None:
    random = place.random(process)
    async with place.client(process) as lw:
        reader = lw.inputs(*names)
        while True:
            place.oracle.folded(process, "", await reader.read())
            await asyncio.sleep(random.uniform(0.5, 3))


async def ask(place: Place, process: Process) -> None:
    random = place.random(process)
    async with place.client(process) as lw:
        while True:
            await asyncio.sleep(random.uniform(0.2, 3))
            name = random.choice(list(place.pipeline.nodes))
            try:
                await _question(place, process, lw, name, random)
            except (errors.Unavailable, errors.Timeout, errors.ShuttingDown, errors.UnknownComputation) as error:
                place.sim.reach(f"ask: {error.reason}")
            except errors.IncarnationChanged:
                place.sim.reach("a wait met a reset")


async def _question(place: Place, process: Process, lw: Client, name: str, random: Random) -> None:
    oracle = place.oracle
    until = place.pipeline.low(name) + random.randrange(-7_200_000_000, 3_600_000_000)
    until = min(max(until, MIN + 1), MAX)
    match random.randrange(6):
        case 0:
            for view in (await lw.get()).values():
                oracle.viewed(process, view)
        case 1:
            oracle.answered(process, name, until, await lw.complete(name, until))
        case 2:
            await lw.ranges(name, limit=1000)  # checked when it was sent
        case 3:
            incarnation = oracle.incarnation(name)
            view = await lw.wait(name, until, timeout=random.uniform(0.1, 20))
            oracle.viewed(process, view)
            if view.incarnation < incarnation:
                oracle.fail(
                    f"{process.name} waits for {name} and is answered from incarnation {view.incarnation}, not {incarnation}"
                )
            oracle.reached(process, name, until, complete=view.low.micros >= until, incarnation=view.incarnation)
        case 4:
            oracle.remembered(name, await lw.history(name, limit=10_000))
        case _:
            await lw.why(name)


async def confirm(place: Place, process: Process) -> None:
    async with place.client(process) as lw:
        for name in place.pipeline.nodes:
            view = await lw.wait(name, Watermark.FINISHED, timeout=30)
            place.oracle.reached(process, name, MAX, complete=view.low.finished)
            answer = await lw.complete(name, Watermark.FINISHED)
            place.oracle.answered(process, name, MAX, answer)
            ranges = await lw.ranges(name)
            inputs = await lw.inputs(name).read()
            state = f"{answer.complete} {inputs.low} {[range_.state.name for range_ in ranges]} {(await lw.why(name)).guilty}"
            if not (answer.complete and inputs.low.finished and inputs.stale_for < 3):
                place.oracle.fail(f"at the end {name} is not complete: {state}")
