"""Which rows of a batch are new: each id passes once, as long as it is remembered.

Pure: tables in, tables out.

One value decides both ways, W, the least low watermark of the senders. A row whose event time is at
or above W may still be the first of its id; an id whose time is below W is forgotten. That is sound
because a record that its sender has not got an acknowledgement for is the sender's oldest work,
which W does not pass (MillWheel 6.1.2), and because every copy has the event time of the original.
A copy of a forgotten id is below W, and looks like a late original there: it is *undecidable*, and
set aside.

What was forgotten is not admitted again: W and what lies below it only grow, also when the stage is
started with more slack, or with other inputs whose W is lower. So both are part of the state.

With ``slack`` ids are kept that much longer, so that rows between ``W - slack`` and W can still be
told: those whose id is not known are *late*. A copy that its sender has stamped anew, by no more
than that, is known, too: above W its original is not forgotten yet. They must not go where the
others go, since the output's own low watermark has passed them.

A window by size believes no watermark: it remembers the last so many ids of a key range. What W
says of a row decides then only whether it is late, and an id that was pushed out is admitted again.
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
"""The column that says what has become of a row."""

_MICRO: Final = timedelta(microseconds=1)
_ID, _TIME = "id", "micros"
_SLICES: Final = 8
"""Slices of a window by size: what stays longer than it has to is one of them at most."""


class Route(StrEnum):
    """What has become of a row."""

    MAIN = "main"
    """The first of its id, and not late."""
    LATE = "late"
    """The first of its id, below W."""
    UNDECIDABLE = "undecidable"
    """So late that its id would be forgotten: an original or a copy."""


class WindowFull(ValueError):  # what has happened, as the others of the pipeline say it
    """More ids are to be remembered than the bound allows, and forgetting one early was not asked for."""


class Counts(NamedTuple):
    """What became of the rows of a batch, and what is remembered behind it.

    Of several key ranges the sums.
    """

    main: int = 0
    late: int = 0
    undecidable: int = 0
    duplicates: int = 0
    """Rows whose id had passed before; they are dropped."""
    forgotten_early: int = 0
    """Ids that the bound has pushed out and W, less the slack, has not passed: a copy of one passes
    once more. With windows by size those at or above W, whose copies pass into ``main``."""
    remembered: int = 0
    """Ids that are in the state now."""
    state_bytes: int = 0
    """Bytes of the segments that they are in, with their filters, about. Files may take twice as
    much."""
    looks: int = 0
    """Looks of a row into a segment of the state that has a filter."""
    passed: int = 0
    """Of these: those that the filter did not spare."""
    found: int = 0
    """Of these: those that found the id."""

    @property
    def duplicate_rate(self) -> float:
        """The share of copies among the rows of which that could be said; 0 without any."""
        return _share(self.duplicates, self.main + self.late + self.duplicates)

    @property
    def filter_hit_rate(self) -> float:
        """The share of the looks that filters have spared."""
        return _share(self.looks - self.passed, self.looks)

    @property
    def false_positive_rate(self) -> float:
        """The share of the looks for what was not there that filters have not spared."""
        return _share(self.passed - self.found, self.looks - self.found)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


class Window(StrEnum):
    """By what ids are forgotten."""

    WATERMARK = "watermark"
    """When W, less ``slack``, has passed them."""
    SIZE = "size"
    """When ``most`` others have come to the key range after them."""
    BOTH = "both"
    """By W, and there are ``most`` at most."""

    @classmethod
    def of(cls, text: str) -> Window:
        """Return the window of that name. Raises ValueError."""
        try:
            return cls(text)
        except ValueError:
            msg = f"window is one of {', '.join(cls)}: {text!r}"
            raise ValueError(msg) from None


@dataclass(frozen=True, slots=True)
class Sieve:
    """How ids are told apart, and for how long they are remembered.

    A value: it travels to the executors.
    """

    id: str
    """The column of the ids: text, bytes or integers."""
    event_time: str
    """The column of the event times, timestamps with a zone (Spark's timestamp). A copy of a record
    has the same, or one that is ``slack`` apart at most; with windows by size any."""
    window: Window = Window.WATERMARK
    slack: timedelta = timedelta(0)
    """For how long below W an id is still remembered, and how far from its original's a copy's
    event time may be."""
    most: int = 0
    """Ids that one key range remembers at most."""
    forget: bool = False
    """With windows by both: whether the ids that came first are forgotten when there are more, and
    counted; else the batch is refused."""
    filters: bool = True
    """Whether there are Bloom filters. Nothing but time depends on them."""

    def __post_init__(self) -> None:
        """Refuse what means nothing. Raises ValueError."""
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
        """Return the event time, in microseconds, below which ids are forgotten when the senders' low watermark is ``low``. Not with windows by size."""
        return low if low in (MIN, MAX) else max(MIN, low - self.slack // _MICRO)

    def sift(self, seen: Seen, rows: pa.Table, low: int) -> tuple[Seen, pa.Table, Counts]:
        """Return the ids to remember, the rows that are not dropped with their :data:`ROUTE`, and how many there were of each.

        ``seen`` is what the batch before returned. O(rows x log ids), and now and then what is merged. Raises ValueError for a row without id or event time, and
        WindowFull.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        ids, times = self._ids(rows), self._times(rows)
        seen = self._of_kind(seen, ids.type)
        by_size = self.window == Window.SIZE
        floor, low = max(self.floor(low), seen.floor), max(low, seen.highest)
        if by_size:
            floor = MIN  # nothing is forgotten by time, and what was before stays noted
        seen = replace(seen, highest=low, floor=max(floor, seen.floor))
        micros = np.asarray(times)
        below, late = micros < floor, micros < low
        candidates = np.flatnonzero(~below)
        asked = ids.take(pa.array(candidates))
        apart = None if by_size else self.slack // _MICRO
        known, looks = seen.known(asked, hashed(asked), micros[candidates], floor, apart)
        candidates = candidates[~known]
        # Of copies in one batch the oldest passes: they ought to be the same.
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
        # They arrive by time and id: the order of the rows is another one in every replay.
        passes = passes[np.argsort(micros[passes], kind="stable")]
        early = 0
        if by_size and len(passes) > self.most:  # the others of their batch push them out
            gone, passes = passes[: -self.most], passes[-self.most :]
            seen, early = replace(seen, arrivals=seen.arrivals + len(gone)), int((micros[gone] >= low).sum())
        newcomers = Newcomers(ids.take(pa.array(passes)), micros[passes])
        each = max(1, self.most // _SLICES) if by_size else 0
        kept, pushed_out = self._bounded(seen.joined(newcomers, floor, each, filters=self.filters), floor, low)
        kept = kept.without_gone(floor)
        stays = route != ""
        out = rows.filter(pa.array(stays)).append_column(ROUTE, pa.array(route[stays].tolist(), pa.string()))
        counts = Counts(
            main=int((first & ~late).sum()),
            late=int((first & late).sum()),
            undecidable=int(below.sum()),
            duplicates=int((~first & ~below).sum()),
            forgotten_early=early + pushed_out,
            remembered=kept.remembered(floor),
            state_bytes=kept.size,
            looks=looks.asked,
            passed=looks.passed,
            found=looks.found,
        )
        return kept, out, counts

    def _of_kind(self, seen: Seen, ids: pa.DataType) -> Seen:
        """Return the state with the type of the ids.

        Raises ValueError when it has ids of another one.
        """
        kinds = _kinds()
        kind = kinds.index(ids)
        if seen.pieces and seen.kind != kind:
            msg = f"the column {self.id} is of {ids} now, and the ids that are remembered are of {kinds[seen.kind]}. Cast it as it was, or start from a new checkpoint"
            raise ValueError(msg)
        return replace(seen, kind=kind)

    def _bounded(self, seen: Seen, floor: int, low: int) -> tuple[Seen, int]:
        """Return what the bound leaves, and how many ids it has pushed out that :attr:`Counts.forgotten_early` counts. Those that came first go first."""
        if self.window == Window.WATERMARK:
            return seen, 0
        if self.window == Window.SIZE:
            since, least = max(seen.since, seen.arrivals - self.most), low
        else:
            remembered = seen.remembered(floor)
            if remembered <= self.most:
                return seen, 0
            if not self.forget:
                msg = (
                    f"{remembered} ids are to be remembered in a key range, and most allows {self.most}: the low watermark of the senders stands, or there are more records "
                    "than expected. Raise most, or pass forget=True, and a copy that comes after its id was pushed out passes once more"
                )
                raise WindowFull(msg)
            since, least = seen.first_of(floor, remembered - self.most), floor
        return replace(seen, since=since), seen.pushed_out(since, least)

    def _ids(self, rows: pa.Table) -> pa.Array:
        """Return the ids, in one type for each kind. Raises ValueError."""
        import pyarrow as pa

        found = self._column(rows, self.id, "id")
        types = pa.types
        if types.is_string(found.type) or types.is_large_string(found.type):
            return found.cast(pa.large_string())
        if types.is_binary(found.type) or types.is_large_binary(found.type):
            return found.cast(pa.large_binary())
        if types.is_integer(found.type):
            return found.cast(pa.int64())
        msg = f"ids are text, bytes or integers, and the column {self.id} is of {found.type}: cast it to a text that says the same for every copy"
        raise ValueError(msg)

    def _times(self, rows: pa.Table) -> pa.Array:
        """Return the event times in microseconds. Raises ValueError."""
        import pyarrow as pa

        found = self._column(rows, self.event_time, "event time")
        if not pa.types.is_timestamp(found.type) or found.type.tz is None:
            msg = f"event times are timestamps with a zone, and the column {self.event_time} is of {found.type}: make it one, as with to_timestamp"
            raise ValueError(msg)
        return found.cast(pa.timestamp("us", "UTC")).cast(pa.int64())

    @staticmethod
    def _column(rows: pa.Table, name: str, what: str) -> pa.Array:
        import pyarrow as pa

        if name not in rows.column_names:
            msg = (
                f"the rows have no column {name}, which is to be their {what}; they have {', '.join(rows.column_names)}"
            )
            raise ValueError(msg)
        found = rows[name].combine_chunks()
        if isinstance(found, pa.ChunkedArray):  # of no rows
            found = pa.array([], found.type)
        if found.null_count:
            msg = (
                f"{found.null_count} of {rows.num_rows} rows have no {what} (column {name}): whether they came before nobody could say. Give each record one, or filter "
                "these rows out before they are deduplicated"
            )
            raise ValueError(msg)
        return found


def _kinds() -> list[pa.DataType]:
    """Return the types of ids. The state has their places in the list."""
    import pyarrow as pa

    return [pa.large_string(), pa.large_binary(), pa.int64()]
