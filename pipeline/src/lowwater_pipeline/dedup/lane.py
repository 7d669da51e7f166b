"""One partition: read, look up, pass on, commit, remember.

The protocol of the deduplicator stands here, in the order in which it runs.

The output is the truth. Which ids were passed on is what it says, and the memory beside it is a
copy. What may be passed on again is decided by five steps, and their order matters:

1. ``init_transactions`` with the one transactional id of this partition. Whoever had the partition
   before is fenced, and what that had open is decided.
2. The committed offset, with the mark that was committed with it. No transaction is undecided any
   more that could still move it.
3. The end of the output: the offset of a record of our own, in a transaction that is aborted. It is
   acknowledged by all replicas in sync, so no broker's old word counts, and nobody who was fenced
   can write before it any more. The end of what is committed would not do: a transaction that a
   stranger has open hides what stands behind it.
4. What the memory does not have yet is read from the output, up to that end.
5. Then the loop: look up, write the new ones and the offset in one transaction, commit, and only
   then remember, ids and vector in one write.

A crash anywhere leaves the output and the offset at one point, and the memory at it or before it.
Step 4 mends that, and only ever adds.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition

from lowwater_pipeline.dedup.errors import Held, Refused
from lowwater_pipeline.dedup.ids import Partitioner, Unreadable
from lowwater_pipeline.dedup.mark import NO_FLOOR, Chunk, Mark, Short, trail
from lowwater_pipeline.dedup.memory import Damaged, Memory, Standing
from lowwater_pipeline.dedup.senders import Low
from lowwater_pipeline.dedup.settings import Settings
from lowwater_pipeline.dedup.topics import Pins, bounds, committed, consumer, grown
from lowwater_pipeline.dedup.window import Decisions, Verdict, WindowKind, decide

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

__all__ = ["STEPS", "Counts", "Lane"]

logger = logging.getLogger("lowwater.pipeline")

STEPS: Final = (
    *("initialised", "marked", "ended", "opened", "mended", "assigned"),
    *("read", "decided", "begun", "produced", "sent", "committed", "stored"),
)
"""Where a lane may be killed: what has just been done."""

_WAIT: Final = 0.1
"""Seconds that a batch waits for more messages."""

_NEW_LIFE: Final = "Start a new life: another output topic and another --group. It remembers nothing of this one."

_SHORTER: Final = "Start with --accept-shorter-window too, to go on with what is left."

_ADOPT: Final = "Start once with --adopt to go on at its beginning: ids that are remembered are still dropped."

_LOST_POSITION: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})


class _Foreign(Refused):
    """The output is not what this deduplicator has written."""


@dataclass(slots=True)
class Counts:
    """What a lane has done, as of its last commits, and where it stands.

    Of one partition, over all its lanes in this process.
    """

    admitted: int = 0
    duplicates: int = 0
    undecidable: int = 0
    unreadable: int = 0
    commits: int = 0
    opened: int = 0
    """How often the partition was taken."""
    mended: int = 0
    """Rows of the output that were read to mend the memory."""
    rebuilt: int = 0
    """How often the memory was made anew."""
    filtered: int = 0
    """Looks into a file of the memory that its Bloom filter has spared."""
    found: int = 0
    """Those that it has let pass, and that found the id."""
    ids: int = 0
    bytes: int = 0
    lag: int = 0
    """Messages of the input that are not read yet."""
    floor: int = NO_FLOOR
    short_since: int | None = None
    """Timestamp in milliseconds of the first row that a shortened window has; None when it is
    whole."""


@dataclass(slots=True)
class _Batch:
    """What one transaction does."""

    messages: list[Message]
    ids: list[bytes] = field(default_factory=list)
    decidable: list[Message] = field(default_factory=list)
    """Those of the messages that have an id."""
    unreadable: list[tuple[Message, str]] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    trouble: Exception | None = None
    """Why the message behind the last one stops the lane."""
    incarnations: tuple[int, ...] | None = None
    """Of the watermark that was reached in it."""
    mark: Mark | None = None


class Lane:
    """One input partition and the output partition of its number. Not thread-safe. Close it.

    Args:
        settings: What the deduplicator was told.
        pins: The topics as they are.
        partition: Which one.
        group: Returns the metadata of the consumer group in which the partition was assigned.
        low: Returns the senders' low watermark as last published; for windows by a watermark.
        counts: Where it counts.
        probe: Called with each of STEPS; for tests.
    """

    def __init__(
        self,
        settings: Settings,
        pins: Pins,
        partition: int,
        *,
        group: Callable[[], Any],
        low: Callable[[], Low | None] = lambda: None,
        counts: Counts | None = None,
        probe: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._pins = pins
        self._partition = partition
        self._group = group
        self._low = low
        self.counts = Counts() if counts is None else counts
        self._probe = probe
        self._id_of = settings.id.ids()
        self._stamp_of = settings.window.stamps()
        self._row_stamp_of = settings.window.row_stamps()
        self._producer: Producer | None = None
        self._in_transaction = False
        self._memory: Memory | None = None
        self._reader: Consumer | None = None
        """Of the input."""
        self._ends: Consumer | None = None
        """Asked where logs begin and end, whatever is committed."""
        self._position = 0
        """The next message of the input."""
        self._reached = 0
        """Everything in the input before it was seen, control records too."""
        self._vector = 0
        """Everything in the output before it is in the memory, or will be in the chunk that comes
        next."""
        self._pending: tuple[Low, int] | None = None
        """A watermark that does not count yet, and the offset from which on it does."""
        self._dirty = False
        """Whether the mark says something that is not committed yet."""

    @property
    def position(self) -> int:
        """The next message of the input, as of the last commit."""
        return self._position

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self._partition

    @property
    def memory(self) -> Memory | None:
        """The ids that are remembered; None while the lane is not open."""
        return self._memory

    # -- opening -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the partition over, and make the memory whole.

        Raises Refused, Held and KafkaException; close the lane then.
        """
        self._begin()
        self._mark = self._committed()
        end = self._end()
        with self._trusted():
            self._mend(end)
        self._assign()

    def _begin(self) -> None:
        settings = self._settings
        self._producer = producer = Producer(
            {
                **settings.clients,
                "transactional.id": settings.transactional_id(self._partition),
                "linger.ms": 5,
                "transaction.timeout.ms": round(settings.patience * 1000),
            }
        )
        producer.init_transactions(settings.patience)
        self._probe("initialised")

    def _committed(self) -> Mark:
        """Return the mark of the last commit, and set the position."""
        settings, pins = self._settings, self._pins
        name = f"{settings.input} [{self._partition}]"
        self._reader = reader = consumer(settings, committed=True)
        self._ends = consumer(settings, committed=False)
        first, _ = self._bounds(settings.input)
        found = committed(reader, settings.input, self._partition, settings.patience)
        self._known = found.offset >= 0
        if not self._known:
            # Committed before anything is read: that there is no offset means later that it has
            # expired.
            self._dirty = True
            self._position = self._reached = first
            mark = Mark(pins.input.id, pins.output.id, pins.partitions, settings.rule, NO_FLOOR, 0)
        else:
            mark = self._checked(found.metadata, name)
            self._position = self._reached = self._continued(mark, found.offset, first, name)
            mark = replace(mark, input=pins.input.id)
        self.counts.floor = mark.floor
        self._probe("marked")
        return mark

    def _checked(self, metadata: str | None, name: str) -> Mark:
        """Return the mark that was committed with an offset.

        Raises Refused when it is not of this deduplicator as it is now.
        """
        settings, pins = self._settings, self._pins
        try:
            mark = Mark.parse(metadata or "")
        except ValueError:
            raise Refused(
                f"the offset that the group {settings.group} has committed of {name} was not committed by a deduplicator: it says nothing of what was passed on",
                f"Somebody has set or reset the offsets of the group. {_NEW_LIFE}",
            ) from None
        if mark.output != pins.output.id:
            raise Refused(
                f"the topic {settings.output} was deleted and made anew: what was passed on is gone, and nothing else knows it",
                f"{_NEW_LIFE}",
            )
        if mark.partitions != pins.partitions:
            raise grown(settings.input, mark.partitions, pins.partitions)
        if mark.rule != settings.rule:
            raise Refused(
                f"the group {settings.group} has worked by the rule {mark.rule}, and is to go on by {settings.rule}: what was forgotten does not come back",
                f"Use the same --id, --window and --event-time. Or: {_NEW_LIFE}",
            )
        return mark

    def _continued(self, mark: Mark, offset: int, first: int, name: str) -> int:
        """Return where the input is read from.

        Raises Refused when what was to come next is not there.
        """
        settings = self._settings
        _, last = self._bounds(settings.input)
        if mark.input != self._pins.input.id:
            gone = f"the topic {settings.input} was deleted and made anew: offset {offset} is none of its own"
        elif offset < first:
            gone = f"retention has removed the messages {offset} to {first - 1} of {name} before they were read"
        elif offset > last:
            gone = f"{name} ends at {last}, and was read up to {offset}: it was cut off"
        else:
            return offset
        if not settings.adopt:
            raise Refused(gone, _ADOPT)
        if offset >= first or mark.input != self._pins.input.id:
            self._again(first, mark.next)
        logger.warning("%s. It goes on at offset %d, because of --adopt", gone, first)
        self._dirty = True
        return first

    def _end(self) -> int:
        """Return where the output ends: everything that was ever committed stands before."""
        assert self._producer is not None
        producer, patience = self._producer, self._settings.patience
        producer.begin_transaction()
        self._in_transaction = True
        said: list[Any] = []
        producer.produce(
            self._settings.output,
            partition=self._partition,
            headers=[("lowwater", b"end")],
            on_delivery=lambda error, message: said.append(error or message.offset()),
        )
        producer.flush(patience)
        if not said:
            raise Held(f"the output partition {self._partition} has not acknowledged a record within {patience:.0f} s")
        if not isinstance(said[0], int):
            raise KafkaException(said[0])
        producer.abort_transaction(patience)
        self._in_transaction = False
        self._probe("ended")
        return said[0]

    def _mend(self, end: int) -> None:
        """Make the memory have every id of the output that is not forgotten."""
        settings = self._settings
        self._memory = memory = self._remembered(end)
        self._probe("opened")
        first, _ = self._bounds(settings.output)
        start = self._mark.start(end) if self._known else Chunk(first, 0, NO_FLOOR)
        standing = memory.standing
        if standing is not None and standing.vector > start.offset:
            start = Chunk(standing.vector, standing.next, NO_FLOOR)
        if first > start.offset:
            start = self._cut(start, first, end)
        ordinal, greatest = start.ordinal, NO_FLOOR
        since: int | None = None
        for rows in self._rows(start.offset, end):
            since = rows[0].timestamp()[1] if since is None else since
            fresh, ordinal = self._ranks(rows, ordinal)
            greatest = max(greatest, *fresh.values()) if fresh else greatest
            offset = (rows[-1].offset() or 0) + 1
            self._store(fresh, memory.known([*fresh]), self._mark.floor, offset, ordinal)
            self.counts.mended += len(rows)
        if not self._known:
            self._begin_life(first, ordinal, greatest, since)
        self._compare(ordinal)
        self._vector = end
        self._store({}, {}, self._mark.floor, end, ordinal)
        self._probe("mended")

    def _begin_life(self, first: int, rows: int, greatest: int, since: int | None) -> None:
        """Begin without an offset: with an output that never had a row, or, told to adopt it, with one that was written before the offset was lost.

        Only a log that begins at 0 says that there was nothing: retention empties an output as it lets offsets expire. ``since`` is the timestamp of the first row.
        Raises Refused; of rows that are not to be adopted _compare does.
        """
        settings, partition = self._settings, self._partition
        if not rows and first == 0:
            return
        if not settings.adopt:
            if rows:
                return
            raise Refused(
                f"the group {settings.group} has no offset of {settings.input} [{partition}], and {settings.output} [{partition}] begins at offset {first}, without a row: "
                "this deduplicator may have passed on what was removed from it, and its offsets have expired",
                "Start once with --adopt and --accept-shorter-window to go on at the beginning of the input: what was passed on already passes again. "
                f"Else: {_NEW_LIFE}",
            )
        short = None
        if first > 0:
            if not settings.accept_shorter:
                raise Refused(
                    f"{settings.output} [{partition}] begins at offset {first}: nothing says how many ids are gone, copies of which would pass again",
                    _SHORTER,
                )
            now = time.time_ns() // 1_000_000
            # Nothing says their ranks. By count they come before the first one that is left; a time
            # that has not come yet is above those of all others.
            ranks = {WindowKind.COUNT: -1, WindowKind.TIME: now, WindowKind.WATERMARK: now * 1000}
            short = Short(ranks[settings.window.kind], now if since is None else since)
        self._again(self._position, rows)
        logger.warning(
            "partition %d: the %d rows of the output are taken as its own, because of --adopt", partition, rows
        )
        self._mark = replace(self._mark, next=rows, chunks=(Chunk(first, 0, greatest),), short=short)
        self._dirty = True

    def _again(self, first: int, rows: int) -> None:
        """Raises Refused when an input that is read again has more than a window by count remembers: its beginning would pass again."""
        settings = self._settings
        _, last = self._bounds(settings.input)
        messages, size = last - first, settings.window.size
        if settings.window.kind is not WindowKind.COUNT or min(messages, rows) <= size:
            return
        what = (
            f"{settings.input} [{self._partition}] has up to {messages} messages to be read again, and the window remembers the last {size} of {rows} rows: "
            "what was passed on before those passes again"
        )
        if not settings.accept_shorter:
            raise Refused(what, f"{_SHORTER} Or: {_NEW_LIFE}")
        logger.warning("%s", what)

    @property
    def _directory(self) -> Path:
        return self._settings.state / f"{self._settings.output}-{self._partition}"

    def _remembered(self, end: int) -> Memory:
        """Return the memory, an empty one when what is there cannot be trusted."""
        if self._known:
            with contextlib.suppress(Damaged):
                memory = Memory(self._directory)
                standing = memory.standing
                if standing is None or (
                    standing.output == self._pins.output.id
                    and standing.rule == self._settings.rule
                    and standing.vector <= end
                ):
                    return memory
                memory.close()
            self.counts.rebuilt += 1
            logger.warning(
                "the memory of partition %d is damaged, or of another output: it is made anew", self._partition
            )
        return Memory.anew(self._directory)

    def _cut(self, start: Chunk, first: int, end: int) -> Chunk:
        """Return where to read an output whose log begins too late.

        Raises Refused when rows are gone that should be remembered.

        The log may have lost nothing but control records: how many rows are left says whether it
        has.
        """
        left = 0
        since = -1
        for rows in self._rows(first, end):
            since = rows[0].timestamp()[1] if since < 0 else since
            left += len(rows)
        missing = self._mark.next - start.ordinal - left
        # By count it is known of each row that is gone whether it is forgotten anyway. Else they
        # count as remembered.
        by_count = self._settings.window.kind is WindowKind.COUNT
        if missing > 0 and not (by_count and start.ordinal + missing <= self._mark.floor):
            said = f"{self._settings.output} [{self._partition}] begins at offset {first} ({_moment(since)}), and the window reaches back to offset {start.offset}"
            if not self._settings.accept_shorter:
                raise Refused(
                    f"{said}: {missing} ids are gone, copies of which would pass again",
                    "Have the output keep its rows for longer than the window. Start with --accept-shorter-window to go on with what is left.",
                )
            logger.warning("%s: %d ids are gone, copies of which pass again", said, missing)
            gone = [each for each in self._mark.chunks if each.offset < first]
            kept = [each for each in self._mark.chunks if each.offset >= first]
            greatest = max([each.greatest for each in gone], default=NO_FLOOR)
            chunks = (Chunk(first, start.ordinal + missing, greatest), *kept)
            self._mark = replace(self._mark, chunks=chunks, short=Short(greatest, since))
            self._dirty = True
        return Chunk(first, start.ordinal + max(missing, 0), NO_FLOOR)

    def _ranks(self, rows: Sequence[Message], ordinal: int) -> tuple[dict[bytes, int], int]:
        """Return the ids of rows of the output that are to be remembered, by rank, and the ordinal behind them."""
        fresh: dict[bytes, int] = {}
        by_count, floor = self._settings.window.kind is WindowKind.COUNT, self._mark.floor
        for row in rows:
            try:
                each, rank = self._id_of(row), ordinal if by_count else self._row_stamp_of(row)
            except Unreadable:
                raise self._foreign(1) from None
            ordinal += 1
            if rank >= floor:
                fresh[each] = rank
        return fresh, ordinal

    def _compare(self, ordinal: int) -> None:
        """Raises Refused when the output has other rows than this deduplicator has written, as the mark counts them."""
        if ordinal != self._mark.next:
            raise self._foreign(ordinal - self._mark.next)

    def _foreign(self, more: int) -> _Foreign:
        settings, partition = self._settings, self._partition
        if not self._known:
            return _Foreign(
                f"the group {settings.group} has no offset of {settings.input} [{partition}], and {settings.output} [{partition}] has {more} rows: its offsets have "
                "expired, or the input was deleted and made anew, or the rows are somebody else's",
                "If they are this deduplicator's, start once with --adopt: it goes on at the beginning of the input, and remembers of the output what the window takes. Else: "
                f"{_NEW_LIFE}",
            )
        count = (
            f"{more} rows that this deduplicator has not written"
            if more > 0
            else f"{-more} rows less than this deduplicator has written"
        )
        return _Foreign(
            f"{self._settings.output} [{self._partition}] has {count}: the output does not say any more what was passed on",
            f"Let nobody else write to it, nor delete from it. {_NEW_LIFE}",
        )

    def _rows(self, start: int, end: int) -> Iterator[list[Message]]:
        """Yield what is committed in the output between two offsets.

        Raises Held while that is not decided.
        """
        if start >= end:
            return
        reader = consumer(self._settings, committed=True)
        try:
            reader.assign([TopicPartition(self._settings.output, self._partition, start)])
            deadline = time.monotonic() + self._settings.patience
            while time.monotonic() < deadline:
                found = reader.consume(self._settings.most, _WAIT)
                rows = [each for each in found if each.error() is None and (each.offset() or 0) < end]
                if rows:
                    yield rows
                    deadline = time.monotonic() + self._settings.patience
                for each in found:
                    error = each.error()
                    if error is not None and error.name() != "_PARTITION_EOF":
                        raise KafkaException(error)
                    if (each.offset() or 0) >= end:
                        return
        finally:
            reader.close()
        raise Held(
            f"{self._settings.output} [{self._partition}] cannot be read up to {end}: somebody else has a transaction open there, or its leader is away"
        )

    def _assign(self) -> None:
        assert self._reader is not None
        self._reader.assign([TopicPartition(self._settings.input, self._partition, self._position)])
        if self._mark.short is not None:
            self.counts.short_since = self._mark.short.millis
        self.counts.opened += 1
        self._probe("assigned")

    # -- the loop ----------------------------------------------------------------------------------

    def step(self) -> int:
        """Pass on what has come in, in one transaction; returns how many messages were read.

        Waits a moment for more of them.

        Raises Refused, Held and KafkaException; close the lane then.
        """
        assert self._reader is not None
        self._look_up_watermark()
        batch = self._taken(self._reader.consume(self._settings.most, _WAIT))
        self._probe("read")
        with self._trusted():
            self._decide(batch)
            if batch.messages or self._dirty or batch.decisions.floor > self._mark.floor:
                self._finish(batch)
        if batch.trouble is not None:
            raise batch.trouble
        return len(batch.messages)

    def _look_up_watermark(self) -> None:
        """Take the newest watermark up, with the offset from which on it counts: the end of the input, asked for after the watermark was read."""
        if self._settings.window.kind is not WindowKind.WATERMARK or self._pending is not None:
            return
        low = self._low()
        if low is None:
            return
        # 0 is that of a computation which the authority has never known: then nothing is said, and
        # W stands.
        ours = self._mark.incarnations
        if ours and any(now not in (0, then) for now, then in zip(low.incarnations, ours, strict=True)):
            raise Refused(
                f"a computation of {', '.join(self._settings.window.names)} was reset: its watermark is of incarnation {low.incarnations}, and the floor of "
                f"{self._mark.incarnations}",
                f"They do not compare. {_NEW_LIFE}",
            )
        if low.micros <= self._mark.floor:
            return
        self._pending = low, self._head()

    def _head(self) -> int:
        _, head = self._bounds(self._settings.input)
        return head

    def _bounds(self, topic: str) -> tuple[int, int]:
        """Return where the partition of a topic begins, and its high watermark."""
        assert self._ends is not None
        return bounds(self._ends, topic, self._partition, self._settings.patience)

    def _taken(self, found: Sequence[Message]) -> _Batch:
        """Return what of some messages belongs into the next transaction, up to the first one that stops the lane."""
        batch = _Batch([])
        reached, floor = self._reached, self._mark.floor
        for message in found:
            error = message.error()
            offset = message.offset() or 0
            if error is not None:
                if error.name() == "_PARTITION_EOF":
                    reached = offset
                    continue
                if error.name() in _LOST_POSITION:
                    name = f"{self._settings.input} [{self._partition}]"
                    batch.trouble = Refused(
                        f"what comes at offset {self._position} of {name} is gone: {error.str()}", _ADOPT
                    )
                else:
                    batch.trouble = KafkaException(error)
                break
            try:
                each, stamp = self._id_of(message), self._stamp_of(message)
                floor = self._settings.window.risen(floor, stamp)
            except Unreadable as unreadable:
                if self._settings.unreadable is None:
                    batch.trouble = self._stopped(
                        message, str(unreadable), "Or start with --unreadable TOPIC, and such messages go there."
                    )
                    break
                batch.unreadable.append((message, str(unreadable)))
            else:
                batch.ids.append(each)
                batch.stamps.append(stamp)
                batch.decidable.append(message)
            batch.messages.append(message)
            reached = offset + 1
        self._keep_to_partition(batch)
        if batch.trouble is None:
            self._reached = reached
        elif batch.messages:
            self._reached = (batch.messages[-1].offset() or 0) + 1
        return batch

    def _keep_to_partition(self, batch: _Batch) -> None:
        """Cut a batch off before the first message whose id belongs into another partition."""
        count, mine = self._pins.partitions, self._partition
        places = self._settings.partitioner.partitions(batch.ids, count) if count > 1 else ()
        stray = next((place for place, partition in enumerate(places) if partition != mine), None)
        if stray is None:
            return
        message = batch.decidable[stray]
        others = [each.value for each in Partitioner if each.partitions([batch.ids[stray]], count) == [mine]]
        hint = (
            f" {others[0]} would have: if it is what all the producers use, start with --partitioner {others[0]}."
            if others
            else ""
        )
        batch.trouble = self._stopped(
            message,
            f"its id {batch.ids[stray]!r} belongs into partition {places[stray]} by {self._settings.partitioner.value}, where a copy of it would be",
            f"Have every producer put ids into partitions in one way.{hint}",
        )
        offset = message.offset() or 0
        batch.messages = [each for each in batch.messages if (each.offset() or 0) < offset]
        batch.unreadable = [each for each in batch.unreadable if (each[0].offset() or 0) < offset]
        for kept in (batch.ids, batch.stamps, batch.decidable):
            del kept[stray:]

    def _stopped(self, message: Message, why: str, fix: str) -> Refused:
        place = f"{self._settings.input} [{self._partition}] at offset {message.offset()}"
        return Refused(f"the message in {place} stops the partition: {why}", fix)

    def _decide(self, batch: _Batch) -> None:
        assert self._memory is not None
        mark = self._mark
        batch.known = self._memory.known(batch.ids) if batch.ids else {}
        raised = self._raised(batch)
        batch.decisions = decide(
            self._settings.window, batch.ids, batch.stamps, batch.known, mark.floor, mark.next, raised
        )
        if raised is not None and self._pending is not None:
            batch.incarnations = self._pending[0].incarnations
        self._probe("decided")

    def _raised(self, batch: _Batch) -> tuple[int, int] | None:
        """Return from which message on the pending watermark counts, and the watermark; None: not in this batch."""
        if self._pending is None:
            return None
        low, head = self._pending
        if self._reached < head:
            return None
        place = next(
            (at for at, each in enumerate(batch.decidable) if (each.offset() or 0) >= head), len(batch.decidable)
        )
        return place, low.micros

    def _finish(self, batch: _Batch) -> None:
        """Make a batch count: first in Kafka, then in the memory.

        The other way round, a crash between the two loses what was only remembered.
        """
        batch.mark = self._next_mark(batch)
        self._publish(batch)
        self._remember(batch)

    def _next_mark(self, batch: _Batch) -> Mark:
        mark, found = self._mark, batch.decisions
        started = Chunk(self._vector, mark.next, found.greatest) if found.next > mark.next else None
        short = mark.short
        return replace(
            mark,
            floor=found.floor,
            next=found.next,
            chunks=trail(mark.chunks, started, found.floor),
            incarnations=mark.incarnations if batch.incarnations is None else batch.incarnations,
            short=None if short is not None and short.rank < found.floor else short,
        )

    def _publish(self, batch: _Batch) -> None:
        """Write what is new and where the input goes on, in one transaction.

        Durable when it returns.
        """
        assert self._producer is not None
        assert batch.mark is not None
        producer, settings = self._producer, self._settings
        producer.begin_transaction()
        self._in_transaction = True
        self._probe("begun")
        ends: list[int] = []
        admitted = [
            message
            for message, verdict in zip(batch.decidable, batch.decisions.verdicts, strict=True)
            if verdict is Verdict.ADMITTED
        ]
        for message in admitted[:-1]:
            self._put(settings.output, message)
        for message in admitted[-1:]:
            self._put(settings.output, message, on_delivery=lambda _, written: ends.append((written.offset() or 0) + 1))
        self._put_aside(batch)
        self._probe("produced")
        if batch.messages:
            self._position = (batch.messages[-1].offset() or 0) + 1
        offset = TopicPartition(settings.input, self._partition, self._position, batch.mark.text())
        producer.send_offsets_to_transaction([offset], self._group(), settings.patience)
        self._probe("sent")
        # It fails when any row has not been written; so the last one has its offset.
        producer.commit_transaction(settings.patience)
        self._in_transaction = False
        self._probe("committed")
        self._vector = max(self._vector, *ends) if ends else self._vector

    def _put_aside(self, batch: _Batch) -> None:
        """Write what goes to the side, with the reason and the place that it comes from in its headers."""
        settings = self._settings
        if settings.undecidable is not None:
            for message, verdict in zip(batch.decidable, batch.decisions.verdicts, strict=True):
                if verdict is Verdict.UNDECIDABLE:
                    self._put(settings.undecidable, message, f"older than the watermark {batch.decisions.floor}")
        if settings.unreadable is not None:
            for message, why in batch.unreadable:
                self._put(settings.unreadable, message, why)

    def _put(self, topic: str, message: Message, why: str = "", on_delivery: Any = None) -> None:
        assert self._producer is not None
        headers: Any = message.headers()
        if why:
            place = f"{self._settings.input}/{self._partition}/{message.offset()}"
            headers = [*(headers or ()), ("lowwater-reason", why.encode()), ("lowwater-from", place.encode())]
        stamp = message.timestamp()[1]
        while True:
            try:
                self._producer.produce(
                    topic,
                    message.value(),
                    message.key(),
                    self._partition,
                    on_delivery=on_delivery,
                    timestamp=max(stamp, 0),
                    headers=headers,
                )
            except BufferError:
                self._producer.poll(1.0)  # some have to be acknowledged first
            else:
                return

    def _remember(self, batch: _Batch) -> None:
        """Take over what was committed."""
        assert batch.mark is not None
        assert self._memory is not None
        assert self._reader is not None
        found, counts = batch.decisions, self.counts
        self._mark, self._dirty = batch.mark, False
        if batch.incarnations is not None:
            self._pending = None
        known = {each: batch.known[each] for each in found.fresh if each in batch.known}
        self._store(found.fresh, known, found.floor, self._vector, found.next)
        counts.admitted += found.verdicts.count(Verdict.ADMITTED)
        counts.duplicates += found.verdicts.count(Verdict.DUPLICATE)
        counts.undecidable += found.verdicts.count(Verdict.UNDECIDABLE)
        counts.unreadable += len(batch.unreadable)
        counts.commits += 1
        counts.floor = found.floor
        counts.short_since = None if batch.mark.short is None else batch.mark.short.millis
        _, high = self._reader.get_watermark_offsets(TopicPartition(self._settings.input, self._partition), cached=True)
        counts.lag = max(high - self._position, 0)
        self._probe("stored")

    def _store(self, fresh: dict[bytes, int], known: dict[bytes, int], floor: int, vector: int, ordinal: int) -> None:
        assert self._memory is not None
        standing = Standing(self._pins.output.id, self._settings.rule, vector, ordinal, 0)
        self._memory.write(fresh, known, floor, standing)
        if self._memory.standing is not None:
            self.counts.ids = self._memory.standing.count
        self.counts.bytes = self._memory.size
        filtered, found = self._memory.looks()
        self.counts.filtered += filtered
        self.counts.found += found

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[None]:
        """Throw the memory away when it is damaged, or was mended with what is not ours: it is made anew at the next start."""
        try:
            yield
        except (Damaged, _Foreign) as error:
            if self._memory is not None:
                with contextlib.suppress(Exception):
                    self._memory.close()
                self._memory = None
            Memory.remove(self._directory)
            if isinstance(error, _Foreign):
                raise
            self.counts.rebuilt += 1
            raise Held(f"the memory of partition {self._partition} is damaged, and is made anew: {error}") from error

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the partition go.

        What is open is aborted, if it still can; else by the next lane, or by Kafka after a minute.
        """
        producer, self._producer = self._producer, None
        if producer is not None and self._in_transaction:
            with contextlib.suppress(Exception):
                producer.purge()
                producer.abort_transaction(5.0)
        self._in_transaction = False
        memory, self._memory = self._memory, None
        for each in (memory, self._reader, self._ends):
            try:
                if each is not None:
                    each.close()
            except Exception as error:  # noqa: BLE001 - a full disk, say: what is not kept is read from the output again, and the others are to be closed too
                logger.warning("partition %d: %s has not closed: %s", self._partition, type(each).__name__, error)


def _moment(millis: int) -> str:
    if millis < 0:
        return "it is empty"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(millis / 1000))
