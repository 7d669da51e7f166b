"""The client in Python with one fault planted, for the conformance suite to find: ``python -m tests.process.faulty_client FAULT``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final

from conformance import python_client
from lowwater import errors
from lowwater.core import attempts, backoff, claims, exchange, ratchet, reports, router
from lowwater.core.calls import Calls
from lowwater.core.lease import LeaseState


def same_stream() -> None:
    """Streams are not counted."""
    opened = reports.ReporterState.open

    def wrong(self: Any) -> int:
        opened(self)
        self.stream = 1
        return 1

    reports.ReporterState.open = wrong  # type: ignore[method-assign]


def skipped_number() -> None:
    """Every second number of a report is left out."""
    original = reports.ReporterState.take

    def wrong(self: Any, now: float) -> Any:
        report = original(self, now)
        self._number += bool(report)
        return report

    reports.ReporterState.take = wrong  # type: ignore[method-assign]


def only_changes() -> None:
    """After a reconnect only what changed is sent."""
    LeaseState.reconnect = lambda self: None  # type: ignore[method-assign]


def acknowledged_by_sending() -> None:
    """A report counts as durable when it was sent."""
    original = reports.ReporterState.take

    def wrong(self: Any, now: float) -> Any:
        report = original(self, now)
        for lease in self.leases if report else ():
            lease.acknowledge(lease.version)
        return report

    reports.ReporterState.take = wrong  # type: ignore[method-assign]


def another_id() -> None:
    """A repeated claim has another id."""
    claimed = Calls.claim

    def wrong(self: Any, request: Any, become: Any) -> Any:
        call = claimed(self, request, become)

        def method(stubs: Any) -> Any:
            request.request_id = bytes([request.request_id[0] ^ 1]) + request.request_id[1:]
            return call.method(stubs)

        return replace(call, method=method)

    Calls.claim = wrong  # type: ignore[method-assign]


def follows_who_slept() -> None:
    """Redirects to a lower epoch are followed."""
    redirected = router.Router.redirected

    def wrong(self: Any, name: str, address: str, epoch: int) -> bool:
        return redirected(self, name, address, max(epoch, self.epoch_of(name)))

    router.Router.redirected = wrong  # type: ignore[method-assign]


def goes_back() -> None:
    """Whatever comes is shown."""
    admitted, numbers = ratchet.Ratchet.admit, count(1000)

    def wrong(self: Any, view: Any) -> bool:
        return admitted(self, replace(view, incarnation=next(numbers)))

    ratchet.Ratchet.admit = wrong  # type: ignore[method-assign]


def any_deployment() -> None:
    """Whoever answers is believed."""
    ratchet.Ratchet.check_token = lambda self, server_token: None  # type: ignore[method-assign]


def releases_again() -> None:
    """A release of unknown outcome is repeated."""
    released = Calls.release

    def wrong(self: Any, computation: str, sequencer: int, failure: str | None = None) -> Any:
        call = released(self, computation, sequencer, failure)
        object.__setattr__(call, "repeatable", True)
        return call

    Calls.release = wrong  # type: ignore[method-assign]


def repeats_everything() -> None:
    """Every refusal is taken for one that passes."""
    module: Any = exchange
    module.AGAIN = (errors.LowwaterError,)


def impatient() -> None:
    """The delay that the authority asked for is not kept."""
    next_delay = backoff.Backoff.next
    backoff.Backoff.next = lambda self, at_least=0.0: next_delay(self) / 100  # type: ignore[method-assign]
    attempts.Backoff = backoff.Backoff  # type: ignore[attr-defined]


def deaf() -> None:
    """Lost ranges are not heard of."""
    LeaseState.lose = lambda self, handles, reason: None  # type: ignore[method-assign]


def overlooks_refusals() -> None:
    """A refused part of a report counts as taken."""
    LeaseState.refuse = lambda self, refusal: None  # type: ignore[method-assign]


def same_claim() -> None:
    """Each claim has the same id."""
    original = claims.Claimant.claim

    def wrong(self: Any, calls: Any, request_id: bytes, *others: Any, **named: Any) -> Any:
        return original(self, calls, bytes(16), *others, **named)

    claims.Claimant.claim = wrong  # type: ignore[method-assign]


FAULTS: Final[dict[str, tuple[Callable[[], None], str]]] = {
    plant.__name__: (plant, scenario)
    for plant, scenario in [
        (same_stream, "lost-acknowledgement"),
        (skipped_number, "a-day"),
        (only_changes, "moved-report"),
        (acknowledged_by_sending, "slow-authority"),
        (another_id, "lost-answer-of-a-claim"),
        (follows_who_slept, "asleep"),
        (goes_back, "monotone"),
        (any_deployment, "another-deployment"),
        (releases_again, "not-to-be-repeated"),
        (repeats_everything, "not-to-be-repeated"),
        (impatient, "later"),
        (deaf, "fenced-without-a-word"),
        (overlooks_refusals, "refused-in-part"),
        (same_claim, "several-claims-on-one-stream"),
    ]
}
"""The fault's function by its name, and the scenario that has to fail."""


if __name__ == "__main__":
    FAULTS[sys.argv[1]][0]()
    python_client.main()
