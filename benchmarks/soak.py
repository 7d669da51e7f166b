"""The soak: two shards over Redis under churn, whose memory must not grow.

``python -m benchmarks.soak``, or ``make soak``.

Workers claim again and again, more finely and less (ranges split and merge), and over each other; a
process of them is killed and comes back; computations are reset; watchers come and go; one shard is
drained and restarted in every period, while the other one stays for as long as it all takes. What
lives as long as the soak is judged: half-way between warm and the end it must hold what it holds at
the end.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import result
from benchmarks.child import UNLIMITED, Server
from tests.contract.redis_server import DURABLE
from tests.process.sharding import DEAD_AFTER, Shard, Sharded

INJECTORS: Final = 6
READERS: Final = 4
"""Computations that read two injectors each."""

PERIOD: Final = 60.0
"""Seconds between two restarts of the shard; a quarter of the soak when that is shorter."""

SAMPLES: Final = 1.0
"""Seconds between two looks at everybody's memory."""

POINTS: Final = 20
"""Number of points of the curves that are kept."""

MOST_GROWTH: Final = 1.05
"""Memory of the last quarter over that of the second."""

REWRITE: Final = ("--auto-aof-rewrite-percentage", "100", "--auto-aof-rewrite-min-size", "256mb")
"""The append-only file would grow by a gigabyte every ten minutes."""

KEPT: Final = "shard that stays"
RESTARTED: Final = "shard that is restarted"
STEADY: Final = "workers that stay"
MORTAL: Final = "workers that are killed"
WATCHERS: Final = "watchers"
REDIS: Final = "redis"

JUDGED: Final = (KEPT, STEADY, WATCHERS)
"""Processes that live as long as the soak, whose memory is judged."""

METRICS: Final = (
    "lowwater_ranges",
    "lowwater_queued_requests",
    "lowwater_subscribers",
    "lowwater_report_streams",
    "lowwater_conflated_watermarks_total",
    "lowwater_admission_inside",
)
"""Metrics whose greatest value is reported, summed over labels."""

MEGABYTE: Final = 1e6


class Child:
    """A client process, started again when it was killed."""

    def __init__(self, name: str, log: Path, arguments: Sequence[str]) -> None:
        self.name = name
        self.runs = 0
        self._log = log
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self.runs += 1
        command = [sys.executable, "-m", "benchmarks.soak_child", *self._arguments, "--seed", str(self.runs)]
        with self._output().open("wb") as output, self._log.with_suffix(".err").open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=Path(__file__).parent.parent)

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int | None:
        """Its process, while it runs. Raises RuntimeError when it has ended by itself."""
        process = self._process
        if process is not None and process.poll() is not None:
            msg = f"{self.name} ended: {self._log.with_suffix('.err').read_text()[-2000:]}"
            raise RuntimeError(msg)
        return process.pid if process is not None else None

    def done(self) -> Counter[str]:
        """Return what it has told of all its runs."""
        sums: Counter[str] = Counter()
        for run in range(1, self.runs + 1):
            lines = self._output(run).read_text().splitlines()
            sums.update(json.loads(lines[-1]) if lines else {})
        return sums

    def _output(self, run: int | None = None) -> Path:
        return self._log.with_suffix(f".{run or self.runs}")


@dataclass
class Curves:
    """Resident megabytes by process over time, and greatest values of some metrics by shard."""

    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    most: dict[str, dict[str, float]] = field(default_factory=dict)

    def part(self, name: str, parts: int, number: int, seconds: float) -> float | None:
        """Return the median of a part of the time, from 0; None when there was nobody."""
        begin, end = seconds * number / parts, seconds * (number + 1) / parts
        values = [megabytes for at, megabytes in self.memory.get(name, ()) if begin <= at < end]
        return round(statistics.median(values), 1) if values else None

    def growth(self, name: str, seconds: float) -> float | None:
        """Return the memory of the last quarter over that of the second."""
        second, last = self.part(name, 4, 1, seconds), self.part(name, 4, 3, seconds)
        return round(last / second, 3) if second and last else None


class Sampler(threading.Thread):
    """Looks at the memory of all processes, and at the metrics of the shards."""

    def __init__(self, soak: Soak, curves: Curves) -> None:
        super().__init__(daemon=True)
        self._soak = soak
        self._curves = curves
        self._stopping = threading.Event()
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """See Thread."""
        while not self._stopping.wait(SAMPLES):
            at = time.monotonic() - self._begun
            for name, pid in self._soak.pids().items():
                with contextlib.suppress(StopIteration):  # a process that ends has none
                    resident = Server("", pid).resident_bytes()
                    if resident is not None:
                        self._curves.memory.setdefault(name, []).append((at, resident / MEGABYTE))
            for name, shard in self._soak.shards.items():
                with contextlib.suppress(OSError):
                    greatest = self._curves.most.setdefault(name, dict.fromkeys(METRICS, 0.0))
                    for metric, value in scrape(shard.metrics).items():
                        greatest[metric] = max(greatest[metric], value)


def scrape(metrics: str) -> dict[str, float]:
    """Return what /metrics has of METRICS now. Raises OSError."""
    with urllib.request.urlopen(metrics, timeout=5) as response:
        text = response.read().decode()
    values: dict[str, float] = dict.fromkeys(METRICS, 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in values:
                values[sample.name] += sample.value
    return values


class Soak:
    """Everything that runs."""

    def __init__(self, folder: Path, ranges: int, dead_after: float) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._ranges_each = ranges // (INJECTORS + READERS)
        self._rng = random.Random(7)
        self.deployment = Sharded(folder, 2, *DURABLE, *REWRITE, dead_after=dead_after, flags=UNLIMITED)
        permanent, restarted = self.deployment.shards
        self.shards: dict[str, Shard] = {KEPT: permanent, RESTARTED: restarted}
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        self._stack.enter_context(self.deployment)
        self._operator = self._stack.enter_context(self.deployment.connect(timeout=60.0))
        injectors = [f"injector-{number}" for number in range(INJECTORS)]
        readers = [f"reader-{number}" for number in range(READERS)]
        for name in injectors:
            self._operator.register(name)
        for number, name in enumerate(readers):
            self._operator.register(name, inputs=[injectors[number], injectors[-1]])
        self._names = [*injectors, *readers]
        for number, name in enumerate(self._names):
            # Half of them at each, whatever the ports of this run hash to.
            self._operator.pin(name, self.deployment.shards[number % 2].address)
        every, ranges = self.deployment.addresses, str(self._ranges_each)
        self.children = {
            STEADY: self._child(STEADY, ["work", every, *self._names[::2], "--ranges", ranges]),
            MORTAL: self._child(MORTAL, ["work", every, *self._names[1::2], "--ranges", ranges]),
            WATCHERS: self._child(WATCHERS, ["watch", every, *self._names]),
        }
        for child in self.children.values():
            self._stack.callback(child.kill)
            child.start()

    def _child(self, name: str, arguments: Sequence[str]) -> Child:
        return Child(name, self._folder / name.replace(" ", "-"), arguments)

    def pids(self) -> Mapping[str, int]:
        """Return the processes that run now."""
        pids = {name: child.pid for name, child in self.children.items()}
        pids |= {name: shard.process.pid for name, shard in self.shards.items() if shard.running and shard.process}
        pids[REDIS] = int(self.deployment.redis.execute("INFO", "server")["process_id"])
        return {name: pid for name, pid in pids.items() if pid is not None}

    # -- churn -------------------------------------------------------------------------------------

    def churn(self, seconds: float, period: float) -> None:
        """Do what has to be done when it is due, for so long."""
        begun, pause = time.monotonic(), threading.Event()
        deeds = sorted(
            itertools.chain(
                ((at, self.restart) for at in times(period / 2, period, seconds)),
                ((at, self.die) for at in times(period / 4, period / 2, seconds)),
                ((at, self.reset) for at in times(period / 8, period / 4, seconds)),
            ),
            key=lambda deed: deed[0],
        )
        for at, deed in deeds:
            pause.wait(max(0.0, begun + at - time.monotonic()))
            deed()
        pause.wait(max(0.0, begun + seconds - time.monotonic()))

    def restart(self) -> None:
        """Drain a shard, stop it, and start it again; what is pinned to it comes back."""
        shard, pause = self.shards[RESTARTED], threading.Event()
        while self._operator.drain(shard.address):
            pause.wait(0.1)
        shard.stop()
        shard.start()
        self.done["restarts"] += 1

    def die(self) -> None:
        """Kill workers, and start them again."""
        self.children[MORTAL].kill()
        self.children[MORTAL].start()
        self.done["deaths"] += 1

    def reset(self) -> None:
        """Begin a new incarnation of a computation, and of what reads it."""
        self.done["lives"] += len(self._operator.reset(self._rng.choice(self._names)))
        self.done["resets"] += 1


def times(first: float, step: float, end: float) -> Iterator[float]:
    """Yield moments, in seconds."""
    at = first
    while at < end:
        yield at
        at += step


def run(folder: Path, seconds: float, ranges: int, dead_after: float = DEAD_AFTER) -> dict[str, object]:
    """Soak for so long; returns the line that is kept.

    Raises RuntimeError when a process ends that should not.

    ``dead_after`` is the shards' setting, in seconds.
    """
    curves = Curves()
    period = min(PERIOD, seconds / 4)
    with Soak(folder, ranges, dead_after) as soak:
        with Sampler(soak, curves):
            soak.churn(seconds, period)
        soak.pids()
        clients = {name: dict(child.done()) for name, child in soak.children.items()}
    names = list(curves.memory)
    return {
        "benchmark": "soak",
        "seconds": seconds,
        "ranges": ranges,
        **soak.done,
        "growth": {name: curves.growth(name, seconds) for name in names},
        "most_growth": MOST_GROWTH,
        "quarters_mb": {name: [curves.part(name, 4, number, seconds) for number in range(4)] for name in names},
        "curves_mb": {name: [curves.part(name, POINTS, number, seconds) for number in range(POINTS)] for name in names},
        "peak_mb": {name: round(max(megabytes for _, megabytes in curves.memory[name]), 1) for name in names},
        "most": curves.most,
        "clients": clients,
    }


def grown(line: Mapping[str, object], most: float = MOST_GROWTH) -> list[str]:
    """Return the processes with more memory at the end than in the second quarter.

    Only processes that lived all the time count.
    """
    growth = line["growth"]
    assert isinstance(growth, dict)
    return [name for name in JUDGED if growth[name] is None or growth[name] > most]


def main() -> int:
    """Run the soak; the exit code is 1 when somebody's memory grew."""
    parse = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__)
    parse.add_argument("--seconds", type=float, default=1200.0, help="how long (default: %(default)g)")
    parse.add_argument("--ranges", type=int, default=500_000, help="of all computations (default: %(default)s)")
    parse.add_argument(
        "--dead-after",
        type=float,
        default=DEAD_AFTER,
        metavar="SECONDS",
        help="of the shards: longer where they are starved (default: %(default)s)",
    )
    parse.add_argument(
        "--data", type=Path, metavar="DIR", default=Path(tempfile.gettempdir()), help="where Redis writes"
    )
    args = parse.parse_args()
    # A terminated soak stops its processes like an interrupted one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = result.machine()
    with tempfile.TemporaryDirectory(prefix="lowwater-soak-", dir=args.data) as folder:
        line = run(Path(folder), args.seconds, args.ranges, args.dead_after)
    print(json.dumps(line | machine), flush=True)
    names = grown(line)
    if names:
        print(f"soak: the memory has grown of: {', '.join(names)}", file=sys.stderr)
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())
