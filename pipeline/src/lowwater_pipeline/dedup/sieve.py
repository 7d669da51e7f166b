"""Which rows of a batch are new: each id passes once, as long as it is remembered. Pure: tables in, tables out.

One value decides both ways, W, the least low watermark of the senders. A row whose event time is at or above W may still be the first of its id; an id whose time is below W
is forgotten. That is sound because a record that its sender has not got an acknowledgement for is the sender's oldest work, which W does not pass (MillWheel 6.1.2), and because every
copy has the event time of the original. A copy of a forgotten id is below W, and looks like a late original there: it is *undecidable*, and set aside.

What was forgotten is not admitted again: W and what lies below it only grow, also when the stage is started with more slack, or with other inputs whose W is lower. So both are
part of the state, in a row without an id.

With ``slack`` ids are kept that much longer, so that rows between ``W - slack`` and W can still be told: those whose id is not known are *late*. They must not go where the others go,
since the output's own low watermark has passed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater.watermark import MAX, MIN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROUTE", "Counts", "Route", "Sieve", "WindowFull"]

ROUTE: Final = "lowwater_route"
"""The column that says what has become of a row."""

_MICRO: Final = timedelta(microseconds=1)
_ID, _TIME, _BATCH = "id", "micros", "batch"


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
    """What became of the rows of a batch in one key range."""

    main: int = 0
    late: int = 0
    undecidable: int = 0
    duplicates: int = 0
    """Rows whose id had passed before; they are dropped."""
    forgotten_early: int = 0
    """Ids that the bound has pushed out while copies of them could still come: such a copy passes once more."""
    remembered: int = 0
    """Ids that are in the state now."""


@dataclass(frozen=True, slots=True)
class Sieve:
    """How ids are told apart, and for how long they are remembered. A value: it travels to the executors."""

    id: str
    """The column of the ids: text, bytes or integers."""
    event_time: str
    """The column of the event times, timestamps with a zone (Spark's timestamp). Every copy of a record has the same."""
    slack: timedelta = timedelta(0)
    """For how long below W an id is still remembered."""
    most: int = 0
    """Ids that one key range remembers at most; 0: as many as there are."""
    forget: bool = False
    """Whether the ids that came first are forgotten when there are more, and counted; else the batch is refused."""

    def __post_init__(self) -> None:
        """Refuse what means nothing. Raises ValueError."""
        if self.slack < timedelta(0):
            msg = f"slack is how much longer ids are remembered, and cannot be negative: {self.slack}"
            raise ValueError(msg)
        if self.most < 0:
            msg = f"most is a number of ids, 0 for no bound: {self.most}"
            raise ValueError(msg)
        if self.forget and not self.most:
            msg = "forget says what happens when there are more ids than most: pass most as well"
            raise ValueError(msg)

    def floor(self, low: int) -> int:
        """Return the event time, in microseconds, below which ids are forgotten when the senders' low watermark is ``low``."""
        return low if low in (MIN, MAX) else max(MIN, low - self.slack // _MICRO)

    def sift(self, state: pa.Table | None, rows: pa.Table, low: int, batch: int) -> tuple[pa.Table, pa.Table, Counts]:
        """Return the ids to remember, the rows that are not dropped with their :data:`ROUTE`, and how many there were of each.

        ``state`` is what the batch before returned, None for nothing. O(ids remembered + rows). Raises ValueError for a row without id or event time, and
        WindowFull.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        ids, times = self._ids(rows), self._times(rows)
        before, (floor, highest) = self._before(state, ids.type)
        floor, low = max(self.floor(low), floor), max(low, highest)
        below, late = np.asarray(times) < floor, np.asarray(times) < low
        candidates = np.flatnonzero(~below & ~np.asarray(pc.is_in(ids, value_set=before[_ID].combine_chunks())))
        # Of copies in one batch the oldest passes: they ought to be the same.
        named = pa.table({_ID: ids, _TIME: times}).take(candidates)
        ranked = candidates[np.asarray(pc.sort_indices(named, [(_ID, "ascending"), (_TIME, "ascending")]), np.int64)]
        names = ids.take(pa.array(ranked))
        new = np.ones(len(ranked), bool)
        new[1:] = np.asarray(pc.not_equal(names[1:], names[:-1]))
        first = np.zeros(len(ids), bool)
        first[ranked[new]] = True

        route = np.full(len(ids), "", object)
        route[first] = Route.MAIN.value
        route[first & late] = Route.LATE.value
        route[below] = Route.UNDECIDABLE.value
        passed = pa.array(first)
        arrived = pa.array(np.full(int(first.sum()), batch, np.int64))
        added = pa.table({_ID: ids.filter(passed), _TIME: times.filter(passed), _BATCH: arrived})
        kept = pa.concat_tables([before, added])
        kept, early = self._bounded(kept.filter(pc.greater_equal(kept[_TIME], pa.scalar(floor, pa.int64()))))
        stays = route != ""
        out = rows.filter(pa.array(stays)).append_column(ROUTE, pa.array(route[stays].tolist(), pa.string()))
        counts = Counts(
            main=int((first & ~late).sum()),
            late=int((first & late).sum()),
            undecidable=int(below.sum()),
            duplicates=int((~first & ~below).sum()),
            forgotten_early=early,
            remembered=kept.num_rows,
        )
        bounds = pa.table({_ID: pa.nulls(1, ids.type), _TIME: [floor], _BATCH: [low]}, schema=kept.schema)
        return pa.concat_tables([bounds, kept]), out, counts

    def _before(self, state: pa.Table | None, ids: pa.DataType) -> tuple[pa.Table, tuple[int, int]]:
        """Return the ids that are remembered, and below what was forgotten and called late so far, which the row without an id says."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if state is None:
            schema = pa.schema([(_ID, ids), (_TIME, pa.int64()), (_BATCH, pa.int64())])
            return schema.empty_table(), (MIN, MIN)
        if state.schema.field(_ID).type != ids:
            msg = f"the column {self.id} is of {ids} now, and the ids that are remembered are of {state.schema.field(_ID).type}. Cast it as it was, or start from a new checkpoint"
            raise ValueError(msg)
        named = pc.is_valid(state[_ID])
        bounds = state.filter(pc.invert(named))
        return state.filter(named), (bounds[_TIME][0].as_py(), bounds[_BATCH][0].as_py())

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

    def _bounded(self, kept: pa.Table) -> tuple[pa.Table, int]:
        """Return what the bound leaves, and how many ids it has pushed out. Those that came first go first."""
        over = kept.num_rows - self.most
        if not self.most or over <= 0:
            return kept, 0
        if not self.forget:
            msg = (
                f"{kept.num_rows} ids are to be remembered in a key range, and most allows {self.most}: the low watermark of the senders stands, or there are more records "
                "than expected. Raise most, or pass forget=True, and a copy that comes after its id was pushed out passes once more"
            )
            raise WindowFull(msg)
        return kept.sort_by([(_BATCH, "ascending"), (_TIME, "ascending"), (_ID, "ascending")]).slice(over), over
