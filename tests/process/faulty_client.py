"""The client in Python with one fault planted, for the conformance suite to find: ``python -m tests.process.faulty_client FAULT``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from conformance import python_client
from lowwater._core import exchange, ratchet
from lowwater._core.lease import LeaseState


def another_id() -> None:
    """A repeated claim has another id."""
    called = exchange._One._call

    def wrong(self: Any) -> Any:
        method, request = called(self)
        if hasattr(request, "request_id"):
            request.request_id = bytes([request.request_id[0] ^ 1]) + request.request_id[1:]
        return method, request

    exchange._One._call = wrong  # type: ignore[method-assign]


def goes_back() -> None:
    """Whatever comes is shown."""
    ratchet.Ratchet.admit = ratchet.Ratchet._store  # type: ignore[method-assign]


def deaf() -> None:
    """Lost ranges are not heard of."""
    LeaseState.lose = lambda self, handles, reason: None  # type: ignore[method-assign]


FAULTS: Final[dict[str, tuple[Callable[[], None], str]]] = {
    plant.__name__: (plant, scenario)
    for plant, scenario in [
        (another_id, "lost-answer-of-a-claim"),
        (goes_back, "monotone"),
        (deaf, "fenced-without-a-word"),
    ]
}
"""By name: what plants it, and the scenario that has to fail."""


if __name__ == "__main__":
    FAULTS[sys.argv[1]][0]()
    python_client.main()
