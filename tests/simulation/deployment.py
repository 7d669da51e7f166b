"""The authority of a world: one process over a disk of its own, or several shards over one store across the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from lowwater_authority.authority import Authority
from lowwater_authority.cluster.cluster import Cluster, Replaced
from lowwater_authority.cluster.membership import Member
from lowwater_authority.cluster.pace import DEAD_AFTER
from lowwater_authority.cluster.peers import Peers
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.journal import GRAPH, JournalCorrupt, JournalFailed, JournalUnknown, Ownership
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.lines import Lines
from tests.kit.memory_directory import MemoryDirectory, MemoryMembers
from tests.kit.memory_journal import MemoryJournal
from tests.simulation.kernel import RemoteFaults, RemoteStore, SimFaults
from tests.simulation.kernel.process import START_MICROS
from tests.simulation.ledger import Ledger

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.kernel import Process, Simulation
    from tests.simulation.oracle import Oracle
    from tests.simulation.programs import Place

BEAT_SECONDS: Final = 0.5
"""After which a shard gives a beat up, on the way there and on the way back."""

ACCUSED_SECONDS: Final = 5
ACCUSED_SHARE: Final = 0.1
"""For how long, and in which share of such times, a shard that lives looks dead to the others."""

GRACE_SECONDS: Final = 1.0


class Reached(Observer):
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.served = 0

    def computations(self, count: int) -> None:
        self.served = count

    def reported(self, ranges: int, refused: dict[str, int]) -> None:
        del ranges
        for reason in refused:
            self._sim.reach(f"report refused: {reason}")

    def refused(self, method: str, reason: str) -> None:
        self._sim.reach(f"refused: {method} {reason}")


class _Notifying(FaultPlan):
    """Reports each operation at the moment when it begins, is written, is durable, and ends."""

    notify: Callable[[str, Operation], None]
    process: Process

    async def before(self, operation: Operation) -> Outcome:
        self.notify("begun", operation)
        outcome = await super().before(operation)
        if outcome is Outcome.FAILED:
            await self._end(operation)
        return outcome

    async def after(self, operation: Operation) -> None:
        self.notify("written", operation)
        try:
            await super().after(operation)
            self.notify("durable", operation)
        except JournalUnknown:
            await self._end(operation)
            raise
        except BaseException:
            self.notify("ended", operation)
            raise
        self.notify("ended", operation)

    async def _end(self, operation: Operation) -> None:
        """Report that a write has ended in vain. A process that dies by that does nothing more: else it would fail callers who are dead with it."""
        self.notify("ended", operation)
        if not self.process.alive:
            await asyncio.get_running_loop().create_future()


class _Local(_Notifying, SimFaults):
    """A disk of the process's own."""


class _Remote(_Notifying, RemoteFaults):
    """A store across the network."""


@dataclass
class Seat:
    name: str
    process: Process
    port: int
    wanted: bool = True
    away: bool = False
    authority: Authority | None = None
    cluster: Cluster | None = None
    observer: Reached | None = None
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    dies_behind: int = 0
    writing: int = 0
    stopping: set[str] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def serving(self) -> bool:
        return self.process.alive and not self.process.paused and self.authority is not None


class Deployment:
    """All processes of the authority, and what they keep their state in."""

    def __init__(
        self,
        sim: Simulation,
        seats: int,
        oracle: Oracle,
        ledger: Ledger,
        *,
        weak: bool,
        port: int,
        settings: ShardSettings,
    ) -> None:
        self.sharded = seats > 1
        self._settings = settings
        self.sim = sim
        self.ledger = ledger
        self.store = RemoteStore()
        self.members = MemoryMembers(lambda: START_MICROS + round(sim.now * 1e6), dead_after=int(DEAD_AFTER * 1e6))
        names = [f"shard-{number}" for number in range(1, seats + 1)] if self.sharded else ["authority"]
        self.seats = [Seat(name, sim.process(name), port) for name in names]
        self.zombies: list[Process] = []
        self.unheard: list[Process] = []
        """The zombies that had not joined by then: when they do, nobody can tell that they were started first."""
        self._members: dict[str, Process] = {}
        self._oracle = oracle
        self._weak = weak

    @property
    def addresses(self) -> str:
        return ",".join(seat.address for seat in self.seats)

    def start(self, place: Place, seat: Seat) -> None:
        seat.process = process = seat.process.restarted()
        seat.stop_requested, seat.authority, seat.cluster, seat.writing = asyncio.Event(), None, None, 0
        seat.dies_behind = 0
        process.start(self._serve, place, seat, process)

    async def _serve(self, place: Place, seat: Seat, process: Process) -> None:
        random, stop_requested = place.random(process), seat.stop_requested
        faults = self._faults(seat, process)
        clock = self._clock
        journal = MemoryJournal(
            self.ledger, shared=self.sharded, faults=faults, randbits=random.getrandbits, clock=clock
        )
        cluster = self._cluster(place, seat, process, random) if self.sharded else None
        observer = seat.observer = Reached(self.sim)
        authority = Authority(journal, clock=process.clock, observer=observer, cluster=cluster, settings=self._settings)
        self._oracle.started(process, authority)
        await authority.recover()
        server = self.sim.network.server(process, seat.address)
        authority.add_to(server)
        await server.start()
        seat.authority, seat.cluster = authority, cluster
        rounds = asyncio.create_task(authority.run())
        stop = asyncio.create_task(stop_requested.wait())
        await asyncio.wait([rounds, stop], return_when=asyncio.FIRST_COMPLETED)
        if not rounds.done():
            await authority.hand_over()
        authority.leave()
        await server.stop(GRACE_SECONDS)
        stop.cancel()
        await rounds
        await authority.close()

    def _clock(self) -> float:
        return self.sim.now

    def _faults(self, seat: Seat, process: Process) -> SimFaults:
        faults = (
            _Remote(self.sim, seat.name, self.store, weak=self._weak, replicated=True)
            if self.sharded
            else _Local(self.sim, "store", weak=self._weak, weather=self.store.weather)
        )
        shard, oracle = str(process), self._oracle

        def notify(event: str, operation: Operation) -> None:
            if event == "begun":
                seat.writing += 1
            elif event == "written":
                oracle.wrote(shard, operation)
            elif event == "durable":
                oracle.durable(shard, operation)
            else:
                seat.writing -= 1
                if seat.dies_behind and seat.process is process:
                    seat.dies_behind -= 1
                    if not seat.dies_behind and process.alive:
                        self.sim.reach("a shard died between two writes")
                        process.crash()

        faults.notify, faults.process = notify, process
        return faults

    def _cluster(self, place: Place, seat: Seat, process: Process, random: Random) -> Cluster:
        beats = RemoteFaults(self.sim, seat.name, self.store, patience=BEAT_SECONDS)
        me = Member(f"{random.getrandbits(64):016x}", seat.address)
        self._members[me.id] = process
        return Cluster(
            MemoryDirectory(self.members, faults=beats),
            me,
            peers=Peers(lambda: place.client(process, seat.address)),
            lifelines=Lines(self._looks_gone),
            monotonic=self._clock,
        )

    def _looks_gone(self, member: Member) -> bool:
        """Return True if the process of a member has died; one that is frozen has not. Now and then also one that lives looks so."""
        process = self._members.get(member.id)
        if process is None or not process.alive:
            return True
        term = f"{member.id} {self.sim.now // ACCUSED_SECONDS}".encode()
        if blake2b(term, digest_size=1).digest()[0] < ACCUSED_SHARE * 256:
            self.sim.reach("a shard that lives looked dead")
            return True
        return False

    def excused(self, seat: Seat | None, process: Process, failure: BaseException) -> str | None:
        # Else the one that was started last at its address is never to end for another.
        replaced = seat is None or any(older.name == process.name and older.alive for older in self.unheard)
        if replaced and isinstance(failure, Replaced):
            return "a shard was replaced at its address"
        if (seat is None or str(process) in seat.stopping) and isinstance(failure, JournalFailed | JournalUnknown):
            return "an append of unknown outcome was given up"
        starting = seat is not None and seat.process is process and (seat.authority is None or not self.joined(seat))
        if starting and isinstance(failure, JournalFailed | JournalUnknown):
            return "a start without the store"
        if starting and isinstance(failure, JournalCorrupt) and failure.log == GRAPH and GRAPH in self._oracle.damaged:
            return "a start over a damaged graph"
        return None

    @staticmethod
    def joined(seat: Seat) -> bool:
        return seat.cluster is None or seat.cluster.view.member(seat.cluster.me.id) is not None

    def misplaced(self, names: list[str]) -> dict[str, str]:
        wrong: dict[str, str] = {}
        for name in names if self.sharded else []:
            serving = [
                seat for seat in self.seats if seat.serving and seat.authority and name in seat.authority.shard.served
            ]
            owner, target = self.ledger.owners.get(name, Ownership()), self.members.view.shard_of(name)
            places = {seat.address for seat in serving}
            if not (target and places == {owner.address} == {target.address}):
                wrong[name] = f"served at {sorted(places)}, owned by {owner.address}, meant for {target}"
        return wrong
