"""One run: two regions are started, one of them is killed or moved from, and everything is waited for until all clicks are complete for all."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import lowwater
from examples.regions.answer import MOVE, WRITE_OFF, Run, Seen
from examples.regions.clients import ACKNOWLEDGED, SENDING, Clients, Strike, bursts, made
from examples.regions.mirror import next_offset
from examples.regions.processes import LOWWATER, SERVING, Part, Region, together
from examples.regions.setup import CLICKS, HOURLY, MIRROR, REFERENCE, REGIONS, WINDOWS, Setup
from examples.regions.sink import TABLE, Fenced, Sink
from lowwater import errors
from lowwater._pb.lowwater.v1 import regions_pb2 as pb
from lowwater.regions import Adoption, Token
from lowwater.watermark import MAX
from lowwater_authority.regions.references import decode
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.regions import Operator

PATIENCE: Final = 240.0
"""Seconds after which a step gives up."""
AHEAD: Final = 75
"""Clicks that the clients are ahead of the sink at most: so a region is killed in the middle of its work."""
EVERY: Final = "200ms"
SUSPECT_AFTER: Final = "2s"
MOST_BEHIND: Final = 60
"""Looks by which the mirror of A in B is late at most, of which it takes some twenty a second."""

GLOBAL: Final = f"global/{HOURLY}"

CONFIG: Final = f"""\
[[reference]]
computation = "{HOURLY}"
inputs = ["{CLICKS}"]
regions = ["A", "B"]
home = "A"
policy = "replicated"
replicated = "{MIRROR}"
[[reference.sinks]]
name = "{TABLE}"
fences = true
"""


class Recorder:
    """Readers in both regions, on threads of their own. They write down every watermark that they are shown."""

    def __init__(self, setup: Setup, sink: Sink) -> None:
        self.seen: list[Seen] = []
        self._sink = sink
        self._clients = {name: lowwater.connect(place.authority) for name, place in setup.regions.items()}
        self._threads = [threading.Thread(target=self._follow, args=(name,), daemon=True) for name in setup.regions]
        for thread in self._threads:
            thread.start()

    def _follow(self, region: str) -> None:
        for view in self._clients[region].watch(GLOBAL, HOURLY, WINDOWS, MIRROR, CLICKS):
            until = self._sink.until if view.computation == GLOBAL else MAX
            self.seen.append(Seen(time.time(), region, view.computation, view.incarnation, view.low.micros, until))

    def low(self, region: str) -> int:
        """What a reader was shown last of what is published for all."""
        shown = [each.low for each in list(self.seen) if (each.region, each.name) == (region, GLOBAL)]
        return shown[-1] if shown else -1

    def close(self) -> None:
        """Stop reading."""
        for client in self._clients.values():
            client.close()
        for thread in self._threads:
            thread.join()


@dataclass(slots=True)
class World:
    """Everything that runs."""

    regions: dict[str, Region]
    sink: Sink
    operator: Operator
    recorder: Recorder
    clients: Clients
    run: Run

    @property
    def reference(self) -> pb.ReferenceView:
        """The global record."""
        return self.operator.reference(REFERENCE)

    def mark(self, step: str) -> None:
        """Note that a step was done."""
        self.run.times[step] = time.time()

    def until(self, look: Callable[[], object], what: str) -> None:
        """Wait. Raises what has ended a part, or the clients."""
        eventually(look, what, seconds=PATIENCE, check=self._check, seen=lambda: self.reference)

    def _check(self) -> None:
        if self.clients.failure is not None:
            raise self.clients.failure
        for region in self.regions.values():
            region.check()


def run(out: Path, how: str, seed: int, *, count: int = 300, hours: int = 9) -> Run:
    """Kill region A, or move from it, at a random point of the work, and go on to the end. Raises TooLate when it does not go on."""
    chance = Random(seed)
    found = Run(how, seed, made(chance, count, hours))
    plan = list(bursts(found.clicks))
    burst = chance.randrange(len(plan) // 6, len(plan) * 3 // 4)
    phase = chance.choice((SENDING, ACKNOWLEDGED))
    behind = chance.randrange(MOST_BEHIND + 1)
    struck = threading.Event()
    with _running(out, found, behind) as world:

        def strike() -> None:
            if how == MOVE:
                world.operator.decide(pb.DECISION_MOVE, "B", REFERENCE)
            else:
                world.regions["A"].kill()
                world.clients.lost.add("A")
            world.mark("struck")
            struck.set()

        world.clients.strikes = [Strike(burst, phase, strike)]
        clients = threading.Thread(target=world.clients.run)
        clients.start()
        try:
            world.until(struck.is_set, f"burst {burst} is {phase}")
            (_moved if how == MOVE else _lost)(world)
            world.until(lambda: all(world.recorder.low(each) == MAX for each in REGIONS), "all is complete for all")
            clients.join()
        finally:
            world.clients.stop()
            clients.join()
        found.written_off = world.reference.written_off
        found.accepted, found.hours, found.commits = world.clients.accepted, world.sink.hours(), world.sink.commits()
    found.seen = world.recorder.seen
    above = [each.at for each in found.seen if (each.region, each.name) == ("B", GLOBAL) and each.low > found.hold]
    if above:
        found.times["published"] = min(above)
    return found


@contextmanager
def _running(out: Path, found: Run, behind: int) -> Iterator[World]:
    """Start everything, and kill it at the end."""
    with ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        out.mkdir(parents=True, exist_ok=True)
        command = (LOWWATER, "global", "--data", str(out / "global"), "--listen", address, "--http", "off")
        center = Part(out / "global.log", (*command, "--suspect-after", SUSPECT_AFTER), SERVING)
        stack.callback(center.kill)
        center.begin()
        told = out / "setup.json"
        regions = {name: Region(name, out / name, address, told, CONFIG, EVERY) for name in REGIONS}
        setup = Setup({name: each.place for name, each in regions.items()}, out / "sink.sqlite", behind)
        setup.write(told)
        sink = Sink(setup.sink)
        for region in regions.values():
            stack.enter_context(region)
        center.wait()
        together([each.start for each in regions.values()])
        for region in regions.values():
            region.wait()
        operator = Operator(address)
        stack.callback(operator.close)
        recorder = Recorder(setup, sink)
        stack.callback(recorder.close)
        times = [click.at for click in found.clicks]

        def ahead() -> bool:
            return clients.sent - bisect_left(times, sink.until) > AHEAD

        clients = Clients(setup, found.clicks, ahead)
        world = World(regions, sink, operator, recorder, clients, found)
        world.until(sink.raised, "A has raised its number")
        yield world


def _lost(world: World) -> None:
    """B takes over; what only A had is given up, or A comes back with it."""
    run = world.run
    _adopt(world)
    [hold] = decode(json.loads(world.reference.record)).holds
    run.hold, run.cut = hold.at, next((each.offset for each in hold.positions), 0)
    world.until(lambda: 2 in world.sink.raised(), "B has raised its number")
    run.times["raised"] = world.sink.raised()[2]
    _try_old_number(world)
    world.until(lambda: world.sink.commits()[-1].number == 2, "B has committed")
    run.times["committed"] = next(each.at for each in world.sink.commits() if each.number == 2)
    if run.how == WRITE_OFF:
        world.mark("decided")
        world.operator.decide(pb.DECISION_WRITE_OFF, reference=REFERENCE)
        _above(world)
        _return(world)
    else:
        _return(world)
        a, b = world.regions["A"], world.regions["B"]
        ended = a.kafka.end(CLICKS)
        world.until(lambda: next_offset(b.place.broker) >= ended, "all that A has accepted is mirrored")
        world.mark("decided")
        world.operator.decide(pb.DECISION_ARRIVED, reference=REFERENCE)
        _above(world)


def _adopt(world: World) -> None:
    def adopted() -> bool:
        try:
            world.operator.decide(pb.DECISION_ADOPT, "B", REFERENCE)
        except errors.RegionRefused:
            return False
        return True

    world.until(adopted, "A is suspect")
    world.mark("adopted")


def _above(world: World) -> None:
    """Wait for the first hour of B that no copy of A alone could have closed."""

    def closed() -> float:
        above = [each.at for each in world.sink.commits() if each.number == 2 and each.until > world.run.hold]
        return min(above, default=0.0)

    world.until(closed, "B has closed an hour above R")
    world.run.times["above"] = closed()


def _return(world: World) -> None:
    """A comes back. It gets no number, its old one counts nowhere, and its readers see what everybody sees."""
    a, run = world.regions["A"], world.run
    world.mark("returned")
    a.start_again()
    token = Token(REFERENCE, a.place.agent)
    reasons: list[str] = []

    def refused() -> bool:
        try:
            token.read()
        except errors.LowwaterError as error:
            if error.reason not in reasons:
                reasons.append(error.reason)
            return isinstance(error, errors.StaleAdoption)
        run.wrong.append("the region that returned was given a number")
        return True

    world.until(refused, "A is told that it owns nothing")
    run.tries += 1
    try:
        token.committed(Adoption(REFERENCE, 1, stop=False, stale_seconds=0.0, batch=-1, positions=()), 99, "old", [])
        run.wrong.append("the agent of the region that returned took a commit by the old number")
    except errors.StaleAdoption:
        run.tries += 1
    _try_old_number(world)


def _try_old_number(world: World) -> None:
    """Commit as a pipeline of A does that was paused before its commit."""
    last = world.sink.last()
    assert last is not None
    try:
        world.sink.commit(1, 1_000_000, last.until, [], last.positions)
        world.run.wrong.append("the sink took a commit by the old number")
    except Fenced:
        world.run.tries += 1


def _moved(world: World) -> None:
    """The owner stops, the state arrives, the other one claims."""
    run = world.run
    world.until(lambda: world.reference.owner == "B", "B owns the reference")
    world.mark("adopted")
    world.until(lambda: 2 in world.sink.raised(), "B has raised its number")
    run.times["raised"] = world.sink.raised()[2]
    world.until(lambda: world.sink.commits()[-1].number == 2, "B has committed")
    run.times["committed"] = next(each.at for each in world.sink.commits() if each.number == 2)
    _try_old_number(world)
    if world.reference.holds_for:
        run.wrong.append("something holds behind a planned move")
