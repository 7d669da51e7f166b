"""A Kafka cluster as a source sees it: the questions that it asks, and what brokers answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from lowwater_spark.sources.base import Partition, Vector
from lowwater_spark.sources.kafka.marks import Begun, SlotMark

__all__ = ["NO_ID", "BrokerView", "Cluster", "Identity", "agreed"]

NO_ID: Final = "A" * 22
"""Id that Kafka's client gives to every topic of a broker that knows no ids."""


class Identity(NamedTuple):
    """Description of the topics, merged from the answers of brokers."""

    cluster: str
    """Id of the cluster; empty when it has none."""
    brokers: int
    """Number of brokers that are up."""
    ids: Mapping[str, str]
    """Id of each topic; it differs for a topic that was deleted and created again."""
    counts: Mapping[str, int]
    """Number of partitions of each topic."""
    epochs: Mapping[Partition, int] = MappingProxyType({})
    """Leader epoch of each partition, which grows with each leader."""
    leaders: Mapping[Partition, int] = MappingProxyType({})
    """Broker that leads each partition; -1: none at the moment."""

    @property
    def partitions(self) -> list[Partition]:
        """All partitions of all topics."""
        return [Partition(topic, number) for topic in sorted(self.counts) for number in range(self.counts[topic])]


class BrokerView(NamedTuple):
    """Description of the topics by one broker. Its fields are those of :class:`Identity`."""

    cluster: str
    brokers: frozenset[int]
    """Numbers of the brokers that this one believes to be up."""
    ids: Mapping[str, str]
    epochs: Mapping[Partition, int]
    """Leader epochs of all partitions that this broker knows."""
    leaders: Mapping[Partition, int] = MappingProxyType({})

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> BrokerView:
        """Return the content of Kafka's answer to a metadata request.

        Raises OSError for a topic that the broker does not know.
        """
        ids, epochs, leaders = {}, {}, {}
        for topic in answer["topics"]:
            if topic["errorCode"]:
                msg = f"a broker does not describe the topic {topic['name']} (error {topic['errorCode']})"
                raise OSError(msg)
            ids[topic["name"]] = topic["topicId"]
            for entry in topic["partitions"]:
                place = Partition(topic["name"], entry["partitionIndex"])
                epochs[place], leaders[place] = entry["leaderEpoch"], entry["leaderId"]
        brokers = frozenset(entry["nodeId"] for entry in answer["brokers"])
        return cls(answer["clusterId"] or "", brokers, ids, epochs, leaders)


def agreed(answers: Sequence[BrokerView]) -> Identity:
    """Return the merge of the brokers' answers: all partitions, each with its newest epoch.

    Raises OSError when the brokers give different ids to the cluster or a topic.

    >>> old = BrokerView("c", frozenset({1, 2}), {"t": "1"}, {Partition("t", 0): 3})
    >>> epochs = {Partition("t", 0): 4, Partition("t", 1): 0}
    >>> new = BrokerView("c", frozenset({2, 3}), {"t": "1"}, epochs)
    >>> merged = agreed([old, new])
    >>> merged.brokers, dict(merged.counts), sorted(merged.epochs.values())
    (3, {'t': 2}, [0, 4])
    """
    first = answers[0]
    epochs: dict[Partition, int] = {}
    leaders: dict[Partition, int] = {}
    for answer in answers:
        if (answer.cluster, answer.ids) != (first.cluster, first.ids):
            msg = f"the brokers do not agree which topics {', '.join(sorted(first.ids))} are"
            raise OSError(msg)
        for place, epoch in answer.epochs.items():
            if epoch >= epochs.get(place, epoch):
                epochs[place], leaders[place] = epoch, answer.leaders.get(place, -1)
    counts = {
        topic: 1 + max((place.number for place in epochs if place.topic == topic), default=-1) for topic in first.ids
    }
    brokers = len(frozenset[int]().union(*(answer.brokers for answer in answers)))
    return Identity(first.cluster, brokers, first.ids, counts, epochs, leaders)


class Cluster(Protocol):
    """Questions that a source asks its Kafka cluster.

    Each call raises OSError when there is no answer, or none for one of the partitions.
    """

    def ids(self, topics: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
        """Return the ids of the cluster and of the topics, as any one broker gives them.

        Raises Unsupported without Kafka's client.
        """
        ...

    def views(self, topics: tuple[str, ...], enough: int) -> list[BrokerView]:
        """Ask one broker after the other until ``enough`` have answered; return the answers."""
        ...

    def existing(self, topics: tuple[str, ...]) -> frozenset[str]:
        """Return those of the topics that exist."""
        ...

    def settings(self, topics: tuple[str, ...], names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        """Return the values in force of some settings, by topic and setting."""
        ...

    def beginnings(self, partitions: list[Partition]) -> Vector:
        """Return the first offset that each partition still has."""
        ...

    def ends(self, partitions: list[Partition], epochs: Mapping[Partition, int], *, committed: bool) -> Vector:
        """Return each partition's high watermark, or with ``committed`` its last stable offset.

        An answer from a leader of another epoch than ``epochs`` has is refused with OSError.
        """
        ...

    def epoch_ends(self, epochs: Mapping[Partition, int], now: Identity) -> Vector:
        """Return where the rows of an epoch and of earlier ones end in each leader's log.

        An answer from a leader of another epoch than ``now`` has is refused with OSError.
        """
        ...

    def holder(self, place: Partition, since: int) -> str:
        """Return the transactional id of the transaction open in a partition since an offset.

        Empty when the transaction has ended.
        """
        ...

    def marks(self, topics: tuple[str, ...]) -> list[SlotMark | Begun]:
        """Return the writers' records in topics of marks.

        The newest may be missing: a broker that was away may not know them.
        """
        ...

    def marks_between(self, since: Vector, ends: Vector) -> list[SlotMark | Begun]:
        """Return all records between two vectors of offsets of topics of marks, or raise OSError.

        Records of open and aborted transactions are among them.
        """
        ...
