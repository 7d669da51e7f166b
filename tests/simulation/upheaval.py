"""The upheavals of the authority: of its only process, or of its shards, their membership and their store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lowwater import errors
from tests.simulation import chaos
from tests.simulation.chaos import Move
from tests.simulation.deployment import Seat

if TYPE_CHECKING:
    from lowwater.aio import Client
    from tests.simulation.kernel import Process
    from tests.simulation.ledger import Ledger
    from tests.simulation.world import World

PATIENCE_SECONDS = 30.0
"""After which what supervises processes loses patience with one that was asked to stop."""

BACKUP_SECONDS = 1.0

BACKUPS = 30

ZOMBIE_SECONDS = 5.0
"""The time that a process lives on that woke up without an address: nobody reaches it there, should its successor leave."""


class Upheaval:
    def __init__(self, world: World) -> None:
        self._world = world
        self._sim = world.sim
        self._deployment = world.deployment
        self._backups: list[Ledger] = []
        self._outages = 0

    def do(self, move: Move) -> None:
        facts = move.facts
        seat = self._pick(facts.get("pick", 0.0))
        match move.kind:
            case "crash the authority" | "crash a shard":
                self._world.later(self._crash, move.kind, seat, facts["down"], facts.get("keep"))
            case "stop the authority" | "restart a shard":
                self._world.later(self._stop, move.kind, seat, facts["down"])
            case "pause the authority" | "freeze a shard":
                self._world.later(self._world.havoc.pause, move.kind, seat.process, facts["seconds"])
            case "turn the authority's clock" | "turn a shard's clock":
                self._acted(move.kind)
                seat.process.skew += facts["by"]
            case "replace a frozen shard":
                self._world.later(self._replace, move.kind, seat, facts["seconds"])
            case "scale in":
                if sum(other.wanted for other in self._deployment.seats) > 1 and seat.wanted:
                    seat.wanted = False
                    self._world.later(self._stop, move.kind, seat, 0.0)
            case "scale out":
                for idle in [idle for idle in self._deployment.seats if not idle.wanted][:1]:
                    self._acted(move.kind)
                    idle.wanted = True
            case "cut a shard off from clients":
                self._world.later(self._world.havoc.cut, move.kind, seat.process, facts["seconds"])
            case chaos.DIE_BEHIND:
                if seat.serving:
                    self._acted(move.kind)
                    seat.dies_behind = facts["writes"]
            case "drain" | "end the drains" | "pin" | "unpin":
                self._operate(move.kind, seat, facts)
            case _:
                self._to_the_store(move, seat)

    def _to_the_store(self, move: Move, seat: Seat) -> None:
        facts = move.facts
        match move.kind:
            case "cut a shard off from the store":
                self._world.later(self._cut_off, move.kind, seat, facts["seconds"])
            case "take the store away":
                self._world.later(self._away, move.kind, facts["seconds"])
            case chaos.LAG:
                self._world.later(self._lag, move)
            case "fail the store over":
                self._fail_over(move.kind, self._deployment.ledger.unsynced)
                self._deployment.members.lose(facts["views"])
            case "make the store forget":
                if self._world.weak:
                    self._crash_with(facts, seat)
                    self._fail_over(move.kind, facts["writes"])
            case "put a backup back":
                if self._world.weak and self._backups:
                    self._crash_with(facts, seat)
                    self._fail_over(move.kind, 0)
                    age = min(int(facts["old"] / BACKUP_SECONDS) + 1, len(self._backups))
                    self._deployment.ledger.put_back(self._backups[-age])
            case "lose views":
                self._acted(move.kind)
                self._deployment.members.lose(facts["views"])
            case kind:
                raise ValueError(kind)

    def _acted(self, kind: str) -> None:
        self._sim.reach(f"move: {kind}")

    def _pick(self, pick: float) -> Seat:
        return self._deployment.seats[int(pick * len(self._deployment.seats))]

    async def _crash(self, kind: str, seat: Seat, down: float, keep: int | None) -> None:
        if seat.away or not seat.process.alive:
            return
        self._acted(kind)
        seat.away = True
        if seat.writing:
            self._sim.reach("a crash in the middle of a write")
        seat.process.crash()
        if keep is not None:
            self._lose_the_cache(keep)
        await asyncio.sleep(down)
        seat.away = False

    def crash_owner(self, name: str) -> None:
        sharded = self._deployment.sharded
        for seat in self._deployment.seats:
            if seat.serving and seat.authority is not None and name in seat.authority.shard.served:
                kind, keep = ("crash a shard", None) if sharded else ("crash the authority", 0)
                self._world.later(self._crash, kind, seat, 0.2, keep)

    def crash_serving(self, pick: float) -> None:
        serving = [seat for seat in self._deployment.seats if seat.serving]
        kind, keep = ("crash a shard", None) if self._deployment.sharded else ("crash the authority", 0)
        if serving:
            self._world.later(self._crash, kind, serving[int(pick * len(serving))], 0.2, keep)

    def _lose_the_cache(self, keep: int) -> None:
        unsynced = self._deployment.ledger.unsynced
        if unsynced:
            lost = unsynced > keep
            self._sim.reach(
                "a crash that lost what was cached" if lost else "a crash that kept some of what was cached"
            )
        self._deployment.ledger.crash(keep)

    async def _stop(self, kind: str, seat: Seat, down: float) -> None:
        leaving = seat.process
        if seat.away or not leaving.alive or seat.authority is None:
            return
        self._acted(kind)
        seat.away = True
        seat.stopping.add(str(leaving))
        seat.stop_requested.set()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await leaving.ended.wait()
        except TimeoutError:
            leaving.crash()
            if not self._deployment.sharded:
                self._deployment.ledger.crash()
        await asyncio.sleep(down)
        seat.away = False

    async def _replace(self, kind: str, seat: Seat, seconds: float) -> None:
        zombie = seat.process
        if seat.away or not zombie.alive or zombie.paused or seat.authority is None:
            return
        self._acted(kind)
        self._deployment.zombies.append(zombie)
        if not self._deployment.joined(seat):
            self._deployment.unheard.append(zombie)
        zombie.pause()
        self._sim.network.banish(zombie)
        self._deployment.start(self._world.place, seat)
        await asyncio.sleep(seconds)
        zombie.resume()
        await asyncio.sleep(ZOMBIE_SECONDS)
        zombie.crash()

    async def keep_backups(self) -> None:
        while True:
            await asyncio.sleep(BACKUP_SECONDS)
            self._backups = [*self._backups[-BACKUPS + 1 :], self._deployment.ledger.backup()]

    def _fail_over(self, kind: str, writes: int) -> None:
        self._acted(kind)
        self._deployment.store.fail_overs += 1
        self._deployment.ledger.lose(writes)
        self._world.look_at_inputs()

    async def _lag(self, move: Move) -> None:
        """Hold the replica where it is while everybody goes on. Behind that it catches up, or takes over.

        The machine of the master may have shards on it, which die with it; others die behind one of their next writes.
        """
        facts, store = move.facts, self._deployment.store
        self._acted(move.kind)
        store.lagging += 1
        await asyncio.sleep(facts["seconds"])
        if facts["fails"]:
            ledger = self._deployment.ledger
            unknown, owners = ledger.unsynced, dict(ledger.owners)
            if unknown:
                self._sim.reach("a fail-over took away what was executed and not acknowledged")
            self._fail_over("fail the store over", unknown - int(facts["kept"] * (unknown + 1)))
            self._world.oracle.untaken |= {log for log, owner in owners.items() if ledger.owners.get(log) != owner}
            self._deployment.members.lose(facts["views"])
            for seat, (dies, writes) in zip(self._deployment.seats, facts["with"], strict=False):
                if dies:
                    self._world.later(self._crash, "crash a shard", seat, facts["down"], None)
                elif writes and seat.serving:
                    seat.dies_behind = writes
        store.lagging -= 1

    def _crash_with(self, facts: dict[str, Any], seat: Seat) -> None:
        if facts["crash"] and not seat.away and seat.process.alive:
            seat.process.crash()

    async def _cut_off(self, kind: str, seat: Seat, seconds: float) -> None:
        cut = self._deployment.store.cut
        if seat.name in cut:
            return
        self._acted(kind)
        cut.add(seat.name)
        await asyncio.sleep(seconds)
        cut.discard(seat.name)

    async def _away(self, kind: str, seconds: float) -> None:
        self._acted(kind)
        weather = self._deployment.store.weather
        self._outages += 1
        weather.away = True
        await asyncio.sleep(seconds)
        self._outages -= 1
        weather.away = self._outages > 0

    def _operate(self, kind: str, seat: Seat, facts: dict[str, Any]) -> None:
        self._acted(kind)
        names = list(self._world.pipeline.nodes)
        name = names[int(facts["pick"] * len(names))]
        place = self._pick(facts.get("shard", 0.0))

        async def run(lw: Client) -> None:
            match kind:
                case "drain":
                    with suppress(errors.InvalidArgument):  # it is not there just now
                        await lw.drain(seat.address)
                case "end the drains":
                    for shard in (await lw.shards()).shards:
                        if shard.draining:
                            with suppress(errors.InvalidArgument):
                                await lw.drain(shard.address, cancel=True)
                case "pin":
                    with suppress(errors.InvalidArgument):
                        await lw.pin(name, place.address)
                case _:
                    for pinned in (await lw.shards()).pins:
                        await lw.pin(pinned, None)

        self._world.havoc.operate(run)

    def end(self) -> None:
        for zombie in self._deployment.zombies:
            zombie.crash()
        self._deployment.store.cut.clear()
        self._deployment.store.weather.away = False
        for seat in self._deployment.seats:
            seat.dies_behind = 0

    def everybody(self) -> list[Process]:
        return [*(seat.process for seat in self._deployment.seats), *self._deployment.zombies]
