"""One partition: read, look up, pass on, commit, remember.

The output is the truth: it tells which ids were passed on, and the memory on disk is a copy. Five
steps decide what may be passed on again, and their order matters:

1. ``init_transactions`` with the one transactional id of this partition fences the lane that owned
   the partition before, and decides its open transaction.
2. Read the committed offset, with its mark. No undecided transaction can move it any more.
3. Find the end of the output: the offset of a record of our own, in a transaction that is aborted.
   All replicas in sync acknowledge it, so no broker gives an older answer, and a fenced lane cannot
   write before it any more. The end of the committed rows would not do: a stranger's open
   transaction hides the rows behind it.
4. Read from the output, up to that end, the rows that the memory lacks.
5. Then the loop: look up, write the new rows and the offset in one transaction, commit, and only
   then remember the ids and the vector, in one write.

After a crash anywhere the output and the offset agree, and the memory is at them or behind. Step 4
mends the memory, and only ever adds to it.
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
"""Steps after which a test may kill a lane."""

_WAIT: Final = 0.1
"""Seconds that a batch waits for more messages."""

_NEW_LIFE: Final = "Start a new life: another output topic and another --group. It remembers nothing of this one."

_SHORTER: Final = "Start with --accept-shorter-window too, to go on with what is left."

_ADOPT: Final = "Start once with --adopt to go on at its beginning: ids that are remembered are still dropped."

_LOST_POSITION: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})


class _Foreign(Refused):
    """The output has other rows than this deduplicator has written."""


@dataclass(slots=True)
class Counts:
    """Counts of one partition, over all its lanes in this process, as of the last commit."""

    admitted: int = 0
    duplicates: int = 0
    undecidable: int = 0
    unreadable: int = 0
    commits: int = 0
    opened: int = 0
    """Number of times that a lane of this process took the partition over."""
    mended: int = 0
    """Rows of the output that were read to mend the memory."""
    rebuilt: int = 0
    """Number of times that the memory was built anew."""
    filtered: int = 0
    """Lookups in a file of the memory that the file's Bloom filter has spared."""
    found: int = 0
    """Lookups that the filter let pass and that found the id."""
    ids: int = 0
    bytes: int = 0
    lag: int = 0
    """Messages of the input that are not read yet."""
    floor: int = NO_FLOOR
    short_since: int | None = None
    """Timestamp of the first row of a shortened window, milliseconds; None for a whole one."""


@dataclass(slots=True)
class _Batch:
    """The messages and decisions of one transaction."""

    messages: list[Message]
    ids: list[bytes] = field(default_factory=list)
    decidable: list[Message] = field(default_factory=list)
    """Messages that have an id, in the order of ``ids``."""
    unreadable: list[tuple[Message, str]] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    ranks: dict[bytes, int] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    trouble: Exception | None = None
    """Error that stops the lane at the message behind the last one; None without one."""
    incarnations: tuple[int, ...] | None = None
    """Incarnations of a watermark that began to count in this batch; None without one."""
    mark: Mark | None = None


class Lane:
    """One input partition and the output partition of the same number. Not thread-safe. Close it.

    Args:
        settings: Settings of the deduplicator.
        pins: The topics' ids and sizes at the start.
        partition: Number of the partition.
        group: Returns the metadata of the consumer group that assigned the partition.
        low: Returns the senders' last published low watermark; for windows by a watermark.
        counts: Counts to add to.
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
        """Consumer of the input, committed rows only."""
        self._ends: Consumer | None = None
        """Consumer that tells where logs begin and end, uncommitted rows included."""
        self._position = 0
        """Offset of the next message of the input."""
        self._reached = 0
        """Offset of the input up to which everything was seen, control records too."""
        self._vector = 0
        """Offset of the output up to which all rows are in the memory, or in the next chunk."""
        self._pending: tuple[Low, int] | None = None
        """A watermark that does not count yet, and the input's offset from which it will."""
        self._dirty = False
        """True while the mark differs from the committed one."""

    @property
    def position(self) -> int:
        """Offset of the next message of the input, as of the last commit."""
        return self._position

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self._partition

    @property
    def memory(self) -> Memory | None:
        """The remembered ids; None while the lane is not open."""
        return self._memory

    # -- opening -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the partition over. Close the lane after Refused, Held or KafkaException."""
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
        """Set the position, and return the mark of the last commit."""
        settings, pins = self._settings, self._pins
        name = f"{settings.input} [{self._partition}]"
        self._reader = reader = consumer(settings, committed=True)
        self._ends = consumer(settings, committed=False)
        first, _ = self._bounds(settings.input)
        stored = committed(reader, settings.input, self._partition, settings.patience)
        self._has_offset = stored.offset >= 0
        if not self._has_offset:
            # ``_dirty`` makes the lane commit a first offset before it reads any row. So if a later
            # run finds rows in the output and no offset, the offset has expired.
            self._dirty = True
            self._position = self._reached = first
            mark = Mark(pins.input.id, pins.output.id, pins.partitions, settings.rule, NO_FLOOR, 0)
        else:
            mark = self._checked(stored.metadata, name)
            self._position = self._reached = self._continued(mark, stored.offset, first, name)
            mark = replace(mark, input=pins.input.id)
        self.counts.floor = mark.floor
        self._probe("marked")
        return mark

    def _checked(self, metadata: str | None, name: str) -> Mark:
        """Return the mark in a committed offset's metadata.

        Raises Refused when the mark does not fit this deduplicator, or its topics, any more.
        """
        settings, pins = self._settings, self._pins
        try:
            mark = Mark.parse(metadata or "")
        except ValueError:
            raise Refused(
                f"the group {settings.group} has a committed offset of {name} without a deduplicator's mark: it does not tell what was passed on",
                f"Another program has set or reset the offsets of the group. {_NEW_LIFE}",
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
        """Return the offset to read the input from, or raise Refused if that message is gone."""
        settings = self._settings
        _, last = self._bounds(settings.input)
        if mark.input != self._pins.input.id:
            loss = f"the topic {settings.input} was deleted and made anew: offset {offset} is none of its own"
        elif offset < first:
            loss = f"retention has removed the messages {offset} to {first - 1} of {name} before they were read"
        elif offset > last:
            loss = f"{name} ends at {last}, and was read up to {offset}: it was cut off"
        else:
            return offset
        if not settings.adopt:
            raise Refused(loss, _ADOPT)
        if offset >= first or mark.input != self._pins.input.id:
            self._again(first, mark.next)
        logger.warning("%s. It goes on at offset %d, because of --adopt", loss, first)
        self._dirty = True
        return first

    def _end(self) -> int:
        """Return the end of the output: all rows committed so far are before it."""
        assert self._producer is not None
        producer, patience = self._producer, self._settings.patience
        producer.begin_transaction()
        self._in_transaction = True
        answers: list[Any] = []
        producer.produce(
            self._settings.output,
            partition=self._partition,
            headers=[("lowwater", b"end")],
            on_delivery=lambda error, message: answers.append(error or message.offset()),
        )
        producer.flush(patience)
        if not answers:
            raise Held(f"the output partition {self._partition} has not acknowledged a record within {patience:.0f} s")
        if not isinstance(answers[0], int):
            raise KafkaException(answers[0])
        producer.abort_transaction(patience)
        self._in_transaction = False
        self._probe("ended")
        return answers[0]

    def _mend(self, end: int) -> None:
        """Bring every id of the output that is not forgotten into the memory."""
        settings = self._settings
        self._memory = memory = self._remembered(end)
        self._probe("opened")
        first, _ = self._bounds(settings.output)
        start = self._mark.start(end) if self._has_offset else Chunk(first, 0, NO_FLOOR)
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
        if not self._has_offset:
            self._begin_life(first, ordinal, greatest, since)
        self._compare(ordinal)
        self._vector = end
        self._store({}, {}, self._mark.floor, end, ordinal)
        self._probe("mended")

    def _begin_life(self, first: int, rows: int, greatest: int, since: int | None) -> None:
        """Begin without an offset: the output is empty, or its rows are adopted.

        Only a log that begins at offset 0 shows that there were no rows: retention empties an
        output while it lets offsets expire. ``since`` is the timestamp of the first row. Raises
        Refused; for rows that may not be adopted _compare raises it.
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
            # The ranks of the lost rows are unknown. By count they are before the first row that is
            # left; by time and watermark the present time is above all of them.
            ranks = {WindowKind.COUNT: -1, WindowKind.TIME: now, WindowKind.WATERMARK: now * 1000}
            short = Short(ranks[settings.window.kind], now if since is None else since)
        self._again(self._position, rows)
        logger.warning(
            "partition %d: the %d rows of the output are taken as its own, because of --adopt", partition, rows
        )
        self._mark = replace(self._mark, next=rows, chunks=(Chunk(first, 0, greatest),), short=short)
        self._dirty = True

    def _again(self, first: int, rows: int) -> None:
        """Raise Refused if reading the input again would pass more rows than the window has."""
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
        """Return the memory; an empty one when the stored one cannot be trusted."""
        if self._has_offset:
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
        """Return where to read an output whose log begins after the offset that is needed.

        The number of rows that are left shows whether rows are lost, or only control records.
        Raises Refused when rows are gone that should be remembered.
        """
        rest = 0
        since = -1
        for rows in self._rows(first, end):
            since = rows[0].timestamp()[1] if since < 0 else since
            rest += len(rows)
        missing = self._mark.next - start.ordinal - rest
        # In a window by count the mark shows whether the lost rows would be forgotten anyway. In a
        # window by time or watermark it does not, so the lost rows count as remembered.
        by_count = self._settings.window.kind is WindowKind.COUNT
        if missing > 0 and not (by_count and start.ordinal + missing <= self._mark.floor):
            problem = f"{self._settings.output} [{self._partition}] begins at offset {first} ({_moment(since)}), and the window reaches back to offset {start.offset}"
            if not self._settings.accept_shorter:
                raise Refused(
                    f"{problem}: {missing} ids are gone, copies of which would pass again",
                    "Have the output keep its rows for longer than the window. Start with --accept-shorter-window to go on with what is left.",
                )
            logger.warning("%s: %d ids are gone, copies of which pass again", problem, missing)
            lost = [chunk for chunk in self._mark.chunks if chunk.offset < first]
            remaining = [chunk for chunk in self._mark.chunks if chunk.offset >= first]
            greatest = max([chunk.greatest for chunk in lost], default=NO_FLOOR)
            chunks = (Chunk(first, start.ordinal + missing, greatest), *remaining)
            self._mark = replace(self._mark, chunks=chunks, short=Short(greatest, since))
            self._dirty = True
        return Chunk(first, start.ordinal + max(missing, 0), NO_FLOOR)

    def _ranks(self, rows: Sequence[Message], ordinal: int) -> tuple[dict[bytes, int], int]:
        """Return the ranks of those rows' ids that are not forgotten, and the ordinal behind."""
        fresh: dict[bytes, int] = {}
        by_count, floor = self._settings.window.kind is WindowKind.COUNT, self._mark.floor
        for row in rows:
            try:
                id_, rank = self._id_of(row), ordinal if by_count else self._row_stamp_of(row)
            except Unreadable:
                raise self._foreign(1) from None
            ordinal += 1
            if rank >= floor:
                fresh[id_] = rank
        return fresh, ordinal

    def _compare(self, ordinal: int) -> None:
        """Raise Refused when the output's number of rows is not the mark's."""
        if ordinal != self._mark.next:
            raise self._foreign(ordinal - self._mark.next)

    def _foreign(self, more: int) -> _Foreign:
        settings, partition = self._settings, self._partition
        if not self._has_offset:
            return _Foreign(
                f"the group {settings.group} has no offset of {settings.input} [{partition}], and {settings.output} [{partition}] has {more} rows: its offsets have "
                "expired, or the input was deleted and made anew, or another program has written the rows",
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
            f"Let no other program write to it, nor delete from it. {_NEW_LIFE}",
        )

    def _rows(self, start: int, end: int) -> Iterator[list[Message]]:
        """Yield the committed rows of the output between two offsets.

        Raises Held when an open transaction leaves them undecided for too long.
        """
        if start >= end:
            return
        reader = consumer(self._settings, committed=True)
        try:
            reader.assign([TopicPartition(self._settings.output, self._partition, start)])
            deadline = time.monotonic() + self._settings.patience
            while time.monotonic() < deadline:
                messages = reader.consume(self._settings.most, _WAIT)
                rows = [message for message in messages if message.error() is None and (message.offset() or 0) < end]
                if rows:
                    yield rows
                    deadline = time.monotonic() + self._settings.patience
                for message in messages:
                    error = message.error()
                    if error is not None and error.name() != "_PARTITION_EOF":
                        raise KafkaException(error)
                    if (message.offset() or 0) >= end:
                        return
        finally:
            reader.close()
        raise Held(
            f"{self._settings.output} [{self._partition}] cannot be read up to {end}: another program has a transaction open there, or its leader is away"
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
        """Pass on the messages that have come, in one transaction; return how many were read.

        Waits a moment for more of them. Raises Refused, Held and KafkaException; close the lane
        then.
        """
        assert self._reader is not None
        self._look_up_watermark()
        batch = self._next_batch(self._reader.consume(self._settings.most, _WAIT))
        self._probe("read")
        with self._trusted():
            self._decide(batch)
            if batch.messages or self._dirty or batch.decisions.floor > self._mark.floor:
                self._finish(batch)
        if batch.trouble is not None:
            raise batch.trouble
        return len(batch.messages)

    def _look_up_watermark(self) -> None:
        """Read the newest watermark, then the end of the input: from that offset it counts."""
        if self._settings.window.kind is not WindowKind.WATERMARK or self._pending is not None:
            return
        low = self._low()
        if low is None:
            return
        # Incarnation 0 means that the authority does not know the computation: then W stays.
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
        """Return the first offset of a topic's partition, and its high watermark."""
        assert self._ends is not None
        return bounds(self._ends, topic, self._partition, self._settings.patience)

    def _next_batch(self, messages: Sequence[Message]) -> _Batch:
        """Return the messages of the next transaction, up to the first that stops the lane."""
        batch = _Batch([])
        reached, floor = self._reached, self._mark.floor
        for message in messages:
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
                id_, stamp = self._id_of(message), self._stamp_of(message)
                floor = self._settings.window.risen(floor, stamp)
            except Unreadable as unreadable:
                if self._settings.unreadable is None:
                    batch.trouble = self._stopped(
                        message, str(unreadable), "Or start with --unreadable TOPIC, and such messages go there."
                    )
                    break
                batch.unreadable.append((message, str(unreadable)))
            else:
                batch.ids.append(id_)
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
        """Cut a batch off before the first message whose id belongs to another partition."""
        count, mine = self._pins.partitions, self._partition
        places = self._settings.partitioner.partitions(batch.ids, count) if count > 1 else ()
        stray = next((place for place, partition in enumerate(places) if partition != mine), None)
        if stray is None:
            return
        message = batch.decidable[stray]
        others = [
            partitioner.value
            for partitioner in Partitioner
            if partitioner.partitions([batch.ids[stray]], count) == [mine]
        ]
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
        batch.messages = [message for message in batch.messages if (message.offset() or 0) < offset]
        batch.unreadable = [entry for entry in batch.unreadable if (entry[0].offset() or 0) < offset]
        for values in (batch.ids, batch.stamps, batch.decidable):
            del values[stray:]

    def _stopped(self, message: Message, why: str, fix: str) -> Refused:
        place = f"{self._settings.input} [{self._partition}] at offset {message.offset()}"
        return Refused(f"the message in {place} stops the partition: {why}", fix)

    def _decide(self, batch: _Batch) -> None:
        assert self._memory is not None
        mark = self._mark
        batch.ranks = self._memory.known(batch.ids) if batch.ids else {}
        raised = self._raised(batch)
        batch.decisions = decide(
            self._settings.window, batch.ids, batch.stamps, batch.ranks, mark.floor, mark.next, raised
        )
        if raised is not None and self._pending is not None:
            batch.incarnations = self._pending[0].incarnations
        self._probe("decided")

    def _raised(self, batch: _Batch) -> tuple[int, int] | None:
        """Return the message at which the pending watermark begins to count, and the watermark.

        None if it does not count in this batch.
        """
        if self._pending is None:
            return None
        low, head = self._pending
        if self._reached < head:
            return None
        place = next(
            (at for at, message in enumerate(batch.decidable) if (message.offset() or 0) >= head), len(batch.decidable)
        )
        return place, low.micros

    def _finish(self, batch: _Batch) -> None:
        """Commit a batch in Kafka, then store it in the memory.

        In the other order a crash in between would lose the messages that were only remembered.
        """
        batch.mark = self._next_mark(batch)
        self._publish(batch)
        self._remember(batch)

    def _next_mark(self, batch: _Batch) -> Mark:
        mark, decisions = self._mark, batch.decisions
        started = Chunk(self._vector, mark.next, decisions.greatest) if decisions.next > mark.next else None
        short = mark.short
        return replace(
            mark,
            floor=decisions.floor,
            next=decisions.next,
            chunks=trail(mark.chunks, started, decisions.floor),
            incarnations=mark.incarnations if batch.incarnations is None else batch.incarnations,
            short=None if short is not None and short.rank < decisions.floor else short,
        )

    def _publish(self, batch: _Batch) -> None:
        """Write the new rows and the input's next offset in one transaction; then it is durable."""
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
        # The commit fails if any row was not written. So after it the last row has its offset.
        producer.commit_transaction(settings.patience)
        self._in_transaction = False
        self._probe("committed")
        self._vector = max(self._vector, *ends) if ends else self._vector

    def _put_aside(self, batch: _Batch) -> None:
        """Write undecidable and unreadable messages, with reason and origin in their headers."""
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
                self._producer.poll(1.0)  # makes room: handles acknowledgements
            else:
                return

    def _remember(self, batch: _Batch) -> None:
        """Store what was committed in the memory, and count it."""
        assert batch.mark is not None
        assert self._memory is not None
        assert self._reader is not None
        decisions, counts = batch.decisions, self.counts
        self._mark, self._dirty = batch.mark, False
        if batch.incarnations is not None:
            self._pending = None
        ranks = {id_: batch.ranks[id_] for id_ in decisions.fresh if id_ in batch.ranks}
        self._store(decisions.fresh, ranks, decisions.floor, self._vector, decisions.next)
        counts.admitted += decisions.verdicts.count(Verdict.ADMITTED)
        counts.duplicates += decisions.verdicts.count(Verdict.DUPLICATE)
        counts.undecidable += decisions.verdicts.count(Verdict.UNDECIDABLE)
        counts.unreadable += len(batch.unreadable)
        counts.commits += 1
        counts.floor = decisions.floor
        counts.short_since = None if batch.mark.short is None else batch.mark.short.millis
        _, high = self._reader.get_watermark_offsets(TopicPartition(self._settings.input, self._partition), cached=True)
        counts.lag = max(high - self._position, 0)
        self._probe("stored")

    def _store(self, fresh: dict[bytes, int], ranks: dict[bytes, int], floor: int, vector: int, ordinal: int) -> None:
        assert self._memory is not None
        standing = Standing(self._pins.output.id, self._settings.rule, vector, ordinal, 0)
        self._memory.write(fresh, ranks, floor, standing)
        if self._memory.standing is not None:
            self.counts.ids = self._memory.standing.count
        self.counts.bytes = self._memory.size
        filtered, hits = self._memory.looks()
        self.counts.filtered += filtered
        self.counts.found += hits

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[None]:
        """Remove the memory when it is damaged or has foreign rows; the next start rebuilds it."""
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
        """Release the partition, and abort the open transaction.

        If that fails, the next lane aborts the transaction, or Kafka does after a minute.
        """
        producer, self._producer = self._producer, None
        if producer is not None and self._in_transaction:
            with contextlib.suppress(Exception):
                producer.purge()
                producer.abort_transaction(5.0)
        self._in_transaction = False
        memory, self._memory = self._memory, None
        for resource in (memory, self._reader, self._ends):
            try:
                if resource is not None:
                    resource.close()
            except Exception as error:  # noqa: BLE001 - on a full disk, say: the output still has the rows, and the others must be closed
                logger.warning("partition %d: %s has not closed: %s", self._partition, type(resource).__name__, error)


def _moment(millis: int) -> str:
    if millis < 0:
        return "it is empty"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(millis / 1000))
