"""An authority with one fault planted: a real one, behind a channel that changes a kind of message on its way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Fault(NamedTuple):
    changes: dict[str, Callable[[Any], object]]
    mute: bool = False


class FaultyChannel:
    """The channel of a stub. A fault changes what is sent and what comes; a mute one keeps the beats of a watch back."""

    def __init__(self, channel: Any, fault: Fault) -> None:
        self._channel, self._fault = channel, fault

    def _changed(self, message: Any) -> Any:
        copy = type(message)()
        copy.CopyFrom(message)
        for kind in (copy.DESCRIPTOR.name, "*"):
            self._fault.changes.get(kind, lambda _: None)(copy)
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


def takes_gaps() -> Fault:
    """Numbers of reports do not matter."""
    last = [0]

    def number(message: Any) -> None:
        last[0] = 0 if message.HasField("open") else last[0] + 1
        if last[0]:
            message.report.number = last[0]

    return Fault({"ReportRequest": number})


def no_fencing() -> Fault:
    """Whoever reports is taken for the newest owner."""
    newest: dict[str, int] = {}
    claimed: list[str] = [""]

    def trusted(message: Any) -> None:
        for group in message.report.groups:
            if group.sequencer < newest.get(group.computation, 0):
                group.sequencer = newest[group.computation]
                del group.watermarks_micros[1:]

    return Fault(
        {
            "ClaimRequest": lambda message: claimed.__setitem__(0, message.computation),
            "ClaimResponse": lambda message: newest.__setitem__(claimed[0], message.sequencer),
            "ReportRequest": trusted,
        }
    )


def without(kind: str, *fields: str) -> Callable[[], Fault]:
    """A fault that overlooks fields of a kind of message."""
    return lambda: Fault({kind: lambda message: [message.ClearField(field) for field in fields]})


def of_groups(change: Callable[[Any], object]) -> Callable[[], Fault]:
    return lambda: Fault({"ReportRequest": lambda message: [change(group) for group in message.report.groups]})


def of_views(change: Callable[[Any], object]) -> Callable[[], Fault]:
    return lambda: Fault({"GetWatermarksResponse": lambda message: [change(view) for view in message.watermarks]})


def forgets_ids(message: Any) -> None:
    """Each claim is a new one."""
    if len(message.request_id) == 16:
        message.request_id = os.urandom(16)


def any_deployment(message: Any) -> None:
    """Whom the caller means does not matter."""
    if "server_token" in message.DESCRIPTOR.fields_by_name and message.DESCRIPTOR.name.endswith("Request"):
        message.ClearField("server_token")


def old_streams(message: Any) -> None:
    """Each stream is a new sender's."""
    if message.HasField("open") and len(message.open.sender) == 16:
        message.open.sender = os.urandom(16)


def goes_back(view: Any) -> None:
    """The published watermark is the least of the ranges' own, and may go back."""
    if view.HasField("holder"):
        view.low_micros = view.holder.watermark_micros


def knows_early(view: Any) -> None:
    """A range without an owner does not hold the watermark."""
    if view.registered and view.low_micros == -(2**63):
        view.low_micros = 3_600_000_000


def leads(view: Any) -> None:
    """The heuristic watermark of all shares is the greatest of them."""
    for share in view.heuristics:
        share.micros = max(other.micros for other in view.heuristics)


FAULTS: Final[dict[str, Callable[[], Fault]]] = {
    "gap": takes_gaps,
    "repeated-claim": lambda: Fault({"ClaimRequest": forgets_ids}),
    "another-deployment": lambda: Fault({"*": any_deployment}),
    "order": without("ClaimRequest", "generation", "ordinal"),
    "identity": without("ClaimRequest", "identity"),
    "cut": no_fencing,
    "streams": lambda: Fault({"ReportRequest": old_streams}),
    "in-part": of_groups(lambda group: setattr(group, "finish", True)),
    "folds": of_groups(lambda group: setattr(group, "input_version", min(group.input_version, 1))),
    "never-back": of_views(goes_back),
    "unknown-holds": of_views(knows_early),
    "watch": lambda: Fault({}, mute=True),
    "heuristic": of_views(leads),
    "release": lambda: Fault(
        {"ReportResponse": lambda message: message.HasField("ack") and message.ack.ClearField("refused")}
    ),
    "complete": lambda: Fault({"CheckCompleteResponse": lambda message: setattr(message, "complete", True)}),
}
"""The fault by the check that has to fail of it."""
