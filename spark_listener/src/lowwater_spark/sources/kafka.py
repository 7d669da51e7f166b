"""Kafka as a source: topics of a cluster whose brokers are declared, for a stage with inputs; of any cluster, for an injector.

The head is the end of each partition, or what its writers have marked. The end is the one that ``READ_UNCOMMITTED`` gives, the high watermark. The last stable offset, which readers of transactions go by, may
stand below rows that are committed, and a head of it would lead. An open transaction of anybody then holds: nothing is known of it yet.

An end is listed between two descriptions of the topics, which must agree with each other and with what was pinned before the query's first batch: the
cluster's id and the topics'. A topic that was deleted and made anew has other rows under the same offsets.

Of several brokers one that was away may answer, when it comes back, from what it knew before: it lacks a partition that was added, or tells, as its leader,
the end of a partition that another broker leads by now. It answers so for some tenths of a second after it wakes. So the brokers are asked one by one, until all
but one have answered, and what they know together counts. Two brokers know of each acknowledged row, since it was written with ``acks=all`` and
``min.insync.replicas`` is 2 at least: of its partition, and of the leader that acknowledged it, by the leader's epoch, since a follower that does not know the
epoch cannot fetch. One of the two is among those that were asked. A broker forgets nothing of it: when it starts it first learns all that the cluster knows.
An end then counts only from a leader of the newest epoch. How many brokers there are must be declared, since others that are down are not seen.

A log that was cut off, and has grown again, is found by the same epochs. What was seen of a partition is marked with the epoch of its leader then. When another
one leads, it is asked where in its log the rows of that epoch end, and of those before it: of a log that was cut off that is below the mark, however long it has become.

Where only ``batch.write_kafka`` writes, and the query says so, the head is what its marks tell (:func:`written`). W was published after the marks of all that it
covers had been read as committed. So they stand before the ends of the topics of marks, listed after W, and are read up to there. Rows that no mark names yet are not waited for.
Nothing of that is kept beyond a run: it begins at the ends, and begins there anew whenever the topics of marks are not just those that were read before (:class:`_Ledger`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import EARLIER, NONE, Fileless, Line, OpenSource, skips_earlier
from lowwater_spark.sources.kafka_marks import Begun, SlotMark, marks_topic
from lowwater_spark.sources.opaque import OpenOpaque
from lowwater_spark.sources.roots import Replaced

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = [
    "BROKERS",
    "HEAD",
    "KAFKA",
    "MARKS",
    "NO_ID",
    "PACE",
    "Cluster",
    "Ends",
    "Identity",
    "KafkaSource",
    "Reach",
    "OpenKafka",
    "Partition",
    "Pin",
    "Told",
    "agreed",
    "below",
    "led_anew",
    "marked",
    "unread",
    "vector_of",
    "written",
]

logger = logging.getLogger("lowwater.spark")

KAFKA: Final = "kafka"
"""The name of the source's format."""

BROKERS: Final = "lowwater.brokers"
"""The option that declares how many brokers the cluster has."""

PACE: Final = "lowwater.pace"
"""The option of what is read at one pace: where the injector says how far the partitions stand."""

HEAD: Final = "lowwater.head"
"""The option that says what the head is, where it is not the ends of the partitions."""

MARKS: Final = "marks"
"""The one value of it: what the marks of ``batch.write_kafka`` tell, since nobody else writes."""

NO_ID: Final = "A" * 22
"""What Kafka's client gives for the id of a topic when the broker knows none: all topics would have
the same."""

_IN_SYNC: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"partition {self.number} of {self.topic}"


Vector = Mapping[Partition, int]
"""The next offset of each partition: all before it was read, or is there to be read."""


class Identity(NamedTuple):
    """Which topics of which cluster answer to their names."""

    cluster: str
    """Empty when it has none."""
    brokers: int
    """Those that are up."""
    ids: Mapping[str, str]
    """Of each topic; another id is another topic."""
    counts: Mapping[str, int]
    """The partitions of each topic."""
    epochs: Mapping[Partition, int] = MappingProxyType({})
    """The number of each partition's newest leader. It grows with each leader."""
    leaders: Mapping[Partition, int] = MappingProxyType({})
    """Which broker that is; -1: none at the moment."""

    @property
    def partitions(self) -> list[Partition]:
        """All partitions of all topics."""
        return [Partition(topic, number) for topic in sorted(self.counts) for number in range(self.counts[topic])]


class Told(NamedTuple):
    """What one broker knows, asked itself."""

    cluster: str
    brokers: frozenset[int]
    """Those that are up, as far as it knows."""
    ids: Mapping[str, str]
    epochs: Mapping[Partition, int]
    """Of all partitions that it knows."""
    leaders: Mapping[Partition, int] = MappingProxyType({})

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Told:
        """Return what Kafka's answer to a metadata request says.

        Raises OSError for a topic that the broker does not know.
        """
        ids, epochs, leaders = {}, {}, {}
        for topic in said["topics"]:
            if topic["errorCode"]:
                msg = f"a broker does not tell about {topic['name']} (error {topic['errorCode']})"
                raise OSError(msg)
            ids[topic["name"]] = topic["topicId"]
            for each in topic["partitions"]:
                place = Partition(topic["name"], each["partitionIndex"])
                epochs[place], leaders[place] = each["leaderEpoch"], each["leaderId"]
        brokers = frozenset(each["nodeId"] for each in said["brokers"])
        return cls(said["clusterId"] or "", brokers, ids, epochs, leaders)


def agreed(told: Sequence[Told]) -> Identity:
    """Return what brokers know together: all partitions, each with its newest epoch.

    Raises OSError when they mean different topics.

    >>> old = Told("c", frozenset({1, 2}), {"t": "1"}, {Partition("t", 0): 3})
    >>> new = Told("c", frozenset({2, 3}), {"t": "1"}, {Partition("t", 0): 4, Partition("t", 1): 0})
    >>> found = agreed([old, new])
    >>> found.brokers, dict(found.counts), sorted(found.epochs.values())
    (3, {'t': 2}, [0, 4])
    """
    first = told[0]
    epochs: dict[Partition, int] = {}
    leaders: dict[Partition, int] = {}
    for each in told:
        if (each.cluster, each.ids) != (first.cluster, first.ids):
            msg = f"the brokers do not agree which topics {', '.join(sorted(first.ids))} are"
            raise OSError(msg)
        for place, epoch in each.epochs.items():
            if epoch >= epochs.get(place, epoch):
                epochs[place], leaders[place] = epoch, each.leaders.get(place, -1)
    counts = {
        topic: 1 + max((place.number for place in epochs if place.topic == topic), default=-1) for topic in first.ids
    }
    brokers = len(frozenset[int]().union(*(each.brokers for each in told)))
    return Identity(first.cluster, brokers, first.ids, counts, epochs, leaders)


class Ends(NamedTuple):
    """How far the partitions have to be read. A head."""

    ends: Vector
    """By the high watermark, or by the marks of the writers."""
    stable: Vector
    """Where the first open transaction begins, else the high watermark. It decides nothing, nor do
    the names of those who have it open."""
    holders: Mapping[Partition, str] = MappingProxyType({})
    """Whose transactions have been open for longer than from one look to the next, by their
    transactional ids."""


class Cluster(Protocol):
    """A cluster of Kafka, as far as it is asked.

    Each call raises OSError when there is no answer, or none for one of the partitions.
    """

    def ids(self, topics: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
        """Return the id of the cluster, and of each topic, as any broker says.

        Raises Unsupported without Kafka's client.
        """
        ...

    def told(self, topics: tuple[str, ...], enough: int) -> list[Told]:
        """Ask brokers, each itself, until enough have answered."""
        ...

    def existing(self, topics: tuple[str, ...]) -> frozenset[str]:
        """Return which of the topics there are."""
        ...

    def settings(self, topics: tuple[str, ...], names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        """Return settings of each topic, as they are in force."""
        ...

    def beginnings(self, partitions: list[Partition]) -> Vector:
        """Return the first offset that each partition still has."""
        ...

    def ends(self, partitions: list[Partition], epochs: Mapping[Partition, int], *, committed: bool) -> Vector:
        """Return the end of each partition: the high watermark, or with ``committed`` the last stable offset. Only a leader of that epoch is believed."""
        ...

    def kept(self, epochs: Mapping[Partition, int], now: Identity) -> Vector:
        """Return where, in the log of the partition's leader, the rows of an epoch and of those before it end. Only a leader of the epoch ``now`` is believed."""
        ...

    def holder(self, place: Partition, since: int) -> str:
        """Return the transactional id of who has had a transaction open in a partition since an offset; empty when it has ended."""
        ...

    def marks(self, topics: tuple[str, ...]) -> list[SlotMark | Begun]:
        """Return what writers have left in topics of marks, as far as it is seen: a broker that was away may not know the newest."""
        ...

    def marks_between(self, since: Vector, ends: Vector) -> list[SlotMark | Begun]:
        """Return what stands in partitions of topics of marks between offsets, also of transactions that are open or aborted: all of it, or OSError."""
        ...


def vector_of(line: Line) -> dict[Partition, int]:
    """Return what a line of Spark's offset log says of each partition.

    Raises CheckpointMismatch for a line of another source.

    >>> vector_of('{"t":{"1":7,"0":5}}')
    {Partition(topic='t', number=0): 5, Partition(topic='t', number=1): 7}
    >>> vector_of("-")
    {}
    """
    if line == NONE:
        return {}
    try:
        found = {
            Partition(topic, int(number)): offset
            for topic, partitions in json.loads(line).items()
            for number, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointMismatch(_OTHER.format(line=line)) from error
    if any(type(offset) is not int or offset < 0 for offset in found.values()):
        raise CheckpointMismatch(_OTHER.format(line=line))
    return dict(sorted(found.items()))


def below(vector: Vector, earlier: Vector) -> str:
    """Return the first partition that stands below an earlier offset of it, in words; empty for none. A partition that is not named is not below.

    >>> below(vector_of('{"t":{"0":6,"1":2}}'), vector_of('{"t":{"0":5,"1":7}}'))
    'partition 1 of t from 7 to 2'
    """
    for place in sorted(vector.keys() & earlier.keys()):
        if vector[place] < earlier[place]:
            return f"{place} from {earlier[place]} to {vector[place]}"
    return ""


def unread(head: Vector, read: Vector) -> list[Partition]:
    """Return the partitions that have rows beyond what was read, in order.

    One that was never read begins at 0.

    >>> unread(vector_of('{"t":{"0":5,"1":7,"2":0}}'), vector_of('{"t":{"0":5}}'))
    [Partition(topic='t', number=1)]
    """
    return sorted(place for place, end in head.items() if read.get(place, 0) < end)


def written(known: Vector, said: Iterable[SlotMark | Begun], ids: Mapping[str, str]) -> dict[Partition, int]:
    """Return where the rows of writers end, after more of their marks were read: in each partition behind the last row of all slots. None goes back.

    Marks of another topic with the same name, by its id, say nothing. Those of a transaction that is open, or was aborted, only have more waited for.

    >>> from lowwater_spark.sources.kafka_marks import Slot
    >>> mark = SlotMark(Slot("7f", ".", "t", 0), "default/a", 8, "d", "s", "1", 3, {2: 5})
    >>> written({Partition("t", 2): 4, Partition("t", 0): 7}, [mark], {"t": "1"})
    {Partition(topic='t', number=2): 5, Partition(topic='t', number=0): 7}
    """
    found = dict(known)
    for mark in said:
        if isinstance(mark, SlotMark) and mark.topic_id == ids.get(mark.slot.topic):
            for number, end in mark.ends.items():
                place = Partition(mark.slot.topic, number)
                found[place] = max(found.get(place, 0), end)
    return found


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A streaming Kafka source, as the plan has it."""

    options: Mapping[str, str]
    """Of the source, their names in lower case."""
    cluster: Cluster = field(compare=False, repr=False)
    deprecated: bool = False
    """Whether the session asks for ends as Spark did before 3.1: a consumer that goes on with old
    partitions."""
    inputs: frozenset[str] | None = None
    """The full names of the computations that are waited for; None: nobody's, and nothing is asked
    of the source. Of an injector that goes by its ends: empty."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads, by name."""
        return tuple(sorted({name.strip() for name in self.options.get("subscribe", "").split(",") if name.strip()}))

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that its options name, whole or by partitions; none of a pattern."""
        try:
            return self.topics or tuple(sorted(json.loads(self.options.get("assign", "{}"))))
        except ValueError:
            return ()  # Spark says what is wrong with it

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"Kafka's {', '.join(self.topics) or 'topics'}"

    @property
    def kind(self) -> str:
        """Kafka."""
        return KAFKA

    @property
    def brokers(self) -> int:
        """How many brokers the cluster is declared to have; 0: not declared."""
        said = self.options.get(BROKERS, "").strip()
        return int(said) if said.isascii() and said.isdigit() else 0

    @property
    def by_marks(self) -> bool:
        """Whether the head is what the marks of ``batch.write_kafka`` tell."""
        return self.options.get(HEAD, "").strip().lower() == MARKS

    @property
    def skips(self) -> bool:
        """Whether it is declared that rows from before the first offsets count for nothing."""
        return skips_earlier(self.options)

    @property
    def ledgers(self) -> tuple[str, ...]:
        """The topics of marks that the head is read from; none where it is the ends."""
        return tuple(marks_topic(topic) for topic in self.topics) if self.by_marks else ()

    def identity(self, *, ledgers: bool = False) -> Identity:
        """Describe the topics, and if asked to those of the marks that the head is read from.

        Raises OSError.

        Each acknowledged row has two brokers that know of its partition and of the leader that
        acknowledged it. So all brokers but one know of every such row's, one at least; what they
        know together has nothing old in it.
        """
        topics = (*self.topics, *self.ledgers) if ledgers else self.topics
        return agreed(self.cluster.told(topics, max(self.brokers - 1, 1)))

    @property
    def committed_only(self) -> bool:
        """Whether rows of transactions that are open or aborted are passed over."""
        return self.options.get("kafka.isolation.level", "").lower() == "read_committed"

    def waiting_for(self, inputs: frozenset[str]) -> KafkaSource:
        """Return it for a stage with inputs.

        Raises Unsupported, naming the option, when its end cannot be known exactly.
        """
        if not inputs:
            return self
        if PACE in self.options:
            raise Unsupported(
                f"{self.name} by read_kafka() in a stage with inputs ({', '.join(sorted(inputs))})",
                "partitions that are held back are for the injector, which says how far they have come",
                'Read it by format("kafka"), or begin the pipeline here with the injector.',
            )
        self._check_options()
        return replace(self, inputs=inputs)

    def telling_ends(self) -> KafkaSource:
        """Return it for an injector that goes by the ends of its partitions.

        Raises Unsupported, naming the option, when they cannot be known exactly.
        """
        if self.inputs is not None:
            return self
        if HEAD in self.options:
            raise Unsupported(
                f"Kafka as the source of an injector, with the option {HEAD}",
                "an injector says itself how far the rows have come, and waits for no writer",
                "Remove the option.",
            )
        self._check_options("Kafka as the source of an injector with across or delay", whole=False)
        return replace(self, inputs=frozenset())

    def _check_options(self, stage: str = "Kafka as the source of a stage with inputs", *, whole: bool = True) -> None:
        if not self.brokers:
            raise Unsupported(
                f"{stage}, without the option {BROKERS}",
                "a broker that was away answers from what it knew before, and only who knows how many there are can tell when enough have been asked",
                f'Declare how many brokers the cluster has, those that are down too, for example option("{BROKERS}", "3").',
            )
        for option in ("subscribepattern", "assign"):
            if option in self.options:
                raise Unsupported(
                    f"{stage}, with the option {option}",
                    "topics or partitions that it does not name may hold rows that the inputs stand for, and which they are may change",
                    "Name the topics with the option subscribe.",
                )
        other = self.options.keys() & {"startingtimestamp", "startingoffsetsbytimestamp"}  # Spark goes by them first
        earliest = self.options.get("startingoffsets", "").lower() == "earliest" and not other
        if whole and not earliest and not self.skips:
            raise Unsupported(
                f"{stage}, without the option startingOffsets earliest",
                "the rows before the beginning would count as read",
                f'Set option("startingOffsets", "earliest"). {_SKIP}',
            )
        if self.options.get("failondataloss", "true").lower() != "true":
            raise Unsupported(
                f"{stage}, with the option failOnDataLoss false",
                "rows that are gone before they were read would count as read",
                "Remove the option.",
            )
        if HEAD in self.options and not self.by_marks:
            raise Unsupported(
                f"{stage}, with the option {HEAD} {self.options[HEAD]}",
                f"the head is where the partitions end, or with {MARKS} what the marks of batch.write_kafka tell",
                f"Set it to {MARKS} if nobody but batch.write_kafka writes into the topics; else remove it.",
            )
        if self.by_marks and not self.committed_only:
            raise Unsupported(
                f"{stage}, with the option {HEAD} {MARKS} and without kafka.isolation.level read_committed",
                "rows of transactions that were aborted would be read as well",
                'Set option("kafka.isolation.level", "read_committed").',
            )
        if self.deprecated:
            raise Unsupported(
                f"{stage}, in a session with spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
                "Spark then does not see partitions that are added",
                "Set it to false, its default.",
            )

    def check_writers(self) -> None:
        """Raise Unsupported for a cluster that is not as declared, has no ids, or keeps a row on one broker only, and for writers that the inputs do not name. Raises OSError.

        Of writers only those of ``batch.write_kafka`` leave marks.
        """
        if self.inputs is None:
            return
        described = self.identity()
        if (found := described.brokers) > self.brokers:
            raise Unsupported(
                f"Kafka with {found} brokers as the source of a stage with inputs, {self.brokers} of which are declared",
                "a broker that is not declared may know of rows that no other one knows of",
                f'Declare all brokers, those that are down too: option("{BROKERS}", "{found}").',
            )
        _check_ids(described)
        there = self.cluster.existing(self.ledgers) if self.by_marks else ()
        self.check_topics((*self.topics, *sorted(there)))
        if self.inputs:
            self._check_marks(self.inputs)

    def _check_marks(self, inputs: frozenset[str]) -> None:
        """Refuse to read what ``batch.write_kafka`` has aborted, since it publishes a batch that has failed once more; and compare those who write so with the inputs.

        A mark that is not seen makes nothing count that would not count without it.
        """
        written = {marks_topic(topic): topic for topic in self.topics}
        marks = sorted(self.cluster.existing(tuple(written)))
        if marks and not self.committed_only:
            raise Unsupported(
                f"{written[marks[0]]} without the option kafka.isolation.level read_committed as the source of a stage with inputs",
                f"it is written by batch.write_kafka, as {marks[0]} tells, and rows of transactions that were aborted would be read as well",
                'Set option("kafka.isolation.level", "read_committed").',
            )
        for mark in self.cluster.marks(tuple(marks)):
            if mark.writer not in inputs:
                raise Unsupported(
                    f"{mark.slot.topic}, into which {mark.writer} writes and which the inputs do not name,",
                    "its rows would not be waited for",
                    f"Name it in inputs (those of lws.drive() as well). If it does not write there any more, write null for its keys, which begin with "
                    f"lw-{mark.slot.checkpoint}/, into {marks_topic(mark.slot.topic)}, when all readers have its rows.",
                )

    def check_topics(self, topics: tuple[str, ...]) -> None:
        """Raise Unsupported for topics that keep a row on one of several brokers only.

        Raises OSError.
        """
        if self.brokers == 1:
            return
        for topic, found in self.cluster.settings(topics, (_IN_SYNC, _UNCLEAN)).items():
            if int(found[_IN_SYNC]) < 2:
                raise Unsupported(
                    f"{topic} with {_IN_SYNC}={found[_IN_SYNC]} as the source of a stage with inputs",
                    "one broker alone may then acknowledge rows, and nobody knows of them while it is away",
                    f"Set {_IN_SYNC} of the topic to 2, before anything is written to it.",
                )
            if found[_UNCLEAN] != "false":
                raise Unsupported(
                    f"{topic} with {_UNCLEAN}={found[_UNCLEAN]} as the source of a stage with inputs",
                    "a broker that lacks acknowledged rows may come to lead",
                    f"Set {_UNCLEAN} of the topic to false.",
                )

    def pin(self) -> Pin:
        """Return what is to be remembered of the topics as they are now, of which nothing was read yet by whoever asks. Raises OSError."""
        found = self.identity()
        return Pin(found.cluster, dict(found.ids), marks={})

    def listed(self, found: Identity, topics: Sequence[str]) -> Vector:
        """Return the ends of the partitions of some of the topics, as they were described.

        Raises OSError when one is not known.
        """
        places = [place for place in found.partitions if place.topic in topics]
        ends = self.cluster.ends(places, found.epochs, committed=False)
        unknown = [place for place in places if ends.get(place, -1) < 0]
        if unknown:
            msg = f"nobody tells where {unknown[0]} ends"
            raise OSError(msg)
        return ends

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of Kafka, or one of more topics than are named here."""
        read = {place.topic for place in vector_of(line)}
        if self.topics and (more := sorted(read.difference(self.topics))):
            msg = f"the query has read the topic {more[0]} of Kafka, which is not among {', '.join(self.topics)}: it would not be waited for. Name {', '.join(sorted(read))}."
            raise CheckpointMismatch(msg)

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return it for one run of a query: a first one pins the topics.

        Raises CheckpointMismatch, and OSError when Kafka does not answer.
        """
        if self.inputs is None:
            return OpenInjected(self, manifest, number)
        return OpenKafka(self, manifest, number)


def went_back(before: Line, now: Line) -> str:
    """Return which partition is below the line before, in words; empty for none."""
    return below(vector_of(now), vector_of(before))


class Reach(NamedTuple):
    """How far a partition was seen to go."""

    offset: int
    """All rows before it were there, acknowledged."""
    epoch: int
    """Of its leader then: none of these rows has a later one."""


def led_anew(marks: Mapping[Partition, Reach], epochs: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the partitions that have a newer leader than when they were marked, with the epoch of the mark.

    >>> led_anew({Partition("t", 0): Reach(5, 3), Partition("t", 1): Reach(7, 3)}, {Partition("t", 0): 3, Partition("t", 1): 4})
    {Partition(topic='t', number=1): 3}
    """
    return {place: mark.epoch for place, mark in marks.items() if epochs.get(place, -1) > mark.epoch}


def marked(marks: Mapping[Partition, Reach], vector: Vector, epochs: Mapping[Partition, int]) -> dict[Partition, Reach]:
    """Return the marks after partitions were seen to go so far, under leaders of these epochs.

    None goes back.

    >>> place = Partition("t", 0)
    >>> marked({place: Reach(5, 3)}, {place: 4}, {place: 4}), marked({}, {place: 4}, {place: 4})
    ({Partition(topic='t', number=0): Reach(offset=5, epoch=4)}, {Partition(topic='t', number=0): Reach(offset=4, epoch=4)})
    """
    found = dict(marks)
    for place in vector.keys() & epochs.keys():
        old = found.get(place, _NONE)
        found[place] = Reach(max(old.offset, vector[place]), max(old.epoch, epochs[place]))
    return found


class _Answer(NamedTuple):
    """What Kafka says of the topics."""

    found: Identity
    lost: str
    """What is not there any more of what was marked, since others lead; empty: nothing."""


class Pin(NamedTuple):
    """What a checkpoint remembers of a source."""

    cluster: str
    ids: Mapping[str, str]
    truncated: str = ""
    """Where a partition was seen to end before what was read of it; empty: nowhere. It stays so
    when it has grown again."""
    marks: Mapping[str, Mapping[str, tuple[int, int]]] = MappingProxyType({})
    """How far each partition was seen to go, and the epoch of its leader then: by topic and number,
    as JSON has it."""

    def differs(self, found: Identity) -> str:
        """Return what is another one by now, in words; empty for nothing.

        >>> Pin("c", {"t": "1"}).differs(Identity("c", 1, {"t": "2"}, {"t": 1}))
        'the topic t is another one (its id was 1 and is 2)'
        """
        if found.cluster != self.cluster:
            return f"the cluster is another one (its id was {self.cluster} and is {found.cluster})"
        for topic, known in sorted(self.ids.items()):
            if found.ids.get(topic) != known:
                return f"the topic {topic} is another one (its id was {known} and is {found.ids.get(topic)})"
        return ""


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What the topics of marks have told a run, as they are: others, or other leaders of theirs, may lack marks that were there."""

    ids: Mapping[str, str]
    epochs: Mapping[Partition, int]
    read: Vector
    """Up to where they were read."""
    written: Vector
    """Where the rows end that are to be waited for."""

    def goes_on(self, now: Identity, ends: Vector) -> bool:
        """Whether the topics are the same, and have all that was read."""
        ids = {topic: now.ids[topic] for topic in self.ids}
        epochs = {place: now.epochs[place] for place in ends}
        return (ids, epochs) == (self.ids, self.epochs) and not below(ends, self.read)


class OpenKafka(Fileless):
    """The topics of a query that runs.

    Its offset is a vector of the next offsets, its head one of the ends.
    """

    def __init__(
        self, source: KafkaSource, manifest: Manifest, number: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._cluster = source.cluster
        self._manifest = manifest
        self._number = str(number)
        self._first = manifest.checkpoint / "sources" / self._number / "0"
        """Where Spark has noted from which offsets on the query reads."""
        self._from_the_beginning = False
        """Whether that was looked at."""
        self._synced = False
        self._committed: Vector = {}
        self._planned: Vector = {}
        """How far the newest batch goes that is known to be planned."""
        self._clock = clock
        self._asked: tuple[Line, _Answer] | None = None
        """What was asked for a committed batch that is to be confirmed."""
        self._lock = threading.Lock()
        """Of the pin and the marks: a look is made while a batch is confirmed."""
        self._pin = self._pinned()
        self._marks: dict[Partition, Reach] = {
            Partition(topic, int(number)): Reach(*mark)
            for topic, numbers in self._pin.marks.items()
            for number, mark in numbers.items()
        }
        self._saved = dict(self._marks)
        self._saved_at = clock()
        self._ledger: _Ledger | None = None
        """None: the next look begins at the ends."""
        self._open: dict[Partition, tuple[int, str | None]] = {}
        """Since where transactions were open at the last look, and whose they are; None: nobody was
        asked yet."""

    @property
    def planned_is_read(self) -> bool:
        """A plan names offsets: until its rows are read, a topic that is made anew may have others under them."""
        return False

    def _pinned(self) -> Pin:
        """Return the pin, made and durable before the query's first batch."""
        kept = (self._manifest["kafka"] or {}).get(self._number)
        if kept is not None:
            pin = Pin(*kept)
            if set(pin.ids) != set(self._source.topics):
                msg = (
                    f"{self._manifest.checkpoint} has read {', '.join(sorted(pin.ids))}, and the query reads {', '.join(self._source.topics)}. Start it with "
                    "the topics that it was begun with, or from a new checkpoint, with adopt=True."
                )
                raise CheckpointMismatch(msg)
            if pin.truncated:
                raise CheckpointMismatch(_TRUNCATED.format(said=pin.truncated))
            return pin
        if self._first.exists():
            msg = (
                f"{self._manifest.checkpoint} has read {self._source.name}, and nobody has noted which topics those were: they may have been made anew since. "
                "Start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        found = self._source.identity()
        # What came before an injector has begun is none of its rows.
        asks = self._source.inputs and not self._source.skips
        begins = self._cluster.beginnings(found.partitions) if asks else {}
        if removed := {place: at for place, at in begins.items() if at}:
            raise CheckpointMismatch(_REMOVED.format(place=min(removed), at=removed[min(removed)]))
        pin = Pin(found.cluster, dict(found.ids))
        self._keep(pin)
        return pin

    def _keep(self, pin: Pin) -> None:
        marks = {topic: dict(numbers) for topic, numbers in pin.marks.items()}
        self._manifest.keep_entry("kafka", self._number, [*pin._replace(marks=marks)])

    # -- lines -------------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the committed one, and look once from where on Spark reads.

        Raises CheckpointMismatch, OSError.
        """
        vector = vector_of(line)
        if back := below(vector, self._committed):
            raise CheckpointMismatch(_TRUNCATED.format(said=back))
        self._planned = vector
        if line != NONE and self._source.inputs and not self._from_the_beginning:
            first = vector_of(lines_of(self._first.read_text(encoding="utf-8").lstrip("\0"))[-1])
            skipped = {place: at for place, at in first.items() if at}
            if skipped and not self._source.skips:
                raise CheckpointMismatch(_REMOVED.format(place=min(skipped), at=skipped[min(skipped)]))
            if skipped:
                said = ", ".join(f"{place} from offset {at}" for place, at in list(skipped.items())[:_NAMED])
                more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
                logger.warning("a query reads %s%s: %s=skip, so earlier rows count for nothing", said, more, EARLIER)
            self._from_the_beginning = True

    def knock(self, line: Line) -> None:
        """Ask what :meth:`confirm` has to know. Raises OSError."""
        self._asked = line, self._ask()

    def confirm(self, line: Line) -> None:
        """Make sure that the topics are still those that were pinned, and lack nothing that was there. Raises CheckpointMismatch, and OSError when Kafka does not answer.

        What was asked for this line counts, also if it is the line of two batches: the second one has read nothing.
        """
        asked, self._asked = self._asked, None
        found, lost = asked[1] if asked is not None and asked[0] == line else self._ask()
        if other := self._pin.differs(found):
            raise CheckpointMismatch(_REPLACED.format(other=other))
        if lost:
            self._cut_off(lost)
            raise CheckpointMismatch(_TRUNCATED.format(said=lost))
        self._committed = vector_of(line)
        self._mark(self._committed, found.epochs)
        self._synced = True

    def _ask(self, *, ledgers: bool = False) -> _Answer:
        """Describe the topics; where others lead them now, also find what was lost with that.

        Raises OSError.
        """
        marks = dict(self._marks)
        found = self._source.identity(ledgers=ledgers)
        anew = led_anew(marks, found.epochs)
        kept = self._cluster.kept(anew, found) if anew and not self._pin.differs(found) else {}
        return _Answer(found, below(kept, {place: marks[place].offset for place in kept}))

    def _mark(self, vector: Vector, epochs: Mapping[Partition, int]) -> None:
        """Remember how far the partitions go.

        What is lost of a first epoch after another one is found by the durable mark: at once where
        a leader is new.
        """
        with self._lock:
            self._marks = marked(self._marks, vector, epochs)
            new = any(self._saved.get(place, _NONE).epoch != mark.epoch for place, mark in self._marks.items())
            due = self._clock() - self._saved_at >= _KEEP and self._marks != self._saved
        if new or due:
            self._save()

    def _save(self) -> None:
        with self._lock:
            marks: dict[str, dict[str, tuple[int, int]]] = {}
            for place, mark in self._marks.items():
                marks.setdefault(place.topic, {})[str(place.number)] = (mark.offset, mark.epoch)
            self._pin = self._pin._replace(marks=marks)
            self._keep(self._pin)
            self._saved, self._saved_at = dict(self._marks), self._clock()

    def _cut_off(self, said: str) -> None:
        with self._lock:
            self._pin = self._pin._replace(truncated=said)
            self._keep(self._pin)

    def close(self) -> None:
        """Keep how far the partitions go. Raises CheckpointMismatch, OSError."""
        if self._marks != self._saved:
            self._save()

    def evidence(self, line: Line) -> list[Location]:
        """Return where Spark has noted from which offsets on the query reads."""
        return [self._first] if not self._synced and self._first.exists() else []

    # -- heads -------------------------------------------------------------------------------------

    def head(self, settled: Line) -> Ends:
        """List the ends, between two descriptions.

        Raises OSError when one is not known, and when the topics are not those that were read
        before.
        """
        marks = dict(self._marks)
        before, lost = self._look_at()
        # Rows are acknowledged before the mark that tells of them: what is listed after it was read
        # has them.
        told = self._read_marks(before)
        ends = self._source.listed(before, self._source.topics)
        stable = self._cluster.ends([*ends], before.epochs, committed=True) if self._source.committed_only else ends
        if self._source.identity(ledgers=True) != before:
            msg = f"{self._source.name} changed while their ends were listed"
            raise OSError(msg)
        waited = ends if self._ledger is None else self._ledger.written
        seen = {place: mark.offset for place, mark in marks.items()}
        if back := lost or below(ends, vector_of(settled)) or below(ends, seen) or below(ends, waited):
            self._cut_off(back)
        if self._pin.truncated:
            raise Replaced(_TRUNCATED.format(said=self._pin.truncated))
        self._mark(ends, before.epochs)
        if told and self._ledger is None:
            ids = {topic: before.ids[topic] for topic in self._source.ledgers}
            self._ledger = _Ledger(ids, {place: before.epochs[place] for place in told}, told, ends)
        return Ends(waited, stable, self._holders(ends, stable))

    def _read_marks(self, now: Identity) -> Vector:
        """Read what writers have marked since the last look, and return where the topics of marks end. Raises OSError.

        What cannot be read, or is not there any more, is waited for by the ends.
        """
        if not self._source.by_marks:
            return {}
        told = self._source.listed(now, self._source.ledgers)
        ledger, self._ledger = self._ledger, None
        if ledger is None or not ledger.goes_on(now, told):
            try:
                self._source.check_topics(self._source.ledgers)
            except Unsupported as refusal:
                raise OSError(str(refusal)) from refusal
            return told
        try:
            said = self._cluster.marks_between(ledger.read, told) if ledger.read != told else []
        except ValueError as error:
            raise OSError(str(error)) from error
        self._ledger = replace(ledger, read=told, written=written(ledger.written, said, self._pin.ids))
        return told

    def _holders(self, ends: Vector, stable: Vector) -> dict[Partition, str]:
        """Return whose transactions are open, of some.

        Most end before the next look: of those nobody is asked, and of each other one once.
        """
        before, self._open = self._open, {}
        for place in sorted(place for place, since in stable.items() if since < ends[place])[:_NAMED]:
            since, (known, who) = stable[place], before.get(place, (-1, None))
            if known == since and who is None:
                try:
                    who = self._cluster.holder(place, since)
                except OSError as failure:
                    logger.debug("whose transaction is open in %s is not known: %s", place, failure)
                    who = ""
            self._open[place] = since, who if known == since else None
        return {place: who for place, (_, who) in self._open.items() if who}

    def _look_at(self) -> _Answer:
        try:
            found, lost = self._ask(ledgers=True)
        except OSError as failure:
            ledgers = self._source.ledgers
            if ledgers and (missing := sorted(set(ledgers) - self._cluster.existing(ledgers))):
                msg = (
                    f"there is no topic {missing[0]}, or it may not be seen by who asks: the writer of {self._source.name} has not begun, or is none of "
                    f"batch.write_kafka. Start it; or start this query without the option {HEAD}"
                )
                raise OSError(msg) from failure
            raise
        if other := self._pin.differs(found):
            raise Replaced(_REPLACED.format(other=other))
        if found.brokers > self._source.brokers:
            msg = f"the cluster of {self._source.name} has {found.brokers} brokers by now, and {self._source.brokers} are declared"
            raise OSError(msg)
        return _Answer(found, lost)

    def wait(self, listed: Ends, planned: Line | None) -> Ends:
        """Wait for all of it: Kafka keeps what was not read."""
        return listed

    def look(self, head: Ends) -> None:
        """Do nothing: it is no log."""

    def renewed(self, head: Ends, listed: Ends, planned: Line | None) -> Ends:
        """Wait for the ends as they were; of open transactions take what is known now."""
        return Ends(head.ends, listed.stable, listed.holders)

    def reached(self, head: Ends, offset: Line | None) -> bool:
        """Return whether each partition was read to its end, and no log was cut off: others may stand in the place of rows that were waited for."""
        return not self._pin.truncated and not unread(head.ends, {} if offset is None else vector_of(offset))

    def same(self, one: Ends, other: Ends) -> bool:
        """Return whether both have the same ends."""
        return one.ends == other.ends

    def missing(self, head: Ends, limit: int) -> list[str]:
        """Return some of the partitions that are still to be read, and how far they were read: those first in which a transaction is open."""
        limits = ", ".join(name for name in _LIMITS if name.lower() in self._source.options)
        held, others = [], []
        for place in unread(head.ends, self._committed):
            read, end = self._committed.get(place, 0), head.ends[place]
            so_far, stable = f"{place} (read to {read} of {end}", head.stable.get(place, end)
            if stable < end:
                who = head.holders.get(place)
                held.append(f"{so_far}: a transaction is open since {stable}{f', that of {who}' if who else ''})")
            elif self._planned.get(place, 0) >= end:
                others.append(f"{so_far}: the batch that runs reads the rest)")
            else:
                others.append(f"{so_far}: {limits} may leave them to later batches)" if limits else f"{so_far})")
        return [*held, *others][:limit]


class OpenInjected(OpenOpaque):
    """The topics of an injector's query that runs.

    Nobody asks where they end, but they must stay those that they were: one that is made anew has
    other rows under its offsets.

    Which they are is noted before the query's first batch; of topics that only a pattern names,
    when a batch is committed that has read of them.
    """

    def __init__(self, source: KafkaSource, manifest: Manifest, number: int) -> None:
        super().__init__(KAFKA, manifest.checkpoint / "sources" / str(number), order=went_back)
        self._source = source
        self._manifest = manifest
        self._number = str(number)
        kept = (manifest["kafka_ids"] or {}).get(self._number)
        self._pin = Pin("", {}) if kept is None else Pin(*kept)
        self._asked: tuple[Line, Identity | None] | None = None
        self._compare(self._ask(NONE))

    def _ask(self, line: Line) -> Identity | None:
        """Return which topics they are that the options name, or the line, or before there is one those that are left of the pinned ones.

        None when there is none, or nobody can tell. Raises OSError.
        """
        cluster = self._source.cluster
        try:
            topics = self._source.named or tuple(sorted({place.topic for place in vector_of(line)}))
            if not topics and self._pin.ids:
                topics = tuple(sorted(cluster.existing(tuple(self._pin.ids))))
            if not topics:
                return None
            name, ids = cluster.ids(topics)
        except Unsupported as refusal:
            if self._pin.ids:
                raise
            logger.warning("a topic of %s that is made anew would not be noticed: %s", self._source.name, refusal)
            return None
        return Identity(name, 0, ids, {})

    def knock(self, line: Line) -> None:
        """Ask what :meth:`confirm` has to know. Raises OSError."""
        self._asked = line, self._ask(line)

    def confirm(self, line: Line) -> None:
        """Make sure that the topics are those that were pinned, and pin new ones.

        Raises CheckpointMismatch, and OSError when Kafka does not answer.
        """
        asked, self._asked = self._asked, None
        self._compare(asked[1] if asked is not None and asked[0] == line else self._ask(line))
        super().confirm(line)

    def _compare(self, found: Identity | None) -> None:
        if found is None:
            return
        pinned = {topic: known for topic, known in self._pin.ids.items() if topic in found.ids}
        if self._pin.ids and (other := self._pin._replace(ids=pinned).differs(found)):
            raise CheckpointMismatch(_REPLACED.format(other=other))
        new = {topic: each for topic, each in found.ids.items() if each != NO_ID}
        if not new.items() <= self._pin.ids.items():
            pin = Pin(found.cluster, {**self._pin.ids, **new})
            self._manifest.keep_entry("kafka_ids", self._number, [pin.cluster, pin.ids])
            self._pin = pin


def _check_ids(found: Identity) -> None:
    nameless = sorted(topic for topic, known in found.ids.items() if known == NO_ID)
    if not found.cluster or nameless:
        what = f"the topic {nameless[0]}" if nameless else "the cluster"
        raise Unsupported(
            f"Kafka as the source of a stage with inputs, where {what} has no id",
            "one that is made anew could not be told from the one that was read",
            "Upgrade the broker: Kafka gives ids since 2.8. Or begin the pipeline here with lws.injector(), which says itself how far it has come.",
        )


_NONE: Final = Reach(0, -1)

_NAMED: Final = 5
"""Partitions whose open transactions are named."""

_LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Options by which a batch leaves rows that are there."""

_KEEP: Final = 5.0
"""Seconds, at least, between two times at which marks are made durable without a new leader: each
costs two fsyncs."""

_OTHER: Final = (
    '{line!r} is no offset of Kafka, like {{"topic":{{"0":5}}}}: the checkpoint was begun with another source. Start the query as it was begun, or another '
    "one from a new checkpoint, with adopt=True."
)

_REPLACED: Final = "{other}: what was read belongs to the old one. Start from a new checkpoint, with adopt=True."

_SKIP: Final = f'If nobody waits for earlier rows, declare it: option("{EARLIER}", "skip").'

_REMOVED: Final = (
    "{place} begins at {at}: rows before it were removed, and would count as read. Keep all rows of the topic (retention.ms=-1), or begin the pipeline here with "
    f"lws.injector(). {_SKIP}"
)

_TRUNCATED: Final = "the log of a topic was cut off: {said}. Rows that were acknowledged are gone, or others stand in their place: start from a new checkpoint, with adopt=True."
