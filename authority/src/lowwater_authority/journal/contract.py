"""The store interface and its durability contract: what each store promises, what it refuses, and the rules that all stores share.

System prevalence: state lives in memory, every change is logged before it is shown, snapshots bound the replay.

A caller of ``append`` or ``snapshot`` needs to know one thing first: is it written? ``JournalFailed``, ``JournalPosition``,
``JournalLost`` and ``JournalFenced`` say surely not, ``JournalUnknown`` says perhaps.
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

    Roll back and refuse the callers.

    A later attempt may succeed; the message says what an operator has to do.
    """


class JournalUnknown(JournalError):
    """It may be written or not.

    Repeat the very same call until it succeeds or fails surely; show nothing until then.

    Repeating is safe: what turns out to be written is recognised by position, writer and checksum.
    """


class JournalFenced(JournalError):
    """Other processes have taken logs over; surely nothing was written.

    Stop serving these: the newer owner's word counts.
    """

    def __init__(self, owners: Mapping[str, tuple[int, int]]) -> None:
        self.owners = dict(owners)
        """By log: the epoch of the refused writer, 0 if it never took the log, and the epoch that
        owns it."""
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

    Put it back with ``restore``, from memory.

    A fail-over to a replica that lagged, a restart without the newest writes, a restored copy.
    """

    def __init__(self, logs: Mapping[str, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        """By log: where it ended, and where the store ends it now; the same when it is the epoch,
        or the record there, that was lost."""
        facts = ", ".join(f"{log!r} ({had} records, now {has})" for log, (had, has) in self.logs.items())
        super().__init__(f"the store has lost records or epochs that it acknowledged: {facts}")


class JournalReplaced(JournalError):
    """The store belongs to another deployment now.

    Nothing of this one may be mixed with it (rule 9): stop this process.
    """

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the store belongs to the deployment {found} now, this process to {expected}: stop it, or give it another store"
        )


class JournalPosition(JournalError):
    """The log does not end where the writer thinks; surely nothing was written.

    Load the log again before going on.
    """

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
    """The store does not hold what it acknowledged.

    Nothing is served from it: restore a copy, or ask for help.

    ``log`` and ``position`` tell where; they are None when the damage is not inside one log.
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
    """Written by a newer release, in a format that this one cannot read. Nothing was changed."""

    def __init__(self, what: str, *, found: int, supported: int, package: str = "lowwater-authority") -> None:
        self.found = found
        self.supported = supported
        super().__init__(f"{what} has format {found}, this release reads up to {supported}: upgrade {package}")


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


GRAPH: Final = ""
"""The log of the pipeline graph. It belongs to all processes of a deployment; every other log has
one owner at a time."""


class Ownership(NamedTuple):
    """Who may write a log."""

    epoch: int = 0
    """Grows with every owner, from 1; 0: the log was never taken."""
    nonce: int = 0
    """32 random bits; tells two owners of one epoch apart, should a store ever lose an epoch. No
    part in any order."""
    address: str = ""
    """Where the owner is reached, HOST:PORT; empty in a store of one process."""
    view: int = 0
    """The version of the membership by which it was taken."""


class End(NamedTuple):
    """Where a log ends, and with what."""

    last: int = 0
    """The last position."""
    tail: int = 0
    """Checksum of the record there, or of what was restored in its place: tells two records of one
    position apart."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record to append."""

    log: str
    """Name of the log: a computation's name, or ``GRAPH``. UTF-8, without surrogates."""
    position: int
    """Place in the log, counted from 1, without gaps."""
    payload: bytes
    """What the record says; the journal never looks inside."""
    strong: bool
    """Whether losing the record breaks a promise (claims, registrations, lowerings); a lost advance
    does not."""
    newest: bool = False
    """Whether releases that do not know the newest format must not read it: they refuse it, as
    JournalVersion."""


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """What a log holds: a snapshot, and the records behind it."""

    snapshot_position: int
    """Position up to which the snapshot speaks; 0 without one."""
    snapshot: bytes | None
    """The newest snapshot."""
    records: list[tuple[int, bytes]]
    """Positions and payloads behind the snapshot, contiguous, ascending."""
    mark: object = field(default=None, compare=False, repr=False)
    """By what the store that was read knows this state again; nobody else looks inside."""
    tails: Mapping[int, int] = field(default_factory=dict, compare=False, repr=False)
    """By position the checksums of the records, and of what stands at the end: see End."""

    @property
    def last(self) -> int:
        """The last position of the log; 0 when it is empty.

        >>> LoadedLog(4, b"", [(5, b"x")]).last, LoadedLog(4, b"", []).last
        (5, 4)
        """
        return self.records[-1][0] if self.records else self.snapshot_position

    @property
    def size(self) -> int:
        """Bytes of the snapshot and of the records."""
        return len(self.snapshot or b"") + sum(len(payload) for _, payload in self.records)

    @property
    def end(self) -> End:
        """Where the log ended when it was read."""
        return End(self.last, self.tails.get(self.last, 0))


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal did since it was opened."""

    appends: int
    """Acknowledged append calls with at least one entry."""
    entries: int
    """Acknowledged entries."""
    bytes: int
    """Payload bytes of the acknowledged entries."""
    last_append_seconds: float
    """How long the last acknowledged append took, from call to acknowledgement; 0.0 before the
    first."""
    snapshots: int
    """Acknowledged snapshots."""
    snapshot_bytes: int
    """Payload bytes of the acknowledged snapshots."""
    failed: int
    """Calls that surely wrote nothing: failed, fenced, or at a wrong position."""
    unknown: int
    """Calls whose outcome is unknown."""


class Journal(ABC):
    """Keeps the logs of one deployment.

    A store is correct when it keeps this contract; one test suite checks all.

    **Atomic.** One ``append`` is one step for all of its entries, in whichever logs: all are
    written or none. So is one ``snapshot``: the old snapshot with its records, or the new one and
    nothing that it covers.

    **Durable.** When ``append``, ``snapshot`` or ``open`` returns, its effect survives the death of
    the process and of the machine. A store that is weaker for entries that are not ``strong`` says
    so in its class docstring; strong entries, and everything in front of them, always survive.

    **Durable before read.** What ``load`` and ``load_behind`` return survives as well, whoever
    wrote it: a record may be in the store while its writer still waits until a fail-over or a power
    cut cannot take it away. So a reader makes the store confirm, behind the read, that the store
    keeps what was read, unless the journal knows so already: it is what the journal has itself had
    acknowledged, or stood in a log that the journal took. If a reader used a record that is lost
    afterwards, the reader would know half of a change: one log of an ``append`` from memory, the
    others without it.

    **May be lost.** What was never acknowledged, as a whole. Never a part of a call, never
    something in the middle.

    **Refused, never repaired.** A record or snapshot that is missing or damaged raises
    ``JournalCorrupt`` with log and position. Only a torn tail, which was never acknowledged, is cut
    without a word.

    **Fenced.** Each log but ``GRAPH`` has one owner at a time, the last that took it, and each gets
    a greater epoch. Every write checks, in its own atomic step, that the writer still owns each log
    it names and that the log ends where it thinks. ``GRAPH`` belongs to all: there the place in the
    log decides alone (compare-and-set).

    **Never shorter.** A journal remembers how far it has read and written each log it owns, and
    ``GRAPH``, and with which record it ended. A store that ends before that, or there with another
    record, or knows only an older epoch, has lost what it acknowledged: every call that touches the
    log raises ``JournalLost``, until ``restore`` has put the owner's memory in its place. In
    ``GRAPH`` others may have gone on behind what they put in the place of a lost record: who reads
    it sees what it lacks.

    **Sure or unknown.** ``JournalFailed``, ``JournalFenced``, ``JournalPosition``, ``JournalLost``:
    surely nothing was written. ``JournalUnknown``, and a cancelled call: perhaps; repeat the call
    as it was. An entry counts as written when its log ends with it, by the same writer (epoch and
    nonce) and with the same checksum, whatever has become of it since; in ``GRAPH`` also when it
    stands at its place. When another process has appended to ``GRAPH`` and cut it off by a
    snapshot, ``JournalPosition`` may be raised by a repeat whose first attempt was written.

    **Not thread-safe.** All methods are called from one event loop. Calls may overlap; each sees
    the ones that were called before it.
    """

    shared: bool
    """Whether several processes may have it open at once."""
    server_token: str
    """Random identity of the deployment, made once with the journal. Set by ``open``."""

    @abstractmethod
    async def open(self) -> None:
        """Connect; create the journal if there is none. Fences nobody, and owns nothing yet.

        Raises JournalLocked while another process has it and it is not shared, JournalVersion,
        JournalCorrupt, or JournalFailed. To be called once; after any exception ``close`` frees
        what was taken.
        """

    @abstractmethod
    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """Become the owner of a log, for good or until somebody else does; durable, by the strongest write.

        The epoch is greater than the log's and than ``above``. Load the log before writing to it. Taking an own log again
        fences what was done before. Raises JournalOutvoted when it was taken under a view newer than ``view``, JournalLost,
        JournalFailed, and JournalUnknown: it may be taken, which harms nobody; call again.
        """

    @abstractmethod
    def release(self, log: str) -> None:
        """Forget a log that is not to be written any more.

        Not a word to the store: the next owner takes it anyway.
        """

    @abstractmethod
    def ownership(self, log: str) -> Ownership:
        """By what this process writes a log, as ``take`` and ``restore`` have returned it last; ``Ownership()`` of one that is not its own.

        Known without the store, which may have another owner by now. Cost: one look into a dict.
        """

    @abstractmethod
    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """Who owns each log, as the store has it now. Raises JournalFailed."""

    @abstractmethod
    async def confirm(self, logs: Iterable[str]) -> int:
        """Check, in one step, that this process owns these logs and that the store holds all it has acknowledged of them.

        Returns where ``GRAPH`` ends. Cost: one round trip, nothing for a store of one process. Raises JournalFenced, JournalLost (also
        when only ``GRAPH`` has lost something) and JournalFailed.
        """

    @abstractmethod
    async def logs(self) -> list[str]:
        """Names of all logs that hold a record or a snapshot, sorted."""

    @abstractmethod
    async def end(self, log: str) -> End:
        """Where a log ends as the store has it now, however much of it is damaged.

        Raises JournalFailed; JournalLost when nothing is left.
        """

    @abstractmethod
    def acknowledged(self, log: str) -> End:
        """How far this process knows a log to reach that is its own, or ``GRAPH``; ``End()`` when it knows nothing of it. One look into a dict."""

    @abstractmethod
    async def load(self, log: str, *, known: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """Read a log whole; an unknown one is empty. Each byte is checked.

        ``known`` is what an earlier call has returned: a store that can tell that the log goes on
        from there reads the rest only. ``durable``: whether what is returned must survive already.
        Without it a caller promises to use nothing of what it reads before it has taken the log,
        which makes the log durable, or has read the log again.

        Raises JournalCorrupt, JournalVersion, or JournalLost; JournalFailed also while the store
        cannot confirm that it keeps what was read, by a write of its own once for each change that
        is read. Not fenced: what it returns may be old for an owner that was replaced, who learns
        so at the next append. Costs memory for the whole log, a snapshot for a moment twice.
        """

    @abstractmethod
    async def load_behind(self, log: str, position: int) -> LoadedLog:
        """Read the records behind a position, checked and durable as those of ``load`` are, whatever is damaged or missing in front of them.

        For who has the log in memory up to there. Raises as ``load``; JournalCorrupt also when a snapshot has taken the place of some of
        these records, or the log ends before the position. Costs as much as ``load`` of what is behind.
        """

    @abstractmethod
    async def append(self, entries: Sequence[Entry], *, beside: Iterable[str] = ()) -> None:
        """Write the entries, all or none, and return when they are durable.

        The entries of each log are contiguous and ascending. A log that ends just before its first
        entry gets them; one that ends with its last entry, from an earlier attempt, stays as it is.
        ``append(())`` does nothing.

        ``beside``: other logs, which are confirmed in the same step. If this process does not own
        one, nothing is written.

        Raises JournalFailed, JournalFenced, JournalLost or JournalPosition when surely nothing was
        written, JournalUnknown when it may be written. Cancelling the caller leaves the outcome
        unknown too, but never a part of it.
        """

    @abstractmethod
    async def snapshot(self, log: str, position: int, payload: bytes, *, newest: bool = False) -> None:
        """Replace everything up to and including ``position`` by ``payload``, in one step.

        ``newest`` as in Entry.

        A snapshot at or behind the present one changes nothing and succeeds: the present one says
        it all. Raises like ``append``; JournalPosition when the log does not reach ``position``.
        Appends of other logs, and of this one, may go on meanwhile; a snapshot of any size holds
        them up only for milliseconds.

        In ``GRAPH``, ``position`` is the end as this process knows it, and it raises
        JournalPosition when there is another record than the one that this process has appended or
        read there: others may have gone on behind what the store had lost.
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
        """Heal a log that the store has lost a part of: it becomes a snapshot at ``position``, and nothing else.

        ``position`` is behind all that this process has acknowledged of the log, and behind where the store ends it. The log gets
        this process as its owner in the same step, with an epoch above all that either knows; ``GRAPH`` stays without one. The
        journal gets back its server token should that be gone too. Durable, by the strongest write.

        With ``over``, only if the log still ends there, in the same step: what others have acknowledged in ``GRAPH`` since it was read
        there is not in ``payload``.

        Raises JournalFenced when another process took the log meanwhile, JournalPosition when the store is not shorter any more, or
        does not end at ``over``, JournalOutvoted, JournalFailed, JournalUnknown. Copying a journal into an empty store is the same step.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun and let go.

        Does nothing the second time; everything else raises JournalClosed then.
        """

    def free_bytes(self) -> int | None:
        """Return how many bytes are free on the disk of the journal. On any thread.

        None: the journal is on no disk of this machine, or the system does not tell.
        """
        return None

    @abstractmethod
    def statistics(self) -> JournalStatistics:
        """What was done since ``open``."""
