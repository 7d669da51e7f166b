"""The events of a Spark Connect session, which its server sends over one long answer.

Probed on PySpark 4.2. The server has one listener a session, and keeps that of a client that was
killed: another client that takes the session up would wait for ever in ``addListener``. When the
answer breaks off, PySpark removes all listeners of the client and warns. The removal of the last
listener may wait for itself, so :mod:`lowwater_spark.attach` never removes its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["ConnectEvents", "EventGate"]

logger = logging.getLogger("lowwater.spark")

MOST_EVENTS: Final = 10_000
"""Greatest number of events that are kept back; of more the oldest are lost, and counts are too
low."""

LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at whether the listener is still there."""


ADD_SECONDS: Final = 60.0
"""Longest wait for the server to take a listener, seconds."""


def _silent() -> TimeoutError:
    return TimeoutError(
        f"the server of Spark Connect did not take the listener within {ADD_SECONDS:g} s: see whether it answers, and attach again"
    )


class EventGate:
    """Passes events on, or keeps them back while earlier ones are noted. Thread-safe.

    The caller never waits for the server: ``start()`` of a query calls its listeners.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] | None = None
        """The newest events that are kept back; None: none is."""

    def note(self, event: Callable[[], None]) -> None:
        """Call ``event``, now or when the gate opens. It must not raise, and not call Spark."""
        with self._lock:
            if self._waiting is None:
                event()
            else:
                self._waiting.append(event)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep events back; at the end of the block they are called in order."""
        with self._lock:
            self._waiting = deque(maxlen=MOST_EVENTS)
        try:
            yield
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, None
                for event in waiting or ():
                    event()


class ConnectEvents:
    """A listener in a session of Spark Connect, added again when the connection breaks.

    ``gate`` is closed from the moment when the listener is added again until ``catch_up`` has noted
    what was missed: so the events that come meanwhile count after it.
    """

    def __init__(
        self,
        spark: SparkSession,
        listener: StreamingQueryListener,
        catch_up: Callable[[], None],
        gate: EventGate,
    ) -> None:
        self._spark: Any = spark
        self._listener = listener
        self._catch_up = catch_up
        self._gate = gate
        self._stopping = threading.Event()
        self._missed = False
        """True from a lost connection until what was missed is noted."""
        self._problem = ""

    def begin(self) -> None:
        """Add the listener, and keep it there until :meth:`stop`. Waits for the server.

        Raises RuntimeError when the server refuses it, and TimeoutError when the server does not
        answer within :data:`ADD_SECONDS`.
        """
        self._add()
        threading.Thread(target=self._keep, name="lowwater-connect", daemon=True).start()

    def stop(self) -> None:
        """Let the listener go when the connection breaks."""
        self._stopping.set()

    @property
    def _bus(self) -> Any:
        """PySpark's listeners of this client, with the thread that calls them."""
        return self._spark.streams._sqlb

    def _add(self) -> None:
        bus = self._bus
        lost: list[StreamingQueryListener] = []
        # PySpark keeps the lock while it calls the server, which may not answer.
        if not bus._lock.acquire(timeout=ADD_SECONDS):
            raise _silent()
        # PySpark has the server send events for the first listener only. So a listener that is
        # added by the user must not come between the two steps here.
        try:
            if bus._execution_thread is not None and not bus._execution_thread.is_alive():
                # Another client has taken the events, and PySpark keeps listeners that get none.
                lost = [listener for listener in bus._listener_bus if listener is not self._listener]
                bus._listener_bus.clear()
                bus._execution_thread = None
            if not bus._listener_bus:
                self._release()
        finally:
            bus._lock.release()
        for listener in (self._listener, *lost):
            # addListener() starts the thread that handles events, which is a daemon only if its
            # starter is one. With a thread that is none, a program that does not stop its session
            # would never end.
            thread = threading.Thread(target=self._spark.streams.addListener, args=(listener,), daemon=True)
            thread.start()
            thread.join(ADD_SECONDS)
            if thread.is_alive():
                raise _silent()
        if self._listener not in bus._listener_bus:  # addListener() only warns
            raise RuntimeError("the server of Spark Connect did not take the listener; the warning of PySpark says why")

    def _release(self) -> None:
        """Have the server forget the listener of a client that had the session before."""
        from pyspark.sql.connect import proto

        bus = proto.StreamingQueryListenerBusCommand(remove_listener_bus_listener=True)
        self._spark.client.execute_command(proto.Command(streaming_query_listener_bus_command=bus))

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS) and not self._spark.is_stopped:
            bus = self._bus
            listens = self._listener in bus._listener_bus
            thread = bus._execution_thread
            if listens and thread is not None and not thread.is_alive():
                # If both clients took the events back, each would lose them every few seconds.
                self._note(
                    "the server of Spark Connect has ended the events of this client, as when another client of the session attaches: "
                    "the queries are reported by that one, or hold. To take the events back: stop() and attach again"
                )
                continue
            if listens and not self._missed:
                continue
            self._missed = True
            try:
                self._spark.streams.active  # noqa: B018 - raises while the server is away; addListener() would warn each time
                with self._gate.closed():
                    if not listens:
                        self._add()
                        listens = True
                    self._catch_up()
                self._missed = False
                self._problem = ""
                logger.warning("the events of the Spark Connect session come again")
            except Exception as failure:  # noqa: BLE001 - whatever Spark raises; the next look tries again
                what = (
                    "what was missed of the Spark Connect session is not known"
                    if listens
                    else "no events come of the Spark Connect session"
                )
                self._note(f"{what}; tried again every {LOOK_SECONDS:g} s: {failure}")

    def _note(self, problem: str) -> None:
        """Log a text, unless it was the one before."""
        if problem != self._problem:
            self._problem = problem
            logger.warning("%s", problem)
