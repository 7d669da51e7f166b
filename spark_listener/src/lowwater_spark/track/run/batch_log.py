"""The low watermark W of the inputs that each batch runs with, durable before it writes any output.

Otherwise a replay would run with a newer W: batch N runs with 14:00, writes the window of 13:00,
and crashes before its state is saved; the replay reads 15:00 and closes [14:00, 15:00) as well, but
finds N's output written and skips it, so a window is lost. Therefore the first run's W is kept for
the batch's whole life, with the digest of its plan and the clock at its beginning.

Each batch has one JSON file under ``CHECKPOINT/lowwater/batches``, written once. An injector's
frontier, which is known only when the batch has been read, is a second file, also written once,
with the facts from which it was computed if the injector has declared them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from lowwater.watermark import MIN
from lowwater_spark.checkpoint.durable import make_directory, write_once
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.rows.cut import layout_from_json, layout_to_json
from lowwater_spark.track.rows.frontier import Seen

__all__ = ["BatchLog"]

_FORMAT: Final = 2
"""Format since the manifest (:mod:`lowwater_spark.checkpoint.manifest`). The entries have not
changed, but a release that does not know the manifest must not go on."""

_LAID_OUT: Final = 3
"""Format with a layout of key ranges: a release without it would look up keys in other ranges."""

_OLD: Final = 1

_FRONTIER: Final = ".frontier"


class BatchLog:
    """The facts of one checkpoint's batches. Every call reads the file system anew."""

    def __init__(self, checkpoint: Location) -> None:
        self._folder = checkpoint / "lowwater" / "batches"

    def begin(self, facts: BatchFacts) -> BatchFacts:
        """Return the batch's facts; for a replay those of its first run. Durable on return.

        Raises CheckpointMismatch if the first run had another plan.
        """
        content = {
            "format": _LAID_OUT if facts.layouts else _FORMAT,
            "batch": facts.batch,
            "digest": facts.digest,
            "promised": facts.promised,
            "now": facts.now,
            **facts.reading.to_json(),
        }
        if facts.layouts:
            content["layouts"] = {name: layout_to_json(layout) for name, layout in facts.layouts.items()}
        make_directory(self._folder)
        fresh = write_once(self._path(facts.batch), json.dumps(content).encode())
        if fresh:
            return facts
        stored = self.read(facts.batch)
        if stored is None or stored.digest != facts.digest:
            raise CheckpointMismatch(_REPLANNED.format(batch=facts.batch, path=self._path(facts.batch)))
        return replace(stored, replayed=True)

    def read(self, batch: int) -> BatchFacts | None:
        """Return a batch's facts; None if it has not begun or was purged."""
        content = _load(self._path(batch))
        if content is None:
            return None
        return BatchFacts(
            batch=int(content["batch"]),
            digest=str(content["digest"]),
            reading=Reading.from_json(content),
            promised=int(content["promised"]),
            layouts={name: layout_from_json(layout) for name, layout in content.get("layouts", {}).items()},
            now=int(content.get("now", MIN)),
        )

    def set_frontier(self, batch: int, micros: int) -> None:
        """Write the frontier of an injector's batch, once.

        Raises CheckpointMismatch if the batch's first run had another one.
        """
        make_directory(self._folder)
        path = self._path(batch, _FRONTIER)
        if not write_once(path, json.dumps({"format": _FORMAT, "frontier": micros}).encode()):
            stored = self.frontier(batch)
            if stored != micros:
                msg = (
                    f"the frontier of batch {batch} was {stored} at its first run and is {micros} now; compute it from the batch's own "
                    "rows and the frontier before, never from a clock or from other arrivals"
                )
                raise CheckpointMismatch(msg)

    def keep_seen(self, batch: int, source_state: Seen) -> Seen:
        """Write a batch's knowledge of its source, with its frontier, once; return the first run's.

        Durable on return.
        """
        make_directory(self._folder)
        content = {"format": _FORMAT, "frontier": source_state.frontier, "seen": source_state.to_json()}
        fresh = write_once(self._path(batch, _FRONTIER), json.dumps(content).encode())
        stored = None if fresh else self.seen(batch)
        return source_state if stored is None else stored

    def seen(self, batch: int) -> Seen | None:
        """Return a batch's knowledge of its source; None if it is not (yet) written."""
        content = _load(self._path(batch, _FRONTIER))
        return None if content is None or "seen" not in content else Seen.from_json(content["seen"])

    def frontier(self, batch: int) -> int | None:
        """Return the frontier of a batch; None if it is not written yet."""
        content = _load(self._path(batch, _FRONTIER))
        return None if content is None else int(content["frontier"])

    def purge(self, before: int) -> None:
        """Delete the entries of batches before this one, if there are any."""
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
    "batch {batch} had another plan when it first ran (see {path}): the offset log of the checkpoint has been changed or was "
    "restored from a copy. Restore the checkpoint as a whole, or start from a new one."
)
