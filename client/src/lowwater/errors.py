"""All errors that the client raises on purpose.

Each refusal of the authority has a class, whose ``reason`` equals the ``ErrorInfo.reason`` on the
wire: ``StaleSequencer.reason == "STALE_SEQUENCER"``. A message says what happened and what to do;
every changing part of it is also in ``metadata``, for programs.

Who has to act:

* the programmer of the caller: :class:`InvalidArgument`, :class:`UnknownComputation`,
  :class:`RegistrationConflict`, :class:`Cycle`, :class:`EstimatedInput`, :class:`FinishRequired`,
  :class:`TooFarAhead`, :class:`NotPrepared`, :class:`Closed`, :class:`UnknownGroup`,
  :class:`UnknownReference`, :class:`TaskConflict`, :class:`BelowMark`, :class:`LayoutConflict`;
* this worker, which was replaced and must stop writing: :class:`StaleSequencer`,
  :class:`OlderClaim`, :class:`IdentityMismatch`, :class:`Rewound`, :class:`InputVersion`,
  :class:`IncarnationChanged`, :class:`StaleLease`, :class:`StaleAdoption`;
* the owner of the access file: :class:`Unauthenticated`, :class:`PermissionDenied`;
* an operator: :class:`ServerTokenMismatch`, :class:`StaleEpoch`, :class:`OwnedRanges`,
  :class:`WouldRegress`, :class:`JournalFailed`, :class:`LimitReached`, :class:`SecondAgent`,
  :class:`RegionRefused`, :class:`Recovering`;
* the caller, by trying again later: :class:`Unavailable`, :class:`Timeout`, :class:`Overloaded`,
  :class:`ShuttingDown`, :class:`OldStream`, :class:`Unconfirmed`;
* the client itself: :class:`Moved`, :class:`OtherSlice` (unless the keys lie in several slices).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = [
    "BY_REASON",
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
    "LimitReached",
    "LowwaterError",
    "Moved",
    "NotPrepared",
    "OldStream",
    "OlderClaim",
    "OtherSlice",
    "Overloaded",
    "OwnedRanges",
    "PermissionDenied",
    "Recovering",
    "RegionRefused",
    "RegistrationConflict",
    "Rewound",
    "SecondAgent",
    "ServerTokenMismatch",
    "ShuttingDown",
    "StaleAdoption",
    "StaleEpoch",
    "StaleLease",
    "StaleSequencer",
    "StillRead",
    "TaskConflict",
    "Timeout",
    "TooFarAhead",
    "Unauthenticated",
    "Unavailable",
    "Unconfirmed",
    "UnknownComputation",
    "UnknownGroup",
    "UnknownReference",
    "WouldRegress",
]

BY_REASON: dict[str, type[LowwaterError]] = {}
"""Class of each wire reason."""


class LowwaterError(Exception):
    """Base class. Raised itself only for a reason of a newer authority.

    ``metadata`` has every changing part of the message.
    """

    reason: str = "UNKNOWN"

    retry_after: float = 0.0
    """Seconds that the authority asked the caller to wait before a repetition; 0 for none."""

    def __init__(self, message: str, *, reason: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        if reason is not None:
            self.reason = reason

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.reason = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()
        BY_REASON[cls.reason] = cls

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all fields in a pickled copy; Exception alone would drop the keywords."""
        return (_rebuild, (type(self), self.message, self.reason, self.metadata, self.retry_after))


def _rebuild(
    cls: type[LowwaterError], message: str, reason: str, metadata: dict[str, str], retry_after: float
) -> LowwaterError:
    error = cls(message, reason=reason, metadata=metadata)
    error.retry_after = retry_after
    return error


class InvalidArgument(LowwaterError, ValueError):
    """A field is malformed. ``metadata`` has ``field``, its path, and ``fix``, what to send."""


class UnknownComputation(LowwaterError):
    """The name is not registered. Register it, or correct the spelling."""


class RegistrationConflict(LowwaterError):
    """The name is registered with other inputs or options. Use ``set_inputs``, or another name."""


class Cycle(LowwaterError):
    """The inputs would make a computation wait for itself, for ever."""


class EstimatedInput(LowwaterError):
    """An exact computation would read an estimated one. Make both estimated or both exact."""


class StaleSequencer(LowwaterError):
    """The claim was superseded: another worker owns the ranges.

    Stop writing for them; do not claim again automatically.
    """


class OlderClaim(LowwaterError):
    """A newer run has claimed already. This run has been replaced and must stop."""


class IdentityMismatch(LowwaterError):
    """The computation belongs to another identity.

    Use another name, or ``adopt`` to start a new incarnation of it.
    """


class OtherSlice(LowwaterError):
    """The keys belong to a slice, which ``metadata`` names; claim and retire them there.

    The client does so itself, unless the keys lie in several slices: then claim them slice by
    slice, as ``Client.slices`` lists them.
    """


class Rewound(LowwaterError):
    """The run starts before the last committed batch: its checkpoint is too old."""


class TooFarAhead(LowwaterError):
    """A report was further ahead of the clock than ``max_skew`` of the computation; refused."""


class FinishRequired(LowwaterError):
    """MAX was reported by ``advance``. Only ``Lease.finish()`` finishes a range."""


class InputVersion(LowwaterError):
    """The inputs changed since the claim. Claim again, and fold the new ones."""


class IncarnationChanged(LowwaterError):
    """The computation was reset or dropped; the call was about an earlier incarnation of it."""


class ServerTokenMismatch(LowwaterError):
    """Another deployment answered at this address. None of its values was used."""


class StaleEpoch(LowwaterError):
    """A server answered with a lower ownership number than one seen: it has been replaced."""


class Moved(LowwaterError):
    """Another shard serves the computation; the client goes there itself. No state was changed.

    ``metadata`` has ``computation``, ``address`` (empty while no shard serves it) and ``epoch``.
    """


class OldStream(LowwaterError):
    """A newer report of the claim, or stream, came first. The reporter begins again by itself."""


class NotPrepared(LowwaterError):
    """A batch was committed without a whole prepared set; the stage holds until a later one."""


class OwnedRanges(LowwaterError):
    """Workers own part of the keys to retire or drop. Stop them first, or use ``force``."""


class LayoutConflict(LowwaterError):
    """Another layout is wanted by now: look at it, then decide.

    ``metadata`` has ``version``, that of the wanted one.
    """


class StillRead(LowwaterError):
    """The computation to drop is an input of others. Change their inputs, or drop them first.

    ``metadata`` has ``computation`` and ``consumers``, some of their names.
    """


class WouldRegress(LowwaterError):
    """A new input lags the published watermark; reading it needs a new incarnation."""


class UnknownGroup(LowwaterError):
    """The computation has no such group of tasks. Create it, or correct the spelling."""


class StaleLease(LowwaterError):
    """Another worker has the task, or its configuration changed. Take another; discard outputs."""


class TaskConflict(LowwaterError):
    """The task exists with another payload, other outputs or another configuration."""


class BelowMark(LowwaterError):
    """The task is below the mark of its group: all tasks before it are done and forgotten.

    ``metadata`` has ``mark``, in microseconds.
    """


class UnknownReference(LowwaterError):
    """The global authority has no such reference. Register it, or correct the spelling."""


class StaleAdoption(LowwaterError):
    """The region does not own the reference by this adoption number, or the reference is moving.

    Commit nothing, and stand by.
    """


class Unconfirmed(LowwaterError):
    """The region was restarted or cut off, and its ownership of the reference is unconfirmed.

    Commit nothing until it is confirmed.
    """


class SecondAgent(LowwaterError):
    """Another agent speaks for the region. Stop one of the two."""


class RegionRefused(LowwaterError):
    """The request does not fit the state of the reference.

    ``metadata`` has ``fix``, a first step.
    """


class Recovering(LowwaterError):
    """The global authority's store is an old copy, or it enrols all regions again.

    An operator has to act, or the other regions.
    """


class Unauthenticated(LowwaterError):
    """The caller is unknown: its token or certificate is missing, wrong, or was removed.

    Calls raise it at once. Streams try again every few seconds.
    """


class PermissionDenied(LowwaterError):
    """The caller is known and not allowed; the answer hides whether the computation exists.

    ``metadata`` has ``principal``, ``permission`` (``report``, ``read`` or ``operate``) and, for
    one about a computation, ``computation``. Streams try again every few seconds.
    """


class Overloaded(LowwaterError):
    """A limit of the authority or its access file is reached. No state was changed; try later."""


class LimitReached(LowwaterError):
    """A namespace or the deployment is full of computations or dropped names.

    No state was changed. Waiting does not help, so the client does not repeat the call.
    ``metadata`` has ``bound`` and ``limit``.
    """


class JournalFailed(LowwaterError):
    """The journal refused the write, for example because its disk is full. No state was changed."""


class ShuttingDown(LowwaterError):
    """The server is stopping. Repeatable calls are repeated at the next server."""


class Unavailable(LowwaterError):
    """No server answered at the address in time, or none that serves the computation."""


class Timeout(LowwaterError, TimeoutError):
    """The awaited event did not happen in time."""


class Closed(LowwaterError):
    """The client, worker or lease was closed or released, or belongs to the parent process."""
