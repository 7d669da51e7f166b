"""The work that a computation has left, read from its query's checkpoint, also while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowwater.watermark import MAX, Watermark
from lowwater_pipeline.computation.stage import pieces_of, unsent_rows
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.track.segments import Segments
from lowwater_spark.track.state.store import RangeEntry, StageSection, StateStore

__all__ = ["Remains", "cut_off"]


@dataclass(frozen=True, slots=True)
class Remains:
    """The work that is left after a committed batch.

    State of keys without timers is no such work: nothing happens to it without another record.
    """

    ranges: int = 0
    """Key ranges with timers, or with records that wait."""
    due: int | None = None
    """Least low watermark at which a key is due, microseconds; None when no key is."""
    wall: int | None = None
    """Least time of the clock at which a key is due, microseconds; None when no key is."""
    unsent: int = 0
    """Rows of weak productions that no broker has acknowledged."""

    @classmethod
    def of(cls, checkpoint: Path) -> Remains:
        """Return the work left after the last committed batch; none before the first batch.

        Reads two small files, O(segments). Raises StateLost, CheckpointMismatch and OSError.
        """
        last = CheckpointLog(checkpoint).last_committed()
        store = None if last is None else StateStore.existing(StageSection(Manifest(checkpoint), checkpoint))
        version = None if store is None or last is None or last < store.first else store.before(last + 1)
        return cls() if version is None else cls.of_ranges(version.ranges)

    @classmethod
    def of_ranges(cls, ranges: Sequence[RangeEntry]) -> Remains:
        """Return the work left in the key ranges of a version."""
        facts_by_range = [
            [piece.facts for piece in pieces_of(Segments("", entry.segments, entry.facts))] for entry in ranges
        ]
        due = min((piece.due for facts in facts_by_range for piece in facts), default=MAX)
        wall = min((piece.wall for facts in facts_by_range for piece in facts), default=MAX)
        return cls(
            sum(any(min(piece.due, piece.wall) != MAX for piece in facts) for facts in facts_by_range),
            None if due == MAX else due,
            None if wall == MAX else wall,
            sum(unsent_rows(entry.segments) for entry in ranges),
        )

    def __bool__(self) -> bool:
        return bool(self.ranges or self.unsent)

    def __str__(self) -> str:
        """Describe the work left."""
        parts: list[str] = []
        if self.ranges:
            parts.append(f"timers, or records that wait, in {self.ranges} key ranges")
            parts += [f"the first due at the low watermark {Watermark(self.due)}"] if self.due is not None else []
            parts += [f"the first by the clock at {Watermark(self.wall)}"] if self.wall is not None else []
        if self.unsent:
            parts.append(f"{self.unsent} productions that no broker has acknowledged")
        return ", ".join(parts) or "nothing"


def cut_off(checkpoint: Path) -> int | None:
    """Return the batch that made its version and was not committed; None if there is none.

    Its timers and productions are in no committed version, and its outputs may be written in part.
    Raises what :meth:`Remains.of` raises.
    """
    last = CheckpointLog(checkpoint).last_committed()
    following = 0 if last is None else last + 1
    store = StateStore.existing(StageSection(Manifest(checkpoint), checkpoint))
    return None if store is None or store.version(following) is None else following
