"""A directory in memory, for tests and the simulator: the contract over a store that can be away, and lose views."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from lowwater_authority.cluster.directory import Directory
from lowwater_authority.cluster.membership import Beats, View
from lowwater_authority.journal.contract import JournalClosed, JournalFailed, JournalUnknown
from tests.kit.faults import FaultPlan, Operation, Outcome

T = TypeVar("T")


class MemoryMembers:
    """The state that all shards share: the view and the beats, now and before each change of the view.

    ``clock`` gives microseconds, ``dead_after`` is in microseconds.
    """

    def __init__(self, clock: Callable[[], int], *, dead_after: int) -> None:
        self.away = False
        """True while no shard reaches the store."""
        self.view = View()
        self.last: dict[str, int] = {}
        """When each shard was last heard of."""
        self._since = 0
        self._before: list[tuple[View, dict[str, int], int]] = []
        self._clock = clock
        self._gap = dead_after // 2

    def lose(self, views: int = 1) -> None:
        """A fail-over brings back an older view, and the beats from before it was replaced."""
        for _ in range(min(views, len(self._before))):
            self.view, self.last, self._since = self._before.pop()

    def beat(self, member_id: str) -> tuple[View, Beats]:
        now = self._clock()
        newest = max(self.last.values(), default=0)
        self.last = {member: min(last, now) for member, last in self.last.items()} | {member_id: now}
        if now - newest > self._gap or self._since > now:
            self._since = now
        return self.view, Beats(now, self.last, self._since)

    def propose(self, view: View, over: int) -> bool:
        if self.view.version != over:
            return False
        self._before.append((self.view, self.last, self._since))
        now = self._clock()
        self.view = view
        self.last = {member.id: self.last.get(member.id, now) for member in view.members}
        return True


class MemoryDirectory(Directory):
    """The contract over MemoryMembers, as one process has it.

    ``cut_off`` keeps this one alone from the store: a call that is on its way there raises JournalFailed, one that
    comes back JournalUnknown. ``faults`` may delay and fail calls, which are named ``beat`` and ``propose``.
    """

    def __init__(self, members: MemoryMembers, *, faults: FaultPlan | None = None) -> None:
        self.cut_off = False
        self._members = members
        self._faults = faults or FaultPlan()
        self._opened = False

    async def open(self) -> None:
        await asyncio.sleep(0)
        self._reach()
        self._opened = True

    async def beat(self, member_id: str) -> tuple[View, Beats]:
        return await self._call("beat", lambda: self._members.beat(member_id))

    async def propose(self, view: View, *, over: int) -> bool:
        return await self._call("propose", lambda: self._members.propose(view, over))

    async def close(self) -> None:
        self._opened = False

    async def _call(self, name: str, call: Callable[[], T]) -> T:
        if not self._opened:
            raise JournalClosed
        operation = Operation(name, [], strong=True)
        # Every other store lets the event loop run during a call, and callers come to rely on it.
        await asyncio.sleep(0)
        outcome = await self._faults.before(operation)
        self._reach()
        if outcome is Outcome.FAILED:
            raise JournalFailed("the fault plan refuses this call")
        if outcome is Outcome.LOST:
            raise JournalUnknown("the fault plan hides the outcome of this call")
        answer = call()
        await asyncio.sleep(0)
        await self._faults.after(operation)
        if outcome is Outcome.WRITTEN or self.cut_off or self._members.away:
            raise JournalUnknown("the fault plan, or a cut, hides the outcome of this call")
        return answer

    def _reach(self) -> None:
        if self.cut_off or self._members.away:
            raise JournalFailed("the store cannot be reached from here; nothing was done")
