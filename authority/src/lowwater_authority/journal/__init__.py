"""The journal: what the authority writes before it shows anything. See ``interface`` for the contract."""

from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLocked,
    JournalPosition,
    JournalUnknown,
    JournalVersion,
)
from lowwater_authority.journal.interface import Entry, Journal, JournalStatistics, LoadedLog
from lowwater_authority.journal.memory import MemoryDisk, MemoryJournal
from lowwater_authority.journal.sqlite import SqliteJournal

__all__ = [
    "Entry",
    "Journal",
    "JournalStatistics",
    "LoadedLog",
    "MemoryDisk",
    "MemoryJournal",
    "SqliteJournal",
    "JournalError",
    "JournalClosed",
    "JournalCorrupt",
    "JournalFailed",
    "JournalFenced",
    "JournalLocked",
    "JournalPosition",
    "JournalUnknown",
    "JournalVersion",
]
