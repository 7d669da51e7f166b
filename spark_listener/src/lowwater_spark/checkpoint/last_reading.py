"""The last reading of the inputs that counted for a plain query, kept in its checkpoint.

A restarted query could do without: it reads the inputs anew and lists its sources. With it, it claims from where it stood and not
from nothing, and it notices that an input was reset meanwhile, so that what the checkpoint has read belongs to an earlier life of it.
A reading that counted stays true of every later state of the same checkpoint, so an old file only says less.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.durable import make_directory, write_over
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.track.inputs import UNREAD, Reading

__all__ = ["LastReading"]

_FORMAT: Final = 1


class LastReading:
    """``CHECKPOINT/lowwater/reading.json``: one reading, and the committed batch that it counted for."""

    def __init__(self, checkpoint: Path) -> None:
        self._path = checkpoint / "lowwater" / "reading.json"
        self.saved = UNREAD
        """What the file holds, as far as this object has read or written it."""

    def load(self, committed: int) -> Reading:
        """Return the reading, UNREAD when there is none. Raises CheckpointMismatch.

        ``committed`` is the last batch of the commit log: a reading for a later one was kept while the log was taken from a copy. One batch
        later says nothing, since a power cut can take a log's last entry as well; whether the run is behind is decided by its claim.
        """
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return UNREAD
        if content.get("format") != _FORMAT:
            msg = f"{self._path} is of format {content.get('format')}; this release reads {_FORMAT}. Use the release that wrote it, or a newer one."
            raise CheckpointMismatch(msg)
        if content["batch"] == committed + 1:
            return UNREAD
        if content["batch"] > committed:
            msg = (
                f"{self._path} is of batch {content['batch']}, but the commit log ends at batch {committed}: the checkpoint is older "
                "than what was published. Restore it as a whole, or start from a new one."
            )
            raise CheckpointMismatch(msg)
        self.saved = Reading.from_json(content)
        return self.saved

    def save(self, batch: int, reading: Reading) -> None:
        """Replace the reading. Durable when it returns."""
        make_directory(self._path.parent)
        content = {"format": _FORMAT, "batch": batch, **reading.to_json()}
        write_over(self._path, json.dumps(content).encode())
        self.saved = reading

    def of_other_inputs(self, reading: Reading) -> bool:
        """Return whether a reading is of other inputs, or other lives of them, than the saved one."""
        lives = (reading.input_version, tuple(reading.input_incarnations))
        return lives != (self.saved.input_version, tuple(self.saved.input_incarnations))
