"""The store interface and its durability contract.

System prevalence: state lives in memory, every change is logged before it is shown, snapshots bound the replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

GRAPH: Final = ""
"""The log of the pipeline graph. It belongs to all processes of a deployment; every other log has one owner at a time."""


class Ownership(NamedTuple):
    """Who may write a log."""

    epoch: int = 0
    """Grows with every owner, from 1; 0: the log was never taken."""
    nonce: int = 0
    """32 random bits; tells two owners of one epoch apart, should a store ever lose an epoch. No part in any order."""
    address: str = ""
    """Where the owner is reached, HOST:PORT; empty in a store of one process."""
    view: int = 0
    """The version of the membership by which it was taken."""


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
    """Whether losing the record breaks a promise (claims, registrations, lowerings); a lost advance does not."""


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

    @property
    def last(self) -> int:
        """The last position of the log; 0 when it is empty.

        >>> LoadedLog(4, b"", [(5, b"x")]).last, LoadedLog(4, b"", []).last
        (5, 4)
        """
        return self.records[-1][0] if self.records else self.snapshot_position


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
    """How long the last acknowledged append took, from call to acknowledgement; 0.0 before the first."""
    snapshots: int
    """Acknowledged snapshots."""
    snapshot_bytes: int
    """Payload bytes of the acknowledged snapshots."""
    failed: int
    """Calls that surely wrote nothing: failed, fenced, or at a wrong position."""
    unknown: int
    """Calls whose outcome is unknown."""


class Journal(ABC):
    """Keeps the logs of one deployment. A store is correct when it keeps this contract; one test suite checks all.

    **Atomic.** One ``append`` is one step for all of its entries, in whichever logs: all are written or none. So is
    one ``snapshot``: the old snapshot with its records, or the new one and nothing that it covers.

    **Durable.** When ``append``, ``snapshot`` or ``open`` returns, its effect survives the death of the process and of
    the machine. A store that is weaker for entries that are not ``strong`` says so in its class docstring; strong
    entries, and everything in front of them, always survive.

    **May be lost.** What was never acknowledged, as a whole. Never a part of a call, never something in the middle.

    **Refused, never repaired.** A record or snapshot that is missing or damaged raises ``JournalCorrupt`` with log and
    position. Only a torn tail, which was never acknowledged, is cut without a word.

    **Fenced.** Each log but ``GRAPH`` has one owner at a time, the last that took it, and each gets a greater epoch. Every
    write checks, in its own atomic step, that the writer still owns each log it names and that the log ends where it
    thinks. ``GRAPH`` belongs to all: there the place in the log decides alone (compare-and-set).

    **Never shorter.** A journal remembers how far it has read and written each log it owns, and ``GRAPH``, and with which record
    it ended. A store that ends before that, or there with another record, or knows only an older epoch, has lost what it
    acknowledged: every call that touches the log raises ``JournalLost``, until ``restore`` has put the owner's memory in its place.
    In ``GRAPH`` others may have gone on behind what they put in the place of a lost record: who reads it sees what it lacks.

    **Sure or unknown.** ``JournalFailed``, ``JournalFenced``, ``JournalPosition``, ``JournalLost``: surely nothing was
    written. ``JournalUnknown``, and a cancelled call: perhaps; repeat the call as it was. An entry counts as written when
    its log ends with it, by the same writer (epoch and nonce) and with the same checksum; in ``GRAPH``, when it stands at its
    place. When another process has appended to ``GRAPH`` and cut it off by a snapshot, ``JournalPosition`` may be raised by a
    repeat whose first attempt was written.

    **Not thread-safe.** All methods are called from one event loop. Calls may overlap; each sees the ones that were
    called before it.
    """

    shared: bool
    """Whether several processes may have it open at once."""
    server_token: str
    """Random identity of the deployment, made once with the journal. Set by ``open``."""

    @abstractmethod
    async def open(self) -> None:
        """Connect; create the journal if there is none. Fences nobody, and owns nothing yet.

        Raises JournalLocked while another process has it and it is not shared, JournalVersion, JournalCorrupt, or
        JournalFailed. To be called once; after any exception ``close`` frees what was taken.
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
        """Forget a log that is not to be written any more. Not a word to the store: the next owner takes it anyway."""

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
    async def load(self, log: str, *, known: LoadedLog | None = None) -> LoadedLog:
        """Read a log whole; an unknown one is empty. Each byte is checked.

        ``known`` is what an earlier call has returned: a store that can tell that the log goes on from there reads the rest only.

        Raises JournalCorrupt, JournalVersion, or JournalLost. Not fenced: what it returns may be old for an owner that was
        replaced, who learns so at the next append. Costs memory for the whole log, a snapshot for a moment twice.
        """

    @abstractmethod
    async def append(self, entries: Sequence[Entry]) -> None:
        """Write the entries, all or none, and return when they are durable.

        The entries of each log are contiguous and ascending. A log that ends just before its first entry gets them;
        one that ends with its last entry, from an earlier attempt, stays as it is. ``append(())`` does nothing.

        Raises JournalFailed, JournalFenced, JournalLost or JournalPosition when surely nothing was written, JournalUnknown
        when it may be written. Cancelling the caller leaves the outcome unknown too, but never a part of it.
        """

    @abstractmethod
    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """Replace everything up to and including ``position`` by ``payload``, in one step.

        A snapshot at or behind the present one changes nothing and succeeds: the present one says it all. Raises like
        ``append``; JournalPosition when the log does not reach ``position``. Appends of other logs, and of this one,
        may go on meanwhile; a snapshot of any size holds them up only for milliseconds.

        In ``GRAPH``, ``position`` is the end as this process knows it, and it raises JournalPosition when there is another record than
        the one that this process has appended or read there: others may have gone on behind what the store had lost.
        """

    @abstractmethod
    async def restore(self, log: str, position: int, payload: bytes, *, view: int = 0, address: str = "") -> Ownership:
        """Heal a log that the store has lost a part of: it becomes a snapshot at ``position``, and nothing else.

        ``position`` is behind all that this process has acknowledged of the log, and behind where the store ends it. The log gets
        this process as its owner in the same step, with an epoch above all that either knows; ``GRAPH`` stays without one. The
        journal gets back its server token should that be gone too. Durable, by the strongest write.

        Raises JournalFenced when another process took the log meanwhile, JournalPosition when the store is not shorter any more,
        JournalOutvoted, JournalFailed, JournalUnknown. Copying a journal into an empty store is the same step.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun and let go. Does nothing the second time; everything else raises JournalClosed then."""

    @abstractmethod
    def statistics(self) -> JournalStatistics:
        """What was done since ``open``."""
