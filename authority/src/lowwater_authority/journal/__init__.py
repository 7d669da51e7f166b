"""The journal: what the authority writes before it shows anything. See ``contract``."""

from lowwater_authority.journal.contract import GRAPH, Entry, Journal, JournalStatistics, LoadedLog, Ownership
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
from lowwater_authority.journal.sqlite import SqliteJournal

__all__ = [
    "GRAPH",
    "Entry",
    "Journal",
    "JournalStatistics",
    "LoadedLog",
    "Ownership",
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
