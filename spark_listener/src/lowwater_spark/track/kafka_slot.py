"""One slot of a writer into Kafka: it publishes its files of a staged batch in one transaction, together with its mark. Runs in a Python worker of Spark.

What a slot may do it reads in Kafka, never in what it remembers of a failure. ``init_transactions`` fences whoever had the slot before, and ends what that had
open: committed or not, it is decided. Then the slot's last mark says whether the batch is done. Two things could hide a mark that is there, and the rows
would come twice. A broker that was away answers from what it knew before; and a reader of what is committed sees nothing behind a transaction that anybody has
open. So the slot first writes a record of its own where its marks are. When that is acknowledged, by the leader and by all in sync, the offset is known up to which
it must have read. That record is in a transaction of its own. One that stayed open while the rows are written would hide the marks of others beside it, if writers share a
partition: so rows come first, and the mark is the last before the commit.

A producer that has committed and was not fenced since knows its last mark without asking: a transaction of it fails when somebody else has had the slot meanwhile.
So a worker keeps its producers for the next batch.
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

from lowwater_spark.sources.kafka_client import confluent, consumer_of
from lowwater_spark.sources.kafka_marks import Begun, Slot, SlotMark, marks_topic, parse

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
"""Seconds for one answer. Kafka's own limit of a transaction that nobody goes on with is as long.
"""

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
"""Errors that a new producer would meet as well."""

_LEADERLESS: Final = frozenset({"LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART"})
"""Answers while a leader changes, or a topic is new."""

_KEPT: Final = 16
"""Producers that a worker keeps; each has a connection to each broker."""

_WINDOW: Final = 64
"""Records before the end in which the last mark is looked for first."""


class Standing(enum.Enum):
    """What a slot's last mark says of a batch."""

    DUE = "it is to be written"
    DONE = "it was written"
    OTHER = "it was written, from other rows"
    AHEAD = "a later one was written"
    BEHIND = "the one before it was not"
    ENDED = "a later life of the computation has taken its place"


@dataclass(frozen=True, slots=True)
class Publishing:
    """What the tasks of a batch need to know. Travels in the closure."""

    settings: Mapping[str, str]
    """Of Kafka's clients."""
    slot: Slot
    """The first one."""
    writer: str
    """The full name of the computation."""
    marks: int
    """How many partitions the topic of marks has."""
    batch: int
    after: int
    """What the mark before it says; 0: there is none."""
    digest: str
    staged: str
    topic_id: str
    partitions: int
    files: Sequence[Sequence[str]]
    """The staged files, by slot."""
    probe: Callable[[str, int, int], None] | None = None
    """Called with each step, the batch and the slot; for tests."""
    life: int = 0
    """The computation's incarnation, as the checkpoint has claimed it; 0: it has not."""


@dataclass(frozen=True, slots=True)
class Published:
    """What has become of a batch in one slot."""

    slot: int
    at: int
    """The offset of its mark; -1: it was refused."""
    wrote: bool
    """False: it had been written before."""
    refused: str = ""


def published_of(row: Any) -> Published:
    """Return what a collected row says."""
    return Published(row.slot, row.at, row.wrote, row.refused)


def standing(mark: SlotMark | None, job: Publishing) -> Standing:
    """Return what the last mark of a slot says of a batch. None: there is no mark."""
    if mark is None:
        return Standing.DUE if job.after == 0 else Standing.BEHIND
    if mark.next > job.batch + 1:
        return Standing.AHEAD
    if mark.next == job.batch + 1:
        return Standing.DONE if mark.staged == job.staged else Standing.OTHER
    return Standing.DUE if mark.next == job.after else Standing.BEHIND


def publish_slots(job: Publishing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Publish the slots whose numbers come in. The task's body, in a Python worker."""
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            done = _writer(job, number).publish(job)
            columns = [[done.slot], [done.at], [done.wrote], [done.refused]]
            types = [pa.int32(), pa.int64(), pa.bool_(), pa.string()]
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["slot", "at", "wrote", "refused"])


_writers: Final[OrderedDict[tuple[str, str], SlotWriter]] = OrderedDict()
"""Of this process, by the settings and the slot; those that were used last are at the end."""


def _writer(job: Publishing, number: int) -> SlotWriter:
    slot = replace(job.slot, number=number)
    key = json.dumps(dict(job.settings), sort_keys=True), slot.transactional_id
    found = _writers.get(key)
    if found is None:
        found = _writers[key] = SlotWriter(job.settings, slot, job.marks)
    _writers.move_to_end(key)
    while len(_writers) > _KEPT:
        _, old = _writers.popitem(last=False)
        old.discard()
    return found


class SlotWriter:
    """A slot, as one process has it.

    Any number of processes may: the one that began last goes on, and the others begin anew or are
    refused.
    """

    def __init__(self, settings: Mapping[str, str], slot: Slot, marks: int) -> None:
        self._settings = settings
        self._slot = slot
        self._marks = marks_topic(slot.topic), slot.partition(marks)
        self._producer: Producer | None = None
        self._open = False
        """Whether a transaction is."""
        self._mark: SlotMark | None = None
        """The last one, as long as the producer is not fenced."""
        self._at = -1
        """Its offset."""
        self._ended = 0
        """In which life of the computation another checkpoint has ended the slot since; 0: none
        has."""

    def publish(self, job: Publishing) -> Published:
        """Publish the slot's part of a batch, or find that it was. Durable when it returns.

        Whatever fails, the next try begins with a new producer and reads the mark anew. Raises what
        Kafka answers, after some tries or when none can help, and OSError when the mark cannot be
        read.
        """
        from confluent_kafka import KafkaException

        for left in reversed(range(_TRIES)):
            try:
                return self._publish(job)
            except (KafkaException, SystemError) as failure:
                self.discard()
                # A fatal error is raised in whatever is called next. Where that is a callback for a
                # row, Python makes a SystemError of it.
                known = isinstance(failure, KafkaException)
                if not left or (known and failure.args[0].name() in _HOPELESS):
                    raise
            except BaseException:
                self.discard()
                raise
        raise AssertionError

    def discard(self) -> None:
        """Let the producer go.

        What it has open is aborted, if it still can; else by the next one of the slot, or by Kafka
        after a minute.
        """
        producer, self._producer = self._producer, None
        if producer is not None and self._open:
            with contextlib.suppress(Exception):
                producer.purge()
                producer.abort_transaction(5.0)
        self._open, self._mark, self._at = False, None, -1

    def _publish(self, job: Publishing) -> Published:
        if self._producer is None or standing(self._mark, job) not in (Standing.DUE, Standing.DONE):
            # What the worker remembers may be old: other workers have had the slot since.
            self.discard()
            self._begin(job)
        found, number = standing(self._mark, job), self._slot.number
        if found is Standing.DUE and self._ended > job.life:
            found = Standing.ENDED
        if found is Standing.DUE:
            self._write(job)
            return Published(number, self._at, wrote=True)
        if found is Standing.DONE:
            return Published(number, self._at, wrote=False)
        said = _REFUSED[found].format(
            what=f"slot {number} of {job.writer} in {self._slot.topic}",
            batch=job.batch,
            marks=self._marks[0],
            found="none" if self._mark is None else f"one of batch {self._mark.next - 1}",
            life=job.life or "unknown",
            newer=self._ended,
        )
        return Published(number, -1, wrote=False, refused=said)

    def _begin(self, job: Publishing) -> None:
        """Take the slot over, and read its last mark."""
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
        """Write a record where the marks are; return its offset when it is acknowledged."""
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
                self._producer.poll(1.0)  # some have to be acknowledged first
            else:
                self._producer.poll(0)
                return

    def _flush(self, failed: Sequence[Any]) -> None:
        from confluent_kafka import KafkaException

        assert self._producer is not None
        left = self._producer.flush(PATIENCE)
        if failed:
            raise KafkaException(failed[0])
        if left:
            msg = f"Kafka has not acknowledged {left} rows for {self._slot.topic} within {PATIENCE:.0f} seconds"
            raise OSError(msg)

    def _step(self, step: str, job: Publishing) -> None:
        if job.probe is not None:
            job.probe(step, job.batch, self._slot.number)


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a staged file, as a producer takes them."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(4096):
            for row in batch.to_pylist():
                if row.get("partition", -1) is None:
                    del row["partition"]
                if "headers" in row:
                    row["headers"] = [(each["key"], each["value"]) for each in row["headers"] or ()]
                yield row


def _last_mark(
    settings: Mapping[str, str], slot: Slot, place: tuple[str, int], end: int
) -> tuple[SlotMark | None, int, int]:
    """Return the last mark of a slot before an offset, and its own offset; None and -1 when there is none. And the life in which the slot was ended since, or 0.

    Raises OSError when it cannot be read so far.
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
            found: tuple[SlotMark | None, int, int] = None, -1, 0
            for message in until(consumer, end, deadline):
                said = parse(message.key(), message.value())
                if isinstance(said, SlotMark) and said.slot == slot:
                    found = said, message.offset() or 0, 0
                elif isinstance(said, Begun) and said.slot == slot and said.ended:
                    found = found[0], found[1], max(found[2], said.life)
            if found[0] is not None or start == first:
                return found
            window *= 16
    finally:
        consumer.close()


def until(consumer: Consumer, end: int, deadline: float) -> Iterator[Message]:
    """Yield what is committed before an offset of the one partition that a consumer is assigned to, when all of that is decided."""
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

    Waits for a leader. Raises what Kafka answers.
    """
    from confluent_kafka import KafkaException

    while True:
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(place, timeout=PATIENCE)
        except KafkaException as error:
            if error.args[0].name() not in _LEADERLESS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return found


def _at(topic: str, partition: int, offset: int | None = None) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition) if offset is None else TopicPartition(topic, partition, offset)


_REFUSED: Final[Mapping[Standing, str]] = {
    Standing.AHEAD: (
        "{what} has published a batch after {batch} ({marks} has {found}): a newer run of this checkpoint goes on, or the checkpoint is older than what it has "
        "written. Stop this run; or start from a new checkpoint, with adopt=True."
    ),
    Standing.OTHER: (
        "{what} has published batch {batch}, from other rows than those that are staged: they were removed and made anew, or two copies of one checkpoint are "
        "running. Start from a new checkpoint, with adopt=True."
    ),
    Standing.BEHIND: (
        "{what} has not published what comes before batch {batch} ({marks} has {found}), though the checkpoint says so: the topic of marks was deleted or cut "
        "off, or the directory of the staged batches was. Start from a new checkpoint, with adopt=True."
    ),
    Standing.ENDED: (
        "{what} may not publish batch {batch}: another checkpoint has taken the computation over, in its life {newer} ({marks} says so), and this run is of life {life}. Stop "
        "this run: what it would write is older than what is promised by now."
    ),
}
