"""A client process of the soak: workers that never rest, or readers that come and go.

Prints what it did, now and then, as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import lowwater
from benchmarks.workload import Int64s

BLOCKS: Final = 5
"""Claims of a computation."""

SHARES: Final = (1.0, 0.5, 1.5)
"""Sizes of the ranges by which a block is claimed, in turns: its ranges merge and split."""

TICK: Final = 0.05
"""Seconds between two deeds."""

TELL: Final = 5.0
"""Seconds between two lines about what was done."""

PATIENCE: Final = 60.0
"""Seconds for an answer: the soak may get little of the machine."""

KEYS: Final = 1 << 32

SECOND: Final = 1_000_000


def parser() -> argparse.ArgumentParser:
    """Return the arguments."""
    parse = argparse.ArgumentParser("python -m benchmarks.soak_child")
    parse.add_argument("role", choices=["work", "watch"])
    parse.add_argument("addresses")
    parse.add_argument("names", nargs="+", help="computations")
    parse.add_argument("--ranges", type=int, default=0, help="of each computation")
    parse.add_argument("--seed", type=int, default=0)
    return parse


class Told:
    """Record of the work done."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self._next = 0.0

    def tell(self) -> None:
        """Print it, if that was not done lately."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + TELL
            print(json.dumps(self.done), flush=True)


# -- work ------------------------------------------------------------------------------------------


def keys(first: int, end: int, count: int) -> list[bytes]:
    """Return the bounds of ``count`` ranges between two keys; the outer ends are open."""
    bounds_ = [int(key).to_bytes(4, "big") for key in np.linspace(first, end, count + 1).astype(np.int64)[:-1]]
    bounds_[0] = b"" if first == 0 else bounds_[0]
    return [*bounds_, b"" if end == KEYS else int(end).to_bytes(4, "big")]


class Block:
    """A part of a computation's keys, owned by one claim after the other."""

    def __init__(self, worker: lowwater.Worker, reads: bool, first: int, end: int, ranges: int, log: Told) -> None:
        self._worker = worker
        self._reads = reads
        self._first = first
        self._end = end
        self._ranges = ranges
        self._log = log
        self._turns = itertools.cycle(SHARES)
        self._lease: lowwater.Lease | None = None
        self._spread: Int64s = np.zeros(0, dtype=np.int64)

    def claim(self, shift: float = 0.0) -> None:
        """Claim the block anew, with more ranges or fewer.

        The claim is shifted by a share of its keys into the next block, whose worker loses them.
        """
        count = max(1, int(self._ranges * next(self._turns)))
        shifted = int((self._end - self._first) * shift)
        end = min(self._end + shifted, KEYS)
        self._lease = self._worker.claim(bounds=keys(self._first + shifted, end, count))
        self._spread = np.random.default_rng(count).integers(0, 60 * SECOND, count)
        self._log.done["claims"] += 1

    def report(self) -> None:
        """Say how far it is: about the time of day."""
        if self._lease is None:
            self.claim()
        assert self._lease is not None
        try:
            self._say(self._lease)
        except lowwater.StaleSequencer:
            self._log.done["lost"] += 1
            self._lease = None
        self._log.done["reports"] += 1

    def _say(self, lease: lowwater.Lease) -> None:
        now = time.time_ns() // 1000
        # The annotations know no numpy arrays.
        oldest: Any = now - self._spread
        if self._reads:
            lease.advance(self._worker.inputs(), oldest=oldest)
        else:
            lease.advance(None, oldest=oldest, frontier=now)

    def release(self) -> None:
        """Give it back; it is claimed anew when it is to report next."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.release()
            self._log.done["releases"] += 1


def work(client: lowwater.Client, names: Sequence[str], ranges: int, rng: random.Random, log: Told) -> None:
    """Report, claim again, and lose claims, for ever."""
    reads = {computation.name: bool(computation.inputs) for computation in client.topology().computations.values()}
    blocks = []
    for name in names:
        points = [KEYS * number // BLOCKS for number in range(BLOCKS + 1)]
        blocks += [
            Block(client.worker(name, name=f"{name}-{first}"), reads[name], first, end, ranges // BLOCKS, log)
            for first, end in itertools.pairwise(points)
        ]
    pause = threading.Event()
    turn = itertools.cycle(blocks)
    for number in itertools.count(1):
        block = next(turn)
        try:
            block.report()
            if number % 17 == 0:
                rng.choice(blocks).claim()
            if number % 41 == 0:
                rng.choice(blocks).claim(shift=0.5)
            if number % 97 == 0:
                rng.choice(blocks).release()
        except lowwater.LowwaterError as error:
            log.done[type(error).__name__] += 1
        log.tell()
        pause.wait(TICK)


# -- watch -----------------------------------------------------------------------------------------


def follow(client: lowwater.Client, names: Sequence[str], seconds: float, log: Told) -> None:
    """Follow computations for a while, with a fold of them beside."""
    deadline = time.monotonic() + seconds
    with client.inputs(*names) as reader:
        for _ in client.watch(*names):
            log.done["values"] += 1
            reader.read()
            if time.monotonic() > deadline:
                return


def watch(client: lowwater.Client, names: Sequence[str], rng: random.Random, log: Told) -> None:
    """Subscribe, leave and query for ever, with this client and with clients of a few seconds."""
    pause = threading.Event()
    everything = threading.Thread(target=lambda: [log.done.update(["seen"]) for _ in client.watch()], daemon=True)
    everything.start()
    while True:
        try:
            name = rng.choice(names)
            follow(client, rng.sample(names, 3), 1.0, log)
            with lowwater.Client(client.settings) as brief:
                follow(brief, [name], 0.5, log)
            client.ranges(name, limit=1000)
            client.complete(name, time.time_ns() // 1000)
            client.history(name)
            client.why(name)
            log.done["visits"] += 1
        except lowwater.LowwaterError as error:
            log.done[type(error).__name__] += 1
        log.tell()
        pause.wait(TICK)


def main() -> int:
    """Run until killed."""
    args = parser().parse_args()
    rng, log = random.Random(args.seed), Told()
    with lowwater.connect(args.addresses, timeout=PATIENCE) as client:
        if args.role == "work":
            work(client, args.names, args.ranges, rng, log)
        else:
            watch(client, args.names, rng, log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
