"""A real Kafka for a test: brokers in KRaft mode, topics, and rows by a client library.

`with Kafka(tmp_path / "kafka") as kafka` starts one broker in about six seconds of a core and returns when it serves; all of it is gone at the end. Of
several brokers each votes on who leads the cluster, so any one of three may be killed. Nothing here waits by a clock: a broker says when it
is up, and an answer of the client library ends a call.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.program import Program, java

READY: Final = "Kafka Server started"
ANSWERS_WITHIN: Final = 120.0
"""Seconds for one call. A busy machine may need long; only a defect needs all of it."""

_QUIET: Final = {"log_level": 0}
"""The client library writes each attempt to reach a killed broker to standard error, from threads of its own, into whatever stands there."""

_LOG: Final = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


class Row(NamedTuple):
    value: bytes
    key: bytes | None = None
    partition: int = 0
    time: int | None = None
    """Milliseconds since the epoch; None: the time of writing."""


class Broker(Program):
    """One broker. It survives ``kill`` as a directory; ``start`` goes on from it at the same port."""

    def __init__(self, directory: Path, number: int, voters: Mapping[int, int], settings: Mapping[str, object]) -> None:
        super().__init__(directory)
        self.number = number
        self.port = free_port()
        copies = min(len(voters), 3)
        defaults = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{port}" for number, port in voters.items()),
            "listeners": f"BROKER://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{voters[number]}",
            "advertised.listeners": f"BROKER://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "data",
            "default.replication.factor": copies,
            "min.insync.replicas": max(copies - 1, 1),
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(copies - 1, 1),
            # A test names the topics that it has, and its first consumer does not wait for others.
            "auto.create.topics.enable": "false",
            # Rows come with the times that a test gives them; old ones would go within minutes.
            "log.retention.ms": -1,
            "group.initial.rebalance.delay.ms": 0,
        }
        self._properties = directory / "server.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in {**defaults, **settings}.items()))
        self._log = directory / "log4j2.properties"
        self._log.write_text(_LOG)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def format(self, cluster: str) -> None:
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(self._properties)]
        completed = subprocess.run(
            self._java(*tool), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout

    def begin(self) -> None:
        self.launch(self._server)

    def start(self) -> Self:
        return self.run(self._server, READY)

    @property
    def _server(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties))

    def _java(self, *arguments: str) -> list[str]:
        return java("broker", "-Xmx384m", f"-Dlog4j2.configurationFile={self._log}", *arguments)


class Kafka:
    """Brokers of one cluster, all of which run when the ``with`` begins. ``settings`` are those of every broker, ``clients`` those of whoever asks them."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        settings: Mapping[str, object] | None = None,
        clients: Mapping[str, str] | None = None,
    ) -> None:
        self._clients: dict[str, Any] = {**_QUIET, **(clients or {})}
        voters = {number: free_port() for number in range(1, brokers + 1)}
        self.cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self.brokers = [Broker(directory / str(number), number, voters, settings or {}) for number in voters]
        self._running = ExitStack()
        self._producer: tuple[int, Producer] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as running:
            for broker in self.brokers:
                running.enter_context(broker).format(self.cluster)
                broker.begin()
            for broker in self.brokers:
                broker.wait_for(READY)
            self._running = running.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, **self._clients})

    def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic; its settings have ``_`` for ``.``. Returns when its partitions have leaders."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        copies = min(len(self.brokers), 3)
        topics = [NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=config)]
        self.admin.create_topics(topics, operation_timeout=ANSWERS_WITHIN)[topic].result(ANSWERS_WITHIN)
        # The controller has answered before every broker knows: whoever asks one would be told that there is no such topic.
        eventually(lambda: self.admin.list_topics(topic, ANSWERS_WITHIN).topics[topic].error is None, "it is known")

    def grow(self, topic: str, partitions: int) -> None:
        """Have a topic have so many partitions; returns when each broker tells of them.

        The controller has answered before they know: a producer that asks one of them then refuses a row for a new partition at once.
        """
        self._producer = None
        clients = [AdminClient({"bootstrap.servers": broker.address, **self._clients}) for broker in self.brokers]
        growth = [NewPartitions(topic, partitions)]
        clients[0].create_partitions(growth, operation_timeout=ANSWERS_WITHIN)[topic].result(ANSWERS_WITHIN)
        for client in clients:
            eventually(
                lambda: len(client.list_topics(topic, ANSWERS_WITHIN).topics[topic].partitions) == partitions,  # noqa: B023
                f"{topic} has {partitions} partitions",
            )

    def id_of(self, topic: str) -> str:
        """The id that the topic of this name has now, as the client library writes it. A broker may learn of a new one a little later."""

        def look() -> str:
            try:
                answer = self.admin.describe_topics(TopicCollection([topic]))[topic]
                return str(answer.result(ANSWERS_WITHIN).topic_id)
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
                return ""

        return eventually(look, f"there is {topic}")

    def end(self, topic: str, partition: int = 0) -> int:
        with closing(Consumer({"bootstrap.servers": self.address, **self._clients, "group.id": "kit"})) as consumer:
            place = TopicPartition(topic, partition)
            _, end = consumer.get_watermark_offsets(place, timeout=ANSWERS_WITHIN, cached=False)
            return int(end)

    def delete(self, topic: str) -> None:
        self._producer = None
        self.admin.delete_topics([topic], operation_timeout=ANSWERS_WITHIN)[topic].result(ANSWERS_WITHIN)

    def _producer_with(self, **settings: object) -> Producer:
        options = {
            "acks": "all",
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 200,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        return Producer({"bootstrap.servers": self.address, **self._clients, **options})

    def _reused_producer(self) -> Producer:
        """Return the producer that ``put`` reuses until the broker restarts: a new producer needs half a second for its id."""
        starts = self.brokers[0].starts
        if self._producer is None or self._producer[0] != starts:
            self._producer = starts, self._producer_with()
        return self._producer[1]

    def put(self, topic: str, rows: Iterable[Row | bytes | str], **settings: object) -> None:
        failed: list[object] = []

        def delivered(error: object, _: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = self._producer_with(**settings) if settings or len(self.brokers) > 1 else self._reused_producer()
        for item in rows:
            row = item if isinstance(item, Row) else Row(item.encode() if isinstance(item, str) else item)
            stamped: dict[str, Any] = {} if row.time is None else {"timestamp": row.time}
            producer.produce(topic, row.value, row.key, row.partition, on_delivery=delivered, **stamped)
        unsent = producer.flush(ANSWERS_WITHIN)
        assert not unsent, f"{unsent} rows were not acknowledged: {failed}"
        assert not failed, failed

    def rows(self, topic: str, *, committed: bool = True) -> list[Row]:
        """All rows that are there now, partition by partition: those of committed transactions, or all up to the end of the log."""
        rows: list[Row] = []
        isolation = "read_committed" if committed else "read_uncommitted"
        options = {
            "group.id": "kit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # by default, half a second before a partition is said to end
            "isolation.level": isolation,
        }
        # A consumer's word for the end, by its isolation: after it nothing was there when the partition was asked.
        with closing(
            Consumer({"bootstrap.servers": self.address, **self._clients, "auto.offset.reset": "earliest", **options})
        ) as consumer:
            partitions = consumer.list_topics(topic, ANSWERS_WITHIN).topics[topic].partitions
            for partition in partitions:
                consumer.assign([TopicPartition(topic, partition, 0)])
                rows += _to_the_end(consumer)
        return rows


def _to_the_end(consumer: Consumer) -> Iterable[Row]:
    while True:
        message = consumer.poll(ANSWERS_WITHIN)
        assert message is not None, "the broker has not answered"
        error = message.error()
        if error is None:
            key, value, partition = message.key(), message.value(), message.partition()
            yield Row(value or b"", key, partition or 0, message.timestamp()[1])
        elif error.name() == "_PARTITION_EOF":
            return
        else:
            raise KafkaException(error)
