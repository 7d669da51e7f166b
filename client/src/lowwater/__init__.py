"""Low watermarks across jobs: report what is unfinished, learn what is complete.

    with lowwater.connect() as lw:
        lw.register("enriched", inputs=["flights"])
        with lw.worker("enriched") as worker:
            lease = worker.claim()
            seen = worker.inputs()          # first the snapshot,
            process(everything_there())     # then all that was there,
            lease.advance(seen, oldest=None)  # then the claim

Importing it starts nothing. Everything public is named here.
"""

from lowwater._core.intervals import Gap, Interval, IntervalView
from lowwater._core.lateness import Arrived
from lowwater._core.settings import Settings
from lowwater._core.statistics import ClientStatistics
from lowwater._core.why import Hop, Why
from lowwater._sync.batches import Batches
from lowwater._sync.client import Client
from lowwater._sync.connect import connect
from lowwater._sync.inputs import InputReader
from lowwater._sync.lease import Lease
from lowwater._sync.tasks import TaskLease, Tasks
from lowwater._sync.worker import Worker
from lowwater.errors import (
    BelowMark,
    Closed,
    Cycle,
    EstimatedInput,
    FinishRequired,
    IdentityMismatch,
    IncarnationChanged,
    InputVersion,
    InvalidArgument,
    JournalFailed,
    LayoutConflict,
    LowwaterError,
    Moved,
    NotPrepared,
    OlderClaim,
    OldStream,
    OtherSlice,
    Overloaded,
    OwnedRanges,
    PermissionDenied,
    RegistrationConflict,
    Rewound,
    ServerTokenMismatch,
    ShuttingDown,
    StaleEpoch,
    StaleLease,
    StaleSequencer,
    StillRead,
    TaskConflict,
    Timeout,
    TooFarAhead,
    Unauthenticated,
    Unavailable,
    UnknownComputation,
    UnknownGroup,
    WouldRegress,
)
from lowwater.histogram import Histogram
from lowwater.layout import Layout, LayoutView, RangeLoad
from lowwater.views import (
    Completeness,
    Completion,
    Computation,
    History,
    Identity,
    Inputs,
    LatenessBudget,
    NewTask,
    Promise,
    Ranges,
    RangeState,
    RangeView,
    Refusal,
    Shards,
    ShardView,
    Slice,
    TaskAttempt,
    TaskGroup,
    TaskList,
    TaskState,
    TaskView,
    Topology,
    WatermarkView,
)
from lowwater.watermark import MAX, MIN, EventTime, Watermark, Watermarks

__all__ = [
    # What a program does.
    "connect",
    "Client",
    "ClientStatistics",
    "Settings",
    "Worker",
    "Lease",
    "InputReader",
    "Batches",
    "Tasks",
    "TaskLease",
    "NewTask",
    # Event times.
    "MAX",
    "MIN",
    "EventTime",
    "Watermark",
    "Watermarks",
    "Histogram",
    "Arrived",
    # What the authority says.
    "Completeness",
    "Completion",
    "Computation",
    "Gap",
    "History",
    "Hop",
    "Identity",
    "Inputs",
    "Interval",
    "IntervalView",
    "LatenessBudget",
    "Layout",
    "LayoutView",
    "RangeLoad",
    "RangeState",
    "RangeView",
    "Ranges",
    "Refusal",
    "ShardView",
    "Shards",
    "TaskAttempt",
    "TaskGroup",
    "TaskList",
    "TaskState",
    "TaskView",
    "Topology",
    "WatermarkView",
    "Why",
    # Errors.
    "BelowMark",
    "Closed",
    "Cycle",
    "EstimatedInput",
    "FinishRequired",
    "IdentityMismatch",
    "IncarnationChanged",
    "InputVersion",
    "InvalidArgument",
    "JournalFailed",
    "LayoutConflict",
    "LowwaterError",
    "Moved",
    "NotPrepared",
    "OldStream",
    "OlderClaim",
    "OtherSlice",
    "Overloaded",
    "OwnedRanges",
    "PermissionDenied",
    "Promise",
    "RegistrationConflict",
    "Rewound",
    "ServerTokenMismatch",
    "ShuttingDown",
    "Slice",
    "StaleEpoch",
    "StaleLease",
    "StaleSequencer",
    "StillRead",
    "TaskConflict",
    "Timeout",
    "TooFarAhead",
    "Unauthenticated",
    "Unavailable",
    "UnknownComputation",
    "UnknownGroup",
    "WouldRegress",
]
