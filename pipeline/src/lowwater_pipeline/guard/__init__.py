"""Guarded writes: an output's own store refuses a writer that owns it no longer (MillWheel 6.2).

    claim = Claim.of(lw, lease)                      # the authority has acknowledged it
    with PostgresGuard(dsn, name="hourly") as guard:
        writer = guard.raise_(claim)                 # from here on no older claim writes
        state = read_state()                         # only now
        writer.write(batch, digest, fill)            # all or nothing, once

Each store is a module with packages of its own: :mod:`lowwater_pipeline.guard.postgres`,
:mod:`lowwater_pipeline.guard.redis`, :mod:`lowwater_pipeline.guard.delta` and
:mod:`lowwater_pipeline.guard.files`. :mod:`lowwater_pipeline.guard.postgres_out` has an output of
Spark stages. Importing this package starts nothing.
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
    # Reasons for which a write is refused.
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
