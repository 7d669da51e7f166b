"""What a computation still has to do, read from the checkpoint of its query, also while that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowwater.watermark import MAX, Watermark
from lowwater_pipeline.computation.stage import pieces_of, unsent_rows
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.track.segments import Segments
from lowwater_spark.track.state import Place, RangeEntry, StateStore

__all__ = ["Remains", "cut_off"]


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left after a committed batch.

    State of keys without a timer is not: nothing would come of it without another record.
    """

    ranges: int = 0
    """Key ranges with timers, or with records that wait."""
    due: int | None = None
    """The low watermark at which the first of them is due, microseconds; None: none is."""
    wall: int | None = None
    """The same by the clock."""
    unsent: int = 0
    """Rows of weak productions that no broker has acknowledged."""

    @classmethod
    def of(cls, checkpoint: Path) -> Remains:
        """Return what is left after the last committed batch; nothing before the first.

        It reads two small files, O(segments). Raises StateLost, CheckpointMismatch and OSError.
        """
        last = CheckpointLog(checkpoint).last_committed()
        store = None if last is None else StateStore.existing(Place(Manifest(checkpoint), checkpoint))
        version = None if store is None or last is None or last < store.first else store.before(last + 1)
        return cls() if version is None else cls.of_ranges(version.ranges)

    @classmethod
    def of_ranges(cls, ranges: Sequence[RangeEntry]) -> Remains:
        """Return what is left in the key ranges of a version."""
        kept = [[each.facts for each in pieces_of(Segments("", one.segments, one.facts))] for one in ranges]
        due = min((each.due for facts in kept for each in facts), default=MAX)
        wall = min((each.wall for facts in kept for each in facts), default=MAX)
        return cls(
            sum(any(min(each.due, each.wall) != MAX for each in facts) for facts in kept),
            None if due == MAX else due,
            None if wall == MAX else wall,
            sum(unsent_rows(one.segments) for one in ranges),
        )

    def __bool__(self) -> bool:
        return bool(self.ranges or self.unsent)

    def __str__(self) -> str:
        """Return it in words."""
        said: list[str] = []
        if self.ranges:
            said.append(f"timers, or records that wait, in {self.ranges} key ranges")
            said += [f"the first due at the low watermark {Watermark(self.due)}"] if self.due is not None else []
            said += [f"the first by the clock at {Watermark(self.wall)}"] if self.wall is not None else []
        if self.unsent:
            said.append(f"{self.unsent} productions that no broker has acknowledged")
        return ", ".join(said) or "nothing"


def cut_off(checkpoint: Path) -> int | None:
    """Return the batch that has made its version and was not committed; None if there is none.

    What it has read and set stands there alone, and its outputs may be written in part. Raises as
    :meth:`Remains.of`.
    """
    last = CheckpointLog(checkpoint).last_committed()
    following = 0 if last is None else last + 1
    store = StateStore.existing(Place(Manifest(checkpoint), checkpoint))
    return None if store is None or store.version(following) is None else following
