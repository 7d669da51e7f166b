"""Processing time: what the authority stamps and measures with, whatever happens to the clock of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLEW: Final = 10
"""One part in so many: how much faster or slower than real time it goes while the wall clock is
ahead or behind."""


class ProcessingTime:
    """Microseconds since the Unix epoch, UTC; never goes back and never jumps.

    It begins at the wall clock and goes on by ``monotonic``, in microseconds of any clock that
    makes no steps (None: ``wall`` makes none), and that goes on while the machine is suspended, or
    the time is made up for slowly. It nears the wall clock slowly, so that a clock that is wrong
    for a second, or is put right, moves it by a tenth of that second at most.

    So it stays behind for long when the wall clock was behind as the process started. Nothing tells
    a clock that is put right from one that goes wrong, and what was once ahead could not come back:
    a jump is never made up.
    """

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int] | None) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._read: int | None = None
        self._now = 0

    def __call__(self) -> int:
        """Return what it is now."""
        wall = self._wall()
        read = wall if self._monotonic is None else self._monotonic()
        if self._read is None:
            self._now = wall
        else:
            passed = max(0, read - self._read)
            ahead = wall - (self._now + passed)
            self._now += passed + max(-(passed // SLEW), min(passed // SLEW, ahead))
        self._read = read
        return self._now
