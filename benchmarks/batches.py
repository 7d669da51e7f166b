"""Durable updates a second by how many a message has, against a server that journals nothing."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import child, workload
from benchmarks.ingest import BARE, Contender
from benchmarks.ingest import Size as IngestSize
from benchmarks.owner import BareOwner, Owner
from benchmarks.result import Result, Spread

CLAIMS: Final = 10
MOST_RANGES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    per_message: tuple[int, ...]
    """Updates in a message; there are a thousand messages' worth of ranges, up to a million."""
    rounds: int
    messages: int
    """Number of messages in a round; a tenth as many of the largest."""


FULL: Final = Size((1, 10, 100, 1_000, 10_000, 100_000), rounds=5, messages=3_000)
QUICK: Final = Size((10, 100), rounds=2, messages=50)


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure; one size after the other, each with servers of its own."""
    size = QUICK if quick else FULL
    return [_measure(folder / f"batches{per_message}", per_message, size) for per_message in size.per_message]


def _measure(folder: Path, per_message: int, size: Size) -> Result:
    ranges = min(1_000 * per_message, MOST_RANGES)
    messages = size.messages if per_message * size.messages <= 10 * MOST_RANGES else size.messages // 10
    ingest_size = IngestSize(ranges, per_message, size.rounds, messages, messages, 0)
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "authority"))
        owner = stack.enter_context(closing(Owner(server.address, workload.keys(ranges), CLAIMS)))
        bare = stack.enter_context(child.bare(folder / "bare", ranges))
        sender = stack.enter_context(closing(BareOwner(bare.address, whole=False)))
        contenders = [Contender(kind, ingest_size, messages) for kind in (owner, sender)]
        for _ in range(size.rounds):
            for contender in contenders:
                contender.round()
    ours, theirs = (Spread(tuple(contender.rates)) for contender in contenders)
    facts = {"ranges": ranges, "per_message": per_message, "n": messages * per_message}
    return Result("batches", f"updates_per_second_{per_message}", ours, "updates/s", BARE, theirs, facts)
