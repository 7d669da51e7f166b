"""The facts of a batch: durable before its function runs, and the same in every replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowwater.layout import Layout
from lowwater.watermark import MAX, MIN
from lowwater_spark.track.inputs import Reading

__all__ = ["BatchFacts"]


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The values that batch N runs with, for its query, or for one stage of it.

    The log of batches stores them. The driver, the tasks and the outputs all read this record.
    """

    batch: int
    digest: str
    """Digest of the batch's plan."""
    reading: Reading
    """Reading of the inputs that the batch counts on. UNREAD for a stage that does not read them,
    until its low watermark is known."""
    promised: int
    """Low watermark of the inputs that the committed batches before N had reached, microseconds. A
    row of batch N below it is late: an input broke its promise."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Layout of each stage, by ``StageSection.name``; a stage that is missing has equal parts."""
    now: int = MIN
    """The driver's clock when the batch first began, or an earlier batch's if the clock went back:
    microseconds since the epoch. MIN in entries of releases without this field."""
    replayed: bool = False
    """True: an earlier run began the batch, with the same rows and watermark. Not stored."""

    @property
    def reference(self) -> int:
        """Event time from which ages and lateness are counted, microseconds; MIN: they are not."""
        return max((t for t in (self.reading.low, *self.reading.heuristics.values()) if t != MAX), default=MIN)
