"""The interface of a journal and its durability contract.

It says what each store promises and what it refuses. The design is system prevalence: state lives
in memory, every change is logged before it is shown, and snapshots bound the replay.

A caller of ``append`` or ``snapshot`` needs to know one thing first: is it written?
``JournalFailed``, ``JournalPosition``, ``JournalLost`` and ``JournalFenced`` say surely not,
``JournalUnknown`` says perhaps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple


class JournalError(Exception):
    """Root of everything a journal raises on purpose."""


class JournalFailed(JournalError):
    """Surely nothing was written: disk full, read-only, no directory.

    Roll back and refuse the callers. A later attempt may succeed; the message says what an operator
    has to do.
    """


class JournalUnknown(JournalError):
    """The call may be written or not.

    Repeat the very same call until it succeeds or fails surely; show nothing until then.

    Repeating is safe: a record that was written is recognised by position, writer and checksum.
    """


class JournalFenced(JournalError):
    """Other processes have taken logs over; surely nothing was written.

    Stop serving these logs: only the newer owner may.
    """

    def __init__(self, owners: Mapping[str, tuple[int, int]]) -> None:
        self.owners = dict(owners)
        """Epochs by log: that of the refused writer, 0 if it never took the log, and that of the
        owner."""
        facts = ", ".join(f"{log!r} (epoch {mine}, now {owner})" for log, (mine, owner) in self.owners.items())
        super().__init__(f"this process does not own the log of {facts}: ask its owner")


class JournalOutvoted(JournalError):
    """The log was taken under a newer view of the members; nothing was changed.

    Look at the members again first.
    """

    def __init__(self, log: str, *, view: int, newest: int) -> None:
        self.log = log
        self.view = view
        self.newest = newest
        super().__init__(
            f"log {log!r} was taken under version {newest} of the membership, this process knows only {view}"
        )


class JournalLost(JournalError):
    """The store has lost what it acknowledged; surely nothing was written.

    Put it back from memory with ``restore``. The cause may be a fail-over to a replica that lagged,
    a restart without the newest writes, or a restored copy.
    """

    def __init__(self, logs: Mapping[str, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        """Last positions by log: as acknowledged, and as the store has it now. Both are the same
        when the store has lost the epoch, or the record at this position."""
        facts = ", ".join(f"{log!r} ({had} records, now {has})" for log, (had, has) in self.logs.items())
        super().__init__(f"the store has lost records or epochs that it acknowledged: {facts}")


class JournalReplaced(JournalError):
    """The store belongs to another deployment now.

    Stop this process: two deployments must not be mixed (rule 9).
    """

    def __init__(self, *, expected: str, actual: str) -> None:
        super().__init__(
            f"the store belongs to the deployment {actual} now, this process to {expected}: "
            "stop the process, or give it another store"
        )


class JournalPosition(JournalError):
    """The log does not end where the writer thinks; surely nothing was written.

    Load the log again before going on.
    """

    def __init__(self, log: str, *, position: int, last: int, reason: str = "") -> None:
        self.log = log
        self.position = position
        """Position of the refused entry or snapshot."""
        self.last = last
        """Last position of the log in the store."""
        super().__init__(
            f"log {log!r}: position {position} does not fit, the log ends at {last}{reason and f' ({reason})'}: "
            f"load the log again before writing to it"
        )


class JournalCorrupt(JournalError):
    """The store holds something else than it acknowledged, and is not served.

    Restore a copy, or ask for help. ``log`` and ``position`` name the place; they are None when the
    damage is not inside one log.
    """

    def __init__(self, log: str | None, position: int | None, reason: str) -> None:
        self.log = log
        self.position = position
        self.reason = reason
        where = "the journal" if log is None else f"log {log!r}" if log else "the log of the graph"
        if position is not None:
            where += f" at position {position}"
        super().__init__(
            f"{where} is damaged: {reason}. Nothing was changed; keep the files for inspection and start from a "
            f"restored copy"
        )


class JournalVersion(JournalError):
    """A newer release has written a format that this one cannot read. Nothing was changed."""

    def __init__(self, place: str, *, stored: int, supported: int, package: str = "lowwater-authority") -> None:
        self.stored = stored
        self.supported = supported
        super().__init__(f"{place} has format {stored}, this release reads up to {supported}: upgrade {package}")


class JournalLocked(JournalError):
    """Another process has the journal open."""

    def __init__(self, path: Path, *, holder: str) -> None:
        self.path = path
        self.holder = holder
        """Name of the holder as far as it is known: ``process 4711 on host lowwater-0``."""
        super().__init__(
            f"{path} is in use by {holder}: stop that process (a stopped or hanging one counts too), or give this one "
            f"another journal. Do not delete the lock file, it is freed when its holder ends"
        )


class JournalClosed(JournalError):
    """The journal is not open, or closed; surely nothing was written."""

    def __init__(self) -> None:
        super().__init__("the journal is not open: await open() first, and use nothing after close()")


GRAPH: Final = ""
"""Name of the log of the pipeline graph. All processes of a deployment write it; every other log
has one owner at a time."""


class Ownership(NamedTuple):
    """Who may write a log."""

    epoch: int = 0
    """Number of the ownership, which grows with every owner, from 1; 0: the log was never taken."""
    nonce: int = 0
    """Random 32 bits that tell two owners of one epoch apart, should a store ever lose an epoch."""
    address: str = ""
    """Address of the owner, HOST:PORT; empty in a store of one process."""
    view: int = 0
    """Version of the membership by which the owner took the log."""


class End(NamedTuple):
    """The end of a log."""

    last: int = 0
    """Last position; 0 in an empty log."""
    tail: int = 0
    """Checksum of the last record, or of what was restored in its place. It tells two records of
    one position apart."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record to append."""

    log: str
    """Name of the log: a computation's name, or ``GRAPH``. UTF-8, without surrogates."""
    position: int
    """Place in the log, counted from 1, without gaps."""
    payload: bytes
    """Content of the record; the journal never looks inside."""
    strong: bool
    """True if losing the record breaks a promise (claims, registrations, lowerings); a lost advance
    breaks none."""
    newest: bool = False
    """True if older releases must not read the record: they refuse it with JournalVersion."""


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """The content of a log: a snapshot, and the records behind it."""

    snapshot_position: int
    """Last position that the snapshot covers; 0 without one."""
    snapshot: bytes | None
    """Newest snapshot."""
    records: list[tuple[int, bytes]]
    """Positions and payloads behind the snapshot, contiguous, ascending."""
    mark: object = field(default=None, compare=False, repr=False)
    """Sign by which the store recognises this state; only the store looks inside."""
    tails: Mapping[int, int] = field(default_factory=dict, compare=False, repr=False)
    """Checksums of the records by position, and the checksum at the end: see End."""

    @property
    def last(self) -> int:
        """Last position of the log; 0 when it is empty.

        >>> LoadedLog(4, b"", [(5, b"x")]).last, LoadedLog(4, b"", []).last
        (5, 4)
        """
        return self.records[-1][0] if self.records else self.snapshot_position

    @property
    def size(self) -> int:
        """Payload bytes of the snapshot and the records."""
        return len(self.snapshot or b"") + sum(len(payload) for _, payload in self.records)

    @property
    def end(self) -> End:
        """End of the log when it was read."""
        return End(self.last, self.tails.get(self.last, 0))


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """The totals of a journal since it was opened."""

    appends: int = 0
    """Acknowledged append calls with at least one entry."""
    entries: int = 0
    """Acknowledged entries."""
    bytes: int = 0
    """Payload bytes of the acknowledged entries."""
    last_append_seconds: float = 0.0
    """Duration of the last acknowledged append, from call to acknowledgement; 0.0 before the
    first."""
    snapshots: int = 0
    """Acknowledged snapshots."""
    snapshot_bytes: int = 0
    """Payload bytes of the acknowledged snapshots."""
    failed: int = 0
    """Calls that surely wrote nothing: failed, fenced, or at a wrong position."""
    unknown: int = 0
    """Calls of unknown outcome."""


class Journal(ABC):
    """Keeps the logs of one deployment.

    A store is correct when it keeps this contract; one test suite checks all.

    **Atomic.** One ``append`` is one step for all of its entries, in whichever logs: all are
    written or none. One ``snapshot`` is one step, too: a log has the old snapshot with its records,
    or the new one and nothing that it covers.

    **Durable.** When ``append``, ``snapshot`` or ``open`` returns, its effect survives the death of
    the process and of the machine. A store that is weaker for entries that are not ``strong`` says
    so in its class docstring; strong entries, and everything in front of them, always survive.

    **Durable before read.** What ``load`` and ``load_behind`` return survives as well, whoever
    wrote it. A record may be in the store while its writer still waits until a fail-over or a power
    cut cannot take it away. So the journal has the store confirm, after the read, that it keeps
    what was read. The journal skips this for what the store has acknowledged to it, and for what
    stood in a log when the journal took it. If a reader used a record that is lost afterwards, it
    would know half of a change: one log of an ``append`` from memory, the others without it.

    **May be lost.** A call that was never acknowledged may be lost as a whole, never in part.

    **Refused, never repaired.** A record or snapshot that is missing or damaged raises
    ``JournalCorrupt`` with log and position. Only a torn tail, which was never acknowledged, is cut
    silently.

    **Fenced.** Each log but ``GRAPH`` has one owner at a time, the last that took it, and each gets
    a greater epoch. Every write checks, in its own atomic step, that the writer still owns each log
    it names and that the log ends where the writer expects. ``GRAPH`` belongs to all processes:
    there only the position is compared (compare-and-set).

    **Never shorter.** A journal remembers how far it has read and written each log it owns, and
    ``GRAPH``, and with which record it ended. A store that ends before that, or there with another
    record, or knows only an older epoch, has lost what it acknowledged: every call that touches the
    log raises ``JournalLost``, until ``restore`` has put the owner's memory in its place. In
    ``GRAPH`` other processes may have put another record in the place of a lost one and appended to
    it: a process that reads the graph sees what it lacks.

    **Sure or unknown.** ``JournalFailed``, ``JournalFenced``, ``JournalPosition``, ``JournalLost``:
    surely nothing was written. ``JournalUnknown``, and a cancelled call: perhaps; repeat the call
    as it was. An entry counts as written when its log ends with it, by the same writer (epoch and
    nonce) and with the same checksum, even if the record was damaged since; in ``GRAPH`` also when
    the entry stands at its place. When another process has appended to ``GRAPH`` and cut it off by
    a snapshot, ``JournalPosition`` may be raised by a repeat whose first attempt was written.

    **Not thread-safe.** All methods are called from one event loop. Calls may overlap; each sees
    the calls before it.
    """

    shared: bool
    """True if several processes may have the journal open at once."""
    server_token: str
    """Random identity of the deployment, made once with the journal. Set by ``open``."""

    @abstractmethod
    async def open(self) -> None:
        """Connect; create the journal if there is none. No process is fenced, no log taken.

        Raises JournalLocked while another process has a journal open that is not shared,
        JournalVersion, JournalCorrupt, or JournalFailed. To be called once; after any exception
        ``close`` frees what was opened.
        """

    @abstractmethod
    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """Become the owner of a log until another process takes it.

        Durable, by the strongest write. The new epoch is greater than the log's and than ``above``.
        Load the log before writing to it. Taking an own log again fences the calls before. Raises
        JournalOutvoted when the log was taken under a view newer than ``view``, JournalLost,
        JournalFailed, and JournalUnknown: the log may be taken, which does no harm; call again.
        """

    @abstractmethod
    def release(self, log: str) -> None:
        """Forget a log that this process will not write any more.

        The store is not told: the next owner takes the log anyway, unless it is damaged. See
        Holding.give_back.
        """

    @abstractmethod
    def ownership(self, log: str) -> Ownership:
        """Return the ownership by which this process writes a log.

        The result is ``Ownership()`` for a log that it does not own, else what ``take`` or
        ``restore`` returned last; the store may have another owner by now. Cost: one look into a
        dict.
        """

    @abstractmethod
    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """Return the owner of each log, as the store has it now. Raises JournalFailed."""

    @abstractmethod
    async def confirm(self, logs: Iterable[str]) -> int:
        """Check in one step that this process owns these logs and that the store keeps all of it.

        Returns the last position of ``GRAPH``. Cost: one round trip, nothing for a store of one
        process. Raises JournalFenced, JournalLost (also when only ``GRAPH`` has lost something) and
        JournalFailed.
        """

    @abstractmethod
    async def logs(self) -> list[str]:
        """Return the names of all logs that hold a record or a snapshot, sorted."""

    @abstractmethod
    async def end(self, log: str) -> End:
        """Return the end of a log as the store has it now, however much of the log is damaged.

        Raises JournalFailed; JournalLost when nothing of the log is left.
        """

    @abstractmethod
    def acknowledged(self, log: str) -> End:
        """Return the end of an own log, or of ``GRAPH``, that this process has read or written.

        The result is ``End()`` when it knows nothing of the log. Cost: one look into a dict.
        """

    @abstractmethod
    async def load(self, log: str, *, before: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """Read a log whole; an unknown one is empty. Each byte is checked.

        ``before`` is the result of an earlier call: a store that recognises it reads only the rest.
        Without ``durable`` the result may still be lost. Then the caller promises to use nothing of
        it before it has taken the log, which makes the log durable, or has read the log again.

        Raises JournalCorrupt, JournalVersion, or JournalLost; JournalFailed also while the store
        cannot confirm that it keeps what was read. The call is not fenced: an owner that was
        replaced may read old records, and learns so at its next append. Cost: memory for the whole
        log, for a moment twice for a snapshot; a write for each change that must be confirmed.
        """

    @abstractmethod
    async def load_behind(self, log: str, position: int) -> LoadedLog:
        """Read the records behind a position, whatever is damaged or missing in front of them.

        It serves a process that has the log in memory up to the position. The records are checked
        and durable as those of ``load``. Raises as ``load``; JournalCorrupt also when a snapshot
        has taken the place of some of these records, or the log ends before the position. Cost: as
        ``load`` of these records.
        """

    @abstractmethod
    async def append(self, entries: Sequence[Entry], *, beside: Iterable[str] = ()) -> None:
        """Write the entries, all or none, and return when they are durable.

        The entries of each log are contiguous and ascending. A log that ends just before its first
        entry gets them; one that ends with its last entry, from an earlier attempt, stays as it is.
        ``append(())`` does nothing.

        ``beside`` names other logs, which are confirmed in the same step. If this process does not
        own one of them, nothing is written.

        Raises JournalFailed, JournalFenced, JournalLost or JournalPosition when surely nothing was
        written, JournalUnknown when the entries may be written. Cancelling the caller leaves the
        outcome unknown, too; never is a part of the entries written.
        """

    @abstractmethod
    async def snapshot(self, log: str, position: int, payload: bytes, *, newest: bool = False) -> None:
        """Replace everything up to and including ``position`` by ``payload``, in one step.

        ``newest`` is that of Entry. A snapshot at or before the position of the present one changes
        nothing and succeeds: the present one covers it. Raises like ``append``; JournalPosition
        when the log does not reach ``position``. Appends to all logs go on meanwhile; a snapshot of
        any size holds them up only for milliseconds.

        In ``GRAPH``, ``position`` is the end as this process knows it. JournalPosition is raised
        when the store has another record there than this process has appended or read: otherwise
        the snapshot would drop records that other processes appended after the store had lost some.
        """

    @abstractmethod
    async def restore(
        self,
        log: str,
        position: int,
        payload: bytes,
        *,
        view: int = 0,
        address: str = "",
        over: End | None = None,
        newest: bool = False,
    ) -> Ownership:
        """Heal a log of which the store has lost a part.

        The log becomes a snapshot at ``position``, and nothing else. ``position`` is above the end
        that was acknowledged to this process, and above the end in the store. The same step makes
        this process the owner, with an epoch above all that it and the store know; ``GRAPH`` stays
        without one. A server token that is lost is written again. Durable, by the strongest write.

        With ``over`` the log is replaced only if it still ends there. Otherwise records would be
        dropped that other processes appended to ``GRAPH`` after ``payload`` was made.

        Raises JournalFenced when another process took the log meanwhile, JournalPosition when the
        store is not shorter any more, or does not end at ``over``, JournalOutvoted, JournalFailed,
        JournalUnknown. Copying a journal into an empty store is the same step.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish the calls that have begun, and close.

        Does nothing the second time; every other method raises JournalClosed then.
        """

    def free_bytes(self) -> int | None:
        """Return how many bytes are free on the disk of the journal. On any thread.

        None when the journal is on no disk of this machine, or the system does not say.
        """
        return None

    @abstractmethod
    def statistics(self) -> JournalStatistics:
        """Return the totals since ``open``."""
