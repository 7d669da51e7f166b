"""Identity of a query: that of its checkpoint, the number of this run, and the names of its stages.

The identity is a file of lowwater and not Spark's query id: the claim comes before the query
starts, and a new checkpoint has no query id until then. A copied checkpoint keeps its identity. Two
numbers order the copies: the generation, which is the first batch that is not committed, and then
the ordinal, the number of a file that only one run can have created.

The first stage of a query has its files where a query of one stage has them, so that a checkpoint
of such a query can be continued. The other stages have directories of their own, under
``CHECKPOINT/lowwater/stages``. The names of the stages are written once: a stage that was added
later would lack the rows from before, and a removed one would hold its readers without a word.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from lowwater_spark.checkpoint.durable import create, make_directory, write_once
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch

__all__ = ["check_names", "home_of", "identity", "new_ordinal"]

_KEPT: Final = 16
"""Number of old run files that are kept for people to read; only the highest number counts."""


def identity(checkpoint: Location) -> str:
    """Return the identity of a checkpoint; the first call creates it durably."""
    path = checkpoint / "lowwater" / "identity"
    make_directory(path.parent)
    write_once(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="ascii").strip()


def new_ordinal(checkpoint: Location) -> int:
    """Return a number higher than that of any earlier run of this checkpoint.

    The number is durable, and no other run gets it.
    """
    runs = checkpoint / "lowwater" / "runs"
    make_directory(runs)
    while True:
        runs_before = sorted(int(entry.name) for entry in runs.iterdir() if entry.name.isdecimal())
        ordinal = runs_before[-1] + 1 if runs_before else 1
        if not create(runs / str(ordinal)):
            continue  # another run has just taken this number
        for old in runs_before[:-_KEPT]:
            (runs / str(old)).unlink(missing_ok=True)
        return ordinal


def home_of(checkpoint: Location, name: str, *, first: bool) -> Location:
    """Return the directory in which a stage has its directory ``lowwater``."""
    return checkpoint if first else checkpoint / "lowwater" / "stages" / quote(name, safe="").replace(".", "%2E")


def check_names(checkpoint: Location, names: Sequence[str]) -> None:
    """Compare a query's stages with those of its checkpoint; a new checkpoint stores them.

    A checkpoint without the list has one stage, of any name. Raises CheckpointMismatch.
    """
    manifest = Manifest(checkpoint)
    stages: list[str] | None = manifest["stages"]
    if CheckpointLog(checkpoint).last_planned() is None:
        if len(names) > 1 or stages is not None:
            manifest.take_over()
            manifest.keep("stages", list(names))
        return
    if list(names) != stages and (stages is not None or len(names) > 1):
        msg = (
            f"{checkpoint} was begun by {'one stage' if stages is None else 'the stages ' + ', '.join(stages)}, and the query has "
            f"{', '.join(names)}. An added stage would lack the rows that were read before, and a removed one would hold its readers. Start "
            "from a new checkpoint."
        )
        raise CheckpointMismatch(msg)
