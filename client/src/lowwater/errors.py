"""Everything the client raises on purpose.

Each refusal of the authority is a class of its own, and its ``reason`` equals the
``ErrorInfo.reason`` on the wire: ``StaleSequencer.reason == "STALE_SEQUENCER"``. A message says
what happened and what to do; everything that varies in it is also in ``metadata``, for programs.

Who must react:

* the caller's code is wrong: :class:`InvalidArgument`, :class:`UnknownComputation`,
  :class:`RegistrationConflict`, :class:`Cycle`, :class:`EstimatedInput`, :class:`FinishRequired`,
  :class:`TooFarAhead`, :class:`NotPrepared`, :class:`Closed`, :class:`UnknownGroup`,
  :class:`UnknownReference`, :class:`TaskConflict`, :class:`BelowMark`, :class:`LayoutConflict`;
* this worker has been replaced and must stop writing: :class:`StaleSequencer`, :class:`OlderClaim`,
  :class:`IdentityMismatch`, :class:`Rewound`, :class:`InputVersion`, :class:`IncarnationChanged`,
  :class:`StaleLease`, :class:`StaleAdoption`;
* whoever keeps the access file must look: :class:`Unauthenticated`, :class:`PermissionDenied`;
* an operator must look: :class:`ServerTokenMismatch`, :class:`StaleEpoch`, :class:`OwnedRanges`,
  :class:`WouldRegress`, :class:`JournalFailed`, :class:`LimitReached`, :class:`SecondAgent`,
  :class:`RegionRefused`, :class:`Recovering`;
* later is better: :class:`Unavailable`, :class:`Timeout`, :class:`Overloaded`,
  :class:`ShuttingDown`, :class:`OldStream`, :class:`Unconfirmed`;
* nobody, the client does: :class:`Moved`, :class:`OtherSlice` (but of keys that lie in several
  slices).
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
"""The class of each wire reason."""


class LowwaterError(Exception):
    """The root. Raised itself only for a reason that this version of the client does not know.

    ``metadata`` holds every changing part of the message.
    """

    reason: str = "UNKNOWN"

    retry_after: float = 0.0
    """Seconds that the authority asked to wait before a repetition; 0 when it did not say."""

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
        """Errors cross process borders whole; Exception alone would drop the keywords."""
        return (_rebuild, (type(self), self.message, self.reason, self.metadata, self.retry_after))


def _rebuild(
    cls: type[LowwaterError], message: str, reason: str, metadata: dict[str, str], retry_after: float
) -> LowwaterError:
    error = cls(message, reason=reason, metadata=metadata)
    error.retry_after = retry_after
    return error


class InvalidArgument(LowwaterError, ValueError):
    """A field is malformed.

    ``metadata`` has ``field``, its path, and ``fix``, what to send instead.
    """


class UnknownComputation(LowwaterError):
    """The name is not registered. Register it, or correct the spelling."""


class RegistrationConflict(LowwaterError):
    """The name is registered with other inputs or options. Use ``set_inputs``, or another name."""


class Cycle(LowwaterError):
    """The inputs would make a computation wait for itself, for ever."""


class EstimatedInput(LowwaterError):
    """An exact computation would read an estimated one.

    Register it as estimated too, or read what is exact.
    """


class StaleSequencer(LowwaterError):
    """The claim was superseded: another worker owns the ranges.

    Stop writing for them; do not claim again by yourself.
    """


class OlderClaim(LowwaterError):
    """A newer run has claimed already. This run has been replaced and must stop."""


class IdentityMismatch(LowwaterError):
    """The computation belongs to another identity.

    Use another name, or ``adopt`` to start a new incarnation of it.
    """


class OtherSlice(LowwaterError):
    """The keys are those of a slice of the computation, which ``metadata`` names: they are claimed, and retired, there.

    The client follows by itself, unless they lie in several slices: then claim them one slice at a time, as ``Client.slices`` lists them.
    """


class Rewound(LowwaterError):
    """The run starts before the last committed batch: its checkpoint is older than what was published."""


class TooFarAhead(LowwaterError):
    """A report was further ahead of the clock than the computation's ``max_skew`` and was not taken over."""


class FinishRequired(LowwaterError):
    """MAX was reported without meaning it. Only ``Lease.finish()`` ends a range."""


class InputVersion(LowwaterError):
    """The inputs changed since the claim. Claim again, and fold the new ones."""


class IncarnationChanged(LowwaterError):
    """The computation was reset, or dropped: what was waited for belongs to an earlier incarnation of it."""


class ServerTokenMismatch(LowwaterError):
    """Another deployment answered under this address.

    Nothing it says is mixed with what was seen before.
    """


class StaleEpoch(LowwaterError):
    """A server answered with an ownership number lower than one already seen: it has been replaced."""


class Moved(LowwaterError):
    """Another shard serves the computation; the client goes there by itself. Nothing was changed.

    ``metadata`` has ``computation``, ``address`` (empty while nobody serves it) and ``epoch``.
    """


class OldStream(LowwaterError):
    """A newer report stream, or a newer report of the claim, was heard of in the meantime.

    The reporter begins anew by itself.
    """


class NotPrepared(LowwaterError):
    """A micro-batch was committed without a whole prepared set; the stage holds until a later batch is prepared."""


class OwnedRanges(LowwaterError):
    """Workers own part of what should be retired, or dropped. Stop them first, or force it."""


class LayoutConflict(LowwaterError):
    """Another layout is wanted by now: look at it, then decide.

    ``metadata`` has ``version``, the one that is wanted.
    """


class StillRead(LowwaterError):
    """What should be dropped is an input of other computations.

    Change their inputs, or drop them first.

    ``metadata`` has ``computation`` and ``consumers``, some of their names.
    """


class WouldRegress(LowwaterError):
    """A new input is behind what the computation has published; it needs a new incarnation to read it."""


class UnknownGroup(LowwaterError):
    """The computation has no such group of tasks. Create it, or correct the spelling."""


class StaleLease(LowwaterError):
    """Another worker has the task, has done it, or its configuration was changed.

    Drop what was made under the lease, and take a task anew.
    """


class TaskConflict(LowwaterError):
    """The task is there with another payload, was committed by this lease with other outputs, or another configuration is in force."""


class BelowMark(LowwaterError):
    """The task is older than all that its group remembers: work before the mark is done and forgotten. ``metadata`` has ``mark``, microseconds."""


class UnknownReference(LowwaterError):
    """The global authority has no such reference. Register it, or correct the spelling."""


class StaleAdoption(LowwaterError):
    """The region does not own the reference by this adoption number: it was replaced, or is being moved. Commit nothing, and stand by."""


class Unconfirmed(LowwaterError):
    """The region was restarted, or cut off, and nobody has confirmed since by which number it owns the reference. Commit nothing until then."""


class SecondAgent(LowwaterError):
    """Another agent speaks for the region. Stop one of the two."""


class RegionRefused(LowwaterError):
    """What is asked of a reference cannot be done as it stands.

    ``metadata`` has ``fix``, what to do first.
    """


class Recovering(LowwaterError):
    """The global authority has found its store to be an old copy, or enrols all regions anew.

    An operator has to act, or the other regions.
    """


class Unauthenticated(LowwaterError):
    """The authority does not know who calls: the token or the client certificate is missing, wrong, or was removed.

    Calls end with it at once. What goes on in the background tries again every few seconds.
    """


class PermissionDenied(LowwaterError):
    """The authority knows who calls, and does not allow it; whether the computation exists is not said.

    ``metadata`` has ``principal``, ``permission`` (``report``, ``read`` or ``operate``) and, where it is about one, ``computation``. As
    with :class:`Unauthenticated`, what goes on in the background tries again every few seconds.
    """


class Overloaded(LowwaterError):
    """The authority's admission bound, or a limit of its access file, is reached.

    Nothing was changed; try later.
    """


class LimitReached(LowwaterError):
    """A namespace or the deployment has all the computations or dropped names that it may have.

    Nothing was changed.

    Waiting does not help, so the client does not repeat the call. ``metadata`` has ``bound`` and
    ``limit``.
    """


class JournalFailed(LowwaterError):
    """The journal surely refused the write, for example because its disk is full.

    Nothing was changed.
    """


class ShuttingDown(LowwaterError):
    """The server is stopping. Calls that may be repeated are, at the next server."""


class Unavailable(LowwaterError):
    """No server answered under the address within the deadline, or none that serves the computation."""


class Timeout(LowwaterError, TimeoutError):
    """What was waited for did not happen in time."""


class Closed(LowwaterError):
    """The client, worker or lease was closed or released, or belongs to the process that forked this one."""
