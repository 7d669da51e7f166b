"""Who a query is: the identity of its checkpoint, which run of it this is, and which stages it has.

The identity is a file of our own and not Spark's query id: the claim must be made before the query
starts, and a fresh checkpoint has no query id until then. A copied checkpoint keeps its identity;
what orders the copies is the generation, the first batch that is not committed, and then the
ordinal: the number of a file that only one run can have created.

Of several stages in one query the first one's files are where a query of one stage has them, so
that a checkpoint of such a query goes on as it is. The others' are in directories of their own,
under ``CHECKPOINT/lowwater/stages``. Which stages a checkpoint has is written once: a stage that
came later would have read only what came after it, and one that is gone would hold its readers
without a word.
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
"""Old run files that stay, for people; only the highest number counts."""


def identity(checkpoint: Location) -> str:
    """Return the identity of a checkpoint, made at the first call and durable when it returns."""
    path = checkpoint / "lowwater" / "identity"
    make_directory(path.parent)
    write_once(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="ascii").strip()


def new_ordinal(checkpoint: Location) -> int:
    """Return a number higher than that of any earlier run of this checkpoint.

    Durable, and given out once.
    """
    runs = checkpoint / "lowwater" / "runs"
    make_directory(runs)
    while True:
        taken = sorted(int(entry.name) for entry in runs.iterdir() if entry.name.isdecimal())
        ordinal = taken[-1] + 1 if taken else 1
        if not create(runs / str(ordinal)):
            continue  # another run was faster
        for old in taken[:-_KEPT]:
            (runs / str(old)).unlink(missing_ok=True)
        return ordinal


def home_of(checkpoint: Location, name: str, *, first: bool) -> Location:
    """Return the directory in which a stage has its directory ``lowwater``."""
    return checkpoint if first else checkpoint / "lowwater" / "stages" / quote(name, safe="").replace(".", "%2E")


def check_names(checkpoint: Location, names: Sequence[str]) -> None:
    """Compare a query's stages with those that its checkpoint was begun with, and keep them if it is new.

    A checkpoint without the list has one stage, of any name. Raises CheckpointMismatch.
    """
    manifest = Manifest(checkpoint)
    kept: list[str] | None = manifest["stages"]
    if CheckpointLog(checkpoint).last_planned() is None:
        if len(names) > 1 or kept is not None:
            manifest.take_over()
            manifest.keep("stages", list(names))
        return
    if list(names) != kept and (kept is not None or len(names) > 1):
        msg = (
            f"{checkpoint} was begun by {'one stage' if kept is None else 'the stages ' + ', '.join(kept)}, and the query has "
            f"{', '.join(names)}. A stage that is added has not seen what was read before, one that is left out would hold its readers: start "
            "from a new checkpoint."
        )
        raise CheckpointMismatch(msg)
