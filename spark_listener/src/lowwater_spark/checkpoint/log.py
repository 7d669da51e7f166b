"""Reads the offset and commit logs of a checkpoint: which batch is planned, how far it reaches, and whether it is committed.

Pure reading: nothing here writes, and nothing asks Spark. What the files mean was probed on PySpark 4.3:

* ``offsets/N`` is written when batch N is planned: a version line, a line of settings, then one line per source, in the
  order of the plan: ``{"logOffset": n}``, or ``-`` while the source has given nothing.
* ``commits/N`` appears when batch N is done, before batch N + 1 starts. All logs are renamed into place: a name that is a
  plain number is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.source_log import NOTHING

__all__ = ["CheckpointLog", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned batch: how far each source's log belongs to it, and the digest that tells a replay from another plan."""

    batch: int
    offsets: Sequence[int]
    """Per source, in the order of the plan; entries with a batch id up to this are in the batch or an earlier one. A control's
    source is always at :data:`NOTHING`."""
    digest: str
    """sha256 of the entry, in hex."""
    watermark: int
    """Spark's own watermark, the one that the batch runs with; milliseconds since the epoch, 0 before there is one."""
    entries: Sequence[str]
    """The offsets as they stand in the log, one line of JSON per source."""


class CheckpointLog:
    """The offset and commit logs of one checkpoint directory. Every call reads the file system anew.

    ``controls`` are the numbers of the sources that are controls of a driven query: their offsets are values and not places in a log.
    """

    def __init__(self, checkpoint: Path, controls: Container[int] = ()) -> None:
        self.checkpoint = checkpoint
        self._controls = controls
        self._commits = checkpoint / "commits"
        self._offsets = checkpoint / "offsets"

    def last_committed(self) -> int | None:
        """Return the number of the last batch in the commit log. O(entries): Spark keeps some hundred."""
        return max(_numbers(self._commits), default=None)

    def committed(self, batch: int) -> bool:
        """Return whether a batch is in the commit log. Of old batches the entry is gone. O(1)."""
        return (self._commits / str(batch)).exists()

    def plan(self, batch: int) -> Plan | None:
        """Return a batch as planned, None when it is not planned yet.

        Raises CheckpointMismatch when the entry is of a version, or of a source, that this module does not know.
        """
        try:
            content = (self._offsets / str(batch)).read_bytes()
        except FileNotFoundError:
            return None
        version, *rest = content.decode().splitlines()
        if version != "v1" or not rest:
            msg = f"{self._offsets / str(batch)} is of version {version!r}; this release reads v1. Use PySpark 4.3, or a newer lowwater-spark."
            raise CheckpointMismatch(msg)
        settings, *entries = rest
        offsets = [NOTHING if i in self._controls else _log_offset(line) for i, line in enumerate(entries)]
        watermark = json.loads(settings).get("batchWatermarkMs", 0)
        return Plan(batch, offsets, hashlib.sha256(content).hexdigest(), watermark, entries)

    def last_planned(self) -> int | None:
        """Return the number of the last batch in the offset log. O(entries)."""
        return max(_numbers(self._offsets), default=None)

    def newest_offsets(self) -> Sequence[int]:
        """Return how far the newest planned batch goes; nothing before the first. O(entries)."""
        newest = self.last_planned()
        plan = None if newest is None else self.plan(newest)
        return () if plan is None else plan.offsets

    def plans_after(self, batch: int, last: int) -> list[Plan]:
        """Return what the offset log still has of the batches after one, up to the last, in order."""
        found = [self.plan(number) for number in sorted(_numbers(self._offsets)) if batch < number <= last]
        return [plan for plan in found if plan is not None]

    def files_of(self, plan: Plan) -> list[Path]:
        """Return the log files that a plan stands on: what must be durable before anything is made from it."""
        found = [self._offsets / str(plan.batch)]
        for source, offset in enumerate(plan.offsets):
            log = self.checkpoint / "sources" / str(source)
            found += [path for path in (log / str(offset), log / f"{offset}.compact") if path.exists()]
        return found


def _log_offset(line: str) -> int:
    if line == "-":
        return NOTHING
    entry = json.loads(line)
    if not isinstance(entry, dict) or not isinstance(entry.get("logOffset"), int):
        msg = f"{line!r} in the offset log is not the offset of a file source"
        raise CheckpointMismatch(msg)
    return int(entry["logOffset"])


def _numbers(log: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()]
    except FileNotFoundError:
        return []
