"""The lanes of a process: one thread for each partition that the consumer group assigns to it.

The group's member reads nothing: it only learns the assigned partitions, and each lane reads its
own. So no lane waits for another: one that is fenced, held, refused or damaged stops no neighbour.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lowwater_pipeline.dedup.errors import Held, Refused
from lowwater_pipeline.dedup.lane import Counts, Lane
from lowwater_pipeline.dedup.senders import Low
from lowwater_pipeline.dedup.settings import Settings
from lowwater_pipeline.dedup.topics import Pins, pin

__all__ = ["Job", "Worker", "refusal"]

logger = logging.getLogger("lowwater.pipeline")

_AGAIN: Final = 0.25
"""Seconds until a held lane is opened again, the first time; doubled each time."""

_LONGEST: Final = 10.0
"""Greatest number of seconds until a held lane is opened again."""

_JOIN: Final = 30.0
"""Seconds in which a lane may end its transaction when its partition is revoked. Later its
successor fences it."""

_HOPELESS: Final = frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "INVALID_TRANSACTION_TIMEOUT",
        "INVALID_TIMESTAMP",
        "MSG_SIZE_TOO_LARGE",
        "OFFSET_METADATA_TOO_LARGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "_AUTHENTICATION",
        "_INVALID_ARG",
    }
)
"""Kafka's errors that a new lane would meet as well."""


class Worker:
    """The thread of one partition: it reopens a held lane, and ends when a lane is refused."""

    def __init__(self, partition: int, counts: Counts, lane: Callable[[], Lane], check: Callable[[], None]) -> None:
        self.partition = partition
        self.counts = counts
        self.refused: Refused | None = None
        """Reason for which the worker has ended by itself; None while it has not."""
        self.running = False
        """True while its lane is open."""
        self._lane = lane
        self._check = check
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lowwater-lane-{partition}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the current transaction. Does not wait."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended, at most half a minute."""
        self._thread.join(_JOIN)

    def refuse(self, refused: Refused) -> None:
        """End the worker for a reason."""
        self.refused = refused
        self.stop()

    def _run(self) -> None:
        pause = _AGAIN
        while not self._stopping.is_set():
            lane = self._lane()
            try:
                self._check()
                lane.open()
                self.running = True
                while not self._stopping.is_set():
                    lane.step()
                    pause = _AGAIN
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, only this partition stops
                refused = refusal(error)
                if refused is not None:
                    logger.error("partition %d has stopped: %s", self.partition, refused)
                    self.refused = refused
                    return
                logger.warning("partition %d is opened again in %.2f s: %s", self.partition, pause, error)
            finally:
                self.running = False
                _close(lane)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST)


def _close(lane: Lane) -> None:
    """Close a lane, and only log errors: what counts is committed, or Kafka aborts it."""
    try:
        lane.close()
    except Exception:
        logger.exception("a lane has not closed in good order")


def refusal(error: Exception) -> Refused | None:
    """Return why a partition cannot go on; None when a new lane may."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, KafkaException):
        name = error.args[0].name()
        if name in _HOPELESS:
            return Refused(f"Kafka refuses: {error.args[0].str()} ({name})", "Mend that, and start again.")
        return None
    # A producer's fatal error is raised by whatever is called next. In the callback of a row,
    # Python turns it into a SystemError.
    if isinstance(error, Held | OSError | SystemError):
        return None
    logger.error("unexpected error", exc_info=error)
    return Refused(f"unexpected error: {error!r}", "Please report it, with the traceback above.")


class Job:
    """One process of a deduplicator.

    ``with Job(...) as job`` joins the group, and leaves it at the end.

    Args:
        settings: Settings of the deduplicator.
        low: Returns the senders' last published low watermark.
    """

    def __init__(self, settings: Settings, low: Callable[[], Low | None] = lambda: None) -> None:
        self._settings = settings
        self._low = low
        self._counts: dict[int, Counts] = {}
        self._workers: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._membership: Any = None
        self._coming: list[int] = []
        """Assigned partitions whose lanes start after the poll."""
        self._pins: Pins = pin(settings)
        self._member = Consumer(
            {
                **settings.clients,
                "group.id": settings.group,
                # With this strategy a partition that stays with this process goes on.
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
            }
        )
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._look, name="lowwater-topics", daemon=True)

    def __enter__(self) -> Self:
        self._member.subscribe(
            [self._settings.input], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._end(self.workers())
        self._member.close()
        self._watch.join()

    @property
    def settings(self) -> Settings:
        """Settings of the deduplicator."""
        return self._settings

    def workers(self) -> list[Worker]:
        """Return the workers of the partitions that this process owns now."""
        with self._lock:
            return [*self._workers.values()]

    def counts(self) -> dict[int, Counts]:
        """Return the counts of every partition that this process ever owned, by number."""
        with self._lock:
            return dict(self._counts)

    def run(self, stopping: threading.Event) -> list[Refused]:
        """Work until ``stopping`` is set, or until every partition has stopped by itself.

        Returns why partitions have stopped. Raises KafkaException when the group refuses the
        member.
        """
        while not stopping.is_set():
            self.poll(0.2)
            workers = self.workers()
            if workers and all(worker.refused is not None for worker in workers):
                break
        return [worker.refused for worker in self.workers() if worker.refused is not None]

    def poll(self, seconds: float) -> None:
        """Handle the group's messages, and start and stop workers. Call it all the time."""
        message = self._member.poll(seconds)
        # The lanes need the metadata. They are read in this thread, because another one would have
        # to wait for a moment in which no thread polls.
        self._membership = self._member.consumer_group_metadata()
        coming, self._coming = self._coming, []
        for partition in coming:
            self._start(partition)
        error = None if message is None else message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)

    def _assigned(self, member: Consumer, partitions: list[TopicPartition]) -> None:
        member.incremental_assign(partitions)
        # The group's member gets no messages: each lane reads its partition by its own consumer.
        member.pause(partitions)
        self._coming += [place.partition for place in partitions]

    def _start(self, partition: int) -> None:
        with self._lock:
            counts = self._counts.setdefault(partition, Counts())

            def lane() -> Lane:
                return Lane(
                    self._settings,
                    self._pins,
                    partition,
                    group=lambda: self._membership,
                    low=self._low,
                    counts=counts,
                )

            worker = self._workers[partition] = Worker(partition, counts, lane, self._check)
        worker.start()

    def _revoked(self, member: Consumer, partitions: list[TopicPartition]) -> None:
        lost = {place.partition for place in partitions}
        self._coming = [partition for partition in self._coming if partition not in lost]
        with self._lock:
            revoked = [self._workers.pop(place.partition, None) for place in partitions]
        self._end([worker for worker in revoked if worker is not None])
        member.incremental_unassign(partitions)

    def _end(self, workers: Iterable[Worker]) -> None:
        workers = [*workers]
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()

    def _check(self) -> None:
        """Raise Refused when a topic has been replaced or resized, Held when no broker answers."""
        self._pins.compare(pin(self._settings))

    def _look(self) -> None:
        """Stop all partitions when a topic is replaced: its messages are not the old topic's."""
        while not self._closing.wait(self._settings.look):
            try:
                self._check()
            except Held:
                continue  # no broker answers, so no lane reads either
            except Refused as refused:
                logger.error("all partitions stop: %s", refused)
                for worker in self.workers():
                    worker.refuse(refused)
                return
