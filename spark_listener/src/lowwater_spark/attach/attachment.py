"""``attach()``: publishes the watermark of every streaming query of a session, as an estimate.

Published is Spark's own watermark. "The greatest event time seen, less a constant" is a guess of
the user's and no promise, so no exact computation may read it. Spark is not disturbed: its threads
only write into a book, one thread of ours calls the authority, and none of our errors reaches a
query.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater.core.advice import DELAYS, Advice, advise
from lowwater_spark.attach.book import Book, QueryStatus
from lowwater_spark.attach.connect import ConnectEvents, EventGate
from lowwater_spark.attach.embedded import acquire, release
from lowwater_spark.attach.progress import computation_name, read_progress
from lowwater_spark.attach.sender import Sender
from lowwater_spark.attach.settings import AttachSettings, resolve
from lowwater_spark.settings import connection
from lowwater_spark.tracked import is_tracked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from lowwater_authority.embedded import EmbeddedAuthority

__all__ = ["AttachStatus", "Attachment", "QueryStatus", "attach"]

logger = logging.getLogger("lowwater.spark")

CALL_TIMEOUT: Final = 3.0
"""Longest wait of the sender for one answer, seconds. Spark's threads do not wait for it."""


def attach(
    spark: SparkSession,
    address: str | None = None,
    *,
    client: lowwater.Client | None = None,
    namespace: str | None = None,
    prefix: str | None = None,
    data: str | os.PathLike[str] | None = None,
    enabled: bool | None = None,
    inputs: Mapping[str, Sequence[str]] | None = None,
) -> Attachment:
    """Publish Spark's watermark of every streaming query of a session as estimated, with counts.

    Each query becomes a computation, named by PREFIX and the query's name (``queryName``), else its
    id, which its checkpoint keeps. Queries of tracked stages are left out: their own computation is
    exact. A second call for a session returns the same attachment. Queries
    of ``spark.newSession()`` are not seen: attach that session too.

    Args:
        spark: A classic session, or one of Spark Connect.
        address: Address of the authority; default the session's ``spark.lowwater.address``, else
            ``LOWWATER_ADDRESS``. Without any an authority is started beside the driver, and ends
            with it; that needs ``lowwater-spark[embedded]``.
        client: A client of your own, instead of the address and of token and certificates from
            ``spark.lowwater.*``. Only its settings are used.
        namespace: Namespace of the computations; default ``spark.lowwater.namespace``.
        prefix: Text before each name; default ``spark.lowwater.prefix``, else ``"spark."``.
        data: Folder for the journal of the embedded authority, so that watermarks outlive it;
            default ``spark.lowwater.data``, else a temporary one.
        enabled: Kill switch; default ``spark.lowwater.enabled``, else ``LOWWATER_ENABLED``. False
            attaches nothing.
        inputs: Inputs of queries by query name, for example ``{"hourly": ["enriched"], "enriched":
            ["flights"]}``. A name is a query of the mapping, else any computation. The page and
            ``lowwater why`` then show the graph, and such a query is published no higher than its
            inputs. It stays an estimate.

    Raises ValueError for contradictory settings, and when the session is attached with others;
    ModuleNotFoundError and RuntimeError when an embedded authority is missing or does not start;
    RuntimeError and TimeoutError when a server of Spark Connect does not take the listener.
    Never waits for an authority that is away, nor fails because of it.
    """
    if client is not None:
        address = client.settings.address
        namespace = client.settings.namespace if namespace is None else namespace

    def conf(name: str) -> str | None:
        return spark.conf.get(name, None)

    settings = resolve(
        conf, address=address, namespace=namespace, prefix=prefix, data=data, enabled=enabled, inputs=inputs
    )
    for attachment in tuple(_attached):
        if attachment.begun.is_set() and attachment.over:
            attachment.stop()
    attachment, is_new = _reserved(spark, settings)
    if is_new:
        attachment.start(client)
    return attachment


def _reserved(spark: SparkSession, settings: AttachSettings) -> tuple[Attachment, bool]:
    """Return the attachment of a session, and whether it is a new one, which the caller starts.

    The lock is not held while an attachment starts, because a server of Spark Connect may not
    answer: the others must stop meanwhile. Raises ValueError for other settings.
    """
    while True:
        with _lock:
            existing = next((attachment for attachment in _attached if attachment.of(spark)), None)
            if existing is None:
                attachment = Attachment(spark, settings)
                if settings.enabled:
                    _attached.append(attachment)
                return attachment, True
        if existing.settings != settings:
            msg = f"this session is attached already, with {existing.settings}; stop() that attachment first"
            raise ValueError(msg)
        existing.begun.wait()
        if existing.of(spark):  # else its start has failed
            return existing, False


@dataclass(frozen=True, slots=True)
class AttachStatus:
    """The state of an attachment. All counts begin with it."""

    enabled: bool
    address: str
    """Address of the authority; empty when nothing is attached."""
    authority: str
    """"answers", "away" (the next value is tried), or "left alone" (after several failures it is
    tried again later)."""
    problem: str
    """Reason why the authority is away; empty while it answers."""
    delivered: int
    """Number of values that the authority has answered."""
    failures: int
    """Number of attempts without an answer."""
    conflated: int
    """Number of values replaced by a newer one of the same query before they were sent."""
    dropped: int
    """Number of events of queries beyond the thousand that are remembered."""
    swallowed: int
    """Number of errors that were kept from Spark; each is a bug."""
    last_swallowed: str
    queries: tuple[QueryStatus, ...]

    def query(self, name: str) -> QueryStatus:
        """Return the newest query by its name, Spark's or the computation's. Raises KeyError."""
        for query in reversed(self.queries):
            if name in {query.name, query.computation}:
                return query
        raise KeyError(name)


class Attachment:
    """The result of :func:`attach`: the status of its queries, and the switch that ends it."""

    def __init__(self, spark: SparkSession, settings: AttachSettings) -> None:
        self.settings = settings
        self.address: str = ""
        """Address of the authority; empty when nothing is attached."""
        self.embedded: EmbeddedAuthority | None = None
        """Authority that was started for this attachment; None: an address was given."""
        self._spark = spark
        self._session = _session_of(spark)
        self._book = Book(
            lambda name, query: computation_name(settings.prefix, name, query), time.monotonic, left_out=is_tracked
        )
        self._reach: lowwater.Settings | None = None
        self._sender: Sender | None = None
        self._listener: StreamingQueryListener | None = None
        self._gate = EventGate()
        """Closed while events that were missed are noted."""
        self._events: ConnectEvents | None = None
        """Events of Spark Connect; None in a classic session."""
        self._stopped = not settings.enabled
        self.begun = threading.Event()
        """Set when :meth:`start` has ended, also by an error."""

    def start(self, client: lowwater.Client | None) -> None:
        """Begin to listen and to report; called once, by :func:`attach`.

        If it raises, nothing of the attachment is left.
        """
        if not self.settings.enabled:
            return
        try:
            self._start(client)
        except BaseException:
            self.stop()
            raise
        finally:
            self.begun.set()
        atexit.register(self.stop)

    def _start(self, client: lowwater.Client | None) -> None:
        if self.settings.address is None:
            self.embedded = acquire(self.settings.data)
            self.address = self.embedded.address
            page = f", or {self.page}" if self.page else ""
            print(  # noqa: T201 - the one line that a notebook's user needs
                f"lowwater: this session's watermarks are at {self.address}; to look: lowwater watch --address {self.address}{page}"
            )
        else:
            self.address = self.settings.address
        if client is not None:
            base = client
        elif self.embedded is not None:
            base = lowwater.Client(lowwater.Settings(self.address))
        else:
            base = lowwater.Client(connection(lambda name: self._spark.conf.get(name, None), self.address))
        self._reach = dataclasses.replace(
            base.settings,
            namespace=self.settings.namespace,
            timeout=min(base.settings.timeout, CALL_TIMEOUT),
        )
        self._sender = Sender(self._book, lowwater.Client(self._reach), inputs=self.settings.inputs)
        self._listener = _listener(self._book, lambda: self._stopped, self._gate)
        self._listen(self._listener)
        self._sender.start()
        # Spark sends no start event for queries that ran before the listener was added. If the book
        # did not get them here, a query without new rows would be missing until its next batch.
        for query in self._spark.streams.active:
            self._book.started(str(query.id), str(query.runId), query.name)
            # If the query has just ended, its end event may have come before the line above, and
            # was ignored: the book would show the query as running for ever.
            if not query.isActive:
                self._book.terminated(str(query.id), str(query.runId), None)

    def _listen(self, listener: StreamingQueryListener) -> None:
        if _is_connect(self._spark):
            # Counts begin with the attachment. A catch-up later finds batches from before it.
            for query in self._spark.streams.active:
                if (progress := query.lastProgress) is not None:
                    batch = int(json.loads(progress.json)["batchId"])
                    self._book.begins_after(str(query.id), str(query.runId), batch)
            self._events = ConnectEvents(self._spark, listener, self._catch_up, self._gate)
            self._events.begin()
        else:
            self._spark.streams.addListener(listener)

    def _catch_up(self) -> None:
        """Note what happened while no events came: ends, starts, and the batches that Spark has.

        The reason of an end is not known any more, nor the last batches of an ended query. Raises
        what Spark raises, after noting what it could.
        """
        active = {str(query.id): query for query in self._spark.streams.active}
        for status in self._book.queries():
            query = active.get(status.query)
            if status.state != "ended" and (query is None or str(query.runId) != status.run):
                self._book.terminated(status.query, status.run, None)
        problem: Exception | None = None
        for query in active.values():
            self._book.started(str(query.id), str(query.runId), query.name)
            try:
                batches = query.recentProgress
            except Exception as failure:  # noqa: BLE001 - of one query; the others are noted
                problem = failure
                continue
            for progress in batches:
                try:
                    self._book.progressed(read_progress(json.loads(progress.json)))
                except Exception as failure:  # noqa: BLE001 - as in an event of the listener
                    self._book.swallow(failure)
        if problem is not None:
            raise problem

    @property
    def page(self) -> str:
        """URL of the status page of the authority in :attr:`embedded`; empty without one."""
        return "" if self.embedded is None else self.embedded.page_url

    def of(self, spark: SparkSession) -> bool:
        """Return True if this is the live attachment of a session."""
        return not self._stopped and self._session == _session_of(spark)

    @property
    def over(self) -> bool:
        """True after the session was stopped, so that no event can come."""
        spark: Any = self._spark
        return bool(spark.is_stopped if _is_connect(spark) else spark.sparkContext._jsc is None)

    def status(self, *, wait: float = 0.0) -> AttachStatus:
        """Return the status of the attachment and its queries. No network.

        Spark tells its listeners of a batch some time after it. With ``wait``, first wait up to so
        many seconds until Spark has told of all batches that are committed by now, and the
        authority has answered about them. Raises TimeoutError if that takes longer, and
        RuntimeError for ``wait`` in Spark Connect, which does not say how far it has told.
        """
        if wait:
            self._settle(wait)
        book, sender = self._book, self._sender
        with book.changed:
            problem = "" if sender is None else sender.problem
            if self.embedded is not None and self.embedded.ended and not self._stopped:
                problem = f"the embedded authority has ended; its log is in {self.embedded.data}"
            left_alone = sender is not None and sender.breaker.is_open
            return AttachStatus(
                enabled=not self._stopped,
                address=self.address,
                authority="left alone" if left_alone else "away" if problem else "answers",
                problem=problem,
                delivered=0 if sender is None else sender.delivered,
                failures=0 if sender is None else sender.failures,
                conflated=book.conflated,
                dropped=book.dropped,
                swallowed=book.swallowed,
                last_swallowed=book.last_swallowed,
                queries=book.queries(),
            )

    def _settle(self, seconds: float) -> None:
        if _is_connect(self._spark):
            raise RuntimeError("Spark Connect does not say whether it has told of all batches: leave wait= out")
        deadline = time.monotonic() + seconds
        if not self.over:
            context: Any = self._spark.sparkContext._jsc
            try:
                context.sc().listenerBus().waitUntilEmpty(math.ceil(seconds * 1000))
            except Exception as failure:
                raise TimeoutError(f"Spark has not told of all batches within {seconds} s") from failure
        if not self._stopped and not self._book.wait(max(0.0, deadline - time.monotonic())):
            status = self.status()
            problems = [
                status.problem,
                *(f"{query.computation}: {query.problem}" for query in status.queries if query.problem),
            ]
            raise TimeoutError("; ".join(filter(None, problems)) or f"no answer of the authority within {seconds} s")

    def advise(
        self,
        query: str | None = None,
        *,
        low: str | None = None,
        delays: Sequence[timedelta] = DELAYS,
        window: timedelta | None = None,
    ) -> Advice:
        """Return what constant delays would have lost of a query's rows since it was attached.

        ``str()`` of the answer says it in sentences. No job runs for it. With ``low`` it calls the
        authority.

        Args:
            query: Name of the query, Spark's or the computation's; default the only one.
            low: Computation whose low watermark is compared, such as a driven stage over the same
                data.
            delays: Delays of ``withWatermark`` to judge.
            window: Length of the query's windows. Spark drops a row when its window has ended, so
                fewer rows are lost than without windows.

        Raises KeyError for an unknown query, ValueError when there are several, and LowwaterError
        when the authority does not know ``low`` or is away.
        """
        queries = self.status().queries
        if query is None and len({status.name for status in queries}) != 1:
            names = ", ".join(status.name or status.computation for status in queries)
            raise ValueError(f"name the query to advise about; attached are: {names or 'none'}")
        status = queries[-1] if query is None else self.status().query(query)
        history, estimated = None, False
        if low is not None and self._reach is not None:
            with lowwater.Client(self._reach) as client:
                history, estimated = client.history(low, limit=10_000), client.get(low)[low].estimated
        return advise(
            self._book.times(status.query),
            history,
            query=status.name or status.computation,
            estimated=estimated,
            delays=delays,
            window=window,
        )

    def stop(self) -> None:
        """End the attachment: queries go on unseen, and their computations hold.

        Waits a few seconds at most; may be repeated.
        """
        with _lock:
            if self._stopped:
                return
            self._stopped = True
            _attached[:] = [attachment for attachment in _attached if attachment is not self]
        atexit.unregister(self.stop)
        self._end()

    def _end(self) -> None:
        """End what was begun, which may be a part only after a start that failed."""
        # In Spark Connect the listener stays, and ignores events. removeListener() there holds the
        # lock of the listener bus while it waits for the thread that handles events. That thread
        # may wait for the same lock, and then stop() would never return.
        if self._listener is not None and not _is_connect(self._spark):
            try:
                self._spark.streams.removeListener(self._listener)
            except Exception as failure:  # noqa: BLE001 - whatever py4j raises when the JVM is gone
                logger.debug("the listener went with its session: %r", failure)
        if self._events is not None:
            self._events.stop()
        if self._sender is not None:
            self._sender.stop()
        if self.embedded is not None:
            release(self.embedded)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_lock = threading.Lock()
_attached: list[Attachment] = []
"""Live attachments of this process, one a session."""


def _is_connect(spark: SparkSession) -> bool:
    return not hasattr(spark, "_jsparkSession")


def _session_of(spark: SparkSession) -> Any:
    """Return a value that is equal for all Python objects of one session."""
    return spark.session_id if _is_connect(spark) else spark._jsparkSession  # type: ignore[attr-defined]  # of Spark Connect


def _listener(book: Book, stopped: Callable[[], bool], gate: EventGate) -> StreamingQueryListener:
    """Return a listener that writes into the book. It never waits: Spark's start() waits for it."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    def guarded(take: Callable[[Any], None], event: Any) -> None:
        def note() -> None:
            try:
                take(event)
            except Exception as failure:  # noqa: BLE001 - none of our errors may reach a query
                book.swallow(failure)

        if not stopped():
            gate.note(note)

    class Listener(StreamingQueryListener):
        """Listener that Spark calls on threads of its own."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            guarded(lambda event: book.started(str(event.id), str(event.runId), event.name), event)

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            guarded(lambda event: book.progressed(read_progress(json.loads(event.progress.json))), event)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            guarded(lambda event: book.idle(str(event.id), str(event.runId), event.timestamp), event)

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            guarded(lambda event: book.terminated(str(event.id), str(event.runId), event.exception), event)

    return Listener()
