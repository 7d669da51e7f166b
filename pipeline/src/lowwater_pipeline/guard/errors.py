"""What a guarded write is refused for.

Nothing has been changed in the store, but for :class:`InDoubt`.

Who must react:

* this writer has been replaced, and stops: :class:`Fenced`, :class:`OldConfiguration`;
* this writer claims again, raises again and reads its state again: :class:`NotRaised`,
  :class:`NonceMismatch`, :class:`StoreReplaced`;
* the same write is made again, with the same number and digest: :class:`InDoubt`, :class:`Blocked`,
  :class:`StagingLost`, :class:`Unclaimed`;
* an operator must look: :class:`Rewound`, :class:`WrongOwner`, :class:`Damaged`;
* the caller's code is wrong: :class:`Unaligned`, :class:`Unfit`.
"""

from __future__ import annotations

__all__ = [
    "Blocked",
    "Damaged",
    "Fenced",
    "GuardError",
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


class GuardError(RuntimeError):
    """The root of what a guard refuses.

    The message names the guard, the slot, what stands there, and what to do.
    """


class Fenced(GuardError):
    """A newer claim has been raised in the store: this writer is a zombie (MillWheel 6.2).

    It must stop, and not claim again by itself.
    """


class NotRaised(GuardError):
    """The claim has not been raised in this store: what stands there is of an older one, or there is nothing."""


class NonceMismatch(GuardError):
    """Another claim with the same number was raised: the authority has lost the epoch that it had granted it in."""


class WrongOwner(GuardError):
    """The guard belongs to another computation, or to another deployment of the authority: their numbers do not compare."""


class OldConfiguration(GuardError):
    """The writer works by another configuration than the one that was raised last."""


class StoreReplaced(GuardError):
    """The store is not the one in which the claim was raised: it was restored, or another server has taken over, and a raise may be lost."""


class Rewound(GuardError):
    """The batch does not follow the last one that the store has: the store has lost its tail, or the writer's own state is older than the store."""


class Damaged(GuardError):
    """What stands in the store is no row of a guard, or one that was made with other slots.

    Other guards are not concerned.
    """


class Unaligned(GuardError, ValueError):
    """The bounds of a claim are not those of slots: two owners would share a row, and each would fence the other."""


class Unfit(GuardError, ValueError):
    """What was to be written cannot be written under a guard.

    The message says what to write instead.
    """


class Blocked(GuardError):
    """Somebody holds the guard's row, and could not be ended. The message names the sessions."""


class Unclaimed(GuardError):
    """The authority has not acknowledged a claim of this run yet: there is nothing that the store could compare."""


class StagingLost(GuardError):
    """The rows that tasks have staged are not all there any more. The batch runs again."""


class InDoubt(GuardError):
    """The store did not answer: nobody knows whether the write was made.

    Make the same write again: it is made once.
    """
