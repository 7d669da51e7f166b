"""The contact of a process with its store, and what the process may not do without it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lowwater.core.events import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.cluster.pace import Pace

log = logging.getLogger(__name__)


class Contact:
    """The contact of one process with its store. ``monotonic`` returns seconds."""

    def __init__(self, pace: Pace, monotonic: Callable[[], float]) -> None:
        self.on_cut_off: Callable[[bool], None] = lambda _: None
        """Called with True when this process loses its store, with False when the store is back."""
        self.cut_off = False
        """True while the store has been silent for so long that other shards may serve what this
        process holds."""
        self._pace = pace
        self._monotonic = monotonic
        self._confirmed_at = monotonic()
        """Time when the store last confirmed what is held."""
        self._answered_at = monotonic()
        """Time when the store last answered a beat."""
        self._resumed_at = float("-inf")
        """Time of the first answer after a gap in which other shards could have taken over."""

    @property
    def unbroken(self) -> float:
        """Seconds since the last gap in which other shards could have taken over."""
        return self._monotonic() - self._resumed_at

    def answered(self) -> None:
        """Note that the store has just answered a beat."""
        now = self._monotonic()
        if now - self._answered_at > self._pace.gone_after:
            self._resumed_at = now
        self._answered_at = now

    def confirmed(self) -> None:
        """Note that the store has just confirmed what is held."""
        self._confirmed_at = self._monotonic()

    def judge(self) -> None:
        """Decide whether this process is cut off.

        Other shards take over what the store has not confirmed for ``dead_after``.
        """
        cut_off = self._monotonic() - self._confirmed_at > self._pace.dead_after
        if cut_off != self.cut_off:
            facts = event("cut_off" if cut_off else "store_back")
            log.warning("cut off from the store: serving nothing" if cut_off else "the store is back", extra=facts)
            self.cut_off = cut_off
            self.on_cut_off(cut_off)

    def may_heal(self) -> bool:
        """Return whether this process may put back what the store has lost.

        If a process that was frozen did so, it might overwrite its successor, which a store that
        has lost the epoch cannot name. So it waits ``dead_after``, in which the shards that kept
        contact put back what they know.
        """
        now = self._monotonic()
        return now - self._answered_at <= self._pace.dead_after <= now - self._resumed_at
