"""What owners ask of a computation, decoded: plain values and numpy columns, no protobuf."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from lowwater.views import NO_REMARKS, Remarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lowwater_authority.core.budget import Lateness
    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.groups import Mass


Made = TypeVar("Made")

DIGESTED_TOGETHER: Final = 1024
"""Bounds of a claim."""

PIECE: Final = 32 * DIGESTED_TOGETHER
"""Bounds of a claim that are looked at at one go: some 5 ms."""

NO_DIGEST: Final = b"none yet"
"""The digest of a request of which it is still being made."""


Pieces = Generator[None, None, Made]
"""Work that yields wherever others may have their turn, and returns what it makes."""


def finished(pieces: Generator[object, None, Made]) -> Made:
    """Do all the work at once."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            made: Made = end.value
            return made


@dataclass(frozen=True, slots=True, eq=False)
class ClaimRequest:
    """Asks for the ranges between ``bounds``; see the wire's ClaimRequest for the fields."""

    bounds: Sequence[bytes]
    worker: str = ""
    host: str = ""
    identity: str = ""
    generation: int = 0
    ordinal: int = 0
    request_id: bytes = b""
    bound_micros: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    batch_digest: bytes = b""
    digest: bytes = b""
    """Of all the others, as they were asked first."""
    instead_of: int = 0

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", finished(self.digested()))

    def digested(self) -> Pieces[bytes]:
        """Make the digest, piece by piece. O(bounds)."""
        names = [self.worker.encode(), self.host.encode(), self.identity.encode(), self.batch_digest, self.request_id]
        if self.instead_of:  # releases before it made the digest of the others
            names.append(b"instead of %d" % self.instead_of)
        parts = [*names, b"%d %d" % (self.generation, self.ordinal), self.bound_micros.tobytes(), *self.bounds]
        found = sha256(b"%d" % len(parts))
        # A thousand at a time, which the processor's cache holds: two million at once take three
        # times as long.
        for first in range(0, len(parts), DIGESTED_TOGETHER):
            some = parts[first : first + DIGESTED_TOGETHER]
            found.update(np.fromiter(map(len, some), dtype=np.uint32, count=len(some)).tobytes())
            found.update(b"".join(some))
            if first % PIECE == PIECE - DIGESTED_TOGETHER:
                yield
        return found.digest()[:16]


class Fold(NamedTuple):
    """Which inputs a value was folded from: the version of the list, and each one's incarnation."""

    input_version: int
    input_incarnations: tuple[int, ...]


NO_FOLD: Final = Fold(0, ())
"""What an injector names: it has no inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupReport:
    """One claim's state. ``handles`` None means all; one watermark stands for all the handles."""

    sequencer: int
    watermarks: Int64s
    handles: npt.NDArray[np.uint32] | None = None
    finish: bool = False
    fold: Fold = NO_FOLD
    oldest_operation: int = 0
    mass: Mass | None = None
    turn: int = 0
    """Orders the claim's reports whoever carries them; 0: by sender and stream."""
    waiting_for: str = ""
    """What its worker waits for, for people."""
    remarks: Remarks = NO_REMARKS
    """Remarks that the worker reports about itself, for people."""
    lateness: Lateness | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """Ranges of a report that were not taken over, and why. ``handles`` None means all."""

    sequencer: int
    reason: str
    message: str
    handles: npt.NDArray[np.uint32] | None = None
    newest: int = 0
    """With OLD_STREAM: the newest stream, or turn, that was heard of."""


class Fenced(NamedTuple):
    """Handles that a claim lost, to be told to its worker. ``handles`` None means all."""

    computation: str
    sequencer: int
    handles: Sequence[int] | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """An accepted claim: its sequencer, where its ranges stand, and who lost what."""

    sequencer: int
    watermarks: Int64s
    reference: int
    fenced: tuple[Fenced, ...] = ()


class Granted(NamedTuple):
    """What a request id was granted, and for which request."""

    sequencer: int
    asked: bytes
    """The digest of the request; empty when it was journaled by a release that kept none."""


class TaskAttempt(NamedTuple):
    """One attempt of one Spark task."""

    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class TaskPart:
    """What a task holds after its part of a micro-batch; MAX in ``oldest`` means nothing."""

    handles: npt.NDArray[np.uint32]
    oldest: Int64s
    pending_starts: Int64s
    pending_counts: Int64s
    finished: int


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """The accepted attempts of a micro-batch and what it may claim; see the wire's PrepareBatchRequest."""

    sequencer: int
    batch: int
    digest: bytes
    tasks: Sequence[TaskAttempt]
    bound: int
    covers_all: bool
    fold: Fold
    oldest_operation: int
    frontiers: dict[int, int]
