"""Sizes and times that a shard works by; a composition may choose others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ShardSettings"]


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The bounds, and the waiting times in seconds, of one shard."""

    snapshot_bytes: int = 4 << 20
    """A log is snapshotted when the records behind its snapshot outgrow this and twice the
    snapshot."""
    graph_bytes: int = 64 << 10
    """The same for the log of the graph, which all processes read, and read again after each change
    by another one."""
    snapshot_piece: int = 256 << 10
    """Bytes of a snapshot that are made at once: a millisecond."""
    piece_bytes: int = 128 << 10
    """Bytes of a log that are replayed at once: a few milliseconds."""
    queued_requests: int = 65_536
    """Requests that may wait for a round at once."""
    round_seconds: float = 0.01
    """How long a round goes on to stage changes of the graph that share it."""
    wait_seconds: float = 5.0
    """Longest wait of a request for the store: as long as one exchange with the store may take,
    whatever else is queued there."""
    write_again_seconds: tuple[float, float] = (0.05, 30.0)
    """First and longest wait until a computation that the store lacks is written, or read, again.
    """
    slice_answer_seconds: float = 1.0
    """How long an answer of a slice waits for the root. A worker has one report under way, with all
    that it works for: so no longer than a fail-over takes."""
    slice_beat_seconds: float = 5.0
    """How often a slice repeats what it told its root, so that the root does not take it for
    silent, and the slice learns of a lost range."""
    slice_look_seconds: float = 0.5
    """How often a slice that has nothing to say looks whether it has lost its range: a loss wakes
    no slice."""
    slice_again_seconds: tuple[float, float] = (0.05, 2.0)
    """First and longest wait until a slice asks a root again that did not answer, or refused."""
    task_look_seconds: float = 1.0
    """How long a worker that waits for a task waits at most until the shard is asked whether it
    still serves the computation."""
