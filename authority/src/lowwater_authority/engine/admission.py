"""Bounded admission: some callers are inside a gate, some wait in line, the others come later.

Pure: the caller passes the time, as seconds of any clock that never goes back. When thousands of
callers come at once, as after a restart, each costs the same work whenever it is served. If all
were served together, all would be late, and their messages would fill the memory. Served a few at
a time, in the order of arrival, the last one is no later.

Principals share a gate. A principal may take as many places as the gate has free, or three quarters
of all while it is alone. Waiting callers are let in by turns, one of each principal. So a principal
that takes all places it can get keeps no other out (Choudhury and Hahne 1998, "Dynamic queue length
thresholds for shared-memory packet switches").

The delay of refused callers follows from Little's law (Little 1961, "A proof for the queuing
formula L = lambda W"): the number of waiting callers, divided by the measured rate of service.
"""

from __future__ import annotations

import logging
from typing import Final, Generic, TypeVar

from lowwater import errors
from lowwater.core.events import Limited, event

Ticket = TypeVar("Ticket")

log = logging.getLogger(__name__)

STREAMS: Final = 8192
"""Most open report streams. Each reports at least every three seconds, which together is about all
that one process can do."""

WATCHES: Final = 8192
"""Most open watch streams. Each gets a message every second, and keeps one value for each followed
computation."""

TASK_WAITS: Final = 4096
"""Most workers that wait for a task. All of them may look when one becomes ready."""

STARTING: Final = 128
"""Most streams that start at once. More would not be served sooner, because one process works at
one at a time, and would delay the running streams."""

LINE: Final = 4096
"""Most streams that wait to start, unread. They are about four seconds of work, so a refused caller
would have waited as long in line."""

LEAST_DELAY: Final = 0.05
"""Shortest delay of a refused caller, in seconds."""

MOST_DELAY: Final = 5.0
"""Longest delay of a refused caller, in seconds. Clients wait up to twice as long; after an even
longer silence they would count as lost."""

MEAN_OF_JITTER: Final = 1.5
"""Mean factor between the delay and a client's wait, which is one to two times the delay."""

FIRST_RATE: Final = 1000.0
"""Assumed rate of service before any measurement, in callers a second."""

FIRST_SECONDS: Final = 0.05
"""Weight of that assumption, in seconds of measurement."""

MEMORY: Final = 1.0
"""Seconds of work after which a measurement counts half."""


def bounded(delay: float) -> float:
    """Return a delay within the bounds, in seconds."""
    return min(max(delay, LEAST_DELAY), MOST_DELAY)


class Gate(Generic[Ticket]):
    """Lets in at most ``bound`` callers at once. Up to ``line`` more wait; the others are refused.

    A ticket identifies a waiting caller. ``who`` is its principal; empty: unknown. The rate is
    measured only while the gate is at least half full, because otherwise it would be the rate of
    arrivals. All methods are O(1). Half of the fields are figures for metrics.
    """

    def __init__(self, name: str, bound: int, line: int) -> None:
        self.name = name
        """Name of the bound in errors and metrics."""
        self.bound = bound
        self.line = line
        self.inside = 0
        """Number of callers inside."""
        self.peak = 0
        """Greatest number inside so far."""
        self.waiting: dict[Ticket, str] = {}
        """Principal of each waiting ticket, in the order in which the tickets came."""
        self._lines: dict[str, dict[Ticket, None]] = {}
        """Waiting tickets of each principal. The principal that comes first has the next turn."""
        self._places: dict[str, int] = {}
        """Number of places that each principal takes, inside and waiting. ``""`` is not counted."""
        self._quiet = Limited()
        self.longest = 0
        """Greatest number of waiting callers so far."""
        self.admitted = 0
        """Callers that were let in so far."""
        self.refused = 0
        """Callers that were refused so far."""
        self.saturated = False
        """True from a refusal because of a full line until the line is empty."""
        self._last_turn = 0.0
        """Time of the last turn that was given to a refused caller."""
        self._measured = 0.0
        """Time up to which the rate is measured."""
        self._worked = FIRST_SECONDS
        """Seconds of work in the measurement."""
        self._served = FIRST_SECONDS * FIRST_RATE
        """Callers served in these seconds."""

    def enter(self, ticket: Ticket, now: float, who: str = "") -> bool:
        """Let a caller in, and return True; or put it at the end of the line, and return False.

        Raises Overloaded, with the delay, if the line is full or the principal has its share.
        """
        self._look(now)
        self._check_share(who, now)
        if self.inside < self.bound:
            self._admit()
            self._count(who, 1)
            return True
        if len(self.waiting) >= self.line:
            self.refused += 1
            if not self.saturated:
                self.saturated = True
                limits = {"bound": self.bound, "line": self.line}
                facts = event("saturated", gate=self.name, **limits)
                log.warning("too many %s: more are refused, and told when to come again", self._called, extra=facts)
            limit = self.bound + self.line
            raise self._overloaded(f"{limit} {self._called} are here already, the most at once", limit, now)
        self.waiting[ticket] = who
        self._lines.setdefault(who, {})[ticket] = None
        self._count(who, 1)
        self.longest = max(self.longest, len(self.waiting))
        return False

    def leave(self, now: float, who: str = "") -> Ticket | None:
        """Let a caller out; returns the ticket of the waiting caller that is inside instead."""
        self._look(now)
        self._count(who, -1)
        self._served += self._busy
        self.inside -= 1
        if self.saturated and not self.waiting and self.inside < self.bound:
            self.saturated = False
            log.info(
                "%s are let in again", self._called, extra=event("not_saturated", gate=self.name, refused=self.refused)
            )
        if not self.waiting or self.inside >= self.bound:
            return None
        ticket = next(iter(self._lines[next(iter(self._lines))]))
        self._unwait(ticket)
        self._admit()
        return ticket

    def give_up(self, ticket: Ticket) -> bool:
        """Take a caller out of the line; returns whether it was there."""
        if ticket not in self.waiting:
            return False
        self._count(self._unwait(ticket), -1)
        return True

    def _unwait(self, ticket: Ticket) -> str:
        """Take a ticket out of its line; returns its principal, whose next turn comes last."""
        who = self.waiting.pop(ticket)
        line = self._lines.pop(who)
        del line[ticket]
        if line:
            self._lines[who] = line
        return who

    def _count(self, who: str, places: int) -> None:
        if not who:
            return
        places += self._places.get(who, 0)
        if places:
            self._places[who] = places
        else:
            self._places.pop(who, None)

    def _check_share(self, who: str, now: float) -> None:
        """Raise Overloaded for a principal that has at least as many places as are free.

        Its first place is always allowed. A lone principal may have three quarters of the places,
        so that a second one finds the rest.
        """
        has, limit = self._places.get(who, 0), self.bound + self.line
        free = limit - self.inside - len(self.waiting)
        if not has or has < free or (len(self._places) == 1 and 4 * free > limit):
            return
        self.refused += 1
        if count := self._quiet.count(who, now):
            log.warning(
                "%s has used up its share of %s: the authority refuses more from it for now",
                who,
                self._called,
                extra=event("share_reached", gate=self.name, principal=who, inside=has, bound=limit, count=count),
            )
        what = (
            f"{who} has {has} of {limit} {self._called}; a principal may have as many as are free, or three "
            "quarters of all while it is alone; use fewer, or add a shard"
        )
        raise self._overloaded(what, limit, now)

    def _admit(self) -> None:
        self.inside += 1
        self.admitted += 1
        self.peak = max(self.peak, self.inside)

    def rate(self, now: float) -> float:
        """Return the measured rate of service, in callers a second. Falls while none is served."""
        self._look(now)
        return self._served / self._worked

    def all_again(self, count: int, now: float) -> float:
        """Return one delay for ``count`` callers, after which they come no faster than served."""
        return bounded(count / self.rate(now))

    @property
    def _called(self) -> str:
        return self.name.replace("_", " ")

    @property
    def _busy(self) -> bool:
        return 2 * self.inside >= self.bound

    def _look(self, now: float) -> None:
        """Measure the rate up to now."""
        if self._busy:
            self._worked += now - self._measured
        self._measured = now
        if self._worked > 2 * MEMORY:
            share = MEMORY / self._worked
            self._worked *= share
            self._served *= share

    def _turn(self, now: float) -> float:
        """Give out the turn behind the line and all earlier refused callers; returns the delay."""
        rate = self.rate(now)
        turn = max(self._last_turn, now + len(self.waiting) / rate) + 1.0 / rate
        self._last_turn = min(turn, now + MOST_DELAY * MEAN_OF_JITTER)
        return bounded((self._last_turn - now) / MEAN_OF_JITTER)

    def _overloaded(self, what: str, limit: int, now: float) -> errors.Overloaded:
        delay = self._turn(now)
        error = errors.Overloaded(
            f"{what}; try again in {delay:.2f} s", metadata={"bound": self.name, "limit": str(limit)}
        )
        error.retry_after = delay
        return error


class Admission(Generic[Ticket]):
    """The gates of one process, each with its name, its bound and its figures."""

    def __init__(self) -> None:
        self.streams = Gate[Ticket]("report_streams", STREAMS, 0)
        self.starting = Gate[Ticket]("starting_report_streams", STARTING, LINE)
        """Report streams whose first report is not durable yet."""
        self.watches = Gate[Ticket]("starting_watch_streams", STARTING, LINE)
        """Watch streams that wait for their first values."""
        self.open_watches = Gate[Ticket]("watch_streams", WATCHES, 0)
        self.task_waits = Gate[Ticket]("task_waits", TASK_WAITS, 0)
        """Workers that wait for a task."""

    @property
    def gates(self) -> tuple[Gate[Ticket], ...]:
        """All gates."""
        return self.streams, self.starting, self.watches, self.open_watches, self.task_waits
