"""An authority with one fault planted: a real one, behind a channel that changes a kind of message on its way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Fault(NamedTuple):
    """One fault. ``changes`` has a function for each kind of message: it changes the message."""

    changes: dict[str, Callable[[Any], object]]
    mute: bool = False


class FaultyChannel:
    """The channel of a stub. A fault changes what is sent and what comes; a mute one keeps the beats of a watch back."""

    def __init__(self, channel: Any, fault: Fault) -> None:
        self._channel, self._fault = channel, fault

    def _changed(self, message: Any) -> Any:
        copy = type(message)()
        copy.CopyFrom(message)
        self._fault.changes.get(copy.DESCRIPTOR.name, lambda _: None)(copy)
        return copy

    def __getattr__(self, arity: str) -> Callable[..., Any]:
        def opened(path: str, *, request_serializer: Any, response_deserializer: Any, **options: Any) -> Any:
            call = getattr(self._channel, arity)(
                path,
                request_serializer=lambda message: request_serializer(self._changed(message)),
                response_deserializer=lambda data: self._changed(response_deserializer(data)),
                **options,
            )
            if self._fault.mute and arity == "unary_stream":
                return lambda *sent, **how: filter(lambda message: message.watermarks, call(*sent, **how))
            return call

        return opened


def of_views(change: Callable[[Any], object]) -> Fault:
    """A fault that changes each watermark that is asked for."""
    return Fault({"GetWatermarksResponse": lambda message: [change(view) for view in message.watermarks]})


def takes_gaps() -> Fault:
    """Numbers of reports do not matter."""
    last = [0]

    def number(message: Any) -> None:
        last[0] = 0 if message.HasField("open") else last[0] + 1
        if last[0]:
            message.report.number = last[0]

    return Fault({"ReportRequest": number})


def forgets_ids(message: Any) -> None:
    """Each claim is a new one."""
    if len(message.request_id) == 16:
        message.request_id = os.urandom(16)


def without_order(message: Any) -> None:
    """The order of claims is overlooked."""
    for field in ("generation", "ordinal"):
        message.ClearField(field)


def goes_back(view: Any) -> None:
    """What is published is the least of the ranges as they stand."""
    if view.HasField("holder"):
        view.low_micros = view.holder.watermark_micros


def knows_early(view: Any) -> None:
    """What nobody owns does not hold."""
    if view.registered and view.low_micros == -(2**63):
        view.low_micros = 3_600_000_000


FAULTS: Final[dict[str, Callable[[], Fault]]] = {
    "gap": takes_gaps,
    "repeated-claim": lambda: Fault({"ClaimRequest": forgets_ids}),
    "order": lambda: Fault({"ClaimRequest": without_order}),
    "never-back": lambda: of_views(goes_back),
    "unknown-holds": lambda: of_views(knows_early),
    "watch": lambda: Fault({}, mute=True),
    "complete": lambda: Fault({"CheckCompleteResponse": lambda message: setattr(message, "complete", True)}),
}
"""By the check that has to fail of each."""
