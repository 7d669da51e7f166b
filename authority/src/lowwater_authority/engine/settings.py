"""Sizes and times that a shard works by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Bounds and waiting times of one shard. Times are in seconds; pairs are (first, longest)."""

    snapshot_bytes: int = 4 << 20
    """Least bytes of records behind a snapshot that make the next one due. There must also be twice
    as many as the snapshot has."""
    graph_bytes: int = 64 << 10
    """The same for the log of the graph. Smaller, because all processes read that log again after
    each change by another process."""
    snapshot_piece: int = 256 << 10
    """Bytes of a snapshot that are made before other tasks run: about a millisecond."""
    piece_bytes: int = 128 << 10
    """Bytes of a log that are replayed before other tasks run: a few milliseconds."""
    queued_requests: int = 65_536
    """Most requests that wait for a round."""
    round_seconds: float = 0.01
    """Time after which a round stages no more changes of the graph."""
    wait_seconds: float = 5.0
    """Longest wait of a request for the store: the longest time that one exchange with it takes."""
    write_again_seconds: tuple[float, float] = (0.05, 30.0)
    """Waits before a computation that the store lacks is written, or read, again."""
    slice_answer_seconds: float = 1.0
    """Longest wait of a slice's answer for the root. A worker has only one report under way, so
    this is no longer than a fail-over."""
    slice_beat_seconds: float = 5.0
    """Time after which a slice repeats an unchanged report. So the root does not count the slice as
    silent, and the slice learns that it has lost its range."""
    slice_look_seconds: float = 0.5
    """Time after which an idle slice checks whether it has lost its range. A loss wakes no slice.
    """
    slice_again_seconds: tuple[float, float] = (0.05, 2.0)
    """Waits before a slice asks a root again that has not answered, or has refused."""
    task_look_seconds: float = 1.0
    """Time after which a worker's wait for a task checks that the shard still serves the
    computation."""
