"""The contract of what keeps the view of a deployment and hears its shards. ``membership`` decides by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowwater_authority.cluster.membership import Beats, View


class Directory(ABC):
    """Keeps one view and the beats, for all shards of a deployment.

    One test suite checks all stores.

    **One step.** ``propose`` compares and sets in one step. ``beat`` counts and reads in one step:
    it sees all that was done before it, and itself.

    **One clock.** All times are the store's, in microseconds since the Unix epoch; the clocks of
    the shards play no part. Should it go back (a fail-over to another machine), then beats that
    seem to come from the future count as of now.

    **A gap is nobody's fault.** A beat that comes more than half of ``dead_after`` after
    everybody's last one sets ``since`` to now: the store was away, or has lost what it heard. So
    every shard should beat five times in ``dead_after`` or more often, also while the store does
    not answer.

    **May be lost.** A view is not waited for until it is on disks and replicas: a fail-over may
    bring back an older one, or none, and a later ``proposal`` heals that. Who may write a log is
    the journal's word alone.

    **Sure or unknown.** JournalFailed: surely nothing was done. JournalUnknown: perhaps; the next
    beat tells. JournalCorrupt: the view cannot be read. JournalClosed: it is not open.

    **Not thread-safe.** All methods are called from one event loop. Calls may overlap.
    """

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises JournalFailed or JournalUnknown; to be called once, and again only after these."""

    @abstractmethod
    async def beat(self, member_id: str) -> tuple[View, Beats]:
        """Say that a shard lives, member or not, and read all; version 0 when there is no view yet.

        Cost: one round trip, which waits for no journal write. Raises JournalFailed, JournalUnknown
        and JournalCorrupt.
        """

    @abstractmethod
    async def propose(self, view: View, *, over: int) -> bool:
        """Replace the view, if the version of the present one is still ``over``; returns whether that was so.

        Call ``View.dated`` first (``proposal`` did). Forgets the beats of all who are not in it; one who is in it and
        was never heard of counts as heard now. Raises JournalFailed and JournalUnknown.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go. Does nothing the second time; everything else raises JournalClosed then."""
