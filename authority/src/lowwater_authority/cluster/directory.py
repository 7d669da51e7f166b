"""The contract of a directory, which stores the view of a deployment and its beats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowwater_authority.cluster.membership import Beats, View


class Directory(ABC):
    """Stores one view and the beats, for all shards of a deployment.

    One test suite checks all directories.

    **One step.** ``propose`` compares and sets in one step. ``beat`` counts and reads in one step:
    it sees all calls before it, and itself.

    **One clock.** All times are the store's, in microseconds since the Unix epoch; the clocks of
    the shards play no part. If the clock goes back (a fail-over to another machine), beats that
    seem to come from the future count as of now.

    **A gap silences no shard.** A beat that comes more than half of ``dead_after`` after the last
    beat of all shards sets ``since`` to now: the store was away, or has lost beats. So every shard
    should beat at least five times in ``dead_after``, also while the store does not answer.

    **May be lost.** ``propose`` does not wait until a view is on disks and replicas: a fail-over
    may bring back an older one, or none, and a later ``proposal`` heals that. Only the journal
    decides who may write a log.

    **Sure or unknown.** JournalFailed: surely nothing was done. JournalUnknown: perhaps; the next
    beat shows it. JournalCorrupt: the view cannot be read. JournalClosed: the directory is not
    open.

    **Not thread-safe.** All methods are called from one event loop. Calls may overlap.
    """

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises JournalFailed or JournalUnknown; only then it may be called again."""

    @abstractmethod
    async def beat(self, member_id: str) -> tuple[View, Beats]:
        """Note that a shard lives, member or not.

        Return the view, of version 0 before the first, and all beats. Cost: one round trip, which
        waits for no journal write. Raises JournalFailed, JournalUnknown and JournalCorrupt.
        """

    @abstractmethod
    async def propose(self, view: View, *, over: int) -> bool:
        """Replace the view if the version of the present one is still ``over``.

        Return whether it was. Call ``View.dated`` first (``proposal`` did). Beats of shards that
        are no members of the new view are forgotten; a member without a beat gets one now. Raises
        JournalFailed and JournalUnknown.
        """

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. Does nothing the second time.

        Every other method raises JournalClosed then.
        """
