"""The senders: each sends its records in order of time until they are acknowledged.

Its low watermark says which records are.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import lowwater
from examples.billing.driver import METERS, TOPIC
from examples.flights import data
from examples.flights.data import Flight, moment
from tests.kit.kafka import Kafka, Row

BURST: Final = 60
"""Records of a meter that are sent together."""
UNSURE: Final = 0.25
"""The share of records whose acknowledgement is lost: they are sent again with the next burst."""
ACKNOWLEDGED_WITHIN: Final = 120.0


def flown(start: datetime, days: int) -> list[Flight]:
    """Return the flights of some days that were not cancelled, in order of time."""
    flown = [flight for flight in data.load(start, start + timedelta(days=days)) if not flight.cancelled]
    return sorted(flown, key=lambda flight: (flight.sched_dep, flight.id))


@dataclass(slots=True)
class Meters:
    """Both senders, on a thread.

    They send as much as they are let, so that there is work when something is killed.
    """

    kafka: Kafka
    flights: Sequence[Flight]
    chance: Random
    sent: Counter[int] = field(default_factory=Counter[int])
    """Number of times that each record was sent."""
    failure: BaseException | None = None
    _let: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False

    def let(self, share: float) -> None:
        """Let them send up to this share of all records."""
        with self._changed:
            self._let = share
            self._changed.notify_all()

    def stop(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self, leases: Mapping[str, lowwater.Lease]) -> None:
        """Send everything, and finish."""
        try:
            self._run(leases)
        except BaseException as failure:  # noqa: BLE001  # it is raised where the thread was started
            self.failure = failure

    def _run(self, leases: Mapping[str, lowwater.Lease]) -> None:
        each_has = {meter: self.flights[number :: len(METERS)] for number, meter in enumerate(METERS)}
        bursts = max(-(-len(flights) // BURST) for flights in each_has.values())
        again: dict[str, list[Flight]] = {meter: [] for meter in METERS}
        for burst in range(bursts + 1):  # the last one has what comes again, alone
            if not self._wait_for(burst / bursts):
                return
            for partition, (meter, flights) in enumerate(each_has.items()):
                fresh = flights[burst * BURST : (burst + 1) * BURST]
                self._send(partition, [*again[meter], *fresh])
                again[meter] = [flight for flight in fresh if self.chance.random() < UNSURE]
                # What is not acknowledged holds the low watermark: its copy is not late.
                remaining = [*again[meter], *flights[(burst + 1) * BURST :]]
                if remaining:
                    leases[meter].advance(None, oldest=None, frontier=min(flight.sched_dep for flight in remaining))
                else:
                    leases[meter].finish()
        for lease in leases.values():
            lease.flush(ACKNOWLEDGED_WITHIN)

    def _wait_for(self, share: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: share <= self._let or self._stopped)
            return not self._stopped

    def _send(self, partition: int, flights: Iterable[Flight]) -> None:
        self.kafka.put(TOPIC, [Row(json.dumps(_as_json(flight)).encode(), None, partition) for flight in flights])
        self.sent.update(flight.id for flight in flights)


def _as_json(flight: Flight) -> dict[str, Any]:
    return {
        "id": flight.id,
        "carrier": flight.carrier,
        "sched_dep": moment(flight.sched_dep).isoformat(),
        "miles": flight.distance,
    }
