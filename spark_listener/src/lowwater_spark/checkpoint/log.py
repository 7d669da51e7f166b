"""The offset and commit logs of a checkpoint: the planned batches, their offsets, the commits.

This module only reads, and does not ask Spark. The meaning of the files was probed on PySpark 4.3:

* Spark writes ``offsets/N`` when it plans batch N: a version line, a line of settings, then one
  line per source in the order of the plan. Only the source understands its line
  (:mod:`lowwater_spark.sources.base`).
* ``commits/N`` appears when batch N is done, before batch N + 1 starts. Spark renames all entries
  into place: a file whose name is a plain number is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location, numbers_in
from lowwater_spark.errors import CheckpointMismatch

__all__ = ["CheckpointLog", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned batch: its offsets, and a digest that tells a replay from another plan."""

    batch: int
    lines: Sequence[str]
    """Offset of each source, in the order of the plan: the rows up to it are in this batch or an
    earlier one."""
    digest: str
    """SHA-256 of the entry, in hex."""
    watermark: int
    """Spark's own watermark during the batch, milliseconds since the epoch; 0: there is none yet.
    """
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark that the entry has, by name."""

    @property
    def state_stores(self) -> str:
        """Class of the provider that keeps the state of the batch; empty if not in the entry."""
        return self.settings.get("spark.sql.streaming.stateStore.providerClass", "")


class CheckpointLog:
    """The offset and commit logs of one checkpoint directory. Each call reads the file system."""

    def __init__(self, checkpoint: Location) -> None:
        self.checkpoint = checkpoint
        self._commits = checkpoint / "commits"
        self._offsets = checkpoint / "offsets"

    def last_committed(self) -> int | None:
        """Return the number of the last batch in the commit log.

        None before the first commit. O(entries): Spark keeps some hundred.
        """
        return max(numbers_in(self._commits), default=None)

    def committed(self, batch: int) -> bool:
        """Return whether a batch is in the commit log.

        Spark deletes entries of old batches. O(1).
        """
        return (self._commits / str(batch)).exists()

    def planned(self, batch: int) -> bool:
        """Return whether a batch is in the offset log: it runs, or has run.

        Spark deletes entries of old batches. O(1).
        """
        return (self._offsets / str(batch)).exists()

    def plan(self, batch: int) -> Plan | None:
        """Return the plan of a batch; None when it is not planned yet.

        Raises CheckpointMismatch for an entry that is damaged, or of an unknown version.
        """
        try:
            content = (self._offsets / str(batch)).read_bytes()
        except FileNotFoundError:
            return None
        version, *rest = lines_of(content.decode(errors="replace")) or [""]
        if version not in ("v1", "v2") or not rest:
            msg = f"{self._offsets / str(batch)} is of version {version!r}; this release reads v1 and v2. Use a PySpark that docs/operate/operations.md names, or a newer lowwater-spark."
            raise CheckpointMismatch(msg)
        settings, *lines = rest
        if not settings:
            msg = f"{self._offsets / str(batch)} is an entry of continuous processing, which gives no evidence of which rows a commit contains. Use processingTime or availableNow."
            raise CheckpointMismatch(msg)
        try:
            metadata = json.loads(settings)
            watermark = int(metadata.get("batchWatermarkMs", 0))
            conf = {str(name): str(value) for name, value in (metadata.get("conf") or {}).items()}
        except (AttributeError, TypeError, ValueError) as failure:
            msg = f"{self._offsets / str(batch)} is damaged: its second line is no JSON of settings. Restore the checkpoint as a whole."
            raise CheckpointMismatch(msg) from failure
        if version == "v2":
            lines = self._in_order(batch, lines)
        return Plan(batch, lines, hashlib.sha256(content).hexdigest(), watermark, conf)

    def _in_order(self, batch: int, lines: Sequence[str]) -> list[str]:
        """Return the offsets of an entry of version 2, whose lines begin with a source's number."""
        pairs = [line.partition(":") for line in lines]
        offsets = {source: offset for source, _, offset in pairs}
        numbers = [str(number) for number in range(len(lines))]
        if {*offsets} != {*numbers}:
            msg = f"{self._offsets / str(batch)} names the sources {', '.join(offsets)}, and this release reads sources that are numbered. Set spark.sql.streaming.queryEvolution.enableSourceEvolution to false, and begin with a new checkpoint."
            raise CheckpointMismatch(msg)
        return [offsets[number] for number in numbers]

    def first_planned(self) -> int | None:
        """Return the number of the first batch that the offset log still has. O(entries)."""
        return min(numbers_in(self._offsets), default=None)

    def last_planned(self) -> int | None:
        """Return the number of the last batch in the offset log. O(entries)."""
        return max(numbers_in(self._offsets), default=None)

    def newest(self) -> Plan | None:
        """Return the newest planned batch; None before the first. O(entries)."""
        newest = self.last_planned()
        return None if newest is None else self.plan(newest)

    def newest_committed(self) -> Plan | None:
        """Return the newest committed batch; None before the first, and when its plan is gone."""
        last = self.last_committed()
        return None if last is None else self.plan(last)

    def next(self) -> tuple[int, Plan | None]:
        """Return the number of the first batch that is not committed, and its plan if it has one.

        O(entries).
        """
        last = self.last_committed()
        number = 0 if last is None else last + 1
        return number, self.plan(number)

    def plans_after(self, batch: int, last: int) -> list[Plan]:
        """Return, in order, the plans after ``batch`` up to ``last`` that the log still has."""
        plans = [self.plan(number) for number in sorted(numbers_in(self._offsets)) if batch < number <= last]
        return [plan for plan in plans if plan is not None]

    def path(self, plan: Plan) -> Location:
        """Return the entry of a planned batch."""
        return self._offsets / str(plan.batch)
