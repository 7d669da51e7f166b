"""The journal: what the authority writes before it shows anything. See ``interface`` for the contract."""

from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLocked,
    JournalLost,
    JournalOutvoted,
    JournalPosition,
    JournalReplaced,
    JournalUnknown,
    JournalVersion,
)
from lowwater_authority.journal.interface import GRAPH, Entry, Journal, JournalStatistics, LoadedLog, Ownership
from lowwater_authority.journal.memory import MemoryDisk, MemoryJournal
from lowwater_authority.journal.sqlite import SqliteJournal

__all__ = [
    "GRAPH",
    "Entry",
    "Journal",
    "JournalStatistics",
    "LoadedLog",
    "MemoryDisk",
    "Ownership",
    "MemoryJournal",
    "SqliteJournal",
    "JournalError",
    "JournalClosed",
    "JournalCorrupt",
    "JournalFailed",
    "JournalFenced",
    "JournalLocked",
    "JournalLost",
    "JournalOutvoted",
    "JournalPosition",
    "JournalReplaced",
    "JournalUnknown",
    "JournalVersion",
]
