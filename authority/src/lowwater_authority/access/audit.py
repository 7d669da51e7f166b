"""The audit log: who did what, and who was refused. One event an act, by the logger of this module's package, ``lowwater_authority.audit``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lowwater_authority.telling import Limited, event

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Audit"]

log: Final = logging.getLogger("lowwater_authority.audit")

ANONYMOUS: Final = "anonymous"
"""Who is nobody yet."""


class Audit:
    """Writes the audit log. ``monotonic`` gives seconds; refusals that repeat are one line in ten seconds, acts are never left out."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._quiet = Limited()

    def done(self, act: str, principal: str, peer: str, computation: str = "") -> None:
        """Somebody has done something."""
        what = f" {computation!r}" if computation else ""
        fields = event("audit", act=act, principal=principal, peer=peer, computation=computation, outcome="done")
        log.info("%s of %s: %s%s", principal, peer, act, what, extra=fields)

    def failed(self, act: str, principal: str, peer: str, computation: str, reason: str) -> None:
        """Somebody who may do something did not achieve it; ``reason`` is that of the error."""
        what = f" {computation!r}" if computation else ""
        fields = event(
            "audit", act=act, principal=principal, peer=peer, computation=computation, outcome="failed", reason=reason
        )
        log.info("%s of %s: %s%s failed, %s", principal, peer, act, what, reason, extra=fields)

    def unknown(self, act: str, principal: str, peer: str, computation: str) -> None:
        """Somebody who may do something has gone before the answer: it may have been done or not."""
        what = f" {computation!r}" if computation else ""
        fields = event("audit", act=act, principal=principal, peer=peer, computation=computation, outcome="unknown")
        log.info("%s of %s: %s%s, and gone before the answer", principal, peer, act, what, extra=fields)

    def refused(self, act: str, principal: str, peer: str, computation: str, reason: str) -> None:
        """Somebody was refused for who it is; once in a while for each act, caller and reason."""
        count = self._quiet.count((act, principal, peer, reason), self._monotonic())
        if not count:
            return
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
