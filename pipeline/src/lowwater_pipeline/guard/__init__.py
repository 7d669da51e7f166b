"""Guarded writes: an output's own store refuses whoever does not own it any more (MillWheel 6.2).

    claim = Claim.of(lw, lease)                      # the authority has acknowledged it
    with PostgresGuard(dsn, name="hourly") as guard:
        writer = guard.raise_(claim)                 # from here on no older claim writes
        state = read_state()                         # only now
        writer.write(batch, digest, fill)            # all or nothing, once

The stores are modules of their own, since each needs packages of its own:
:mod:`lowwater_pipeline.guard.postgres`, :mod:`lowwater_pipeline.guard.redis`,
:mod:`lowwater_pipeline.guard.delta` and :mod:`lowwater_pipeline.guard.files`; so are outputs of
Spark stages: :mod:`lowwater_pipeline.guard.postgres_out`. Importing this starts nothing.
"""

from lowwater_pipeline.guard.claim import Claim, slot_bounds, slot_of
from lowwater_pipeline.guard.errors import (
    Blocked,
    Damaged,
    Fenced,
    GuardError,
    InDoubt,
    NonceMismatch,
    NotRaised,
    OldConfiguration,
    Rewound,
    StagingLost,
    StoreReplaced,
    Unaligned,
    Unclaimed,
    Unfit,
    WrongOwner,
)
from lowwater_pipeline.guard.row import Row

__all__ = [
    "Claim",
    "Row",
    "slot_bounds",
    "slot_of",
    # What a write is refused for.
    "GuardError",
    "Blocked",
    "Damaged",
    "Fenced",
    "InDoubt",
    "NonceMismatch",
    "NotRaised",
    "OldConfiguration",
    "Rewound",
    "StagingLost",
    "StoreReplaced",
    "Unaligned",
    "Unclaimed",
    "Unfit",
    "WrongOwner",
]
