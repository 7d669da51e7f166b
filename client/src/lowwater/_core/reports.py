"""One process's report stream: which states go out when, and what the answers mean."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Final

from lowwater._core.columns import Handles
from lowwater._core.lease import GroupState, LeaseState
from lowwater.errors import StaleSequencer
from lowwater.views import Refusal

__all__ = ["BEAT", "WINDOW", "Report", "ReporterState", "ReporterStatistics"]

WINDOW: Final = 2
"""Ticks whose reports may be unacknowledged. Beyond it states wait here, where the newest replaces the older."""

BEAT: Final = 3.0
"""Seconds after which a claim that has nothing new repeats itself, so that its last report stays fresh."""

MESSAGE_WORDS: Final = 1_000_000
"""64-bit words in one message, about: 8 MB, which holds nobody up for long."""


@dataclass(frozen=True, slots=True)
class Report:
    """One message up the stream."""

    number: int
    groups: tuple[GroupState, ...]


@dataclass(frozen=True, slots=True)
class ReporterStatistics:
    """What the report streams of a process have done."""

    leases: int = 0
    """Claims that are reported."""
    waiting: int = 0
    """Claims with a state that was not sent yet; each has room for one, the newest."""
    in_flight: int = 0
    """Ticks sent and not acknowledged; at most ``WINDOW`` a stream."""
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
    """What one tick sent."""

    number: int
    versions: dict[tuple[str, int], int] = field(default_factory=dict)
    carried: deque[tuple[int, list[tuple[tuple[str, int], Handles[int] | None]]]] = field(default_factory=deque)
    """The handles in each report by claim, until it is acknowledged: these are then taken over, unless they are refused."""


class ReporterState:
    """The state machine of a report stream (rule 8: reports are state, numbered, and may be lost or repeated harmlessly).

    A stream begins with the full state of every lease, in reports numbered from 1; after that only what changed goes out, at
    most ``WINDOW`` ticks ahead of the acknowledgements. An acknowledgement covers all numbers up to its own.
    Costs: O(leases) a tick with something to send, plus what :meth:`LeaseState.take` says.
    """

    def __init__(self, sender: bytes, interval: float, random: Callable[[], float]) -> None:
        self.sender = sender
        """Names this process in its streams: 16 random bytes."""
        self.stream: int = 0
        """Grows with every stream opened."""
        self.opened: bool = False
        """Whether the server has answered the open of the newest stream."""
        self._interval = interval
        self._random = random
        self._leases: dict[tuple[str, int], LeaseState] = {}
        self._waiting: dict[tuple[str, int], None] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._number = 0
        self._not_before = 0.0
        self._next_beat = 0.0
        self._answered_here = False
        self._reports = 0
        self._acknowledged = 0
        self._refused = 0

    # -- leases ---------------------------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on, once it has staged a state: with its full state, whoever carried it before."""
        self._leases[_key(lease)] = lease
        self._begin(lease)

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer; its ranges hold what was reported last.

        What is still answered to reports that carried it means nothing any more, even if the lease comes back.
        """
        key = _key(lease)
        self._leases.pop(key, None)
        self._waiting.pop(key, None)
        for sent in self._in_flight:
            sent.versions.pop(key, None)
            sent.carried = deque(
                (number, [each for each in carried if each[0] != key]) for number, carried in sent.carried
            )

    def begin_above(self, lease: LeaseState, newest: int) -> None:
        """Begin to report a lease anew: the authority has heard of its turn ``newest``. It may be older than what is said here by now."""
        if newest >= lease.turn:
            lease.turn = newest
            self.remove(lease)
            self.add(lease)

    @property
    def leases(self) -> list[LeaseState]:
        """Those that are reported here."""
        return list(self._leases.values())

    def find(self, computation: str, sequencer: int) -> LeaseState | None:
        """Return the lease of a claim, if it is reported here."""
        return self._leases.get((computation, sequencer))

    def staged(self, lease: LeaseState) -> bool:
        """Note that a lease has a new state; returns whether the sender has to be woken for it."""
        key = _key(lease)
        if key not in self._leases or key in self._waiting:
            return False
        self._waiting[key] = None
        return True

    def hurry(self) -> None:
        """Let the next tick come at once: somebody waits for it."""
        self._not_before = 0.0

    # -- the stream -----------------------------------------------------------------------------------------------

    def open(self) -> int:
        """Begin a new stream; returns its counter. Everything is to be sent anew."""
        self.stream += 1
        self.disconnected()
        for lease in self._leases.values():
            self._begin(lease)
        self._number = 0
        return self.stream

    def _begin(self, lease: LeaseState) -> None:
        lease.reconnect()
        if lease.version:
            self._waiting[_key(lease)] = None

    def accepted(self, now: float) -> None:
        """The server has opened the stream. Its first beat comes early: a thousand that were opened at once beat apart."""
        self.opened = True
        self._not_before = 0.0
        self._next_beat = now + BEAT * self._random()

    def disconnected(self) -> None:
        """The stream is gone, and with it all that was not acknowledged."""
        self.opened = False
        self._in_flight.clear()

    def due(self) -> float | None:
        """Return when :meth:`take` has something to do next, on the clock it is given; None: not before an answer."""
        if not self.opened or len(self._in_flight) >= WINDOW:
            return None
        return min(self._not_before, self._next_beat) if self._waiting else self._next_beat

    def answered_here(self) -> bool:
        """Whether :meth:`take` found, since this was asked last, states that were durable already: their flushes may end."""
        answered, self._answered_here = self._answered_here, False
        return answered

    def take(self, now: float) -> list[Report]:
        """Return the reports of one tick: the newest state of the leases that changed, and beats that are due."""
        due = self.due()
        if due is None or now < due:
            return []
        sent = _InFlight(self._number)
        groups: list[GroupState] = []
        waiting, self._waiting = self._waiting, {}
        for key in waiting:
            self._take(key, self._leases[key].take(), groups, sent)
        if now >= self._next_beat:
            self._next_beat = now + BEAT
            for key, lease in self._leases.items():
                if key not in sent.versions:
                    self._take(key, lease.beat(), groups, sent)
        if not groups:
            return []
        self._not_before = now + self._interval
        reports: list[Report] = []
        for part in _messages(groups):
            self._number += 1
            reports.append(Report(self._number, part))
            carried = [((group.computation, group.sequencer), group.handles) for group in part]
            sent.carried.append((self._number, carried))
        sent.number = self._number
        self._in_flight.append(sent)
        self._reports += len(reports)
        return reports

    def _take(self, key: tuple[str, int], group: GroupState | None, groups: list[GroupState], sent: _InFlight) -> None:
        lease = self._leases[key]
        if group is not None:
            groups.append(group)
            sent.versions[key] = lease.version
        elif self._in_flight:
            # All of it went out before, and is as durable as the newest report.
            self._in_flight[-1].versions[key] = lease.version
        elif not lease.lost_all:
            lease.acknowledge(lease.version)
            self._answered_here = True

    # -- answers --------------------------------------------------------------------------------------------------

    def acknowledged(
        self,
        number: int,
        refused: Iterable[tuple[str, int, Refusal]] = (),
        references: Iterable[tuple[str, int]] = (),
    ) -> list[LeaseState]:
        """Take an acknowledgement of all reports up to a number; returns the leases that had a state answered.

        ``refused`` names (computation, sequencer, what); ``references`` the reference times of computations, in microseconds.
        """
        for computation, micros in references:
            for lease in self._leases.values():
                if lease.computation == computation:
                    lease.reference = max(lease.reference, micros)
        named: dict[tuple[str, int], list[Refusal]] = {}
        for computation, sequencer, refusal in refused:
            self._refused += 1
            refused_lease = self._leases.get((computation, sequencer))
            if refused_lease is None:
                continue
            if refusal.reason == StaleSequencer.reason:
                refused_lease.lose(refusal.handles, refusal.message)
            else:
                named.setdefault((computation, sequencer), []).append(refusal)
        self._taken_over(number)
        for key, refusals in named.items():
            for refusal in refusals:
                self._leases[key].refuse(refusal)
        answered: list[LeaseState] = []
        while self._in_flight and self._in_flight[0].number <= number:
            for key, version in self._in_flight.popleft().versions.items():
                acknowledged = self._leases.get(key)
                if acknowledged is not None:
                    acknowledged.acknowledge(version)
                    answered.append(acknowledged)
        self._acknowledged = max(self._acknowledged, self._reports - (self._number - number))
        return answered

    def _taken_over(self, number: int) -> None:
        """Take what the reports up to a number carried off what was refused before; what they were refused is added after."""
        for sent in self._in_flight:
            while sent.carried and sent.carried[0][0] <= number:
                for key, handles in sent.carried.popleft()[1]:
                    lease = self._leases.get(key)
                    if lease is not None:
                        lease.accept(handles)

    def fenced(self, computation: str, sequencer: int, handles: tuple[int, ...] | None, reason: str) -> bool:
        """Give up ranges that the authority took away; None: all of the claim. Returns whether anybody reports for it."""
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
            in_flight=len(self._in_flight),
            streams=self.stream,
            reports=self._reports,
            acknowledged=self._acknowledged,
            refused=self._refused,
        )

    def _check(self) -> None:
        """Assert every invariant."""
        assert len(self._in_flight) <= WINDOW
        assert self._waiting.keys() <= self._leases.keys()
        assert all(sent.number <= self._number for sent in self._in_flight)
        assert all(lease.durable <= lease.version for lease in self._leases.values())


def _key(lease: LeaseState) -> tuple[str, int]:
    return lease.computation, lease.sequencer


def _messages(groups: Iterable[GroupState]) -> Iterator[tuple[GroupState, ...]]:
    """Divide the groups of one tick into messages that the server accepts."""
    part: list[GroupState] = []
    words = 0
    for group in groups:
        for number, piece in enumerate(_pieces(group)):
            # One entry a claim: the authority takes a claim's state from a report once.
            if part and (number or words + piece.count > MESSAGE_WORDS):
                yield tuple(part)
                part, words = [], 0
            part.append(piece)
            words += piece.count
    yield tuple(part)


def _pieces(group: GroupState) -> Iterator[GroupState]:
    """Divide a group that is too large for one message; the mass goes with the last piece."""
    if group.count <= MESSAGE_WORDS:
        yield group
        return
    size = MESSAGE_WORDS // 2
    values = group.values
    total = len(group.handles) if group.handles is not None else len(values) if not isinstance(values, int) else 0
    for start in range(0, total, size):
        end = min(start + size, total)
        yield replace(
            group,
            handles=array("I", range(start, end)) if group.handles is None else group.handles[start:end],
            values=values if isinstance(values, int) else values[start:end],
            mass=group.mass if end == total else None,
        )
