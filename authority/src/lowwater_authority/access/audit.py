"""The audit log: who did what, and who was refused. One event an act, by the logger of this module's package, ``lowwater_authority.audit``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lowwater_authority.telling import Limited, event, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Audit"]

log: Final = logging.getLogger("lowwater_authority.audit")

ANONYMOUS: Final = "anonymous"
"""Who is nobody yet."""


class Audit:
    """Writes the audit log. ``monotonic`` gives seconds; refusals that repeat are one line in ten seconds, acts are never left out.

    Refusals of different computations that are ``registered`` are told apart. Other names are the caller's to make up, as many and as long as
    it likes: they count as one, and are shortened.
    """

    def __init__(self, monotonic: Callable[[], float], registered: Callable[[str], bool] = lambda _: False) -> None:
        self._monotonic = monotonic
        self._registered = registered
        self._quiet = Limited()

    def done(self, act: str, principal: str, peer: str, computation: str = "") -> None:
        """Somebody has done something."""
        computation = shortened(computation)
        what = f" {computation!r}" if computation else ""
        fields = event("audit", act=act, principal=principal, peer=peer, computation=computation, outcome="done")
        log.info("%s of %s: %s%s", principal, peer, act, what, extra=fields)

    def failed(self, act: str, principal: str, peer: str, computation: str, reason: str) -> None:
        """Somebody who may do something did not achieve it; ``reason`` is that of the error."""
        computation = shortened(computation)
        what = f" {computation!r}" if computation else ""
        fields = event(
            "audit", act=act, principal=principal, peer=peer, computation=computation, outcome="failed", reason=reason
        )
        log.info("%s of %s: %s%s failed, %s", principal, peer, act, what, reason, extra=fields)

    def unknown(self, act: str, principal: str, peer: str, computation: str) -> None:
        """Somebody who may do something has gone before the answer: it may have been done or not."""
        computation = shortened(computation)
        what = f" {computation!r}" if computation else ""
        fields = event("audit", act=act, principal=principal, peer=peer, computation=computation, outcome="unknown")
        log.info("%s of %s: %s%s, and gone before the answer", principal, peer, act, what, extra=fields)

    def refused(self, act: str, principal: str, peer: str, computation: str, reason: str) -> None:
        """Somebody was refused for who it is; once in a while for each act, caller, reason and computation."""
        known = computation if self._registered(computation) else ""
        count = self._quiet.count((act, principal, peer, reason, known), self._monotonic())
        if not count:
            return
        computation = shortened(computation)
        what = f" {computation!r}" if computation else ""
        fields = event(
            "audit",
            act=act,
            principal=principal,
            peer=peer,
            computation=computation,
            outcome="refused",
            reason=reason,
            count=count,
        )
        log.warning("%s of %s: %s%s refused, %s", principal, peer, act, what, reason, extra=fields)
