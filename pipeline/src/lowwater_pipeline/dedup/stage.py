"""Deduplication in a tracked stage of Spark: what its senders may send twice passes once, and ids are forgotten by the senders' low watermark.

The ids are the stage's own state (``batch.stateful``): a version for each batch, durable before the output and one with it. So a batch that runs again finds what it
has decided, and a restart finds all ids. A version has segments for each key range (:mod:`lowwater_spark.track.segments`), of which a batch writes those that it changes, into one file. It needs ``lowwater-spark`` and, in the executors, pyarrow and numpy.
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
    """What every key range does with its rows of a batch; see ``Batch.stateful``.

    Travels in the closure.
    """

    sieve: Sieve
    promised: int
    """The senders' low watermark before the batch, microseconds. That of the batch itself may have
    passed rows that it reads in time."""

    def update_segments(
        self,
        before: Segments,
        rows: pa.Table,
        low: lowwater.Watermark,
    ) -> tuple[NextSegments, pa.Table, None, list[Any]]:
        seen, out, counts = self.sieve.sift(self._seen(before), rows, self.promised)
        segments = [
            piece.source or FreshSegment(piece.read(), tuple(piece.facts), piece.filter()) for piece in seen.pieces
        ]
        # It emits on arrival: it holds no record back.
        return NextSegments(segments, (*seen.facts, *counts)), out, None, []

    def _seen(self, before: Segments) -> Seen:
        """Return the ids that the batch before has left."""
        if before.whole or (before.facts and len(before.facts) != len(Seen().facts) + len(Counts._fields)):
            msg = "the state of this stage was made by another function: give the deduplication a stage of its own, or begin a new checkpoint, with adopt=True"
            raise ValueError(msg)
        pieces = [
            Piece(each.rows, PieceFacts(*each.facts), partial(before.read, each), partial(before.filter, each), each)
            for each in before.segments
        ]
        return Seen(pieces, *before.facts[: -len(Counts._fields)])


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """The rows of a batch, by what has become of them.

    Write all that you want to keep in the same batch.
    """

    main: DataFrame
    """The first of each id."""
    late: DataFrame
    """The first of each id below the senders' low watermark: into another output than :attr:`main`,
    whose watermark has passed them."""
    undecidable: DataFrame
    """Rows so late that their ids are forgotten: originals and copies look alike. None with windows
    by size."""
    counts: Counts
    """How many rows were of each kind, and what is remembered, over all key ranges."""


class Deduplication:
    """Lets each record through once, behind senders that send until they are acknowledged (MillWheel 6.1.1, 6.1.2)."""

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
        """Say how ids are told apart, and when they are forgotten.

        Args:
            id: The column of the ids. Key the stage by it, or by a column that every copy has the
                same value of.
            event_time: The column of the event times, the stage's. Every copy of a record must have
                the same: it is fixed where the record is made, not where it is sent.
            window: By what ids are forgotten. ``"watermark"``: when W, the low watermark of the
                senders, has passed them, which is exact. ``"size"``: when ``most`` others have come
                to the key range, whatever W; a copy that comes after that is admitted again.
                ``"both"``: by W, and ``most`` is a bound beside it.
            slack: With W: for how much longer than it asks for ids are remembered, so that late
                rows can be told from copies, and so that a copy is known whose sender stamps it
                anew by no more than that. One that is further from its original passes.
            most: With a size: how many ids a key range remembers. The stage has as many ranges as
                it was declared with.
            forget: With ``"both"``: whether the ids that came first are pushed out when there are
                more (a copy of one passes once more, and ``counts.forgotten_early`` says how many);
                else the batch fails, and nothing is lost.

        Raises ValueError.
        """
        self._sieve = Sieve(id, event_time, Window.of(window), slack, most, forget)

    def of(self, batch: Batch, rows: DataFrame) -> Deduplicated:
        """Return the rows of a batch without copies.

        Call it once in every batch, with all of its rows.

        What a row's time is compared with is ``batch.promised``. It takes the place of
        ``batch.stateful``. Each key range reads the segments in which its rows' ids can be, and
        writes what is new. Raises what that raises, and ValueError, through the query, for a row
        without id or event time, and WindowFull.
        """
        from pyspark.sql import functions as sf
        from pyspark.sql.types import StringType, StructField, StructType

        if ROUTE in rows.columns:
            msg = f"the rows have a column {ROUTE} already; rename it before they are deduplicated"
            raise ValueError(msg)
        out = StructType([*rows.schema.fields, StructField(ROUTE, StringType())])
        sifted = batch.stateful(rows, IdUpdate(self._sieve, batch.promised.micros), out)
        routed = {route: sifted.where(sf.col(ROUTE) == route.value).drop(ROUTE) for route in Route}
        noted = zip(*(each[-len(Counts._fields) :] for each in batch.noted), strict=True)
        counts = Counts(*(sum(column) for column in noted))
        return Deduplicated(routed[Route.MAIN], routed[Route.LATE], routed[Route.UNDECIDABLE], counts)
