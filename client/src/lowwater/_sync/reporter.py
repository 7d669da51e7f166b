"""The thread that reports, one per client and process however many leases there are."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from lowwater import errors
from lowwater._core import wire
from lowwater._core.backoff import CAP, Backoff
from lowwater._core.lease import LeaseState
from lowwater._core.reports import ReporterState, ReporterStatistics
from lowwater._pb.lowwater.v1 import workers_pb2
from lowwater._sync.connection import Connection, closed_client, error_of_call
from lowwater._sync.watcher import Watcher
from lowwater.views import Refusal

__all__ = ["Reporter"]

logger = logging.getLogger("lowwater")


class Reporter:
    """Sends what leases staged, on a clock, and learns what became of it.

    Workers stage under ``changed`` and go on; the stream's sender takes the newest states. Streams are opened anew
    after every failure, with a backoff, and then begin with everything. Without the authority, staging goes on as ever.
    """

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self.changed = threading.Condition()
        """Notified after every answer. Guards the states of all leases."""
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be reported again."""
        self.last_error: errors.LowwaterError | None = None
        """Why the last stream ended; None after an answer."""
        self._connection = connection
        self._watcher = watcher
        self._state = ReporterState(os.urandom(16), connection.settings.report_interval)
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._logged: dict[tuple[str, int], set[str]] = {}

    # -- for leases -------------------------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on."""
        with self.changed:
            self._state.add(lease)
            if self._thread is None and not self._connection.closed.is_set():
                self._thread = threading.Thread(target=self._run, name="lowwater-report", daemon=True)
                self._thread.start()

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer."""
        with self.changed:
            self._state.remove(lease)
            self._logged.pop((lease.computation, lease.sequencer), None)

    def staged(self, lease: LeaseState) -> None:
        """Let a lease's new state go out at the next tick. Hold ``changed``."""
        if self._state.staged(lease):
            self.changed.notify_all()

    def check(self) -> None:
        """Raise what ended the reporting, if something did."""
        if self.failure is not None:
            raise self.failure

    def flush(self, lease: LeaseState, timeout: float) -> None:
        """Wait until the newest state of a lease is durable.

        Raises Timeout after so many seconds, StaleSequencer when the claim is lost, and what the state was refused for.
        """
        deadline = time.monotonic() + timeout
        with self.changed:
            version = lease.version
            self._state.hurry()
            self.changed.notify_all()
            while True:
                self.check()
                if lease.lost_all:
                    raise stale(lease)
                if lease.answered >= version:
                    break
                if self._connection.closed.is_set():
                    raise closed_client()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._too_late(lease, timeout)
                self.changed.wait(left)
            if lease.refusal is not None:
                refusal = lease.refusal
                metadata = {"computation": lease.computation, "sequencer": str(lease.sequencer)}
                raise wire.error_of(refusal.reason, refusal.message, metadata)

    def _too_late(self, lease: LeaseState, timeout: float) -> errors.Timeout:
        why = f": {self.last_error}" if self.last_error is not None else ""
        msg = (
            f"the newest state of {lease.computation} was not acknowledged as durable within {timeout:g} s{why}. "
            "It stays staged and goes out as soon as the authority answers."
        )
        return errors.Timeout(msg, metadata={"computation": lease.computation, "timeout": f"{timeout:g}"})

    def statistics(self) -> ReporterStatistics:
        """Return what was done so far."""
        with self.changed:
            return self._state.statistics()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(random.random)
        while not self._connection.closed.is_set() and self.failure is None:
            delay = 0.0
            try:
                delay = self._report(backoff)
            except errors.ServerTokenMismatch as error:
                logger.error("stopped reporting: %s", error)
                with self.changed:
                    self.failure = error
            except errors.Closed:
                break
            except Exception:
                # Whatever it is, reporting must go on: a claim that is silent for ever holds all behind it.
                logger.exception("the report stream failed; it is opened anew")
                delay = backoff.next()
            with self.changed:
                self._call = None
                self._state.disconnected()
                self.changed.notify_all()
            self._connection.closed.wait(delay)

    def _report(self, backoff: Backoff) -> float:
        """Run one stream to its end; returns the seconds to wait before the next."""
        report = self._connection.workers.Report
        with self.changed:
            if self._connection.closed.is_set():
                raise closed_client()
            stream = self._state.open()
            self._call = call = report(self._requests(stream), metadata=self._connection.metadata)
        opened_at, delay = time.monotonic(), None
        try:
            for response in call:
                delay = self._answered(response)
                # Being let in proves little: a stream that is opened and fails at once, again and again, has to back off.
                if response.HasField("ack"):
                    backoff.reset()
                if delay is not None:
                    break
        except grpc.RpcError as failure:
            if self._connection.closed.is_set():
                return 0.0
            error = error_of_call(failure, self._connection.settings.address)
            if isinstance(error, errors.ServerTokenMismatch):
                raise error from None
            with self.changed:
                self.last_error = error
            quiet = isinstance(error, errors.Unavailable | errors.ShuttingDown | errors.OldStream)
            logger.log(logging.INFO if quiet else logging.WARNING, "the report stream ended: %s", error)
        finally:
            call.cancel()
        if time.monotonic() - opened_at > CAP and self._state.opened:
            backoff.reset()
        return (delay or 0.0) + backoff.next()

    def _requests(self, stream: int) -> Iterator[workers_pb2.ReportRequest]:
        """Yield the messages of one stream, each when it is due. Runs on the thread that gRPC gives to a stream's sender."""
        opening = workers_pb2.ReportOpen(
            server_token=self._watcher.server_token, sender=self._state.sender, stream=stream
        )
        yield workers_pb2.ReportRequest(open=opening)
        while True:
            with self.changed:
                if self._state.stream != stream or self._call is None or self._connection.closed.is_set():
                    return
                now = time.monotonic()
                due = self._state.due()
                if due is None or due > now:
                    self.changed.wait(None if due is None else due - now)
                    continue
                messages = [wire.report_request(report) for report in self._state.take(now)]
            yield from messages

    def _answered(self, response: workers_pb2.ReportResponse) -> float | None:
        """Take an answer; returns the seconds to wait before the next stream when the server asks to leave."""
        kind = response.WhichOneof("kind")
        if kind == "opened":
            self._watcher.admit(response.opened.server_token, ())
        with self.changed:
            self.last_error = None
            if kind == "opened":
                self._state.accepted(time.monotonic())
            elif kind == "ack":
                refused = [(each.computation, each.sequencer, wire.refusal(each)) for each in response.ack.refused]
                self._log(refused)
                references = [(each.computation, each.micros) for each in response.ack.references]
                self._state.acknowledged(response.ack.number, refused, references)
            elif kind == "fenced":
                computation, sequencer, handles, reason = wire.fenced(response.fenced)
                if self._state.fenced(computation, sequencer, handles, reason):
                    logger.warning("a claim on %s lost ranges: %s", computation, reason)
            self.changed.notify_all()
        if kind == "go_away":
            logger.info("the authority goes away: %s", response.go_away.reason)
            return response.go_away.retry_after_millis / 1e3
        return None

    def _log(self, refused: list[tuple[str, int, Refusal]]) -> None:
        """Say each reason once a claim: a range that is too far ahead is refused with every report until it no longer is."""
        for computation, sequencer, refusal in refused:
            if not self._state.reports(computation, sequencer):
                continue
            logged = self._logged.setdefault((computation, sequencer), set())
            if refusal.reason not in logged:
                logged.add(refusal.reason)
                logger.warning("a report of %s was refused: %s (%s)", computation, refusal.message, refusal.reason)

    def stop(self) -> None:
        """End the stream; the connection must have been closed."""
        with self.changed:
            if self._call is not None:
                self._call.cancel()
            self.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)


def stale(lease: LeaseState, handles: tuple[int, ...] = ()) -> errors.StaleSequencer:
    """Return the error of a claim that lost all its ranges, or some."""
    reason = lease.lost_all or ", ".join(sorted({lease.lost[handle] for handle in handles}))
    which = "all its ranges" if lease.lost_all else f"{len(handles)} of its {lease.count} ranges"
    msg = (
        f"this claim on {lease.computation} lost {which}: {reason}. Stop writing for them; "
        "lease.lost names the handles. Claim again only if this worker is meant to be the owner."
    )
    metadata = {"computation": lease.computation, "sequencer": str(lease.sequencer), "reason": reason}
    return errors.StaleSequencer(msg, metadata=metadata)
