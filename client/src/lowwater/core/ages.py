"""How old the messages of a watch stream are when they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["BEAT", "LATE", "SLEW", "Ages"]

BEAT: Final = 1.0
"""Seconds after which the authority repeats itself when nothing changes."""

LATE: Final = 2 * BEAT
"""A message that is older than so many seconds when it is read has been waiting in a buffer."""

SLEW: Final = 0.0005
"""How fast two clocks may drift apart: NTP corrects by at most this rate, and plain clocks drift by
less."""


class Ages:
    """What the times in the messages of one stream tell, from its opening on.

    A message says when, by its shard's clock, it was sent, and when its values were confirmed as
    the newest. The message that travelled fastest tells how that clock stands to this process's
    own: the *offset* is the least of (time read - time sent) over the stream, allowed to grow by
    ``SLEW`` because clocks drift. So a process that was stopped, and then reads a minute of
    messages from gRPC's buffers at once, knows how old each is. When the shard's clock jumps
    forward, the next message lowers the offset by the jump. When it jumped back the values seem
    older than they are, until the drift has caught up or the stream is renewed. A message whose
    time confirmed did not grow is no news: the shard's journal hangs, and it cannot say that its
    values are still the newest. An authority of the first release does not say when it sent a
    message; there the two times count as one.
    """

    __slots__ = (
        "_confirmed_to",
        "_late_since",
        "_monotonic",
        "_offset",
        "_opened_at",
        "_sent_to",
        "heard_at",
        "prompt",
    )

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.heard_at: float | None = None
        """When the values were confirmed last, on this process's clock; None before the first
        message."""
        self.prompt: bool = False
        """Whether the first message came soon enough to measure with."""
        self._monotonic = monotonic
        self._opened_at = monotonic()
        self._offset = float("inf")
        self._sent_to = 0
        self._confirmed_to = 0
        self._late_since: float | None = None

    def read(self, time_micros: int, clock_micros: int) -> None:
        """Note when the newest values were sent and confirmed, and whether newer ones are about to come."""
        now = self._monotonic()
        if self.heard_at is None:
            self.heard_at, self.prompt = float("-inf"), now - self._opened_at <= LATE
        sent = max(time_micros, clock_micros)
        if sent > self._sent_to:
            drift = (sent - self._sent_to) / 1e6 * SLEW
            self._offset = min(now - sent / 1e6, self._offset + drift)
            self._sent_to = sent
            if now - (sent / 1e6 + self._offset) <= LATE:
                self._late_since = None
            elif self._late_since is None:
                self._late_since = now
        if time_micros > self._confirmed_to:
            self._confirmed_to = time_micros
            self.heard_at = time_micros / 1e6 + self._offset
        elif time_micros == self._confirmed_to:
            # A message that travelled faster tells that the same moment was longer ago.
            self.heard_at = min(self.heard_at, time_micros / 1e6 + self._offset)

    @property
    def lasted(self) -> float:
        """Seconds since the opening."""
        return self._monotonic() - self._opened_at

    @property
    def fresh(self) -> bool:
        """Whether the values were confirmed a moment ago."""
        return self.heard_at is not None and self._monotonic() - self.heard_at <= LATE

    @property
    def holding(self) -> bool:
        """Whether values newer than those read are about to come: a buffer is read within a beat."""
        return self._late_since is not None and self._monotonic() - self._late_since <= BEAT

    @property
    def astray(self) -> bool:
        """Whether messages seem late without a buffer: it is the clocks that moved."""
        return self._late_since is not None and not self.holding
