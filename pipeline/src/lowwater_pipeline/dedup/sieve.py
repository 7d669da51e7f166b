"""Which rows of a batch are new: each id passes once, as long as it is remembered. Pure: tables in, tables out.

One value decides both ways, W, the least low watermark of the senders. A row whose event time is at or above W may still be the first of its id; an id whose time is below W
is forgotten. That is sound because a record that its sender has not got an acknowledgement for is the sender's oldest work, which W does not pass (MillWheel 6.1.2), and because every
copy has the event time of the original. A copy of a forgotten id is below W, and looks like a late original there: it is *undecidable*, and set aside.

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
    """The column of the event times, timestamps with a zone. Every copy of a record has the same."""
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

        self._check(rows)
        floor = self.floor(low)
        times = pc.cast(pc.cast(rows[self.event_time], pa.timestamp("us", "UTC")), pa.int64()).combine_chunks()
        ids = rows[self.id].combine_chunks()
        below = np.asarray(times) < floor
        known = (
            pc.is_in(ids, value_set=state[_ID].combine_chunks())
            if state is not None
            else pa.array(np.zeros(len(ids), bool))
        )
        first = np.zeros(len(ids), bool)
        candidates = np.flatnonzero(~below & ~np.asarray(known))
        if len(candidates):
            # Of copies in one batch the oldest passes: they ought to be the same.
            order = pc.sort_indices(
                pa.table({"id": ids, "t": times}).take(candidates), [("id", "ascending"), ("t", "ascending")]
            )
            ranked = candidates[np.asarray(order)]
            names = ids.take(pa.array(ranked))
            new = np.ones(len(ranked), bool)
            new[1:] = np.asarray(pc.not_equal(names[1:], names[:-1]))
            first[ranked[new]] = True
        route = np.full(len(ids), "", object)
        late = np.asarray(times) < low
        route[first & ~late] = Route.MAIN.value
        route[first & late] = Route.LATE.value
        route[below] = Route.UNDECIDABLE.value
        passed = pa.array(first)
        added = pa.table(
            {
                _ID: ids.filter(passed),
                _TIME: times.filter(passed),
                _BATCH: pa.array(np.full(int(first.sum()), batch, np.int64)),
            }
        )
        kept = added if state is None else pa.concat_tables([state, added])
        kept = kept.filter(pc.greater_equal(kept[_TIME], pa.scalar(floor, pa.int64())))
        kept, early = self._bounded(kept)
        stays = pa.array(route != "")
        out = rows.filter(stays).append_column(ROUTE, pa.array(route[route != ""].tolist(), pa.string()))
        counts = Counts(
            main=int((first & ~late).sum()),
            late=int((first & late).sum()),
            undecidable=int(below.sum()),
            duplicates=len(ids) - int(first.sum()) - int(below.sum()),
            forgotten_early=early,
            remembered=kept.num_rows,
        )
        return kept, out, counts

    def _check(self, rows: pa.Table) -> None:
        for column, what in ((self.id, "id"), (self.event_time, "event time")):
            if column not in rows.column_names:
                msg = f"the rows have no column {column}, which is to be their {what}; they have {', '.join(rows.column_names)}"
                raise ValueError(msg)
            if nulls := rows[column].null_count:
                msg = (
                    f"{nulls} of {rows.num_rows} rows have no {what} (column {column}): whether they came before nobody could say. Give each record one, or filter "
                    "these rows out before they are deduplicated"
                )
                raise ValueError(msg)

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
