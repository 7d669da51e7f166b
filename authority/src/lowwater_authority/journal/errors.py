"""What a journal refuses, by who must react.

A caller of ``append`` or ``snapshot`` needs to know one thing first: is it written? ``JournalFailed``, ``JournalPosition``,
``JournalLost`` and ``JournalFenced`` say surely not, ``JournalUnknown`` says perhaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class JournalError(Exception):
    """Root of everything a journal raises on purpose."""


class JournalFailed(JournalError):
    """Surely nothing was written: disk full, read-only, no directory. Roll back and refuse the callers.

    A later attempt may succeed; the message says what an operator has to do.
    """


class JournalUnknown(JournalError):
    """It may be written or not. Repeat the very same call until it succeeds or fails surely; show nothing until then.

    Repeating is safe: what turns out to be written is recognised by position, writer and checksum.
    """


class JournalFenced(JournalError):
    """Other processes have taken logs over; surely nothing was written. Stop serving these: the newer owner's word counts."""

    def __init__(self, owners: Mapping[str, tuple[int, int]]) -> None:
        self.owners = dict(owners)
        """By log: the epoch of the refused writer, 0 if it never took the log, and the epoch that owns it."""
        facts = ", ".join(f"{log!r} (epoch {mine}, now {owner})" for log, (mine, owner) in self.owners.items())
        super().__init__(f"this process does not own the log of {facts}: ask its owner")


class JournalOutvoted(JournalError):
    """The log was taken under a newer view of the members; nothing was changed. Look at the members again first."""

    def __init__(self, log: str, *, view: int, newest: int) -> None:
        self.log = log
        self.view = view
        self.newest = newest
        super().__init__(
            f"log {log!r} was taken under version {newest} of the membership, this process knows only {view}"
        )


class JournalLost(JournalError):
    """The store has lost what it acknowledged; surely nothing was written. Put it back with ``restore``, from memory.

    A fail-over to a replica that lagged, a restart without the newest writes, a restored copy.
    """

    def __init__(self, logs: Mapping[str, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        """By log: where it ended, and where the store ends it now; the same when it is the epoch, or the record there, that was lost."""
        facts = ", ".join(f"{log!r} ({had} records, now {has})" for log, (had, has) in self.logs.items())
        super().__init__(f"the store has lost records or epochs that it acknowledged: {facts}")


class JournalReplaced(JournalError):
    """The store belongs to another deployment now. Nothing of this one may be mixed with it (rule 9): stop this process."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the store belongs to the deployment {found} now, this process to {expected}: stop it, or give it another store"
        )


class JournalPosition(JournalError):
    """The log does not end where the writer thinks; surely nothing was written. Load the log again before going on."""

    def __init__(self, log: str, *, position: int, last: int, reason: str = "") -> None:
        self.log = log
        self.position = position
        """The position of the refused entry or snapshot."""
        self.last = last
        """The last position of the log in the store."""
        super().__init__(
            f"log {log!r}: position {position} does not fit, the log ends at {last}{reason and f' ({reason})'}: "
            f"load the log again before writing to it"
        )


class JournalCorrupt(JournalError):
    """The store does not hold what it acknowledged. Nothing is served from it: restore a copy, or ask for help.

    ``log`` and ``position`` tell where; they are None when the damage is not inside one log.
    """

    def __init__(self, log: str | None, position: int | None, reason: str) -> None:
        self.log = log
        self.position = position
        self.reason = reason
        where = "the journal" if log is None else f"log {log!r}"
        if position is not None:
            where += f" at position {position}"
        super().__init__(
            f"{where} is damaged: {reason}. Nothing was changed; keep the files for inspection and start from a "
            f"restored copy"
        )


class JournalVersion(JournalError):
    """Written by a newer release, in a format that this one cannot read. Nothing was changed."""

    def __init__(self, what: str, *, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(f"{what} has format {found}, this release reads up to {supported}: upgrade lowwater-authority")


class JournalLocked(JournalError):
    """Another process has the journal open."""

    def __init__(self, path: Path, *, holder: str) -> None:
        self.path = path
        self.holder = holder
        """The holder as far as it is known, for example ``process 4711 on host lowwater-0``."""
        super().__init__(
            f"{path} is in use by {holder}: stop that process (a stopped or hanging one counts too), or give this one "
            f"another journal. Do not delete the lock file, it is freed when its holder ends"
        )


class JournalClosed(JournalError):
    """The journal was not opened, or is closed; surely nothing was written."""

    def __init__(self) -> None:
        super().__init__("the journal is not open: await open() first, and use nothing after close()")
