"""Computes an injector's frontier from its rows and from what was declared of its source.

A source has *parts*: the partitions of Kafka's topics, or producers that a column of the rows
names. The greatest event time seen in each part, less the declared disorder, is the earliest that
can still come from it. The frontier is the least over all expected parts, so a part without rows
holds it: for Kafka all partitions in the batch's plan, for producers the declared ones.

An idle part moves only with evidence, never because time has passed. The evidence is that all of
its rows were read: the end of its partition, listed after the batch was planned, is the batch's
end. Later rows are appended after every row of the batch, and after the listing began. Two
declarations turn that into event times: ``across``, how much older than a row of any part such a
row may be, and ``delay``, how much older than the clock. There is no default for either.

A batch's result and its frontier are written once, before the batch writes any output. A replay
reads them, so it has the same frontier with another clock, other ends or other declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import lowwater
from lowwater.watermark import MAX, MIN
from lowwater_spark.columns import column_of, event_micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AHEAD", "PARTITION", "Bounds", "Example", "Found", "Seen", "look"]

AHEAD: Final = timedelta(days=1)
"""Default limit for event times ahead of the clock, as for the reports that an authority takes."""

STRANGERS: Final = 1000
"""Greatest number of undeclared producers. If ``producer`` named the wrong column, each of its
values would otherwise be stored."""

PARTITION: Final = ("topic", "partition")
"""Columns of Kafka's source that name the part of a row."""

_MICRO: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """The declarations about an injector's source. Times are microseconds."""

    disorder: int
    """Greatest lag of a row behind an earlier row of its part; parts are read in any order."""
    across: int | None = None
    """Greatest lag of an appended row behind an earlier row of another part; None: unknown."""
    delay: int | None = None
    """Greatest lag of an appended row behind the driver's clock; None: unknown."""
    ahead: int = AHEAD // _MICRO
    """Greatest distance of an event time ahead of the driver's clock."""
    skew: int | None = None
    """Greatest distance that a partition may be read ahead of the slowest one; None: no limit."""
    producer: str | Column | None = None
    """Column that names the producer of a row; None: the parts are Kafka's partitions."""
    producers: tuple[str, ...] = ()
    """Producers that the frontier waits for."""

    @classmethod
    def of(
        cls,
        disorder: timedelta | None,
        across: timedelta | None,
        delay: timedelta | None,
        ahead: timedelta | None,
        producer: str | Column | None,
        producers: Iterable[str] | None,
        skew: timedelta | None = None,
    ) -> Self | None:
        """Return the declared bounds; None if nothing was declared.

        Raises ValueError and TypeError, naming the argument.
        """
        lengths: dict[str, Any] = {
            "disorder": disorder,
            "across": across,
            "delay": delay,
            "ahead": ahead,
            "skew_limit": skew,
        }
        for name, length in lengths.items():
            if length is not None and not isinstance(length, timedelta):
                msg = f"{name} must be a length of event time, like timedelta(minutes=10), not {length!r}"
                raise TypeError(msg)
            if length is not None and length < timedelta(0):
                msg = f"{name} is a length of event time and must not be negative: {length!r}"
                raise ValueError(msg)
        if disorder is None:
            others = {**lengths, "producer": producer, "producers": producers}
            if misplaced := [name for name, value in others.items() if value is not None]:
                msg = (
                    f"{misplaced[0]} says how the frontier is computed from the rows, which only an injector with disorder= does: pass disorder= as well, how much "
                    "older than a row before it in its partition (or of its producer) a row may be; timedelta(0) if they come in order"
                )
                raise ValueError(msg)
            return None
        if isinstance(producers, str):
            msg = f"producers is a list of names, not one text: [{producers!r}]"
            raise TypeError(msg)
        named: tuple[Any, ...] = () if producers is None else tuple(producers)
        if other := [name for name in named if not isinstance(name, str)]:
            msg = f"producers are names, which are compared as text: pass {str(other[0])!r}, not {other[0]!r}"
            raise TypeError(msg)
        if (producer is None) != (not named):
            msg = "producer= names the column, and producers= lists all producers to wait for, at least one: pass both or none"
            raise ValueError(msg)
        below = {name: length for name, length in (("disorder", disorder), ("across", across)) if length is not None}
        for name, length in below.items():
            if skew is not None and skew <= length:
                msg = (
                    f"skew_limit is {skew} and {name} is {length}: the slowest partition counts as that much behind its newest row, so all partitions would be held back for "
                    f"ever. Make skew_limit greater than {name}"
                )
                raise ValueError(msg)
        if skew is not None and named:
            msg = "skew_limit applies to partitions of Kafka, and producers= to producers: pass one of the two"
            raise ValueError(msg)
        micros = {name: None if length is None else length // _MICRO for name, length in lengths.items()}
        return cls(
            disorder // _MICRO,
            micros["across"],
            micros["delay"],
            (AHEAD if ahead is None else ahead) // _MICRO,
            micros["skew_limit"],
            producer,
            tuple(dict.fromkeys(named)),
        )

    @property
    def lists(self) -> bool:
        """True if the source's ends must be listed: ``across`` or ``delay`` needs them."""
        return self.across is not None or self.delay is not None

    def of_part(self, state: Seen, part: str) -> int:
        """Return the earliest event time that can still come from a part; MIN if unknown."""
        newest = state.newest.get(part, MIN)
        return max(newest - self.disorder if newest != MIN else MIN, state.proven.get(part, MIN))

    def standing(self, state: Seen) -> dict[str, int]:
        """Return the earliest event time that can still come from each part, if it is known."""
        bounds = {part: self.of_part(state, part) for part in state.expected}
        return {part: micros for part, micros in bounds.items() if micros != MIN}

    def advanced(
        self, before: Seen, found: Mapping[str, Found], expected: Collection[str], read: Collection[str], now: int
    ) -> Seen:
        """Return what is known after a batch. Pure.

        Args:
            before: What was known before the batch.
            found: The batch's rows, by part.
            expected: The parts that the frontier waits for.
            read: The parts whose rows were all read, by a listing after the batch was planned.
            now: The driver's clock before that listing.

        The frontier never goes back, and does not move while an unexpected part has rows.
        """
        strangers = {name for name in (*before.strangers, *found) if name not in expected}
        newest = {name: micros for name, micros in before.newest.items() if name in expected or name in strangers}
        for name, part in found.items():
            if part.newest is not None:
                newest[name] = max(newest.get(name, MIN), part.newest)
        # A bound in before.proven says that no later row of the part is older. It was computed with
        # the ``across`` and ``delay`` that were declared then. If this start declares a greater
        # one, older rows may come, and the frontier would pass them: a change of either drops these
        # bounds.
        proven_before = before.proven if before.by == (self.across, self.delay) else {}
        proven = {name: micros for name, micros in proven_before.items() if name in expected}
        bounds = [] if self.delay is None else [now - self.delay]
        if self.across is not None and newest:
            bounds.append(max(newest.values()) - self.across)
        for name in read if bounds else ():
            proven[name] = max(proven.get(name, MIN), *bounds)
        after = Seen(
            newest,
            proven,
            before.frontier,
            tuple(sorted(strangers)),
            tuple(sorted(expected)),
            now,
            sum(part.late for part in found.values()),
            min((part.late_example for part in found.values() if part.late_example is not None), default=None),
            sum(part.ahead for part in found.values()),
            max((part.ahead_example for part in found.values() if part.ahead_example is not None), default=None),
            by=(self.across, self.delay),
        )
        least = min((self.of_part(after, name) for name in expected), default=MIN)
        return after if strangers else dataclasses.replace(after, frontier=max(before.frontier, least))

    def would_move(self, state: Seen, now: int) -> bool:
        """Return whether an empty batch could move the frontier.

        True if enough time has passed for ``delay``, or if Kafka did not answer the last listing.
        """
        if not self.lists or state.strangers:
            return False
        step = _SECOND if self.delay is None else max(_SECOND, self.delay // 10)
        if now - state.at < step:
            return False
        return state.unlisted or (self.delay is not None and now - self.delay - state.frontier >= step)

    def holding(self, state: Seen) -> list[str]:
        """Return a few parts that hold the frontier, in words: undeclared ones, or the lowest.

        The list is empty if all parts are at the same event time.
        """
        if state.strangers:
            return [f"{_named(name)} (not declared, and it has rows)" for name in state.strangers[:_NAMED]]
        standing = {name: self.of_part(state, name) for name in state.expected}
        least = min(standing.values(), default=MIN)
        if least == max(standing.values(), default=MIN) and least != MIN:
            return []
        parts = []
        for name in [name for name, micros in standing.items() if micros == least][:_NAMED]:
            newest = state.newest.get(name)
            parts.append(f"{name} (no row yet)" if newest is None else f"{name} (at {lowwater.Watermark(newest)})")
        return parts


class Example(NamedTuple):
    """One row, by which a user can find others of its kind."""

    micros: int
    part: str
    offset: int | None = None
    """The row's offset in Kafka, if the frame has the column ``offset``."""

    def __str__(self) -> str:
        """Return the row in words."""
        where = "" if self.offset is None else f" at offset {self.offset}"
        return f"{lowwater.Watermark(self.micros)} of {_named(self.part)}{where}"


class Found(NamedTuple):
    """The rows that a batch has of one part, summed up."""

    newest: int | None
    """Greatest event time that is not too far ahead of the clock; None without any."""
    late: int = 0
    """Number of rows below the part's earlier bound, or below the published frontier."""
    late_example: Example | None = None
    ahead: int = 0
    """Number of rows too far ahead of the clock: they do not move the frontier."""
    ahead_example: Example | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The knowledge about a source after a batch. Times are microseconds."""

    newest: Mapping[str, int] = field(default_factory=dict)
    """Greatest event time by part."""
    proven: Mapping[str, int] = field(default_factory=dict)
    """Lower bound of later rows, by part, proven because all rows of the part had been read."""
    frontier: int = MIN
    strangers: tuple[str, ...] = ()
    """Unexpected parts that have rows."""
    expected: tuple[str, ...] = ()
    at: int = MIN
    """The driver's clock after the batch."""
    late: int = 0
    late_example: Example | None = None
    ahead: int = 0
    ahead_example: Example | None = None
    unlisted: bool = False
    """True: the ends should have been listed, and Kafka did not answer."""
    by: tuple[int | None, int | None] = (None, None)
    """The values of ``across`` and ``delay`` on which the proofs rest."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for the batch's log."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the object that :meth:`to_json` wrote."""
        examples = {
            name: None if content[name] is None else Example(*content[name])
            for name in ("late_example", "ahead_example")
        }
        lists = {name: tuple(content[name]) for name in ("strangers", "expected", "by") if name in content}
        return cls(**{**content, **examples, **lists})


def look(
    frame: DataFrame, event_time: str | Column, bounds: Bounds, before: Seen, published: int, now: int
) -> dict[str, Found]:
    """Return what a batch has of each part. Runs one job over all rows; returns one row a part.

    ``published`` is the frontier before the batch. A row is late if it is below it, or below its
    part's own earlier bound. Raises ValueError above :data:`STRANGERS` undeclared producers.
    """
    from pyspark.sql import functions as sf

    part = _part(frame, bounds)
    time = event_micros(frame, event_time)
    promised = {name: max(bounds.of_part(before, name), published) for name in before.expected}
    pairs = [sf.lit(value) for pair in promised.items() for value in pair]
    floor = sf.coalesce(sf.create_map(*pairs)[sf.col("part")], sf.lit(published)) if pairs else sf.lit(published)
    limit = sf.lit(min(now + bounds.ahead, MAX))
    offset = sf.col("offset").cast("long") if "offset" in frame.columns else sf.lit(None).cast("long")
    rows = frame.select(part.alias("part"), time.alias("micros"), offset.alias("place"))
    row = sf.struct("micros", "place")
    late, ahead = sf.col("micros") < floor, sf.col("micros") > limit
    measured = rows.groupBy("part").agg(
        sf.max(sf.when(~ahead, sf.col("micros"))),
        sf.count_if(late),
        sf.min(sf.when(late, row)),
        sf.count_if(ahead),
        sf.max(sf.when(ahead, row)),
    )
    parts = {}
    most = len(bounds.producers) + STRANGERS
    bounded = measured if bounds.producer is None else measured.limit(most + 1)
    for name, newest, late_rows, oldest, ahead_rows, furthest in bounded.collect():
        examples = [None if value is None else Example(value[0], name, value[1]) for value in (oldest, furthest)]
        parts[name] = Found(newest, late_rows, examples[0], ahead_rows, examples[1])
    if bounds.producer is not None and len({*bounds.producers, *before.strangers, *parts}) > most:
        msg = (
            f"producer={bounds.producer!r} names more than {STRANGERS} producers that are not among the {len(bounds.producers)} in producers=, like "
            f"{min(parts.keys() - {*bounds.producers}, default='')!r}, and each would be stored in every batch. Pass the column that names the "
            "producer of a row; if earlier batches used a wrong one, start from a new checkpoint, with adopt=True."
        )
        raise ValueError(msg)
    return parts


def _part(frame: DataFrame, bounds: Bounds) -> Column:
    """Return the column expression that names the part of a row."""
    from pyspark.sql import functions as sf

    if bounds.producer is None:
        return sf.format_string("partition %d of %s", sf.col("partition"), sf.col("topic"))
    return sf.coalesce(column_of(frame, bounds.producer).cast("string"), sf.lit(""))


def _named(part: str) -> str:
    return part or "rows that name no producer"
