"""Decoded requests of owners: plain values and numpy columns, no protobuf."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from lowwater import errors
from lowwater.views import NO_REMARKS, Remarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lowwater_authority.core.budget import Lateness
    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.groups import Mass


Result = TypeVar("Result")

DIGESTED_TOGETHER: Final = 1024
"""Bounds that are hashed at once."""

PIECE: Final = 32 * DIGESTED_TOGETHER
"""Bounds that are processed before other work may have its turn: some 5 ms."""

NO_DIGEST: Final = b"none yet"
"""Digest of a request until its digest is made."""


Pieces = Generator[None, None, Result]
"""Work that yields wherever other work may have its turn, and returns a result."""


def finished(pieces: Generator[object, None, Result]) -> Result:
    """Do all the work at once and return the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result


def bad_field(path: str, problem: str, fix: str, **facts: str) -> errors.InvalidArgument:
    """Return the error for a field of a request that cannot be; ``facts`` are further metadata."""
    return errors.InvalidArgument(f"{path} {problem}; {fix}", metadata={**facts, "field": path, "fix": fix})


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
    """Digest of all other fields, as of the first request."""
    instead_of: int = 0

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", finished(self.digested()))

    def digested(self) -> Pieces[bytes]:
        """Make the digest, piece by piece. O(bounds)."""
        names = [self.worker.encode(), self.host.encode(), self.identity.encode(), self.batch_digest, self.request_id]
        if self.instead_of:  # without it, the digest is that of releases that do not know the field
            names.append(b"instead of %d" % self.instead_of)
        parts = [*names, b"%d %d" % (self.generation, self.ordinal), self.bound_micros.tobytes(), *self.bounds]
        sha = sha256(b"%d" % len(parts))
        # A thousand at a time fit into the processor's cache; two million take three times as long.
        for first in range(0, len(parts), DIGESTED_TOGETHER):
            together = parts[first : first + DIGESTED_TOGETHER]
            sha.update(np.fromiter(map(len, together), dtype=np.uint32, count=len(together)).tobytes())
            sha.update(b"".join(together))
            if first % PIECE == PIECE - DIGESTED_TOGETHER:
                yield
        return sha.digest()[:16]


class Fold(NamedTuple):
    """The inputs of a folded value: the version of their list, and the incarnation of each."""

    input_version: int
    input_incarnations: tuple[int, ...]


NO_FOLD: Final = Fold(0, ())
"""Fold of an injector, which has no inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupReport:
    """One claim's state. ``handles`` None: all; a single watermark counts for all handles."""

    sequencer: int
    watermarks: Int64s
    handles: npt.NDArray[np.uint32] | None = None
    finish: bool = False
    fold: Fold = NO_FOLD
    oldest_operation: int = 0
    mass: Mass | None = None
    turn: int = 0
    """Order of the claim's reports across senders; 0: they are ordered by sender and stream."""
    waiting_for: str = ""
    """Cause for which the worker waits, for people."""
    remarks: Remarks = NO_REMARKS
    """Remarks of the worker about itself, for people."""
    lateness: Lateness | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """Refused ranges of a report, and the reason. ``handles`` None: all."""

    sequencer: int
    reason: str
    message: str
    handles: npt.NDArray[np.uint32] | None = None
    newest: int = 0
    """Newest known stream or turn, with OLD_STREAM."""


class Fenced(NamedTuple):
    """Handles that a claim lost, for its worker. ``handles`` None: all."""

    computation: str
    sequencer: int
    handles: Sequence[int] | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """An accepted claim: its sequencer, the values of its ranges, and what other claims lost."""

    sequencer: int
    watermarks: Int64s
    reference: int
    fenced: tuple[Fenced, ...] = ()


class Granted(NamedTuple):
    """The claim that was granted under a request id."""

    sequencer: int
    digest: bytes
    """Digest of the request; empty in records of releases without digests."""


class TaskAttempt(NamedTuple):
    """One attempt of one Spark task."""

    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class TaskPart:
    """A task's part of a micro-batch. ``oldest`` by handle; MAX: no work is left."""

    handles: npt.NDArray[np.uint32]
    oldest: Int64s
    pending_starts: Int64s
    pending_counts: Int64s
    finished: int


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """The accepted attempts of a micro-batch; see the wire's PrepareBatchRequest."""

    sequencer: int
    batch: int
    digest: bytes
    tasks: Sequence[TaskAttempt]
    bound: int
    covers_all: bool
    fold: Fold
    oldest_operation: int
    frontiers: dict[int, int]
