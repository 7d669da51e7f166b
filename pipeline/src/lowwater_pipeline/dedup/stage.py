"""Deduplication in a tracked stage of Spark, bounded by the senders' low watermark.

The ids are the stage's state (``batch.stateful``): each batch makes a version of it, durable before
the output. So a batch that runs again finds its decisions, and a restart finds all ids. A version
has segments for each key range (:mod:`lowwater_spark.track.segments`); a batch writes those that it
changes into one file. Needs ``lowwater-spark``, and in the executors pyarrow and numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lowwater_pipeline.dedup.seen import Piece, PieceFacts, Seen
from lowwater_pipeline.dedup.sieve import ROUTE, Counts, Route, Sieve, Window
from lowwater_spark.track.segments import FreshSegment, NextSegments, Segments

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    import lowwater
    from lowwater_spark import Batch

__all__ = ["Deduplicated", "Deduplication"]


@dataclass(frozen=True, slots=True)
class IdUpdate:
    """The work of every key range with its rows of a batch; see ``Batch.stateful``.

    Spark sends it to the executors in the closure.
    """

    sieve: Sieve
    promised: int
    """The senders' low watermark before the batch, microseconds. The batch's own low watermark may
    have passed rows that it reads in time."""

    def update_segments(
        self,
        before: Segments,
        rows: pa.Table,
        low: lowwater.Watermark,
    ) -> tuple[NextSegments, pa.Table, None, list[Any]]:
        seen, out, counts = self.sieve.sift(self._stored_ids(before), rows, self.promised)
        segments = [
            piece.source or FreshSegment(piece.read(), tuple(piece.facts), piece.filter()) for piece in seen.pieces
        ]
        # Rows are emitted on arrival, so no record is held.
        return NextSegments(segments, (*seen.facts, *counts)), out, None, []

    def _stored_ids(self, before: Segments) -> Seen:
        """Return the ids stored by the batch before."""
        if before.whole or (before.facts and len(before.facts) != len(Seen().facts) + len(Counts._fields)):
            msg = "the state of this stage was made by another function: give the deduplication a stage of its own, or begin a new checkpoint, with adopt=True"
            raise ValueError(msg)
        pieces = [
            Piece(
                segment.rows,
                PieceFacts(*segment.facts),
                partial(before.read, segment),
                partial(before.filter, segment),
                segment,
            )
            for segment in before.segments
        ]
        return Seen(pieces, *before.facts[: -len(Counts._fields)])


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """The rows of a batch by route. Write all that you want to keep in the same batch."""

    main: DataFrame
    """The first row of each id that is not late."""
    late: DataFrame
    """First rows of ids below the senders' low watermark. Write them into another output than
    :attr:`main`, because the watermark of that one has passed them."""
    undecidable: DataFrame
    """Rows so late that their ids are forgotten: originals and copies look alike. No rows with
    windows by size."""
    counts: Counts
    """Numbers of rows by route, and of remembered ids, over all key ranges."""


class Deduplication:
    """Passes each record once, behind senders that repeat until acknowledged (MillWheel 6.1.1)."""

    def __init__(
        self,
        id: str,  # noqa: A002  # it is the column of that name in most schemas
        event_time: str,
        *,
        window: Literal["watermark", "size", "both"] = "watermark",
        slack: timedelta = timedelta(0),
        most: int = 0,
        forget: bool = False,
    ) -> None:
        """Take the settings: how ids are told apart, and when they are forgotten.

        Args:
            id: Name of the id column. Key the stage by it, or by a column in which all copies of a
                record have the same value.
            event_time: Name of the event-time column, the stage's. All copies of a record must have
                the same time, so it is set where the record is made, not where it is sent.
            window: ``"watermark"`` forgets an id when W, the senders' low watermark, has passed it;
                that is exact. ``"size"`` forgets it when ``most`` others have come to the key
                range, whatever W is; a later copy passes. ``"both"`` forgets by W, and bounds the
                number of ids by ``most``.
            slack: Extra time for which ids are remembered below W. It lets late rows be told from
                copies, and finds copies that a sender stamped anew, by no more than the slack.
            most: Greatest number of ids of a key range, with ``"size"`` and ``"both"``. A stage has
                as many key ranges as it declares.
            forget: With ``"both"``: True pushes out the oldest ids above ``most`` (a copy of one
                passes once more, and ``counts.forgotten_early`` counts them); False fails the
                batch, and nothing is lost.

        Raises ValueError.
        """
        self._sieve = Sieve(id, event_time, Window.of(window), slack, most, forget)

    def of(self, batch: Batch, rows: DataFrame) -> Deduplicated:
        """Return the rows of a batch without copies.

        Call it once in every batch, with all of its rows, in place of ``batch.stateful``. Rows are
        compared with ``batch.promised``. Each key range reads the segments that may have its rows'
        ids, and writes new ids. Raises what ``batch.stateful`` raises; through the query ValueError
        for a row without id or event time, and WindowFull.
        """
        from pyspark.sql import functions as sf
        from pyspark.sql.types import StringType, StructField, StructType

        if ROUTE in rows.columns:
            msg = f"the rows have a column {ROUTE} already; rename it before they are deduplicated"
            raise ValueError(msg)
        out = StructType([*rows.schema.fields, StructField(ROUTE, StringType())])
        sifted = batch.stateful(rows, IdUpdate(self._sieve, batch.promised.micros), out)
        routed = {route: sifted.where(sf.col(ROUTE) == route.value).drop(ROUTE) for route in Route}
        noted = zip(*(facts[-len(Counts._fields) :] for facts in batch.noted), strict=True)
        counts = Counts(*(sum(column) for column in noted))
        return Deduplicated(routed[Route.MAIN], routed[Route.LATE], routed[Route.UNDECIDABLE], counts)
