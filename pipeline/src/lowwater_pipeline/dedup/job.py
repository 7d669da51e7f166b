"""The lanes of a process: those of the partitions that the consumer group gives it, each on a thread of its own.

The member of the group reads nothing. It is told which partitions are this process's, and a lane reads its own. So nothing of a lane waits for another: one that
is fenced, held, refused or damaged leaves its neighbours alone.
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
"""Seconds until a lane that is held is opened again; doubled each time,"""

_LONGEST: Final = 10.0
"""up to so many."""

_JOIN: Final = 30.0
"""Seconds that a lane may take to end its transaction when its partition goes. After that its
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
"""Errors that a new lane would meet as well."""


class Worker:
    """The thread of one partition: it opens a lane again whenever that is held, and ends when it is refused."""

    def __init__(self, partition: int, counts: Counts, lane: Callable[[], Lane], check: Callable[[], None]) -> None:
        self.partition = partition
        self.counts = counts
        self.refused: Refused | None = None
        """Why it has ended by itself."""
        self.running = False
        """Whether its lane is open."""
        self._lane = lane
        self._check = check
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lowwater-lane-{partition}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end behind the transaction in hand."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until it has ended, for a while."""
        self._thread.join(_JOIN)

    def refuse(self, refused: Refused) -> None:
        """End it for a reason."""
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
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this partition's alone
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
    """Close a lane.

    What goes wrong in that is only said: the thread has to live on, and everything that counts is
    committed or aborted by Kafka.
    """
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
    # A fatal error of a producer is raised in whatever is called next. Where that is the callback
    # of a row, Python makes a SystemError of it.
    if isinstance(error, Held | OSError | SystemError):
        return None
    logger.error("what was not expected", exc_info=error)
    return Refused(f"what was not expected: {error!r}", "Please report it, with the traceback above.")


class Job:
    """One process of a deduplicator.

    ``with Job(...) as job`` joins the group, and leaves it at the end.

    Args:
        settings: What it was told.
        low: The senders' low watermark as last published.
    """

    def __init__(self, settings: Settings, low: Callable[[], Low | None] = lambda: None) -> None:
        self._settings = settings
        self._low = low
        self._counts: dict[int, Counts] = {}
        self._workers: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._membership: Any = None
        self._coming: list[int] = []
        """Partitions that were assigned, and whose lanes begin behind the poll."""
        self._pins: Pins = pin(settings)
        self._member = Consumer(
            {
                **settings.clients,
                "group.id": settings.group,
                # A partition that stays with this process goes on while others move.
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
        """What it was told."""
        return self._settings

    def workers(self) -> list[Worker]:
        """Return those of the partitions that are this process's now."""
        with self._lock:
            return [*self._workers.values()]

    def counts(self) -> dict[int, Counts]:
        """Return what was counted, by partition, of every one that this process ever had."""
        with self._lock:
            return dict(self._counts)

    def run(self, stopping: threading.Event) -> list[Refused]:
        """Work until told to stop, or until every partition of this process has stopped by itself; returns why those have.

        Raises KafkaException when the group will not have it.
        """
        while not stopping.is_set():
            self.poll(0.2)
            workers = self.workers()
            if workers and all(each.refused is not None for each in workers):
                break
        return [each.refused for each in self.workers() if each.refused is not None]

    def poll(self, seconds: float) -> None:
        """Hear from the group, for so long: partitions come and go in here.

        To be called all the time.
        """
        message = self._member.poll(seconds)
        # Asked for here: a thread that asks while this one polls would wait for as long as anybody
        # polls.
        self._membership = self._member.consumer_group_metadata()
        coming, self._coming = self._coming, []
        for partition in coming:
            self._start(partition)
        error = None if message is None else message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)

    def _assigned(self, member: Consumer, partitions: list[TopicPartition]) -> None:
        member.incremental_assign(partitions)
        member.pause(partitions)  # the lanes read
        self._coming += [each.partition for each in partitions]

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
        lost = {each.partition for each in partitions}
        self._coming = [each for each in self._coming if each not in lost]
        with self._lock:
            gone = [self._workers.pop(each.partition, None) for each in partitions]
        self._end([each for each in gone if each is not None])
        member.incremental_unassign(partitions)

    def _end(self, workers: Iterable[Worker]) -> None:
        workers = [*workers]
        for each in workers:
            each.stop()
        for each in workers:
            each.join()

    def _check(self) -> None:
        """Raises Refused when a topic is another one by now, and Held when nobody says."""
        self._pins.compare(pin(self._settings))

    def _look(self) -> None:
        """Stop everything when a topic becomes another one: messages of a new topic must not be taken for those of the old one."""
        while not self._closing.wait(self._settings.look):
            try:
                self._check()
            except Held:
                continue  # no broker answers: nothing is read, either
            except Refused as refused:
                logger.error("all partitions stop: %s", refused)
                for each in self.workers():
                    each.refuse(refused)
                return
