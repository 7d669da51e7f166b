"""The oracle's parts: sixteen cells of keys, claims, and micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowwater_authority.core.batches import PART_BYTES
from tests.property.second_opinion import MIN, Told

CELLS = 16


def edge(index: int) -> bytes:
    return bytes([index]) if 0 < index < CELLS else b""


class Refusal(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Claim:
    """A granted claim. ``masses`` stand for the records of its ranges; None: nobody knows which those are."""

    sequencer: int
    edges: tuple[int, ...]
    worker: str
    owned: bool = True
    live: set[int] = field(default_factory=set)
    numbers: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    durable_numbers: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    masses: list[Told] | None = None
    mass: Told | None = None
    stand_ins: list[Told] = field(default_factory=list)
    operation: int = 0
    minutes: dict[int, int] = field(default_factory=dict)

    def cells(self, handle: int) -> range:
        return range(self.edges[handle], self.edges[handle + 1])


@dataclass
class Cell:
    """One key's worth of the key space. ``claim`` is who last owned it, unless a newer claim cut its range."""

    value: int = MIN
    state: str = "NEVER"
    claim: Claim | None = None
    handle: int = 0


@dataclass
class Part:
    oldest: dict[int, int]
    pending: list[int]
    finished: int

    @property
    def records(self) -> int:
        return len(self.pending) + self.finished

    @property
    def bytes(self) -> int:
        return PART_BYTES + 12 * len(self.oldest) + 16 * len(set(self.pending))


@dataclass
class Batch:
    sequencer: int
    number: int
    digest: bytes
    bound: int
    covers_all: bool
    frontiers: Mapping[int, int]
    fold: tuple[int, tuple[int, ...]]
    operation: int
    oldest: dict[int, int]
    pending: list[int]
    finished: int
