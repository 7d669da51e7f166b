"""Processes that the tests of the journal start, kill, stop, and run over a traced disk.

``python -m tests.process.journal_child MODE PATH ...``; each line of the output is one JSON object.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from lowwater_authority.journal import GRAPH, Entry, JournalError, Ownership, SqliteJournal

SNAPSHOT_EVERY = 40
OWN = "enriched"
LOGS = (GRAPH, OWN)


def say(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def payload(log: str, position: int) -> bytes:
    """Return the payload of a position: of any size, mostly small, and known to the parent too."""
    source = random.Random(f"{log}:{position}")
    return source.randbytes(source.choice([10, 100, 500, 20_000]))


def entries(position: int) -> list[Entry]:
    return [Entry(log, position, payload(log, position), strong=True) for log in LOGS]


async def begin(path: Path) -> tuple[SqliteJournal, Ownership]:
    journal = SqliteJournal(path)
    await journal.open()
    return journal, await journal.take(OWN)


async def append(path: Path, count: int, acknowledged: Callable[[int], None]) -> None:
    """Append ``count`` times to all logs, each in one call, and a snapshot now and then."""
    journal, owner = await begin(path)
    last = (await journal.load(OWN)).last
    say(pid=os.getpid(), epoch=owner.epoch, last=last)
    for position in range(last + 1, last + 1 + count):
        await journal.append(entries(position))
        acknowledged(position)
        if position % SNAPSHOT_EVERY == 0:
            await journal.snapshot(OWN, position, payload("snapshot", position))
    os._exit(0)  # without closing: what is in the write-ahead log stays there


async def trace(path: Path, count: int, *, unsafe: bool) -> None:
    """Like ``append``, with a mark in the disk shim's trace at each acknowledgement. ``unsafe`` never syncs."""
    marks = os.open(os.environ["LOWWATER_TRACE"], os.O_WRONLY | os.O_APPEND)
    if unsafe:
        from lowwater_authority.journal.sqlite import SqliteDatabase

        SqliteDatabase.PRAGMAS = ("journal_mode = WAL", "synchronous = OFF")

    def acknowledged(position: int) -> None:
        os.write(marks, b"A %d\n" % position)

    await append(path, count, acknowledged)


async def fail(path: Path, call: str, code: str) -> None:
    """One append during which the disk fails, then the same again."""
    journal, _ = await begin(path)
    await journal.append(entries(1))
    ctypes.CDLL(None).disk_fail(call.encode(), getattr(errno, code))
    try:
        await journal.append(entries(2))
    except JournalError as error:
        found = [(await journal.load(log)).last for log in LOGS]
        say(error=type(error).__name__, text=str(error), found=found, unknown=journal.statistics().unknown)
    if sys.argv[-1] == "and-die":
        os._exit(0)
    await journal.append(entries(2))
    await journal.append(entries(3))
    say(found=[(await journal.load(log)).last for log in LOGS])
    os._exit(0)


def main() -> None:
    mode, path, *arguments = sys.argv[1:]
    if mode == "trace":
        asyncio.run(trace(Path(path), int(arguments[0]), unsafe=arguments[1] == "unsafe"))
    elif mode == "fail":
        asyncio.run(fail(Path(path), arguments[0], arguments[1]))


if __name__ == "__main__":
    main()
