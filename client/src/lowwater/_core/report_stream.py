"""The report stream to one shard: when to send, what an answer means, and when to open the next stream."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from lowwater import errors
from lowwater._core import wire
from lowwater._core.attempts import BUSY, DENIED, error_of_call
from lowwater._core.backoff import CAP, Backoff
from lowwater._core.lease import LeaseState
from lowwater._core.reports import ReporterState
from lowwater._core.routes import HOME
from lowwater._pb.lowwater.v1 import workers_pb2

if TYPE_CHECKING:
    from lowwater._core.reporting import Reporting

__all__ = ["Due", "ReportStream"]

logger = logging.getLogger("lowwater")


@dataclass(frozen=True, slots=True)
class Due:
    """What a stream has to send."""

    messages: Sequence[workers_pb2.ReportRequest]
    """To send now."""
    within: float | None
    """Seconds after which to ask again, when there are none; None: not before something changes."""
    answered: bool = False
    """Whether states were answered without being sent, so that those who wait have to be woken."""


class ReportStream:
    """Around the state machine of a report stream: its life from one stream to the next.

    Streams are opened anew after every failure, with a backoff, and then begin with everything. Leases that the shard redirects leave
    before their reports are answered: nothing of them was taken over.
    """

    first_pause: float = 0.0
    hurried: bool = False

    def __init__(self, reporting: Reporting, key: str) -> None:
        self.key = key
        """The shard's address, or ``HOME``."""
        surroundings = reporting.surroundings
        self.state: ReporterState = ReporterState(surroundings.randbytes(16), reporting.interval, surroundings.random)
        self.last_error: Exception | None = None
        """Why the last stream ended; None after an answer."""
        self.interrupted: bool = False
        """Whether the open stream is to be ended now."""
        self._reporting = reporting
        self._monotonic = surroundings.monotonic
        self._backoff = Backoff(surroundings.random)
        self._open = False
        self._opened_at = 0.0
        self._opened_to = ""
        self._leaving: float | None = None

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Why nothing will ever be reported again."""
        return self._reporting.failure

    @property
    def wanted(self) -> bool:
        """Whether there is anything to report: claims that have nothing new as well, the stream keeps them fresh."""
        return bool(self.state.leases)

    @property
    def address(self) -> str:
        """Where the next stream goes."""
        return self.key or self._reporting.routes.home

    def open(self, address: str, server_token: str) -> tuple[int, workers_pb2.ReportRequest]:
        """Begin a stream to an address; returns its counter and its first message."""
        stream = self.state.open()
        self._open, self.interrupted = True, False
        self._opened_at, self._opened_to, self._leaving = self._monotonic(), address, None
        opening = workers_pb2.ReportOpen(server_token=server_token, sender=self.state.sender, stream=stream)
        return stream, workers_pb2.ReportRequest(open=opening)

    def leave_idle(self) -> bool:
        """Have the open stream ended if it carries nothing any more; returns whether it is. Home's stays, for what comes next."""
        self.interrupted = self._open and self.key != HOME and not self.wanted
        return self.interrupted

    def due(self, stream: int) -> Due | None:
        """Return what a stream has to send; None when it has ended."""
        if not self._open or self.state.stream != stream:
            return None
        now = self._monotonic()
        due = self.state.due()
        if due is None or due > now:
            return Due((), None if due is None else due - now)
        messages = [wire.report_request(report) for report in self.state.take(now)]
        return Due(messages, 0.0, self.state.answered_here())

    def take(self, response: workers_pb2.ReportResponse) -> bool:
        """Take an answer; returns whether the stream is to be left."""
        self.last_error = None
        match response.WhichOneof("kind"):
            case "opened":
                self.state.accepted(self._monotonic())
            case "ack":
                return self._acknowledged(response.ack)
            case "fenced":
                computation, sequencer, handles, reason = wire.fenced(response.fenced)
                if self.state.fenced(computation, sequencer, handles, reason):
                    logger.warning("a claim on %s lost ranges: %s", computation, reason)
                    self._drop_lost([(computation, sequencer)])
                    return not self.wanted
            case "go_away":
                logger.info("the authority goes away, at %s: %s", self._opened_to, response.go_away.reason)
                self._leaving = response.go_away.retry_after_millis / 1e3
                return True
            case _:
                pass  # of a newer server
        return False

    def _acknowledged(self, ack: workers_pb2.ReportAck) -> bool:
        moved: dict[str, tuple[workers_pb2.RefusedRanges, list[LeaseState]]] = {}
        for each in ack.refused:
            lease = self.state.find(each.computation, each.sequencer)
            if each.reason == errors.OldStream.reason and lease is not None:
                self.state.begin_above(lease, each.newest)
            if each.reason == errors.Moved.reason and lease is not None:
                # Gone before anything counts as answered: what the number says of its reports is not true of it.
                self.state.remove(lease)
                moved.setdefault(each.computation, (each, []))[1].append(lease)
        refused = [
            (each.computation, each.sequencer, wire.refusal(each))
            for each in ack.refused
            if each.reason not in (errors.Moved.reason, errors.OldStream.reason)
        ]
        self._reporting.log(refused)
        references = [(each.computation, each.micros) for each in ack.references]
        for answered in self.state.acknowledged(ack.number, refused, references):
            self._reporting.heard(answered.computation)
        self._drop_lost([(computation, sequencer) for computation, sequencer, _ in refused])
        if not moved:
            # Being let in proves little: a stream that is opened and fails at once, again and again, has to back off.
            self._backoff.reset()
            return not self.wanted
        returned = [self._reporting.redirected(self, each.redirect, leases) for each, leases in moved.values()]
        # What came back to the same shard begins a new stream with everything: nothing sent before may count after it.
        return any(returned) or not self.wanted

    def _drop_lost(self, claims: Iterable[tuple[str, int]]) -> None:
        """Report claims no longer that have lost all their ranges."""
        for computation, sequencer in claims:
            lease = self.state.find(computation, sequencer)
            if lease is not None and lease.lost_all:
                self._reporting.remove(lease)

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next.

        Another deployment at a home that was given ends the reporting. Whatever else it is, reporting must go on: a
        claim that is silent for ever holds all behind it. A shard that is only busy is asked again when it said.
        """
        lasted = self.state.opened and self._monotonic() - self._opened_at > CAP
        self._open = False
        self.state.disconnected()
        if self.interrupted and isinstance(failure, grpc.RpcError):
            return 0.0
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_to)
        self.last_error = failure or self.last_error
        routes = self._reporting.routes
        if isinstance(failure, errors.ServerTokenMismatch) and self.key == HOME and routes.given(self._opened_to):
            logger.error("stopped reporting: %s", failure)
            self._reporting.failure = failure
            return 0.0
        if isinstance(failure, errors.Unavailable | errors.ShuttingDown | errors.OldStream):
            logger.info("the report stream to %s ended: %s", self._opened_to, failure)
        elif isinstance(failure, errors.LowwaterError):
            logger.warning("the report stream to %s ended: %s", self._opened_to, failure)
        elif failure is not None:
            logger.error("the report stream to %s failed; it is opened anew", self._opened_to, exc_info=failure)
        leaving, self._leaving = self._leaving, None
        at_least = failure.retry_after if isinstance(failure, errors.LowwaterError) else leaving or 0.0
        if failure is not None or leaving is not None:
            busy = isinstance(failure, (*BUSY, *DENIED))
            if not busy:
                routes.failed(self._opened_to)
            if self.key != HOME:
                self._reporting.lose(self, self._backoff.spread(at_least) if busy else 0.0)
                return 0.0  # what was reported here is looked for, which has delays of its own
        if lasted:
            self._backoff.reset()
        return self._backoff.next(at_least)

    def retire(self) -> None:
        """Nothing is reported here any more."""
        self._reporting.retired(self)
