"""Reasons for which a guarded write is refused.

Nothing has changed in the store, except perhaps after :class:`InDoubt`. What to do:

* :class:`Fenced`, :class:`OldConfiguration`: stop, because another writer has replaced this one.
* :class:`NotRaised`, :class:`NonceMismatch`, :class:`StoreReplaced`: claim again, raise the new
  claim, and read the state again.
* :class:`InDoubt`, :class:`Blocked`, :class:`StagingLost`, :class:`Unclaimed`: make the same write
  again, with the same number and digest.
* :class:`Rewound`, :class:`WrongOwner`, :class:`Damaged`: an operator must look.
* :class:`Unaligned`, :class:`Unfit`: mend the caller's code.
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
    """Base class. The message names the guard, the slot, what is there, and what to do."""


class Fenced(GuardError):
    """A newer claim has been raised in the store: this writer is a zombie (MillWheel 6.2).

    It must stop, and not claim again by itself.
    """


class NotRaised(GuardError):
    """The claim was not raised in this store: its row has an older claim, or there is no row."""


class NonceMismatch(GuardError):
    """Another claim of the same number was raised: the authority has granted the number twice."""


class WrongOwner(GuardError):
    """The guard belongs to another computation or deployment, whose numbers do not compare."""


class OldConfiguration(GuardError):
    """The writer works by another configuration than the one that was raised last."""


class StoreReplaced(GuardError):
    """The store was restored or has failed over since the raise, so a later raise may be lost."""


class Rewound(GuardError):
    """The batch does not follow the store's last one: the store or the writer's state is older."""


class Damaged(GuardError):
    """The store's data is no row of a guard, or of one with other slots. Other guards go on."""


class Unaligned(GuardError, ValueError):
    """The claim's bounds are not bounds of slots: two owners would share and fence one row."""


class Unfit(GuardError, ValueError):
    """The write cannot be made under a guard. The message says what to write instead."""


class Blocked(GuardError):
    """Sessions hold the guard's row and could not be ended. The message names them."""


class Unclaimed(GuardError):
    """The authority has not acknowledged a claim of this run: the store has nothing to compare."""


class StagingLost(GuardError):
    """Some of the rows that tasks have staged are gone. The batch runs again."""


class InDoubt(GuardError):
    """The store did not answer. Make the same write again: it is made once."""
