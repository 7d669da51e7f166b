"""The completeness history: when each step of event time became complete.

A step ``[b - step, b)`` is complete from the round on whose published low watermark is at ``b`` or
above. Steps lie at multiples of the step from the Unix epoch, so the history of a computation is a
pure function of the published low watermarks and the times of their rounds: live rounds, replayed
records and snapshots give the same one.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater_authority.core.times import DAY, MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KEPT: Final = 10_000
"""Number of newest completions in a history: 13 months of hours."""

SECOND: Final = 1_000_000
HOUR: Final = 3600 * SECOND
"""The default step, in microseconds."""

LEAST_STEP: Final = SECOND
LARGEST_STEP: Final = 366 * DAY


class Completion(NamedTuple):
    """One round in which one or more steps became complete. All times are microseconds."""

    incarnation: int
    after: int
    """Steps up to this boundary were complete before; MIN at the first completion of an
    incarnation."""
    through: int
    """Steps up to this boundary are complete now; MAX when the computation finished."""
    time: int
    """Processing time of the round."""


_FIELDS: Final = len(Completion._fields)


class History:
    """The newest completions of all incarnations of a computation, oldest first.

    Cost: all is O(completions); :meth:`note` moves 320 kB at most, some 10 us. 32 bytes each.
    """

    def __init__(self, completions: Iterable[Completion] = ()) -> None:
        self._completions = array("q")
        for completion in completions:
            self._append(completion)

    def __len__(self) -> int:
        """Return the number of completions."""
        return len(self._completions) // _FIELDS

    def __iter__(self) -> Iterator[Completion]:
        """Iterate over the completions, oldest first."""
        fields = iter(self._completions)
        return map(Completion, fields, fields, fields, fields)

    @property
    def bytes(self) -> int:
        """Memory of the completions."""
        return len(self._completions) * self._completions.itemsize

    def _append(self, completion: Completion) -> None:
        self._completions.extend(completion)
        if len(self) > KEPT:
            del self._completions[:_FIELDS]

    def note(self, incarnation: int, step: int, *, old: int, low: int, now: int) -> None:
        """Note that an incarnation's published low watermark has moved from ``old`` to ``low``."""
        after, through = boundary(old, step), boundary(low, step)
        if through > after:
            self._append(Completion(incarnation, after, through, now))

    def newest(self, since: int | None, limit: int) -> tuple[list[Completion], int]:
        """Return the newest completions of steps that end after ``since``, and their total number.

        They are in order, the oldest first, and at most ``limit``.
        """
        newer = [completion for completion in self if since is None or completion.through > since]
        return newer[max(0, len(newer) - limit) :], len(newer)


def boundary(low: int, step: int) -> int:
    """Return the end of the last step that a low watermark completes; MIN: none, MAX: all.

    >>> boundary(7_199, 3_600), boundary(-1, 3_600)
    (3600, -3600)
    """
    return MAX if low == MAX else max(MIN, low // step * step)
