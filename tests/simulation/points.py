"""The named fault points: what a run must have met to prove anything."""

from __future__ import annotations

from typing import Final

from tests.simulation.chaos import KINDS, WEATHER

_FAULTS: Final = (
    "network: broken stream",
    "network: doubled report",
    "network: keepalive",
    "network: lost report",
    "network: lost request",
    "network: lost response",
    "network: repeated request",
    "network: swapped report",
    "store: a read failed",
    "store: failed",
    "store: hang",
    "store: lost",
    "store: slow",
    "store: written",
    *(f"move: {kind}" for kind in KINDS if kind not in WEATHER),
)

_MET: Final = (
    *(f"move: {kind}" for kind in WEATHER),
    "network: a full stream",
    "network: a request of a client that is gone",
    "ranges went down",
    "a slice was served by another shard than its root",
    "a root was reset under its slices",
    "a slice took keys over",
    "an answer waited for the root",
    "an answer waited for the root in vain",
    "a lateness budget is ahead of the low watermark",
    "records came behind a lateness budget",
    "a claim committed the batch before it",
    "a claim was granted twice",
    "others go on behind a piece",
    "timers: a batch began with another layout",
    "timers: a batch was replayed",
    "timers: a driver died between two steps",
    "a crash in the middle of a write",
    "a crash that kept some of what was cached",
    "a crash that lost what was cached",
    "a micro-batch was held for a missing part",
    "a micro-batch was replayed",
    "a new input lowered a range",
    "a recovery from a snapshot and records behind it",
    "a computation was dropped",
    "a computation whose log is damaged was given up",
    "the graph is a whole one and changes behind it",
    "a wait met a reset",
    "a weak store went back",
    "a log was put back from memory",
    "a shard that lives looked dead",
    "a shard was replaced at its address",
    "a start without the store",
    "something is lost for good",
    "an append of unknown outcome was given up",
    "storage refused a zombie",
    "ended by JOURNAL_FAILED",
    "ended by OLDER_CLAIM",
    "ended by STALE_SEQUENCER",
    "ended by TIMEOUT",
    "ended by UNAVAILABLE",
    "ended by WOULD_REGRESS",
    "flush: TIMEOUT",
    "prepare: TIMEOUT",
    "stage: TIMEOUT",
    "commit: TIMEOUT",
    "drop: STILL_READ",
    "refused: Claim OLDER_CLAIM",
    "refused: Claim STALE_SEQUENCER",
    "refused: CommitBatch INCARNATION_CHANGED",
    "refused: CommitBatch NOT_PREPARED",
    "refused: Claim MOVED",
    "refused: CommitBatch MOVED",
    "refused: GetHistory MOVED",
    "refused: Locate UNAVAILABLE",
    "refused: Report INVALID_ARGUMENT",
    "report refused: MOVED",
    "report refused: STALE_SEQUENCER",
    "report refused: TOO_FAR_AHEAD",
)
"""What comes of it: the places in the code that only faults lead to."""

POINTS: Final = _FAULTS + _MET


def is_fault(point: str) -> bool:
    """Whether a point is something that goes wrong, rather than what comes of it."""
    return point in _FAULTS
