"""What one process's report stream decides: when to send, what an answer means, and when to open the next stream."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from lowwater import errors
from lowwater._core import wire
from lowwater._core.attempts import error_of_call
from lowwater._core.backoff import CAP, Backoff
from lowwater._core.lease import LeaseState
from lowwater._core.reports import ReporterState, ReporterStatistics
from lowwater._core.settings import Settings
from lowwater._core.surroundings import Surroundings
from lowwater._pb.lowwater.v1 import workers_pb2
from lowwater.views import Refusal

__all__ = ["Due", "Reporting", "stale"]

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


class Reporting:
    """Around the state machine of a report stream: its life from one stream to the next, and what leases hear of it.

    Streams are opened anew after every failure, with a backoff, and then begin with everything. Nothing here waits or locks.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be reported again."""
        self.state: ReporterState = ReporterState(surroundings.randbytes(16), settings.report_interval)
        self._last_error: errors.LowwaterError | None = None  # why the last stream ended; None after an answer
        self._address = settings.address
        self._monotonic = surroundings.monotonic
        self._backoff = Backoff(surroundings.random)
        self._logged: dict[tuple[str, int], set[str]] = {}
        self._open = False
        self._opened_at = 0.0
        self._leaving = 0.0

    # -- for leases ---------------------------------------------------------------------------------------------------

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer."""
        self.state.remove(lease)
        self._logged.pop((lease.computation, lease.sequencer), None)

    def check(self) -> None:
        """Raise what ended the reporting, if something did."""
        if self.failure is not None:
            raise self.failure

    def answered(self, lease: LeaseState, version: int) -> bool:
        """Whether a state of a lease was answered. Raises StaleSequencer when the claim is lost, and what the state was refused for."""
        self.check()
        if lease.lost_all:
            raise stale(lease)
        if lease.answered < version:
            return False
        if lease.refusal is not None:
            metadata = {"computation": lease.computation, "sequencer": str(lease.sequencer)}
            raise wire.error_of(lease.refusal.reason, lease.refusal.message, metadata)
        return True

    def too_late(self, lease: LeaseState, timeout: float) -> errors.Timeout:
        """Return the error of a state that was not answered in time."""
        why = f": {self._last_error}" if self._last_error is not None else ""
        msg = (
            f"the newest state of {lease.computation} was not acknowledged as durable within {timeout:g} s{why}. "
            "It stays staged and goes out as soon as the authority answers."
        )
        return errors.Timeout(msg, metadata={"computation": lease.computation, "timeout": f"{timeout:g}"})

    def statistics(self) -> ReporterStatistics:
        """Return what was done so far."""
        return self.state.statistics()

    # -- the stream ---------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether a stream has to be opened: always, it is what keeps claims fresh."""
        return True

    def open(self, server_token: str) -> tuple[int, workers_pb2.ReportRequest]:
        """Begin a stream; returns its counter and its first message."""
        stream = self.state.open()
        self._open = True
        self._opened_at = self._monotonic()
        self._leaving = 0.0
        opening = workers_pb2.ReportOpen(server_token=server_token, sender=self.state.sender, stream=stream)
        return stream, workers_pb2.ReportRequest(open=opening)

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
        self._last_error = None
        match response.WhichOneof("kind"):
            case "opened":
                self.state.accepted(self._monotonic())
            case "ack":
                ack = response.ack
                refused = [(each.computation, each.sequencer, wire.refusal(each)) for each in ack.refused]
                self.log(refused)
                self.state.acknowledged(
                    ack.number, refused, [(each.computation, each.micros) for each in ack.references]
                )
                # Being let in proves little: a stream that is opened and fails at once, again and again, has to back off.
                self._backoff.reset()
            case "fenced":
                computation, sequencer, handles, reason = wire.fenced(response.fenced)
                if self.state.fenced(computation, sequencer, handles, reason):
                    logger.warning("a claim on %s lost ranges: %s", computation, reason)
            case "go_away":
                logger.info("the authority goes away: %s", response.go_away.reason)
                self._leaving = response.go_away.retry_after_millis / 1e3
                return True
            case _:
                pass  # of a newer server
        return False

    def log(self, refused: Sequence[tuple[str, int, Refusal]]) -> None:
        """Say each reason once a claim: a range that is too far ahead is refused with every report until it no longer is."""
        for computation, sequencer, refusal in refused:
            if not self.state.reports(computation, sequencer):
                continue
            logged = self._logged.setdefault((computation, sequencer), set())
            if refusal.reason not in logged:
                logged.add(refusal.reason)
                logger.warning("a report of %s was refused: %s (%s)", computation, refusal.message, refusal.reason)

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next.

        Another deployment ends the reporting, :attr:`failure` says so. Whatever else it is, reporting must go on: a claim that
        is silent for ever holds all behind it.
        """
        lasted = self.state.opened and self._monotonic() - self._opened_at > CAP
        self._open = False
        self.state.disconnected()
        if isinstance(failure, grpc.RpcError):
            failure = self._last_error = error_of_call(failure, self._address)
        if isinstance(failure, errors.ServerTokenMismatch):
            logger.error("stopped reporting: %s", failure)
            self.failure = failure
            return 0.0
        if isinstance(failure, errors.Unavailable | errors.ShuttingDown | errors.OldStream):
            logger.info("the report stream ended: %s", failure)
        elif isinstance(failure, errors.LowwaterError):
            logger.warning("the report stream ended: %s", failure)
        elif failure is not None:
            logger.error("the report stream failed; it is opened anew", exc_info=failure)
        if lasted:
            self._backoff.reset()
        return self._leaving + self._backoff.next()


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
