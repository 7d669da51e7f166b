"""The clients: each sends its clicks to the broker of its region.

When that region is lost they go to the other one. The clicks are known in advance, so there is a
batch answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from random import Random
from typing import Final, NamedTuple

from confluent_kafka import Message, Producer

import lowwater
from examples.flights.data import HOUR, moment
from examples.regions.setup import CLICKS, REGIONS, Setup

FIRST: Final = 1_356_998_400_000_000
"""2013-01-01T00:00Z."""
BURST: Final = 15
"""Clicks that are sent together. They are of one hour, so that a click that is said again comes
behind none of a later hour."""
ACKNOWLEDGED_WITHIN: Final = 120.0
LOOK: Final = 0.02

SENDING: Final = "sending"
ACKNOWLEDGED: Final = "acknowledged"


class Click(NamedTuple):
    """One click."""

    id: int
    at: int
    """Event time, microseconds."""
    home: str
    """The region of its client."""


def random_clicks(chance: Random, count: int, hours: int) -> list[Click]:
    """Return clicks in the order of their time, two of three in region A."""
    times = sorted(chance.randrange(FIRST, FIRST + hours * HOUR) for _ in range(count))
    return [Click(number, at, chance.choice((*REGIONS, REGIONS[0]))) for number, at in enumerate(times)]


def bursts(clicks: Iterable[Click]) -> Iterator[list[Click]]:
    """Cut clicks into what is sent together.

    >>> clicks = [Click(n, FIRST, "A") for n in range(16)] + [Click(16, FIRST + HOUR, "A")]
    >>> [len(burst) for burst in bursts(clicks)]
    [15, 1, 1]
    """
    for _, hour in groupby(clicks, lambda click: click.at // HOUR):
        together = list(hour)
        yield from (together[first : first + BURST] for first in range(0, len(together), BURST))


class Strike(NamedTuple):
    """Point of the work at which a fault strikes: before or after a burst is acknowledged."""

    burst: int
    phase: str
    do: Callable[[], None]


@dataclass(slots=True)
class Clients:
    """All of them, on a thread. They are outside of both regions: nobody kills them."""

    setup: Setup
    clicks: Sequence[Click]
    ahead: Callable[[], bool]
    """Tells whether the clients are ahead of the regions, and have to wait."""
    strikes: Sequence[Strike] = ()
    accepted: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Region that acknowledged each click, and its offset there."""
    lost: set[str] = field(default_factory=set[str])
    """Regions whose clients have gone to the other one."""
    limit: int = 0
    """The burst that has to wait until it is raised."""
    sent: int = 0
    failure: BaseException | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _producers: dict[str, Producer] = field(default_factory=dict[str, Producer])

    def run(self) -> None:
        """Send everything, and finish."""
        try:
            self._run()
        except BaseException as failure:  # noqa: BLE001  # it is raised where the thread was started
            self.failure = failure

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped.set()

    def _run(self) -> None:
        clients = {
            region: lowwater.connect(place.authority, timeout=ACKNOWLEDGED_WITHIN)
            for region, place in self.setup.regions.items()
        }
        leases = {}
        for region, lw in clients.items():
            lw.register(CLICKS)
            leases[region] = lw.worker(CLICKS, name="clients").claim()
        try:
            self._send(leases)
        finally:
            for producer in self._producers.values():
                producer.purge()
            for lw in clients.values():
                lw.close()

    def _send(self, leases: Mapping[str, lowwater.Lease]) -> None:
        plan = list(bursts(self.clicks))
        for number, burst in enumerate(plan):
            while number >= self.limit or self.ahead():
                if self._stopped.wait(LOOK):
                    return
            # What is not acknowledged by anybody yet may come in either region.
            for lease in leases.values():
                lease.advance(None, oldest=None, frontier=burst[0].at)
            waiting = {click.id: click for click in burst}
            for click in burst:
                self._put(self._region(click), click, waiting)
            self._strike(number, SENDING)
            while waiting and not self._stopped.is_set():
                self._wait(waiting)
            if waiting:
                return
            self.sent += len(burst)
            self._strike(number, ACKNOWLEDGED)
        for _, lease in sorted(leases.items(), key=lambda item: item[0] in self.lost):
            lease.finish()  # waits for a region that is away

    def _wait(self, waiting: dict[int, Click]) -> None:
        """Wait a little for acknowledgements.

        What nobody has acknowledged in a region that is lost is said again in the other one.
        """
        for region in {*self.lost} & self._producers.keys():
            producer = self._producers.pop(region)
            producer.purge()  # nothing of it may arrive there later, when the region is back
            producer.poll(0)
            for click in [waiting_click for waiting_click in waiting.values() if waiting_click.home == region]:
                self._put(self._region(click), click, waiting)
        for producer in self._producers.values():
            producer.poll(LOOK)

    def _strike(self, burst: int, phase: str) -> None:
        for strike in self.strikes:
            if (strike.burst, strike.phase) == (burst, phase):
                strike.do()

    def _region(self, click: Click) -> str:
        return self.setup.other(click.home) if click.home in self.lost else click.home

    def _put(self, region: str, click: Click, waiting: dict[int, Click]) -> None:
        def delivered(error: object, message: Message) -> None:
            if error is None and click.id in waiting:
                del waiting[click.id]
                self.accepted[click.id] = (region, message.offset() or 0)

        if region not in self._producers:
            settings = {"acks": "all", "enable.idempotence": True, "log_level": 0}
            self._producers[region] = Producer({"bootstrap.servers": self.setup.regions[region].broker, **settings})
        value = json.dumps({"id": click.id, "at": moment(click.at).isoformat()})
        self._producers[region].produce(CLICKS, value.encode(), partition=0, on_delivery=delivered)
