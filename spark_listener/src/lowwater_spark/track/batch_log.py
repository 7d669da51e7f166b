"""The W that each batch runs with, durable before the batch writes anything.

Without it a replay would run with a newer W: batch N runs with 14:00, writes the window of 13:00,
and crashes before its state is saved; the replay reads 15:00 and closes [14:00, 15:00) as well, but
finds N's output written and skips it: a window is lost. So the first run's W stands, for the
batch's whole life, together with the digest of the plan it was chosen for. So does the clock that
it began by.

One JSON file per batch under ``CHECKPOINT/lowwater/batches``, written once. An injector's frontier,
which is known only when the batch has been read, is a second file, equally written once, with what
it was told from when the injector has declared that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from lowwater.layout import Layout
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.durable import make_directory, write_once
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.track.cut import layout_from_json, layout_to_json
from lowwater_spark.track.frontier import Seen
from lowwater_spark.track.inputs import Reading

__all__ = ["BatchEntry", "BatchLog"]

_FORMAT: Final = 2
"""Since the manifest (:mod:`lowwater_spark.checkpoint.manifest`). The entries are as before it, but
a release that passes over it must not go on."""

_LAID_OUT: Final = 3
"""With a layout of key ranges: a release that passed over it would look for keys in other ranges.
"""

_OLD: Final = 1

_FRONTIER: Final = ".frontier"


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """What batch N runs with."""

    batch: int
    digest: str
    reading: Reading
    promised: int
    """The low watermark of the inputs that the committed batches before N had already reached,
    microseconds: a row of batch N below it is late, a broken promise of an input."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """By stage, how it cuts its key space; a stage that is not there cuts it into equal parts.
    Stages go by what their states go by (``Place.name``)."""
    now: int = MIN
    """The driver's clock when the batch first began, or that of a batch before it if the clock went
    back: microseconds since the epoch. MIN in entries of releases that kept none."""


class BatchLog:
    """The entries of one checkpoint. Every call reads the file system anew."""

    def __init__(self, checkpoint: Location) -> None:
        self._folder = checkpoint / "lowwater" / "batches"

    def begin(self, entry: BatchEntry) -> tuple[BatchEntry, bool]:
        """Return what the batch runs with: ``entry``, or, for a replay, what its first run wrote; and whether it is a replay.

        Durable when it returns. Raises CheckpointMismatch when the batch had been planned otherwise.
        """
        content = {
            "format": _LAID_OUT if entry.layouts else _FORMAT,
            "batch": entry.batch,
            "digest": entry.digest,
            "promised": entry.promised,
            "now": entry.now,
            **entry.reading.to_json(),
        }
        if entry.layouts:
            content["layouts"] = {name: layout_to_json(layout) for name, layout in entry.layouts.items()}
        make_directory(self._folder)
        fresh = write_once(self._path(entry.batch), json.dumps(content).encode())
        if fresh:
            return entry, False
        kept = self.read(entry.batch)
        if kept is None or kept.digest != entry.digest:
            raise CheckpointMismatch(_REPLANNED.format(batch=entry.batch, path=self._path(entry.batch)))
        return kept, True

    def read(self, batch: int) -> BatchEntry | None:
        """Return what a batch runs with, None when it has not begun or is long done."""
        content = _load(self._path(batch))
        if content is None:
            return None
        return BatchEntry(
            batch=int(content["batch"]),
            digest=str(content["digest"]),
            reading=Reading.from_json(content),
            promised=int(content["promised"]),
            layouts={name: layout_from_json(each) for name, each in content.get("layouts", {}).items()},
            now=int(content.get("now", MIN)),
        )

    def set_frontier(self, batch: int, micros: int) -> None:
        """Write the frontier that an injector's batch has found, once.

        Raises CheckpointMismatch when the batch's first run found another one.
        """
        make_directory(self._folder)
        path = self._path(batch, _FRONTIER)
        if not write_once(path, json.dumps({"format": _FORMAT, "frontier": micros}).encode()):
            kept = self.frontier(batch)
            if kept != micros:
                msg = (
                    f"the frontier of batch {batch} was {kept} at its first run and is {micros} now; compute it from the batch's own "
                    "rows and the frontier before, never from a clock or from what else has arrived"
                )
                raise CheckpointMismatch(msg)

    def keep_seen(self, batch: int, seen: Seen) -> Seen:
        """Write what a batch has seen of its source, with the frontier that follows from it, once; return what its first run has written.

        Durable when it returns.
        """
        make_directory(self._folder)
        content = {"format": _FORMAT, "frontier": seen.frontier, "seen": seen.to_json()}
        fresh = write_once(self._path(batch, _FRONTIER), json.dumps(content).encode())
        kept = None if fresh else self.seen(batch)
        return seen if kept is None else kept

    def seen(self, batch: int) -> Seen | None:
        """Return what a batch has seen of its source; None when nobody has looked, or it has not come so far."""
        content = _load(self._path(batch, _FRONTIER))
        return None if content is None or "seen" not in content else Seen.from_json(content["seen"])

    def frontier(self, batch: int) -> int | None:
        """Return the frontier that a batch has found, None when it has not told one."""
        content = _load(self._path(batch, _FRONTIER))
        return None if content is None else int(content["frontier"])

    def purge(self, before: int) -> None:
        """Delete the entries of batches before this one.

        A later stage of a chain may have written none.
        """
        with suppress(FileNotFoundError):
            for entry in self._folder.iterdir():
                number = entry.name.removesuffix(".json").removesuffix(_FRONTIER)
                if number.isdecimal() and int(number) < before:
                    entry.unlink(missing_ok=True)

    def _path(self, batch: int, kind: str = "") -> Location:
        return self._folder / f"{batch}{kind}.json"


def _load(path: Location) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if content.get("format") not in (_OLD, _FORMAT, _LAID_OUT):
        msg = f"{path} is of format {content.get('format')}; this release reads {_OLD} to {_LAID_OUT}. Use the release that wrote it, or a newer one."
        raise CheckpointMismatch(msg)
    return content


_REPLANNED: Final = (
    "batch {batch} was planned otherwise when it first ran (see {path}): the offset log of the checkpoint has been changed or was "
    "restored from a copy. Restore the checkpoint as a whole, or start from a new one."
)
