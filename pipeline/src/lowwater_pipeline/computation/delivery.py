"""Weak productions: rows that a task sends to Kafka before its batch is durable (MillWheel 6.1.3).

A batch that runs again sends its rows again. So each row has an id, the same whenever the batch is
computed, and readers drop copies. Rows that no broker has acknowledged within the patience go into
the version of the batch, the *outbox* of the key range. The batch ends without them (MillWheel's
figure 11). The next batch sends them again, and the low watermark does not pass them until then.
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
from lowwater_spark.sources.kafka.client import client_settings, confluent
from lowwater_spark.sources.kafka.marks import marks_topic

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
"""Name of the message header that holds the id of the row, as text."""

_STAMP: Final = "stamp"
_PLACE: Final = "place"
_SINCE: Final = "since"

_MOST: Final = 100_000
"""Greatest number of unacknowledged rows that a key range stores."""

_PURGE_SECONDS: Final = 5.0
"""Seconds in which a producer must drop its purged messages."""

_ANSWERS_WITHIN: Final = 10.0
"""Seconds in which the brokers must list their topics."""

_PASSING: Final = frozenset(
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
"""Kafka's errors after which the same message may be delivered later."""

_PRODUCERS: Final = 4
"""Greatest number of producers of a worker process; each has a connection to each broker."""


def settings_of(options: Mapping[str, object]) -> dict[str, str]:
    """Return Kafka's options, named as in Spark, as settings of the client library.

    Raises ValueError; Unsupported for an option that would break exactness.
    """
    return client_settings(options, "productions = Weak(...)")


def check_topics(settings: Mapping[str, str], topics: Sequence[str]) -> None:
    """Check that rows can be sent into these topics. One round trip.

    Raises Unsupported for a missing topic, and for one that ``batch.write_kafka`` has written: its
    readers count by marks, which weak productions do not leave. OSError when no broker answers.
    """
    library = confluent()
    try:
        existing = library.admin.AdminClient(dict(settings)).list_topics(timeout=_ANSWERS_WITHIN).topics
    except library.KafkaException as failure:
        msg = f"Kafka does not say which topics there are, at {settings['bootstrap.servers']}: {failure.args[0]}"
        raise OSError(msg) from failure
    for topic in topics:
        if topic not in existing:
            raise Unsupported(
                f"productions = Weak(...) into the topic {topic}, which is not there,",
                "how many partitions and replicas it should have only you know",
                f"Make it: kafka-topics.sh --bootstrap-server {settings['bootstrap.servers']} --create --topic {topic} --partitions 8 --replication-factor 3 "
                "--config min.insync.replicas=2 --config unclean.leader.election.enable=false",
            )
        if marks_topic(topic) in existing:
            raise Unsupported(
                f"productions = Weak(...) into the topic {topic}, which batch.write_kafka has written,",
                f"its readers may go by {marks_topic(topic)}, in which weak productions leave no marks",
                "Take another topic, or productions = Strong().",
            )


class Waiting(NamedTuple):
    """Facts about the unsent rows of one output, known without reading them."""

    oldest: int
    """Least timestamp of the rows, microseconds."""
    since: int
    """Clock of the batch that produced the first of them, microseconds; MIN when unknown."""
    output: int
    """Position of the output in the computation's declaration."""


class Producer(NamedTuple):
    """A key that has produced rows."""

    key: Any
    place: int
    """Place of the key in the key space: a signed hash."""
    end: int
    """Number of productions of the batch after the key's turn."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Settings by which a batch sends weak productions. Executors get it in the closure."""

    computation: str
    topics: Mapping[str, str]
    """Topic of each output that is sent."""
    settings: Mapping[str, str]
    """Settings of Kafka's client."""
    patience: float
    """Longest time for which a key range waits for acknowledgements in a batch, seconds."""
    batch: str
    """Name of the batch, unique among all checkpoints."""

    def messages(
        self, outputs: Outputs, productions: Sequence[Production], producers: Sequence[Producer]
    ) -> pa.Table | None:
        """Return the messages of the productions; None without any. O(productions).

        ``producers`` are in the order of the productions. The table has a row for each message:
        ``id``, ``output``, ``key``, ``value``, ``place`` of the key, and ``stamp``, the row's
        timestamp in microseconds.
        """
        import pyarrow as pa

        parts = []
        begun = 0
        owners: list[Producer] = []
        for producer in producers:
            owners += [producer] * (producer.end - begun)
            begun = producer.end
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
        """Return the ids of rows: hashes of batch, key, output, the row, and a count of equal rows.

        The row is part of its id, because code may be mended between two runs of a batch: then a
        different row must not get the same id.
        """
        repeats: Counter[bytes] = Counter()
        ids: list[str] = []
        for key, value in zip(keys, values, strict=True):
            content = [self.computation, self.batch, output, type(key).__name__, _bytes(key).hex()]
            hashed = blake2b(json.dumps(content).encode() + value, digest_size=16)
            number = repeats[hashed.digest()]
            repeats[hashed.digest()] += 1
            hashed.update(b"/%d" % number)
            ids.append(hashed.hexdigest())
        return ids

    def send(self, messages: pa.Table) -> pa.Table | None:
        """Send messages; return those without an acknowledgement in time, None when there are none.

        A returned message may have been delivered all the same. Raises OSError when more are left
        than a key range stores, or when Kafka refuses one for good.
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
            producer.flush(_PURGE_SECONDS)
        if refused:
            raise OSError(refused[0])
        unacknowledged = int(waits.sum())
        if unacknowledged > _MOST:
            msg = (
                f"{unacknowledged} rows of a key range of {self.computation} wait for Kafka, and it keeps {_MOST}: the brokers at {self.settings['bootstrap.servers']} acknowledge nothing, or less "
                "than comes within patience=, which may be too short, or ranges= too few. The batch is run again by the next start, and nothing is lost"
            )
            raise OSError(msg)
        return messages.filter(pa.array(waits)).combine_chunks() if unacknowledged else None

    def _produce(self, producer: Any, message: Mapping[str, Any], delivered: Any, deadline: float) -> bool:
        """Hand a message to the producer; False when its queue stays full until the deadline."""
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
                producer.poll(0.05)  # makes room: handles acknowledgements
            except confluent().KafkaException as failure:
                raise OSError(self._refusal(message, failure.args[0])) from failure
            else:
                producer.poll(0)
                return True

    def _delivered(
        self, waits: NDArray[np.bool_], refused: list[str], i: int, message: Mapping[str, Any], error: Any, _: object
    ) -> None:
        """Note that a message was delivered, or why Kafka refused it."""
        if error is None:
            waits[i] = False
        elif error.name() not in _PASSING:
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
    """Return messages with the clock by which they were produced; an earlier clock stays."""
    import pyarrow as pa

    if _SINCE in messages.column_names:
        return messages
    return messages.append_column(_SINCE, pa.array(np.full(messages.num_rows, now)))


def waiting_of(messages: pa.Table, outputs: Sequence[str]) -> list[tuple[pa.Table, Waiting]]:
    """Return messages by output, with their facts; ``outputs`` are the declared ones, in order."""
    import pyarrow.compute as pc

    by_output: list[tuple[pa.Table, Waiting]] = []
    for number, output in enumerate(outputs):
        own = messages.filter(pc.equal(messages["output"], output)).combine_chunks()
        if own.num_rows:
            by_output.append((own, Waiting(least_stamp(own), pc.min(own[_SINCE]).as_py(), number)))
    return by_output


def of_places(messages: pa.Table, low: int, high: int) -> pa.Table:
    """Return the messages of keys whose places are in [low, high)."""
    import pyarrow as pa

    places = np.asarray(messages[_PLACE])
    return messages.filter(pa.array((places >= low) & (places <= high - 1)))


def _bytes(key: Any) -> bytes:
    """Return the key of a message for a computation's key."""
    return key if isinstance(key, bytes) else str(key).encode()


_producers: Final[OrderedDict[str, Any]] = OrderedDict()
"""Producers of this process by their settings, the least recently used first."""


def _producer(settings: Mapping[str, str]) -> Any:
    key = json.dumps(dict(settings), sort_keys=True)
    if key not in _producers:
        # The producer is not idempotent, so that it may send a message twice and in another order.
        # Readers drop copies by the id of each message.
        _producers[key] = confluent().Producer({**settings, "acks": "all", "linger.ms": 1})
    _producers.move_to_end(key)
    while len(_producers) > _PRODUCERS:
        _producers.popitem(last=False)
    return _producers[key]
