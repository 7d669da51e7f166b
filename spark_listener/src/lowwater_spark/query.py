"""The handle of a running query, and the clock that makes its stage follow its inputs."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, cast

import lowwater
from lowwater import errors
from lowwater_spark.authority import REPLACED
from lowwater_spark.driver import Run, Status

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["INTERVAL", "TrackedQuery"]

logger = logging.getLogger("lowwater.spark")

INTERVAL: Final = 0.2
"""Seconds between two looks of the clock: at the inputs, the sources and the commit log."""


class TrackedQuery:
    """A running query of a tracked stage.

    A thread looks at the clock every :data:`INTERVAL` seconds, so the stage follows its inputs also when no rows come. When the run is
    replaced (a newer run of the same checkpoint, a reset), the query is stopped and :meth:`await_termination` raises the reason.
    """

    def __init__(self, run: Run, query: StreamingQuery, *, interval: float, owned: lowwater.Client | None) -> None:
        self.query = query
        """Spark's own handle."""
        self.checkpoint = run.checkpoint
        self._run = run
        self._interval = interval
        self._owned = owned
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._clock, name="lowwater-spark", daemon=True)
        self._thread.start()

    def status(self) -> Status:
        """Return how the query stands, and what holds it."""
        return self._run.status()

    @property
    def client(self) -> lowwater.Client:
        """The client that the driver talks to the authority with."""
        return self._run.authority.client

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended, at most ``timeout`` seconds; return whether it has.

        Raises what ended it: the error of the user's function or of Spark, or the authority's refusal of this run.
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

    def stop(self) -> None:
        """End the query and its reports; the ranges hold where they stand. What is committed by then is reported."""
        if not self._stopping.is_set():
            self._run.stopping = True
            self.query.stop()
            self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _active(self) -> bool:
        try:
            return bool(self.query.isActive)
        except Exception:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
            return False

    def _clock(self) -> None:
        ended = False
        while not ended:
            ended = self._stopping.wait(self._interval) or not self._active()
            try:
                self._run.tick(last=ended)
            except (*REPLACED, errors.Closed) as failure:
                logger.error("%s stops: %s", self._run.authority.registration.name, failure)
                self._run.fail(failure)
                ended = True
            except errors.LowwaterError as failure:
                self._run.authority.lost(failure)
            except Exception as failure:
                logger.exception("%s stops", self._run.authority.registration.name)
                # Whatever it is, the query must not go on unwatched.
                self._run.fail(failure)
                ended = True
        if self._run.failure is not None and self._active():
            self.query.stop()
        self._run.authority.close()
        if self._owned is not None:
            self._owned.close()
