"""Shards under all the load that they take: whether any of them is ever replaced although it lives.

``python -m benchmarks.steady [SECONDS]`` prints one JSON object. It is no part of ``python -m
benchmarks``: an hour is what it is for.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, cast

import numpy as np
import redis

import lowwater
from benchmarks.result import machine
from benchmarks.shard_failover import TAG
from lowwater_authority.cluster.membership import View
from tests.kit.eventually import eventually
from tests.process.sharding import Sharded, balanced, spread

SHARDS: Final = 3
COMPUTATIONS: Final = 2
"""Number of computations of each shard; each has a worker that never rests."""
RANGES: Final = 10_000
REWRITTEN_AT: Final = "256mb"
"""How long the append-only file of Redis is when it is rewritten first, and then each time that it
has doubled."""
LOOK: Final = 0.02
"""Seconds between two looks at when Redis heard of the shards."""


class Worker(threading.Thread):
    """Reports new values of all its ranges, and again as soon as they are durable."""

    def __init__(self, lw: lowwater.Client, name: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        bounds = [b"", *(number.to_bytes(4, "big") for number in range(1, RANGES)), b""]
        self._lease = lw.worker(name).claim(bounds=bounds)
        self._ended = stop
        self.reports = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        values = np.arange(RANGES, dtype=np.int64)
        try:
            while not self._ended.is_set():
                values += 1_000_000
                self._lease.advance(None, oldest=cast("Sequence[int]", values), frontier=int(values[-1]))
                self._lease.flush(60.0)
                self.reports += 1
        except Exception as error:  # noqa: BLE001 - the result tells it
            self.failure = error


def run(folder: Path, seconds: float) -> dict[str, object]:
    """Measure for so long."""
    with Sharded(folder, SHARDS) as sharded, ExitStack() as stack:
        lw = stack.enter_context(sharded.connect(timeout=60.0))
        store = stack.enter_context(redis.Redis(port=sharded.redis.port, protocol=2))
        # As anybody's Redis does: else an hour of this fills a disk.
        store.config_set("auto-aof-rewrite-min-size", REWRITTEN_AT)
        store.config_set("auto-aof-rewrite-percentage", 100)
        names = balanced("full-", COMPUTATIONS, *sharded.shards)
        for name in names:
            lw.register(name)
        eventually(lambda: spread(lw, names, *sharded.shards))
        stop = threading.Event()
        workers = [Worker(stack.enter_context(sharded.connect(timeout=60.0)), name, stop) for name in names]
        before = {name: view.epoch for name, view in lw.get(*names).items()}
        first = _view(store)
        for worker in workers:
            worker.start()
        silences = np.array(_silences(store, {member.id for member in first.members}, seconds))
        stop.set()
        for worker in workers:
            worker.join()
        after = {name: view.epoch for name, view in lw.get(*names).items()}
        last = _view(store)
        reports = sum(worker.reports for worker in workers)
        return {
            "benchmark": "steady",
            "seconds": seconds,
            "shards": SHARDS,
            "updates_per_second": round(reports * RANGES / seconds),
            "take_overs": sum(after[name] - epoch for name, epoch in before.items()),
            "members_replaced": len({member.id for member in first.members} - {member.id for member in last.members}),
            "seemed_dead": sum(shard.log.count('"member_gone"') for shard in sharded.shards),
            "silence_ms_p50_p99_max": [round(float(silence), 1) for silence in np.percentile(silences, [50, 99, 100])],
            "failures": [repr(worker.failure) for worker in workers if worker.failure],
            **machine(),
        }


def _view(store: redis.Redis) -> View:
    payload = store.hget(f"{TAG}:view", "view")
    assert isinstance(payload, bytes)
    return View.decode(payload)


def _silences(store: redis.Redis, ids: set[str], seconds: float) -> list[float]:
    """Return for how long Redis had not heard of each shard, look by look, in milliseconds."""
    figures = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pipeline = store.pipeline(transaction=False)
        pipeline.time()
        pipeline.hgetall(f"{TAG}:beats")
        (second, micro), beats = pipeline.execute()
        now = second * 1_000_000 + micro
        figures += [(now - int(at)) / 1e3 for member, at in beats.items() if member.decode() in ids]
        time.sleep(LOOK)
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(run(Path(scratch), float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0)))
