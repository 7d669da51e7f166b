"""A Kafka cluster asked by Kafka's own admin client, in the JVM of Spark's driver.

The client is there when the session has Spark's Kafka connector (``spark.jars``, ``--packages``).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.base import Partition, Vector
from lowwater_spark.sources.kafka.client import java_settings
from lowwater_spark.sources.kafka.cluster import BrokerView, Identity
from lowwater_spark.sources.kafka.marks import Begun, SlotMark, parse
from lowwater_spark.sources.kafka.paced import PACE

__all__ = ["KafkaAdmin"]

Address = tuple[str, int]

_PREFIX: Final = "kafka."

_PATIENCE: Final[Mapping[str, str]] = {
    "default.api.timeout.ms": "10000",
    "request.timeout.ms": "5000",
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "500",
}
"""Time limits in milliseconds; a look on the query's clock waits for the answer. They replace the
source's own settings, which are for its readers: Kafka's client refuses a limit per request that is
above the limit per call.
"""

_DIRECT: Final = 5000
"""Milliseconds in which one broker must answer."""

_IDS: Final = 10
"""First version of the metadata request whose answer has the topics' ids."""

_FENCED: Final = 4
"""Version of the OffsetsForLeaderEpoch request that a leader of another epoch refuses."""

_READER: Final[Mapping[str, str]] = {
    "allow.auto.create.topics": "false",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "fetch.max.wait.ms": "10",  # close() waits for the answer to a fetch that is under way
    "isolation.level": "read_uncommitted",
}
"""Settings of the consumer that reads marks, in no group."""

_RECENT: Final = 100
"""Number of records that are read of a partition; each costs some round trips to the JVM."""

_LIMIT: Final = 30
"""Seconds to wait for an answer; the client itself gives up long before."""

_clients: Final[dict[tuple[int, frozenset[tuple[str, str]]], Any]] = {}
"""Admin clients by JVM and settings; each has a thread and connections, and is never closed."""


class _Direct:
    """Sends requests to single brokers of one cluster over lasting connections.

    The caller holds ``lock``.
    """

    def __init__(self, jvm: Any, properties: Any) -> None:
        self._jvm = jvm
        self._properties = properties
        self._network: Any = None
        self.lock = threading.Lock()
        self.nodes: dict[int, tuple[Address, Any]] = {}
        """Address and client node of each broker that was up at the last listing; empty: the
        brokers must be listed."""
        self.silent: set[int] = set()
        """Brokers that did not answer the last request."""

    def ask(self, number: int, request: Any, kind: str) -> dict[str, Any]:
        """Return a broker's answer to a request of this kind, as JSON values.

        Raises OSError, and the errors of the client.
        """
        if number not in self.nodes:
            msg = f"broker {number} is not up"
            raise OSError(msg)
        kafka, node = self._jvm.org.apache.kafka, self.nodes[number][1]
        clients, clock = kafka.clients.NetworkClientUtils, kafka.common.utils.Time.SYSTEM
        # poll() notices a connection that broke since the last request, as after a restart of the
        # broker: the request would fail in it. The lines below wait until the client may connect
        # again.
        self._client.poll(0, clock.milliseconds())
        if self._client.connectionFailed(node):
            clock.sleep(self._client.connectionDelay(node, clock.milliseconds()))
        if not clients.awaitReady(self._client, node, clock, _DIRECT):
            msg = f"broker {number} does not answer"
            raise OSError(msg)
        answered = True
        sent = self._client.newClientRequest(node.idString(), request, clock.milliseconds(), answered)
        answer = clients.sendAndReceive(self._client, sent, clock)
        converter = getattr(kafka.common.message, f"{kind}ResponseDataJsonConverter")
        written = converter.write(answer.responseBody().data(), answer.requestHeader().apiVersion())
        content: dict[str, Any] = json.loads(written.toString())
        return content

    @property
    def _client(self) -> Any:
        if self._network is None:
            kafka = self._jvm.org.apache.kafka
            self._network = kafka.clients.ClientUtils.createNetworkClient(
                kafka.clients.admin.AdminClientConfig(self._properties),
                "lowwater",
                kafka.common.metrics.Metrics(),
                "lowwater",
                kafka.common.utils.LogContext(),
                kafka.clients.ApiVersions(),
                kafka.common.utils.Time.SYSTEM,
                1,
                _DIRECT,
                kafka.clients.ManualMetadataUpdater(),
                kafka.clients.DefaultHostResolver(),
            )
        return self._network


_directs: Final[dict[tuple[int, frozenset[tuple[str, str]]], _Direct]] = {}
"""Direct connections by JVM and settings, as in :data:`_clients`."""


class KafkaAdmin:
    """The cluster that a source's options name.

    The first call connects. Each call costs a round trip or two.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        settings = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
        # ``PACE`` is an option that read_kafka() sets. Its other settings are those of the library
        # confluent-kafka. Some have other names in Kafka's client of the JVM, which would ignore
        # them: without those of a user and password, for example, it could not log in.
        self.properties = {**(java_settings(settings) if PACE in options else settings), **_PATIENCE}
        """Properties of the JVM's client."""
        self._key = id(jvm), frozenset(self.properties.items())

    @property
    def _address(self) -> str:
        return str(self.properties.get("bootstrap.servers"))

    def views(self, topics: tuple[str, ...], enough: int) -> list[BrokerView]:
        """Ask one broker after the other until ``enough`` have answered; return the answers.

        A broker that did not answer is asked last from then on. Raises OSError.
        """
        what = f"by each of its brokers which topics {', '.join(topics)} are"
        with self._direct() as direct:
            if not direct.nodes:
                with self._call(what):
                    direct.nodes = self._nodes()
            # Two broker numbers may have one address. One broker answers there, and its answer must
            # not count twice.
            addresses = {address: number for number, (address, _) in sorted(direct.nodes.items(), reverse=True)}
            listed = {number: address for number, (address, _) in direct.nodes.items()}
            answers: list[BrokerView] = []
            silent = ""
            for number in sorted(addresses.values(), key=lambda number: (number in direct.silent, number)):
                if len(answers) == enough:
                    break
                try:
                    view, others = self._view(direct, number, topics)
                except OSError as failure:
                    silent = f"; {failure}"
                    direct.silent.add(number)
                else:
                    direct.silent.discard(number)
                    answers.append(view)
                    if not others.items() <= listed.items():
                        direct.nodes = {}
            if len(answers) < enough or not direct.nodes:
                moved = "" if direct.nodes else "; brokers were added or moved since they were listed"
                direct.nodes = {}
                msg = f"Kafka at {self._address} does not tell {what}: {len(answers)} of its brokers answer, and {enough} must{silent}{moved}"
                raise OSError(msg)
            return answers

    def _nodes(self) -> dict[int, tuple[Address, Any]]:
        nodes = self._answer(self._client().describeCluster().nodes()).toArray()
        return {int(node.id()): ((str(node.host()), int(node.port())), node) for node in nodes}

    def _view(self, direct: _Direct, number: int, topics: tuple[str, ...]) -> tuple[BrokerView, dict[int, Address]]:
        with self._call(f"by broker {number} which topics {', '.join(topics)} are"):
            requests, create = self._jvm.org.apache.kafka.common.requests, False
            request = requests.MetadataRequest.Builder(_java_list(self._jvm, topics), create, _IDS)
            answer = direct.ask(number, request, "Metadata")
            brokers = {broker["nodeId"]: (broker["host"], broker["port"]) for broker in answer["brokers"]}
            return BrokerView.parse(answer), brokers

    def epoch_ends(self, epochs: Mapping[Partition, int], now: Identity) -> Vector:
        """Return where the rows of an epoch and of earlier ones end in each leader's log.

        Raises OSError. Costs a request for each partition.
        """
        with self._direct() as direct:
            return {place: self._epoch_end(direct, place, epoch, now) for place, epoch in epochs.items()}

    def _epoch_end(self, direct: _Direct, place: Partition, epoch: int, now: Identity) -> int:
        with self._call(f"what {place} still has of the epoch {epoch} of its leaders"):
            partition = {"partition": place.number, "currentLeaderEpoch": now.epochs[place], "leaderEpoch": epoch}
            content = {"replicaId": -1, "topics": [{"topic": place.topic, "partitions": [partition]}]}
            kafka = self._jvm.org.apache.kafka.common
            tree = self._jvm.com.fasterxml.jackson.databind.ObjectMapper().readTree(json.dumps(content))
            data = kafka.message.OffsetForLeaderEpochRequestDataJsonConverter.read(tree, _FENCED)
            request = kafka.requests.OffsetsForLeaderEpochRequest.Builder.forConsumer(data.topics())
            [topic] = direct.ask(now.leaders[place], request, "OffsetForLeaderEpoch")["topics"]
            [answer] = topic["partitions"]
            if answer["errorCode"] or answer["endOffset"] < 0:
                msg = f"its leader does not know (error {answer['errorCode']})"
                raise OSError(msg)
            return int(answer["endOffset"])

    def ids(self, topics: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
        """Return the ids of the cluster and of the topics, as any one broker gives them.

        Raises OSError, and Unsupported without Kafka's client.
        """
        with self._call(f"which topics {', '.join(topics)} are"):
            client = self._client()
            cluster = self._answer(client.describeCluster().clusterId())
            described = self._answer(client.describeTopics(_java_list(self._jvm, topics)).allTopicNames())
            return str(cluster or ""), {topic: str(described.get(topic).topicId().toString()) for topic in topics}

    def existing(self, topics: tuple[str, ...]) -> frozenset[str]:
        """Return those of the topics that exist. Raises OSError. Costs a listing of all names."""
        with self._call(f"whether there is {', '.join(topics)}"):
            names = self._answer(self._client().listTopics().names())
            return frozenset(topic for topic in topics if names.contains(topic))

    def settings(self, topics: tuple[str, ...], names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        """Return the values in force of some settings, by topic and setting. Raises OSError."""
        with self._call(f"which settings {', '.join(topics)} have"):
            config = self._jvm.org.apache.kafka.common.config.ConfigResource
            places = {topic: config(config.Type.TOPIC, topic) for topic in topics}
            configs = self._answer(self._client().describeConfigs(_java_list(self._jvm, places.values())).all())
            return {
                topic: {name: str(configs.get(place).get(name).value()) for name in names}
                for topic, place in places.items()
            }

    def beginnings(self, partitions: list[Partition]) -> Vector:
        """Return the first offset that each partition still has. Raises OSError."""
        return self._offsets("earliest", "READ_UNCOMMITTED", partitions, {})

    def ends(self, partitions: list[Partition], epochs: Mapping[Partition, int], *, committed: bool) -> Vector:
        """Return each partition's high watermark, or with ``committed`` its last stable offset.

        Raises OSError, also when a leader of another epoch than ``epochs`` has answered.
        """
        return self._offsets("latest", "READ_COMMITTED" if committed else "READ_UNCOMMITTED", partitions, epochs)

    def _offsets(
        self, which: str, isolation: str, partitions: list[Partition], epochs: Mapping[Partition, int]
    ) -> Vector:
        with self._call("where its partitions end"):
            kafka = self._jvm.org.apache.kafka
            specs = self._jvm.java.util.HashMap()
            for place in partitions:
                specs.put(
                    kafka.common.TopicPartition(place.topic, place.number),
                    getattr(kafka.clients.admin.OffsetSpec, which)(),
                )
            level = getattr(kafka.common.IsolationLevel, isolation)
            listed = self._client().listOffsets(specs, kafka.clients.admin.ListOffsetsOptions(level))
            offsets = {}
            for entry in self._answer(listed.all()).entrySet():
                place = Partition(str(entry.getKey().topic()), int(entry.getKey().partition()))
                epoch, expected = int(entry.getValue().leaderEpoch().orElse(-1)), epochs.get(place, -1)
                if expected not in (-1, epoch):
                    msg = f"a leader of epoch {epoch} gave the end of {place}, and the brokers say that one of epoch {expected} leads it"
                    raise OSError(msg)
                offsets[place] = int(entry.getValue().offset())
            return offsets

    def holder(self, place: Partition, since: int) -> str:
        """Return the transactional id of the transaction open in a partition since an offset.

        Empty when the transaction has ended. Raises OSError.
        """
        with self._call(f"who has a transaction open in {place}"):
            kafka, client = self._jvm.org.apache.kafka, self._client()
            partition = kafka.common.TopicPartition(*place)
            described = client.describeProducers(_java_list(self._jvm, [partition])).partitionResult(partition)
            producers = [
                int(producer.producerId())
                for producer in self._answer(described).activeProducers()
                if producer.currentTransactionStartOffset().orElse(-1) == since
            ]
            if not producers:
                return ""
            # Kafka's client takes ids as java.lang.Long only, and py4j makes an Integer of a small
            # number. So Jackson makes the list of ids from its text.
            long = self._jvm.java.lang.Class.forName("java.lang.Long")
            ids = (
                self._jvm.com.fasterxml.jackson.databind.ObjectMapper().readerForListOf(long).readValue(str(producers))
            )
            listed = client.listTransactions(kafka.clients.admin.ListTransactionsOptions().filterProducerIds(ids))
            return ", ".join(sorted(str(producer.transactionalId()) for producer in self._answer(listed.all())))

    def marks(self, topics: tuple[str, ...]) -> list[SlotMark | Begun]:
        """Return the last record of each key in topics of marks, open transactions included.

        Raises OSError. Only the last hundred records of a partition are read: few slots share one,
        and each slot writes two records in a batch.
        """
        with self._call(f"who has left marks in {', '.join(topics)}"):
            return [mark for topic in topics for mark in self._last(topic)]

    def _last(self, topic: str) -> list[SlotMark | Begun]:
        kafka = self._jvm.org.apache.kafka
        last: dict[bytes, bytes | None] = {}
        with self._reader() as consumer:
            places = _java_list(
                self._jvm,
                [kafka.common.TopicPartition(topic, entry.partition()) for entry in consumer.partitionsFor(topic)],
            )
            consumer.assign(places)
            first = consumer.beginningOffsets(places)
            ends = {entry.getKey(): int(entry.getValue()) for entry in consumer.endOffsets(places).entrySet()}
            for place, end in ends.items():
                consumer.seek(place, max(int(first.get(place)), end - _RECENT))
            last.update(self._records(consumer, ends))
        return [mark for key, value in last.items() if (mark := parse(key, value)) is not None]

    def marks_between(self, since: Vector, ends: Vector) -> list[SlotMark | Begun]:
        """Return all records between two vectors of offsets of topics of marks.

        Raises OSError, also when a record is gone, and ValueError for a mark of a newer release.
        """
        with self._call("what its writers have marked"):
            partition_class = self._jvm.org.apache.kafka.common.TopicPartition
            places = {partition_class(*place): place for place, end in ends.items() if since[place] < end}
            with self._reader(**{"auto.offset.reset": "none"}) as consumer:
                consumer.assign(_java_list(self._jvm, places))
                for partition, place in places.items():
                    consumer.seek(partition, since[place])
                records = [*self._records(consumer, {partition: ends[place] for partition, place in places.items()})]
            if any(value is None for _, value in records):
                msg = "a mark of a writer was removed, so the next look waits for the ends of the partitions"
                raise OSError(msg)
            return [mark for key, value in records if (mark := parse(key, value)) is not None]

    @contextlib.contextmanager
    def _reader(self, **settings: str) -> Iterator[Any]:
        """Yield a consumer in no group that also reads open and aborted transactions."""
        kafka = self._jvm.org.apache.kafka
        bytes_ = kafka.common.serialization.ByteArrayDeserializer
        properties = self._properties()
        for name, value in {**_READER, **settings}.items():
            properties.put(name, value)
        with contextlib.closing(kafka.clients.consumer.KafkaConsumer(properties, bytes_(), bytes_())) as consumer:
            yield consumer

    def _records(self, consumer: Any, ends: Mapping[Any, int]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of the records before the ends of a consumer's partitions.

        Raises OSError after :data:`_LIMIT` seconds.
        """
        deadline = time.monotonic() + _LIMIT
        pause = self._jvm.java.time.Duration.ofMillis(500)
        while any(int(consumer.position(place)) < end for place, end in ends.items()):
            records = consumer.poll(pause).iterator()
            while records.hasNext():
                record = records.next()
                yield record.key() or b"", record.value()
            if time.monotonic() > deadline:
                msg = f"the marks of Kafka at {self._address} cannot be read to their ends within {_LIMIT} seconds"
                raise OSError(msg)

    def _client(self) -> Any:
        from py4j.java_gateway import JavaClass

        if self._key not in _clients:
            admin = self._jvm.org.apache.kafka.clients.admin.AdminClient
            if not isinstance(admin, JavaClass):  # py4j gives a package for a class that is missing
                raise Unsupported(
                    "Kafka as the source of a stage with inputs",
                    "the driver has no Kafka client to ask where the topics end",
                    "Add Spark's Kafka connector with spark.jars or --packages when the session starts.",
                )
            _clients[self._key] = admin.create(self._properties())
        return _clients[self._key]

    def _properties(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in self.properties.items():
            properties.put(name, value)
        return properties

    @contextlib.contextmanager
    def _direct(self) -> Iterator[_Direct]:
        """Yield, locked, the connections to single brokers.

        The admin client itself asks any broker, so it cannot compare them.
        """
        self._client()
        direct = _directs.setdefault(self._key, _Direct(self._jvm, self._properties()))
        with direct.lock:
            yield direct

    def _answer(self, future: Any) -> Any:
        return future.get(_LIMIT, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    @contextlib.contextmanager
    def _call(self, what: str) -> Iterator[None]:
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
            return
        except Py4JJavaError as failure:
            thrown = failure.java_exception
            cause = thrown.getCause() or thrown
            reason = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
        except Py4JError as failure:
            reason = str(failure)
        msg = f"Kafka at {self._address} does not tell {what}: {reason}"
        raise OSError(msg)


def _java_list(jvm: Any, items: Iterable[Any]) -> Any:
    array = jvm.java.util.ArrayList()
    for item in items:
        array.add(item)
    return array
