"""Bounded admission: how many may be inside a gate at once, how many wait before it, and when the others are to come again.

Pure: the time is passed in, as seconds of any clock that never goes back. When thousands come at once, as after a restart, each
costs the same whenever it is served. Served all together, all are late, and what they send fills the memory; served a few at a time, in
the order in which they came, the last is not later than it would be anyhow.

Principals share a gate. A principal may have as many places as the gate has free, or three quarters of all while
it is alone. Those that wait are let in by turns, one of each principal. So a principal that takes all that
it can get keeps no other away (Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet switches").

How long to stay away follows from Little's law (Little 1961, "A proof for the queuing formula L = lambda W"): those that wait, divided
by the rate at which the gate was seen to serve.
"""

from __future__ import annotations

import logging
from typing import Final, Generic, TypeVar

from lowwater import errors
from lowwater.core.events import Limited, event

Ticket = TypeVar("Ticket")

log = logging.getLogger(__name__)

STREAMS: Final = 8192
"""Report streams open at once. Each reports every three seconds at least, which is about all that
one process takes."""

WATCHES: Final = 8192
"""Watch streams open at once. Each is told something every second, and keeps one value for each
computation that it follows."""

TASK_WAITS: Final = 4096
"""Workers that wait for a task at once. All of them look when one becomes ready."""

STARTING: Final = 128
"""Streams that start at once. More would not be served sooner, but delay those that run: one
process works at one at a time."""

LINE: Final = 4096
"""Streams that wait to start, unread: some four seconds of work, so that whoever is told to come
again would have waited longer."""

LEAST_DELAY: Final = 0.05
"""Seconds: nobody comes again sooner."""

MOST_DELAY: Final = 5.0
"""Seconds: the end of the line. Clients wait up to twice as long; longer, and they would be taken
for lost."""

MEAN_OF_JITTER: Final = 1.5
"""Clients wait between once and twice what they are told, so this is how much later they come on
the average."""

FIRST_RATE: Final = 1000.0
"""Served a second, as long as that was not measured."""

FIRST_SECONDS: Final = 0.05
"""How long a measurement the first rate is worth."""

MEMORY: Final = 1.0
"""Seconds of work after which a measurement counts half."""


def bounded(delay: float) -> float:
    """Return a delay that may be asked for, in seconds."""
    return min(max(delay, LEAST_DELAY), MOST_DELAY)


class Gate(Generic[Ticket]):
    """Lets in at most ``bound`` at once.

    Up to ``line`` more wait in the order in which they came, others are to come again.

    Whoever comes has a ticket, which says whom to call when it is its turn, and is ``who``: a
    principal, or empty where nobody tells callers apart. The rate is measured only while the gate
    is at least half full: at other times it would be the rate of arrivals. All costs are O(1).
    """

    def __init__(self, name: str, bound: int, line: int) -> None:
        self.name = name
        """What the bound is called in errors and metrics."""
        self.bound = bound
        self.line = line
        self.inside = 0
        """How many are inside."""
        self.peak = 0
        """The most that ever were."""
        self.waiting: dict[Ticket, str] = {}
        """Principal of each waiting ticket, in the order in which the tickets came."""
        self._lines: dict[str, dict[Ticket, None]] = {}
        """Waiting tickets of each principal. The principal that comes first has the next turn."""
        self._places: dict[str, int] = {}
        """Number of places that each principal takes, inside and waiting. ``""`` is not counted."""
        self._quiet = Limited()
        self.longest = 0
        """The most that ever waited."""
        self.admitted = 0
        """How many were let in so far."""
        self.refused = 0
        """How often somebody was told to come again."""
        self.saturated = False
        """True if somebody was told to come again, and the line has not been empty since."""
        self._last_turn = 0.0
        self._seen = 0.0
        self._worked = FIRST_SECONDS
        self._served = FIRST_SECONDS * FIRST_RATE

    def enter(self, ticket: Ticket, now: float, who: str = "") -> bool:
        """Let one in, or put it at the end of the line: then False.

        Raises Overloaded, with the delay, when the line is full, or a principal has as many places
        as it leaves free.
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
                log.warning(
                    "too many %s: more are told to come again",
                    self._called,
                    extra=event("saturated", gate=self.name, **limits),
                )
            limit = self.bound + self.line
            raise self._overloaded(f"{limit} {self._called} are here already, the most at once", limit, now)
        self.waiting[ticket] = who
        self._lines.setdefault(who, {})[ticket] = None
        self._count(who, 1)
        self.longest = max(self.longest, len(self.waiting))
        return False

    def leave(self, now: float, who: str = "") -> Ticket | None:
        """Let one out, because it was served or has given up; returns the ticket of the one that is inside instead."""
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
        """Take somebody out of the line; returns whether it was there."""
        if ticket not in self.waiting:
            return False
        self._count(self._unwait(ticket), -1)
        return True

    def _unwait(self, ticket: Ticket) -> str:
        """Take a ticket out of its line, and let the other principals have the next turns; returns whose it is."""
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
        """Raise Overloaded for a principal that has as many places as it leaves free, and one at least.

        A lone principal may have three quarters of the places: a second one finds the rest.
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
        """Return how many are served a second, as far as it was measured. Falls while nobody is."""
        self._look(now)
        return self._served / self._worked

    def all_again(self, count: int, now: float) -> float:
        """Return the delay after which so many may come, all told the same, without being more a second than are served."""
        return bounded(count / self.rate(now))

    @property
    def _called(self) -> str:
        return self.name.replace("_", " ")

    @property
    def _busy(self) -> bool:
        return 2 * self.inside >= self.bound

    def _look(self, now: float) -> None:
        """Measure until now."""
        if self._busy:
            self._worked += now - self._seen
        self._seen = now
        if self._worked > 2 * MEMORY:
            share = MEMORY / self._worked
            self._worked *= share
            self._served *= share

    def _turn(self, now: float) -> float:
        """Give out the next turn, behind the line and all that were told to come again and are not due yet; return the delay."""
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
        """All of them."""
        return self.streams, self.starting, self.watches, self.open_watches, self.task_waits
