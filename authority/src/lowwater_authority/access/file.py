"""The access file while it is served."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from lowwater._core.events import event
from lowwater._core.text import counted
from lowwater_authority.access.policy import Access, Limits
from lowwater_authority.files.followed import FollowedFile
from lowwater_authority.files.table import BadFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["AccessFile"]

log = logging.getLogger(__name__)


class AccessFile(FollowedFile[Access]):
    """The rules of a file as they stand: who is removed is cut off within three seconds; a bad file removes nobody.

    ``limits`` are those that count where the file sets none. ``check`` raises BadFile for rules that may not be in force here. Raises BadFile when the
    first cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        limits: Limits | None = None,
        check: Callable[[Access], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check = check
        self._limits = limits or Limits()
        super().__init__(path, monotonic=monotonic)

    def _load(self) -> Access:
        access = Access.load(self.path).with_limits(self._limits)
        try:
            self._check(access)
        except BadFile as error:
            raise error.within(str(self.path)) from None
        return access

    def _tell_read(self) -> None:
        principals = len(self.value.principals)
        told = event("access_read", file=str(self.path), principals=principals)
        log.info("the access file was read again: %s", counted(principals, "principal"), extra=told)

    def _tell_refused(self, error: BadFile) -> None:
        log.error(
            "the access file is bad, and what it said before stays in force: %s",
            error,
            extra=event("access_refused", file=str(self.path), error=str(error)),
        )

    def _tell_failed(self, error: Exception, count: int) -> None:
        told = event("access_failed", file=str(self.path), error=str(error), count=count)
        log.exception("the access file cannot be followed, which is tried again", extra=told)
