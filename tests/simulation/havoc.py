"""The moves of chaos, carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import fields
from random import Random
from typing import TYPE_CHECKING, Any

from lowwater import errors
from lowwater_authority.core.computation import Computation
from lowwater_authority.journal import GRAPH
from tests.kit.planting import Part
from tests.simulation import chaos, visits
from tests.simulation.chaos import Move
from tests.simulation.kernel import Process, StoreWeather, Weather
from tests.simulation.programs import GROWING
from tests.simulation.timers import TIMED
from tests.simulation.upheaval import Upheaval

if TYPE_CHECKING:
    from lowwater.aio import Client
    from tests.simulation.deployment import Seat
    from tests.simulation.world import Slot, World

UNREAD = GROWING

PATIENCE_SECONDS = 10

HEALED_WITHIN = 15
"""Seconds after which a damaged graph is written again, while somebody waits for it and somebody well has it in memory."""

DROPS_IN_VAIN = 3
"""How often in peace an operator has to drop what is damaged and not served, until that counts as refused for ever."""

LATE = {
    "seconds": 4.0,
    "slow": 0.3,
    "slowness": 3.0,
    "lose_request": 0.0,
    "lose_response": 0.2,
    "repeat": 0.8,
    "break": 0.0,
}
"""The network's weather, for some seconds, that is to bring again what has happened since."""

LATE_RECORDS = 3


BATCHED = "hourly"

HALF_WAY = "a request fails half way"


class Havoc:
    def __init__(self, world: World) -> None:
        self.upheaval = Upheaval(world)
        self._world = world
        self._weathers: list[Weather] = []
        self._stores: list[StoreWeather] = []
        self._half_changes = 0
        """The number of next requests that are still to fail half way."""

    def end(self) -> None:
        self._weathers.clear()
        self._stores.clear()
        self._world.sim.network.weather = Weather()
        self._world.sim.network.late_senders.clear()
        self._change_store()
        self._half_changes = 0
        self.upheaval.end()

    def do(self, move: Move) -> None:
        facts = move.facts
        match move.kind:
            case chaos.LATE if facts.get("pick") is not None:
                self._world.later(self._late_sender, facts)
            case "bad network" | "hostile reports" | chaos.LATE:
                self._world.later(self._bad_network, move.kind, facts)
            case "bad store":
                self._world.later(self._bad_store, facts)
            case "cut":
                self._world.later(
                    self.cut, move.kind, self._pick(self._world.living(), facts["pick"]), facts["seconds"]
                )
            case "crash a worker" | "crash a reader":
                victim = self._pick(
                    self._world.workers() if move.kind == "crash a worker" else [p for p, _ in self._world.readers],
                    facts["pick"],
                )
                if victim is not None:
                    self._acted(move.kind)
                    victim.crash()
            case "pause a worker" | "pause a reader":
                chosen = self._world.workers() if move.kind == "pause a worker" else [p for p, _ in self._world.readers]
                self._world.later(self.pause, move.kind, self._pick(chosen, facts["pick"]), facts["seconds"])
            case "replace a paused worker":
                slot = self._world.slots[int(facts["pick"] * len(self._world.slots))]
                self._world.later(self.pause, move.kind, slot.process, facts["seconds"])
                self._replace(slot)
            case "replace a run":
                self._acted(move.kind)
                self._world.later(self._replace_run, facts["pick"])
            case "share out anew":
                self._acted(move.kind)
                nodes = list(self._world.pipeline.nodes.values())
                self._world.share_out(nodes[int(facts["pick"] * len(nodes))], Random(facts["cut"]))
            case "reset":
                names = [name for name in self._world.pipeline.nodes if name not in self._world.lasting]
                self._acted(move.kind)
                self.reset(names[int(facts["pick"] * len(names))])
            case "drop":
                names = list(self._world.pipeline.nodes)[-3:]  # the first of these is read
                self._acted(move.kind)
                self._drop(names[int(facts["pick"] * len(names))])
            case chaos.RETIRE:
                self._acted(move.kind)
                self._retire(facts["pick"], claimed=facts["claimed"])
                if facts["late"]:
                    self._world.later(self._bad_network, "bad network", LATE)
            case chaos.VISIT:
                self._acted(move.kind)
                self.visit(facts["pick"] if facts["crash"] else None)
            case chaos.HALF:
                self._acted(move.kind)
                self._half_changes += facts["requests"]
            case chaos.SPLIT:
                self._split(facts["pick"])
            case chaos.HOLD:
                self._world.later(self._hold, facts["pick"], facts["seconds"])
            case chaos.DAMAGE:
                if not self._world.weak:
                    self._damage(facts["pick"])
            case chaos.DAMAGE_GRAPH:
                if not self._world.weak:
                    self._damage_graph(facts["pick"])
            case "new inputs":
                if not self._world.inputs_changed:
                    self._acted(move.kind)
                    self.operate(self._new_inputs)
            case _:
                self.upheaval.do(move)

    def _acted(self, kind: str) -> None:
        self._world.sim.reach(f"move: {kind}")

    def _replace(self, slot: Slot) -> None:
        self._world.leaving.append(slot.process)
        slot.process = self._world.named(slot.name)
        self._world.start_worker(slot)

    async def _replace_run(self, pick: float) -> None:
        for _ in range(2 if pick < 0.5 else 1):
            for name in (BATCHED, TIMED):
                for slot in [slot for slot in self._world.slots if slot.name == name]:
                    self._replace(slot)
            await asyncio.sleep(6 * pick)

    @staticmethod
    def _pick(processes: Sequence[Process], pick: float) -> Process | None:
        return processes[int(pick * len(processes))] if processes else None

    async def pause(self, kind: str, process: Process | None, seconds: float) -> None:
        if process is None or not process.alive or process.paused:
            return
        self._acted(kind)
        process.pause()
        await asyncio.sleep(seconds)
        process.resume()

    async def cut(self, kind: str, process: Process | None, seconds: float) -> None:
        if process is None:
            return
        self._acted(kind)
        self._world.sim.network.cut(process)
        await asyncio.sleep(seconds)
        self._world.sim.network.heal(process)

    async def _late_sender(self, facts: dict[str, Any]) -> None:
        pick, network = facts["pick"], self._world.sim.network
        is_shard = self._world.deployment.sharded and 2 * pick < 1
        among = self.upheaval.everybody() if is_shard else self._world.living()
        chosen = among if is_shard and 4 * pick < 1 else [self._pick(among, 2 * pick % 1)]
        names = [process.name for process in chosen if process is not None]
        self._acted(chaos.LATE)
        longest = 0.0 if facts["brief"] else network.weather.late[1]
        network.weather.late = 0.5, max(facts["most"], longest)
        share: float = facts["sender"]
        network.late_senders.update(dict.fromkeys(names, share))
        await asyncio.sleep(facts["seconds"])
        for name in names:
            network.late_senders.pop(name, None)

    async def _bad_network(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "hostile reports":
            weather = Weather(
                p_report_lost=facts["lost"], p_report_doubled=facts["doubled"], p_report_swapped=facts["swapped"]
            )
        elif kind == chaos.LATE:
            weather = Weather(p_late=facts["late"], late=(0.5, facts["most"]))
        else:
            weather = Weather(
                p_slow=facts["slow"],
                slow=(0.05, facts["slowness"]),
                p_lose_request=facts["lose_request"],
                p_lose_response=facts["lose_response"],
                p_repeat_request=facts["repeat"],
                p_break=facts["break"],
            )
        self._acted(kind)
        self._weathers.append(weather)
        self._world.sim.network.weather = _worst(Weather(), self._weathers)
        await asyncio.sleep(facts["seconds"])
        if weather in self._weathers:
            self._weathers.remove(weather)
        self._world.sim.network.weather = _worst(Weather(), self._weathers)

    async def _bad_store(self, facts: dict[str, Any]) -> None:
        weather = StoreWeather(
            p_slow=facts["slow"],
            slow=(0.02, facts["slowness"]),
            p_failed=facts["failed"],
            p_lost=facts["lost"],
            p_written=facts["written"],
            hang=facts["hang"],
        )
        self._acted("bad store")
        self._stores.append(weather)
        self._change_store()
        await asyncio.sleep(facts["seconds"])
        if weather in self._stores:
            self._stores.remove(weather)
        self._change_store()

    def _change_store(self) -> None:
        weather = self._world.deployment.store.weather
        worst = _worst(StoreWeather(away=weather.away), self._stores)
        for field in fields(worst):
            setattr(weather, field.name, getattr(worst, field.name))

    # -- operators -------------------------------------------------------------------------------------------------

    def operate(self, run: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        process = self._world.named("operator")
        process.start(self._operator, process, run)
        self._world.leaving.append(process)

    async def _operator(self, process: Process, run: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async with self._world.place.client(process) as lw:
            await run(lw)

    def reset(self, name: str) -> None:
        async def run(lw: Client) -> None:
            await lw.reset(name)

        self.operate(run)

    def visit(self, crash: float | None = None) -> Process:
        """Let a guest come. ``crash``: which process of the authority dies when the guest's computation is dropped; None: none."""
        process = self._world.named("guest")
        process.start(visits.visit, self._world.place, process)
        self._world.leaving.append(process)
        if crash is not None:
            self._world.later(self._crash_behind, process, crash)
        return process

    async def _crash_behind(self, guest: Process, pick: float) -> None:
        await guest.ended.wait()
        if not self._world.place.calm:
            self.upheaval.crash_serving(pick)

    def half_changes(self) -> Iterable[tuple[object, str, Part]]:
        """Return what stands for requests that change a computation: some fail when they have changed it."""

        def failing(request: Part) -> Part:
            def fails(*arguments: Any, **keywords: Any) -> Any:
                answer = request(*arguments, **keywords)
                if self._half_changes:
                    self._half_changes -= 1
                    raise RuntimeError(HALF_WAY)
                return answer

            return fails

        return [(Computation, name, failing(getattr(Computation, name))) for name in ("claim", "report", "commit")]

    def _damage(self, pick: float) -> None:
        """Flip a bit of a record at rest, of a late one, which nothing has made needless yet, but not of the newest, which may be on its way.

        Half of the time whoever has it in memory dies at that moment. Somebody gives up what nobody can read.
        """
        stored = self._world.deployment.ledger.logs.get(UNREAD)
        places = sorted(stored.records)[:-1][-LATE_RECORDS:] if stored is not None else []
        if stored is None or not places:
            return
        self._acted(chaos.DAMAGE)
        place = places[int(pick * len(places))]
        frame = stored.records[place]
        stored.records[place] = frame[:-1] + bytes([frame[-1] ^ 1])
        if UNREAD not in self._world.oracle.damaged:
            self._world.oracle.damaged.add(UNREAD)
            self._world.later(self._give_up)
        if 2 * pick * len(places) % 2 < 1:
            self.upheaval.crash_owner(UNREAD)

    def _damage_graph(self, pick: float) -> None:
        """Flip a bit of a record of the graph at rest, which some living shard has in memory, and kill one of them, perhaps that one."""
        ledger, seats = self._world.deployment.ledger, self._world.deployment.seats
        stored = ledger.logs.get(GRAPH)
        shards = [seat.authority.shard for seat in seats if seat.serving and seat.authority]
        known = max((shard.held.graph.covered for shard in shards), default=0)
        places = [place for place in sorted(stored.records) if place <= known] if stored is not None else []
        if stored is None or not places or len(shards) < 2:
            return
        self._acted(chaos.DAMAGE_GRAPH)
        place = places[int(pick * len(places))]
        whole = stored.records[place]
        stored.records[place] = damaged = whole[:-1] + bytes([whole[-1] ^ 1])
        self._world.oracle.damaged.add(GRAPH)
        self._world.later(self._restore_graph, place, whole, damaged)
        self.upheaval.crash_serving(pick)

    async def _restore_graph(self, place: int, whole: bytes, damaged: bytes) -> None:
        """An operator restores a copy when nobody who has read what is damaged has served for a while: then everybody waits for it."""
        silent = waited = 0
        while True:
            await asyncio.sleep(1.0)
            stored = self._world.deployment.ledger.logs.get(GRAPH)
            unread = stored is not None and stored.records.get(place) == damaged
            seats = [seat for seat in self._world.deployment.seats if seat.serving]
            covered = {seat.name: seat.authority.shard.held.graph.covered for seat in seats if seat.authority}
            known = any(each >= place for each in covered.values())
            silent = silent + 1 if unread and not known else 0
            well = [name for name, each in covered.items() if each >= place and self._reaches_the_store(name)]
            waiting = [seat.name for seat in self._world.deployment.seats if self._is_waiting(seat)]
            waited = waited + 1 if unread and well and waiting else 0
            if waited == HEALED_WITHIN:
                self._world.oracle.fail(
                    f"the graph is damaged at {place}, and {waiting} cannot start for {waited} s, though {well} have all of it in memory"
                )
            if stored is not None and silent == PATIENCE_SECONDS:
                self._world.sim.reach("a damaged graph was restored from a copy")
                stored.records[place] = whole
                silent = 0

    def _is_waiting(self, seat: Seat) -> bool:
        if not seat.wanted or seat.away or seat.process.paused or not self._reaches_the_store(seat.name):
            return False
        return not seat.serving or seat.authority is None or not seat.authority.shard.held.graph.covered

    def _reaches_the_store(self, name: str) -> bool:
        store = self._world.deployment.store
        return name not in store.cut and not store.weather.away and not self._stores

    async def _give_up(self) -> None:
        silent = in_vain = 0
        while True:
            await asyncio.sleep(1.0)
            shards = [seat.authority.shard for seat in self._world.deployment.seats if seat.serving and seat.authority]
            damaged = any(shard.takeover.is_damaged(UNREAD) for shard in shards)
            served = any(UNREAD in shard.served for shard in shards)
            silent = silent + 1 if damaged and not served else 0
            if silent == PATIENCE_SECONDS:
                in_vain += self._world.place.calm
                self._world.oracle.expect(
                    in_vain < DROPS_IN_VAIN, f"in peace {UNREAD} is not served, and was dropped by force in vain"
                )
                self._world.sim.reach("a computation whose log is damaged was given up")
                self._drop(UNREAD)
                silent = 0

    def _drop(self, name: str) -> None:
        async def run(lw: Client) -> None:
            try:
                await lw.drop(name, force=True)
            except (errors.StillRead, errors.UnknownComputation) as error:
                self._world.sim.reach(f"drop: {error.reason}")
            except errors.OwnedRanges as error:
                self._world.oracle.fail(f"a drop by force is refused: {error!r}")
            else:
                self._world.sim.reach("a computation was dropped")

        self.operate(run)

    def _retire(self, pick: float, *, claimed: bool) -> None:
        """Let an operator retire a slice of the computation that no other reads, or all of it.

        Its workers claim it again when they are refused. ``claimed``: new workers claim it within
        a tenth of a second.
        """
        node = self._world.pipeline.nodes[UNREAD]
        edges = (0, *node.cuts, len(node.cells))
        number = int(2 * pick * (len(edges) - 1))
        start, end = (edges[number], edges[number + 1]) if number < len(edges) - 1 else (0, len(node.cells))

        async def run(lw: Client) -> None:
            await lw.retire(UNREAD, node.edge(start), node.edge(end), force=True)
            if claimed:
                await asyncio.sleep(0.1 * pick)
                for slot in [slot for slot in self._world.slots if slot.name == UNREAD]:
                    self._replace(slot)

        self.operate(run)

    def _split(self, pick: float) -> None:
        may = [
            (node, cell, name)
            for node in self._world.pipeline.nodes.values()
            for cell in node.later
            for name, cells in node.slices.items()
            if cell in cells[1:]
        ]
        if not may:
            return
        self._acted(chaos.SPLIT)
        node, cell, name = may[int(pick * len(may))]

        async def run(lw: Client) -> None:
            try:
                await lw.split_slice(name, node.edge(cell))
            except (errors.Unavailable, errors.InvalidArgument, errors.UnknownComputation) as error:
                self._world.sim.reach(f"split: {error.reason}")  # another one is still taken over, or it is cut by now

        self.operate(run)

    async def _hold(self, pick: float, seconds: float) -> None:
        """Let one slice stand while the others go on, and then give its computation another input, below which these may be by then."""
        if self._world.inputs_changed:
            return
        slices = list(self._world.pipeline.nodes[GROWING].slices.values())
        cells = slices[int(pick * len(slices))]
        self._acted(chaos.HOLD)
        for slot in self._world.slots:
            if slot.name == GROWING and slot.share.cells.start in cells:
                self._world.later(self.pause, "pause a worker", slot.process, seconds)
        await asyncio.sleep(0.8 * seconds)
        if not self._world.inputs_changed:
            self.operate(self._new_inputs)

    async def _new_inputs(self, lw: Client) -> None:
        node = self._world.pipeline.nodes[GROWING]
        # What is read once is read for good: nobody could say when the last record was.
        inputs = ["hourly", "late"]
        book = self._world.deployment.ledger.book(GRAPH)
        try:
            await lw.set_inputs(GROWING, inputs)
        except errors.InputVersion as error:
            now = self._world.deployment.ledger.book(GRAPH)
            same = all(
                getattr(now, each).get(GROWING) == getattr(book, each).get(GROWING)
                for each in ("inputs", "incarnations")
            )
            self._world.oracle.expect(not same, f"nobody has changed the inputs of {GROWING}, and yet: {error!r}")
            raise
        if self._world.deployment.ledger.book(GRAPH).inputs.get(GROWING) != tuple(inputs):
            return  # it was dropped before this was heard of, and is registered by who knows nothing of it
        self._world.inputs_changed = True
        node.inputs = inputs
        self._world.pipeline.changed()
        self._world.oracle.excuse_slices(GROWING)
        self._world.oracle.look_at_outputs(GROWING)
        self._world.look_at_inputs()


def _worst(calm: Any, active: Sequence[Any]) -> Any:
    for each in active:
        for field in fields(each):
            setattr(calm, field.name, max(getattr(calm, field.name), getattr(each, field.name)))
    return calm
