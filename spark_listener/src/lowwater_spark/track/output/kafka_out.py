"""Writes one stage's rows into one topic of Kafka, each exactly once: staged, then published.

A batch that runs again may produce other rows, so a half-published batch must never be completed
from a second run. Therefore the frame runs once, into files in a hidden directory, which is renamed
to ``batch=N``. From then on these files are the batch: a second job publishes them by a fixed
number of slots, each in a transaction with its mark
(:mod:`lowwater_spark.track.output.kafka_slot`). A replay finds the files and publishes what is
missing. The driver waits for the marks of all slots.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.checkpoint.location import local
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.complete.mark import Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.files.writers import digest_of
from lowwater_spark.sources.kafka.client import client_settings, confluent, consumer_of
from lowwater_spark.sources.kafka.marks import Begun, Slot, SlotMark, marks_topic, parse, same_id
from lowwater_spark.track.output.kafka_slot import (
    PATIENCE,
    PUBLISHED,
    Published,
    Publishing,
    bounds,
    publish_slots,
    published_of,
    until,
)
from lowwater_spark.track.output.outputs import BatchOutput, FoundBatch, OutputTurn, remember, remembered
from lowwater_spark.track.state.handover import publish_directory, sweep
from lowwater_spark.track.state.store import StageSection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["KafkaOut", "kafka_columns", "spread"]

logger = logging.getLogger("lowwater.spark")

SECTION: Final = "kafka_out"
"""Name of the section in the checkpoint's manifest."""

_FORMAT: Final = 1
_STAGED: Final = "staged.json"
_FILE: Final = "partition int, name string, rows long"

_KEPT: Final = 3
"""Number of staged batches that stay: the running one, the one before it, whose number the marks
must have, and one more."""

_SLOTS: Final = 8
"""Greatest default number of slots; the user may pass a greater one."""

_MARKS: Final = 16
"""Least number of partitions of a new topic of marks: few writers' slots then share one."""

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
"""The option of librdkafka that replaces an option of Kafka's own client."""


_ANSWERS_WITHIN: Final = 5.0
"""Seconds that a client may take for its first answer."""

_PAUSE: Final = 0.1
"""Seconds between two rounds of requests."""

_SILENT: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"})
"""Names of the errors that a client raises when no broker answers."""


class _Topic(NamedTuple):
    """Kafka's description of a topic."""

    id: str
    partitions: int
    copies: int


class _Staged(NamedTuple):
    """The content of a staged batch's directory."""

    id: str
    after: int
    """Number of the next batch that each slot's last mark must name before this batch is published;
    0: there are no marks yet."""
    slots: Sequence[Sequence[str]]


def spread(files: Iterable[tuple[str, int]], slots: int) -> list[list[str]]:
    """Return the files of each slot: each file, given with its rows, goes to the least loaded slot.

    >>> spread([("a", 5), ("b", 1), ("c", 3)], 2)
    [['a'], ['b', 'c']]
    """
    files_of_slots: list[list[str]] = [[] for _ in range(slots)]
    rows = [0] * slots
    for name, count in files:
        least = rows.index(min(rows))
        files_of_slots[least].append(name)
        rows[least] += count
    return files_of_slots


@dataclass(slots=True)
class KafkaOut(BatchOutput):
    """One stage's output into one topic, for one run. The function's threads call it in turn."""

    section: StageSection
    folder: Path
    writer: str
    """Full name of the computation."""
    topic: str
    options: Mapping[str, object]
    ordinal: int
    wanted_slots: int | None = None
    """Number of slots that the user passes; None: the checkpoint's, or the default."""
    settings: dict[str, str] = field(init=False)
    checkpoint: str = field(init=False, default="")
    slots: int = field(init=False, default=0)
    marks: int = field(init=False, default=0)
    """Number of partitions of the topic of marks that are used."""
    first: int = field(init=False, default=0)
    """First batch that the checkpoint has written to the topic."""
    life: int = field(init=False, default=0)
    """Newest life of the computation in which the checkpoint has written; 0: none."""
    _pinned: str = field(init=False, default="")
    """Id of the topic that the checkpoint writes to; a topic that was made anew has another one."""
    _partitions: int = field(init=False, default=0)
    _admin: Any = field(init=False, default=None)
    _reader: Any = field(init=False, default=None)

    @classmethod
    def at(
        cls,
        frame: DataFrame,
        turn: OutputTurn,
        place: str,
        *,
        options: Mapping[str, object],
        slots: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> KafkaOut:
        """Return the output into a topic. ``path`` is the folder for staged files.

        Raises ValueError for a relative path, Unsupported for a checkpoint that is not local.
        """
        if path is None:
            fix = "Pass batch.write_kafka() a path= on a file system that the driver and all executors mount; the checkpoint may stay."
            path = local(turn.section.home, "What is staged for Kafka in the checkpoint", fix) / "lowwater" / "kafka"
        folder = Path(path) / place
        if not folder.is_absolute():
            msg = f"{path} is not an absolute path of a local directory. Pass an absolute path"
            raise ValueError(msg)
        folder = Path(os.path.realpath(folder))
        return cls(turn.section, folder, turn.writer, place, dict(options), turn.run, slots)

    @property
    def key(self) -> Path:
        """The folder of the staged batches; the topic is the last part of its name."""
        return self.folder

    def resume(self, earlier: BatchOutput) -> BatchOutput | None:
        """Go on with the open connections; None if this batch has other options."""
        if not isinstance(earlier, KafkaOut) or earlier.options != self.options:
            return None
        return earlier if self.wanted_slots in (None, earlier.slots) else None

    def begin(self, frame: DataFrame, turn: OutputTurn) -> None:
        """Open the topic: see :meth:`open`."""
        self.open(frame.sparkSession, turn.facts.batch, self.wanted_slots, _life(turn))

    def open(self, session: SparkSession, batch: int, slots: int | None, life: int = 0) -> None:
        """Open the topic for a run, and fix what stays as long as the checkpoint.

        Raises Unsupported, ValueError, CheckpointMismatch, and OSError when Kafka does not answer.
        Costs some round trips; a new checkpoint also reads all marks, and ends the transactions
        that other checkpoints of the computation have left open.
        """
        if slots is not None and slots < 1:
            msg = f"slots is the number of transactions that publish a batch, and must be at least 1: {slots}"
            raise ValueError(msg)
        self.settings = client_settings(self.options)
        self._check_client()
        if str(session.sparkContext.getConf().get("spark.speculation", "false")).lower() == "true":
            raise Unsupported(
                "batch.write_kafka with spark.speculation",
                "two attempts of one task would abort each other's transaction",
                "Set spark.speculation to false in the configuration of the application.",
            )
        self._admin = confluent().admin.AdminClient(self.settings)
        self.checkpoint = identity(self.section.manifest.checkpoint)
        cluster, output = self._cluster(), self._describe(self.topic)
        if output is None:
            raise Unsupported(
                f"The topic {self.topic}, which does not exist,",
                "only you know how many partitions and replicas it should have",
                f"Create it: kafka-topics.sh --bootstrap-server {self.settings['bootstrap.servers']} --create --topic {self.topic} --partitions 8 "
                "--replication-factor 3 --config min.insync.replicas=2 --config unclean.leader.election.enable=false",
            )
        stored: Mapping[str, Any] | None = remembered(*self._note, SECTION)
        if stored is None:
            self.slots = slots or min(session.sparkContext.defaultParallelism, _SLOTS)
            marks = self._marks_topic(output)
            stored = {
                "cluster": cluster,
                "topic_id": output.id,
                "slots": self.slots,
                "marks": marks.partitions,
                "marks_id": marks.id,
                "first": batch,
                "folder": os.fspath(self.folder),
                "life": life,
            }
            if self.slots > stored["marks"]:
                msg = (
                    f"{marks_topic(self.topic)} has {stored['marks']} partitions, and each of the {self.slots} slots needs one of its own: pass "
                    f"slots={stored['marks']}, or add partitions to it"
                )
                raise ValueError(msg)
            self._end_others(life)
            remember(*self._note, stored, SECTION)
        self._take(stored, cluster, output, slots)
        sweep(self.folder, self.ordinal)

    def close(self) -> None:
        """Close the connections."""
        reader, self._reader, self._admin = self._reader, None, None
        if reader is not None:
            reader.close()

    def find(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the batch, if its rows are staged. Some may not be published yet."""
        staged = self.folder / f"batch={turn.facts.batch}"
        return FoundBatch(turn.facts.batch, digest_of(staged), str(staged)) if staged.exists() else None

    def append(self, frame: DataFrame, turn: OutputTurn, standing: Standing | None) -> bool:
        """Stage the rows, and publish them."""
        rows = frame.select(*kafka_columns(frame, self._partitions))
        staged = publish_directory(
            self.folder,
            f"batch={turn.facts.batch}",
            turn.facts.digest,
            lambda folder: self._stage(rows, turn.facts.batch, folder),
            ordinal=self.ordinal,
        )
        if staged:
            self.finish(frame, turn)
        return staged

    def finish(self, frame: DataFrame, turn: OutputTurn) -> bool:
        """Publish the staged rows that are missing; False if none were.

        The rows are durable and visible on return. Raises CheckpointMismatch when Kafka has another
        batch of this checkpoint than expected, and OSError when Kafka does not answer.
        """
        if (life := _life(turn)) > self.life:
            # ``life`` is the incarnation of the computation that this run has claimed: a reset, or
            # a checkpoint that adopts the name, begins a new one. It is newer than the checkpoint
            # has noted. If another checkpoint's run of an earlier incarnation could still publish,
            # its rows would come out below the watermark that this run reports.
            self._end_others(life)
            remember(*self._note, {**remembered(*self._note, SECTION), "life": life}, SECTION)
            self.life = life
        turn.probe("rows staged")
        staged = self._read(turn.facts.batch)
        done = self._publish(frame.sparkSession, turn.facts.batch, turn.facts.digest, staged)
        turn.probe("rows published")
        self._verify(done, turn.facts.batch, staged)
        self._confirm()
        return any(slot.wrote for slot in done)

    def remove(self, turn: OutputTurn) -> None:
        """Remove the staged files of batches that were committed long ago."""
        for old in [number for number in self._batches() if number <= turn.facts.batch][:-_KEPT]:
            shutil.rmtree(self.folder / f"batch={old}", ignore_errors=True)

    # -- what stays --------------------------------------------------------------------------------

    @property
    def _note(self) -> tuple[Manifest, str, str]:
        """The place in the manifest's section that has the settings of the topic."""
        return self.section.manifest, self.section.name, self.topic

    def _take(self, stored: Mapping[str, Any], cluster: str, output: _Topic, slots: int | None) -> None:
        """Adopt the settings that the checkpoint stores.

        Raises CheckpointMismatch if the topic was replaced, or the user passes other settings.
        """
        if (stored["cluster"], same_id(stored["topic_id"])) != (cluster, output.id):
            raise CheckpointMismatch(_REPLACED.format(topic=self.topic, before=stored["topic_id"], now=output.id))
        if slots not in (None, stored["slots"]):
            msg = (
                f"{self.topic} is written by {stored['slots']} slots, and slots={slots} was passed: the number is fixed for the checkpoint. Pass "
                f"slots={stored['slots']}, or start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        if stored["folder"] != os.fspath(self.folder) and not self.section.is_moved(stored["folder"], self.folder):
            msg = f"the batches for {self.topic} are staged in {stored['folder']}, not in {self.folder}; pass the same path in every batch"
            raise CheckpointMismatch(msg)
        marks = self._describe(marks_topic(self.topic))
        if marks is None or marks.id != same_id(stored["marks_id"]):
            msg = (
                f"{marks_topic(self.topic)}, which says how far {self.topic} was written, was deleted or made anew, so it is unknown which rows of a batch are in the topic. "
                "Start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        self.slots, self.marks, self.first = stored["slots"], stored["marks"], stored["first"]
        self.life = stored.get("life", 0)
        self._pinned, self._partitions = output.id, output.partitions

    def _slot(self, number: int = 0) -> Slot:
        return Slot(self.checkpoint, self.section.name.rpartition("/")[2], self.topic, number)

    # -- staged ------------------------------------------------------------------------------------

    def _stage(self, rows: DataFrame, batch: int, folder: Path) -> None:
        """Run a frame once, into one file a partition, which one slot publishes in order."""
        staged = rows.mapInArrow(partial(_stage_rows, os.fspath(folder)), _FILE).collect()
        files = sorted((row.partition, row.name, row.rows) for row in staged)
        # A failed attempt of a task leaves a file that no row of ``staged`` names. No slot would
        # publish the file, but it would take space until remove() deletes the batch's directory.
        for leftover in {path.name for path in folder.iterdir()} - {name for _, name, _ in files}:
            (folder / leftover).unlink()
        content = {
            "format": _FORMAT,
            "staged": uuid.uuid4().hex,
            "after": self._after(batch),
            "slots": spread([(name, count) for _, name, count in files], self.slots),
        }
        (folder / _STAGED).write_text(json.dumps(content), encoding="utf-8")

    def _after(self, batch: int) -> int:
        """Return the number that the marks must have now: one above the newest batch before."""
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
        if refused := next((slot.refused for slot in sorted(done, key=lambda slot: slot.slot) if slot.refused), ""):
            raise CheckpointMismatch(refused)
        return done

    def _verify(self, done: Sequence[Published], batch: int, staged: _Staged) -> None:
        """Read the marks of the tasks' transactions, as any reader does.

        Raises OSError when a mark cannot be read or names another batch.
        """
        missing = {self._slot(number) for number in range(self.slots)}
        first: dict[int, int] = {}
        for published in done:
            place = self._slot(published.slot).partition(self.marks)
            first[place] = min(published.at, first.get(place, published.at))
        # Kafka shows a partition only up to its first open transaction. A writer that was killed
        # within one hides the marks behind it until Kafka ends it, after a minute: wait longer, or
        # a batch that is in the topic would fail.
        deadline = time.monotonic() + 2 * PATIENCE
        for mark in self._from(first, deadline):
            if isinstance(mark, SlotMark) and (mark.next, mark.staged) == (batch + 1, staged.id):
                missing.discard(mark.slot)
            if not missing:
                return
        lost = ", ".join(str(slot.number) for slot in missing)
        msg = f"slot {lost} of {self.writer} reported that batch {batch} is in {self.topic}, but {marks_topic(self.topic)} has no such mark"
        raise OSError(msg)

    def _from(self, first: Mapping[int, int], deadline: float) -> Iterator[SlotMark | Begun | None]:
        """Yield the committed marks from the given offsets of partitions on, until the deadline."""
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
        """Find the option that the client library refuses. Raises Unsupported, naming it."""
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
        answer = self._request(lambda admin, within: admin.describe_cluster(request_timeout=within))
        return str(answer.cluster_id)

    def _describe(self, topic: str) -> _Topic | None:
        """Return Kafka's description of a topic; None if it does not exist. Raises OSError."""
        topics = confluent().TopicCollection([topic])
        answer = self._request(
            lambda admin, within: admin.describe_topics(topics, request_timeout=within)[topic],
            but="UNKNOWN_TOPIC_OR_PART",
        )
        if answer is None:
            return None
        return _Topic(same_id(str(answer.topic_id)), len(answer.partitions), len(answer.partitions[0].replicas))

    def _request(self, ask: Callable[[Any, float], Any], *, but: str = "") -> Any:
        """Return Kafka's answer to a request; None for the error named ``but``.

        Raises OSError for any other error, and when no broker answers.
        """
        try:
            return self._answer(ask)
        except confluent().KafkaException as error:
            if error.args[0].name() == but:
                return None
            msg = f"Kafka at {self.settings['bootstrap.servers']} refuses: {error.args[0].str()}"
            raise OSError(msg) from error

    def _answer(self, ask: Callable[[Any, float], Any]) -> Any:
        """Return the result of the future that ``ask`` makes from an admin client and a time limit.

        Raises KafkaException for an error that a broker answers, OSError when no broker answers. A
        client keeps to a broker that no longer answers, and does not learn which one has replaced
        it. So a new client, which knows only the configured addresses, is asked in turn with it,
        each time with a longer limit.
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
                msg = f"Kafka at {self.settings['bootstrap.servers']} does not answer: {silent}. Check kafka.bootstrap.servers, and that its brokers run"
                raise OSError(msg) from silent
            time.sleep(_PAUSE)
            clients, within = [clients[0], library.admin.AdminClient(self.settings)], 2 * within

    def _confirm(self) -> None:
        """Check that the topic still has the id of the one that was written.

        Raises CheckpointMismatch, OSError.
        """
        output = self._describe(self.topic)
        if output is None or output.id != self._pinned:
            now = "no topic" if output is None else output.id
            raise CheckpointMismatch(_REPLACED.format(topic=self.topic, before=self._pinned, now=now))
        self._partitions = output.partitions

    def _marks_topic(self, beside: _Topic) -> _Topic:
        """Return the topic of marks, creating it with as many replicas as the output topic has.

        Raises Unsupported, OSError.
        """
        name = marks_topic(self.topic)
        settings = self._topic_settings(self.topic)
        marks = self._describe(name)
        if marks is None:
            new_settings = {
                "cleanup.policy": "compact",
                "min.insync.replicas": settings["min.insync.replicas"],
                "unclean.leader.election.enable": "false",
                # Kafka compacts only full segments, and a new checkpoint reads all records that are
                # not compacted yet: small segments keep that short.
                "segment.bytes": str(16 << 20),
            }
            self._make(name, max(_MARKS, self.slots), beside.copies, new_settings)
            deadline = time.monotonic() + PATIENCE
            while marks is None and time.monotonic() < deadline:
                marks = self._describe(name)
                time.sleep(0.0 if marks else 0.05)  # the broker that answers may not know the new topic yet
            if marks is None:
                msg = f"{name} was created, and {self.settings['bootstrap.servers']} does not know it yet"
                raise OSError(msg)
        policy = self._topic_settings(name)["cleanup.policy"]
        if policy != "compact":
            raise Unsupported(
                f"The topic {name} with cleanup.policy={policy}",
                "its marks, which say how far a batch was published, would be deleted one day",
                f"Set it: kafka-configs.sh --bootstrap-server {self.settings['bootstrap.servers']} --alter --entity-type topics --entity-name {name} "
                "--add-config cleanup.policy=compact",
            )
        return marks

    def _make(self, name: str, partitions: int, copies: int, settings: Mapping[str, str]) -> None:
        library = confluent()
        new_topic = library.admin.NewTopic(
            name, num_partitions=partitions, replication_factor=copies, config=dict(settings)
        )
        try:
            self._answer(
                lambda admin, within: admin.create_topics(
                    [new_topic], operation_timeout=PATIENCE, request_timeout=within
                )[name]
            )
        except library.KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            config = " ".join(f"--config {key}={value}" for key, value in settings.items())
            raise Unsupported(
                f"The topic {self.topic} without {name}",
                f"its marks say how far a batch was published, and it cannot be created: {error.args[0].str()}",
                f"Create it: kafka-topics.sh --bootstrap-server {self.settings['bootstrap.servers']} --create --topic {name} --partitions {partitions} "
                f"--replication-factor {copies} {config}",
            ) from error

    def _topic_settings(self, topic: str) -> Mapping[str, str]:
        admin = confluent().admin
        place = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)
        entries = self._request(lambda admin, within: admin.describe_configs([place], request_timeout=within)[place])
        return {name: str(entry.value) for name, entry in entries.items()}

    # -- earlier writers ---------------------------------------------------------------------------

    def _end_others(self, life: int) -> None:
        """End the open transactions of other checkpoints of the same computation.

        Otherwise readers of the topic would wait for them, up to a minute. A writer that still runs
        begins a new transaction, and the mark that it then reads refuses it if its life is an
        earlier one. A transaction that cannot be ended here times out.
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
                logger.warning(
                    "the open transaction of %s cannot be ended: %s", slot.transactional_id, error.args[0].str()
                )

    def _others(self, life: int) -> list[tuple[Slot, int]]:
        """Return the other checkpoints' slots that began and were not ended in this life.

        Each comes with the partition of its marks.
        """
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
                    mark = parse(message.key(), message.value())
                    if isinstance(mark, Begun) and mark.writer == self.writer:
                        begun[mark.slot, partition] = mark.ended and mark.life >= life
        except confluent().KafkaException as error:
            msg = f"{name} cannot be read: {error.args[0].str()}"
            raise OSError(msg) from error
        finally:
            consumer.close()
        return [slot for slot, ended in begun.items() if not ended and slot[0].checkpoint != self.checkpoint]


def _life(turn: OutputTurn) -> int:
    """Return the life of the computation that the run has claimed; 0: it has claimed none."""
    claim = turn.claim()
    return 0 if claim is None else claim.life


def kafka_columns(frame: DataFrame, partitions: int) -> list[Column]:
    """Return the columns for Kafka, by name. Raises ValueError.

    A row that a producer would refuse fails the staging job. Once staged, the rows of a batch are
    never made anew: such a row would then fail every start, also with a corrected function.
    ``partitions`` is the number of partitions of the topic.
    """
    from pyspark.sql import functions as sf

    types = {column.name: column.dataType.simpleString() for column in frame.schema.fields}
    if "value" not in types:
        msg = f"a frame for Kafka needs a column value, of type string or binary, and this one has {', '.join(types)}"
        raise ValueError(msg)
    for name, column_type in types.items():
        if name not in _TYPES:
            msg = (
                f"a frame for Kafka may have the columns {', '.join(_TYPES)}, and this one has {name}. Put what belongs to the value into it, as "
                "to_json(struct(*)) does; the topic is an argument, and each topic needs a call of its own."
            )
            raise ValueError(msg)
        if column_type not in _TYPES[name]:
            msg = f"the column {name} for Kafka must be of {' or '.join(_TYPES[name])}, not of {column_type}"
            raise ValueError(msg)
    columns = {name: sf.col(name).cast("binary") if name in ("key", "value") else sf.col(name) for name in types}
    if "headers" in columns:
        unnamed = sf.exists("headers", lambda header: header["key"].isNull())
        why = sf.raise_error(sf.lit("a header for Kafka is null, or its key is: leave it out, or name it"))
        columns["headers"] = sf.when(unnamed, why).otherwise(sf.col("headers")).alias("headers")
    if "partition" in columns:
        partition = sf.col("partition")
        why = sf.raise_error(
            sf.concat(
                sf.lit("the column partition for Kafka says "),
                partition.cast("string"),
                sf.lit(f", and the topic has the partitions 0 to {partitions - 1}; null lets Kafka choose"),
            )
        )
        columns["partition"] = (
            sf.when((partition < 0) | (partition >= partitions), why).otherwise(partition).alias("partition")
        )
    return [*columns.values()]


def _stage_rows(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one partition into a file, and yield its name. Runs in a Python worker."""
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
        f"librdkafka, which writes the transactions, refuses it: {error.args[0].str()}",
        f"Use {instead} instead." if instead else "Remove it, or pass librdkafka's own option.",
    )


_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}
"""Types of the columns, as Spark's own sink takes them."""

_REPLACED: Final = "the topic {topic} was replaced (its id was {before} and is {now}), so earlier rows are not in it. Start from a new checkpoint, with adopt=True."
