"""What one process reports: from the state that a worker stages to the authority's answer.

How it flows. A worker stages a new state of its claim and goes on; the claim stands in line at the
stream to the shard that serves its computation (:class:`ReporterState`), once however often it
stages: what leaves is its newest state. When no report is in flight, all that stand in line leave
together. So an idle stream sends at once, and a busy one with the acknowledgement of the report
before: the authority's pace is the pace of the reports, a slow network makes them rarer and not
older, and no clock is waited for. The answer says what of them is durable, what was refused, and
what belongs to another shard; leases hear of it, and who flushes them. Around each line,
:class:`ReportStream` opens one stream after the other; a new stream begins with everything.
:class:`Reporting` has all of a process: which stream carries which claim, and where to look for a
claim that was redirected or whose shard has died.

The pace is bounded in the long run only: a claim that stages without a pause leaves every
``report_interval`` once it has used up what it saved while it was quiet (``SAVED``), and a stream
with many claims as often as ``LOUD`` such claims. Else a loop that stages after each record, or
thousands of claims that stage one after the other, would have their process and the authority do
nothing but report, a few states at a time.

All of it is pure: no I/O, no locks, no waiting, and the only clock and randomness are those passed
in. The shells (``_async/reporter.py``, and ``_sync/reporter.py``, which is made of it) hand
:meth:`ReportStream.due` to gRPC, give what comes back to :meth:`ReportStream.take`, and ask again
when something was staged or answered, or when ``Due.within`` is over.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Final

import grpc

from lowwater import errors
from lowwater.core import wire
from lowwater.core.attempts import BUSY, DENIED, error_of_call, words_of
from lowwater.core.backoff import CAP, Backoff
from lowwater.core.columns import Handles
from lowwater.core.lease import GroupState, LeaseState, Report
from lowwater.core.raising import own_copy
from lowwater.core.router import HOME, MOST_HOPS, Router
from lowwater.core.search import Search, Sought
from lowwater.core.settings import Settings
from lowwater.core.streams import Streamed
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
"""A claim: its computation and sequencer."""

BEAT: Final = 3.0
"""Seconds after which a claim that has nothing new repeats itself, so that its last report stays
fresh."""

SAVED: Final = 10.0
"""Seconds: a claim, or a stream, that was quiet for so long may report as often as it could have
meanwhile without waiting for its pace."""

LOUD: Final = 5
"""A stream keeps, in the long run, the pace of so many claims that report all the time: 100 reports
a second, by default."""

_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")
"""When what waits may leave."""

MESSAGE_WORDS: Final = 1_000_000
"""64-bit words in one message, about: 8 MB, which holds nobody up for long."""


@dataclass(frozen=True, slots=True)
class ReporterStatistics:
    """What the report streams of a process have done."""

    leases: int = 0
    """Claims that are reported."""
    waiting: int = 0
    """Claims with a state that was not sent yet; each has room for one, the newest."""
    in_flight: int = 0
    """Streams with a report that is not acknowledged."""
    streams: int = 0
    """Report streams opened so far."""
    reports: int = 0
    """Messages sent."""
    acknowledged: int = 0
    """Messages acknowledged as durable."""
    refused: int = 0
    """Answers that named refused ranges."""

    @classmethod
    def total(cls, each: Iterable[ReporterStatistics]) -> ReporterStatistics:
        """Return the sums over several streams."""
        return cls(*map(sum, zip(*map(astuple, each), strict=True)))


@dataclass(slots=True)
class _InFlight:
    """What left together, and is not acknowledged yet: one report, divided into messages where it is too large for one."""

    number: int
    """Of the last message."""
    versions: dict[Key, int] = field(default_factory=dict)
    carried: deque[tuple[int, dict[Key, Handles[int] | None]]] = field(default_factory=deque)
    """The handles in each message by claim, until it is acknowledged: these are then taken over,
    unless they are refused."""


class ReporterState:
    """The state machine of a report stream (rule 8: reports are state, numbered, and may be lost or repeated harmlessly).

    A stream begins with the full state of every lease, in messages numbered from 1; after that only what changed goes out, when
    nothing is in flight. An acknowledgement covers all numbers up to its own.
    Costs: staging and :meth:`due` are O(1), :meth:`take` and an acknowledgement O(leases in the report), plus what
    :meth:`LeaseState.take` says. A beat is O(leases).
    """

    def __init__(
        self, sender: bytes, interval: float, random: Callable[[], float], *, words: int = MESSAGE_WORDS
    ) -> None:
        self.sender = sender
        """Names this process in its streams: 16 random bytes."""
        self.stream: int = 0
        """Grows with every stream opened."""
        self.opened: bool = False
        """Whether the server has answered the open of the newest stream."""
        self._interval = interval
        self._words = words
        self._rests_until = _AT_ONCE
        self._random = random
        self._leases: dict[Key, LeaseState] = {}
        self._waiting: dict[Key, None] = {}
        self._leaves = _NEVER  # when the first of those that wait may leave; all others leave with it
        self._in_flight: _InFlight | None = None
        self._number = 0
        self._next_beat = 0.0
        self._answered_here = False
        self._reports = 0
        self._acknowledged = 0
        self._refused = 0

    # -- leases ------------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on, once it has staged a state: with its full state, whoever carried it before."""
        self._leases[_key(lease)] = lease
        self._begin(lease)

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer; its ranges hold what was reported last.

        What is still answered to reports that carried it means nothing any more, even if the lease
        comes back.
        """
        key = _key(lease)
        self._leases.pop(key, None)
        self._waiting.pop(key, None)
        if not self._waiting:
            self._leaves = _NEVER  # else whoever stands in line next would wake nobody
        if self._in_flight is not None:
            self._in_flight.versions.pop(key, None)
            for _, carried in self._in_flight.carried:
                carried.pop(key, None)

    def begin_above(self, lease: LeaseState, newest: int) -> None:
        """Begin to report a lease anew: the authority has heard of its turn ``newest``.

        It may be older than what is said here by now.

        At its pace: should that be refused again, it is not repeated without a pause.
        """
        if newest >= lease.turn:
            lease.turn = newest
            self.remove(lease)
            self._leases[_key(lease)] = lease
            self._begin(lease, lease.rests_until)

    @property
    def leases(self) -> list[LeaseState]:
        """Those that are reported here."""
        return list(self._leases.values())

    @property
    def carries_any(self) -> bool:
        """Whether any is reported here. O(1)."""
        return bool(self._leases)

    def find(self, computation: str, sequencer: int) -> LeaseState | None:
        """Return the lease of a claim, if it is reported here."""
        return self._leases.get((computation, sequencer))

    def staged(self, lease: LeaseState) -> bool:
        """Note that a lease has a new state; returns whether the sender has to be woken for it."""
        key = _key(lease)
        if key not in self._leases or key in self._waiting:
            return False
        return self._wait(key, lease.rests_until)

    def hurry(self, lease: LeaseState) -> None:
        """Let a lease's new state leave as soon as nothing is in flight, whatever the pace: somebody waits for it."""
        if _key(lease) in self._waiting:
            self._leaves = _AT_ONCE

    def _wait(self, key: Key, until: float) -> bool:
        """Put a claim in line until a time at the earliest; returns whether the line leaves earlier for it."""
        self._waiting[key] = None
        earlier = until < self._leaves
        if earlier:
            self._leaves = until
        return earlier and self.opened and self._in_flight is None

    # -- the stream --------------------------------------------------------------------------------

    def open(self) -> int:
        """Begin a new stream; returns its counter. Everything is to be sent anew."""
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
        """The server has opened the stream.

        Its first beat comes early: a thousand that were opened at once beat apart.
        """
        self.opened = True
        self._next_beat = now + BEAT * self._random()

    def disconnected(self) -> None:
        """The stream is gone, and with it all that was not acknowledged."""
        self.opened = False
        self._in_flight = None

    def due(self) -> float | None:
        """Return when :meth:`take` has something to do next, on the clock it is given; None: not before an answer."""
        if not self.opened or self._in_flight is not None:
            return None
        if not self._waiting:
            return self._next_beat
        leaves = self._leaves if self._leaves == _AT_ONCE else max(self._leaves, self._rests_until)
        return min(leaves, self._next_beat)

    def answered_here(self) -> bool:
        """Whether :meth:`take` found, since this was asked last, states that were durable already: their flushes may end."""
        answered, self._answered_here = self._answered_here, False
        return answered

    def take(self, now: float) -> list[Report]:
        """Return the messages that are to leave now: the newest state of all leases in line, and beats that are due."""
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
                lease.rests_until = _rested(lease.rests_until, now, self._interval)
            elif not lease.lost_all:
                # All of it went out before, and nothing is in flight.
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
        self._rests_until = _rested(self._rests_until, now, self._interval / LOUD)
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
        """Take an acknowledgement of all reports up to a number; returns the leases that had a state answered.

        ``refused`` names (computation, sequencer, what); ``references`` the reference times of computations, in microseconds;
        ``budgets`` where their lateness budgets stand, by parts per million.
        """
        sent = self._in_flight
        told = dict(references)
        for key in sent.versions if sent is not None and told else ():
            lease = self._leases.get(key)
            if lease is not None:
                lease.reference = max(lease.reference, told.get(lease.computation, lease.reference))
                if lease.arrivals is not None and budgets:
                    lease.arrivals.heard(budgets.get(lease.computation, {}))
        named: dict[Key, list[Refusal]] = {}
        for computation, sequencer, refusal in refused:
            self._refused += 1
            refused_lease = self._leases.get((computation, sequencer))
            if refused_lease is None:
                continue
            if refusal.reason == errors.StaleSequencer.reason:
                refused_lease.lose(refusal.handles, refusal.message)
            else:
                named.setdefault((computation, sequencer), []).append(refusal)
        self._taken_over(number)
        for key, refusals in named.items():
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

    def _taken_over(self, number: int) -> None:
        """Take what the messages up to a number carried off what was refused before; what they were refused is added after."""
        carried = self._in_flight.carried if self._in_flight is not None else ()
        while carried and carried[0][0] <= number:
            for key, handles in carried.popleft()[1].items():
                lease = self._leases.get(key)
                if lease is not None:
                    lease.accept(handles)

    def fenced(self, computation: str, sequencer: int, handles: tuple[int, ...] | None, reason: str) -> bool:
        """Give up ranges that the authority took away; None: all of the claim.

        Returns whether anybody reports for it.
        """
        lease = self._leases.get((computation, sequencer))
        if lease is None:
            return False
        lease.lose(handles, reason)
        return True

    def statistics(self) -> ReporterStatistics:
        """Return what was done so far."""
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


def _rested(until: float, now: float, interval: float) -> float:
    """Return until when who reports now rests after it: in the past while it has saved up more."""
    return min(max(until, now - max(0.0, SAVED - interval)), now) + interval


def _messages(groups: Iterable[GroupState], most: int) -> Iterator[tuple[GroupState, ...]]:
    """Divide what leaves together into messages that the server accepts."""
    part: list[GroupState] = []
    words = 0
    for group in groups:
        for number, piece in enumerate(_pieces(group, most)):
            # One entry a claim: the authority takes a claim's state from a report once.
            if part and (number or words + piece.count > most):
                yield tuple(part)
                part, words = [], 0
            part.append(piece)
            words += piece.count
    yield tuple(part)


def _pieces(group: GroupState, most: int) -> Iterator[GroupState]:
    """Divide a group that is too large for one message; the mass and the lateness go with the last piece."""
    if group.count <= most:
        yield group
        return
    size = most // 2
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
    """What a stream has to send."""

    messages: Sequence[workers_pb2.ReportRequest]
    """To send now."""
    within: float | None
    """Seconds after which to ask again, when there are none; None: not before something changes."""
    answered: bool = False
    """Whether states were answered without being sent, so that those who wait have to be woken."""


class ReportStream:
    """Around the state machine of a report stream: from one stream to the next.

    Streams are opened anew after every failure, with a backoff, and then begin with everything.
    Leases that the shard redirects leave before their reports are answered: nothing of them was
    taken over.
    """

    first_pause: float = 0.0
    hurried: bool = False
    concerned: None = None

    def __init__(self, reporting: Reporting, key: str) -> None:
        self.key = key
        """The shard's address, or ``HOME``."""
        surroundings = reporting.surroundings
        self.state: ReporterState = ReporterState(
            surroundings.randbytes(16), reporting.interval, surroundings.random, words=reporting.words
        )
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
        return self.state.carries_any

    @property
    def address(self) -> str:
        """Where the next stream goes."""
        return self.key or self._reporting.router.home

    def open(self, address: str, server_token: str) -> tuple[int, workers_pb2.ReportRequest]:
        """Begin a stream to an address; returns its counter and its first message."""
        stream = self.state.open()
        self._open, self.interrupted = True, False
        self._opened_at, self._opened_to, self._leaving = self._monotonic(), address, None
        opening = workers_pb2.ReportOpen(server_token=server_token, sender=self.state.sender, stream=stream)
        return stream, workers_pb2.ReportRequest(open=opening)

    def leave_idle(self) -> bool:
        """Have the open stream ended if it carries nothing any more; returns whether it is.

        Home's stays, for what comes next.
        """
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
                # Gone before anything counts as answered: what the number says of its reports is
                # not true of it.
                self.state.remove(lease)
                moved.setdefault(each.computation, (each, []))[1].append(lease)
        refused = [
            (each.computation, each.sequencer, wire.refusal(each))
            for each in ack.refused
            if each.reason not in (errors.Moved.reason, errors.OldStream.reason)
        ]
        self._reporting.log(refused)
        references = [(each.computation, each.micros) for each in ack.references]
        budgets = {each.computation: wire.budget_marks(each.budgets) for each in ack.references}
        for answered in self.state.acknowledged(ack.number, refused, references, budgets):
            self._reporting.heard(answered.computation)
        self._drop_lost([(computation, sequencer) for computation, sequencer, _ in refused])
        if not moved:
            # Being let in proves little: a stream that is opened and fails at once, again and
            # again, has to back off.
            self._backoff.reset()
            return not self.wanted
        returned = [self._reporting.redirected(self, each.redirect, leases) for each, leases in moved.values()]
        # What came back to the same shard begins a new stream with everything: nothing sent before
        # may count after it.
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
        if self.interrupted and (failure is None or isinstance(failure, grpc.RpcError)):
            return 0.0
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_to)
        self.last_error = failure or self.last_error
        router = self._reporting.router
        if isinstance(failure, errors.ServerTokenMismatch) and self.key == HOME and router.given(self._opened_to):
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
                router.failed(self._opened_to)
            if self.key != HOME:
                self._reporting.lose(self, self._backoff.spread(at_least) if busy else 0.0)
                return 0.0  # what was reported here is looked for, which has delays of its own
        if lasted:
            self._backoff.reset()
        return self._backoff.next(at_least)

    def retire(self) -> None:
        """Nothing is reported here any more."""
        self._reporting.retired(self)


class _Claim:
    """One claim that is reported: its lease, and who carries it."""

    __slots__ = ("carrier", "lease", "logged")

    def __init__(self, lease: LeaseState) -> None:
        self.lease: LeaseState = lease
        self.carrier: ReportStream | None = None
        """The stream that it is reported over; None while its computation is looked for. Its newest
        state waits then."""
        self.logged: set[str] = set()
        """The reasons for which a report of it was refused, which the log has."""


class Reported(Sought):
    """One computation as the reports of a client have it, while there is a claim on it.

    See :mod:`lowwater.core.router`.
    """

    __slots__ = ("claims",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.claims: dict[int, _Claim] = {}
        """By sequencer."""

    @property
    def homeless(self) -> list[_Claim]:
        """Those that no stream carries. O(claims)."""
        return [claim for claim in self.claims.values() if claim.carrier is None]


class Reporting:
    """All leases of a process, each reported over the stream of its computation's shard.

    A lease whose shard is not known is reported at home, whose answer tells. When a shard redirects
    it or fails it moves on, with its full state; until it is known where to, its newest state waits
    here. Nothing here waits or locks.
    """

    def __init__(
        self, settings: Settings, surroundings: Surroundings, router: Router, *, words: int = MESSAGE_WORDS
    ) -> None:
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be reported again."""
        self.interval: float = settings.report_interval
        """Seconds between the reports of one claim, in the long run."""
        self.words: int = words
        """Values that one message of a report may have at most."""
        self.router: Router = router
        self.surroundings: Surroundings = surroundings
        self.search: Search[Reported] = Search(router, surroundings, self._found)
        self.computations: dict[str, Reported] = {}
        """Computations of which some lease is reported, by name."""
        self._streams: dict[str, ReportStream] = {HOME: ReportStream(self, HOME)}
        self._untended: dict[Streamed, None] = {}
        self._past = ReporterStatistics()

    # -- for leases --------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on. Ask :meth:`tend` afterwards."""
        computation = self.computations.setdefault(lease.computation, Reported(lease.computation))
        claim = computation.claims[lease.sequencer] = _Claim(lease)
        self._put(claim, self.router.place(lease.computation))

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer; its ranges hold what was reported last."""
        claim = self._claim(lease.computation, lease.sequencer)
        if claim is None:
            return
        computation = self.computations[lease.computation]
        del computation.claims[lease.sequencer]
        if not computation.claims:
            # Nothing is kept of it: a process may claim computations of other names for weeks.
            self.search.forget(computation)
            del self.computations[lease.computation]
        elif claim.carrier is None and not any(each.carrier is None for each in computation.claims.values()):
            self.search.forget(computation)
        if claim.carrier is not None:
            claim.carrier.state.remove(lease)
            if claim.carrier.leave_idle():
                self._untended[claim.carrier] = None

    def staged(self, lease: LeaseState) -> bool:
        """Note that a lease has a new state; returns whether the sender has to be woken for it."""
        claim = self._claim(lease.computation, lease.sequencer)
        return claim is not None and claim.carrier is not None and claim.carrier.state.staged(lease)

    def hurry(self, lease: LeaseState) -> None:
        """Let a lease's new state leave as soon as nothing is in flight, whatever the pace: somebody waits for it."""
        claim = self._claim(lease.computation, lease.sequencer)
        if claim is not None and claim.carrier is not None:
            claim.carrier.state.hurry(lease)

    def check(self) -> None:
        """Raise what ended the reporting, if something did."""
        if self.failure is not None:
            raise own_copy(self.failure)

    def answered(self, lease: LeaseState, version: int) -> bool:
        """Whether a state of a lease was answered.

        Raises StaleSequencer when the claim is lost, and what the state was refused for.
        """
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
            why = ": it is not known which shard serves it now"
        elif claim is not None and claim.carrier is not None and claim.carrier.last_error is not None:
            why = f": {words_of(claim.carrier.last_error)}"
        msg = (
            f"the newest state of {lease.computation} was not acknowledged as durable within {timeout:g} s{why}. "
            "It stays staged and goes out as soon as the authority answers."
        )
        return errors.Timeout(msg, metadata={"computation": lease.computation, "timeout": f"{timeout:g}"})

    def statistics(self) -> ReporterStatistics:
        """Return what was done so far, on all streams together."""
        lost = [claim.lease for each in self.computations.values() for claim in each.homeless]
        waiting = sum(lease.version > lease.durable for lease in lost)
        homeless = ReporterStatistics(leases=len(lost), waiting=waiting)
        streams = [stream.state.statistics() for stream in self._streams.values()]
        return ReporterStatistics.total([self._past, homeless, *streams])

    # -- for the shells ----------------------------------------------------------------------------

    def tend(self) -> Iterable[Streamed]:
        """Return what has to be driven, or looked at, since this was asked last."""
        untended, self._untended = self._untended, {}
        return untended

    def stream(self, key: str = HOME) -> ReportStream:
        """Return the stream to an address, or to home."""
        if key not in self._streams:
            self._streams[key] = ReportStream(self, key)
        return self._streams[key]

    # -- for the streams ---------------------------------------------------------------------------

    def log(self, refused: Sequence[tuple[str, int, Refusal]]) -> None:
        """Say each reason once a claim: a range that is too far ahead is refused with every report until it no longer is."""
        for computation, sequencer, refusal in refused:
            claim = self._claim(computation, sequencer)
            if claim is not None and claim.carrier is not None and refusal.reason not in claim.logged:
                claim.logged.add(refusal.reason)
                logger.warning("a report of %s was refused: %s (%s)", computation, refusal.message, refusal.reason)

    def heard(self, name: str) -> None:
        """A shard has answered for a computation."""
        computation = self.computations.get(name)
        if computation is not None:
            computation.hops = 0
            self.search.heard(computation)

    def redirected(self, stream: ReportStream, redirect: types_pb2.Redirect, leases: Sequence[LeaseState]) -> bool:
        """Take leases that a stream no longer carries where they are redirected to; returns whether that is the same shard."""
        name = leases[0].computation
        computation = self.computations[name]
        followed = self.router.redirected(name, redirect.address, redirect.epoch)
        computation.hops += 1
        logger.info("%s is served at %s", name, redirect.address or "no shard just now")
        place = self.router.place(name)
        following = followed and computation.hops <= MOST_HOPS
        at_least = 0.0 if following else self.search.refused(computation)
        claims = [computation.claims[lease.sequencer] for lease in leases]
        for claim in claims:
            if following:
                self._put(claim, place)
            else:
                self._lose(claim, at_least)
        return any(claim.carrier is stream for claim in claims)

    def lose(self, stream: ReportStream, at_least: float) -> None:
        """Look for what a stream carried, in so many seconds at the earliest."""
        for lease in stream.state.leases:
            stream.state.remove(lease)
            self._lose(self.computations[lease.computation].claims[lease.sequencer], at_least)

    def retired(self, stream: ReportStream) -> None:
        """Nobody drives a stream any more."""
        if stream.key != HOME and self._streams.get(stream.key) is stream:
            del self._streams[stream.key]
            self._past = ReporterStatistics.total([self._past, stream.state.statistics()])

    def _claim(self, name: str, sequencer: int) -> _Claim | None:
        """Return what is known of a claim that is reported."""
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

    def _found(self, computation: Reported) -> None:
        computation.hops = 0
        for claim in computation.homeless:
            self._put(claim, self.router.place(computation.name))


def token_of(response: workers_pb2.ReportResponse | cluster_pb2.LocateResponse) -> str:
    """Return the deployment that an answer names; empty when it names none."""
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
