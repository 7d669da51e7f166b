"""Ages of a watch stream's messages at the time when they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["BEAT", "LATE", "SLEW", "Ages"]

BEAT: Final = 1.0
"""Seconds after which the authority repeats itself when no value changes."""

LATE: Final = 2 * BEAT
"""Age in seconds beyond which a message was in a buffer before it was read."""

SLEW: Final = 0.0005
"""Greatest drift between two clocks, in seconds per second: NTP corrects by at most this rate, and
plain clocks drift less."""


class Ages:
    """Ages of the messages of one stream, computed from the times in them.

    A message says when, by its shard's clock, it was sent, and when its values were confirmed as
    the newest. The fastest message shows the difference between that clock and this process's own.
    This *offset* is the least of (time read - time sent) over the stream, and may grow by ``SLEW``
    because clocks drift. So a process that was stopped, and then reads a minute of messages from
    gRPC's buffers at once, gets the age of each. When the shard's clock jumps forward, the next
    message lowers the offset by the jump. When it jumps back, the values seem older than they are
    until the drift has caught up or the stream is renewed. A message whose time of confirmation did
    not grow is no news: the shard's journal hangs, so the shard cannot confirm its values. An
    authority of the first release does not send the time of sending; the time of confirmation
    counts for both.
    """

    __slots__ = (
        "_confirmed_to",
        "_late_since",
        "_monotonic",
        "_offset",
        "_opened_at",
        "_sent_to",
        "confirmed_at",
        "prompt",
    )

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.confirmed_at: float | None = None
        """Time of the last confirmation, on this process's clock; None before the first message."""
        self.prompt: bool = False
        """True when the first message came soon enough to measure the offset."""
        self._monotonic = monotonic
        self._opened_at = monotonic()
        self._offset = float("inf")
        self._sent_to = 0
        self._confirmed_to = 0
        self._late_since: float | None = None

    def read(self, time_micros: int, clock_micros: int) -> None:
        """Take the times of a message: when its values were confirmed, and when it was sent."""
        now = self._monotonic()
        if self.confirmed_at is None:
            self.confirmed_at, self.prompt = float("-inf"), now - self._opened_at <= LATE
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
            self.confirmed_at = time_micros / 1e6 + self._offset
        elif time_micros == self._confirmed_to:
            # A faster message shows that the same confirmation was longer ago.
            self.confirmed_at = min(self.confirmed_at, time_micros / 1e6 + self._offset)

    @property
    def lasted(self) -> float:
        """Seconds since the opening."""
        return self._monotonic() - self._opened_at

    @property
    def fresh(self) -> bool:
        """True when the values were confirmed within ``LATE``."""
        return self.confirmed_at is not None and self._monotonic() - self.confirmed_at <= LATE

    @property
    def holding(self) -> bool:
        """True when newer values are in a buffer, which is read within a beat."""
        return self._late_since is not None and self._monotonic() - self._late_since <= BEAT

    @property
    def astray(self) -> bool:
        """True when messages seem late although no buffer is behind them: the clocks moved."""
        return self._late_since is not None and not self.holding
