"""Heuristic watermarks: how far a share of the record timestamps has come.

MillWheel 7.2: "we can compute a 99% low watermark that corresponds to the progress of 99% of the
record timestamps in the system". Here that is a definition, not an estimate: the mass of a claim is
its unfinished records at their timestamps and its recently finished ones at the frontier it
reached, and

    H(p) = max(L, min(greatest frontier F(p), greatest T with at least a share p of all mass at or
    above T))

The result is about records lately seen, not a promise about those to come: nothing may be deleted
by it.

What all claims say together is kept as they change: a round costs what its reports change, however
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
"""Groups that have changed and are not in the sums yet."""

STEP_BYTES: Final = 160_000
"""Bytes of histograms that are taken in at once when a computation is restored: some ten
milliseconds."""

PPM: Final = 1_000_000
"""Shares are integers in parts per million, so that they compare exactly."""


class _Entry(NamedTuple):
    """What the sums have of a group."""

    counts: bool
    """Whether its records count: it is neither retired nor finished."""
    known: bool
    masses: tuple[Mass, ...]
    operation: int
    """The oldest of its owner; MAX when it tells none, or owns nothing that is unfinished."""


class Masses:
    """The masses of all groups of a computation, and the oldest operations of their owners: what they say together, kept as they change.

    Whoever changes a group says so by :meth:`changed`; what is asked for is as of then. Costs: a group that has changed O(buckets of its masses, before
    and now), a question O(claims) within numpy, and what :class:`Pile` says of both.
    """

    def __init__(self, shares: Iterable[int], groups: Iterable[Group] = ()) -> None:
        self._shares = tuple(shares)
        self._entries: dict[Group, _Entry] = {}
        self._changed: dict[Group, None] = dict.fromkeys(groups)
        self._pending = Pile()
        self._unknown = 0
        """Groups that count, and whose mass is not known."""
        self._operations: _Rows[Group] = _Rows((MAX,))
        # Of each mass: finished records, greatest unfinished frontier, and by share whether it has
        # a frontier, and which.
        self._told: _Rows[tuple[Group, int]] = _Rows((0, MIN, *(0, MIN) * len(self._shares)))

    @classmethod
    def restore(cls, shares: Iterable[int], groups: Iterable[Group]) -> Generator[int, None, Masses]:
        """Take in many groups, step by step: yields about how many bytes each step took."""
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
        """A group is new, or not as it was, or gone: said when it is so.

        Amortised O(1), with what the change costs.
        """
        self._changed[group] = None
        if len(self._changed) >= MOST_CHANGED:
            self._look()  # a long replay asks for nothing, and would keep all groups that ever were

    def oldest_operation(self) -> int:
        """Return the oldest operation of the owners of ranges that are not finished; 0 when none of these tells one."""
        self._look()
        oldest = int(self._operations.column(0).min())
        return 0 if oldest == MAX else oldest

    def reference_time(self) -> int:
        """Return the greatest unfinished frontier of any claim, MIN without one: where ages count from."""
        self._look()
        return int(self._told.column(1).max())

    def candidates(self) -> dict[int, int]:
        """Return H(p) before max(L, ...) and the ratchet, for each share that may move.

        No share moves while the mass of any unfinished range is unknown; a share does not move
        while no claim has told its frontier.
        """
        self._look()
        if self._unknown:
            return {}
        found = {share: self._candidate(share, 2 + 2 * index) for index, share in enumerate(self._shares)}
        return {share: value for share, value in found.items() if value is not None}

    def _candidate(self, share: int, column: int) -> int | None:
        recent, told, frontiers = (self._told.column(each) for each in (0, column, column + 1))
        if not told.any():
            return None
        greatest = int(frontiers[told > 0].max())
        # Finished records stand at their claim's frontier; without one nothing is known of where,
        # so at MIN.
        finished = recent > 0
        times, counts = frontiers[finished], recent[finished]
        total = self._pending.total + int(counts.sum())
        if not total:
            return greatest if greatest != MAX else None
        value = min(greatest, self._pending.reached(-(-share * total // PPM), times, counts))
        if value != MAX:
            return value
        # Unfinished claims whose inputs are finished: MAX is for L alone to say, so stay at the
        # greatest finite time.
        finite = times[times != MAX].tolist() + ([self._pending.greatest()] if self._pending.total else [])
        return max(finite, default=None)

    def __len__(self) -> int:
        """Return how many groups it remembers, and which of them have changed."""
        return len(self._entries) + len(self._changed)

    def _look(self) -> None:
        """Bring what has changed into the sums."""
        changed, self._changed = self._changed, {}
        times: list[Int64s] = []
        counts: list[Int64s] = []
        for group in changed:
            before, now = self._entries.pop(group, None), _entry(group)
            if now is not None:
                self._entries[group] = now
            if before is None or now is None or not _same(before, now):
                if before is not None:
                    self._take_out(group, before, times, counts, stays=now is not None)
                if now is not None:
                    self._put_in(group, now, times, counts)
        if times and self._shares:
            self._pending.change(np.concatenate(times), np.concatenate(counts))

    def _take_out(self, group: Group, entry: _Entry, times: list[Int64s], counts: list[Int64s], *, stays: bool) -> None:
        self._unknown -= entry.counts and not entry.known
        for number, mass in enumerate(entry.masses):
            self._told.free((group, number))
            if entry.counts:
                times.append(mass.starts)
                counts.append(-mass.counts)
        if not stays:
            self._operations.free(group)

    def _put_in(self, group: Group, entry: _Entry, times: list[Int64s], counts: list[Int64s]) -> None:
        self._unknown += entry.counts and not entry.known
        for number, mass in enumerate(entry.masses):
            newest = max((micros for micros in mass.frontiers.values() if micros != MAX), default=MIN)
            row = [mass.recent if entry.counts else 0, newest]
            for share in self._shares:
                told = entry.counts and share in mass.frontiers
                row += [told, mass.frontiers[share] if told else MIN]
            self._told.put((group, number), row)
            if entry.counts:
                times.append(mass.starts)
                counts.append(mass.counts)
        self._operations.put(group, [entry.operation])

    def check(self, groups: Iterable[Group]) -> None:
        """Assert that all groups are in the sums as they are, and no others. O(n)."""
        self._look()
        there = dict.fromkeys(groups)
        assert self._entries.keys() == there.keys()
        assert all((now := _entry(group)) is not None and _same(entry, now) for group, entry in self._entries.items())
        self._pending.check()


def _entry(group: Group) -> _Entry | None:
    """Return what a group says now; None when no range is left of it."""
    if not group.live_count:
        return None
    works = group.state is GroupState.OWNED and not group.finished and group.oldest_operation
    counts = group.state is not GroupState.RETIRED and not group.finished
    return _Entry(counts, group.mass_known, tuple(group.masses()), group.oldest_operation if works else MAX)


def _same(one: _Entry, other: _Entry) -> bool:
    return (
        (one.counts, one.known, one.operation) == (other.counts, other.known, other.operation)
        and len(one.masses) == len(other.masses)
        and all(a is b for a, b in zip(one.masses, other.masses, strict=True))
    )


class _Rows(Generic[Key]):
    """Numbers by key, in columns. A row that nobody has says nothing: it is ``empty``."""

    def __init__(self, empty: Sequence[int]) -> None:
        self._empty = np.array(empty, dtype=np.int64)
        self._values = np.tile(self._empty[:, None], 16)
        self._rows: dict[Key, int] = {}
        self._free = list(range(16))

    def column(self, index: int) -> Int64s:
        """Return a column, with the empty rows."""
        found: Int64s = self._values[index]
        return found

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
        """Take a row out."""
        row = self._rows.pop(key)
        self._values[:, row] = self._empty
        self._free.append(row)
