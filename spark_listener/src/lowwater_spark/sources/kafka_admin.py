"""What Kafka's own admin client says, asked through the JVM of Spark's driver: it came there with the connector (``spark.jars``, ``--packages``)."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.kafka import PACE, Identity, Partition, Told, Vector
from lowwater_spark.sources.kafka_client import java_settings
from lowwater_spark.sources.kafka_marks import Begun, SlotMark, parse

__all__ = ["KafkaAdmin"]

T = TypeVar("T")

Address = tuple[str, int]

_PREFIX: Final = "kafka."

_PATIENCE: Final[Mapping[str, str]] = {
    "default.api.timeout.ms": "10000",
    "request.timeout.ms": "5000",
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "500",
}
"""Milliseconds: a look of the query's clock waits for the answer. They take the place of the
source's own, which are for its readers: Kafka's client refuses a limit of a request that is above
the one of a whole call.
"""

_DIRECT: Final = 5000
"""Milliseconds that one broker has for its own answer."""

_IDS: Final = 10
"""The first version of the request whose answer has the topics' ids."""

_FENCED: Final = 4
"""The version of the question what a leader has of an epoch: a leader of another epoch than the one
that is named refuses it."""

_READER: Final[Mapping[str, str]] = {
    "allow.auto.create.topics": "false",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "fetch.max.wait.ms": "10",  # it asks ahead of what is wanted, and cannot be closed before the answer
    "isolation.level": "read_uncommitted",
}
"""Of the consumer that reads marks, in no group."""

_RECENT: Final = 100
"""Records: each costs some round trips to the JVM."""

_LIMIT: Final = 30
"""Seconds; the client gives up long before."""

_clients: Final[dict[tuple[int, frozenset[tuple[str, str]]], Any]] = {}
"""One for each JVM and cluster, for as long as the process lives: each has a thread and
connections."""


class _Direct:
    """Asks brokers of one cluster, each itself. Its connections stay. Hold ``lock``."""

    def __init__(self, jvm: Any, properties: Any) -> None:
        self._jvm = jvm
        self._properties = properties
        self._made: Any = None
        self.lock = threading.Lock()
        self.nodes: dict[int, tuple[Address, Any]] = {}
        """The brokers that are up, by their numbers, as they were listed last; empty: they have to
        be listed."""
        self.silent: set[int] = set()
        """Those that have not answered when they were asked last."""

    def ask(self, number: int, request: Any, kind: str) -> dict[str, Any]:
        """Return the answer of a broker to a request of this kind.

        Raises OSError, and what the client does.
        """
        if number not in self.nodes:
            msg = f"broker {number} is not there"
            raise OSError(msg)
        kafka, node = self._jvm.org.apache.kafka, self.nodes[number][1]
        clients, clock = kafka.clients.NetworkClientUtils, kafka.common.utils.Time.SYSTEM
        # What has become of the connection since: one to a broker that was started anew is known to
        # be gone only now.
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
        found: dict[str, Any] = json.loads(written.toString())
        return found

    @property
    def _client(self) -> Any:
        if self._made is None:
            kafka = self._jvm.org.apache.kafka
            self._made = kafka.clients.ClientUtils.createNetworkClient(
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
        return self._made


_directs: Final[dict[tuple[int, frozenset[tuple[str, str]]], _Direct]] = {}
"""As :data:`_clients`. Each has connections."""


class KafkaAdmin:
    """The cluster of a source, by its options.

    Nothing is connected before the first call. Each call costs a round trip or two.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        told = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
        # What is read at one pace is read by another client library, and has its names.
        self.properties = {**(java_settings(told) if PACE in options else told), **_PATIENCE}
        """Properties of the JVM's client, by which it reaches the cluster."""
        self._key = id(jvm), frozenset(self.properties.items())

    @property
    def _address(self) -> str:
        return str(self.properties.get("bootstrap.servers"))

    def told(self, topics: tuple[str, ...], enough: int) -> list[Told]:
        """Ask brokers, each itself, until enough have answered.

        One that has not answered is asked last from then on. Raises OSError.
        """
        what = f"by each of its brokers which topics {', '.join(topics)} are"
        with self._direct() as direct:
            if not direct.nodes:
                direct.nodes = self._asked(what, self._nodes)
            # By address: two names of one broker are one answer.
            addresses = {address: number for number, (address, _) in sorted(direct.nodes.items(), reverse=True)}
            known = {number: address for number, (address, _) in direct.nodes.items()}
            answers: list[Told] = []
            silent = ""
            for number in sorted(addresses.values(), key=lambda each: (each in direct.silent, each)):
                if len(answers) == enough:
                    break
                try:
                    told, others = self._told(direct, number, topics)
                except OSError as failure:
                    silent = f"; {failure}"
                    direct.silent.add(number)
                else:
                    direct.silent.discard(number)
                    answers.append(told)
                    if not others.items() <= known.items():
                        direct.nodes = {}
            if len(answers) < enough or not direct.nodes:
                moved = "" if direct.nodes else "; they are others, or elsewhere, since they were listed"
                direct.nodes = {}
                msg = f"Kafka at {self._address} does not tell {what}: {len(answers)} of its brokers answer, and {enough} must{silent}{moved}"
                raise OSError(msg)
            return answers

    def _nodes(self) -> dict[int, tuple[Address, Any]]:
        nodes = self._answer(self._client().describeCluster().nodes()).toArray()
        return {int(node.id()): ((str(node.host()), int(node.port())), node) for node in nodes}

    def _told(self, direct: _Direct, number: int, topics: tuple[str, ...]) -> tuple[Told, dict[int, Address]]:
        def ask() -> tuple[Told, dict[int, Address]]:
            requests, create = self._jvm.org.apache.kafka.common.requests, False
            wanted = requests.MetadataRequest.Builder(_java_list(self._jvm, topics), create, _IDS)
            said = direct.ask(number, wanted, "Metadata")
            others = {each["nodeId"]: (each["host"], each["port"]) for each in said["brokers"]}
            return Told.parse(said), others

        return self._asked(f"by broker {number} which topics {', '.join(topics)} are", ask)

    def kept(self, epochs: Mapping[Partition, int], now: Identity) -> Vector:
        """Return where, in the log of the partition's leader, the rows of an epoch and of those before it end. Raises OSError."""
        found: dict[Partition, int] = {}
        with self._direct() as direct:
            for place, epoch in epochs.items():
                found[place] = self._kept(direct, place, epoch, now)
        return found

    def _kept(self, direct: _Direct, place: Partition, epoch: int, now: Identity) -> int:
        def ask() -> int:
            asked = {"partition": place.number, "currentLeaderEpoch": now.epochs[place], "leaderEpoch": epoch}
            wanted = {"replicaId": -1, "topics": [{"topic": place.topic, "partitions": [asked]}]}
            kafka = self._jvm.org.apache.kafka.common
            tree = self._jvm.com.fasterxml.jackson.databind.ObjectMapper().readTree(json.dumps(wanted))
            data = kafka.message.OffsetForLeaderEpochRequestDataJsonConverter.read(tree, _FENCED)
            request = kafka.requests.OffsetsForLeaderEpochRequest.Builder.forConsumer(data.topics())
            [topic] = direct.ask(now.leaders[place], request, "OffsetForLeaderEpoch")["topics"]
            [answer] = topic["partitions"]
            if answer["errorCode"] or answer["endOffset"] < 0:
                msg = f"its leader does not know (error {answer['errorCode']})"
                raise OSError(msg)
            return int(answer["endOffset"])

        return self._asked(f"what {place} still has of the epoch {epoch} of its leaders", ask)

    def ids(self, topics: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
        """Return the id of the cluster, and of each topic, as any broker says.

        Raises OSError, and Unsupported without Kafka's client.
        """

        def ask() -> tuple[str, Mapping[str, str]]:
            client = self._client()
            cluster = self._answer(client.describeCluster().clusterId())
            described = self._answer(client.describeTopics(_java_list(self._jvm, topics)).allTopicNames())
            return str(cluster or ""), {topic: str(described.get(topic).topicId().toString()) for topic in topics}

        return self._asked(f"which topics {', '.join(topics)} are", ask)

    def existing(self, topics: tuple[str, ...]) -> frozenset[str]:
        """Return which of the topics there are. Raises OSError. Costs a listing of all names."""

        def ask() -> frozenset[str]:
            names = self._answer(self._client().listTopics().names())
            return frozenset(topic for topic in topics if names.contains(topic))

        return self._asked(f"whether there is {', '.join(topics)}", ask)

    def settings(self, topics: tuple[str, ...], names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        """Return settings of each topic, as they are in force. Raises OSError."""

        def ask() -> Mapping[str, Mapping[str, str]]:
            config = self._jvm.org.apache.kafka.common.config.ConfigResource
            places = {topic: config(config.Type.TOPIC, topic) for topic in topics}
            found = self._answer(self._client().describeConfigs(_java_list(self._jvm, places.values())).all())
            return {
                topic: {name: str(found.get(place).get(name).value()) for name in names}
                for topic, place in places.items()
            }

        return self._asked(f"which settings {', '.join(topics)} have", ask)

    def beginnings(self, partitions: list[Partition]) -> Vector:
        """Return the first offset that each partition still has. Raises OSError."""
        return self._offsets("earliest", "READ_UNCOMMITTED", partitions, {})

    def ends(self, partitions: list[Partition], epochs: Mapping[Partition, int], *, committed: bool) -> Vector:
        """Return the end of each partition: the high watermark, or with ``committed`` the last stable offset. Raises OSError."""
        return self._offsets("latest", "READ_COMMITTED" if committed else "READ_UNCOMMITTED", partitions, epochs)

    def _offsets(
        self, which: str, isolation: str, partitions: list[Partition], epochs: Mapping[Partition, int]
    ) -> Vector:
        def ask() -> Vector:
            kafka = self._jvm.org.apache.kafka
            wanted = self._jvm.java.util.HashMap()
            for place in partitions:
                wanted.put(
                    kafka.common.TopicPartition(place.topic, place.number),
                    getattr(kafka.clients.admin.OffsetSpec, which)(),
                )
            level = getattr(kafka.common.IsolationLevel, isolation)
            listed = self._client().listOffsets(wanted, kafka.clients.admin.ListOffsetsOptions(level))
            found = {}
            for entry in self._answer(listed.all()).entrySet():
                place = Partition(str(entry.getKey().topic()), int(entry.getKey().partition()))
                told, known = int(entry.getValue().leaderEpoch().orElse(-1)), epochs.get(place, -1)
                if known not in (-1, told):
                    msg = f"a leader of epoch {told} told the end of {place}, and one of epoch {known} leads it by what the brokers say"
                    raise OSError(msg)
                found[place] = int(entry.getValue().offset())
            return found

        return self._asked("where its partitions end", ask)

    def holder(self, place: Partition, since: int) -> str:
        """Return the transactional id of who has had a transaction open in a partition since an offset; empty when it has ended. Raises OSError."""

        def ask() -> str:
            kafka, client = self._jvm.org.apache.kafka, self._client()
            partition = kafka.common.TopicPartition(*place)
            described = client.describeProducers(_java_list(self._jvm, [partition])).partitionResult(partition)
            found = [
                int(each.producerId())
                for each in self._answer(described).activeProducers()
                if each.currentTransactionStartOffset().orElse(-1) == since
            ]
            if not found:
                return ""
            # Kafka's client takes numbers of 64 bits alone, and py4j makes such of large ones only.
            long = self._jvm.java.lang.Class.forName("java.lang.Long")
            wanted = self._jvm.com.fasterxml.jackson.databind.ObjectMapper().readerForListOf(long).readValue(str(found))
            listed = client.listTransactions(kafka.clients.admin.ListTransactionsOptions().filterProducerIds(wanted))
            return ", ".join(sorted(str(each.transactionalId()) for each in self._answer(listed.all())))

        return self._asked(f"who has a transaction open in {place}", ask)

    def marks(self, topics: tuple[str, ...]) -> list[SlotMark | Begun]:
        """Return the last record of each key in topics of marks, also of transactions that are open. Raises OSError.

        Of each partition the last hundred records are read: slots of few writers share one, and each leaves two in every batch.
        """
        return self._asked(
            f"who has left marks in {', '.join(topics)}",
            lambda: [mark for topic in topics for mark in self._last(topic)],
        )

    def _last(self, topic: str) -> list[SlotMark | Begun]:
        kafka = self._jvm.org.apache.kafka
        last: dict[bytes, bytes | None] = {}
        with self._reader() as consumer:
            places = _java_list(
                self._jvm,
                [kafka.common.TopicPartition(topic, each.partition()) for each in consumer.partitionsFor(topic)],
            )
            consumer.assign(places)
            first = consumer.beginningOffsets(places)
            ends = {each.getKey(): int(each.getValue()) for each in consumer.endOffsets(places).entrySet()}
            for place, end in ends.items():
                consumer.seek(place, max(int(first.get(place)), end - _RECENT))
            last.update(self._records(consumer, ends))
        return [said for key, value in last.items() if (said := parse(key, value)) is not None]

    def marks_between(self, since: Vector, ends: Vector) -> list[SlotMark | Begun]:
        """Return what stands in partitions of topics of marks between offsets.

        Raises OSError, also for what is gone, and ValueError for a mark of a newer release.
        """

        def ask() -> list[SlotMark | Begun]:
            made = self._jvm.org.apache.kafka.common.TopicPartition
            wanted = {made(*place): place for place, end in ends.items() if since[place] < end}
            with self._reader(**{"auto.offset.reset": "none"}) as consumer:
                consumer.assign(_java_list(self._jvm, wanted))
                for each, place in wanted.items():
                    consumer.seek(each, since[place])
                records = [*self._records(consumer, {each: ends[place] for each, place in wanted.items()})]
            if any(value is None for _, value in records):
                msg = "a mark of a writer was removed: what it told of is waited for by the ends"
                raise OSError(msg)
            return [mark for key, value in records if (mark := parse(key, value)) is not None]

        return self._asked("what its writers have marked", ask)

    @contextlib.contextmanager
    def _reader(self, **settings: str) -> Iterator[Any]:
        """Give a consumer of all that is there, in no group."""
        kafka = self._jvm.org.apache.kafka
        bytes_ = kafka.common.serialization.ByteArrayDeserializer
        properties = self._properties()
        for name, value in {**_READER, **settings}.items():
            properties.put(name, value)
        with contextlib.closing(kafka.clients.consumer.KafkaConsumer(properties, bytes_(), bytes_())) as consumer:
            yield consumer

    def _records(self, consumer: Any, ends: Mapping[Any, int]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of what stands before the ends of the partitions that a consumer is assigned to. Raises OSError when it takes too long."""
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
            made = self._jvm.org.apache.kafka.clients.admin.AdminClient
            if not isinstance(made, JavaClass):  # py4j takes a class that is not there for a package
                raise Unsupported(
                    "Kafka as the source of a stage with inputs",
                    "the driver has no Kafka client that it could ask where the topics end",
                    "Bring the connector with spark.jars or --packages, at the start of the session.",
                )
            _clients[self._key] = made.create(self._properties())
        return _clients[self._key]

    def _properties(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in self.properties.items():
            properties.put(name, value)
        return properties

    @contextlib.contextmanager
    def _direct(self) -> Iterator[_Direct]:
        """Give what asks the very broker that it is told.

        The admin client describes topics by whichever it likes.
        """
        self._client()
        found = _directs.setdefault(self._key, _Direct(self._jvm, self._properties()))
        with found.lock:
            yield found

    def _answer(self, future: Any) -> Any:
        return future.get(_LIMIT, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            return ask()
        except Py4JJavaError as failure:
            thrown = failure.java_exception
            cause = thrown.getCause() or thrown
            reason = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
        except Py4JError as failure:
            reason = str(failure)
        msg = f"Kafka at {self._address} does not tell {what}: {reason}"
        raise OSError(msg)


def _java_list(jvm: Any, items: Iterable[Any]) -> Any:
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made
