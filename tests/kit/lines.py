"""Connections to the other shards that a test cuts as it likes, where nothing has an address."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lowwater_authority.cluster.lifelines import Lifelines
from lowwater_authority.cluster.membership import Member


class Lines(Lifelines):
    """``looks_gone`` says whether the process of a member seems to have died. Without it none does."""

    def __init__(self, looks_gone: Callable[[Member], bool] = lambda _: False) -> None:
        self.on_gone = lambda _: None
        self._looks_gone = looks_gone
        self._members: tuple[Member, ...] = ()

    @property
    def gone(self) -> set[str]:  # type: ignore[override]  # looked up, not kept
        return {member.id for member in self._members if self._looks_gone(member)}

    def follow(self, members: Iterable[Member]) -> None:
        self._members = tuple(members)

    async def close(self) -> None:
        """See Lifelines."""
