"""Reads a trace of the disk shim, and rebuilds what a power cut would have left of the traced files."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<cIQQ")
SECTOR = 512


class Event(NamedTuple):
    """One call, or with ``call`` A the mark of an acknowledgement, its number in ``offset``."""

    call: str
    path: str
    offset: int
    data: bytes


def read(trace: bytes) -> list[Event]:
    """All events, in order."""
    events, at = [], 0
    while at < len(trace):
        call, length, offset, size = _HEAD.unpack_from(trace, at)
        at += _HEAD.size
        path = trace[at : at + length].decode()
        events.append(Event(call.decode(), path, offset, trace[at + length : at + length + size]))
        at += length + size
    return events


class Disk:
    """Files, each as it is on the platter and with the writes that are only cached.

    A file's name is durable once its directory was synced after the first write; a removed one stays until then.
    Shared-memory indexes are left out: they are mapped, never synced, and rebuilt at the next start.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.synced: dict[str, bytearray] = {}
        self.cached: dict[str, list[Event]] = {}
        self.named: set[str] = set()
        self.removed: set[str] = set()
        self.apply(events)

    def apply(self, events: Iterable[Event]) -> None:
        """Let more happen."""
        for event in events:
            if not event.path.endswith("-shm"):
                self._apply(event)

    def _apply(self, event: Event) -> None:
        path = event.path
        if event.call in "WT":
            self.removed.discard(path)
            self.cached.setdefault(path, []).append(event)
        elif event.call == "U":
            self.removed.add(path)
        elif event.call == "S" and (path in self.cached or path in self.synced):
            content = self.synced.setdefault(path, bytearray())
            for change in self.cached.pop(path, []):
                change_content(content, change)
        elif event.call == "S":
            inside = [name for name in self.cached.keys() | self.synced.keys() if Path(name).parent == Path(path)]
            self.named |= set(inside)
            for name in self.removed:
                self.synced.pop(name, None)
                self.cached.pop(name, None)
            self.removed.clear()

    def after_power_cut(self, source: random.Random) -> dict[str, bytes]:
        """The files that are left: what was synced, and any of the cached sectors, as it happens."""
        left = {}
        for path in self.named:
            content = bytearray(self.synced.get(path, b""))
            luck = source.choice([0.0, 0.5, 0.9])
            for change in self.cached.get(path, []):
                if change.call == "T":
                    if source.random() < luck:
                        change_content(content, change)
                    continue
                for start in range(0, len(change.data), SECTOR):
                    if source.random() < luck:
                        piece = change.data[start : start + SECTOR]
                        change_content(content, change._replace(offset=change.offset + start, data=piece))
            left[path] = bytes(content)
        return left


def change_content(content: bytearray, change: Event) -> None:
    """Apply one write or truncation."""
    if change.call == "T":
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    else:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data
