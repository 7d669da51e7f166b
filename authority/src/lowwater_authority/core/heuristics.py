"""Heuristic watermarks: how far a share of the record timestamps has come.

MillWheel 7.2: "we can compute a 99% low watermark that corresponds to the progress of 99% of the
record timestamps in the system". Here that is a definition, not an estimate: the mass of a claim is
its unfinished records at their timestamps and its recently finished ones at the frontier it
reached, and

    H(p) = max(L, min(greatest frontier F(p), greatest T with at least a share p of all mass at or
    above T))

The result is about recent records, and promises nothing about those to come: nothing may be deleted
because of it.

The sums over all claims follow each change, so that a round costs what its reports change, however
many claims there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import numpy as np

from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.pile import Pile
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.groups import Group, Mass

Key = TypeVar("Key", bound=Hashable)

MOST_CHANGED: Final = 256
"""Most changed groups that are not in the sums yet."""

STEP_BYTES: Final = 160_000
"""Bytes of histograms in one step of a restore, some ten milliseconds."""

PPM: Final = 1_000_000
"""Unit of shares: integers in parts per million, so that they compare exactly."""


class _Entry(NamedTuple):
    """A group's part of the sums. Masses are equal only to themselves."""

    counts: bool
    """True when its records count: the group is neither retired nor finished."""
    mass_known: bool
    masses: tuple[Mass, ...]
    operation: int
    """Oldest operation of its owner; MAX when it reports none, or owns no unfinished range."""


class Masses:
    """Sums over the masses of all groups, and over the oldest operations of their owners.

    Call :meth:`changed` for each group that has changed; the sums follow when they are read next.
    Cost: a changed group O(buckets of its masses, before and now), a reading O(claims) within
    numpy, and both the cost of :class:`Pile`.
    """

    def __init__(self, shares: Iterable[int], groups: Iterable[Group] = ()) -> None:
        self._shares = tuple(shares)
        self._entries: dict[Group, _Entry] = {}
        self._changed: dict[Group, None] = dict.fromkeys(groups)
        self._pending = Pile()
        self._unknown = 0
        """Number of groups that count and whose mass is not known."""
        self._operations: _Rows[Group] = _Rows((MAX,))
        # Columns of a mass: finished records, greatest unfinished frontier, and for each share
        # whether the mass has a frontier, and the frontier.
        self._reported: _Rows[tuple[Group, int]] = _Rows((0, MIN, *(0, MIN) * len(self._shares)))

    @classmethod
    def restore(cls, shares: Iterable[int], groups: Iterable[Group]) -> Generator[int, None, Masses]:
        """Add many groups, step by step. Yields the approximate bytes of each step."""
        self, size = cls(shares), 0
        for group in groups:
            self.changed(group)
            size += sum(mass.starts.nbytes for mass in group.masses())
            if size >= STEP_BYTES:
                self._look()
                yield size
                size = 0
        self._look()
        return self

    def changed(self, group: Group) -> None:
        """Note that a group is new, changed or gone. Amortised O(1), and the cost of the change."""
        self._changed[group] = None
        if len(self._changed) >= MOST_CHANGED:
            self._look()  # a long replay reads no sums, and would keep every group that ever was

    def oldest_operation(self) -> int:
        """Return the oldest operation of all owners of unfinished ranges; 0: none is reported."""
        self._look()
        oldest = int(self._operations.column(0).min())
        return 0 if oldest == MAX else oldest

    def reference_time(self) -> int:
        """Return the greatest unfinished frontier, from which ages count; MIN: none."""
        self._look()
        return int(self._reported.column(1).max())

    def candidates(self) -> dict[int, int]:
        """Return H(p) before max(L, ...) and the ratchet, for each share that may move.

        No share moves while the mass of any unfinished range is unknown, and none moves while no
        claim has reported its frontier.
        """
        self._look()
        if self._unknown:
            return {}
        candidates = {share: self._candidate(share, 2 + 2 * index) for index, share in enumerate(self._shares)}
        return {share: value for share, value in candidates.items() if value is not None}

    def _candidate(self, share: int, column: int) -> int | None:
        recent, reported, frontiers = (self._reported.column(index) for index in (0, column, column + 1))
        if not reported.any():
            return None
        greatest = int(frontiers[reported > 0].max())
        # Finished records count at their claim's frontier, and at MIN where none is reported.
        finished = recent > 0
        times, counts = frontiers[finished], recent[finished]
        total = self._pending.total + int(counts.sum())
        if not total:
            return greatest if greatest != MAX else None
        value = min(greatest, self._pending.reached(-(-share * total // PPM), times, counts))
        if value != MAX:
            return value
        # All inputs are finished, but not all claims. Only L may be MAX, so stay at the greatest
        # finite time.
        finite = times[times != MAX].tolist() + ([self._pending.greatest()] if self._pending.total else [])
        return max(finite, default=None)

    def __len__(self) -> int:
        """Return the number of groups in the sums, plus the changed ones."""
        return len(self._entries) + len(self._changed)

    def _look(self) -> None:
        """Bring the changed groups into the sums."""
        changed, self._changed = self._changed, {}
        times: list[Int64s] = []
        counts: list[Int64s] = []
        for group in changed:
            before, now = self._entries.pop(group, None), _entry(group)
            if now is not None:
                self._entries[group] = now
            if before is None or now is None or before != now:
                if before is not None:
                    self._take_out(group, before, times, counts, stays=now is not None)
                if now is not None:
                    self._put_in(group, now, times, counts)
        if times and self._shares:
            self._pending.change(np.concatenate(times), np.concatenate(counts))

    def _take_out(self, group: Group, entry: _Entry, times: list[Int64s], counts: list[Int64s], *, stays: bool) -> None:
        self._unknown -= entry.counts and not entry.mass_known
        for number, mass in enumerate(entry.masses):
            self._reported.free((group, number))
            if entry.counts:
                times.append(mass.starts)
                counts.append(-mass.counts)
        if not stays:
            self._operations.free(group)

    def _put_in(self, group: Group, entry: _Entry, times: list[Int64s], counts: list[Int64s]) -> None:
        self._unknown += entry.counts and not entry.mass_known
        for number, mass in enumerate(entry.masses):
            newest = max((micros for micros in mass.frontiers.values() if micros != MAX), default=MIN)
            row = [mass.recent if entry.counts else 0, newest]
            for share in self._shares:
                has_frontier = entry.counts and share in mass.frontiers
                row += [has_frontier, mass.frontiers[share] if has_frontier else MIN]
            self._reported.put((group, number), row)
            if entry.counts:
                times.append(mass.starts)
                counts.append(mass.counts)
        self._operations.put(group, [entry.operation])

    def check(self, groups: Iterable[Group]) -> None:
        """Assert that the sums have exactly these groups, as they are. O(n)."""
        self._look()
        assert self._entries.keys() == dict.fromkeys(groups).keys()
        assert all(entry == _entry(group) for group, entry in self._entries.items())
        self._pending.check()


def _entry(group: Group) -> _Entry | None:
    """Return a group's part of the sums; None when it has no live range."""
    if not group.live_count:
        return None
    works = group.state is GroupState.OWNED and not group.finished and group.oldest_operation
    counts = group.state is not GroupState.RETIRED and not group.finished
    return _Entry(counts, group.mass_known, tuple(group.masses()), group.oldest_operation if works else MAX)


class _Rows(Generic[Key]):
    """Rows of numbers by key, in columns. A free row has the values ``empty``."""

    def __init__(self, empty: Sequence[int]) -> None:
        self._empty = np.array(empty, dtype=np.int64)
        self._values = np.tile(self._empty[:, None], 16)
        self._rows: dict[Key, int] = {}
        self._free = list(range(16))

    def column(self, index: int) -> Int64s:
        """Return a column, with the free rows."""
        column: Int64s = self._values[index]
        return column

    def put(self, key: Key, values: Sequence[int]) -> None:
        """Write a row. Amortised O(columns)."""
        row = self._rows.get(key)
        if row is None:
            if not self._free:
                have = self._values.shape[1]
                self._values = np.concatenate([self._values, np.tile(self._empty[:, None], have)], axis=1)
                self._free = list(range(have, 2 * have))
            row = self._rows[key] = self._free.pop()
        self._values[:, row] = values

    def free(self, key: Key) -> None:
        """Free a row."""
        row = self._rows.pop(key)
        self._values[:, row] = self._empty
        self._free.append(row)
