"""Sift the rows of a batch: each id passes once, as long as it is remembered. Pure: tables only.

One value decides two things: W, the least low watermark of the senders. A row whose event time is
at or above W may still be the first of its id; an id whose time is below W is forgotten. That is
sound for two reasons. A record without an acknowledgement is its sender's oldest work, which W does
not pass (MillWheel 6.1.2); and every copy has the event time of the original. Below W a copy of a
forgotten id looks like a late original: it is *undecidable*, and set aside.

Forgotten ids are never admitted again: W and the floor only grow, also when the stage starts again
with more slack, or with other inputs whose W is lower. So both are part of the state.

With ``slack`` ids are kept that much longer. Rows between ``W - slack`` and W can then still be
decided: rows with an unknown id are *late*. They go to an output of their own, because the main
output's low watermark has passed them. A copy whose sender stamped it anew, by no more than the
slack, is known as well: above W its original is not forgotten yet.

A window by size needs no watermark: it remembers the last ids of a key range, a fixed number. W
then decides only whether a row is late, and an id that was pushed out is admitted again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from lowwater.watermark import MAX, MIN
from lowwater_pipeline.dedup.bloom import hashed
from lowwater_pipeline.dedup.seen import Newcomers, Seen

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROUTE", "Counts", "Route", "Sieve", "Window", "WindowFull"]

ROUTE: Final = "lowwater_route"
"""Name of the column that holds the route of a row."""

_MICRO: Final = timedelta(microseconds=1)
_ID, _TIME = "id", "micros"
_SLICES: Final = 8
"""Number of slices of a window by size; at most one of them outlives the window."""


class Route(StrEnum):
    """The output that a row goes to."""

    MAIN = "main"
    """The first row of its id, not late."""
    LATE = "late"
    """The first row of its id, below W."""
    UNDECIDABLE = "undecidable"
    """A row so late that its id may be forgotten: an original or a copy."""


class WindowFull(ValueError):  # named after its reason, as the pipeline's other errors are
    """A key range has more ids to remember than ``most``, and may not forget one early."""


class Counts(NamedTuple):
    """Rows of a batch by route, and the ids remembered after it; of several ranges the sums."""

    main: int = 0
    late: int = 0
    undecidable: int = 0
    duplicates: int = 0
    """Rows whose id had passed before; they are dropped."""
    forgotten_early: int = 0
    """Ids that ``most`` has pushed out before W, less the slack, passed them: a copy of one passes
    once more. With windows by size those at or above W, whose copies pass into ``main``."""
    remembered: int = 0
    """Ids in the state after the batch."""
    state_bytes: int = 0
    """Approximate bytes of the ids' segments, with filters. Files may take twice as much."""
    looks: int = 0
    """Lookups of a row in a segment that has a filter."""
    passed: int = 0
    """Lookups that the filter did not spare."""
    found: int = 0
    """Lookups that found the id."""

    @property
    def duplicate_rate(self) -> float:
        """Share of duplicates among the decidable rows; 0 without any."""
        return _share(self.duplicates, self.main + self.late + self.duplicates)

    @property
    def filter_hit_rate(self) -> float:
        """Share of the lookups that filters have spared."""
        return _share(self.looks - self.passed, self.looks)

    @property
    def false_positive_rate(self) -> float:
        """Share of the lookups of unknown ids that filters have not spared."""
        return _share(self.passed - self.found, self.looks - self.found)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


class Window(StrEnum):
    """The rule by which ids are forgotten."""

    WATERMARK = "watermark"
    """Forget an id when W, less ``slack``, has passed it."""
    SIZE = "size"
    """Forget an id when ``most`` others have come to the key range after it."""
    BOTH = "both"
    """Forget by W, and remember at most ``most`` ids."""

    @classmethod
    def of(cls, text: str) -> Window:
        """Return the window with this name. Raises ValueError."""
        try:
            return cls(text)
        except ValueError:
            msg = f"window is one of {', '.join(cls)}: {text!r}"
            raise ValueError(msg) from None


@dataclass(frozen=True, slots=True)
class Sieve:
    """Settings of a deduplication, as a value that executors get."""

    id: str
    """Name of the id column: text, bytes or integers."""
    event_time: str
    """Name of the event-time column, timestamps with a zone (Spark's timestamp). A copy has its
    original's time, or one at most ``slack`` apart; with windows by size any time."""
    window: Window = Window.WATERMARK
    slack: timedelta = timedelta(0)
    """Time below W for which an id is still remembered, and greatest distance of a copy's event
    time from its original's."""
    most: int = 0
    """Greatest number of ids that one key range remembers."""
    forget: bool = False
    """With windows by both: True forgets the oldest ids above ``most``, and counts them; False
    refuses the batch."""
    filters: bool = True
    """True builds Bloom filters. They change the cost only."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        window = self.window
        if self.slack < timedelta(0):
            msg = f"slack is how much longer ids are remembered, and cannot be negative: {self.slack}"
            raise ValueError(msg)
        if window is Window.WATERMARK and (self.most or self.forget):
            msg = 'most and forget bound how many ids are remembered, which the low watermark alone does not: pass window="both", or window="size"'
            raise ValueError(msg)
        if window is not Window.WATERMARK and self.most < 1:
            msg = f'window="{window}" needs most, the number of ids that a key range remembers, at least 1: {self.most}'
            raise ValueError(msg)
        if window is Window.SIZE and (self.slack or self.forget):
            msg = 'window="size" forgets what came first, and nothing by time: leave slack and forget out, or pass window="both"'
            raise ValueError(msg)

    def floor(self, low: int) -> int:
        """Return the time, microseconds, below which ids are forgotten. Not for size windows."""
        return low if low in (MIN, MAX) else max(MIN, low - self.slack // _MICRO)

    def sift(self, state: Seen, rows: pa.Table, low: int) -> tuple[Seen, pa.Table, Counts]:
        """Return the ids to remember, the rows that pass with their :data:`ROUTE`, and counts.

        ``state`` is the state after the batch before. O(rows x log ids), and sometimes a merge.
        Raises ValueError for a row without id or event time, and WindowFull.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        ids, times = self._ids(rows), self._times(rows)
        state = self._of_kind(state, ids.type)
        by_size = self.window == Window.SIZE
        floor, low = max(self.floor(low), state.floor), max(low, state.highest)
        if by_size:
            floor = MIN  # this window forgets by no time; an earlier floor stays in the state
        state = replace(state, highest=low, floor=max(floor, state.floor))
        micros = np.asarray(times)
        below, late = micros < floor, micros < low
        candidates = np.flatnonzero(~below)
        candidate_ids = ids.take(pa.array(candidates))
        apart = None if by_size else self.slack // _MICRO
        remembered, looks = state.known(candidate_ids, hashed(candidate_ids), micros[candidates], floor, apart)
        candidates = candidates[~remembered]
        # Among copies in one batch the oldest passes; their content should be the same.
        named = pa.table({_ID: ids, _TIME: times}).take(pa.array(candidates))
        ranked = candidates[np.asarray(pc.sort_indices(named, [(_ID, "ascending"), (_TIME, "ascending")]), np.int64)]
        names = ids.take(pa.array(ranked))
        new = np.ones(len(ranked), bool)
        new[1:] = np.asarray(pc.not_equal(names[1:], names[:-1]))
        passes = ranked[new]
        first = np.zeros(len(ids), bool)
        first[passes] = True

        route = np.full(len(ids), "", object)
        route[first] = Route.MAIN.value
        route[first & late] = Route.LATE.value
        route[below] = Route.UNDECIDABLE.value
        # Ids count as arrived by time and id, because each replay has another order of rows.
        passes = passes[np.argsort(micros[passes], kind="stable")]
        early = 0
        if by_size and len(passes) > self.most:  # later ids of the same batch push them out
            pushed, passes = passes[: -self.most], passes[-self.most :]
            state, early = replace(state, arrivals=state.arrivals + len(pushed)), int((micros[pushed] >= low).sum())
        newcomers = Newcomers(ids.take(pa.array(passes)), micros[passes])
        slice_size = max(1, self.most // _SLICES) if by_size else 0
        after, pushed_out = self._bounded(state.joined(newcomers, floor, slice_size, filters=self.filters), floor, low)
        after = after.without_gone(floor)
        stays = route != ""
        out = rows.filter(pa.array(stays)).append_column(ROUTE, pa.array(route[stays].tolist(), pa.string()))
        counts = Counts(
            main=int((first & ~late).sum()),
            late=int((first & late).sum()),
            undecidable=int(below.sum()),
            duplicates=int((~first & ~below).sum()),
            forgotten_early=early + pushed_out,
            remembered=after.remembered(floor),
            state_bytes=after.size,
            looks=looks.lookups,
            passed=looks.passed,
            found=looks.found,
        )
        return after, out, counts

    def _of_kind(self, state: Seen, ids: pa.DataType) -> Seen:
        """Return the state with the type of the ids. Raises ValueError when it has another type."""
        kinds = _kinds()
        kind = kinds.index(ids)
        if state.pieces and state.kind != kind:
            msg = f"the column {self.id} is of {ids} now, and the ids that are remembered are of {kinds[state.kind]}. Cast it as it was, or start from a new checkpoint"
            raise ValueError(msg)
        return replace(state, kind=kind)

    def _bounded(self, state: Seen, floor: int, low: int) -> tuple[Seen, int]:
        """Return the ids within the bound, and how many were pushed out early. The oldest go."""
        if self.window == Window.WATERMARK:
            return state, 0
        if self.window == Window.SIZE:
            since, least = max(state.since, state.arrivals - self.most), low
        else:
            remembered = state.remembered(floor)
            if remembered <= self.most:
                return state, 0
            if not self.forget:
                msg = (
                    f"{remembered} ids are to be remembered in a key range, and most allows {self.most}: the low watermark of the senders stands, or there are more records "
                    "than expected. Raise most, or pass forget=True, and a copy that comes after its id was pushed out passes once more"
                )
                raise WindowFull(msg)
            since, least = state.first_of(floor, remembered - self.most), floor
        return replace(state, since=since), state.pushed_out(since, least)

    def _ids(self, rows: pa.Table) -> pa.Array:
        """Return the ids: large_string, large_binary or int64. Raises ValueError."""
        import pyarrow as pa

        column = self._column(rows, self.id, "id")
        types = pa.types
        if types.is_string(column.type) or types.is_large_string(column.type):
            return column.cast(pa.large_string())
        if types.is_binary(column.type) or types.is_large_binary(column.type):
            return column.cast(pa.large_binary())
        if types.is_integer(column.type):
            return column.cast(pa.int64())
        msg = f"ids are text, bytes or integers, and the column {self.id} is of {column.type}: cast it to a text that says the same for every copy"
        raise ValueError(msg)

    def _times(self, rows: pa.Table) -> pa.Array:
        """Return the event times in microseconds. Raises ValueError."""
        import pyarrow as pa

        column = self._column(rows, self.event_time, "event time")
        if not pa.types.is_timestamp(column.type) or column.type.tz is None:
            msg = f"event times are timestamps with a zone, and the column {self.event_time} is of {column.type}: make it one, as with to_timestamp"
            raise ValueError(msg)
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())

    @staticmethod
    def _column(rows: pa.Table, name: str, what: str) -> pa.Array:
        import pyarrow as pa

        if name not in rows.column_names:
            msg = (
                f"the rows have no column {name}, which is to be their {what}; they have {', '.join(rows.column_names)}"
            )
            raise ValueError(msg)
        column = rows[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # a column without rows
            column = pa.array([], column.type)
        if column.null_count:
            msg = (
                f"{column.null_count} of {rows.num_rows} rows have no {what} (column {name}): so their copies cannot be found. Give each record one, or filter "
                "these rows out before they are deduplicated"
            )
            raise ValueError(msg)
        return column


def _kinds() -> list[pa.DataType]:
    """Return the types of ids. The state stores a type's position in this list."""
    import pyarrow as pa

    return [pa.large_string(), pa.large_binary(), pa.int64()]
