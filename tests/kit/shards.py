"""Shards over one journal in memory, whose beats and clock a test moves, for tests of who serves what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import count

import numpy as np

from lowwater.v1 import cluster_pb2_grpc, watermarks_pb2_grpc
from lowwater_authority.cluster.cluster import Cluster
from lowwater_authority.cluster.membership import Member
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Fold, Grant, GroupReport, Refused
from lowwater_authority.core.times import MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.root_here import Here
from lowwater_authority.engine.roots import Range, SliceClaim
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import JournalFailed
from lowwater_authority.rpc.cluster import ClusterServicer
from lowwater_authority.rpc.services import Services
from lowwater_authority.rpc.streams import Streams
from lowwater_authority.rpc.watermarks import WatermarkServicer
from tests.kit.clock import Clock
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.lines import Lines
from tests.kit.memory_directory import MemoryDirectory, MemoryMembers
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.served import served
from tests.kit.times import HOUR, SECOND

DEAD_AFTER = 1.5
NAMES = [f"c{i}" for i in range(12)]
ids = count(1)
numbers = count(1)


class Faults(FaultPlan):
    """Decides by kind how the next writes and reads of one shard end, and holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, list[Outcome]] = {}
        self.held: dict[str, asyncio.Event] = {}
        self._stops: set[str] = set()
        self.unreadable: set[str] = set()
        self.late: dict[str, asyncio.Event] = {}
        """An event for each log that cannot be read whole; setting it lets the read go on."""
        self.reads = 0

    async def before(self, operation: Operation) -> Outcome:
        if operation.name in self.held:
            await self.held[operation.name].wait()
        lined_up = self.ends.get(operation.name)
        outcome = lined_up.pop(0) if lined_up else Outcome.DONE
        if operation.name in self._stops:
            self._stops.remove(operation.name)
            self.held[operation.name] = asyncio.Event()
        return outcome

    def unknown(self, kind: str, outcome: Outcome) -> None:
        """Let the next write of a kind end so, and hold its repeat until ``let``, however slow the machine is."""
        self.ends[kind] = [outcome]
        self._stops.add(kind)

    def let(self, kind: str) -> None:
        self.held.pop(kind).set()

    async def load(self, log: str) -> None:
        if log in self.late:
            await self.late[log].wait()

    async def read(self, name: str) -> None:
        self.reads += 1
        if name in self.held:
            await self.held[name].wait()
        if name in self.unreadable:
            raise JournalFailed("it cannot be read")


class Deployment:
    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock(1000.0)
        self.disk = MemoryDisk()
        self.members = MemoryMembers(self.clock.micros, dead_after=int(DEAD_AFTER * SECOND))
        self.journal = MemoryJournal
        """The kind of journal that shards which start from now on have."""
        self.shards: list[One] = []
        self.looks_dead: set[str] = set()
        """The addresses of those whose processes seem to have died."""

    async def start(self, address: str, settings: ShardSettings | None = None) -> One:
        member = One(self, address, settings=settings)
        self.shards.append(member)
        await member.start()
        return member

    async def settle(self, *shards: One, seconds: float = 0.6) -> None:
        """Let time pass, and these shards beat and settle every 0.3 s: what one proposes the others see the next time."""
        for _ in range(round(seconds / 0.3)):
            self.clock.now += 0.3
            for member in shards:
                await member.beat()

    def owner(self, name: str) -> One:
        [member] = [member for member in self.shards if name in member.shard.served and not member.ended]
        return member


class Asks:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    async def lows(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        lows = {}
        for name in names:
            view = self._deployment.owner(name).shard.served.view(name)
            assert view is not None
            lows[name] = (view.incarnation, view.low)
        return lows

    async def claim(self, claim: SliceClaim) -> Range:
        shard = self._deployment.owner(claim.root).shard
        return await Here(shard.served, shard.owners).claim(claim)

    async def epoch(self, root: str) -> int:
        return self._deployment.owner(root).shard.served.epoch(root)

    async def close(self) -> None:
        """See Peers."""


class One:
    """A shard, whose beats a test makes one by one. ``faults`` are those of its way to the members."""

    def __init__(
        self,
        deployment: Deployment,
        address: str,
        *,
        faults: FaultPlan | None = None,
        settings: ShardSettings | None = None,
    ) -> None:
        self.deployment = deployment
        self.address = address
        self.ended = False
        self.directory = MemoryDirectory(deployment.members, faults=faults)
        self.cluster = Cluster(
            self.directory,
            Member(f"id-{next(ids)}", address),
            lifelines=Lines(lambda member: member.address in deployment.looks_dead),
            peers=Asks(deployment),  # type: ignore[arg-type]  # the same questions, without a network
            monotonic=deployment.clock,
            dead_after=DEAD_AFTER,
        )
        self.faults = Faults()
        """The faults of the shard's way to the journal."""
        self.journal = deployment.journal(deployment.disk, shared=True, faults=self.faults)
        self.shard = Shard(
            self.journal, clock=deployment.clock.micros, observer=Observer(), placement=self.cluster, settings=settings
        )

    async def start(self) -> None:
        await self.shard.start()
        self.rounds = asyncio.create_task(self.shard.run())
        await self.cluster.join(self.shard)

    async def beat(self) -> None:
        await self.hear()
        if await self.cluster.confirm():
            self.cluster.unserved.take_over(self.shard)
            if self.cluster.unserved.tasks:
                await asyncio.wait(self.cluster.unserved.tasks)
        self.cluster.contact.judge()

    async def hear(self) -> None:
        await self.cluster.beat()

    async def stop(self) -> None:
        self.ended = True
        self.rounds.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.rounds

    async def end(self) -> None:
        self.shard.stop()
        await self.rounds
        self.ended = True
        await self.shard.close()

    async def snapshot(self, name: str) -> None:
        its = self.shard.held.of(name)
        await self.shard.held.logs.snapshot(its.log, partial(recovery.pieces, its.computation))
        await self.shard.held.logs.settle()

    async def claim(self, name: str) -> Grant:
        return await self.shard.owners.claim(name, ClaimRequest([b"", b""], request_id=next(ids).to_bytes(16)))

    async def report(self, name: str, grant: Grant, hour: int, fold: Fold = NO_FOLD) -> list[tuple[str, Refused]]:
        report = GroupReport(grant.sequencer, np.array([hour * HOUR], dtype=np.int64), fold=fold)
        return await self.shard.owners.report([(name, report)], sender=b"s" * 16, number=(1, next(numbers)))

    def low(self, name: str) -> int:
        return self.shown(name)[1]

    def shown(self, name: str) -> tuple[int, int]:
        """The incarnation and the low watermark that are published, in hours or MIN."""
        view = self.shard.served.view(name)
        assert view is not None
        return view.incarnation, view.low // HOUR if view.low != MIN else MIN


async def two(deployment: Deployment) -> tuple[One, One]:
    """Two shards that share twelve computations, each claimed and at 12 hours."""
    first = await deployment.start("one:1")
    for name in NAMES:
        await first.shard.graph.register(Spec(name))
    second = await deployment.start("other:1")
    await deployment.settle(first, second)
    return first, second


@contextlib.asynccontextmanager
async def reached(member: One) -> AsyncIterator[str]:
    services = Services(member.shard, Observer(), member.cluster)
    readers = WatermarkServicer(services, Streams())
    async with served(
        partial(cluster_pb2_grpc.add_ClusterServiceServicer_to_server, ClusterServicer(services)),
        partial(watermarks_pb2_grpc.add_WatermarkServiceServicer_to_server, readers),
    ) as address:
        yield address


def held(member: One) -> set[str]:
    return set(member.shard.served.names())


async def turns(count: int = 100) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
