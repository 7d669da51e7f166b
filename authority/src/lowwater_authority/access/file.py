"""The access file of a process that serves."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from lowwater.core.events import event
from lowwater.core.text import counted
from lowwater_authority.access.policy import Access, Limits
from lowwater_authority.files.followed import FollowedFile
from lowwater_authority.files.table import BadFile, date_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOON_SECONDS: Final = 7 * 86_400.0
"""Seconds before the last token of a principal expires at which the log warns."""

log = logging.getLogger(__name__)


class AccessFile(FollowedFile[Access]):
    """The rules of a file, followed. While a new file is bad, the rules before it stay in force.

    A principal that is removed is cut off within three seconds, one whose token expires within one.
    ``limits`` count where the file sets none. ``check`` raises BadFile for rules that may not be in
    force here. ``clock`` gives seconds since the Unix epoch. Raises BadFile when the first file
    cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        limits: Limits | None = None,
        check: Callable[[Access], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._check = check
        self._clock = clock
        self._decided_at = clock()
        """Time of the last check for expired tokens, seconds since the Unix epoch."""
        self._expiry_warnings: set[tuple[str, float, bool]] = set()
        """Warnings about expiry that this process has logged: principal, time of expiry in seconds
        since the Unix epoch, and whether that time had passed."""
        self._limits = limits or Limits()
        super().__init__(path, monotonic=monotonic)

    async def look(self) -> None:
        """See FollowedFile. The streams of an expired token end. O(tokens)."""
        now = self._clock()
        if any(
            self._decided_at < at <= now for principal in self.value.principals for at in principal.expires.values()
        ):
            for changed in self.on_change:
                changed(self.value)
        self._decided_at = now
        for principal in self.value.principals:
            if principal.ends is not None and principal.ends - now <= SOON_SECONDS:
                self._tell_end(principal.name, principal.ends, over=principal.ends <= now)
        await super().look()

    def _load(self) -> Access:
        access = Access.load(self.path).with_limits(self._limits)
        try:
            self._check(access)
        except BadFile as error:
            raise error.within(str(self.path)) from None
        return access

    def _tell_end(self, principal: str, ends: float, *, over: bool) -> None:
        if (principal, ends, over) in self._expiry_warnings:
            return
        self._expiry_warnings.add((principal, ends, over))
        at = date_text(ends)
        log.warning(
            "the last token of %s %s (%s): add the hash of a new one to the access file",
            principal,
            "has expired" if over else "expires soon",
            at,
            extra=event("token_expired" if over else "token_expires_soon", principal=principal, expires=at),
        )

    def _tell_read(self) -> None:
        principals = len(self.value.principals)
        facts = event("access_read", file=str(self.path), principals=principals)
        log.info("the access file was read again: %s", counted(principals, "principal"), extra=facts)

    def _tell_refused(self, error: BadFile) -> None:
        facts = event("access_refused", file=str(self.path), error=str(error))
        log.error("the access file is bad, and what it said before stays in force: %s", error, extra=facts)

    def _tell_failed(self, error: Exception, count: int) -> None:
        facts = event("access_failed", file=str(self.path), error=str(error), count=count)
        log.exception("the access file cannot be followed, which is tried again", extra=facts)
