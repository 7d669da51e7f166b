"""Who a query is: the identity of its checkpoint, and which run of it this is.

The identity is a file of our own and not Spark's query id: the claim must be made before the query starts, and a fresh
checkpoint has no query id until then. A copied checkpoint keeps its identity; what orders the copies is the generation, the
first batch that is not committed, and then the ordinal: the number of a file that only one run can have created.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.durable import make_directory, sync_directory, write_once

__all__ = ["identity", "new_ordinal"]

_KEPT: Final = 16
"""Old run files that stay, for people; only the highest number counts."""


def identity(checkpoint: Path) -> str:
    """Return the identity of a checkpoint, made at the first call and durable when it returns."""
    path = checkpoint / "lowwater" / "identity"
    make_directory(path.parent)
    write_once(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="ascii").strip()


def new_ordinal(checkpoint: Path) -> int:
    """Return a number higher than that of any earlier run of this checkpoint. Durable, and given out once."""
    runs = checkpoint / "lowwater" / "runs"
    make_directory(runs)
    while True:
        taken = sorted(int(entry.name) for entry in runs.iterdir() if entry.name.isdecimal())
        ordinal = taken[-1] + 1 if taken else 1
        try:
            (runs / str(ordinal)).open("x").close()
        except FileExistsError:
            continue  # another run was faster
        sync_directory(runs)
        for old in taken[:-_KEPT]:
            (runs / str(old)).unlink(missing_ok=True)
        return ordinal
