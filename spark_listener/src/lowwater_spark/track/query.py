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
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.track.plan.writer import interval_of
from lowwater_spark.track.run.authority import REPLACED
from lowwater_spark.track.run.events import Events
from lowwater_spark.track.run.hook import GLANCE, PATIENCE, QUIET
from lowwater_spark.track.run.run import Controls, Run
from lowwater_spark.track.run.status import Status, first_line

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["INTERVAL", "Tracked", "TrackedQuery"]

logger = logging.getLogger("lowwater.spark")

INTERVAL: Final = 0.2
"""Greatest number of seconds between two looks of the clock at inputs, sources and commit log. News
causes a look at once. While the stage waits for nothing, one look a second is enough."""

_REST: Final = 4.0
"""Rest of the clock after a look, as a multiple of the look's duration, at most the interval. So
looks take at most a fifth of the time, however much news there is. Where a source on HDFS or in an
object store is listed for longer than the interval, looks take half of the time."""


class Tracked:
    """A tracked query, wherever it runs, and the clock that follows it.

    A thread takes a look every :data:`INTERVAL` seconds, and at once when an input moves or a
    user's function returns, so the stage follows its inputs also without rows. No event announces a
    commit: the thread polls for it, often while a batch runs. If the run is replaced (by a newer
    run of the checkpoint, or a reset), the query ends and :meth:`await_termination` raises why.
    """

    def __init__(
        self, run: Run, *, interval: float, owned: lowwater.Client | None, driving: Controls | None = None
    ) -> None:
        self.checkpoint = run.checkpoint
        self._run = run
        self._least = max(interval, glance(run.checkpoint))
        self._owned = owned
        self._driving = driving
        self.looks = 0
        """Number of looks that have ended, with or without success; constant if one hangs."""
        self._unread = False
        """True: the last look failed because a file could not be read."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._clock, name="lowwater-spark", daemon=True)
        self._asked_at = 0.0
        """Time at which the inputs were last asked without an event."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the query's stages, as arguments of the status."""
        return self._run.stage_names

    @property
    def client(self) -> lowwater.Client:
        """Client of the driver's calls to the authority."""
        return self._run.authority.client

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the end; return whether it has ended.

        Raises the error that ended it.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self.stop()
        if self._run.failure is not None:
            raise self._run.failure
        return True

    def stop(self) -> None:
        """Report what is committed, and stop; the ranges hold their values."""
        if not self._stopping.is_set():
            self._note_failure()
            self._run.stopping = True
            self._end()
            self._stopping.set()
            self._run.wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def _interval(self) -> float:
        """Longest time between two looks, seconds: longer while listings of a source take long."""
        return max(self._least, self._run.heads.pause)

    def _active(self) -> bool:
        """Return whether there can be more batches."""
        return True

    def _end(self) -> None:
        """End the query, if this process runs it."""

    def _note_failure(self) -> None:
        """Keep the error of a query that has ended by itself, before the user's stop hides it."""

    def _failed(self) -> BaseException | None:
        """Return the error that ended the query, or None."""
        return self._run.failure

    def _look_back(self) -> None:
        """Process later events about the batches. Only status and metrics depend on them."""

    def _pause(self, rest: float) -> bool:
        """Wait until a look is due: after the interval, or on news after ``rest`` seconds.

        Returns whether the query ends.
        """
        run = self._run
        due = time.monotonic() + (max(self._interval, QUIET) if run.idle else self._interval)
        stopping = self._stopping.wait(min(max(rest, GLANCE), self._interval))
        asks = True  # the inputs may have moved during the last look, or the rest after it
        while not stopping and (remaining := due - time.monotonic()) > 0 and not self._news(asks=asks):
            woken = run.wake.wait(min(run.batches.pace(), remaining))
            # After a timeout the event is not cleared: it may be set at this very moment, and the
            # news would be lost.
            if woken:
                run.wake.clear()
            asks, stopping = woken, self._stopping.is_set()
        return stopping

    def _news(self, *, asks: bool) -> bool:
        """Return whether a look is worth while.

        The inputs are asked after an event, and once in a while because an event may be lost.
        """
        now = time.monotonic()
        if not asks and now - self._asked_at < QUIET:
            return self._run.committed()
        self._asked_at = now
        return self._run.news() or (self._driving is not None and self._driving.news())

    def _follow_inputs(self) -> None:
        """Start threads that wake the clock whenever an input moves, until the run ends."""
        try:
            iterators = self._run.hear()
        except errors.Closed:
            return  # the next look raises Closed as well, and ends the run
        for moves in iterators:
            threading.Thread(target=self._hear, args=(moves,), name="lowwater-spark-inputs", daemon=True).start()

    def _hear(self, moves: Iterator[object]) -> None:
        """Wake the clock at each move of an input."""
        try:
            for _ in moves:
                self._run.wake.set()
        except errors.LowwaterError as failure:
            logger.debug("%s no longer hears when its inputs move: %s", self._run.authority.registration.name, failure)

    def _look(self, *, last: bool) -> None:
        try:
            self._run.look(last=last)
        except errors.LowwaterError:
            raise  # lowwater's Timeout is also an OSError, but no error of the checkpoint's files
        except OSError as failure:
            self._run.cannot_read(str(failure))
            raise
        self._run.cannot_read("")
        self._look_back()

    def _looks_again(self, failure: OSError, pauses: Iterator[float], *, last: bool) -> bool:
        """Wait after a look that failed to read a file; return whether another one follows.

        A file system that is briefly away (EIO, or ESTALE of NFS) says nothing about the batches:
        nothing new counts until it answers. The last look is repeated as well, for a minute at
        most; otherwise the committed batches would be reported only by the next start.
        """
        name = self._run.authority.registration.name
        if not self._unread:
            logger.warning("%s holds, and tries again: %s", name, failure)
        self._unread = True
        if not last:
            self._stopping.wait(self._interval)
            return True
        # A last look is not repeated for a removed file, or after the JVM has ended
        # (BrokenPipeError): neither comes back.
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
                # Authority.lost() has noted the error for the stage whose call failed: that stage
                # holds, and the others go on. This clause stands before the one of OSError, which
                # lowwater's Timeout also is: only an error of files makes the last look repeat.
                logger.debug("%s tries again later: %s", self._run.authority.registration.name, failure)
            except OSError as failure:
                ended = not self._looks_again(failure, pauses, last=ended)
            except Exception as failure:
                logger.exception("%s stops", self._run.authority.registration.name)
                # Without its clock the query would run on with a watermark that never moves. So an
                # unexpected error ends the query as well.
                self._run.fail(failure)
                ended = True
        # The stack calls in reverse order: the driving, the run, the client. The run goes before
        # the client, whose workers and readers it closes. An error in one call does not keep the
        # others from being made: else connections would stay open.
        with contextlib.ExitStack() as closing:
            if self._owned is not None:
                closing.callback(self._owned.close)
            closing.callback(self._run.close)
            if self._driving is not None:
                # close() frees the directory through which this clock gives values to a frame of
                # drive(), for another query with the frame. It is called at the end of this block,
                # after _end() has ended this query: before, the sources of both queries would read
                # one clock's values. Until then silence() gives out no more values.
                closing.callback(self._driving.close)
                self._driving.silence()
            if self._run.failure is not None and self._active():
                self._end()
            self._run.end(first_line(self._failed()))


class SparkStatus(dict[str, Any]):
    """Spark's status of a query.

    It can be called, because ``status`` was once lowwater's method.
    """

    def __init__(self, fields: Mapping[str, Any], stage_status: Callable[[str | None], Status]) -> None:
        super().__init__(fields)
        self._stage_status = stage_status

    def __call__(self, stage: str | None = None) -> Status:
        """Return the status of a stage, with a DeprecationWarning."""
        warnings.warn(
            "status() of a tracked query is stage_status() now: status is Spark's, as in its own handle. The next release cannot call it.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self._stage_status(stage)


class TrackedQuery(Tracked):
    """A running query of a tracked stage, in this process.

    It has the attributes of Spark's own handle, so code for that handle works with it; :meth:`stop`
    first reports what is committed. :meth:`stage_status` returns the status of a stage. When the
    run is replaced, the query is stopped.
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
        if (interval := interval_of(query)) > 0:
            run.batches.triggered_every(interval)
        self._events = Events(query) if run.listens else None
        self._query_failure: BaseException | None = None
        """Spark's error if the query had failed before :meth:`stop`, or None."""
        self._dropped = 0
        self._shown = run.progress.committed.batch if run.listens else NOTHING
        """Newest committed batch with an event; events from before this run do not count."""
        self._thread.start()

    def stage_status(self, stage: str | None = None) -> Status:
        """Return the status of the stage of this name, by default the first.

        Raises ValueError if there is none.
        """
        return dataclasses.replace(self._run.status(stage), dropped_rows=self._dropped)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the end of the query; return whether it has ended.

        Raises the error that ended it: the user's function's, Spark's, or the authority's refusal.
        """
        from pyspark.errors import StreamingQueryException

        try:
            # PySpark's annotation says int, but Spark accepts fractions of a second.
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
        """Return Spark's error of the query, or None."""
        try:
            return self.query.exception()
        except Exception as failure:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
            return failure

    def _look_back(self) -> None:
        """Process the events about batches that Spark has delivered since the last look."""
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

    # -- Spark's names -----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Spark's id of the query, stored in its checkpoint."""
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
        """True while the query runs."""
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

        A call of it, as in earlier releases, is a call of :meth:`stage_status`.
        """
        return SparkStatus(self.query.status, self.stage_status)

    def exception(self) -> StreamingQueryException | None:
        """Return Spark's error that ended the query, or None.

        :meth:`await_termination` raises the errors of the tracking.
        """
        return self.query.exception()

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the newest batch."""
        self.query.explain(extended)

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's own name
        """Wait until a batch has read all that is there now. Its report follows soon after."""
        self.query.processAllAvailable()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's own name
        """Wait as :meth:`await_termination` does."""
        return self.await_termination(timeout)
