"""Weak productions: rows that a task sends to Kafka while its batch runs, before the batch is durable (MillWheel 6.1.3).

A batch that runs again sends again. So each row has an id, the same whenever the batch is computed, and who reads drops copies. What no broker has acknowledged within the patience goes into the version of
the batch, the *outbox* of the key range. The batch ends without it (MillWheel's figure 11); the next one sends it again, and the low watermark does not pass it until it is acknowledged.
"""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from lowwater_pipeline.computation.productions import Outputs, to_json
from lowwater_pipeline.computation.turn import Production
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.kafka_client import client_settings, confluent
from lowwater_spark.sources.kafka_marks import marks_topic

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = [
    "HEADER",
    "Delivery",
    "Producer",
    "Waiting",
    "check_topics",
    "dated",
    "least_stamp",
    "of_places",
    "settings_of",
    "waiting_of",
]

HEADER: Final = "lowwater-id"
"""The header of a message that has the id of its row, as text."""

_STAMP: Final = "stamp"
_PLACE: Final = "place"
_SINCE: Final = "since"

_MOST: Final = 100_000
"""Rows that a key range keeps for later, at most."""

_LETTING_GO: Final = 5.0
"""Seconds that a producer has to forget what it was told to."""

_ANSWERS_WITHIN: Final = 10.0
"""Seconds that the brokers have to say which topics there are."""

_LATER: Final = frozenset(
    {
        "BROKER_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN_LEADER_EPOCH",
        "_ALL_BROKERS_DOWN",
        "_MSG_TIMED_OUT",
        "_PURGE_INFLIGHT",
        "_PURGE_QUEUE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
    }
)
"""What the client says of a message that another time may be delivered."""

_KEPT: Final = 4
"""Producers that a worker keeps; each has a connection to each broker."""


def settings_of(options: Mapping[str, object]) -> dict[str, str]:
    """Return Kafka's options, as Spark names them, for the client library.

    Raises ValueError, and Unsupported for what exactness stands on.
    """
    return client_settings(options, "productions = Weak(...)")


def check_topics(settings: Mapping[str, str], topics: Sequence[str]) -> None:
    """Refuse topics that rows cannot be sent into.

    Raises Unsupported, and OSError when no broker answers. One round trip.
    """
    library = confluent()
    try:
        there = library.admin.AdminClient(dict(settings)).list_topics(timeout=_ANSWERS_WITHIN).topics
    except library.KafkaException as failure:
        msg = f"Kafka does not say which topics there are, at {settings['bootstrap.servers']}: {failure.args[0]}"
        raise OSError(msg) from failure
    for topic in topics:
        if topic not in there:
            raise Unsupported(
                f"productions = Weak(...) into the topic {topic}, which is not there,",
                "how many partitions and replicas it should have only you know",
                f"Make it: kafka-topics.sh --bootstrap-server {settings['bootstrap.servers']} --create --topic {topic} --partitions 8 --replication-factor 3 "
                "--config min.insync.replicas=2 --config unclean.leader.election.enable=false",
            )
        if marks_topic(topic) in there:
            raise Unsupported(
                f"productions = Weak(...) into the topic {topic}, which batch.write_kafka has written,",
                f"its readers may go by {marks_topic(topic)}, in which weak productions leave no marks",
                "Take another topic, or productions = Strong().",
            )


class Waiting(NamedTuple):
    """What is known of the rows of one output that wait, without reading them."""

    oldest: int
    """The least of their timestamps, microseconds."""
    since: int
    """The clock of the batch that has produced the first of them, microseconds; MIN when it is not
    known."""
    output: int
    """Its place in what the computation declares."""


class Producer(NamedTuple):
    """A key that has produced."""

    key: Any
    place: int
    """Where the key is in the key space: a signed hash."""
    end: int
    """How many productions there are after its turn."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the weak productions of a batch are sent. Travels in the closure."""

    computation: str
    topics: Mapping[str, str]
    """Of each output that is sent."""
    settings: Mapping[str, str]
    """Of Kafka's client."""
    patience: float
    """Seconds that a key range waits for acknowledgements, in each batch."""
    batch: str
    """What tells the batch from every other one: of another checkpoint, too."""

    def messages(
        self, outputs: Outputs, productions: Sequence[Production], producers: Sequence[Producer]
    ) -> pa.Table | None:
        """Return what is to be sent of the productions, None for nothing. O(productions).

        ``producers`` are in the order of the productions. The table has a row for each message:
        ``id``, ``output``, ``key``, ``value``, ``place``, the key's, and ``stamp``, the row's
        timestamp in microseconds.
        """
        import pyarrow as pa

        parts = []
        begun = 0
        owners: list[Producer] = []
        for each in producers:
            owners += [each] * (each.end - begun)
            begun = each.end
        for output in self.topics:
            at = [i for i, (name, _, _) in enumerate(productions) if name == output]
            if not at:
                continue
            columns = outputs.arrays(output, [productions[i][1] for i in at])
            values = [
                to_json(dict(zip(columns, row, strict=True))).encode()
                for row in zip(*map(pa.Array.to_pylist, columns.values()), strict=True)
            ]
            keys = [owners[i].key for i in at]
            parts.append(
                pa.table(
                    {
                        "id": pa.array(self.ids(output, keys, values), pa.large_string()),
                        "output": pa.array([output] * len(at), pa.large_string()),
                        "key": pa.array(map(_bytes, keys), pa.large_binary()),
                        "value": pa.array(values, pa.large_binary()),
                        _PLACE: pa.array([owners[i].place for i in at], pa.int64()),
                        _STAMP: pa.array([productions[i][2] for i in at], pa.int64()),
                    }
                )
            )
        return pa.concat_tables(parts).combine_chunks() if parts else None

    def ids(self, output: str, keys: Sequence[Any], values: Sequence[bytes]) -> list[str]:
        """Return the ids of rows: of the batch, the key, the output and the row itself, and of equal ones the how many-th it is. So code that was mended between two attempts gives no row the id of another."""
        seen: Counter[bytes] = Counter()
        found: list[str] = []
        for key, value in zip(keys, values, strict=True):
            told = [self.computation, self.batch, output, type(key).__name__, _bytes(key).hex()]
            each = blake2b(json.dumps(told).encode() + value, digest_size=16)
            number = seen[each.digest()]
            seen[each.digest()] += 1
            each.update(b"/%d" % number)
            found.append(each.hexdigest())
        return found

    def send(self, messages: pa.Table) -> pa.Table | None:
        """Send messages, and return those that no broker has acknowledged in time; None when all are. A message may have been delivered all the same.

        Raises OSError when more are left than a key range keeps, or when Kafka refuses one for good.
        """
        import pyarrow as pa

        waits = np.ones(messages.num_rows, np.bool_)
        refused: list[str] = []
        producer, deadline = _producer(self.settings), time.monotonic() + self.patience
        for i, message in enumerate(messages.to_pylist()):
            if not self._produce(producer, message, partial(self._delivered, waits, refused, i, message), deadline):
                break
        producer.flush(max(0.0, deadline - time.monotonic()))
        if len(producer):
            producer.purge(in_queue=True, in_flight=True)
            producer.flush(_LETTING_GO)
        if refused:
            raise OSError(refused[0])
        left = int(waits.sum())
        if left > _MOST:
            msg = (
                f"{left} rows of a key range of {self.computation} wait for Kafka, and it keeps {_MOST}: the brokers at {self.settings['bootstrap.servers']} acknowledge nothing, or less "
                "than comes within patience=, which may be too short, or ranges= too few. The batch is run again by the next start, and nothing is lost"
            )
            raise OSError(msg)
        return messages.filter(pa.array(waits)).combine_chunks() if left else None

    def _produce(self, producer: Any, message: Mapping[str, Any], delivered: Any, deadline: float) -> bool:
        """Hand a message to the producer; False when it takes none until the deadline."""
        while True:
            try:
                producer.produce(
                    self.topics[message["output"]],
                    key=message["key"],
                    value=message["value"],
                    headers=[(HEADER, message["id"])],
                    on_delivery=delivered,
                )
            except BufferError:
                if time.monotonic() >= deadline:
                    return False
                producer.poll(0.05)  # some have to be acknowledged first
            except confluent().KafkaException as failure:
                raise OSError(self._refusal(message, failure.args[0])) from failure
            else:
                producer.poll(0)
                return True

    def _delivered(
        self, waits: NDArray[np.bool_], refused: list[str], i: int, message: Mapping[str, Any], error: Any, _: object
    ) -> None:
        """Take what has become of a message."""
        if error is None:
            waits[i] = False
        elif error.name() not in _LATER:
            refused.append(self._refusal(message, error))

    def _refusal(self, message: Mapping[str, Any], error: object) -> str:
        return (
            f"Kafka does not take a row of {self.computation}'s output {message['output']} into the topic {self.topics[message['output']]}, of {len(message['value'])} bytes: {error}. If it is too large, produce "
            "smaller rows, or raise kafka.message.max.bytes in options= and max.message.bytes of the topic. The batch is run again by the next start, and nothing is lost"
        )


def least_stamp(messages: pa.Table) -> int:
    """Return the least timestamp of the rows of messages, microseconds."""
    import pyarrow.compute as pc

    least: int = pc.min(messages[_STAMP]).as_py()
    return least


def dated(messages: pa.Table, now: int) -> pa.Table:
    """Return messages with the clock by which they were produced; those that have one keep it."""
    import pyarrow as pa

    if _SINCE in messages.column_names:
        return messages
    return messages.append_column(_SINCE, pa.array(np.full(messages.num_rows, now)))


def waiting_of(messages: pa.Table, outputs: Sequence[str]) -> list[tuple[pa.Table, Waiting]]:
    """Return messages by their output, each with what is known of them; ``outputs`` are those that the computation declares."""
    import pyarrow.compute as pc

    found: list[tuple[pa.Table, Waiting]] = []
    for number, output in enumerate(outputs):
        own = messages.filter(pc.equal(messages["output"], output)).combine_chunks()
        if own.num_rows:
            found.append((own, Waiting(least_stamp(own), pc.min(own[_SINCE]).as_py(), number)))
    return found


def of_places(messages: pa.Table, low: int, high: int) -> pa.Table:
    """Return the messages of keys whose places are from one to before another."""
    import pyarrow as pa

    places = np.asarray(messages[_PLACE])
    return messages.filter(pa.array((places >= low) & (places <= high - 1)))


def _bytes(key: Any) -> bytes:
    """Return a key as the key of a message."""
    return key if isinstance(key, bytes) else str(key).encode()


_producers: Final[OrderedDict[str, Any]] = OrderedDict()
"""Of this process, by their settings; those that were used last are at the end."""


def _producer(settings: Mapping[str, str]) -> Any:
    key = json.dumps(dict(settings), sort_keys=True)
    if key not in _producers:
        # Copies have ids, so the order in which brokers get what is sent twice decides nothing.
        _producers[key] = confluent().Producer({**settings, "acks": "all", "linger.ms": 1})
    _producers.move_to_end(key)
    while len(_producers) > _KEPT:
        _producers.popitem(last=False)
    return _producers[key]
