"""One run: two regions start, take-overs happen, and the run ends when all clicks are complete."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import lowwater
from examples.regions.answer import MOVE, WRITE_OFF, Run, Seen, Take
from examples.regions.clients import ACKNOWLEDGED, SENDING, Clients, Strike, bursts, random_clicks
from examples.regions.mirror import next_offset
from examples.regions.processes import LOWWATER, SERVING, Part, Region, together
from examples.regions.setup import CLICKS, HOURLY, MIRROR, REFERENCE, REGIONS, WINDOWS, Setup
from examples.regions.sink import TABLE, Fenced, Sink
from lowwater import errors
from lowwater.regions import Adoption, Token
from lowwater.v1 import regions_pb2 as pb
from lowwater.watermark import MAX
from lowwater_regions.json_records import decode
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.regions import Operator

PATIENCE: Final = 240.0
"""Seconds after which a step gives up."""
AHEAD: Final = 120
"""Clicks that the clients are ahead of the sink at most: so a region is killed in the middle of its
work."""
EVERY: Final = "200ms"
SUSPECT_AFTER: Final = "2s"
MOST_BEHIND: Final = 40
"""Seconds by which the mirror in B is late at most: longer than an hour takes to be closed. So A
may have closed hours that are above R when it is lost."""
HOURS_AROUND: Final = 8
"""Hours of event time before the first take-over and after the last one, together."""
HOURS_EACH: Final = 5
"""Hours of event time from one take-over to the next."""
SPREAD: Final = 2
"""Hours within which each of them may come. The rest is needed behind it, for the sink is two hours
behind the clients when these wait for the next one."""
CLICKS_AN_HOUR: Final = 33

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
    """Readers in both regions, on threads of their own.

    They write down every watermark that they are shown.
    """

    def __init__(self, setup: Setup, sink: Sink) -> None:
        self.readings: list[Seen] = []
        self._sink = sink
        self._clients = {name: lowwater.connect(place.authority) for name, place in setup.regions.items()}
        self._threads = [threading.Thread(target=self._follow, args=(name,), daemon=True) for name in setup.regions]
        for thread in self._threads:
            thread.start()

    def _follow(self, region: str) -> None:
        for view in self._clients[region].watch(GLOBAL, HOURLY, WINDOWS, MIRROR, CLICKS):
            until = self._sink.until if view.computation == GLOBAL else MAX
            self.readings.append(Seen(time.time(), region, view.computation, view.incarnation, view.low.micros, until))

    def low(self, region: str) -> int:
        """Last global low watermark that a reader in the region has seen."""
        shown = [reading.low for reading in list(self.readings) if (reading.region, reading.name) == (region, GLOBAL)]
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

    def until(self, look: Callable[[], object], what: str) -> None:
        """Wait. Raises what has ended a part, or the clients."""
        eventually(look, what, seconds=PATIENCE, check=self._check, seen=lambda: self.reference)

    def _check(self) -> None:
        if self.clients.failure is not None:
            raise self.clients.failure
        for region in self.regions.values():
            region.check()


def run(out: Path, hows: Sequence[str], seed: int) -> Run:
    """Run the take-overs, each from the region that owns the reference, at random points.

    Only the last take-over may write rows off: its region has no part in this incarnation any more.
    Raises TooLate when a step takes too long.
    """
    assert WRITE_OFF not in hows[:-1], "a region whose rows are written off takes no part any more"
    chance = Random(seed)
    owners = [REGIONS[number % 2] for number in range(len(hows) + 1)]
    takes = [Take(how, owners[number], owners[number + 1], number + 2) for number, how in enumerate(hows)]
    hours = HOURS_AROUND + HOURS_EACH * len(takes)
    outcome = Run(seed, random_clicks(chance, hours * CLICKS_AN_HOUR, hours), takes)
    plan = list(bursts(outcome.clicks))
    first, spacing = len(plan) * HOURS_AROUND // 2 // hours, len(plan) * HOURS_EACH // hours
    spread = len(plan) * SPREAD // hours
    points = [first + number * spacing + chance.randrange(spread) for number in range(len(takes))]
    struck = [threading.Event() for _ in takes]
    with _running(out, outcome, behind={"B": chance.randrange(MOST_BEHIND + 1)}) as world:

        def strike(take: Take) -> None:
            take.times["struck"] = time.time()
            if take.how == MOVE:
                world.operator.decide(pb.DECISION_MOVE, take.to, REFERENCE)
            else:
                world.regions[take.owner].kill()
                world.clients.lost.add(take.owner)
            struck[take.number - 2].set()

        world.clients.strikes = [
            Strike(point, chance.choice((SENDING, ACKNOWLEDGED)), partial(strike, take))
            for point, take in zip(points, takes, strict=True)
        ]
        clients = threading.Thread(target=world.clients.run)
        clients.start()
        try:
            for take, point, event in zip(takes, points, struck, strict=True):
                world.clients.limit = point + 1
                world.until(event.is_set, f"burst {point} is sent")
                world.clients.limit = len(plan) if take is takes[-1] else points[take.number - 1]
                (_moved if take.how == MOVE else _lost)(world, take)
            world.clients.limit = len(plan)
            world.until(lambda: all(world.recorder.low(region) == MAX for region in REGIONS), "all is complete for all")
            clients.join()
        finally:
            world.clients.stop()
            clients.join()
        outcome.written_off = world.reference.written_off
        outcome.accepted, outcome.hours, outcome.commits = (
            world.clients.accepted,
            world.sink.hours(),
            world.sink.commits(),
        )
    outcome.readings = world.recorder.readings
    for take in takes:
        above = [
            reading.at
            for reading in outcome.readings
            if (reading.region, reading.name) == (take.to, GLOBAL) and reading.low > take.hold
        ]
        if above:
            take.times["published"] = min(above)
    return outcome


@contextmanager
def _running(out: Path, outcome: Run, *, behind: dict[str, int]) -> Iterator[World]:
    """Start everything, and kill it at the end."""
    with ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        out.mkdir(parents=True, exist_ok=True)
        command = (LOWWATER, "global", "--data", str(out / "global"), "--listen", address, "--http", "off")
        center = Part(out / "global.log", (*command, "--suspect-after", SUSPECT_AFTER), SERVING)
        stack.callback(center.kill)
        center.begin()
        path = out / "setup.json"
        regions = {name: Region(name, out / name, address, path, CONFIG, EVERY) for name in REGIONS}
        setup = Setup({name: place_of.place for name, place_of in regions.items()}, out / "sink.sqlite", behind)
        setup.write(path)
        sink = Sink(setup.sink)
        for region in regions.values():
            stack.enter_context(region)
        center.wait()
        together([part.start for part in regions.values()])
        for region in regions.values():
            region.wait()
        operator = Operator(address)
        stack.callback(operator.close)
        recorder = Recorder(setup, sink)
        stack.callback(recorder.close)
        times = [click.at for click in outcome.clicks]

        def ahead() -> bool:
            return clients.sent - bisect_left(times, sink.until) > AHEAD

        clients = Clients(setup, outcome.clicks, ahead)
        world = World(regions, sink, operator, recorder, clients, outcome)
        world.until(sink.raised, "A has raised its number")
        yield world


def _lost(world: World, take: Take) -> None:
    """Let the other region take over.

    Clicks that only the lost region had are given up, or they return with it.
    """
    _adopt(world, take)
    hold = next(
        candidate for candidate in decode(json.loads(world.reference.record)).holds if candidate.region == take.owner
    )
    take.hold, take.cut = hold.at, next((position.offset for position in hold.positions), 0)
    _begun(world, take)
    if take.how == WRITE_OFF:
        take.times["decided"] = time.time()
        world.operator.decide(pb.DECISION_WRITE_OFF, reference=REFERENCE)
        _above(world, take)
        _return(world, take)
        return
    _return(world, take)
    lost, other = world.regions[take.owner], world.regions[take.to]
    ended = lost.kafka.end(CLICKS)
    world.until(lambda: next_offset(other.place.broker) >= ended, "all that the lost region has accepted is mirrored")
    take.times["decided"] = time.time()
    world.operator.decide(pb.DECISION_ARRIVED, reference=REFERENCE)
    world.clients.lost.discard(take.owner)
    _above(world, take)
    # The next one is taken over from a region that is whole, by one that stands by.
    lost.wait()
    world.until(lambda: all(world.recorder.low(region) > take.hold for region in REGIONS), "more is published than R")


def _adopt(world: World, take: Take) -> None:
    def adopted() -> bool:
        try:
            world.operator.decide(pb.DECISION_ADOPT, take.to, REFERENCE)
        except errors.RegionRefused:
            return False
        return True

    world.until(adopted, f"{take.owner} is suspect")
    take.times["adopted"] = time.time()


def _begun(world: World, take: Take) -> None:
    """Wait until the next owner has raised its number, and committed by it."""
    world.until(lambda: take.number in world.sink.raised(), f"{take.to} has raised {take.number}")
    take.times["raised"] = world.sink.raised()[take.number]
    _try_old_number(world, take)
    world.until(lambda: world.sink.commits()[-1].number == take.number, f"{take.to} has committed by {take.number}")
    take.times["committed"] = min(commit.at for commit in world.sink.commits() if commit.number == take.number)


def _above(world: World, take: Take) -> None:
    """Wait for the next owner's first hour above R and above its predecessor's hours."""

    def closed() -> float:
        commits = world.sink.commits()
        bound = max([take.hold, *(commit.until for commit in commits if commit.number < take.number)])
        return min(
            (commit.at for commit in commits if commit.number == take.number and commit.until > bound), default=0.0
        )

    world.until(closed, f"{take.to} has closed an hour above R")
    take.times["above"] = closed()


def _return(world: World, take: Take) -> None:
    """The lost region comes back.

    It gets no number, its old one counts nowhere, and its readers see what everybody sees.
    """
    region, old = world.regions[take.owner], take.number - 1
    take.times["returned"] = time.time()
    region.start_again()
    token = Token(REFERENCE, region.place.agent)

    def refused() -> bool:
        try:
            token.read()
        except errors.LowwaterError as error:  # Unavailable and Unconfirmed at first
            return isinstance(error, errors.StaleAdoption)
        world.run.wrong.append(f"{take.owner}, which returned, was given a number")
        return True

    world.until(refused, f"{take.owner} is told that it owns nothing")
    take.tries += 1
    try:
        token.committed(Adoption(REFERENCE, old, stop=False, stale_seconds=0.0, batch=-1, positions=()), 99, "old", [])
        world.run.wrong.append(f"the agent of {take.owner}, which returned, took a commit by {old}")
    except errors.StaleAdoption:
        take.tries += 1
    _try_old_number(world, take)


def _try_old_number(world: World, take: Take) -> None:
    """Commit as a pipeline of the last owner does that was paused before its commit."""
    last = world.sink.last()
    assert last is not None
    try:
        world.sink.commit(take.number - 1, 1_000_000, last.until, [], last.positions)
        world.run.wrong.append(f"the sink took a commit by {take.number - 1}, which is old")
    except Fenced:
        take.tries += 1


def _moved(world: World, take: Take) -> None:
    """The owner stops, the state arrives, the other one claims."""
    world.until(lambda: world.reference.number == take.number, f"{take.to} owns the reference")
    take.times["adopted"] = time.time()
    _begun(world, take)
    if world.reference.holds_for:
        world.run.wrong.append("something holds behind a planned move")
