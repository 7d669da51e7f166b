"""The audit log: an event for each act and each refusal.

The logger is ``lowwater_authority.audit``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater.core.events import Limited, event, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ANONYMOUS", "Actor", "Audit"]

ANONYMOUS: Final = "anonymous"
"""Name of a principal who is not known yet."""

log: Final = logging.getLogger("lowwater_authority.audit")


class Actor(NamedTuple):
    """The principal who does something."""

    principal: str
    peer: str
    """Address of the caller."""
    token: str = ""
    """Fingerprint of the caller's token; empty for a certificate, or for an unknown caller."""


class Audit:
    """Writes the audit log. ``monotonic`` gives seconds.

    Refusals that repeat, and acts that workers repeat all the time (``often``), have one line in
    ten seconds. Other acts are never left out. Refusals of different ``registered`` computations
    are told apart. All other names count as one and are shortened, because callers can invent them.
    """

    def __init__(self, monotonic: Callable[[], float], registered: Callable[[str], bool] = lambda _: False) -> None:
        self._monotonic = monotonic
        self._registered = registered
        self._refusals = Limited()
        self._acts = Limited()
        """Limit of acts, apart from refusals: many workers use up all its keys."""

    def done(self, act: str, who: Actor, computation: str = "", *, often: bool = False) -> None:
        """Log an act that succeeded."""
        self._act(act, who, computation, "done", None, often=often)

    def failed(self, act: str, who: Actor, computation: str, reason: str, *, often: bool = False) -> None:
        """Log an allowed act that failed; ``reason`` is that of the error."""
        self._act(act, who, computation, "failed", reason, often=often)

    def unknown(self, act: str, who: Actor, computation: str, reason: str, *, often: bool = False) -> None:
        """Log an allowed act without a known outcome; ``reason`` is that of the error."""
        self._act(act, who, computation, "unknown", reason, often=often)

    def refused(self, act: str, who: Actor, computation: str, reason: str, *, often: bool = True) -> None:
        """Log a refusal, now and then for each act, caller, reason and computation."""
        self._act(act, who, computation, "refused", reason, often=often)

    def _act(self, act: str, who: Actor, computation: str, outcome: str, reason: str | None, *, often: bool) -> None:
        count = None
        if often:
            registered = computation if self._registered(computation) else ""
            limited = self._refusals if outcome == "refused" else self._acts
            count = limited.count((act, who, outcome, reason, registered), self._monotonic())
            if not count:
                return
        computation = shortened(computation)
        what = f" {computation!r}" if computation else ""
        why = f", {reason}" if reason else ""
        fields = event(
            "audit",
            act=act,
            principal=who.principal,
            token=who.token,
            **{"from": who.peer},
            computation=computation,
            outcome=outcome,
            reason=reason,
            count=count,
        )
        by = f" by token {who.token}" if who.token else ""
        level = logging.WARNING if outcome == "refused" else logging.INFO
        log.log(level, "%s of %s%s: %s%s %s%s", who.principal, who.peer, by, act, what, outcome, why, extra=fields)
