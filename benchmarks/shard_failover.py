"""Fail-over, measured and checked: a shard is killed, and what it served goes on at the others.

Three shards over one Redis serve a small graph. Workers of several clients report all the time, and
subscribers with and without the client library watch. In each round the shard that serves a given
computation is killed with kill -9, and the clock runs until subscribers hold a value that is new
and correct.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

import lowwater
from benchmarks.observing import (
    LIBRARY,
    RAW,
    Asker,
    Board,
    Floor,
    LibraryWatcher,
    RawWatcher,
    Sight,
    Stopping,
    said_by,
)
from benchmarks.truth import Truth
from lowwater_authority.cluster.membership import View
from tests.kit.eventually import eventually
from tests.kit.times import SECOND
from tests.process.sharding import Shard, Sharded, served

GRAPH: Final[dict[str, tuple[str, ...]]] = {
    "clicks": (),
    "views": (),
    "enriched": ("clicks",),
    "joined": ("clicks", "views"),
    "daily": ("joined",),
    "alerts": ("joined", "enriched"),
}
"""Computations and their inputs, in topological order."""

SHARDS: Final = 3
CLIENTS: Final = 3
BOUNDS: Final = [b"", b"h", b"p", b""]
RANGES: Final = len(GRAPH) * (len(BOUNDS) - 1)
SEED: Final = 20130109

PATIENCE: Final = 60.0
"""Seconds after which something is taken to hang."""

TICK: Final = 0.01
"""Seconds between the reports of a worker."""

TAG: Final = "{lowwater:default}"
"""Hash tag of the keys of a deployment."""

LOOK: Final = 0.005
"""Seconds between two looks at the store."""


class Reporting(Stopping):
    """A worker that owns a whole computation, and advances its ranges at random.

    Now and then it goes a step back, which an owner may.
    """

    def __init__(self, client: lowwater.Client, name: str, truth: Truth, rng: random.Random) -> None:
        super().__init__()
        self.worker = client.worker(name, name=f"worker of {name}")
        self.lease = self.worker.claim(bounds=BOUNDS)
        self._truth = truth
        self._rng = rng
        self._values = [0] * len(self.lease)

    def run(self) -> None:
        while not self.stopping.wait(TICK):
            self.step()

    def step(self) -> None:
        """Report once."""
        if GRAPH[self.worker.computation]:
            self._fold()
        else:
            self._inject()

    def _inject(self) -> None:
        handle = self._rng.randrange(len(self._values))
        self._values[handle] = max(0, self._values[handle] + self._rng.choice([1, 2, 5, 10, -3]) * SECOND)
        self._truth.say(self._values)
        self.lease.advance(None, oldest=self._values, frontier=max(self._values), pending=self._values)

    def _fold(self) -> None:
        inputs = self.worker.inputs()
        if not inputs.low.unknown:
            self._values = [inputs.low.micros - self._rng.choice([0, 0, 1, 2]) * SECOND for _ in self._values]
            self._truth.say(self._values)
            self.lease.advance(inputs, oldest=self._values)


@dataclass(frozen=True, slots=True)
class Round:
    """One kill; times are seconds from the kill."""

    computation: str
    killed: int
    """Number of computations of the graph that the killed shard served."""
    noticed: float
    """A view without the killed shard is in the store."""
    owned: float
    """Another shard owns the computation."""
    heard_of: dict[str, float]
    """A subscriber hears of the computation at its new shard, by kind."""
    new: dict[str, float]
    """A subscriber holds a value that is above all before the kill, by kind."""
    claimed: float
    """A claim on another computation of the killed shard is acknowledged; it was asked for at once,
    through the client library."""

    def text(self) -> str:
        """The phases, one after the other, in seconds."""
        phases = ", ".join(
            f"{kind}: there +{self.heard_of[kind] - self.owned:.2f} new +{self.new[kind] - self.heard_of[kind]:.2f} = {self.new[kind]:.2f}"
            for kind in (RAW, LIBRARY)
        )
        store = f"noticed {self.noticed:.2f} taken +{self.owned - self.noticed:.2f}"
        return f"{self.computation:8} of {self.killed}: {store}, {phases}, claim {self.claimed:.2f}"


@dataclass
class Acknowledged:
    """Changes that were acknowledged as durable while shards were killed."""

    claims: list[lowwater.Lease] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)


class Experiment:
    """A deployment under way.

    Use it as a context manager; then :meth:`kill` as often as wanted, and :meth:`check` in the end.
    """

    def __init__(self, folder: Path) -> None:
        self.rng = random.Random(SEED)
        self.acknowledged = Acknowledged()
        self.rounds: list[Round] = []
        self._stack = ExitStack()
        self._deployment = Sharded(folder, SHARDS)

    def __enter__(self) -> Experiment:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        enter = self._stack.enter_context
        deployment = enter(self._deployment)
        self._operator = enter(deployment.connect(timeout=PATIENCE))
        self._helpers = enter(ThreadPoolExecutor(2))
        self._store = enter(redis.Redis(port=deployment.redis.port, protocol=2))
        for name, inputs in GRAPH.items():
            self._operator.register(name, inputs=inputs)
        truths = {name: Truth(len(BOUNDS) - 1) for name in GRAPH}
        self.board = Board(GRAPH, truths)
        clients = [enter(deployment.connect()) for _ in range(CLIENTS)]
        self.workers = [
            Reporting(clients[number % CLIENTS], name, truths[name], random.Random(self.rng.random()))
            for number, name in enumerate(GRAPH)
        ]
        self._spares = dict(self._make_spares())
        self._spare_workers = {name: self._operator.worker(name) for name in self._spares.values()}
        names, addresses = list(GRAPH), [shard.address for shard in deployment.shards]
        watchers = [RawWatcher(self.board, name, addresses) for name in names]
        running: list[Stopping] = [*watchers, Asker(self.board, names, addresses), *self.workers]
        running.append(LibraryWatcher(self.board, names, deployment.connect()))
        self._running = running
        for runner in running:
            runner.start()
            self._stack.callback(runner.stop)
        self._wait_for_news({name: Floor() for name in GRAPH}, (RAW, LIBRARY))

    def _make_spares(self) -> Iterator[tuple[str, str]]:
        """Yield a computation of each shard on which nobody reports, by the shard's address."""
        missing = {shard.address for shard in self._deployment.shards}
        number = 0
        while missing:
            number += 1
            self._operator.register(f"spare-{number}")
            address = self._owner(f"spare-{number}").address
            if address in missing:
                missing.remove(address)
                yield address, f"spare-{number}"

    # -- a round -----------------------------------------------------------------------------------

    def kill(self, name: str | None = None) -> Round:
        """Kill the shard of a computation, or a random one; restart it when all values go on."""
        name = name or self.rng.choice(list(GRAPH))
        victim = self._owner(name)
        before = set(served(self._operator, victim))
        floors = self.board.clear()
        look = self._helpers.submit(self._look, victim, name, floors[name].epoch)
        killed = time.monotonic()
        victim.kill()
        writing = self._helpers.submit(self._write, victim)
        self._wait_for_news(
            {computation: floors[computation] for computation in GRAPH if computation in before}, (RAW, LIBRARY)
        )
        first_word, new = {}, {}
        for kind in (RAW, LIBRARY):
            sights = [sight for sight in self.board.sights if sight.by == kind and sight.name == name]
            first_word[kind] = next(at for at, _ in self._since(sights, floors[name])) - killed
            new[kind] = next(at for at, is_new in self._since(sights, floors[name]) if is_new) - killed
        noticed, taken_over = (at - killed for at in look.result(PATIENCE))
        claimed = writing.result(PATIENCE) - killed
        done = Round(
            name, sum(computation in before for computation in GRAPH), noticed, taken_over, first_word, new, claimed
        )
        self.rounds.append(done)
        self._restart(victim, before)
        return done

    @staticmethod
    def _since(sights: Iterable[Sight], floor: Floor) -> Iterator[tuple[float, bool]]:
        """Yield when values came from another owner than before, and whether they were new.

        What the killed shard had sent may still arrive after its end; it counts as before.
        """
        low = floor.low
        for sight in sights:
            if sight.epoch > floor.epoch:
                yield sight.at, sight.low > low
            else:
                low = max(low, sight.low)

    def _wait_for_news(self, floors: dict[str, Floor], kinds: Sequence[str]) -> None:
        def come(sights: Sequence[Sight]) -> bool:
            return all(
                any(is_new for _, is_new in self._since([s for s in sights if (s.by, s.name) == (kind, name)], floor))
                for name, floor in floors.items()
                for kind in kinds
            )

        assert self.board.wait_for(come, PATIENCE), f"nothing new of {', '.join(floors)} within {PATIENCE:g} s"

    def _look(self, victim: Shard, name: str, epoch: int) -> tuple[float, float]:
        """Return when a view without a shard was in the store, and when a successor owned it.

        The successor is the new owner of the computation.
        """
        noticed = 0.0
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        while time.monotonic() < deadline:
            pipeline = self._store.pipeline(transaction=False)
            pipeline.hget(f"{TAG}:view", "view")
            pipeline.hget(f"{TAG}:meta:{name}", "epoch")
            view, owner = pipeline.execute()
            if not noticed and View.decode(view).at(victim.address) is None:
                noticed = time.monotonic()
            if int(owner) > epoch:
                return noticed, time.monotonic()
            pause.wait(LOOK)
        raise AssertionError(f"nobody took {name} over within {PATIENCE:g} s")

    def _write(self, victim: Shard) -> float:
        """Claim at the dead shard, and register a computation; return when the claim succeeded."""
        number = len(self.rounds)
        spare = self._spare_workers[self._spares[victim.address]]
        self.acknowledged.claims.append(spare.claim(number.to_bytes(2, "big"), (number + 1).to_bytes(2, "big")))
        claimed = time.monotonic()
        self._operator.register(f"late-{number}", inputs=["clicks"])
        self.acknowledged.registered.append(f"late-{number}")
        return claimed

    def _restart(self, victim: Shard, before: set[str]) -> None:
        """Start a shard again, and wait until it has back what it served, and has told so."""
        floors = self.board.clear()
        victim.start()
        eventually(self._at_home, seconds=PATIENCE)
        self._wait_for_news(
            {computation: floors[computation] for computation in GRAPH if computation in before}, (RAW, LIBRARY)
        )

    def _at_home(self) -> bool:
        """Return whether all shards live, and each serves the computations of its view."""
        view = View.decode(self._deployment.redis.execute("HGET", f"{TAG}:view", "view"))
        shards = self._operator.shards()
        expected = {name: view.shard_of(name) for shard in shards for name in shard.computations}
        at_home = (expected[name] == view.at(shard.address) for shard in shards for name in shard.computations)
        return len(shards) == SHARDS and not shards.unserved and all(at_home)

    def _owner(self, name: str) -> Shard:
        """The shard that serves a computation."""
        return next(shard for shard in self._deployment.shards if name in served(self._operator, shard))

    # -- the end -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what has to be true when all shards are up again."""
        failures = [runner.failure for runner in self._running if runner.failure is not None]
        assert not failures, failures
        lw, claims = self._operator, self.acknowledged.claims
        names = list(lw.topology().computations)
        missing = {*GRAPH, *self._spares.values(), *self.acknowledged.registered} - set(names)
        assert not missing, f"registered, but not there any more: {missing}"
        eventually(lambda: self._once(names), seconds=PATIENCE)
        for worker in self.workers:
            worker.stop()
            worker.step()
            worker.lease.flush(PATIENCE)
            own = {key_range.start: key_range.sequencer for key_range in lw.ranges(worker.lease.computation)}
            assert own == dict.fromkeys(BOUNDS[:-1], worker.lease.sequencer), f"{worker.lease.computation}: {own}"
        for name in self._spares.values():
            owners = {key_range.start: key_range.sequencer for key_range in lw.ranges(name, limit=10_000)}
            granted = {lease.bounds[0]: lease.sequencer for lease in claims if lease.computation == name}
            assert granted.items() <= owners.items(), f"{name}: granted {granted}, but there is {owners}"
            assert len(set(granted.values())) == len(granted), f"{name}: two claims got the same number: {granted}"
        for lease in claims:
            lease.advance(None, oldest=0, frontier=SECOND)
            lease.flush(PATIENCE)
        for name, view in lw.get(*GRAPH).items():
            kills = sum(kill.computation == name for kill in self.rounds)
            assert view.epoch > 2 * kills, f"{name} has epoch {view.epoch}, but was taken over, and back, {kills} times"
        assert not self.board.wrong, self.board.wrong[:10]

    def _once(self, names: list[str]) -> bool:
        by_shard = [[view.computation for view in said_by(shard.address, names)] for shard in self._deployment.shards]
        return sorted(name for names in by_shard for name in names) == sorted(names)


def run(folder: Path, kills: int, tell: Callable[[Round], None] = lambda _: None) -> list[Round]:
    """Kill so often, and check everything."""
    with Experiment(folder) as experiment:
        for _ in range(kills):
            tell(experiment.kill())
        experiment.check()
        return experiment.rounds
