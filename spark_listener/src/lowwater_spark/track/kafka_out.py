"""One stage's rows into one topic of Kafka, each once: staged, then published.

A batch that runs again may make other rows, so what was published of it must never be completed
from a second run. The frame runs once, into files in a hidden directory, that is renamed to
``batch=N``. From there on the batch is what stands in these files: they are published by a fixed
number of slots, in a job of its own, each slot in a transaction with its mark
(:mod:`lowwater_spark.track.kafka_slot`). A batch that is run again finds the files, publishes what
is missing, and makes nothing anew. The driver goes on when it has read the marks of all slots.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.kafka_client import client_settings, confluent, consumer_of
from lowwater_spark.sources.kafka_marks import Begun, Slot, SlotMark, marks_topic, parse, same_id
from lowwater_spark.track.handover import publish_directory, sweep
from lowwater_spark.track.kafka_slot import (
    PATIENCE,
    PUBLISHED,
    Published,
    Publishing,
    bounds,
    publish_slots,
    published_of,
    until,
)
from lowwater_spark.track.state import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["KafkaOut", "kafka_columns", "spread"]

logger = logging.getLogger("lowwater.spark")

SECTION: Final = "kafka_out"
"""Of the checkpoint's manifest."""

_FORMAT: Final = 1
_STAGED: Final = "staged.json"
_FILE: Final = "partition int, name string, rows long"

_KEPT: Final = 3
"""Staged batches that stay: the one that runs, the one before it, which says what the marks must
say, and one more."""

_SLOTS: Final = 8
"""At most, unless the user says another number."""

_MARKS: Final = 16
"""Partitions of a new topic of marks, at least: slots of other writers are rarely in the same."""

_BY: Final[Mapping[str, str]] = {
    "buffer.memory": "kafka.queue.buffering.max.kbytes",
    "max.request.size": "kafka.message.max.bytes",
    "max.block.ms": "nothing in its place",
    "partitioner.class": "kafka.partitioner",
    "sasl.jaas.config": "kafka.sasl.username and kafka.sasl.password",
    "ssl.keystore.type": "kafka.ssl.keystore.location, of a PKCS#12 file",
    "ssl.truststore.location": "kafka.ssl.ca.location, of a PEM file",
    "ssl.truststore.password": "kafka.ssl.ca.location, of a PEM file",
    "ssl.truststore.type": "kafka.ssl.ca.location, of a PEM file",
}
"""What librdkafka has for options of Kafka's own client."""


_ANSWERS_WITHIN: Final = 5.0
"""Seconds that a client has for its first answer."""

_PAUSE: Final = 0.1
"""Seconds between two rounds of asking."""

_SILENT: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"})
"""The names of what a client says when no broker answers it."""

_keeping: Final = threading.Lock()
"""Threads of one function may begin with several topics at once, and each adds its own to what is
kept."""


class _Topic(NamedTuple):
    """What Kafka says of a topic."""

    id: str
    partitions: int
    copies: int


class _Staged(NamedTuple):
    """The directory of a staged batch."""

    id: str
    after: int
    """What the marks say before it; 0: there are none."""
    slots: Sequence[Sequence[str]]
    """The names of the files, by slot."""


def spread(files: Iterable[tuple[str, int]], slots: int) -> list[list[str]]:
    """Return which slot publishes which files, given with their number of rows: to each goes the next one that has the fewest rows.

    >>> spread([("a", 5), ("b", 1), ("c", 3)], 2)
    [['a'], ['b', 'c']]
    """
    found: list[list[str]] = [[] for _ in range(slots)]
    rows = [0] * slots
    for name, count in files:
        least = rows.index(min(rows))
        found[least].append(name)
        rows[least] += count
    return found


@dataclass(slots=True)
class KafkaOut:
    """The output of one stage into one topic, for one run.

    The function's threads call it, one at a time.
    """

    place: Place
    """Of the stage."""
    folder: Path
    """Where the batches are staged."""
    writer: str
    """The full name of the computation."""
    topic: str
    options: Mapping[str, object]
    """As the user gave them."""
    ordinal: int
    """Of the run."""
    settings: dict[str, str] = field(init=False)
    checkpoint: str = field(init=False, default="")
    slots: int = field(init=False, default=0)
    marks: int = field(init=False, default=0)
    """How many partitions of the topic of marks count."""
    first: int = field(init=False, default=0)
    """The first batch that was staged."""
    life: int = field(init=False, default=0)
    """The newest of the computation in which the checkpoint has written; 0: it was never claimed.
    """
    _pinned: str = field(init=False, default="")
    """The id of the topic."""
    _partitions: int = field(init=False, default=0)
    _admin: Any = field(init=False, default=None)
    _reader: Any = field(init=False, default=None)

    def open(self, session: SparkSession, batch: int, slots: int | None, life: int = 0) -> None:
        """Begin a run's part: find the topic, or refuse it, and fix what stays as long as the checkpoint.

        Raises Unsupported, ValueError, CheckpointMismatch, and OSError when Kafka does not answer. Costs some round trips; a new checkpoint reads the
        marks of all others, and ends what those of the same computation have left open.
        """
        if slots is not None and slots < 1:
            msg = f"slots says how many transactions publish a batch, so it is at least 1: {slots}"
            raise ValueError(msg)
        self.settings = client_settings(self.options)
        self._check_client()
        if str(session.sparkContext.getConf().get("spark.speculation", "false")).lower() == "true":
            raise Unsupported(
                "batch.write_kafka with spark.speculation",
                "of two attempts of a task each would end the transaction of the other",
                "Set spark.speculation to false in the configuration of the application.",
            )
        self._admin = confluent().admin.AdminClient(self.settings)
        self.checkpoint = identity(self.place.manifest.checkpoint)
        cluster, found = self._cluster(), self._describe(self.topic)
        if found is None:
            raise Unsupported(
                f"The topic {self.topic}, which is not there,",
                "how many partitions and replicas it should have only you know",
                f"Make it: kafka-topics.sh --bootstrap-server {self.settings['bootstrap.servers']} --create --topic {self.topic} --partitions 8 "
                "--replication-factor 3 --config min.insync.replicas=2 --config unclean.leader.election.enable=false",
            )
        kept: Mapping[str, Any] | None = self._sections().get(self.place.name, {}).get(self.topic)
        if kept is None:
            self.slots = slots or min(session.sparkContext.defaultParallelism, _SLOTS)
            marks = self._marks_topic(found)
            kept = {
                "cluster": cluster,
                "topic_id": found.id,
                "slots": self.slots,
                "marks": marks.partitions,
                "marks_id": marks.id,
                "first": batch,
                "folder": os.fspath(self.folder),
                "life": life,
            }
            if self.slots > kept["marks"]:
                msg = (
                    f"{marks_topic(self.topic)} has {kept['marks']} partitions, and each of the {self.slots} slots needs one of its own: pass "
                    f"slots={kept['marks']}, or add partitions to it"
                )
                raise ValueError(msg)
            self._end_others(life)
            self._keep(kept)
        self._take(kept, cluster, found, slots)
        sweep(self.folder, self.ordinal)

    def close(self) -> None:
        """Let the connections go."""
        reader, self._reader, self._admin = self._reader, None, None
        if reader is not None:
            reader.close()

    def write(
        self,
        frame: DataFrame,
        batch: int,
        digest: str,
        *,
        replayed: bool,
        probe: Callable[[str, int], None],
        life: int = 0,
    ) -> bool:
        """Stage a batch, unless it is, and publish what is missing of it; False if nothing was.

        Durable when it returns, and visible.

        ``digest`` is the plan's, ``life`` the computation's, 0 while the run has not claimed it.
        Raises CheckpointMismatch when Kafka has another batch of this checkpoint than it should,
        and OSError when it does not answer.
        """
        name, rows = f"batch={batch}", frame.select(*kafka_columns(frame, self._partitions))
        if life > self.life:
            # Who goes on in an earlier one must not write behind what this one promises.
            self._end_others(life)
            self._keep({**self._sections()[self.place.name][self.topic], "life": life})
            self.life = life
        if (self.folder / name).exists() and not replayed:
            msg = (
                f"{self.folder / name} exists, but no run of this checkpoint had begun batch {batch}: the directory 'lowwater' of the checkpoint is older "
                "than what is staged, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        publish_directory(
            self.folder, name, digest, lambda folder: self._stage(rows, batch, folder), ordinal=self.ordinal
        )
        probe("rows staged", batch)
        staged = self._read(batch)
        done = self._publish(frame.sparkSession, batch, digest, staged)
        probe("rows published", batch)
        self._verify(done, batch, staged)
        self._confirm()
        self._clean(batch)
        return any(each.wrote for each in done)

    # -- what stays --------------------------------------------------------------------------------

    def _sections(self) -> Mapping[str, Any]:
        return self.place.manifest[SECTION] or {}

    def _keep(self, kept: Mapping[str, Any]) -> None:
        with _keeping:
            everything = self._sections()
            mine = {**everything.get(self.place.name, {}), self.topic: kept}
            self.place.manifest.keep(SECTION, {**everything, self.place.name: mine})

    def _take(self, kept: Mapping[str, Any], cluster: str, found: _Topic, slots: int | None) -> None:
        """Take what the checkpoint says.

        Raises CheckpointMismatch when it is another topic, or the user says another thing.
        """
        if (kept["cluster"], same_id(kept["topic_id"])) != (cluster, found.id):
            raise CheckpointMismatch(_REPLACED.format(topic=self.topic, before=kept["topic_id"], now=found.id))
        if slots not in (None, kept["slots"]):
            msg = (
                f"{self.topic} is written by {kept['slots']} slots, and {slots} are asked for: they stay as long as the checkpoint. Pass "
                f"slots={kept['slots']}, or start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        if kept["folder"] != os.fspath(self.folder) and not self.place.is_moved(kept["folder"], self.folder):
            msg = f"the batches for {self.topic} are staged in {kept['folder']}, not in {self.folder}; pass the same path in every batch"
            raise CheckpointMismatch(msg)
        marks = self._describe(marks_topic(self.topic))
        if marks is None or marks.id != same_id(kept["marks_id"]):
            msg = (
                f"{marks_topic(self.topic)}, which says how far {self.topic} was written, was deleted or made anew: what of a batch is there cannot be "
                "known. Start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        self.slots, self.marks, self.first = kept["slots"], kept["marks"], kept["first"]
        self.life = kept.get("life", 0)
        self._pinned, self._partitions = found.id, found.partitions

    def _slot(self, number: int = 0) -> Slot:
        return Slot(self.checkpoint, self.place.name.rpartition("/")[2], self.topic, number)

    # -- staged ------------------------------------------------------------------------------------

    def _stage(self, rows: DataFrame, batch: int, folder: Path) -> None:
        """Run a frame once, into files of a directory.

        Each partition of it has one, which one slot publishes in its order.
        """
        staged = rows.mapInArrow(partial(_stage_rows, os.fspath(folder)), _FILE).collect()
        files = sorted((row.partition, row.name, row.rows) for row in staged)
        # What failed attempts of a task have left.
        for left in {path.name for path in folder.iterdir()} - {name for _, name, _ in files}:
            (folder / left).unlink()
        content = {
            "format": _FORMAT,
            "staged": uuid.uuid4().hex,
            "after": self._after(batch),
            "slots": spread([(name, count) for _, name, count in files], self.slots),
        }
        (folder / _STAGED).write_text(json.dumps(content), encoding="utf-8")

    def _after(self, batch: int) -> int:
        """Return what the marks must say before a batch: that of the newest batch that was staged before it."""
        earlier = [number for number in self._batches() if number < batch]
        if earlier:
            return max(earlier) + 1
        return 0 if batch == self.first else batch

    def _batches(self) -> list[int]:
        names = [entry.name.removeprefix("batch=") for entry in self.folder.iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, batch: int) -> _Staged:
        path = self.folder / f"batch={batch}" / _STAGED
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            msg = f"{path} is of format {content['format']}; this release reads {_FORMAT}. Use the release that wrote it, or a newer one."
            raise CheckpointMismatch(msg)
        return _Staged(content["staged"], content["after"], content["slots"])

    def _clean(self, batch: int) -> None:
        """Remove what was staged of batches that are long committed."""
        for old in [number for number in self._batches() if number <= batch][:-_KEPT]:
            shutil.rmtree(self.folder / f"batch={old}", ignore_errors=True)

    # -- published ---------------------------------------------------------------------------------

    def _publish(self, session: SparkSession, batch: int, digest: str, staged: _Staged) -> list[Published]:
        folder = self.folder / f"batch={batch}"
        job = Publishing(
            settings=self.settings,
            slot=self._slot(),
            writer=self.writer,
            marks=self.marks,
            batch=batch,
            after=staged.after,
            digest=digest,
            staged=staged.id,
            topic_id=self._pinned,
            partitions=self._partitions,
            files=[[os.fspath(folder / name) for name in names] for names in staged.slots],
            life=self.life,
        )
        slots = session.range(0, self.slots, 1, self.slots)
        done = [published_of(row) for row in slots.mapInArrow(partial(publish_slots, job), PUBLISHED).collect()]
        if refused := next((each.refused for each in sorted(done, key=lambda each: each.slot) if each.refused), ""):
            raise CheckpointMismatch(refused)
        return done

    def _verify(self, done: Sequence[Published], batch: int, staged: _Staged) -> None:
        """Read the marks that the tasks speak of, as any reader does.

        Raises OSError when one cannot be read, CheckpointMismatch when it says another thing.
        """
        missing = {self._slot(number) for number in range(self.slots)}
        first: dict[int, int] = {}
        for each in done:
            place = self._slot(each.slot).partition(self.marks)
            first[place] = min(each.at, first.get(place, each.at))
        # A writer beside it that was killed at its mark may hide them, until Kafka ends what it has
        # open.
        deadline = time.monotonic() + 2 * PATIENCE
        for said in self._from(first, deadline):
            if isinstance(said, SlotMark) and (said.next, said.staged) == (batch + 1, staged.id):
                missing.discard(said.slot)
            if not missing:
                return
        lost = ", ".join(str(slot.number) for slot in missing)
        msg = f"slot {lost} of {self.writer} says that batch {batch} is in {self.topic}, and {marks_topic(self.topic)} does not say so"
        raise OSError(msg)

    def _from(self, first: Mapping[int, int], deadline: float) -> Iterator[SlotMark | Begun | None]:
        """Yield what the committed marks say, from offsets of partitions on, as long as there is time."""
        if self._reader is None:
            self._reader = consumer_of(self.settings, committed=True)
        place = confluent().TopicPartition
        self._reader.assign([place(marks_topic(self.topic), partition, at) for partition, at in first.items()])
        while time.monotonic() < deadline:
            message = self._reader.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield parse(message.key(), message.value())
            elif error.name() != "_PARTITION_EOF":
                raise OSError(str(error))

    # -- the cluster -------------------------------------------------------------------------------

    def _check_client(self) -> None:
        """Find the option that the client library does not take. Raises Unsupported, naming it."""
        library = confluent()
        try:
            library.Producer({**self.settings, "transactional.id": "lw-check"})
        except library.KafkaException as error:
            for name, value in self.settings.items():
                try:
                    library.Producer({"log_level": "0", "bootstrap.servers": "localhost", name: value})
                except library.KafkaException as failure:
                    raise _not_taken(f"the option kafka.{name}", failure, _BY.get(name, "")) from failure
            raise _not_taken("these options", error, "") from error

    def _cluster(self) -> str:
        found = self._asked(lambda admin, within: admin.describe_cluster(request_timeout=within))
        return str(found.cluster_id)

    def _describe(self, topic: str) -> _Topic | None:
        """Return what Kafka says of a topic; None when there is none. Raises OSError."""
        asked = confluent().TopicCollection([topic])
        found = self._asked(
            lambda admin, within: admin.describe_topics(asked, request_timeout=within)[topic],
            but="UNKNOWN_TOPIC_OR_PART",
        )
        if found is None:
            return None
        return _Topic(same_id(str(found.topic_id)), len(found.partitions), len(found.partitions[0].replicas))

    def _asked(self, ask: Callable[[Any, float], Any], *, but: str = "") -> Any:
        """Return what Kafka answers; None for the error of this name.

        Raises OSError for any other, and when it is silent.
        """
        try:
            return self._answer(ask)
        except confluent().KafkaException as error:
            if error.args[0].name() == but:
                return None
            msg = f"Kafka at {self.settings['bootstrap.servers']} refuses: {error.args[0].str()}"
            raise OSError(msg) from error

    def _answer(self, ask: Callable[[Any, float], Any]) -> Any:
        """Return what the future of a call brings, which gets an admin client and the seconds that it may take. Raises KafkaException for an answer that is an error, OSError when nobody answers.

        A client stays with a broker that has stopped answering, and does not hear who has taken its place: so a new one is asked in turn with it, which knows only the addresses of the
        options. Each time they have longer.
        """
        library = confluent()
        deadline, within = time.monotonic() + PATIENCE, _ANSWERS_WITHIN
        clients = [self._admin]
        while True:
            silent: Exception | None = None
            for client in clients:
                try:
                    answer = ask(client, within).result(PATIENCE)
                except library.KafkaException as error:
                    if error.args[0].name() not in _SILENT:
                        raise
                    silent = error
                else:
                    self._admin = client
                    return answer
            if time.monotonic() >= deadline:
                msg = f"Kafka at {self.settings['bootstrap.servers']} does not answer: {silent}"
                raise OSError(msg) from silent
            time.sleep(_PAUSE)
            clients, within = [clients[0], library.admin.AdminClient(self.settings)], 2 * within

    def _confirm(self) -> None:
        """Make sure that the topic is still the one that was written.

        Raises CheckpointMismatch, OSError.
        """
        found = self._describe(self.topic)
        if found is None or found.id != self._pinned:
            now = "no topic" if found is None else found.id
            raise CheckpointMismatch(_REPLACED.format(topic=self.topic, before=self._pinned, now=now))
        self._partitions = found.partitions

    def _marks_topic(self, beside: _Topic) -> _Topic:
        """Return the topic of marks; make it if there is none, with the replicas of the other.

        Raises Unsupported, OSError.
        """
        name = marks_topic(self.topic)
        settings = self._topic_settings(self.topic)
        found = self._describe(name)
        if found is None:
            made = {
                "cleanup.policy": "compact",
                "min.insync.replicas": settings["min.insync.replicas"],
                "unclean.leader.election.enable": "false",
                # What is not compacted yet is read at the start of a new checkpoint.
                "segment.bytes": str(16 << 20),
            }
            self._make(name, max(_MARKS, self.slots), beside.copies, made)
            deadline = time.monotonic() + PATIENCE
            while found is None and time.monotonic() < deadline:
                found = self._describe(name)
                time.sleep(0.0 if found else 0.05)  # another broker than the one that has made it may answer
            if found is None:
                msg = f"{name} was made, and {self.settings['bootstrap.servers']} does not know it yet"
                raise OSError(msg)
        policy = self._topic_settings(name)["cleanup.policy"]
        if policy != "compact":
            raise Unsupported(
                f"The topic {name} with cleanup.policy={policy}",
                "what says how far a batch was published would be removed one day",
                f"Set it: kafka-configs.sh --bootstrap-server {self.settings['bootstrap.servers']} --alter --entity-type topics --entity-name {name} "
                "--add-config cleanup.policy=compact",
            )
        return found

    def _make(self, name: str, partitions: int, copies: int, settings: Mapping[str, str]) -> None:
        library = confluent()
        asked = library.admin.NewTopic(
            name, num_partitions=partitions, replication_factor=copies, config=dict(settings)
        )
        try:
            self._answer(
                lambda admin, within: admin.create_topics([asked], operation_timeout=PATIENCE, request_timeout=within)[
                    name
                ]
            )
        except library.KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            config = " ".join(f"--config {key}={value}" for key, value in settings.items())
            raise Unsupported(
                f"The topic {self.topic} without {name}",
                f"it says how far a batch was published, and it cannot be made: {error.args[0].str()}",
                f"Make it: kafka-topics.sh --bootstrap-server {self.settings['bootstrap.servers']} --create --topic {name} --partitions {partitions} "
                f"--replication-factor {copies} {config}",
            ) from error

    def _topic_settings(self, topic: str) -> Mapping[str, str]:
        admin = confluent().admin
        place = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)
        found = self._asked(lambda admin, within: admin.describe_configs([place], request_timeout=within)[place])
        return {name: str(entry.value) for name, entry in found.items()}

    # -- those that are gone -----------------------------------------------------------------------

    def _end_others(self, life: int) -> None:
        """End what writers of the same computation, with other checkpoints, have left open: readers of the topic would wait for it, up to a minute.

        One that is not gone begins anew, and is refused by what it finds then, if it is of an earlier life. What cannot be ended ends by itself.
        """
        library = confluent()
        for slot, partition in self._others(life):
            try:
                producer = library.Producer({**self.settings, "transactional.id": slot.transactional_id})
                producer.init_transactions(PATIENCE)
                producer.begin_transaction()
                key, value = Begun(slot, self.writer, ended=True, life=life).record()
                producer.produce(marks_topic(self.topic), value, key, partition)
                producer.commit_transaction(PATIENCE)
            except library.KafkaException as error:
                logger.warning("what %s may have open cannot be ended: %s", slot.transactional_id, error.args[0].str())

    def _others(self, life: int) -> list[tuple[Slot, int]]:
        """Return the slots that have begun for the same computation and that nobody has ended in a life, with the partition of their marks."""
        name, place = marks_topic(self.topic), confluent().TopicPartition
        marks = self._describe(name)
        assert marks is not None
        consumer = consumer_of(self.settings, committed=False)
        begun: dict[tuple[Slot, int], bool] = {}
        try:
            for partition in range(marks.partitions):
                deadline = time.monotonic() + PATIENCE
                first, end = bounds(consumer, place(name, partition), deadline)
                if first == end:
                    continue
                consumer.assign([place(name, partition, first)])
                for message in until(consumer, end, deadline):
                    said = parse(message.key(), message.value())
                    if isinstance(said, Begun) and said.writer == self.writer:
                        begun[said.slot, partition] = said.ended and said.life >= life
        except confluent().KafkaException as error:
            msg = f"{name} cannot be read: {error.args[0].str()}"
            raise OSError(msg) from error
        finally:
            consumer.close()
        return [each for each, ended in begun.items() if not ended and each[0].checkpoint != self.checkpoint]


def kafka_columns(frame: DataFrame, partitions: int) -> list[Column]:
    """Return the columns that Kafka takes, by their names. Raises ValueError.

    A row that no producer takes fails the job that stages the rows. Once staged, the rows of a
    batch are never made anew: such a row would end every start, also after the function was mended.
    ``partitions`` is how many the topic has.
    """
    from pyspark.sql import functions as sf

    types = {column.name: column.dataType.simpleString() for column in frame.schema.fields}
    if "value" not in types:
        msg = f"a frame for Kafka has a column value, of text or bytes, and this one has {', '.join(types)}"
        raise ValueError(msg)
    for name, found in types.items():
        if name not in _TYPES:
            msg = (
                f"a frame for Kafka has the columns {', '.join(_TYPES)}, and this one has {name}. Make one value of what belongs into it, as "
                "to_json(struct(*)); the topic is an argument, and each topic has a call of its own."
            )
            raise ValueError(msg)
        if found not in _TYPES[name]:
            msg = f"the column {name} for Kafka is of {' or '.join(_TYPES[name])}, not of {found}"
            raise ValueError(msg)
    columns = {name: sf.col(name).cast("binary") if name in ("key", "value") else sf.col(name) for name in types}
    if "headers" in columns:
        unnamed = sf.exists("headers", lambda header: header["key"].isNull())
        why = sf.raise_error(sf.lit("a header for Kafka is null, or its key is: leave it out, or name it"))
        columns["headers"] = sf.when(unnamed, why).otherwise(sf.col("headers")).alias("headers")
    if "partition" in columns:
        said = sf.col("partition")
        why = sf.raise_error(
            sf.concat(
                sf.lit("the column partition for Kafka says "),
                said.cast("string"),
                sf.lit(f", and the topic has the partitions 0 to {partitions - 1}; null lets Kafka choose"),
            )
        )
        columns["partition"] = sf.when((said < 0) | (said >= partitions), why).otherwise(said).alias("partition")
    return [*columns.values()]


def _stage_rows(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one partition into a file, and tell its name; without rows nothing.

    The task's body, in a Python worker.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId():05}-{context.taskAttemptId()}.parquet"
    rows, writer = 0, None
    for batch in batches:
        if batch.num_rows:
            writer = writer or pq.ParquetWriter(Path(folder, name), batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
    if writer is not None:
        writer.close()
        columns = [pa.array([context.partitionId()], pa.int32()), pa.array([name]), pa.array([rows], pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, names=["partition", "name", "rows"])


def _not_taken(what: str, error: Any, instead: str) -> Unsupported:
    return Unsupported(
        f"batch.write_kafka with {what}",
        f"librdkafka, which writes the transactions, does not take it: {error.args[0].str()}",
        f"Use {instead} instead." if instead else "Remove it, or give what librdkafka has in its place.",
    )


_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}
"""As for Spark's own sink."""

_REPLACED: Final = "the topic {topic} is another one (its id was {before} and is {now}): what was published is not in it. Start from a new checkpoint, with adopt=True."
