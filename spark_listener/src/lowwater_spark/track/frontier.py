"""How far a source has come, told from its own rows: what an injector has declared of it, and what its batches have seen.

A source has *parts*: the partitions of Kafka's topics, or producers that a column of the rows names. Of each part the greatest event time is kept that was
seen there. With the declared disorder it says what can still come from the part. The frontier is the least of all parts that are expected, so a part of which no row
was seen holds it: of Kafka all partitions that the batch's plan names, of producers those that are declared.

A part that is idle moves only with evidence, never because time has passed. The evidence is that all that there is was read: the end of its partition, listed after
the batch was planned, is where the batch ends. Whatever comes later is then appended after every row of the batch, and after the listing began. Two declarations
make event times of that: ``across``, how much older than a row of any part a row may be that is appended after it; and ``delay``, how much older than the clock. Neither is assumed.

What a batch has found is written once, before the batch writes anything, with the frontier that follows from it. A batch that runs again takes it from there,
so that it finds the same, also with another clock, other ends or other declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import lowwater
from lowwater.watermark import MAX, MIN
from lowwater_spark.columns import column_of
from lowwater_spark.track.rows import event_micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AHEAD", "PARTITION", "Bounds", "Example", "Found", "Seen", "look"]

AHEAD: Final = timedelta(days=1)
"""How far beyond the clock an event time may be by default, as for the reports that an authority
takes."""

STRANGERS: Final = 1000
"""How many producers that nobody has declared are kept: a column that names something else has a
value for each row."""

PARTITION: Final = ("topic", "partition")
"""The columns of Kafka's source that name the part of a row."""

_MICRO: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an injector declares of its source. Times are microseconds."""

    disorder: int
    """How much older than a row of its part that is read before it a row may be. Of several
    partitions no order is known in which they are read."""
    across: int | None = None
    """How much older than a row of another part a row may be that is appended after it; None:
    nobody knows."""
    delay: int | None = None
    """How much older than the driver's clock a row may be when it is appended; None: nobody knows.
    """
    ahead: int = AHEAD // _MICRO
    """How far beyond the driver's clock an event time may be."""
    skew: int | None = None
    """How far ahead of the slowest partition others are read; None: as far as they go."""
    producer: str | Column | None = None
    """The column that names the producer of a row; None: the parts are Kafka's partitions."""
    producers: tuple[str, ...] = ()
    """The producers that are waited for."""

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
        """Return what was declared, None for nothing.

        Raises ValueError and TypeError, naming the argument.
        """
        given: dict[str, Any] = {
            "disorder": disorder,
            "across": across,
            "delay": delay,
            "ahead": ahead,
            "skew_limit": skew,
        }
        for name, length in given.items():
            if length is not None and not isinstance(length, timedelta):
                msg = f"{name} is a length of event time, like timedelta(minutes=10), and not {length!r}"
                raise TypeError(msg)
            if length is not None and length < timedelta(0):
                msg = f"{name} is a length of event time, so it is not negative: {length!r}"
                raise ValueError(msg)
        if disorder is None:
            others = {**given, "producer": producer, "producers": producers}
            if misplaced := [name for name, value in others.items() if value is not None]:
                msg = (
                    f"{misplaced[0]} says how the frontier is told from the rows, which only an injector with disorder does: pass disorder= as well, how much "
                    "older than a row before it in its partition (or of its producer) a row may be; timedelta(0) where they come in order"
                )
                raise ValueError(msg)
            return None
        if isinstance(producers, str):
            msg = f"producers is a list of names, not one text: [{producers!r}]"
            raise TypeError(msg)
        named: tuple[Any, ...] = () if producers is None else tuple(producers)
        if other := [name for name in named if not isinstance(name, str)]:
            msg = f"producers are names, which are compared as text: {str(other[0])!r}, and not {other[0]!r}"
            raise TypeError(msg)
        if (producer is None) != (not named):
            msg = "producer= names the column, and producers= all those that are waited for, one at least: pass both or none"
            raise ValueError(msg)
        below = {name: length for name, length in (("disorder", disorder), ("across", across)) if length is not None}
        for name, length in below.items():
            if skew is not None and skew <= length:
                msg = (
                    f"skew_limit is {skew} and {name} is {length}: the slowest partition counts as that much behind its newest row, so all would be held back for "
                    f"ever. Make skew_limit greater than {name}"
                )
                raise ValueError(msg)
        if skew is not None and named:
            msg = "skew_limit is for partitions of Kafka, and producers= goes by producers: pass one of the two"
            raise ValueError(msg)
        micros = {name: None if length is None else length // _MICRO for name, length in given.items()}
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
        """Whether the ends of the source have to be listed: without one of the two an end proves nothing."""
        return self.across is not None or self.delay is not None

    def of_part(self, seen: Seen, part: str) -> int:
        """Return what can come from a part at the earliest; MIN when nothing is known of it."""
        newest = seen.newest.get(part, MIN)
        return max(newest - self.disorder if newest != MIN else MIN, seen.proven.get(part, MIN))

    def standing(self, seen: Seen) -> dict[str, int]:
        """Return what can come from each part at the earliest, of those of which something is known."""
        each = {part: self.of_part(seen, part) for part in seen.expected}
        return {part: micros for part, micros in each.items() if micros != MIN}

    def advanced(
        self, before: Seen, found: Mapping[str, Found], expected: Collection[str], read: Collection[str], now: int
    ) -> Seen:
        """Return what is known after a batch. Pure.

        Args:
            before: What was known after the one before it.
            found: What the batch has of each part.
            expected: The parts that are waited for.
            read: Those of which all was read that was there at ``now``, by a listing after the
                batch was planned.
            now: The driver's clock before that listing.

        The frontier never goes back, and does not move while there is a part with rows that nobody
        expects.
        """
        strangers = {name for name in (*before.strangers, *found) if name not in expected}
        newest = {name: micros for name, micros in before.newest.items() if name in expected or name in strangers}
        for name, each in found.items():
            if each.newest is not None:
                newest[name] = max(newest.get(name, MIN), each.newest)
        # What was proven by another declaration stands on that.
        kept = before.proven if before.by == (self.across, self.delay) else {}
        proven = {name: micros for name, micros in kept.items() if name in expected}
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
            sum(each.late for each in found.values()),
            min((each.late_example for each in found.values() if each.late_example is not None), default=None),
            sum(each.ahead for each in found.values()),
            max((each.ahead_example for each in found.values() if each.ahead_example is not None), default=None),
            by=(self.across, self.delay),
        )
        least = min((self.of_part(after, name) for name in expected), default=MIN)
        return after if strangers else dataclasses.replace(after, frontier=max(before.frontier, least))

    def would_move(self, seen: Seen, now: int) -> bool:
        """Return whether an empty batch could move the frontier: the clock alone has gone on, or Kafka did not answer when it was asked last."""
        if not self.lists or seen.strangers:
            return False
        step = _SECOND if self.delay is None else max(_SECOND, self.delay // 10)
        if now - seen.at < step:
            return False
        return seen.unlisted or (self.delay is not None and now - self.delay - seen.frontier >= step)

    def holding(self, seen: Seen) -> list[str]:
        """Return what holds the frontier, in words: some of the parts that stand lowest, unless all stand there."""
        if seen.strangers:
            return [f"{_named(name)} (not declared, and it has rows)" for name in seen.strangers[:_NAMED]]
        standing = {name: self.of_part(seen, name) for name in seen.expected}
        least = min(standing.values(), default=MIN)
        if least == max(standing.values(), default=MIN) and least != MIN:
            return []
        said = []
        for name in [name for name, micros in standing.items() if micros == least][:_NAMED]:
            newest = seen.newest.get(name)
            said.append(f"{name} (no row yet)" if newest is None else f"{name} (at {lowwater.Watermark(newest)})")
        return said


class Example(NamedTuple):
    """One row, by which others can be found."""

    micros: int
    """Its event time."""
    part: str
    offset: int | None = None
    """Of Kafka, when the frame has the column ``offset``."""

    def __str__(self) -> str:
        """Return it in words."""
        where = "" if self.offset is None else f" at offset {self.offset}"
        return f"{lowwater.Watermark(self.micros)} of {_named(self.part)}{where}"


class Found(NamedTuple):
    """What a batch has of one part."""

    newest: int | None
    """The greatest event time, but for those too far ahead of the clock; None: there is no other.
    """
    late: int = 0
    """Rows below what the part had promised, or what was published."""
    late_example: Example | None = None
    """The oldest of them."""
    ahead: int = 0
    """Rows too far ahead of the clock: they count for nothing."""
    ahead_example: Example | None = None
    """The newest of them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a source after a batch. Times are microseconds."""

    newest: Mapping[str, int] = field(default_factory=dict)
    """By part: the greatest event time."""
    proven: Mapping[str, int] = field(default_factory=dict)
    """By part: what cannot come from it any more, as all that it had was read once."""
    frontier: int = MIN
    strangers: tuple[str, ...] = ()
    """Parts with rows that nobody expects."""
    expected: tuple[str, ...] = ()
    at: int = MIN
    """The driver's clock then."""
    late: int = 0
    late_example: Example | None = None
    ahead: int = 0
    ahead_example: Example | None = None
    unlisted: bool = False
    """Whether the ends were wanted, and Kafka did not tell."""
    by: tuple[int | None, int | None] = (None, None)
    """What was declared as ``across`` and ``delay``."""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is kept with its batch."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        examples = {
            name: None if content[name] is None else Example(*content[name])
            for name in ("late_example", "ahead_example")
        }
        lists = {name: tuple(content[name]) for name in ("strangers", "expected", "by") if name in content}
        return cls(**{**content, **examples, **lists})


def look(
    frame: DataFrame, event_time: str | Column, bounds: Bounds, before: Seen, published: int, now: int
) -> dict[str, Found]:
    """Return what a batch has of each part. A job over all rows of the batch; costs a row a part.

    ``published`` is the frontier before the batch. A row is late below that, and below what its own
    part had promised. Raises ValueError for more producers that are not declared than
    :data:`STRANGERS`.
    """
    from pyspark.sql import functions as sf

    part = _part(frame, bounds)
    time = event_micros(frame, event_time)
    promised = {name: max(bounds.of_part(before, name), published) for name in before.expected}
    known = [sf.lit(each) for pair in promised.items() for each in pair]
    floor = sf.coalesce(sf.create_map(*known)[sf.col("part")], sf.lit(published)) if known else sf.lit(published)
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
    found = {}
    most = len(bounds.producers) + STRANGERS
    bounded = measured if bounds.producer is None else measured.limit(most + 1)
    for name, newest, late_rows, oldest, ahead_rows, furthest in bounded.collect():
        examples = [None if each is None else Example(each[0], name, each[1]) for each in (oldest, furthest)]
        found[name] = Found(newest, late_rows, examples[0], ahead_rows, examples[1])
    if bounds.producer is not None and len({*bounds.producers, *before.strangers, *found}) > most:
        msg = (
            f"producer={bounds.producer!r} names more than {STRANGERS} producers that are not among the {len(bounds.producers)} in producers=, like "
            f"{min(found.keys() - {*bounds.producers}, default='')!r}: is it the right column? Each would be kept in every batch. Pass the column that names the "
            "producer of a row; where earlier batches have gone by the wrong one, start from a new checkpoint, with adopt=True."
        )
        raise ValueError(msg)
    return found


def _part(frame: DataFrame, bounds: Bounds) -> Column:
    """Return the column that names the part of a row."""
    from pyspark.sql import functions as sf

    if bounds.producer is None:
        return sf.format_string("partition %d of %s", sf.col("partition"), sf.col("topic"))
    return sf.coalesce(column_of(frame, bounds.producer).cast("string"), sf.lit(""))


def _named(part: str) -> str:
    return part or "rows that name no producer"
