"""The named fault points: what a run must have met to prove anything."""

from __future__ import annotations

from typing import Final

from tests.simulation.chaos import KINDS, WEATHER

_FAULTS: Final = (
    *(
        f"network: {fault}"
        for fault in (
            *("broken stream", "keepalive", "lost report", "doubled report", "swapped report"),
            *("lost request", "lost response", "repeated request"),
        )
    ),
    *(f"store: {outcome}" for outcome in ["a read failed", "failed", "hang", "lost", "slow", "written"]),
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
    *(
        f"timers: {event}"
        for event in ["a batch began with another layout", "a batch was replayed", "a driver died between two steps"]
    ),
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
    *(
        f"ended by {reason}"
        for reason in ["JOURNAL_FAILED", "OLDER_CLAIM", "STALE_SEQUENCER", "TIMEOUT", "UNAVAILABLE", "WOULD_REGRESS"]
    ),
    "flush: TIMEOUT",
    "prepare: TIMEOUT",
    "stage: TIMEOUT",
    "commit: TIMEOUT",
    "drop: STILL_READ",
    *(
        f"refused: {refusal}"
        for refusal in [
            *("Claim OLDER_CLAIM", "Claim STALE_SEQUENCER", "CommitBatch INCARNATION_CHANGED"),
            *("CommitBatch NOT_PREPARED", "Claim MOVED", "CommitBatch MOVED", "GetHistory MOVED"),
            *("Locate UNAVAILABLE", "Report INVALID_ARGUMENT"),
        ]
    ),
    *(f"report refused: {reason}" for reason in ["MOVED", "STALE_SEQUENCER", "TOO_FAR_AHEAD"]),
)
"""Consequences of faults: the places in the code that only faults lead to."""

POINTS: Final = _FAULTS + _MET


def is_fault(point: str) -> bool:
    """Return True if a point is a fault, rather than a consequence of one."""
    return point in _FAULTS
