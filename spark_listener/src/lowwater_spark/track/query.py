"""The handle of a running query, and the clock that makes its stage follow its inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import lowwater
from lowwater import errors
from lowwater_spark.checkpoint.location import glance
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.track.authority import REPLACED
from lowwater_spark.track.events import Events
from lowwater_spark.track.hook import GLANCE, PATIENCE, QUIET
from lowwater_spark.track.run import Controls, Run
from lowwater_spark.track.status import Status, first_line
from lowwater_spark.track.writer import interval_of

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["INTERVAL", "Tracked", "TrackedQuery"]

logger = logging.getLogger("lowwater.spark")

INTERVAL: Final = 0.2
"""Seconds between two looks of the clock at most: at the inputs, the sources and the commit log.
News brings a look at once. While nothing is waited for, a look a second is enough."""

_REST: Final = 4.0
"""How many times as long as a look has taken the clock rests after it, at most the interval:
however much news there is, looks take a fifth of the time."""


class Tracked:
    """A query that is tracked, wherever it runs, and the clock that follows it.

    A thread looks at the clock every :data:`INTERVAL` seconds, and sooner when an input has moved
    or a batch is committed, so the stage follows its inputs also when no rows come. It is woken
    when an input moves and when a function of the user's has ended. Whether a batch is committed
    nobody tells: it looks for that, often while one runs. When the run is replaced (a newer run of
    the same checkpoint, a reset), it ends, and :meth:`await_termination` raises the reason.
    """

    def __init__(
        self, run: Run, *, interval: float, owned: lowwater.Client | None, driving: Controls | None = None
    ) -> None:
        self.checkpoint = run.checkpoint
        self._run = run
        self._interval = max(interval, glance(run.checkpoint))
        self._owned = owned
        self._driving = driving
        self.looks = 0
        """Number of looks that have ended, with or without success: it stands still when one hangs.
        """
        self._unread = False
        """Whether the last look has failed for want of a file."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._clock, name="lowwater-spark", daemon=True)
        self._asked = 0.0
        """When the inputs were asked last whether they have moved, though nobody has told."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of its stages, by which one asks how they stand."""
        return self._run.stages

    @property
    def client(self) -> lowwater.Client:
        """The client that the driver talks to the authority with."""
        return self._run.authority.client

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, at most ``timeout`` seconds; return whether it has.

        Raises what ended it.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self.stop()
        if self._run.failure is not None:
            raise self._run.failure
        return True

    def stop(self) -> None:
        """End the reports; the ranges hold where they stand.

        What is committed by then is reported.
        """
        if not self._stopping.is_set():
            self._note_failure()
            self._run.stopping = True
            self._end()
            self._stopping.set()
            self._run.wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _active(self) -> bool:
        """Return whether there can be more batches."""
        return True

    def _end(self) -> None:
        """End the query, if that is ours to do."""

    def _note_failure(self) -> None:
        """Remember the error of a query that has ended by itself, before the end that the user asks for hides it."""

    def _failed(self) -> BaseException | None:
        """Return the error that ended it; None: there is none."""
        return self._run.failure

    def _look_back(self) -> None:
        """Take what is said of the batches afterwards. Nothing depends on it but what is shown."""

    def _pause(self, rest: float) -> bool:
        """Wait until a look is due: after the interval, or when there is news after some seconds of rest. Return whether this is the end."""
        run = self._run
        due = time.monotonic() + (max(self._interval, QUIET) if run.idle else self._interval)
        stopping = self._stopping.wait(min(max(rest, GLANCE), self._interval))
        asks = True  # what came during the look, or the rest
        while not stopping and (left := due - time.monotonic()) > 0 and not self._news(asks=asks):
            told = run.wake.wait(min(run.pace(), left))
            if told:  # else it may come just now
                run.wake.clear()
            asks, stopping = told, self._stopping.is_set()
        return stopping

    def _news(self, *, asks: bool) -> bool:
        """Return whether a look is worth while.

        Inputs are asked when somebody has told of news, and now and then: what is told may be lost.
        """
        now = time.monotonic()
        if not asks and now - self._asked < QUIET:
            return self._run.committed()
        self._asked = now
        return self._run.news() or (self._driving is not None and self._driving.news())

    def _follow_inputs(self) -> None:
        """Be woken whenever an input moves, by a thread that waits for that.

        It ends with the run.
        """
        try:
            heard = self._run.hear()
        except errors.Closed:
            return  # a look says so
        for moves in heard:
            threading.Thread(target=self._hear, args=(moves,), name="lowwater-spark-inputs", daemon=True).start()

    def _hear(self, moves: Iterator[object]) -> None:
        """Wake the clock at each move."""
        try:
            for _ in moves:
                self._run.wake.set()
        except errors.LowwaterError as failure:
            logger.debug("nobody tells %s when its inputs move: %s", self._run.authority.registration.name, failure)

    def _look(self, *, last: bool) -> None:
        try:
            self._run.tick(last=last)
        except errors.LowwaterError:
            raise  # Timeout is an OSError, and says nothing of files
        except OSError as failure:
            self._run.cannot_read(str(failure))
            raise
        self._run.cannot_read("")
        self._look_back()

    def _looks_again(self, failure: OSError, pauses: Iterator[float], *, last: bool) -> bool:
        """Wait after a look that has failed for want of a file; return whether there is to be another one.

        A file system that is away for a moment (EIO, or ESTALE of NFS) says nothing of the batches: nothing new counts until it answers. The last look
        is repeated as well, for a minute at most: what is committed would not be reported before the next start.
        """
        name = self._run.authority.registration.name
        if not self._unread:
            logger.warning("%s holds, and looks again: %s", name, failure)
        self._unread = True
        if not last:
            self._stopping.wait(self._interval)
            return True
        # What was removed does not come back by waiting, nor does a JVM that has ended.
        pause = None if isinstance(failure, FileNotFoundError | BrokenPipeError) else next(pauses, None)
        if pause is None:
            logger.warning(
                "%s has ended, and cannot look at what it has committed last; its next start reports it: %s",
                name,
                failure,
            )
            return False
        time.sleep(pause)
        return True

    def _clock(self) -> None:
        ended, took = False, 0.0
        pauses = iter(PATIENCE)
        self._follow_inputs()
        while not ended:
            try:
                ended = self._pause(_REST * took) or not self._active()
                since = time.monotonic()
                try:
                    self._look(last=ended)
                finally:
                    took = time.monotonic() - since
                    self.looks += 1
                self._unread = False
            except (*REPLACED, errors.Closed) as failure:
                logger.error("%s stops: %s", self._run.authority.registration.name, failure)
                self._run.fail(failure)
                ended = True
            except errors.LowwaterError as failure:
                # The stage whose call it was has taken note, and holds; the others go on. Before
                # OSError: Timeout is one, and says nothing of files.
                logger.debug("%s looks again later: %s", self._run.authority.registration.name, failure)
            except OSError as failure:
                ended = not self._looks_again(failure, pauses, last=ended)
            except Exception as failure:
                logger.exception("%s stops", self._run.authority.registration.name)
                # Whatever it is, the query must not go on unwatched.
                self._run.fail(failure)
                ended = True
        # The stack closes in the reverse order, each of them also when what comes before it has
        # failed.
        with contextlib.ExitStack() as closing:
            if self._owned is not None:
                closing.callback(self._owned.close)
            closing.callback(self._run.close)
            if self._driving is not None:
                # Only after the end: a frame that is free again may be told of values that are
                # another query's.
                closing.callback(self._driving.close)
                self._driving.silence()
            if self._run.failure is not None and self._active():
                self._end()
            self._run.end(first_line(self._failed()))


class SparkStatus(dict[str, Any]):
    """Spark's status of a query, which may be called in this release: it was a method of lowwater's before."""

    def __init__(self, found: Mapping[str, Any], stage_status: Callable[[str | None], Status]) -> None:
        super().__init__(found)
        self._stage_status = stage_status

    def __call__(self, stage: str | None = None) -> Status:
        """Return how a stage stands, with a DeprecationWarning."""
        warnings.warn(
            "status() of a tracked query is stage_status() now: status is Spark's, as in its own handle. The next release cannot call it.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self._stage_status(stage)


class TrackedQuery(Tracked):
    """A running query of a tracked stage, in this process.

    It has what Spark's own handle has, by Spark's names, so that code which is given one goes on;
    :meth:`stop` reports what is committed first. How a stage stands :meth:`stage_status` says. When
    the run is replaced, the query is stopped.
    """

    def __init__(
        self,
        run: Run,
        query: StreamingQuery,
        *,
        interval: float,
        owned: lowwater.Client | None,
        driving: Controls | None = None,
    ) -> None:
        super().__init__(run, interval=interval, owned=owned, driving=driving)
        self.query = query
        """Spark's own handle."""
        if (interval := interval_of(query)) > 0:
            run.triggered_every(interval)
        self._events = Events(query) if run.listens else None
        self._query_failure: BaseException | None = None
        """Spark's error of a query that had failed before :meth:`stop`; None: there was none."""
        self._dropped = 0
        self._shown = run.progress.committed.batch if run.listens else NOTHING
        """The newest committed batch that Spark has said something of; what it may still say of
        those before the run is of another one."""
        self._thread.start()

    def stage_status(self, stage: str | None = None) -> Status:
        """Return how the query stands, and what holds it: its first stage, or the one of this name.

        Raises ValueError for none.
        """
        return dataclasses.replace(self._run.status(stage), dropped_rows=self._dropped)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended, at most ``timeout`` seconds; return whether it has.

        Raises what ended it: the error of the user's function or of Spark, or the authority's
        refusal of this run.
        """
        from pyspark.errors import StreamingQueryException

        try:
            # Spark takes fractions of a second, which its annotation does not say.
            ended = self.query.awaitTermination(cast("int | None", timeout))
        except StreamingQueryException as failure:
            self.stop()
            if self._run.failure is not None:
                raise self._run.failure from failure
            raise
        if timeout is not None and not ended:
            return False
        self.stop()
        if self._run.failure is not None:
            raise self._run.failure
        return True

    def _active(self) -> bool:
        try:
            return bool(self.query.isActive)
        except Exception:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
            return False

    def _end(self) -> None:
        self.query.stop()

    def _note_failure(self) -> None:
        if not self._active():
            self._query_failure = self._spark_failure()

    def _failed(self) -> BaseException | None:
        failure = self._query_failure if self._run.failure is None else self._run.failure
        return failure if failure is not None or self._run.stopping else self._spark_failure()

    def _spark_failure(self) -> BaseException | None:
        """Return Spark's error of the query; None: there is none."""
        try:
            return self.query.exception()
        except Exception as failure:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
            return failure

    def _look_back(self) -> None:
        """Take what Spark says of its batches afterwards.

        Nothing depends on it but what is shown.
        """
        if self._events is None:
            return
        committed = self._run.progress.committed.batch
        if committed == self._shown:
            return
        try:
            events = self._events.poll()
        except Exception as failure:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
            logger.debug("the events of %s cannot be read: %s", self._run.authority.registration.name, failure)
        else:
            if any(event.ran and event.batch >= committed for event in events):
                self._shown = committed
            self._dropped += sum(event.dropped for event in events)
            self._run.take(events)

    # -- by Spark's names --------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Spark's id of the query, which its checkpoint keeps."""
        return self.query.id

    @property
    def runId(self) -> str:  # noqa: N802 - Spark's own name
        """Spark's id of this run."""
        return self.query.runId

    @property
    def name(self) -> str | None:
        """Spark's name of the query."""
        return self.query.name

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's own name
        """Whether it runs."""
        return bool(self.query.isActive)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - Spark's own name
        """Spark's newest progress; None before the first."""
        return self.query.lastProgress

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - Spark's own name
        """Spark's progress of the newest batches."""
        return self.query.recentProgress

    @property
    def status(self) -> SparkStatus:
        """Spark's status: ``message``, ``isDataAvailable`` and ``isTriggerActive``.

        Called, as in the releases before, it is :meth:`stage_status`.
        """
        return SparkStatus(self.query.status, self.stage_status)

    def exception(self) -> StreamingQueryException | None:
        """Return the error of Spark's that ended it; None if there is none.

        What ended the tracking is raised by :meth:`await_termination`.
        """
        return self.query.exception()

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the newest batch."""
        self.query.explain(extended)

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's own name
        """Wait until a batch has read all that is there now.

        What it has written is reported soon after, as always.
        """
        self.query.processAllAvailable()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's own name
        """Wait as :meth:`await_termination` does."""
        return self.await_termination(timeout)
