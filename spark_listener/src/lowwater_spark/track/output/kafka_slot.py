"""One slot of a writer into Kafka.

It publishes its files of a batch and its mark in one transaction.

The module runs in a Python worker of Spark. A slot decides by what it reads in Kafka, never by what
it remembers of a failure. ``init_transactions`` fences the slot's former owner, and commits or
aborts its open transaction. Then the slot's last mark says whether the batch is done. Two things
could hide an existing mark, and the rows would be written twice: a broker that was away may answer
with old data, and a ``read_committed`` reader sees nothing behind anybody's open transaction. So
the slot first writes a record of its own next to its marks. The leader and all in-sync replicas
acknowledge it, and its offset is the one up to which the slot must read. That record has a
transaction of its own: left open while the rows are written, it would hide the marks of other slots
in the same partition. For this reason the rows come first, and the mark last, before the commit.

A producer that has committed and was not fenced since knows its last mark: if another process has
taken the slot over meanwhile, its next transaction fails. So a worker keeps its producers.
"""

from __future__ import annotations

import contextlib
import enum
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.sources.kafka.client import confluent, consumer_of
from lowwater_spark.sources.kafka.marks import Begun, Slot, SlotMark, marks_topic, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message, Producer, TopicPartition

__all__ = [
    "PUBLISHED",
    "Published",
    "Publishing",
    "SlotWriter",
    "Standing",
    "bounds",
    "publish_slots",
    "published_of",
    "standing",
    "until",
]

PUBLISHED: Final = "slot int, at long, wrote boolean, refused string"
"""Schema of the rows that the job of a batch returns."""

PATIENCE: Final = 60.0
"""Seconds to wait for one answer, as long as Kafka's own limit for an idle transaction."""

_TRIES: Final = 5

_HOPELESS: Final = frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_TRANSACTION_TIMEOUT",
        "MSG_SIZE_TOO_LARGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_OR_PART",
        "_AUTHENTICATION",
        "_INVALID_ARG",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
    }
)
"""Errors that would also occur with a new producer."""

_LEADERLESS: Final = frozenset({"LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART"})
"""Answers while a leader changes or a topic is new."""

_KEPT: Final = 16
"""Number of producers that a worker keeps; each has a connection to each broker."""

_WINDOW: Final = 64
"""Number of records before the end that are first searched for the last mark."""


class Standing(enum.Enum):
    """The relation of a slot's last mark to a batch."""

    DUE = "it is to be written"
    DONE = "it was written"
    OTHER = "it was written, from other rows"
    AHEAD = "a later one was written"
    BEHIND = "the one before it was not"
    ENDED = "a later life of the computation has taken its place"


@dataclass(frozen=True, slots=True)
class Publishing:
    """The arguments of a batch's tasks, pickled into their closure."""

    settings: Mapping[str, str]
    slot: Slot
    writer: str
    """Full name of the computation."""
    marks: int
    """Number of partitions of the topic of marks."""
    batch: int
    after: int
    """Number of the next batch that the slot's last mark must name before this one; 0: no mark."""
    digest: str
    staged: str
    topic_id: str
    partitions: int
    files: Sequence[Sequence[str]]
    probe: Callable[[str, int, int], None] | None = None
    """Callback for each step, with the batch and the slot; for tests."""
    life: int = 0
    """Incarnation that the checkpoint has claimed; 0: it has claimed none."""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a batch in one slot."""

    slot: int
    at: int
    """Offset of the batch's mark; -1: the batch was refused."""
    wrote: bool
    """False: an earlier attempt had published the batch."""
    refused: str = ""


def published_of(row: Any) -> Published:
    """Return the result from a collected row."""
    return Published(row.slot, row.at, row.wrote, row.refused)


def standing(mark: SlotMark | None, job: Publishing) -> Standing:
    """Return the relation of a slot's last mark, None if there is none, to a batch."""
    if mark is None:
        return Standing.DUE if job.after == 0 else Standing.BEHIND
    if mark.next > job.batch + 1:
        return Standing.AHEAD
    if mark.next == job.batch + 1:
        return Standing.DONE if mark.staged == job.staged else Standing.OTHER
    return Standing.DUE if mark.next == job.after else Standing.BEHIND


def publish_slots(job: Publishing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Publish the slots whose numbers arrive. Runs in a Python worker."""
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            done = _writer(job, number).publish(job)
            columns = [[done.slot], [done.at], [done.wrote], [done.refused]]
            types = [pa.int32(), pa.int64(), pa.bool_(), pa.string()]
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["slot", "at", "wrote", "refused"])


_writers: Final[OrderedDict[tuple[str, str], SlotWriter]] = OrderedDict()
"""Writers of this process, by settings and slot; the last used ones are at the end."""


def _writer(job: Publishing, number: int) -> SlotWriter:
    slot = replace(job.slot, number=number)
    key = json.dumps(dict(job.settings), sort_keys=True), slot.transactional_id
    writer = _writers.get(key)
    if writer is None:
        writer = _writers[key] = SlotWriter(job.settings, slot, job.marks)
    _writers.move_to_end(key)
    while len(_writers) > _KEPT:
        _, old = _writers.popitem(last=False)
        old.discard()
    return writer


class SlotWriter:
    """A slot, as one process uses it.

    Several processes may use one: the last that began goes on, others begin anew or are refused.
    """

    def __init__(self, settings: Mapping[str, str], slot: Slot, marks: int) -> None:
        self._settings = settings
        self._slot = slot
        self._marks = marks_topic(slot.topic), slot.partition(marks)
        self._producer: Producer | None = None
        self._open = False
        self._mark: SlotMark | None = None
        """The slot's last mark; valid while the producer is not fenced."""
        self._at = -1
        self._ended = 0
        """Life of the computation in which another checkpoint has ended the slot; 0: none has."""

    def publish(self, job: Publishing) -> Published:
        """Publish the slot's part of a batch unless it is published. Durable on return.

        After any failure the next try begins with a new producer, and reads the mark again. Raises
        Kafka's error after some tries or if none can help, OSError if the mark is unreadable.
        """
        from confluent_kafka import KafkaException

        for tries_left in reversed(range(_TRIES)):
            try:
                return self._publish(job)
            except (KafkaException, SystemError) as failure:
                self.discard()
                # confluent-kafka raises a fatal error in its next call. If that call runs a row's
                # callback, Python turns the error into a SystemError, which is tried again too.
                by_kafka = isinstance(failure, KafkaException)
                if not tries_left or (by_kafka and failure.args[0].name() in _HOPELESS):
                    raise
            except BaseException:
                self.discard()
                raise
        raise AssertionError

    def discard(self) -> None:
        """Drop the producer.

        Its open transaction is aborted here, by the slot's next producer, or by Kafka.
        """
        producer, self._producer = self._producer, None
        if producer is not None and self._open:
            with contextlib.suppress(Exception):
                producer.purge()
                producer.abort_transaction(5.0)
        self._open, self._mark, self._at = False, None, -1

    def _publish(self, job: Publishing) -> Published:
        if self._producer is None or standing(self._mark, job) not in (Standing.DUE, Standing.DONE):
            # If self._mark does not fit the batch, it may be old: another worker may have published
            # for the slot since. _begin() fences that worker, and reads the mark from Kafka.
            self.discard()
            self._begin(job)
        relation, number = standing(self._mark, job), self._slot.number
        if relation is Standing.DUE and self._ended > job.life:
            relation = Standing.ENDED
        if relation is Standing.DUE:
            self._write(job)
            return Published(number, self._at, wrote=True)
        if relation is Standing.DONE:
            return Published(number, self._at, wrote=False)
        refusal = _REFUSED[relation].format(
            what=f"slot {number} of {job.writer} in {self._slot.topic}",
            batch=job.batch,
            marks=self._marks[0],
            found="none" if self._mark is None else f"one of batch {self._mark.next - 1}",
            life=job.life or "unknown",
            newer=self._ended,
        )
        return Published(number, -1, wrote=False, refused=refusal)

    def _begin(self, job: Publishing) -> None:
        """Take over the slot, and read its last mark."""
        settings = {**self._settings, "transactional.id": self._slot.transactional_id}
        self._producer = producer = confluent().Producer(settings)
        producer.init_transactions(PATIENCE)
        self._step("begun", job)
        producer.begin_transaction()
        self._open = True
        end = self._put(*Begun(self._slot, job.writer).record())
        producer.commit_transaction(PATIENCE)
        self._open = False
        self._mark, self._at, self._ended = _last_mark(self._settings, self._slot, self._marks, end)
        self._step("read", job)

    def _write(self, job: Publishing) -> None:
        assert self._producer is not None
        producer = self._producer
        producer.begin_transaction()
        self._open = True
        ends = dict(self._mark.ends) if self._mark is not None and self._mark.topic_id == job.topic_id else {}
        failed: list[Any] = []

        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                failed.append(error)
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if ends.get(partition, 0) <= offset:
                ends[partition] = offset + 1

        for path in job.files[self._slot.number]:
            for row in _rows(path):
                self._produce(self._slot.topic, on_delivery=delivered, **row)
            self._step("written", job)
        self._flush(failed)
        partitions = max([job.partitions, *(partition + 1 for partition in ends)])
        mark = SlotMark(self._slot, job.writer, job.batch + 1, job.digest, job.staged, job.topic_id, partitions, ends)
        at = self._put(*mark.record())
        self._step("marked", job)
        producer.commit_transaction(PATIENCE)
        self._open, self._mark, self._at = False, mark, at
        self._step("published", job)

    def _put(self, key: bytes, value: bytes) -> int:
        """Write a record next to the marks, and return its acknowledged offset."""
        failed: list[Any] = []
        offsets: list[int] = []

        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                offsets.append(message.offset() or 0)

        topic, partition = self._marks
        self._produce(topic, key=key, value=value, partition=partition, on_delivery=delivered)
        self._flush(failed)
        return offsets[0]

    def _produce(self, topic: str, **message: Any) -> None:
        assert self._producer is not None
        while True:
            try:
                self._producer.produce(topic, **message)
            except BufferError:
                self._producer.poll(1.0)  # the queue is full until some rows are acknowledged
            else:
                self._producer.poll(0)
                return

    def _flush(self, failed: Sequence[Any]) -> None:
        from confluent_kafka import KafkaException

        assert self._producer is not None
        unacknowledged = self._producer.flush(PATIENCE)
        if failed:
            raise KafkaException(failed[0])
        if unacknowledged:
            msg = (
                f"Kafka has not acknowledged {unacknowledged} rows for {self._slot.topic} within {PATIENCE:.0f} seconds"
            )
            raise OSError(msg)

    def _step(self, step: str, job: Publishing) -> None:
        if job.probe is not None:
            job.probe(step, job.batch, self._slot.number)


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a staged file as arguments of a producer."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(4096):
            for row in batch.to_pylist():
                if row.get("partition", -1) is None:
                    del row["partition"]
                if "headers" in row:
                    row["headers"] = [(header["key"], header["value"]) for header in row["headers"] or ()]
                yield row


def _last_mark(
    settings: Mapping[str, str], slot: Slot, place: tuple[str, int], end: int
) -> tuple[SlotMark | None, int, int]:
    """Return a slot's last mark before an offset, its offset, and the life that ended the slot.

    Without a mark these are None and -1; the life is 0 if no life has ended the slot since. Raises
    OSError if the records up to the offset cannot be read.
    """
    topic, partition = place
    consumer = consumer_of(settings, committed=True)
    deadline = time.monotonic() + 2 * PATIENCE
    try:
        first, _ = bounds(consumer, _at(topic, partition), deadline)
        window = _WINDOW
        while True:
            start = max(first, end - window)
            consumer.assign([_at(topic, partition, start)])
            result: tuple[SlotMark | None, int, int] = None, -1, 0
            for message in until(consumer, end, deadline):
                record = parse(message.key(), message.value())
                if isinstance(record, SlotMark) and record.slot == slot:
                    result = record, message.offset() or 0, 0
                elif isinstance(record, Begun) and record.slot == slot and record.ended:
                    result = result[0], result[1], max(result[2], record.life)
            if result[0] is not None or start == first:
                return result
            window *= 16
    finally:
        consumer.close()


def until(consumer: Consumer, end: int, deadline: float) -> Iterator[Message]:
    """Yield the committed records before an offset of the consumer's one partition.

    Waits until the transactions before that offset are decided.
    """
    from confluent_kafka import KafkaException

    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None and error.name() != "_PARTITION_EOF":
            raise KafkaException(error)
        if (message.offset() or 0) >= end:
            return
        if error is None:
            yield message
    msg = f"the marks cannot be read up to offset {end}: a transaction before it is open, or their leader is away"
    raise OSError(msg)


def bounds(consumer: Consumer, place: TopicPartition, deadline: float) -> tuple[int, int]:
    """Return the first offset of a partition, and its end as the consumer sees it.

    Waits for a leader. Raises Kafka's error.
    """
    from confluent_kafka import KafkaException

    while True:
        try:
            offsets: tuple[int, int] = consumer.get_watermark_offsets(place, timeout=PATIENCE)
        except KafkaException as error:
            if error.args[0].name() not in _LEADERLESS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return offsets


def _at(topic: str, partition: int, offset: int | None = None) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition) if offset is None else TopicPartition(topic, partition, offset)


_REFUSED: Final[Mapping[Standing, str]] = {
    Standing.AHEAD: (
        "{what} has published a batch after {batch} ({marks} has {found}): a newer run of this checkpoint goes on, or the checkpoint is older than its "
        "output. Stop this run; or start from a new checkpoint, with adopt=True."
    ),
    Standing.OTHER: (
        "{what} has published batch {batch}, from other rows than those that are staged: they were removed and made anew, or two copies of one checkpoint are "
        "running. Start from a new checkpoint, with adopt=True."
    ),
    Standing.BEHIND: (
        "{what} has not published the batch before batch {batch} ({marks} has {found}), though the checkpoint has it: the topic of marks was deleted or "
        "truncated, or the directory of the staged batches was. Start from a new checkpoint, with adopt=True."
    ),
    Standing.ENDED: (
        "{what} must not publish batch {batch}: another checkpoint has taken the computation over, in its life {newer} ({marks} says so), and this run is of life {life}. Stop "
        "this run: its rows would be older than what is promised by now."
    ),
}
