"""Which members seem to have died, as far as the store has not heard of them since."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lowwater_authority.cluster.lifelines import Lifelines
    from lowwater_authority.cluster.membership import Beats, Member


class Suspects:
    """The members whose lifeline says that their process has died."""

    def __init__(self, lifelines: Lifelines) -> None:
        self._lifelines = lifelines
        self._last_beats: Mapping[str, int] = {}
        """Store's time of the last beat of each shard."""
        self._accused_at: dict[str, int] = {}
        """Store's time of the last beat of each suspect when it was first suspected. A later beat
        proves that it lives, whatever its address says."""

    def take_in(self, beats: Beats, dead_ids: Iterable[str]) -> None:
        """Take in an answer of the store.

        ``dead_ids`` are the ``gone`` of the lifelines before the question. A beat that a shard sent
        just before it died may reach the store after the answer. If a shard that died since the
        question were accused now, this late beat would count as a proof that it lives.
        """
        self._last_beats = beats.last
        self._accused_at = {
            member_id: self._accused_at.get(member_id, beats.last.get(member_id, 0)) for member_id in dead_ids
        }

    def among(self, members: Iterable[Member]) -> Iterator[Member]:
        """Yield the members that seem to have died and have not beaten since."""
        for member in members:
            last_beat = self._last_beats.get(member.id, 0)
            if member.id in self._lifelines.gone and last_beat <= self._accused_at.get(member.id, last_beat):
                yield member
