"""The events of a Spark Connect session, which its server sends over one long answer.

Probed on PySpark 4.2. The server has one listener a session, and keeps that of a client that was
killed: another client that takes the session up would wait for ever in ``addListener``. When the
answer breaks off, PySpark removes all listeners of the client and warns. The removal of the last
listener may wait for itself, so :mod:`lowwater_spark.attach` never removes its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["ConnectEvents"]

logger = logging.getLogger("lowwater.spark")

LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at whether the listener is still there."""


class ConnectEvents:
    """A listener in a session of Spark Connect, added again when the connection breaks.

    ``gate`` is held by the caller of the listener for each event, and here while ``catch_up`` notes
    what was missed: so the events that come meanwhile count after it.
    """

    def __init__(
        self,
        spark: SparkSession,
        listener: StreamingQueryListener,
        catch_up: Callable[[], None],
        gate: AbstractContextManager[Any],
    ) -> None:
        self._spark: Any = spark
        self._listener = listener
        self._catch_up = catch_up
        self._gate = gate
        self._stopping = threading.Event()
        self._problem = ""

    def begin(self) -> None:
        """Add the listener, and keep it there until :meth:`stop`. Waits for the server."""
        self._add()
        threading.Thread(target=self._keep, name="lowwater-connect", daemon=True).start()

    def stop(self) -> None:
        """Let the listener go when the connection breaks."""
        self._stopping.set()

    def _add(self) -> None:
        streams = self._spark.streams
        if not streams._sqlb._listener_bus:
            self._release()
        # addListener() starts the thread that handles events, which is a daemon only if its starter
        # is one. With a thread that is none, a program that does not stop its session would never
        # end.
        thread = threading.Thread(target=streams.addListener, args=(self._listener,), daemon=True)
        thread.start()
        thread.join()

    def _release(self) -> None:
        """Have the server forget the listener of a client that had the session before."""
        from pyspark.sql.connect import proto

        bus = proto.StreamingQueryListenerBusCommand(remove_listener_bus_listener=True)
        self._spark.client.execute_command(proto.Command(streaming_query_listener_bus_command=bus))

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS) and not self._spark.is_stopped:
            if self._listener in self._spark.streams._sqlb._listener_bus:
                continue
            try:
                self._spark.streams.active  # noqa: B018 - raises while the server is away; addListener() would warn each time
                with self._gate:
                    self._add()
                    self._catch_up()
                logger.warning("the events of the Spark Connect session come again")
                self._problem = ""
            except Exception as failure:  # noqa: BLE001 - whatever Spark raises; the next look tries again
                if str(failure) != self._problem:
                    self._problem = str(failure)
                    logger.warning(
                        "no events come of the Spark Connect session; tried again every %g s: %s",
                        LOOK_SECONDS,
                        failure,
                    )
