"""What Kafka's own admin client says, asked through the JVM of Spark's driver: it came there with the connector (``spark.jars``, ``--packages``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, Final, TypeVar

from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.kafka import Identity, Partition, Told, Vector

__all__ = ["KafkaAdmin"]

T = TypeVar("T")

_PREFIX: Final = "kafka."

_PATIENCE: Final[Mapping[str, str]] = {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}
"""Milliseconds: a look of the query's clock waits for the answer. They take the place of the source's own, which are for its readers: Kafka's client
refuses a limit of a request that is above the one of a whole call.
"""

_DIRECT: Final = 5000
"""Milliseconds that one broker has for its own answer."""

_IDS: Final = 10
"""The first version of the request whose answer has the topics' ids."""

_LIMIT: Final = 30
"""Seconds; the client gives up long before."""

_clients: Final[dict[tuple[int, frozenset[tuple[str, str]]], Any]] = {}
"""One for each JVM and cluster, for as long as the process lives: each has a thread and connections."""


class KafkaAdmin:
    """The cluster of a source, by its options. Nothing is connected before the first call. Each call costs a round trip or two."""

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        told = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
        self._settings = {**told, **_PATIENCE}

    def identity(self, topics: tuple[str, ...]) -> Identity:
        """Describe topics, and the cluster. Raises OSError."""

        def ask() -> Identity:
            about = self._client().describeCluster()
            cluster, brokers = self._answer(about.clusterId()), int(self._answer(about.nodes()).size())
            found = self._answer(self._client().describeTopics([*topics]).allTopicNames())
            ids = {topic: str(found.get(topic).topicId().toString()) for topic in topics}
            counts = {topic: int(found.get(topic).partitions().size()) for topic in topics}
            return Identity(str(cluster or ""), brokers, ids, counts)

        return self._asked(f"which topics {', '.join(topics)} are", ask)

    def told(self, topics: tuple[str, ...], enough: int) -> list[Told]:
        """Ask brokers, each itself, until enough have answered. Raises OSError."""

        def ask() -> list[Told]:
            nodes = self._answer(self._client().describeCluster().nodes()).toArray()
            # By address: two names of one broker are one answer.
            addresses = {(str(node.host()), int(node.port())): node for node in nodes}
            answers: list[Told] = []
            silent = ""
            with closing(self._direct()) as direct:
                for address in sorted(addresses):
                    if len(answers) == enough:
                        break
                    try:
                        answers.append(self._told(direct, addresses[address], topics))
                    except OSError as failure:
                        silent = f"; {failure}"
            if len(answers) < enough:
                msg = f"{len(answers)} of its brokers answer, and {enough} must{silent}"
                raise OSError(msg)
            return answers

        return self._asked(f"by each of its brokers which topics {', '.join(topics)} are", ask)

    def _told(self, direct: Any, node: Any, topics: tuple[str, ...]) -> Told:
        def ask() -> Told:
            kafka = self._jvm.org.apache.kafka
            clients, clock = kafka.clients.NetworkClientUtils, kafka.common.utils.Time.SYSTEM
            if not clients.awaitReady(direct, node, clock, _DIRECT):
                msg = f"broker {node.idString()} does not answer"
                raise OSError(msg)
            create, answered = False, True
            wanted = kafka.common.requests.MetadataRequest.Builder(_java_list(self._jvm, topics), create, _IDS)
            request = direct.newClientRequest(node.idString(), wanted, clock.milliseconds(), answered)
            answer = clients.sendAndReceive(direct, request, clock)
            written = kafka.common.message.MetadataResponseDataJsonConverter.write(
                answer.responseBody().data(), answer.requestHeader().apiVersion()
            )
            return Told.parse(json.loads(written.toString()))

        return self._asked(f"by broker {node.idString()} which topics {', '.join(topics)} are", ask)

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
                if told < known:
                    msg = f"a leader of epoch {told} told the end of {place}, and one of epoch {known} leads it by now"
                    raise OSError(msg)
                found[place] = int(entry.getValue().offset())
            return found

        return self._asked("where its partitions end", ask)

    def _client(self) -> Any:
        from py4j.java_gateway import JavaClass

        key = id(self._jvm), frozenset(self._settings.items())
        if key not in _clients:
            made = self._jvm.org.apache.kafka.clients.admin.AdminClient
            if not isinstance(made, JavaClass):  # py4j takes a class that is not there for a package
                raise Unsupported(
                    "Kafka as the source of a stage with inputs",
                    "the driver has no Kafka client that it could ask where the topics end",
                    "Bring the connector with spark.jars or --packages, at the start of the session.",
                )
            _clients[key] = made.create(self._properties())
        return _clients[key]

    def _properties(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in self._settings.items():
            properties.put(name, value)
        return properties

    def _direct(self) -> Any:
        """Return what asks the very broker that it is told. The admin client describes topics by whichever it likes."""
        kafka = self._jvm.org.apache.kafka
        return kafka.clients.ClientUtils.createNetworkClient(
            kafka.clients.admin.AdminClientConfig(self._properties()),
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
        msg = f"Kafka at {self._settings.get('bootstrap.servers')} does not tell {what}: {reason}"
        raise OSError(msg)


def _java_list(jvm: Any, items: Iterable[Any]) -> Any:
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made
