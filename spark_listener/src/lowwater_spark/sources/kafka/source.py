"""Kafka as a source: for a stage with inputs, whose cluster is declared, and for any injector.

The head is the end of each partition, or the end that its writers have marked. The end is the high
watermark (``READ_UNCOMMITTED``). The last stable offset, which Kafka gives to readers of
transactions, may be below committed rows, and a head made of it would lead. So an open transaction
of any writer holds the watermark: its rows may still be committed.

The ends are listed between two descriptions of the topics. Both must agree with each other and with
the pin, which has the ids of the cluster and of the topics from before the query's first batch. A
topic that was deleted and created again has other rows under the same offsets.

A broker that was away answers, for some tenths of a second after it is back, from old knowledge: a
new partition is missing, or it gives the end of a partition that another broker leads by now. So
the brokers are asked one by one until all but one have answered, and their answers are merged by
:func:`agreed`. The merge has no gap: each acknowledged row was written with ``acks=all`` and
``min.insync.replicas`` of at least 2, so two brokers know its partition and the epoch of the leader
that acknowledged it (a follower cannot fetch without the epoch). One of the two has answered. A
broker forgets neither: when it starts, it first learns everything that the cluster knows. An end
counts only from a leader of the newest epoch. The number of brokers must be declared, because a
broker that is down is not seen.

A log that was truncated and has grown again is found by the same epochs. Each mark has the offset
up to which a partition was seen and the epoch of its leader then. When another broker leads, it is
asked where in its log the rows of that epoch and of earlier ones end. After a truncation that end
is below the mark, however long the log has become.

Where a query declares that only ``batch.write_kafka`` writes, the head comes from the writers'
marks (:func:`written`). The authority published W after the marks of all rows below W had been read
as committed. So these marks are before the ends of the topics of marks that are listed after W, and
the marks are read up to those ends. Rows that no mark names yet are not waited for. The marks that
were read are not stored: a run begins at the ends of the partitions, and begins there again
whenever a topic of marks has changed (:class:`_Ledger`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import (
    EARLIER,
    NONE,
    POSITION,
    Leaf,
    Line,
    OpenSource,
    Partition,
    ReadBefore,
    Rereading,
    RowsGone,
    Source,
    SourceDeclared,
    Vector,
    foreign,
    skips_earlier,
)
from lowwater_spark.sources.files.roots import Replaced
from lowwater_spark.sources.kafka.admin import KafkaAdmin
from lowwater_spark.sources.kafka.cluster import NO_ID, Cluster, Identity, agreed
from lowwater_spark.sources.kafka.marks import Begun, SlotMark, marks_topic
from lowwater_spark.sources.kafka.paced import FORMAT, PACE
from lowwater_spark.sources.opaque import OpenOpaque

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = [
    "BROKERS",
    "HEAD",
    "KAFKA",
    "MARKS",
    "Ends",
    "KafkaSource",
    "OpenKafka",
    "Pin",
    "below",
    "marked",
    "unread",
    "vector_of",
    "written",
]

logger = logging.getLogger("lowwater.spark")

KAFKA: Final = "kafka"
"""Format of the source, as Spark names it."""

BROKERS: Final = "lowwater.brokers"
"""Option that declares how many brokers the cluster has, those that are down included."""

HEAD: Final = "lowwater.head"
"""Option that chooses the head; without it the head is the ends of the partitions."""

MARKS: Final = "marks"
"""Only value of :data:`HEAD`: the marks of ``batch.write_kafka``, the only writer of the topics."""

_IN_SYNC: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"


class Ends(NamedTuple):
    """Head of a Kafka source: how far the partitions have to be read."""

    ends: Vector
    """Offsets to reach: high watermarks, or ends that the writers have marked."""
    stable: Vector
    """Offset at which the first open transaction begins, else the high watermark. This field and
    ``holders`` only explain; they decide nothing."""
    holders: Mapping[Partition, str] = MappingProxyType({})
    """Transactional ids of the transactions that were open at two looks in a row."""


def vector_of(line: Line) -> dict[Partition, int]:
    """Return the next offset of each partition from a line of Spark's offset log.

    Raises CheckpointMismatch for a line of another source.

    >>> vector_of('{"t":{"1":7,"0":5}}')
    {Partition(topic='t', number=0): 5, Partition(topic='t', number=1): 7}
    >>> vector_of("-")
    {}
    """
    if line == NONE:
        return {}
    try:
        vector = {
            Partition(topic, int(number)): offset
            for topic, partitions in json.loads(line).items()
            for number, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise foreign(line, _OTHER) from error
    if any(type(offset) is not int or offset < 0 for offset in vector.values()):
        raise foreign(line, _OTHER)
    return dict(sorted(vector.items()))


def below(vector: Vector, earlier: Vector) -> str:
    """Return in words the first partition that is below its earlier offset; empty for none.

    A partition that ``vector`` does not name is not below.

    >>> below(vector_of('{"t":{"0":6,"1":2}}'), vector_of('{"t":{"0":5,"1":7}}'))
    'partition 1 of t from 7 to 2'
    """
    for place in sorted(vector.keys() & earlier.keys()):
        if vector[place] < earlier[place]:
            return f"{place} from {earlier[place]} to {vector[place]}"
    return ""


def unread(head: Vector, read: Vector) -> list[Partition]:
    """Return, in order, the partitions whose head is beyond the offset that was read.

    A partition that was never read begins at 0.

    >>> unread(vector_of('{"t":{"0":5,"1":7,"2":0}}'), vector_of('{"t":{"0":5}}'))
    [Partition(topic='t', number=1)]
    """
    return sorted(place for place, end in head.items() if read.get(place, 0) < end)


def written(ends: Vector, marks: Iterable[SlotMark | Begun], ids: Mapping[str, str]) -> dict[Partition, int]:
    """Return the end of the writers' rows in each partition after more of their marks were read.

    An end is the offset after the last row of any slot, and never goes down. Marks that name
    another topic id are skipped: that topic was deleted. Marks of open or aborted transactions
    count as well: they can only make the head higher.

    >>> from lowwater_spark.sources.kafka.marks import Slot
    >>> mark = SlotMark(Slot("7f", ".", "t", 0), "default/a", 8, "d", "s", "1", 3, {2: 5})
    >>> written({Partition("t", 2): 4, Partition("t", 0): 7}, [mark], {"t": "1"})
    {Partition(topic='t', number=2): 5, Partition(topic='t', number=0): 7}
    """
    newest = dict(ends)
    for mark in marks:
        if isinstance(mark, SlotMark) and mark.topic_id == ids.get(mark.slot.topic):
            for number, end in mark.ends.items():
                place = Partition(mark.slot.topic, number)
                newest[place] = max(newest.get(place, 0), end)
    return newest


@dataclass(frozen=True, slots=True)
class KafkaSource(Source):
    """A streaming Kafka source, as the query's plan has it."""

    options: Mapping[str, str]
    """Options of the source, their names in lower case."""
    cluster: Cluster = field(compare=False, repr=False)
    deprecated: bool = False
    """True when the session lists ends as Spark did before 3.1, by a consumer that misses new
    partitions."""
    inputs: frozenset[str] | None = None
    """Full names of the computations that the stage waits for. Empty: an injector that reports by
    the ends. None: the source has no head, and Kafka is asked for ids only."""

    kind = KAFKA

    @classmethod
    def planned(cls, leaf: Leaf) -> KafkaSource | None:
        """Return the source of Spark's Kafka, or of ``read_kafka()``."""
        if not leaf.of_tables or leaf.format not in (KAFKA, FORMAT):
            return None
        deprecated = bool(leaf.changed(["spark.sql.streaming.kafka.useDeprecatedOffsetFetching"], "false"))
        return cls(leaf.options, KafkaAdmin(leaf.spark._jvm, leaf.options), deprecated)

    @classmethod
    def place(cls, text: str) -> Mapping[str, Any]:
        """Return the topics of a source that is declared by a text like ``a+b``."""
        return {"topics": text.split("+")}

    @classmethod
    def allowed(cls, declared: SourceDeclared) -> Set[str]:
        """Return the options that a declared source may have; all ``kafka.*`` are allowed."""
        if not declared.topics or not declared.options.keys() >= {"kafka.bootstrap.servers", BROKERS}:
            msg = f"{declared.name} needs its topics, kafka.bootstrap.servers and {BROKERS}, the number of all brokers of the cluster"
            raise ValueError(msg)
        return {BROKERS, HEAD, EARLIER.lower(), *(name for name in declared.options if name.startswith("kafka."))}

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> KafkaSource:
        """Return the source of the declared topics, read from their beginning."""
        options = {**declared.options, "subscribe": ",".join(declared.topics), "startingoffsets": "earliest"}
        return cls(options, KafkaAdmin(session()._jvm, options))

    @classmethod
    def guess(cls, line: Line) -> str:
        """Return an example for an offset of Kafka."""
        try:
            return f"{KAFKA}:topic,{BROKERS}=3,kafka.bootstrap.servers=broker:9092" if vector_of(line) else ""
        except CheckpointMismatch:
            return ""

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics that the option ``subscribe`` lists."""
        return tuple(sorted({name.strip() for name in self.options.get("subscribe", "").split(",") if name.strip()}))

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the topics in ``subscribe`` or ``assign``; a pattern names none."""
        try:
            return self.topics or tuple(sorted(json.loads(self.options.get("assign", "{}"))))
        except ValueError:
            return ()  # "assign" is no JSON: Spark refuses it with its own error

    @property
    def name(self) -> str:
        """Name of the source in errors."""
        return f"Kafka's {', '.join(self.topics) or 'topics'}"

    @property
    def brokers(self) -> int:
        """Number of brokers that the cluster is declared to have; 0: not declared."""
        declared = self.options.get(BROKERS, "").strip()
        return int(declared) if declared.isascii() and declared.isdigit() else 0

    @property
    def by_marks(self) -> bool:
        """True when the head comes from the marks of ``batch.write_kafka``."""
        return self.options.get(HEAD, "").strip().lower() == MARKS

    @property
    def ledgers(self) -> tuple[str, ...]:
        """Topics of marks from which the head is read; none when the head is the ends."""
        return tuple(marks_topic(topic) for topic in self.topics) if self.by_marks else ()

    def identity(self, *, ledgers: bool = False) -> Identity:
        """Describe the topics, with ``ledgers`` also the topics of marks.

        Raises OSError. Costs a request to each declared broker but one. Two brokers know of each
        acknowledged row (see the module), so one of those that answer does.
        """
        topics = (*self.topics, *self.ledgers) if ledgers else self.topics
        return agreed(self.cluster.views(topics, max(self.brokers - 1, 1)))

    @property
    def committed_only(self) -> bool:
        """True when the query skips rows of open and aborted transactions."""
        return self.options.get("kafka.isolation.level", "").lower() == "read_committed"

    def waiting_for(self, inputs: frozenset[str]) -> KafkaSource:
        """Return the source for a stage with inputs.

        Raises Unsupported, naming the option, when the ends cannot be known exactly.
        """
        if not inputs:
            return self
        if PACE in self.options:
            raise Unsupported(
                f"{self.name} by read_kafka() in a stage with inputs ({', '.join(sorted(inputs))})",
                "read_kafka() holds partitions back for an injector, which alone reports how far they are",
                'Read the topics by format("kafka"), or begin the pipeline here with the injector.',
            )
        self._check_options()
        return replace(self, inputs=inputs)

    def check_partitions(self, *, paced: bool) -> None:
        """Raise Unsupported when Spark's own source is to hold partitions back."""
        if paced and not self.pace:
            raise Unsupported(
                f"{self.name}, read by Spark's own source, in an injector with skew_limit",
                "Spark's own source cannot hold single partitions back",
                "Read it by read_kafka() of the injector.",
            )

    @property
    def pace(self) -> str:
        """Directory that ``read_kafka()`` reads; empty for Spark's own source."""
        return self.options.get(PACE, "")

    def vector(self, line: Line) -> Vector:
        """Return the next offset of each partition."""
        return vector_of(line)

    def ends(self, listed: Ends) -> Vector:
        """Return the ends in a listing."""
        return listed.ends

    def telling_ends(self) -> KafkaSource:
        """Return the source for an injector that reports by the ends of its partitions.

        Raises Unsupported, naming the option, when the ends cannot be known exactly.
        """
        if self.inputs is not None:
            return self
        if HEAD in self.options:
            raise Unsupported(
                f"Kafka as the source of an injector, with the option {HEAD}",
                "an injector reports itself how far its rows are, and waits for no writer",
                "Remove the option.",
            )
        self._check_options("Kafka as the source of an injector with across or delay", whole=False)
        return replace(self, inputs=frozenset())

    def _check_options(self, stage: str = "Kafka as the source of a stage with inputs", *, whole: bool = True) -> None:
        if not self.brokers:
            raise Unsupported(
                f"{stage}, without the option {BROKERS}",
                "a broker that was away gives old answers, so all brokers but one must answer, and lowwater does not see those that are down",
                f'Declare how many brokers the cluster has, those that are down too, for example option("{BROKERS}", "3").',
            )
        for option in ("subscribepattern", "assign"):
            if option in self.options:
                raise Unsupported(
                    f"{stage}, with the option {option}",
                    "the inputs may write rows into topics or partitions that the option does not name, and these would not be waited for",
                    "Name the topics with the option subscribe.",
                )
        # With one of these two options Spark ignores startingOffsets: the query begins at a time,
        # and not with the earliest rows.
        other = self.options.keys() & {"startingtimestamp", "startingoffsetsbytimestamp"}
        earliest = self.options.get("startingoffsets", "").lower() == "earliest" and not other
        if whole and not earliest and not skips_earlier(self.options):
            raise Unsupported(
                f"{stage}, without the option startingOffsets earliest",
                "rows before the first offset that the query reads would count as read",
                f'Set option("startingOffsets", "earliest"). {_SKIP}',
            )
        if self.options.get("failondataloss", "true").lower() != "true":
            raise Unsupported(
                f"{stage}, with the option failOnDataLoss false",
                "rows that Kafka deletes before they are read would count as read",
                "Remove the option.",
            )
        if HEAD in self.options and not self.by_marks:
            raise Unsupported(
                f"{stage}, with the option {HEAD} {self.options[HEAD]}",
                f"the option has one value, {MARKS}: the head comes from the marks of batch.write_kafka",
                f"Set it to {MARKS} if only batch.write_kafka writes into the topics; else remove it.",
            )
        if self.by_marks and not self.committed_only:
            raise Unsupported(
                f"{stage}, with the option {HEAD} {MARKS} and without kafka.isolation.level read_committed",
                "the query would also read rows of aborted transactions",
                'Set option("kafka.isolation.level", "read_committed").',
            )
        if self.deprecated:
            raise Unsupported(
                f"{stage}, in a session with spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
                "Spark then misses partitions that are added",
                "Set it to false, its default.",
            )

    def check_writers(self) -> None:
        """Refuse a cluster or writers with which a head could lead.

        Raises Unsupported for more brokers than are declared; a cluster or topic without an id; a
        topic that may keep a row on one broker only, and a writer that the inputs do not name (only
        writers by ``batch.write_kafka`` are seen). Raises OSError when Kafka does not answer.
        """
        if self.inputs is None:
            return
        described = self.identity()
        if (brokers := described.brokers) > self.brokers:
            raise Unsupported(
                f"Kafka with {brokers} brokers as the source of a stage with inputs, {self.brokers} of which are declared",
                "a broker that is not declared may be the only one that knows of some rows",
                f'Declare all brokers, those that are down too: option("{BROKERS}", "{brokers}").',
            )
        _check_ids(described)
        ledgers = self.cluster.existing(self.ledgers) if self.by_marks else ()
        self.check_topics((*self.topics, *sorted(ledgers)))
        if self.inputs:
            self._check_marks(self.inputs)

    def _check_marks(self, inputs: frozenset[str]) -> None:
        """Compare the writers by ``batch.write_kafka`` with the inputs, and require read_committed.

        ``batch.write_kafka`` publishes a failed batch again, so a query that reads aborted
        transactions would read its rows twice. A mark that is missed here only hides a refusal.
        """
        marked_topics = {marks_topic(topic): topic for topic in self.topics}
        marks = sorted(self.cluster.existing(tuple(marked_topics)))
        if marks and not self.committed_only:
            raise Unsupported(
                f"{marked_topics[marks[0]]} without the option kafka.isolation.level read_committed as the source of a stage with inputs",
                f"batch.write_kafka writes into it (the topic {marks[0]} exists), and the query would also read rows of aborted transactions",
                'Set option("kafka.isolation.level", "read_committed").',
            )
        for mark in self.cluster.marks(tuple(marks)):
            if mark.writer not in inputs:
                raise Unsupported(
                    f"{mark.slot.topic}, into which {mark.writer} writes and which the inputs do not name,",
                    "its rows would not be waited for",
                    f"Name it in inputs (those of lws.drive() as well). If it has stopped writing there, wait until all readers have its rows, then write "
                    f"null for its keys, which begin with lw-{mark.slot.checkpoint}/, into {marks_topic(mark.slot.topic)}.",
                )

    def check_topics(self, topics: tuple[str, ...]) -> None:
        """Raise Unsupported for topics that may keep a row on one of several brokers only.

        Raises OSError when Kafka does not answer.
        """
        if self.brokers == 1:
            return
        for topic, settings in self.cluster.settings(topics, (_IN_SYNC, _UNCLEAN)).items():
            if int(settings[_IN_SYNC]) < 2:
                raise Unsupported(
                    f"{topic} with {_IN_SYNC}={settings[_IN_SYNC]} as the source of a stage with inputs",
                    "one broker alone may then acknowledge rows, and no other broker knows of them while it is away",
                    f"Set {_IN_SYNC} of the topic to 2 before any row is written to it.",
                )
            if settings[_UNCLEAN] != "false":
                raise Unsupported(
                    f"{topic} with {_UNCLEAN}={settings[_UNCLEAN]} as the source of a stage with inputs",
                    "a broker that lacks acknowledged rows may become the leader",
                    f"Set {_UNCLEAN} of the topic to false.",
                )

    def pin(self) -> Pin:
        """Return the pin of the topics as they are now, before any row is read. Raises OSError."""
        now = self.identity()
        return Pin(now.cluster, dict(now.ids))

    def listed(self, now: Identity, topics: Sequence[str]) -> Vector:
        """Return the ends of the partitions of ``topics``, given their description.

        Raises OSError when one end is unknown.
        """
        places = [place for place in now.partitions if place.topic in topics]
        ends = self.cluster.ends(places, now.epochs, committed=False)
        unknown = [place for place in places if ends.get(place, -1) < 0]
        if unknown:
            msg = f"no broker gives the end of {unknown[0]}"
            raise OSError(msg)
        return ends

    rereads = True

    def again(self, spark: SparkSession, read: ReadBefore, options: Mapping[str, str]) -> Rereading | None:
        """Return the rows of a batch's offsets. Costs some requests to the brokers."""
        import pyspark.sql.functions as sf

        if read.before == NONE:
            msg = f"the batch has the first rows of {self.name}, and its checkpoint does not say here where they begin"
            raise RowsGone(msg)
        before, after = vector_of(read.before), vector_of(read.line)
        # Spark reads a partition that was added since from offset 0 (failOnDataLoss is true).
        begins = {place: before.get(place, 0) for place, end in after.items() if end > before.get(place, 0)}
        if not begins:
            return None
        for place, first in self.cluster.beginnings(list(begins)).items():
            if first > begins[place]:
                msg = f"Kafka has deleted rows of {place} from offset {begins[place]} to {first}"
                raise RowsGone(msg)
        own = {name: value for name, value in self.options.items() if name.startswith("kafka.")}
        own["failOnDataLoss"] = "true"  # if Kafka deletes rows while they are read, the job fails
        chosen = {
            "assign": {topic: sorted(map(int, parts)) for topic, parts in _by_topic(begins).items()},
            "startingOffsets": _by_topic(begins),
            "endingOffsets": _by_topic({place: after[place] for place in begins}),
        }
        reader = spark.read.format(KAFKA).options(**{**options, **own})
        frame = reader.options(**{name: json.dumps(value) for name, value in chosen.items()}).load()
        position = sf.format_string("partition %d of %s, offset %d", "partition", "topic", "offset")
        return Rereading(frame.withColumn(POSITION, position), lambda: self._confirm_topics(read))

    def _confirm_topics(self, read: ReadBefore) -> None:
        """Raise RowsGone when the topics are not those that the checkpoint has read; OSError."""
        pin = read.manifest.pin(KAFKA, read.number)
        other = "their ids were never seen" if pin is None else Pin(*pin).differs(self.identity())
        if other:
            raise RowsGone(other)

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of these topics."""
        read = {place.topic for place in vector_of(line)}
        if self.topics and (more := sorted(read.difference(self.topics))):
            msg = (
                f"the query has read the topic {more[0]} of Kafka, which is not among {', '.join(self.topics)}, so its rows would not be waited for. "
                f"Name {', '.join(sorted(read))}."
            )
            raise CheckpointMismatch(msg)

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return the source for one run of a query; the first run pins the topics.

        Raises CheckpointMismatch, and OSError when Kafka does not answer.
        """
        if self.inputs is None:
            return OpenInjected(self, manifest, number)
        return OpenKafka(self, manifest, number)


def _by_topic(vector: Vector) -> dict[str, dict[str, int]]:
    """Return a vector as Spark's options and its offset log have it.

    >>> _by_topic({Partition("t", 1): 7})
    {'t': {'1': 7}}
    """
    topics: dict[str, dict[str, int]] = {}
    for place, offset in vector.items():
        topics.setdefault(place.topic, {})[str(place.number)] = offset
    return topics


def went_back(before: Line, now: Line) -> str:
    """Return in words which partition is below its offset in the line before; empty for none."""
    return below(vector_of(now), vector_of(before))


class Reach(NamedTuple):
    """Mark of a partition: how far it was seen, and under which leader."""

    offset: int
    """Offset before which all rows were there, acknowledged."""
    epoch: int
    """Epoch of the leader then; none of these rows has a later epoch."""


def led_anew(marks: Mapping[Partition, Reach], epochs: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return, with the epoch of its mark, each partition that has a newer leader than the mark.

    >>> one, two = Partition("t", 0), Partition("t", 1)
    >>> led_anew({one: Reach(5, 3), two: Reach(7, 3)}, {one: 3, two: 4})
    {Partition(topic='t', number=1): 3}
    """
    return {place: mark.epoch for place, mark in marks.items() if epochs.get(place, -1) > mark.epoch}


def marked(marks: Mapping[Partition, Reach], vector: Vector, epochs: Mapping[Partition, int]) -> dict[Partition, Reach]:
    """Return the marks after partitions were seen up to ``vector`` under leaders of these epochs.

    Neither part of a mark goes down.

    >>> place = Partition("t", 0)
    >>> marked({place: Reach(5, 3)}, {place: 4}, {place: 4})[place]
    Reach(offset=5, epoch=4)
    >>> marked({}, {place: 4}, {place: 4})[place]
    Reach(offset=4, epoch=4)
    """
    newest = dict(marks)
    for place in vector.keys() & epochs.keys():
        old = newest.get(place, _NONE)
        newest[place] = Reach(max(old.offset, vector[place]), max(old.epoch, epochs[place]))
    return newest


class _Answer(NamedTuple):
    """State of the topics at one moment."""

    identity: Identity
    lost: str
    """First partition whose log ends before its mark under a new leader, in words; empty: none."""


class Pin(NamedTuple):
    """Identity of the topics and marks of the partitions, stored in the checkpoint's manifest."""

    cluster: str
    ids: Mapping[str, str]
    truncated: str = ""
    """Partition that was seen to end before rows that were read, in words; empty: none. The reason
    stays when the log grows again."""
    marks: Mapping[str, Mapping[str, tuple[int, int]]] = {}
    """Marks by topic and partition number, each an offset and an epoch (:class:`Reach` as JSON)."""

    def differs(self, now: Identity) -> str:
        """Return in words which id differs from the pinned one; empty for none.

        >>> Pin("c", {"t": "1"}).differs(Identity("c", 1, {"t": "2"}, {"t": 1}))
        'the topic t is another one (its id was 1 and is 2)'
        """
        if now.cluster != self.cluster:
            return f"the cluster is another one (its id was {self.cluster} and is {now.cluster})"
        for topic, pinned_id in sorted(self.ids.items()):
            if now.ids.get(topic) != pinned_id:
                return f"the topic {topic} is another one (its id was {pinned_id} and is {now.ids.get(topic)})"
        return ""


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Progress of one run in reading the topics of marks.

    It counts only while the ids and leaders of these topics stay: after a change, marks may be
    missing.
    """

    ids: Mapping[str, str]
    epochs: Mapping[Partition, int]
    read: Vector
    """Offsets up to which the marks were read."""
    written: Vector
    """Ends of the rows to wait for."""

    def goes_on(self, now: Identity, ends: Vector) -> bool:
        """Return whether ids and leaders are the same and no topic ends before ``read``."""
        ids = {topic: now.ids[topic] for topic in self.ids}
        epochs = {place: now.epochs[place] for place in ends}
        return (ids, epochs) == (self.ids, self.epochs) and not below(ends, self.read)


class OpenKafka(OpenSource):
    """The topics of a running query.

    Its offset is a vector of next offsets, its head one of ends.
    """

    def __init__(
        self, source: KafkaSource, manifest: Manifest, number: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._cluster = source.cluster
        self._manifest = manifest
        self._number = number
        self._first = manifest.checkpoint / "sources" / str(number) / "0"
        """File in which Spark notes the first offsets of the query."""
        self._first_checked = False
        """True once the first offsets were checked."""
        self._synced = False
        self._committed: Vector = {}
        self._planned: Vector = {}
        """End of the newest planned batch."""
        self._clock = clock
        self._knocked: tuple[Line, _Answer] | None = None
        """Line of a committed batch, and Kafka's answer, for :meth:`confirm`."""
        self._lock = threading.Lock()
        """Guards the pin and the marks: looks and confirmations run in different threads."""
        self._pin = self._pinned()
        self._marks: dict[Partition, Reach] = {
            Partition(topic, int(number)): Reach(*mark)
            for topic, numbers in self._pin.marks.items()
            for number, mark in numbers.items()
        }
        self._saved = dict(self._marks)
        """Marks that the manifest has."""
        self._saved_at = clock()
        self._ledger: _Ledger | None = None
        """Progress in the topics of marks; None: the next look begins at the ends."""
        self._open: dict[Partition, tuple[int, str | None]] = {}
        """Open transactions at the last look: first offset, and transactional id; None: not asked
        yet."""

    def _pinned(self) -> Pin:
        """Return the stored pin; before the query's first batch make one and store it durably."""
        entry = self._manifest.pin(KAFKA, self._number)
        if entry is not None:
            pin = Pin(*entry)
            if set(pin.ids) != set(self._source.topics):
                msg = (
                    f"{self._manifest.checkpoint} has read {', '.join(sorted(pin.ids))}, and the query reads {', '.join(self._source.topics)}. Start it with "
                    "its first topics, or from a new checkpoint, with adopt=True."
                )
                raise CheckpointMismatch(msg)
            if pin.truncated:
                raise CheckpointMismatch(_TRUNCATED.format(back=pin.truncated))
            return pin
        if self._first.exists():
            msg = (
                f"{self._manifest.checkpoint} has read {self._source.name}, and has no ids of these topics: they may have been deleted and created again "
                "since. Start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        now = self._source.identity()
        # A stage with inputs needs every row, unless its options say that it skips earlier ones:
        # rows that Kafka has removed would count as read. An injector (no inputs) reports only its
        # own rows, and so may begin anywhere.
        needs_all = self._source.inputs and not skips_earlier(self._source.options)
        begins = self._cluster.beginnings(now.partitions) if needs_all else {}
        if removed := {place: at for place, at in begins.items() if at}:
            raise CheckpointMismatch(_REMOVED.format(place=min(removed), at=removed[min(removed)]))
        return self._keep(Pin(now.cluster, dict(now.ids)))

    def _keep(self, pin: Pin) -> Pin:
        """Adopt a pin, then store it durably.

        The pin may note that Kafka has truncated a partition's log. If storing it fails, this run
        still knows and holds the watermark; else, once the log has grown again, the watermark could
        pass the lost rows.
        """
        self._pin = pin
        self._manifest.keep_pin(KAFKA, self._number, pin)
        return pin

    # -- lines -------------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the committed one; check the query's first offsets once.

        Raises CheckpointMismatch, OSError.
        """
        vector = vector_of(line)
        if back := below(vector, self._committed):
            raise CheckpointMismatch(_TRUNCATED.format(back=back))
        self._planned = vector
        if line != NONE and self._source.inputs and not self._first_checked:
            first = vector_of(lines_of(self._first.read_text(encoding="utf-8").lstrip("\0"))[-1])
            skipped = {place: at for place, at in first.items() if at}
            if skipped and not skips_earlier(self._source.options):
                raise CheckpointMismatch(_REMOVED.format(place=min(skipped), at=skipped[min(skipped)]))
            if skipped:
                skipped_offsets = ", ".join(f"{place} from offset {at}" for place, at in list(skipped.items())[:_NAMED])
                more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
                logger.warning(
                    "a query reads %s%s: %s=skip, so earlier rows count for nothing", skipped_offsets, more, EARLIER
                )
            self._first_checked = True

    def knock(self, line: Line) -> None:
        """Ask Kafka for the answer that :meth:`confirm` needs. Raises OSError."""
        self._knocked = line, self._ask()

    def confirm(self, line: Line) -> None:
        """Check that the topics are the pinned ones and that none has lost rows that it had.

        Raises CheckpointMismatch, and OSError when Kafka does not answer. An answer that was asked
        for this line counts for every batch that ends at it: the later ones have read no row.
        """
        knocked, self._knocked = self._knocked, None
        now, lost = knocked[1] if knocked is not None and knocked[0] == line else self._ask()
        if other := self._pin.differs(now):
            raise CheckpointMismatch(_REPLACED.format(other=other))
        if lost:
            self._cut_off(lost)
            raise CheckpointMismatch(_TRUNCATED.format(back=lost))
        self._committed = vector_of(line)
        self._mark(self._committed, now.epochs)
        self._synced = True

    def _ask(self, *, ledgers: bool = False) -> _Answer:
        """Describe the topics, and find what was lost where another broker leads by now.

        Raises OSError.
        """
        marks = dict(self._marks)
        now = self._source.identity(ledgers=ledgers)
        led_since = led_anew(marks, now.epochs)
        ends = self._cluster.epoch_ends(led_since, now) if led_since and not self._pin.differs(now) else {}
        return _Answer(now, below(ends, {place: marks[place].offset for place in ends}))

    def _mark(self, vector: Vector, epochs: Mapping[Partition, int]) -> None:
        """Raise the marks, and store them every :data:`_KEEP` seconds.

        The marks are stored at once when a leader is new: a later run finds a truncation by the
        epoch of the stored mark.
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
            self._keep(self._pin._replace(marks=marks))
            self._saved, self._saved_at = dict(self._marks), self._clock()

    def _cut_off(self, reason: str) -> None:
        with self._lock:
            self._keep(self._pin._replace(truncated=reason))

    def close(self) -> None:
        """Store the marks. Raises CheckpointMismatch, OSError."""
        if self._marks != self._saved:
            self._save()

    def evidence(self, line: Line) -> list[Location]:
        """Return the file in which Spark notes the first offsets of the query."""
        return [self._first] if not self._synced and self._first.exists() else []

    # -- heads -------------------------------------------------------------------------------------

    def head(self, settled: Line) -> Ends:
        """List the ends, between two descriptions of the topics.

        Raises OSError when an end is unknown, and Replaced when the topics are not the pinned ones
        or have lost rows.
        """
        marks = dict(self._marks)
        before, lost = self._look_at()
        # The topics of marks are read before ``ends`` are listed. batch.write_kafka writes a mark
        # after its rows are acknowledged, so ``ends`` have the rows of each mark. In the other
        # order a new mark could be above ``ends``, as if Kafka had cut the partition off, and the
        # watermark would hold for good. (``marks`` are others, of the ends that were seen before.)
        marks_read_to = self._read_marks(before)
        ends = self._source.listed(before, self._source.topics)
        stable = self._cluster.ends([*ends], before.epochs, committed=True) if self._source.committed_only else ends
        if self._source.identity(ledgers=True) != before:
            msg = f"{self._source.name} changed while their ends were listed"
            raise OSError(msg)
        waited = ends if self._ledger is None else self._ledger.written
        mark_offsets = {place: mark.offset for place, mark in marks.items()}
        if back := lost or below(ends, vector_of(settled)) or below(ends, mark_offsets) or below(ends, waited):
            self._cut_off(back)
        if self._pin.truncated:
            raise Replaced(_TRUNCATED.format(back=self._pin.truncated))
        self._mark(ends, before.epochs)
        if marks_read_to and self._ledger is None:
            ids = {topic: before.ids[topic] for topic in self._source.ledgers}
            self._ledger = _Ledger(ids, {place: before.epochs[place] for place in marks_read_to}, marks_read_to, ends)
        return Ends(waited, stable, self._holders(ends, stable))

    def _read_marks(self, now: Identity) -> Vector:
        """Read the marks written since the last look; return the ends of the topics of marks.

        Raises OSError. After that, and when a topic of marks has changed, the next look takes the
        ends of the partitions as the head.
        """
        if not self._source.by_marks:
            return {}
        ledger_ends = self._source.listed(now, self._source.ledgers)
        ledger, self._ledger = self._ledger, None
        if ledger is None or not ledger.goes_on(now, ledger_ends):
            try:
                self._source.check_topics(self._source.ledgers)
            except Unsupported as refusal:
                raise OSError(str(refusal)) from refusal
            return ledger_ends
        try:
            marks = self._cluster.marks_between(ledger.read, ledger_ends) if ledger.read != ledger_ends else []
        except ValueError as error:
            raise OSError(str(error)) from error
        self._ledger = replace(ledger, read=ledger_ends, written=written(ledger.written, marks, self._pin.ids))
        return ledger_ends

    def _holders(self, ends: Vector, stable: Vector) -> dict[Partition, str]:
        """Return the transactional ids of some of the open transactions.

        Most transactions end before the next look. So Kafka is asked, once, only for those that
        were open at the look before as well.
        """
        before, self._open = self._open, {}
        for place in sorted(place for place, since in stable.items() if since < ends[place])[:_NAMED]:
            since, (previous, transactional_id) = stable[place], before.get(place, (-1, None))
            if previous == since and transactional_id is None:
                try:
                    transactional_id = self._cluster.holder(place, since)
                except OSError as failure:
                    logger.debug("the owner of the transaction open in %s is not known: %s", place, failure)
                    transactional_id = ""
            self._open[place] = since, transactional_id if previous == since else None
        return {place: transactional_id for place, (_, transactional_id) in self._open.items() if transactional_id}

    def _look_at(self) -> _Answer:
        """Describe the topics for a head.

        Raises Replaced when they are not the pinned ones; OSError when Kafka does not answer, and
        when it has more brokers than are declared.
        """
        try:
            now, lost = self._ask(ledgers=True)
        except OSError as failure:
            ledgers = self._source.ledgers
            if ledgers and (missing := sorted(set(ledgers) - self._cluster.existing(ledgers))):
                msg = (
                    f"the topic {missing[0]} is missing, or this user may not see it: the writer of {self._source.name} has not begun, or does not use "
                    f"batch.write_kafka. Start the writer; or start this query without the option {HEAD}"
                )
                raise OSError(msg) from failure
            raise
        if other := self._pin.differs(now):
            raise Replaced(_REPLACED.format(other=other))
        if now.brokers > self._source.brokers:
            msg = (
                f"the cluster of {self._source.name} has {now.brokers} brokers by now, and {self._source.brokers} are declared. Start the query with "
                f'option("{BROKERS}", "{now.brokers}")'
            )
            raise OSError(msg)
        return _Answer(now, lost)

    def renewed(self, head: Ends, listed: Ends, planned: Line | None) -> Ends:
        """Return the head with its own ends, and with the open transactions of a newer listing."""
        return Ends(head.ends, listed.stable, listed.holders)

    def reached(self, head: Ends, offset: Line | None) -> bool:
        """Return whether each partition was read to its end and no log was truncated.

        After a truncation, other rows may be under the offsets that were waited for.
        """
        return not self._pin.truncated and not unread(head.ends, {} if offset is None else vector_of(offset))

    def same(self, one: Ends, other: Ends) -> bool:
        """Return whether both heads have the same ends."""
        return one.ends == other.ends

    def missing(self, head: Ends, limit: int) -> list[str]:
        """Return in words up to ``limit`` unread partitions, first those with open transactions."""
        limits = ", ".join(name for name in _LIMITS if name.lower() in self._source.options)
        blocked, others = [], []
        for place in unread(head.ends, self._committed):
            read, end = self._committed.get(place, 0), head.ends[place]
            so_far, stable = f"{place} (read to {read} of {end}", head.stable.get(place, end)
            if stable < end:
                holder = head.holders.get(place)
                blocked.append(
                    f"{so_far}: a transaction is open since {stable}{f', that of {holder}' if holder else ''})"
                )
            elif self._planned.get(place, 0) >= end:
                others.append(f"{so_far}: the running batch reads the rest)")
            else:
                others.append(f"{so_far}: {limits} may leave them to later batches)" if limits else f"{so_far})")
        return [*blocked, *others][:limit]


class OpenInjected(OpenOpaque):
    """The topics of an injector's running query, which has no head.

    The topics must keep their ids: one that was deleted and created again has other rows under its
    offsets. Topics that the options name are pinned before the first batch, topics of a pattern
    when a batch that has read of them is committed.
    """

    def __init__(self, source: KafkaSource, manifest: Manifest, number: int) -> None:
        super().__init__(KAFKA, manifest.checkpoint / "sources" / str(number), order=went_back)
        self._source = source
        self._manifest = manifest
        self._number = str(number)
        entry = (manifest["kafka_ids"] or {}).get(self._number)
        self._pin = Pin("", {}) if entry is None else Pin(*entry)
        self._knocked: tuple[Line, Identity | None] | None = None
        self._compare(self._ask(NONE))

    def _ask(self, line: Line) -> Identity | None:
        """Return the ids of the topics that the options name, else the line, else the pin.

        None when there is no topic, or no Kafka client to ask. Raises OSError.
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
            logger.warning(
                "lowwater would not notice a topic of %s that is created anew: %s", self._source.name, refusal
            )
            return None
        return Identity(name, 0, ids, {})

    def knock(self, line: Line) -> None:
        """Ask Kafka for the answer that :meth:`confirm` needs. Raises OSError."""
        self._knocked = line, self._ask(line)

    def confirm(self, line: Line) -> None:
        """Check that the topics are the pinned ones, and pin new ones.

        Raises CheckpointMismatch, and OSError when Kafka does not answer.
        """
        knocked, self._knocked = self._knocked, None
        self._compare(knocked[1] if knocked is not None and knocked[0] == line else self._ask(line))
        super().confirm(line)

    def _compare(self, now: Identity | None) -> None:
        if now is None:
            return
        pinned = {topic: topic_id for topic, topic_id in self._pin.ids.items() if topic in now.ids}
        if self._pin.ids and (other := self._pin._replace(ids=pinned).differs(now)):
            raise CheckpointMismatch(_REPLACED.format(other=other))
        new = {topic: topic_id for topic, topic_id in now.ids.items() if topic_id != NO_ID}
        if not new.items() <= self._pin.ids.items():
            pin = Pin(now.cluster, {**self._pin.ids, **new})
            self._manifest.keep_entry("kafka_ids", self._number, [pin.cluster, pin.ids])
            self._pin = pin


def _check_ids(identity: Identity) -> None:
    nameless = sorted(topic for topic, topic_id in identity.ids.items() if topic_id == NO_ID)
    if not identity.cluster or nameless:
        what = f"the topic {nameless[0]}" if nameless else "the cluster"
        raise Unsupported(
            f"Kafka as the source of a stage with inputs, where {what} has no id",
            "lowwater could not tell a topic that was created anew from the one that was read",
            "Upgrade the brokers: Kafka gives ids since 2.8. Or begin the pipeline here with lws.injector(), which reports how far it is.",
        )


_NONE: Final = Reach(0, -1)

_NAMED: Final = 5
"""Number of partitions that a message or a look names at most."""

_LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Options by which a batch leaves existing rows to later batches."""

_KEEP: Final = 5.0
"""Least seconds between two stores of the marks while no leader is new; a store costs two fsyncs.
"""

_OTHER: Final = 'is no offset of Kafka, like {"topic":{"0":5}}'

_REPLACED: Final = "{other}: the checkpoint has read the old one. Start from a new checkpoint, with adopt=True."

_SKIP: Final = f'If the stage does not need earlier rows, declare it: option("{EARLIER}", "skip").'

_REMOVED: Final = (
    "{place} begins at {at}: Kafka removed the rows before, and they would count as read. Keep all rows of the topic (retention.ms=-1), or begin the pipeline "
    f"here with lws.injector(). {_SKIP}"
)

_TRUNCATED: Final = "the log of a topic was cut off: {back}. Acknowledged rows are gone, or other rows have their offsets. Start from a new checkpoint, with adopt=True."
