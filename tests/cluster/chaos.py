"""``python -m tests.cluster.chaos``: a pipeline on a real cluster under counted faults, every window and every watermark checked.

Of files: an injector in plain Python writes files and promises; one application runs two tracked queries over them, hourly windows kept by
``batch.stateful`` and driven ones of Spark's. With ``--kafka``: :mod:`tests.cluster.streams`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import lowwater
from lowwater.watermark import MAX
from tests.cluster.application import Application
from tests.cluster.driver import STEPS
from tests.cluster.evidence import EventLog
from tests.cluster.oracle import Put, hours_of, judge_source, judge_windows
from tests.cluster.output import Committed, Output
from tests.cluster.shipping import Shipped, ship
from tests.cluster.standalone import HOSTS, Standalone
from tests.cluster.streams import streams
from tests.cluster.tally import Tally
from tests.cluster.watching import Watching
from tests.kit.eventually import TooLate, eventually
from tests.kit.times import HOUR, MINUTE
from tests.process.serving import Serving, serving
from tests.spark.support import Feed

START: Final = round(dt.datetime(2013, 1, 9, tzinfo=dt.UTC).timestamp() * 1_000_000)
PATIENCE: Final = 240.0
"""Seconds within which everything must have recovered from a fault."""
SOON: Final = 5.0
"""Seconds within which Spark's event log tells what has happened in batches that are over."""

SHARES: Final = {"fail": 8, "python": 7, "stall": 3, "executor": 4, "worker": 1, "driver": 2, "authority": 2}
"""How often each kind of fault is planned."""
NAMES: Final = {
    "fail": "task_failures",
    "python": "python_worker_kills",
    "stall": "speculative_copies",
    "executor": "executor_kills",
    "worker": "worker_kills",
    "driver": "driver_kills",
    "authority": "authority_kills",
}
TOGETHER: Final = ("fail", "python", "executor", "stall")
"""Faults in tasks: a batch can have several."""
MOST: Final = 7
"""Faults of one batch."""
WINDOWED: Final = ("hourly", "driven")
"""The outputs that have windows."""


@dataclass(frozen=True)
class Order:
    """A fault that was asked for; it counts when there is evidence that it took effect."""

    kind: str
    path: Path

    @property
    def taken(self) -> Path:
        """What stands in its place when somebody carries it out."""
        return self.path.with_suffix(".taken")

    def told(self) -> Mapping[str, Any] | None:
        """What the task said of itself that took it."""
        said = self.path.with_suffix(".json")
        return json.loads(said.read_text(encoding="utf-8")) if said.exists() else None


class Pipeline:
    """The pipeline, what has been put into it, what has come out, and what was published."""

    def __init__(self, folder: Path, shipped: Shipped, cluster: Standalone, server: Serving, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.cluster = cluster
        self.server = server
        self.orders = folder / "orders"
        self.orders.mkdir()
        self.feed = Feed(folder / "in")
        self.puts: list[Put] = []
        self.low = START
        """What the injector has promised."""
        self.application = Application(cluster, shipped, folder, Path(__file__).with_name("driver.py"))
        self.events = EventLog(self.application.events)
        self.outputs = {name: Output(folder / name, folder / f"{name}-ck") for name in ("hourly", "driven")}
        self.client = lowwater.connect(server.address)
        self.client.register("source", heuristics=[0.99])
        self.lease = self.client.worker("source", identity="chaos").claim()
        self.watching = Watching(server.address, ["source", *self.outputs])
        self.tally = Tally(SHARES, NAMES)
        self._lost: set[tuple[str, str]] = set()
        self._number = 0

    # -- the pipeline -----------------------------------------------------------------------------------------------

    def start(self, *, early: bool = False) -> None:
        """Start the application; ``early`` with the planted bug."""
        arguments = {"folder": str(self.folder), "early": early}
        self.application.start(arguments, {"spark.lowwater.address": self.server.address})

    def put(self) -> None:
        """Put a file of rows at or above what has been promised, some of them at its very edge or at an hour's."""
        now = self.low
        hour = now // HOUR * HOUR
        times = [now, hour + HOUR - 1, hour + HOUR, hour + 2 * HOUR]
        times += [now + self.random.randrange(150 * MINUTE) for _ in range(self.random.randrange(10, 30))]
        rows = [(f"k{self.random.randrange(8)}", time) for time in times]
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        self.feed.put(
            {"key": key, "t": (epoch + dt.timedelta(microseconds=time)).isoformat(timespec="microseconds")}
            for key, time in rows
        )
        there = time.time()
        self.puts += [Put(there, key, event_time) for key, event_time in rows]

    def promise(self) -> None:
        """Move the low watermark of what is put by an hour or more, durably."""
        self.low += self.random.choice([60, 60, 75, 100]) * MINUTE
        self.lease.advance(None, oldest=None, frontier=self.low)
        self.lease.flush(PATIENCE)

    def recovered(self) -> None:
        """Wait until both queries have come as far as their input: what is not stuck has recovered."""
        hour = self.low // HOUR * HOUR
        self.await_that(lambda: self.watching.low("hourly") >= hour, f"hourly at {hour}")
        # Spark's watermark is at the hour, and windows are stamped an hour before their end.
        self.await_that(lambda: self.watching.low("driven") >= hour - HOUR, f"driven at {hour - HOUR}")

    def finish(self) -> None:
        """Say that nothing will come; every window closes."""
        self.lease.finish()
        self.lease.flush(PATIENCE)
        self.await_that(lambda: all(self.watching.low(name) == MAX for name in self.outputs), "all is finished")

    def await_that(self, condition: Callable[[], object], what: str) -> None:
        try:
            eventually(condition, what, seconds=PATIENCE, check=self.application.check)
        except AssertionError as failure:
            lows = {name: self.watching.low(name) for name in self.watching.seen}
            msg = f"{failure}; published: {lows}\n{self.application.tail()}"
            raise AssertionError(msg) from None

    def wrong(self, *, finished: bool = False) -> list[str]:
        """Everything that is wrong until now."""
        # What was seen is taken first: what is read afterwards can only have more in it.
        seen = {name: list(values) for name, values in self.watching.seen.items()}
        found = [f"source: {each}" for each in judge_source(self.puts, seen["source"])]
        for name, output in self.outputs.items():
            judged = judge_windows(self.puts, output.emitted(), seen[name], finished=finished)
            found += [f"{name}: {each}" for each in judged]
        return found

    # -- faults -----------------------------------------------------------------------------------------------------

    def order(self, kind: str, suffix: str = "order") -> Order:
        """Ask for a fault in a task, or at a step of the driver; whoever comes first carries it out."""
        self._number += 1
        path = self.orders / f"{kind}-{self._number:04}.{suffix}"
        path.touch()
        return Order(kind, path)

    def plan(self, faults: int) -> list[str]:
        """Choose the faults of the next round: what is furthest behind its share, and others that can be in the same batch."""
        kinds: list[str] = []
        possible = set(SHARES)
        for _ in range(min(self.random.randint(3, MOST), faults - self.tally.total)):
            kind = self.tally.behind(self.random, possible, kinds)
            kinds.append(kind)
            if kind not in TOGETHER:
                break
            # A stalled task that is lost with its executor is not replaced by a copy.
            possible &= set(TOGETHER) - {{"executor": "stall", "stall": "executor"}.get(kind, "")}
        return kinds

    def round(self, kinds: Sequence[str]) -> None:
        """Put rows and promise, with these faults on the way, until all has recovered."""
        if kinds[0] == "driver":
            self.tally.count("driver", self._kill_driver())
        elif kinds[0] == "authority":
            self.tally.count("authority", self._kill_authority())
        elif kinds[0] == "worker":
            self.tally.count("worker", self._kill_worker())
        else:
            orders = [self.order(kind) for kind in kinds]
            self.put()
            self.promise()
            self.recovered()
            for order in orders:
                self.tally.count(order.kind, self._took_effect(order))

    def _took_effect(self, order: Order) -> bool:
        """Whether there is evidence for a fault in a task; withdraws it when nobody has taken it."""
        order.path.unlink(missing_ok=True)
        told = order.told()
        if told is None:
            return False
        evidence = {
            "fail": lambda: self.events.failed(told, f"planted: {order.path.stem}"),
            "python": lambda: self.events.failed(told, "Python worker exited unexpectedly"),
            "stall": lambda: self.events.copied(told),
            "executor": lambda: self._lost_first(told["application"], told["executor"]),
        }[order.kind]
        return self._appears(evidence)

    def _lost_first(self, application: str, executor: str) -> bool:
        """Whether Spark has lost an executor that was not counted yet: two tasks of one may both have killed it."""
        if (application, executor) in self._lost or not self.events.removed(application, executor):
            return False
        self._lost.add((application, executor))
        return True

    def _appears(self, evidence: Callable[[], bool], seconds: float = SOON) -> bool:
        try:
            return eventually(evidence, "evidence", seconds=seconds, check=self.application.check)
        except TooLate:
            return False

    def _kill_worker(self) -> bool:
        """Kill a worker, and with it its executor; another one comes, before or after the other host has recovered alone."""
        host = self.random.choice(HOSTS)
        application = self.events.applications()[-1]
        self.put()
        # An executor that has just been replaced may still be on its way.
        if not self._appears(lambda: bool(self.events.executors(application, host)), PATIENCE):
            return False
        lost = self.events.executors(application, host)
        killed = self.cluster.kill_worker(host) == -signal.SIGKILL
        if self.random.random() < 0.5:
            self.promise()
            self.recovered()
            self.put()
        self.cluster.start_worker(host)
        self.promise()
        self.recovered()
        return killed and self._appears(
            lambda: (
                all(self.events.removed(application, executor) for executor in lost)
                and bool(self.events.executors(application, host))
            ),
            PATIENCE,
        )

    def _kill_driver(self) -> bool:
        """Let the driver kill itself, its JVM and its workers at a step of a batch; another one goes on from the checkpoint."""
        order = self.order("driver", self.random.choice(STEPS))
        self.put()
        self.promise()
        eventually(order.taken.exists, f"the driver takes {order.path.stem}", seconds=PATIENCE)
        killed = self.application.wait() == -signal.SIGKILL
        before = self.outputs["hourly"].commits()
        if self.random.random() < 0.5:
            self.put()
            self.promise()
        self.start()
        self.put()
        self.promise()
        self.recovered()
        return killed and self.outputs["hourly"].commits() > before

    def _kill_authority(self) -> bool:
        """Kill the authority before or in the middle of a batch; perhaps batches go on without it; it comes back over its journal."""
        process = self.server.process
        assert process is not None
        self.put()
        if self.random.random() < 0.5:
            self.promise()
        before = self.outputs["hourly"].commits()
        self.server.kill()
        if self.random.random() < 0.5:
            # The pipeline goes on, and holds.
            self.put()
            self.await_that(lambda: self.outputs["hourly"].commits() > before, "a batch without the authority")
        self.server.start()
        self.promise()
        self.recovered()
        return process.returncode == -signal.SIGKILL

    def close(self) -> None:
        self.application.kill()
        self.watching.stop()
        self.client.close()


@contextlib.contextmanager
def pipeline(folder: Path, seed: int, shipped: Shipped) -> Iterator[Pipeline]:
    """A cluster, an authority and a pipeline whose driver is not started yet."""
    (folder / "authority").mkdir()
    with serving(folder / "authority") as server, Standalone(folder / "cluster") as cluster:
        made = Pipeline(folder, shipped, cluster, server, seed)
        try:
            yield made
        finally:
            made.close()


class World(Protocol):
    """A pipeline under faults, whatever it is over."""

    tally: Tally
    puts: list[Put]
    watching: Watching

    @property
    def outputs(self) -> Mapping[str, Committed]: ...
    def start(self) -> None: ...
    def put(self) -> None: ...
    def promise(self) -> None: ...
    def recovered(self) -> None: ...
    def plan(self, faults: int) -> Sequence[str]: ...
    def round(self, kinds: Sequence[str]) -> None: ...
    def finish(self) -> None: ...
    def wrong(self, *, finished: bool = False) -> list[str]: ...


WORLDS: Final[Mapping[str, Callable[[Path, int, Shipped], contextlib.AbstractContextManager[World]]]] = {
    "files": pipeline,
    "kafka": streams,
}


def run(
    folder: Path,
    faults: int,
    seed: int,
    *,
    over: str = "files",
    shipped: Shipped | None = None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run until so many faults have taken effect; return the result. Stops at the first round in which anything is wrong."""
    began = time.monotonic()
    with WORLDS[over](folder, seed, ship(folder / "shipped") if shipped is None else shipped) as made:
        made.start()
        made.put()
        made.promise()
        made.recovered()
        tally = made.tally
        wrong: list[str] = []
        rounds = 0
        while tally.total < faults and not wrong and tally.missed.total() <= faults:
            kinds = made.plan(faults)
            since = time.monotonic()
            made.round(kinds)
            wrong = made.wrong()
            rounds += 1
            say(f"round {rounds} {'+'.join(kinds)}: {tally.total} counted, {time.monotonic() - since:.1f} s")
        if not wrong:
            made.finish()
            wrong = made.wrong(finished=True)
        for each in wrong[:20]:
            say(f"WRONG: {each}")
        windows = sum(name in WINDOWED for name in made.outputs)
        return {
            "over": over,
            "seed": seed,
            **tally.said(),
            "rows": len(made.puts),
            "windows": len(hours_of(made.puts)) * windows,
            "batches": sum(output.commits() for output in made.outputs.values()),
            "published": sum(len(values) for values in made.watching.seen.values()),
            "violations": len(wrong),
            "seconds": round(time.monotonic() - began, 1),
        }


def main() -> int:
    """Run it as a command; 1 when anything is wrong."""
    parse = argparse.ArgumentParser(
        prog="python -m tests.cluster.chaos",
        description="Tracked queries on a standalone Spark cluster under faults that are counted when they took effect.",
        epilog="example: python -m tests.cluster.chaos --kafka --faults 20 --seed 7",
    )
    parse.add_argument("--faults", type=int, default=20, help="how many must have taken effect (default: %(default)s)")
    parse.add_argument("--seed", type=int, help="of rows and faults (default: a random one, printed)")
    parse.add_argument(
        "--kafka",
        dest="over",
        action="store_const",
        const="kafka",
        default="files",
        help="over topics and tables, with a job in Scala beside",
    )
    parse.add_argument("--folder", type=Path, help="where everything is written, and stays (default: a temporary one)")
    args = parse.parse_args()
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    folder = Path(tempfile.mkdtemp(prefix="lowwater-chaos-")) if args.folder is None else args.folder
    folder.mkdir(parents=True, exist_ok=True)
    result = run(folder, args.faults, seed, over=args.over, say=lambda line: print(line, file=sys.stderr, flush=True))
    if args.folder is None and not result["violations"]:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))
    return 1 if result["violations"] or result["faults"] < args.faults else 0


if __name__ == "__main__":
    sys.exit(main())
