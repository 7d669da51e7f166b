"""The audit log: who did what, and who was refused.

One event an act, by the logger ``lowwater_authority.audit``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater.core.events import Limited, event, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ANONYMOUS", "Actor", "Audit"]

ANONYMOUS: Final = "anonymous"
"""What the log calls who is nobody yet."""

log: Final = logging.getLogger("lowwater_authority.audit")


class Actor(NamedTuple):
    """Who does something."""

    principal: str
    peer: str
    """Host from which it calls."""
    token: str = ""
    """Fingerprint of the token that it has presented; empty: it has a certificate, or is nobody."""


class Audit:
    """Writes the audit log. ``monotonic`` gives seconds.

    Refusals that repeat are one line in ten seconds, and so are acts that workers repeat all the
    time (``often``). Other acts are never left out. Refusals of different computations that are
    ``registered`` are told apart. Other names are the caller's to make up, as many and as long as
    it likes: they count as one, and are shortened.
    """

    def __init__(self, monotonic: Callable[[], float], registered: Callable[[str], bool] = lambda _: False) -> None:
        self._monotonic = monotonic
        self._registered = registered
        self._refusals = Limited()
        self._acts = Limited()
        """Apart from the refusals: many workers use up all keys that are told apart."""

    def done(self, act: str, who: Actor, computation: str = "", *, often: bool = False) -> None:
        """Somebody has done something."""
        self._act(act, who, computation, "done", None, often=often)

    def failed(self, act: str, who: Actor, computation: str, reason: str, *, often: bool = False) -> None:
        """Somebody who may do something did not achieve it; ``reason`` is that of the error."""
        self._act(act, who, computation, "failed", reason, often=often)

    def unknown(self, act: str, who: Actor, computation: str, reason: str, *, often: bool = False) -> None:
        """Somebody who may do something had no answer that says whether it was done; ``reason`` is what came instead."""
        self._act(act, who, computation, "unknown", reason, often=often)

    def refused(self, act: str, who: Actor, computation: str, reason: str, *, often: bool = True) -> None:
        """Somebody was refused for who it is; once in a while for each act, caller, reason and computation."""
        self._act(act, who, computation, "refused", reason, often=often)

    def _act(self, act: str, who: Actor, computation: str, outcome: str, reason: str | None, *, often: bool) -> None:
        count = None
        if often:
            known = computation if self._registered(computation) else ""
            limited = self._refusals if outcome == "refused" else self._acts
            count = limited.count((act, who, outcome, reason, known), self._monotonic())
        if count != 0:
            level = logging.WARNING if outcome == "refused" else logging.INFO
            _tell(level, act, who, computation, outcome, reason, count)


def _tell(
    level: int,
    act: str,
    who: Actor,
    computation: str,
    outcome: str,
    reason: str | None = None,
    count: int | None = None,
) -> None:
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
    log.log(level, "%s of %s%s: %s%s %s%s", who.principal, who.peer, by, act, what, outcome, why, extra=fields)
