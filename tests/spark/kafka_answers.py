"""A cluster of Kafka as no broker of today can be made to answer: the topic t and the marks of its writers, each of one partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowwater_spark.sources.base import Partition
from lowwater_spark.sources.kafka.cluster import BrokerView, Identity
from lowwater_spark.sources.kafka.marks import Begun, Slot, SlotMark
from lowwater_spark.sources.kafka.source import BROKERS, KafkaSource

OPTIONS = {"subscribe": "t", "startingoffsets": "earliest", BROKERS: "1"}
"""The options of a source that a stage with inputs may have."""


@dataclass
class Answers:
    cluster: str = "c"
    brokers: int = 1
    ids_of: dict[str, str] = field(default_factory=lambda: {"t": "1"})
    end: int = 0
    epoch: int = 0
    """Number of the leader of t."""
    common: int = 0
    """Offset up to which the log is as it was under the leaders before."""
    settings_of: dict[str, str] = field(default_factory=dict)
    """Settings of t."""
    written: list[SlotMark | Begun] = field(default_factory=list)
    """Content of the topic of marks."""
    marks_epoch: int = 0
    """Number of its leader."""
    failure: Exception | None = None
    """Error of the next reading of the marks."""
    reads: list[int] = field(default_factory=list)
    """Offsets from which the marks were read."""
    calls: int = 0
    away: bool = False

    def views(self, topics: tuple[str, ...], enough: int) -> list[BrokerView]:
        if self.away:
            raise OSError("no broker answers")
        self.calls += 1
        epochs = {Partition(topic, 0): self.epoch if topic == "t" else self.marks_epoch for topic in topics}
        ids = {topic: self.ids_of[topic] for topic in topics}
        return [BrokerView(self.cluster, frozenset(range(self.brokers)), ids, epochs, dict.fromkeys(epochs, 0))]

    def epoch_ends(self, epochs: Mapping[Partition, int], now: Identity) -> dict[Partition, int]:
        return dict.fromkeys(epochs, self.common)

    def ids(self, topics: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
        return self.cluster, {topic: self.ids_of[topic] for topic in topics}

    def existing(self, topics: tuple[str, ...]) -> frozenset[str]:
        return frozenset(topics) & self.ids_of.keys()

    def settings(self, topics: tuple[str, ...], names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        return dict.fromkeys(topics, self.settings_of)

    def beginnings(self, partitions: list[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)

    def ends(
        self, partitions: list[Partition], epochs: Mapping[Partition, int], *, committed: bool
    ) -> dict[Partition, int]:
        return {place: self.end if place.topic == "t" else len(self.written) for place in partitions}

    def holder(self, place: Partition, since: int) -> str:
        raise AssertionError(place)

    def marks(self, topics: tuple[str, ...]) -> list[SlotMark | Begun]:
        return []

    def marks_between(self, since: Mapping[Partition, int], ends: Mapping[Partition, int]) -> list[SlotMark | Begun]:
        [(place, end)] = ends.items()
        self.reads.append(since[place])
        if self.failure is not None:
            raise self.failure
        return self.written[since[place] : end]

    def mark(self, end: int) -> None:
        self.end = max(self.end, end)
        slot = Slot("c", ".", "t", 0)
        self.written.append(SlotMark(slot, "source", 1, "d", "s", self.ids_of["t"], 1, {0: end}))


def over(answers: Answers, **options: str) -> KafkaSource:
    settings = {**OPTIONS, **{name.replace("__", "."): value for name, value in options.items()}}
    return KafkaSource(settings, answers).waiting_for(frozenset({"default/source"}))
