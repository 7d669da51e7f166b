"""Processing time: a clock that follows the machine's clock without its jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLEW: Final = 10
"""Divisor of the correction: processing time runs at most 1/SLEW faster or slower than real time
while the wall clock is ahead or behind."""


class ProcessingTime:
    """Microseconds since the Unix epoch, UTC; never goes back and never jumps.

    It begins at the wall clock and advances by ``monotonic``: microseconds of a clock without
    jumps, which should also run while the machine is suspended. None: ``wall`` has no jumps. It
    approaches the wall clock slowly: a clock that is wrong for a second moves it by a tenth of a
    second at most.

    So if the wall clock was behind when the process started, processing time stays behind for long.
    A correction cannot be told from a fault of the clock, and processing time could not go back
    after a jump. So it never jumps.
    """

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], int] | None) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._read: int | None = None
        self._now = 0

    def __call__(self) -> int:
        """Return the processing time now."""
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
