"""Reports of one process: from a worker's staged state to the authority's answer.

How a report flows. A worker stages a new state of its claim and goes on. The claim joins the line
at the stream to the shard that serves its computation (:class:`ReporterState`), once however often
it stages; only its newest state is sent. When no report is in flight, all claims in line are sent
together. So an idle stream sends at once, and a busy one with the acknowledgement of the report
before. The authority sets the pace, a slow network makes reports rarer and not older, and no clock
is waited for. The answer says what is durable, what was refused, and which claims belong to another
shard; leases and callers of ``flush`` get it. Around each line, :class:`ReportStream` opens one
stream after the other; a new stream begins with the full state of every claim. :class:`Reporting`
has all claims of a process. It knows which stream carries which claim, and searches for the shard
of a claim that was redirected or whose shard has died.

The pace is bounded only in the long run. A claim that stages without a pause is sent every
``report_interval`` once it has used up what it saved while it was quiet (``SAVED``). A stream with
many claims sends as often as ``LOUD`` such claims. Without the bound, a loop that stages after each
record, or thousands of claims in turn, would keep process and authority busy with tiny reports.

This module is pure: no I/O, no locks, no waiting; clock and randomness are passed in. The shells
(``_async/reporter.py``, and ``_sync/reporter.py``, generated from it) pass :meth:`ReportStream.due`
to gRPC and each answer to :meth:`ReportStream.take`. They call ``due`` again after a new state or
an answer, or when ``Due.within`` is over.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Final

import grpc

from lowwater import errors
from lowwater.core import wire
from lowwater.core.attempts import error_of_call, words_of
from lowwater.core.backoff import CAP
from lowwater.core.columns import Handles
from lowwater.core.lease import GroupState, LeaseState, Report
from lowwater.core.raising import own_copy
from lowwater.core.router import HOME, MOST_HOPS, Router
from lowwater.core.search import Search, Sought
from lowwater.core.settings import Settings
from lowwater.core.streams import Many, ShardStream
from lowwater.core.surroundings import Surroundings
from lowwater.v1 import cluster_pb2, types_pb2, workers_pb2
from lowwater.views import Refusal

__all__ = [
    "BEAT",
    "SAVED",
    "Due",
    "ReportStream",
    "ReporterState",
    "ReporterStatistics",
    "Reporting",
    "stale",
    "token_of",
]

logger: logging.Logger = logging.getLogger("lowwater")

Key = tuple[str, int]
"""Computation and sequencer of a claim."""

BEAT: Final = 3.0
"""Seconds after which a claim without news repeats its last report, to keep it fresh."""

SAVED: Final = 10.0
"""Seconds of saved pace. A claim or stream that was quiet for so long may catch up on the reports
that it could have sent meanwhile, without a pause."""

LOUD: Final = 5
"""Highest pace of a stream in the long run, as a multiple of the pace of one claim.

With the default ``report_interval`` of 0.05 s a stream sends 100 times a second."""

_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")
"""Times at which a line may be sent."""

MESSAGE_WORDS: Final = 1_000_000
"""About the most 64-bit words of one message: 8 MB, which delays no other sender for long."""


@dataclass(frozen=True, slots=True)
class ReporterStatistics:
    """Counters of a process's report streams."""

    leases: int = 0
    """Number of claims that are reported."""
    waiting: int = 0
    """Number of claims with an unsent state; a claim has one at most, the newest."""
    in_flight: int = 0
    """Number of streams with an unacknowledged report."""
    streams: int = 0
    """Number of report streams opened so far."""
    reports: int = 0
    """Number of messages sent."""
    acknowledged: int = 0
    """Number of messages acknowledged as durable."""
    refused: int = 0
    """Number of refusals."""

    @classmethod
    def total(cls, statistics: Iterable[ReporterStatistics]) -> ReporterStatistics:
        """Return the sums over several streams."""
        return cls(*map(sum, zip(*map(astuple, statistics), strict=True)))


@dataclass(slots=True)
class _InFlight:
    """One unacknowledged report, in several messages when it is too large for one."""

    number: int
    """Number of the last message."""
    versions: dict[Key, int] = field(default_factory=dict)
    carried: deque[tuple[int, dict[Key, Handles[int] | None]]] = field(default_factory=deque)
    """Handles in each message, by claim. The authority has them after its acknowledgement, unless
    it refuses them."""


class ReporterState:
    """State machine of one report stream.

    Rule 8: reports are numbered states, so a lost or repeated one is harmless. A stream begins with
    the full state of every lease, in messages numbered from 1. After that only changes are sent,
    when no report is in flight. An acknowledgement covers all numbers up to its own. Costs: staging
    and :meth:`due` are O(1), :meth:`take` and an acknowledgement O(leases in the report) plus
    :meth:`LeaseState.take`. A beat is O(leases).
    """

    def __init__(
        self, sender: bytes, interval: float, random: Callable[[], float], *, words: int = MESSAGE_WORDS
    ) -> None:
        self.sender = sender
        """Name of this process in its streams: 16 random bytes."""
        self.stream: int = 0
        """Number of streams opened so far; the newest one's counter."""
        self.opened: bool = False
        """True when the server has accepted the newest stream."""
        self._interval = interval
        self._words = words
        self._rests_until = _AT_ONCE
        self._random = random
        self._leases: dict[Key, LeaseState] = {}
        self._waiting: dict[Key, None] = {}
        # When the first claim in line may be sent; the others are sent with it.
        self._leaves = _NEVER
        self._in_flight: _InFlight | None = None
        self._number = 0
        self._next_beat = 0.0
        self._answered_here = False
        self._reports = 0
        self._acknowledged = 0
        self._refused = 0

    # -- leases ------------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on, beginning with its full state."""
        self._leases[_key(lease)] = lease
        self._begin(lease)

    def remove(self, lease: LeaseState) -> None:
        """Stop reporting a lease; its ranges hold the last reported value.

        Later answers to reports that carried it are ignored, even if the lease comes back.
        """
        key = _key(lease)
        self._leases.pop(key, None)
        self._waiting.pop(key, None)
        if not self._waiting:
            self._leaves = _NEVER  # else the next claim in line would not wake the sender
        if self._in_flight is not None:
            self._in_flight.versions.pop(key, None)
            for _, carried in self._in_flight.carried:
                carried.pop(key, None)

    def begin_above(self, lease: LeaseState, newest: int) -> None:
        """Report a lease anew, with a turn above ``newest``, the last one the authority has seen.

        An answer with an older turn is ignored. The lease keeps its pace, so that a repeated
        refusal makes no busy loop.
        """
        if newest >= lease.turn:
            lease.turn = newest
            self.remove(lease)
            self._leases[_key(lease)] = lease
            self._begin(lease, lease.rests_until)

    @property
    def leases(self) -> list[LeaseState]:
        """Leases that are reported here."""
        return list(self._leases.values())

    @property
    def carries_any(self) -> bool:
        """True when any lease is reported here. O(1)."""
        return bool(self._leases)

    def find(self, computation: str, sequencer: int) -> LeaseState | None:
        """Return the lease of a claim; None when it is not reported here."""
        return self._leases.get((computation, sequencer))

    def staged(self, lease: LeaseState) -> bool:
        """Put a lease with a new state in line; returns True when the sender has to be woken."""
        key = _key(lease)
        if key not in self._leases or key in self._waiting:
            return False
        return self._wait(key, lease.rests_until)

    def hurry(self, lease: LeaseState) -> None:
        """Send the line as soon as no report is in flight, whatever the pace: a flush waits."""
        if _key(lease) in self._waiting:
            self._leaves = _AT_ONCE

    def _wait(self, key: Key, until: float) -> bool:
        """Put a claim in line; returns True when the sender has to be woken for it."""
        self._waiting[key] = None
        earlier = until < self._leaves
        if earlier:
            self._leaves = until
        return earlier and self.opened and self._in_flight is None

    # -- the stream --------------------------------------------------------------------------------

    def open(self) -> int:
        """Begin a new stream; returns its counter. The full state of every lease is sent again."""
        self.stream += 1
        self.disconnected()
        for lease in self._leases.values():
            self._begin(lease)
        self._number = 0
        return self.stream

    def _begin(self, lease: LeaseState, until: float = _AT_ONCE) -> None:
        lease.reconnect()
        if lease.version:
            self._wait(_key(lease), until)

    def accepted(self, now: float) -> None:
        """Take the server's acceptance of the stream.

        The first beat comes at a random moment, so that a thousand streams opened at once do not
        beat together.
        """
        self.opened = True
        self._next_beat = now + BEAT * self._random()

    def disconnected(self) -> None:
        """Take the loss of the stream, and with it of all that was not acknowledged."""
        self.opened = False
        self._in_flight = None

    def due(self) -> float | None:
        """Return the time at which :meth:`take` has something to do; None: not before an answer."""
        if not self.opened or self._in_flight is not None:
            return None
        if not self._waiting:
            return self._next_beat
        leaves = self._leaves if self._leaves == _AT_ONCE else max(self._leaves, self._rests_until)
        return min(leaves, self._next_beat)

    def answered_here(self) -> bool:
        """Return True once after :meth:`take` met states that were durable already."""
        answered, self._answered_here = self._answered_here, False
        return answered

    def take(self, now: float) -> list[Report]:
        """Return the messages to send now: newest states of all leases in line, and beats."""
        due = self.due()
        if due is None or now < due:
            return []
        sent = _InFlight(self._number)
        groups: list[GroupState] = []
        waiting, self._waiting, self._leaves = self._waiting, {}, _NEVER
        for key in waiting:
            lease = self._leases[key]
            group = lease.take()
            if group is not None:
                groups.append(group)
                sent.versions[key] = lease.version
                lease.rests_until = _rest_after(lease.rests_until, now, self._interval)
            elif not lease.lost_all:
                # All of it was sent before, and no report is in flight.
                lease.acknowledge(lease.version)
                self._answered_here = True
        if now >= self._next_beat:
            self._next_beat = now + BEAT
            for key, lease in self._leases.items():
                beat = None if key in sent.versions else lease.beat()
                if beat is not None:
                    groups.append(beat)
                    sent.versions[key] = lease.version
        if not groups:
            return []
        reports: list[Report] = []
        for part in _messages(groups, self._words):
            self._number += 1
            reports.append(Report(self._number, part))
            sent.carried.append((self._number, {_key(group): group.handles for group in part}))
        sent.number = self._number
        self._in_flight = sent
        self._rests_until = _rest_after(self._rests_until, now, self._interval / LOUD)
        self._reports += len(reports)
        return reports

    # -- answers -----------------------------------------------------------------------------------

    def acknowledged(
        self,
        number: int,
        refused: Iterable[tuple[str, int, Refusal]] = (),
        references: Iterable[tuple[str, int]] = (),
        budgets: Mapping[str, Mapping[int, int]] | None = None,
    ) -> list[LeaseState]:
        """Take an acknowledgement of all numbers up to ``number``; returns the leases it answers.

        ``refused``: (computation, sequencer, refusal). ``references``: reference times of
        computations, in microseconds. ``budgets``: positions of their lateness budgets, by parts
        per million.
        """
        sent = self._in_flight
        reference_times = dict(references)
        for key in sent.versions if sent is not None and reference_times else ():
            lease = self._leases.get(key)
            if lease is not None:
                lease.reference = max(lease.reference, reference_times.get(lease.computation, lease.reference))
                if lease.arrivals is not None and budgets:
                    lease.arrivals.raise_marks(budgets.get(lease.computation, {}))
        refusals_by_claim: dict[Key, list[Refusal]] = {}
        for computation, sequencer, refusal in refused:
            self._refused += 1
            refused_lease = self._leases.get((computation, sequencer))
            if refused_lease is None:
                continue
            if refusal.reason == errors.StaleSequencer.reason:
                refused_lease.lose(refusal.handles, refusal.message)
            else:
                refusals_by_claim.setdefault((computation, sequencer), []).append(refusal)
        self._accept_up_to(number)
        for key, refusals in refusals_by_claim.items():
            for refusal in refusals:
                self._leases[key].refuse(refusal)
        answered: list[LeaseState] = []
        if sent is not None and sent.number <= number:
            self._in_flight = None
            for key, version in sent.versions.items():
                acknowledged = self._leases.get(key)
                if acknowledged is not None:
                    acknowledged.acknowledge(version)
                    answered.append(acknowledged)
        self._acknowledged = max(self._acknowledged, self._reports - (self._number - number))
        return answered

    def _accept_up_to(self, number: int) -> None:
        """Accept all handles of the messages up to a number; refusals are applied after it."""
        carried = self._in_flight.carried if self._in_flight is not None else ()
        while carried and carried[0][0] <= number:
            for key, handles in carried.popleft()[1].items():
                lease = self._leases.get(key)
                if lease is not None:
                    lease.accept(handles)

    def fenced(self, computation: str, sequencer: int, handles: tuple[int, ...] | None, reason: str) -> bool:
        """Mark ranges as lost that the authority revoked (None: all); False for no claim here."""
        lease = self._leases.get((computation, sequencer))
        if lease is None:
            return False
        lease.lose(handles, reason)
        return True

    def statistics(self) -> ReporterStatistics:
        """Return the counters so far."""
        return ReporterStatistics(
            leases=len(self._leases),
            waiting=len(self._waiting),
            in_flight=int(self._in_flight is not None),
            streams=self.stream,
            reports=self._reports,
            acknowledged=self._acknowledged,
            refused=self._refused,
        )


def _key(claim: LeaseState | GroupState) -> Key:
    return claim.computation, claim.sequencer


def _rest_after(rests_until: float, now: float, interval: float) -> float:
    """Return when a sender that reports now may report again; in the past while it has savings."""
    return min(max(rests_until, now - max(0.0, SAVED - interval)), now) + interval


def _messages(groups: Iterable[GroupState], limit: int) -> Iterator[tuple[GroupState, ...]]:
    """Divide a report into messages that the server accepts."""
    part: list[GroupState] = []
    words = 0
    for group in groups:
        for number, piece in enumerate(_pieces(group, limit)):
            # One entry per claim: the authority takes only one state of a claim from a message.
            if part and (number or words + piece.count > limit):
                yield tuple(part)
                part, words = [], 0
            part.append(piece)
            words += piece.count
    yield tuple(part)


def _pieces(group: GroupState, limit: int) -> Iterator[GroupState]:
    """Divide a group too large for one message; mass and lateness go with the last piece."""
    if group.count <= limit:
        yield group
        return
    size = limit // 2
    values = group.values
    total = len(group.handles) if group.handles is not None else len(values) if not isinstance(values, int) else 0
    for start in range(0, total, size):
        end = min(start + size, total)
        yield replace(
            group,
            handles=array("I", range(start, end)) if group.handles is None else group.handles[start:end],
            values=values if isinstance(values, int) else values[start:end],
            mass=group.mass if end == total else None,
            lateness=group.lateness if end == total else None,
        )


@dataclass(frozen=True, slots=True)
class Due:
    """Messages that a stream has to send, and when it has the next."""

    messages: Sequence[workers_pb2.ReportRequest]
    """Messages to send now."""
    within: float | None
    """Seconds after which to ask again; None: only after a change."""
    answered: bool = False
    """True when states were answered without being sent, so that callers of ``flush`` have to be
    woken."""


class ReportStream(ShardStream):
    """Report streams to one shard, one after the other, around one state machine.

    After a failure a new stream is opened with a backoff, and begins with the full state of every
    lease. A lease that the shard redirects is removed before its reports count as answered: the
    shard took nothing of it.
    """

    concerned: None = None

    def __init__(self, reporting: Reporting, key: str) -> None:
        surroundings = reporting.surroundings
        super().__init__("report", key, reporting.router, surroundings)
        self.state: ReporterState = ReporterState(
            surroundings.randbytes(16), reporting.interval, surroundings.random, words=reporting.words
        )
        self.last_error: Exception | None = None
        """Error that ended the last stream; None after an answer."""
        self.interrupted: bool = False
        """True when the open stream has to end now."""
        self._reporting = reporting
        self._monotonic = surroundings.monotonic
        self._open = False
        self._opened_time = 0.0

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Error that ended all reporting; None while it goes on."""
        return self._reporting.failure

    @property
    def needed(self) -> bool:
        """True when a claim is reported here; one without news needs the stream to stay fresh."""
        return self.state.carries_any

    def open(self, address: str, server_token: str) -> tuple[int, workers_pb2.ReportRequest]:
        """Begin a stream to an address; returns its counter and its first message."""
        stream = self.state.open()
        self._open, self.interrupted = True, False
        self._opened_time, self._opened_at, self._retry_after = self._monotonic(), address, None
        opening = workers_pb2.ReportOpen(server_token=server_token, sender=self.state.sender, stream=stream)
        return stream, workers_pb2.ReportRequest(open=opening)

    def leave_idle(self) -> bool:
        """End the open stream when it carries no claim; that to home stays for the next."""
        self.interrupted = self._open and self.key != HOME and not self.needed
        return self.interrupted

    def due(self, stream: int) -> Due | None:
        """Return the messages that a stream has to send; None when it has ended."""
        if not self._open or self.state.stream != stream:
            return None
        now = self._monotonic()
        due = self.state.due()
        if due is None or due > now:
            return Due((), None if due is None else due - now)
        messages = [wire.report_request(report) for report in self.state.take(now)]
        return Due(messages, 0.0, self.state.answered_here())

    def take(self, response: workers_pb2.ReportResponse) -> bool:
        """Take an answer; returns True when the stream has to end."""
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
                    return not self.needed
            case "go_away":
                return self._leave(response.go_away)
            case _:
                pass  # a message of a newer server
        return False

    def _acknowledged(self, ack: workers_pb2.ReportAck) -> bool:
        moved: dict[str, tuple[workers_pb2.RefusedRanges, list[LeaseState]]] = {}
        for refusal in ack.refused:
            lease = self.state.find(refusal.computation, refusal.sequencer)
            if refusal.reason == errors.OldStream.reason and lease is not None:
                self.state.begin_above(lease, refusal.newest)
            if refusal.reason == errors.Moved.reason and lease is not None:
                # Removed before the acknowledgement counts: this shard took nothing of the lease.
                self.state.remove(lease)
                moved.setdefault(refusal.computation, (refusal, []))[1].append(lease)
        refused = [
            (refusal.computation, refusal.sequencer, wire.refusal(refusal))
            for refusal in ack.refused
            if refusal.reason not in (errors.Moved.reason, errors.OldStream.reason)
        ]
        self._reporting.log(refused)
        references = [(reference.computation, reference.micros) for reference in ack.references]
        budgets = {reference.computation: wire.budget_marks(reference.budgets) for reference in ack.references}
        for answered in self.state.acknowledged(ack.number, refused, references, budgets):
            self._reporting.served(answered.computation)
        self._drop_lost([(computation, sequencer) for computation, sequencer, _ in refused])
        if not moved:
            # An accepted stream proves little: if it reset the backoff, a stream that fails right
            # after would be opened again and again without a pause.
            self._backoff.reset()
            return not self.needed
        returned = [self._reporting.redirected(self, refusal.redirect, leases) for refusal, leases in moved.values()]
        # A lease that came back to this shard needs a new stream with its full state, so that no
        # earlier report counts after it.
        return any(returned) or not self.needed

    def _drop_lost(self, claims: Iterable[tuple[str, int]]) -> None:
        """Stop reporting claims that have lost all their ranges."""
        for computation, sequencer in claims:
            lease = self.state.find(computation, sequencer)
            if lease is not None and lease.lost_all:
                self._reporting.remove(lease)

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream and its error, if any; return the seconds until the next.

        Only another deployment at an address given to ``connect`` ends all reporting. After any
        other error it must go on: a claim that is silent for ever holds everything downstream. A
        busy shard is asked again after the delay that it named.
        """
        lasted = self.state.opened and self._monotonic() - self._opened_time > CAP
        self._open = False
        self.state.disconnected()
        if self.interrupted and (failure is None or isinstance(failure, grpc.RpcError)):
            return 0.0
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        self.last_error = failure or self.last_error
        if self._is_foreign(failure):
            logger.error("stopped reporting: %s", failure)
            self._reporting.failure = failure
            return 0.0
        if lasted:
            self._backoff.reset()
        return self._pause_after(failure)

    def _lose_all(self, at_least: float) -> None:
        self._reporting.lose(self, at_least)

    def retire(self) -> None:
        """Remove this stream: the shell no longer drives it."""
        self._reporting.retired(self)


class _Claim:
    """One claim that is reported, and the stream that carries it."""

    __slots__ = ("carrier", "lease", "logged")

    def __init__(self, lease: LeaseState) -> None:
        self.lease: LeaseState = lease
        self.carrier: ReportStream | None = None
        """Stream that carries it; None while the search looks for its shard. Its newest state waits
        then."""
        self.logged: set[str] = set()
        """Reasons of refusals that are in the log already."""


class Reported(Sought):
    """Record of one computation with a claim of this client. See :mod:`lowwater.core.router`."""

    __slots__ = ("claims",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.claims: dict[int, _Claim] = {}
        """Claims by sequencer."""

    @property
    def homeless(self) -> list[_Claim]:
        """Claims that no stream carries. O(claims)."""
        return [claim for claim in self.claims.values() if claim.carrier is None]


class Reporting(Many[ReportStream]):
    """All leases of a process; each is reported over the stream of its computation's shard.

    A lease whose shard is unknown is reported at home, which redirects. After a redirect or a
    failure a lease moves to another stream with its full state; while its shard is searched for,
    its newest state waits here. No method waits or locks.
    """

    def __init__(
        self, settings: Settings, surroundings: Surroundings, router: Router, *, words: int = MESSAGE_WORDS
    ) -> None:
        self.failure: errors.LowwaterError | None = None
        """Error that ended all reporting; None while it goes on."""
        self.interval: float = settings.report_interval
        """Seconds between the reports of one claim, in the long run."""
        self.words: int = words
        """Most 64-bit words of one message."""
        self.router: Router = router
        self.surroundings: Surroundings = surroundings
        self.search: Search[Reported] = Search(router, surroundings, self._relocated)
        self.computations: dict[str, Reported] = {}
        """Records by name of all computations with a reported lease."""
        super().__init__(partial(ReportStream, self))
        self._past = ReporterStatistics()

    # -- for leases --------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on. Call :meth:`tend` afterwards."""
        computation = self.computations.setdefault(lease.computation, Reported(lease.computation))
        claim = computation.claims[lease.sequencer] = _Claim(lease)
        self._put(claim, self.router.place(lease.computation))

    def remove(self, lease: LeaseState) -> None:
        """Stop reporting a lease; its ranges hold the last reported value."""
        claim = self._claim(lease.computation, lease.sequencer)
        if claim is None:
            return
        computation = self.computations[lease.computation]
        del computation.claims[lease.sequencer]
        if not computation.claims:
            # Delete its record, else records pile up in a process that claims ever new names.
            self.search.forget(computation)
            del self.computations[lease.computation]
        elif claim.carrier is None and not any(other.carrier is None for other in computation.claims.values()):
            self.search.forget(computation)
        if claim.carrier is not None:
            claim.carrier.state.remove(lease)
            if claim.carrier.leave_idle():
                self._untended[claim.carrier] = None

    def staged(self, lease: LeaseState) -> bool:
        """Take a new state of a lease; returns True when the sender has to be woken."""
        claim = self._claim(lease.computation, lease.sequencer)
        return claim is not None and claim.carrier is not None and claim.carrier.state.staged(lease)

    def hurry(self, lease: LeaseState) -> None:
        """Send a lease's new state as soon as no report is in flight: a flush waits for it."""
        claim = self._claim(lease.computation, lease.sequencer)
        if claim is not None and claim.carrier is not None:
            claim.carrier.state.hurry(lease)

    def check(self) -> None:
        """Raise the error that ended the reporting, if one did."""
        if self.failure is not None:
            raise own_copy(self.failure)

    def answered(self, lease: LeaseState, version: int) -> bool:
        """True when a state was answered. Raises StaleSequencer or the error of its refusal."""
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
        claim, why = self._claim(lease.computation, lease.sequencer), ""
        if claim is not None and claim.carrier is None:
            why = ": the client is searching for the shard that serves it"
        elif claim is not None and claim.carrier is not None and claim.carrier.last_error is not None:
            why = f": {words_of(claim.carrier.last_error)}"
        msg = (
            f"the newest state of {lease.computation} was not acknowledged as durable within {timeout:g} s{why}. "
            "It stays staged and goes out as soon as the authority answers."
        )
        return errors.Timeout(msg, metadata={"computation": lease.computation, "timeout": f"{timeout:g}"})

    def statistics(self) -> ReporterStatistics:
        """Return the counters of all streams together."""
        lost = [claim.lease for record in self.computations.values() for claim in record.homeless]
        waiting = sum(lease.version > lease.durable for lease in lost)
        homeless = ReporterStatistics(leases=len(lost), waiting=waiting)
        streams = [stream.state.statistics() for stream in self.streams.values()]
        return ReporterStatistics.total([self._past, homeless, *streams])

    # -- for the streams ---------------------------------------------------------------------------

    def log(self, refused: Sequence[tuple[str, int, Refusal]]) -> None:
        """Log each reason once per claim: one may be refused with every report for a long time."""
        for computation, sequencer, refusal in refused:
            claim = self._claim(computation, sequencer)
            if claim is not None and claim.carrier is not None and refusal.reason not in claim.logged:
                claim.logged.add(refusal.reason)
                logger.warning("a report of %s was refused: %s (%s)", computation, refusal.message, refusal.reason)

    def served(self, name: str) -> None:
        """Note that a shard has answered for a computation."""
        computation = self.computations.get(name)
        if computation is not None:
            computation.hops = 0
            self.search.served(computation)

    def redirected(self, stream: ReportStream, redirect: types_pb2.Redirect, leases: Sequence[LeaseState]) -> bool:
        """Move leases to the shard that an answer names; returns True when it is the same one."""
        name = leases[0].computation
        computation = self.computations[name]
        accepted = self.router.redirected(name, redirect.address, redirect.epoch)
        computation.hops += 1
        logger.info("%s is served at %s", name, redirect.address or "no shard just now")
        place = self.router.place(name)
        follows = accepted and computation.hops <= MOST_HOPS
        at_least = 0.0 if follows else self.search.refused(computation)
        claims = [computation.claims[lease.sequencer] for lease in leases]
        for claim in claims:
            if follows:
                self._put(claim, place)
            else:
                self._lose(claim, at_least)
        return any(claim.carrier is stream for claim in claims)

    def lose(self, stream: ReportStream, at_least: float) -> None:
        """Search for all that a stream carried, in ``at_least`` seconds at the earliest."""
        for lease in stream.state.leases:
            stream.state.remove(lease)
            self._lose(self.computations[lease.computation].claims[lease.sequencer], at_least)

    def retired(self, stream: ReportStream) -> bool:
        """See Many. The counters stay."""
        if removed := super().retired(stream):
            self._past = ReporterStatistics.total([self._past, stream.state.statistics()])
        return removed

    def _claim(self, name: str, sequencer: int) -> _Claim | None:
        """Return the record of a claim; None when it is not reported."""
        computation = self.computations.get(name)
        return None if computation is None else computation.claims.get(sequencer)

    def _put(self, claim: _Claim, place: str) -> None:
        stream = claim.carrier = self.stream(place)
        stream.state.add(claim.lease)
        self._untended[stream] = None

    def _lose(self, claim: _Claim, at_least: float = 0.0) -> None:
        claim.carrier = None
        self.search.lose(self.computations[claim.lease.computation], at_least)
        self._untended[self.search] = None

    def _relocated(self, computation: Reported) -> None:
        computation.hops = 0
        for claim in computation.homeless:
            self._put(claim, self.router.place(computation.name))


def token_of(response: workers_pb2.ReportResponse | cluster_pb2.LocateResponse) -> str:
    """Return the token of the deployment that an answer names; empty for none."""
    if isinstance(response, cluster_pb2.LocateResponse):
        return response.server_token
    return response.opened.server_token if response.HasField("opened") else ""


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
