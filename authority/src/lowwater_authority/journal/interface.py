"""The store interface and its durability contract.

System prevalence: state lives in memory, every change is logged before it is shown, snapshots bound the replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One record to append."""

    log: str
    """Name of the log: a computation's name, or ``""`` for the pipeline graph. UTF-8, without surrogates."""
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

    **Fenced.** Each ``open`` gets a greater epoch. Every write checks, in its own atomic step, that the epoch is still
    the newest and that the log ends where the writer thinks. The nonce tells two owners of one epoch apart, should a
    store ever lose an epoch that it acknowledged.

    **Sure or unknown.** ``JournalFailed``, ``JournalFenced``, ``JournalPosition``: surely nothing was written.
    ``JournalUnknown``, and a cancelled call: perhaps; repeat the call as it was. An entry counts as written when its
    log ends with it, by the same writer (epoch and nonce) and with the same checksum.

    **Not thread-safe.** All methods are called from one event loop. Calls may overlap; each sees the ones that were
    called before it.
    """

    server_token: str
    """Random identity of the deployment, made once with the journal. Set by ``open``."""
    epoch: int
    """Number of this ownership, from 1. Set by ``open``."""
    nonce: int
    """32 random bits of this ownership; takes no part in any order. Set by ``open``."""

    @abstractmethod
    async def open(self) -> None:
        """Take the journal over: create it if there is none, make a greater epoch durable.

        Raises JournalLocked while another process has it, JournalVersion, JournalCorrupt, or JournalFailed. To be
        called once; after any exception ``close`` frees what was taken.
        """

    @abstractmethod
    async def logs(self) -> list[str]:
        """Names of all logs that hold a record or a snapshot, sorted."""

    @abstractmethod
    async def load(self, log: str) -> LoadedLog:
        """Read a log whole; an unknown one is empty. Each byte is checked.

        Raises JournalCorrupt or JournalVersion. Not fenced: what it returns may be old for an owner that was replaced,
        who learns so at the next append. Costs memory for the whole log, a snapshot for a moment twice.
        """

    @abstractmethod
    async def append(self, entries: Sequence[Entry]) -> None:
        """Write the entries, all or none, and return when they are durable.

        The entries of each log are contiguous and ascending. A log that ends just before its first entry gets them;
        one that ends with its last entry, from an earlier attempt, stays as it is. ``append(())`` writes nothing and
        confirms that this owner is still the newest.

        Raises JournalFailed, JournalFenced or JournalPosition when surely nothing was written, JournalUnknown when it
        may be written. Cancelling the caller leaves the outcome unknown too, but never a part of it.
        """

    @abstractmethod
    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """Replace everything up to and including ``position`` by ``payload``, in one step.

        A snapshot at or behind the present one changes nothing and succeeds: the present one says it all. Raises like
        ``append``; JournalPosition when the log does not reach ``position``. Appends of other logs, and of this one,
        may go on meanwhile; a snapshot of any size holds them up only for milliseconds.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun and let go. Does nothing the second time; everything else raises JournalClosed then."""

    @abstractmethod
    def statistics(self) -> JournalStatistics:
        """What was done since ``open``."""
