"""A computation that is cut into slices, over real shards and a real Redis.

It measures the lag that the second level adds, its load on the shards, and the time of a fail-over.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import numpy as np

import lowwater
from benchmarks import wire
from benchmarks.child import UNLIMITED, Server
from benchmarks.latency import take_turns
from benchmarks.messages import BACK, METHOD
from benchmarks.observing import LIBRARY, RAW, Board, LibraryWatcher, RawWatcher, Sight, Stopping
from benchmarks.owner import OPTIONS, PATIENCE, channel, check
from benchmarks.result import Result, Spread
from lowwater.v1 import workers_pb2 as pb
from lowwater.v1 import workers_pb2_grpc
from tests.kit.eventually import eventually
from tests.process.sharding import DEAD_AFTER, Shard, Sharded, move, served


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    samples: int
    """Number of samples of the lag in one round."""
    slices: tuple[int, ...]
    """Into how many the computation is cut that reports all the time."""
    loads: int
    """Rounds of that, for each number of slices."""
    seconds: float
    """Seconds of one such round."""
    kills: int
    """Number of kills of each kind."""


FULL: Final = Size(rounds=10, samples=60, slices=(10, 100, 1000), loads=3, seconds=3.0, kills=10)
QUICK: Final = Size(rounds=2, samples=5, slices=(2, 4), loads=1, seconds=0.3, kills=1)

PAUSE: Final = 0.03
"""Seconds between samples of the lag, give or take a half."""

RANGES: Final = 10
"""Key ranges of each worker that reports all the time."""

CONNECTIONS: Final = 4
"""Number of connections of those workers to each shard."""

CUT: Final = 4
"""Slices of the computations whose lag and recovery are measured."""

TICK: Final = 0.01
"""Seconds between the reports of a worker while shards are killed."""

WHOLE: Final = "the same computation, not cut"


def even_slices(count: int) -> list[bytes]:
    """Return keys of two bytes that cut all keys into so many slices of about one size."""
    return [(index * 65_536 // count).to_bytes(2, "big") for index in range(1, count)]


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    return [*_lags(folder / "lag", size), *_loads(folder / "load", size), *_kills(folder / "kill", size)]


# -- the lag ---------------------------------------------------------------------------------------


class Lag:
    """Time from a report to a subscriber that has its effect, with the client library.

    See hops.Hop.
    """

    def __init__(self, deployment: Sharded, name: str) -> None:
        self._lw = deployment.connect(timeout=PATIENCE)
        worker = self._lw.worker(name)
        self._lows: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._value = time.time_ns() // 1000 - BACK
        leases = [worker.claim(part.start, part.end) for part in self._lw.slices(name)]
        for lease in leases[1:]:
            lease.advance(None, oldest=None, frontier=self._value + BACK)
            lease.flush(PATIENCE)
        self._lease = leases[0]  # which holds the others up from now on
        self._name = name
        threading.Thread(target=self._follow, daemon=True).start()
        self._say()

    def _follow(self) -> None:
        for view in self._lw.watch(self._name):
            self._lows.put(view.low.micros)

    def _say(self) -> None:
        self._value += 1
        self._lease.advance(None, oldest=self._value, frontier=self._value)

    def sample(self) -> float:
        """See Hop. The subscriber must hold exactly what was reported."""
        begin = time.perf_counter()
        self._say()
        while self._lows.get(timeout=PATIENCE) != self._value:
            pass
        return time.perf_counter() - begin

    def close(self) -> None:
        """Follow no more."""
        self._lw.close()


def _lags(folder: Path, size: Size) -> list[Result]:
    names = {"whole": None, "same_shard": 0, "other_shard": 1}
    with Sharded(folder, 2, flags=UNLIMITED) as deployment, ExitStack() as stack:
        with deployment.connect(timeout=PATIENCE) as lw:
            for name, place in names.items():
                lw.register(name, slices=() if place is None else even_slices(2))
                move(lw, deployment.shards[place or 0], name)
                if place is not None:
                    move(lw, deployment.shards[0], f"{name}~0", f"{name}~1")
                    lw.reset(name)  # so that slices look again where it is
        whole, *cut = take_turns(
            [stack.enter_context(closing(Lag(deployment, name))) for name in names], size.rounds, size.samples, PAUSE
        )
    facts = {"ranges": 2, "slices": 2, "n": size.rounds * size.samples}
    return [
        Result(
            "tree",
            f"lag_{name}_p{percent}",
            Spread.percentile(value, percent),
            "ms",
            f"{WHOLE}, p{percent}",
            Spread.percentile(whole, percent),
            facts,
        )
        for name, value in zip(list(names)[1:], cut, strict=True)
        for percent in (50, 99)
    ]


# -- reports all the time --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """Totals of one round, a second."""

    updates: float
    """Updates of all workers."""
    messages: float
    """Report messages that the root's shard had from other shards."""
    appends: float
    """Records in the log of the root."""
    root: float
    """The share of a core that the root's shard took."""
    others: float
    """The same of each of the others, on average."""


class Workers:
    """One worker for each slice of a computation, or for each such part of an uncut one.

    Each sends when its last message is acknowledged.
    """

    def __init__(self, lw: lowwater.Client, name: str, keys: Sequence[bytes]) -> None:
        self.name = name
        owner = {computation: shard.address for shard in lw.shards() for computation in shard.computations}
        cut = lw.slices(name)
        names = [part.name for part in cut] if len(cut) > 1 else [name] * (len(keys) + 1)
        bounds = [b"", *keys, b""]
        self.claims: list[tuple[str, str, int]] = []
        """Where, of what, by which sequencer."""
        channels = {address: channel(address) for address in set(owner.values())}
        for number, slice_name in enumerate(names):
            start, end = bounds[number], bounds[number + 1]
            inner = [start.ljust(2, b"\0") + bytes([i]) for i in range(1, RANGES)]
            request = pb.ClaimRequest(
                computation=slice_name,
                bounds=[start, *inner, end],
                worker=f"worker-{number}",
                request_id=os.urandom(16),
            )
            stub = workers_pb2_grpc.WorkerServiceStub(channels[owner[slice_name]])
            self.claims.append((owner[slice_name], slice_name, stub.Claim(request, timeout=PATIENCE).sequencer))
        for used in channels.values():
            used.close()

    async def report(self, seconds: float) -> dict[str, int]:
        """Report for so long; returns how many messages each shard has acknowledged."""
        async with AsyncExitStack() as stack:
            options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
            channels = {
                address: [
                    await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
                    for _ in range(CONNECTIONS)
                ]
                for address in {address for address, _, _ in self.claims}
            }
            calls = []
            for number, (address, _, _) in enumerate(self.claims):
                method: grpc.aio.StreamStreamMultiCallable[bytes, pb.ReportResponse] = channels[address][
                    number % CONNECTIONS
                ].stream_stream(METHOD, response_deserializer=pb.ReportResponse.FromString)
                call = method()
                await call.write(wire.opening(os.urandom(16), 1))
                await call.read()
                calls.append(call)
            until = time.perf_counter() + seconds
            sending = [
                _send(call, name, sequencer, until)
                for call, (_, name, sequencer) in zip(calls, self.claims, strict=True)
            ]
            done = await asyncio.gather(*sending)
        reports: dict[str, int] = dict.fromkeys(channels, 0)
        for (address, _, _), messages in zip(self.claims, done, strict=True):
            reports[address] += messages
        return reports


async def _send(
    call: grpc.aio.StreamStreamCall[bytes, pb.ReportResponse], name: str, sequencer: int, until: float
) -> int:
    number = 0
    while time.perf_counter() < until:
        number += 1
        values = np.full(RANGES, time.time_ns() // 1000 - BACK, dtype=np.int64)
        await call.write(wire.report(number, name, sequencer, values))
        acknowledged = 0
        while acknowledged < number:
            response = await call.read()
            assert isinstance(response, pb.ReportResponse), "the stream has ended"
            if response.HasField("ack"):
                check(response.ack)
                acknowledged = response.ack.number
    call.cancel()
    return number


def _loads(folder: Path, size: Size) -> list[Result]:
    results = []
    for slices in size.slices:
        cut, whole = _load(folder / str(slices), slices, size)
        results += _results_of(slices, cut, whole)
    return results


def _load(folder: Path, slices: int, size: Size) -> tuple[list[Told], list[Told]]:
    with Sharded(folder, 3, dead_after=10.0, flags=UNLIMITED) as deployment, deployment.connect(timeout=PATIENCE) as lw:
        keys = even_slices(slices)
        lw.register("cut", slices=keys)
        lw.register("whole")
        move(lw, deployment.shards[0], "cut", "whole")
        lw.reset("cut")  # so that slices look again where it is
        names = {"cut", *(part.name for part in lw.slices("cut"))}
        eventually(lambda: names <= {name for shard in lw.shards() for name in shard.computations})
        began = time.perf_counter()
        eventually(lambda: _all_claimed(lw, slices))
        print(f"{slices} slices are heard of {time.perf_counter() - began:.2f} s after a reset", file=sys.stderr)
        workers = [Workers(lw, name, keys) for name in ("cut", "whole")]
        asyncio.run(workers[0].report(size.seconds / 3))
        eventually(lambda: not lw.get("cut")["cut"].low.unknown)
        figures: list[list[Told]] = [[], []]
        for _ in range(size.loads):
            for worker, into in zip(workers, figures, strict=True):
                into.append(_round(deployment, worker, size.seconds))
    return figures[0], figures[1]


def _all_claimed(lw: lowwater.Client, slices: int) -> bool:
    """Return whether all slices have claimed at the root, which acknowledges nothing before."""
    return sum(key_range.state is lowwater.RangeState.OWNED for key_range in lw.ranges("cut", limit=slices)) == slices


def _round(deployment: Sharded, workers: Workers, seconds: float) -> Told:
    root, *others = deployment.shards

    def read() -> tuple[float, int, float, list[float]]:
        entries = deployment.redis.execute(
            "XREVRANGE", f"{{lowwater:default}}:records:{workers.name}", "+", "-", "COUNT", 1
        )
        position = int(entries[0][0].partition(b"-")[0]) if entries else 0
        return reports_of(root), position, processor(root), [processor(shard) for shard in others]

    before, begin = read(), time.perf_counter()
    done = asyncio.run(workers.report(seconds))
    took, after = time.perf_counter() - begin, read()
    return Told(
        sum(done.values()) * RANGES / took,
        max(0.0, after[0] - before[0] - done.get(root.address, 0)) / took,
        (after[1] - before[1]) / took,
        (after[2] - before[2]) / took,
        sum(b - a for a, b in zip(before[3], after[3], strict=True)) / took / len(others),
    )


def processor(shard: Shard) -> float:
    """Seconds of a processor that a shard has taken."""
    assert shard.process is not None
    return Server(shard.address, shard.process.pid).processor_seconds() or 0.0


def reports_of(shard: Shard) -> float:
    """Report messages that a shard has answered."""
    lines = exported(shard)
    return next(float(line.split()[1]) for line in lines if line.startswith("lowwater_reports_total "))


def exported(shard: Shard) -> list[str]:
    """Return the metrics of a shard, line by line."""
    with urllib.request.urlopen(shard.metrics, timeout=PATIENCE) as answer:
        return str(answer.read(), "utf-8").splitlines()


def _results_of(slices: int, cut: Sequence[Told], whole: Sequence[Told]) -> list[Result]:
    def spread(rounds: Sequence[Told], value: Callable[[Told], float]) -> Spread:
        return Spread(tuple(max(value(figures), 1e-3) for figures in rounds))

    facts = {"ranges": slices * RANGES, "slices": slices, "shards": 3, "n": len(cut)}
    updates = Result(
        "tree",
        f"updates_per_second_{slices}",
        spread(cut, lambda figures: figures.updates),
        "updates/s",
        WHOLE,
        spread(whole, lambda figures: figures.updates),
        facts,
    )
    messages = Result(
        "tree",
        f"root_messages_per_second_{slices}",
        spread(cut, lambda figures: figures.messages),
        "messages/s",
        "messages/s of all workers",
        spread(cut, lambda figures: figures.updates / RANGES),
        facts,
    )
    appends = Result(
        "tree",
        f"root_appends_per_second_{slices}",
        spread(cut, lambda figures: figures.appends),
        "appends/s",
        WHOLE,
        spread(whole, lambda figures: figures.appends),
        facts,
    )
    share = Result(
        "tree",
        f"root_share_{slices}",
        spread(cut, lambda figures: 100 * figures.root),
        "% of a core",
        "each of the two shards beside it, with as many slices",
        spread(cut, lambda figures: 100 * figures.others),
        facts,
    )
    return [updates, messages, appends, share]


# -- kills -----------------------------------------------------------------------------------------


class Clock(Stopping):
    """A worker of some key ranges that says what the time is, again and again."""

    def __init__(self, client: lowwater.Client, name: str, start: bytes, end: bytes) -> None:
        super().__init__()
        self._client = client
        self._lease = client.worker(name).claim(start, end)

    def run(self) -> None:
        while not self.stopping.wait(TICK):
            self._lease.advance(None, oldest=None, frontier=now())

    def stop(self) -> None:
        super().stop()
        self._client.close()


def now() -> int:
    """The time, in microseconds."""
    return time.time_ns() // 1000


class Seen(Board):
    """Watermarks that subscribers held, checked for values that go back or lie in the future."""

    def most(self, name: str) -> int:
        """No worker says more than the time."""
        del name
        return now()

    def newer(self, by: str, name: str, than: int) -> Sight | None:
        """The first sight of a value that was reported after some time."""
        return next((sight for sight in self.sights if (sight.by, sight.name) == (by, name) and sight.low > than), None)

    def wait_for_newer(self, names: Sequence[str], than: int) -> None:
        """Wait until each subscriber of each holds such a value."""
        value = self.wait_for(
            lambda _: all(self.newer(by, name, than) for name in names for by in (RAW, LIBRARY)), PATIENCE
        )
        assert value, f"nothing of {', '.join(names)} that is newer than {than}, but {self.sights[-5:]}"


@contextmanager
def _killing(folder: Path) -> Iterator[tuple[Sharded, lowwater.Client, Seen]]:
    """Three shards: the root of ``cut`` on the first, its slices on the others.

    ``whole`` is on the second.
    """
    with Sharded(folder, 3, flags=UNLIMITED) as deployment, ExitStack() as stack:
        lw = stack.enter_context(deployment.connect(timeout=PATIENCE))
        keys = even_slices(CUT)
        lw.register("cut", slices=keys)
        lw.register("whole")
        _place(deployment, lw)
        board = Seen({"cut": (), "whole": ()}, {})
        running: list[Stopping] = [
            Clock(deployment.connect(), name, part.start, part.end)
            for name in ("cut", "whole")
            for part in lw.slices("cut")
        ]
        running += [
            RawWatcher(board, name, [shard.address for shard in deployment.shards]) for name in ("cut", "whole")
        ]
        running.append(LibraryWatcher(board, ["cut", "whole"], deployment.connect()))
        for watcher in running:
            watcher.start()
            stack.callback(watcher.stop)
        board.wait_for_newer(["cut", "whole"], now())
        yield deployment, lw, board
        assert not (failed := [watcher.failure for watcher in running if watcher.failure is not None]), failed
        assert not board.wrong, board.wrong[:10]


def _place(deployment: Sharded, lw: lowwater.Client) -> None:
    first, *others = deployment.shards
    move(lw, first, "cut")
    move(lw, others[0], "whole")
    for number in range(CUT):
        move(lw, others[number % len(others)], f"cut~{number}")


def _kills(folder: Path, size: Size) -> list[Result]:
    kinds = {"slice": (1, "cut"), "root": (0, "cut"), "whole": (1, "whole")}
    took: dict[str, dict[str, list[float]]] = {kind: {RAW: [], LIBRARY: []} for kind in kinds}
    with _killing(folder) as (deployment, lw, board):
        order = [kind for _ in range(size.kills) for kind in kinds]
        random.Random(1).shuffle(order)
        for kind in order:
            place, name = kinds[kind]
            victim = deployment.shards[place]
            board.clear()
            killed, at = now(), time.monotonic()
            victim.kill()
            board.wait_for_newer([name], killed)
            for by, into in took[kind].items():
                sight = board.newer(by, name, killed)
                assert sight is not None
                into.append(sight.at - at)
            print(f"{kind}: {took[kind][RAW][-1]:.2f} s, {took[kind][LIBRARY][-1]:.2f} s", file=sys.stderr, flush=True)
            victim.start()
            eventually(lambda: len(lw.shards()) == len(deployment.shards))
            eventually(lambda: _at_home(lw, deployment))
            board.wait_for_newer(["cut", "whole"], now())
    facts = {"ranges": CUT, "slices": CUT, "shards": 3, "n": size.kills}
    results = []
    for kind in ("slice", "root"):
        for by in (RAW, LIBRARY):
            for metric, percent in (("p50", 50), ("p99", 99), ("max", 100)):
                ours, theirs = (Spread((float(np.percentile(took[name][by], percent)),)) for name in (kind, "whole"))
                more: dict[str, object] = {"dead_after": DEAD_AFTER}
                if percent == 50:
                    more["kills"] = [round(seconds, 3) for seconds in sorted(took[kind][by])]
                baseline = f"{WHOLE}, {metric}"
                results.append(
                    Result("tree", f"{kind}_lost_{by}_{metric}", ours, "s", baseline, theirs, {**facts, **more})
                )
    return results


def _at_home(lw: lowwater.Client, deployment: Sharded) -> bool:
    first, second, third = (served(lw, shard) for shard in deployment.shards)
    return "cut" in first and {"whole", "cut~0", "cut~2"} <= set(second) and {"cut~1", "cut~3"} <= set(third)
