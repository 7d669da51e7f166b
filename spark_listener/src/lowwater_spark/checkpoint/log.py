"""Reads the offset and commit logs of a checkpoint: which batch is planned, how far it reaches, and whether it is committed.

Pure reading: nothing here writes, and nothing asks Spark. What the files mean was probed on PySpark 4.3:

* ``offsets/N`` is written when batch N is planned: a version line, a line of settings, then one line per source, in the
  order of the plan, which the source alone understands (:mod:`lowwater_spark.sources.base`).
* ``commits/N`` appears when batch N is done, before batch N + 1 starts. All logs are renamed into place: a name that is a
  plain number is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch

__all__ = ["CheckpointLog", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned batch: how far it goes in each source, and the digest that tells a replay from another plan."""

    batch: int
    lines: Sequence[str]
    """Per source, in the order of the plan: its offset. What lies up to it is in the batch or an
    earlier one."""
    digest: str
    """sha256 of the entry, in hex."""
    watermark: int
    """Spark's own watermark, the one that the batch runs with; milliseconds since the epoch, 0
    before there is one."""


class CheckpointLog:
    """The offset and commit logs of one checkpoint directory.

    Every call reads the file system anew.
    """

    def __init__(self, checkpoint: Location) -> None:
        self.checkpoint = checkpoint
        self._commits = checkpoint / "commits"
        self._offsets = checkpoint / "offsets"

    def last_committed(self) -> int | None:
        """Return the number of the last batch in the commit log.

        O(entries): Spark keeps some hundred.
        """
        return max(_numbers(self._commits), default=None)

    def committed(self, batch: int) -> bool:
        """Return whether a batch is in the commit log. Of old batches the entry is gone. O(1)."""
        return (self._commits / str(batch)).exists()

    def planned(self, batch: int) -> bool:
        """Return whether a batch is in the offset log: it runs, or has run.

        Of old batches the entry is gone. O(1).
        """
        return (self._offsets / str(batch)).exists()

    def plan(self, batch: int) -> Plan | None:
        """Return a batch as planned, None when it is not planned yet.

        Raises CheckpointMismatch when the entry is of a version that this module does not know.
        """
        try:
            content = (self._offsets / str(batch)).read_bytes()
        except FileNotFoundError:
            return None
        version, *rest = lines_of(content.decode(errors="replace")) or [""]
        if version != "v1" or not rest:
            msg = f"{self._offsets / str(batch)} is of version {version!r}; this release reads v1. Use a PySpark that docs/compatibility.md names, or a newer lowwater-spark."
            raise CheckpointMismatch(msg)
        settings, *lines = rest
        if not settings:
            msg = f"{self._offsets / str(batch)} is an entry of continuous processing, which gives no evidence of which rows a commit contains. Use processingTime or availableNow."
            raise CheckpointMismatch(msg)
        try:
            watermark = int(json.loads(settings).get("batchWatermarkMs", 0))
        except (AttributeError, TypeError, ValueError) as failure:
            msg = f"{self._offsets / str(batch)} is damaged: its second line is no JSON of settings. Restore the checkpoint as a whole."
            raise CheckpointMismatch(msg) from failure
        return Plan(batch, lines, hashlib.sha256(content).hexdigest(), watermark)

    def last_planned(self) -> int | None:
        """Return the number of the last batch in the offset log. O(entries)."""
        return max(_numbers(self._offsets), default=None)

    def newest(self) -> Plan | None:
        """Return the newest batch that is planned, None before the first. O(entries)."""
        newest = self.last_planned()
        return None if newest is None else self.plan(newest)

    def plans_after(self, batch: int, last: int) -> list[Plan]:
        """Return what the offset log still has of the batches after one, up to the last, in order."""
        found = [self.plan(number) for number in sorted(_numbers(self._offsets)) if batch < number <= last]
        return [plan for plan in found if plan is not None]

    def path(self, plan: Plan) -> Location:
        """Return the entry of a planned batch."""
        return self._offsets / str(plan.batch)


def _numbers(log: Location) -> list[int]:
    try:
        return [int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()]
    except FileNotFoundError:
        return []
