"""Durable interval updates a second: 10,000 new values in a message, acknowledged when synced."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from benchmarks import child, sorted_set, workload
from benchmarks.owner import BareOwner, Owner
from benchmarks.result import Result, Spread


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement.

    The messages of a round are about a second's worth for each system.
    """

    ranges: int
    per_message: int
    rounds: int
    messages: int
    """Messages to the authority: so many that it writes snapshots meanwhile."""
    bare_messages: int
    redis_messages: int


FULL: Final = Size(1_000_000, 10_000, rounds=5, messages=1_500, bare_messages=3_000, redis_messages=25)
QUICK: Final = Size(20_000, 1_000, rounds=2, messages=40, bare_messages=40, redis_messages=4)

METRICS: Final = {"updates_per_second": 10, "updates_per_second_whole_claims": 1}
"""Messages that a claim takes: each names a tenth of its ranges, or is its whole state, so that no
handles are sent."""

BARE: Final = "bare gRPC + numpy, no journal"
REDIS: Final = {
    "redis sorted set, appendfsync always": sorted_set.DURABLE,
    "redis sorted set, no persistence": sorted_set.IN_MEMORY,
}


class System(Protocol):
    """Takes messages."""

    @property
    def low(self) -> int:
        """The least value of all ranges, as answered."""
        ...

    def encode(self, updates: Iterable[workload.Update]) -> list[bytes]:
        """Make messages, before the clock runs."""
        ...

    def take(self, messages: Sequence[bytes], /) -> None:
        """Send messages as quickly as they are taken, and return when the last is acknowledged."""


class Contender:
    """A system, how much it gets in a round, and what it did."""

    def __init__(self, system: System, size: Size, messages: int) -> None:
        self._system = system
        self._feed = workload.Feed(size.ranges, size.per_message)
        self._messages = messages
        self.rates: list[float] = []
        # Warm up: every range gets a value, so that sorted sets are as large as they will be.
        self._run(size.ranges // size.per_message)

    def round(self) -> None:
        """Measure the updates a second of one round."""
        self.rates.append(self._run(self._messages))

    def _run(self, messages: int) -> float:
        encoded = self._system.encode(self._feed.take(messages))
        begin = time.perf_counter()
        self._system.take(encoded)
        elapsed = time.perf_counter() - begin
        if self._system.low != self._feed.low:
            msg = f"the minimum is {self._system.low}, not {self._feed.low}"
            raise RuntimeError(msg)
        return messages * self._feed.per_message / elapsed


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    keys = workload.keys(size.ranges)
    reason = sorted_set.missing()
    with ExitStack() as stack:
        ours: dict[str, Contender] = {}
        bare: dict[str, Contender] = {}
        redis: dict[str, Contender] = {}
        for metric, parts in METRICS.items():
            server = stack.enter_context(child.authority(folder / metric))
            owner = Owner(server.address, keys, claims=size.ranges // size.per_message // parts)
            ours[metric] = Contender(stack.enter_context(closing(owner)), size, size.messages)
            server = stack.enter_context(child.bare(folder / f"bare_{metric}", size.ranges))
            sender = BareOwner(server.address, whole=parts == 1)
            bare[metric] = Contender(stack.enter_context(closing(sender)), size, size.bare_messages)
        for name, durability in REDIS.items():
            if reason is None:
                store = sorted_set.sorted_set(folder / f"redis{len(redis)}", keys, durability)
                redis[name] = Contender(stack.enter_context(store), size, size.redis_messages)
        for _ in range(size.rounds):
            for contender in (*ours.values(), *bare.values(), *redis.values()):
                contender.round()
    facts = {"ranges": size.ranges, "per_message": size.per_message, "n": size.messages * size.per_message}
    results = []
    for metric, contender in ours.items():
        for name, baseline in {BARE: bare[metric], **dict.fromkeys(REDIS), **redis}.items():
            why = {} if baseline else {"reason": reason}
            value, against = _spread(contender), _spread(baseline) if baseline else None
            results.append(Result("ingest", metric, value, "updates/s", name, against, {**facts, **why}))
    return results


def _spread(contender: Contender) -> Spread:
    return Spread(tuple(contender.rates))
