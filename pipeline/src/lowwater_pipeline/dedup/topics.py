"""The topics of a deduplicator, pinned by their ids: a topic that is made anew gets another id."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from lowwater_pipeline.dedup.errors import Held, Refused
from lowwater_pipeline.dedup.ids import Kind
from lowwater_pipeline.dedup.settings import Settings
from lowwater_pipeline.dedup.window import WindowKind

if TYPE_CHECKING:
    from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

__all__ = ["Pins", "Topic", "bounds", "committed", "consumer", "grown", "pin"]

_SOON: Final = frozenset(
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "LEADER_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION",
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
    }
)
"""Kafka's errors while a leader or a coordinator changes, or a broker does not know a new topic."""

_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"

_STAMPED_BY_BROKER: Final = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Topic:
    """Name, id and number of partitions of a topic."""

    name: str
    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Pins:
    """The input and the output as they were at the start."""

    input: Topic
    output: Topic

    @property
    def partitions(self) -> int:
        """Number of partitions of the input, and of every output."""
        return self.input.partitions

    def compare(self, now: Pins) -> None:
        """Raise Refused when a topic has been replaced or resized since."""
        for mine, theirs in ((self.input, now.input), (self.output, now.output)):
            if mine.id != theirs.id:
                raise Refused(
                    f"the topic {mine.name} was deleted and made anew while this ran",
                    "Start again: the start says what can be done.",
                )
            if mine.partitions != theirs.partitions:
                raise grown(mine.name, mine.partitions, theirs.partitions)


def grown(name: str, before: int, now: int) -> Refused:
    """Return the refusal of a topic whose number of partitions has changed."""
    return Refused(
        f"the topic {name} had {before} partitions, and has {now} now: ids have moved to other partitions, where no lane remembers them",
        "This takes a new life: another output topic and another --group, of as many partitions as the input.",
    )


def pin(settings: Settings) -> Pins:
    """Return the topics as they are now, after checking that a deduplicator can work with them.

    Raises Refused, and Held when no broker answers.
    """
    admin = AdminClient(dict(settings.clients))
    names = (settings.input, *settings.outputs)
    try:
        topics = {name: _topic(name, future) for name, future in _descriptions(admin, names, settings)}
        configs = {name: _config(admin, name, settings.patience) for name in names}
    except (KafkaException, TimeoutError) as error:
        raise Held(
            f"no broker at {settings.clients['bootstrap.servers']} says what topics there are: {str(error) or 'no answer in time'}"
        ) from error
    source = topics[settings.input]
    if any(topic.id == _NO_ID for topic in topics.values()):
        raise Refused(
            "the brokers give topics no ids, so a topic that is made anew looks like the old one",
            "Use Kafka 2.8 or newer.",
        )
    for name in settings.outputs:
        if topics[name].partitions != source.partitions:
            raise Refused(
                f"the topic {name} has {topics[name].partitions} partitions, and {source.name} has {source.partitions}",
                "A row goes into the partition that it came from: make the topics with equally many.",
            )
    _check(settings, configs)
    return Pins(source, topics[settings.output])


def _check(settings: Settings, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Raise Refused for a topic's setting under which the window would be wrong."""
    output = configs[settings.output]
    if "compact" in output["cleanup.policy"]:
        raise Refused(
            f"the topic {settings.output} is compacted: rows vanish from it, and it is what tells which ids were passed on",
            "Set cleanup.policy=delete.",
        )
    by_time = settings.window.kind is WindowKind.TIME
    event_time = settings.window.event_time
    by_stamp = event_time is not None and event_time.kind is Kind.TIMESTAMP
    if by_time and configs[settings.input]["message.timestamp.type"] != _STAMPED_BY_BROKER:
        raise Refused(
            f"a window by time needs the brokers' own times, and {settings.input} has those of its senders: a message that a slow sender stamps an hour ago "
            "would be forgotten at once",
            "Set message.timestamp.type=LogAppendTime on it, or use a window by count or by a watermark.",
        )
    if (by_time or by_stamp) and output["message.timestamp.type"] == _STAMPED_BY_BROKER:
        raise Refused(
            f"the topic {settings.output} replaces the timestamps of its rows, by which their ids are remembered",
            "Set message.timestamp.type=CreateTime on it: rows keep the timestamps that they came with.",
        )
    if by_stamp and configs[settings.input]["message.timestamp.type"] == _STAMPED_BY_BROKER:
        raise Refused(
            f"the topic {settings.input} stamps its messages when they arrive, so copies have other event times",
            "Take the event time from a header or from JSON, or set message.timestamp.type=CreateTime.",
        )


def _descriptions(admin: AdminClient, names: Collection[str], settings: Settings) -> list[tuple[str, TopicDescription]]:
    patience = settings.patience
    deadline = time.monotonic() + min(patience, settings.until_known)
    while True:
        futures = admin.describe_topics(TopicCollection([*names]), request_timeout=patience)
        missing, descriptions = "", []
        for name, future in futures.items():
            try:
                descriptions.append((name, future.result(patience)))
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
                missing = name
        if not missing:
            return descriptions
        if time.monotonic() > deadline:
            raise Refused(f"there is no topic {missing}", "Make it, with as many partitions as the input.")
        time.sleep(0.1)


def _topic(name: str, description: TopicDescription) -> Topic:
    return Topic(name, str(description.topic_id), len(description.partitions))


def _config(admin: AdminClient, name: str, patience: float) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries: Any = admin.describe_configs([resource], request_timeout=patience)[resource].result(patience)
    return {entry.name: entry.value or "" for entry in entries.values()}


def consumer(settings: Settings, *, committed: bool) -> Consumer:
    """Return a consumer outside of any group, which tells where a partition ends."""
    return Consumer(
        {
            **settings.clients,
            "group.id": settings.group,  # to read the group's offsets; it does not join
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
        }
    )


def bounds(reader: Consumer, topic: str, partition: int, patience: float) -> tuple[int, int]:
    """Return a partition's first offset, and its end at this consumer's isolation level.

    Waits for a leader. Raises KafkaException.
    """
    place = TopicPartition(topic, partition)
    low, high = _settled(lambda: reader.get_watermark_offsets(place, timeout=patience), patience)
    return low, high


def committed(reader: Consumer, topic: str, partition: int, patience: float) -> TopicPartition:
    """Return the offset that the consumer's group has committed, with its metadata.

    Waits until no transaction can change it any more. Raises KafkaException.
    """

    def ask() -> TopicPartition:
        (offset,) = reader.committed([TopicPartition(topic, partition)], timeout=patience)
        if offset.error is not None:
            raise KafkaException(offset.error)
        return offset

    offset: TopicPartition = _settled(ask, patience)
    return offset


def _settled(ask: Callable[[], Any], patience: float) -> Any:
    """Return an answer; ask again, while patience lasts, after errors that pass soon."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].name() not in _SOON or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
