"""A process that takes logs of a Redis journal from other such processes, and writes to them.

``python -m tests.process.redis_child URL NAME TAKES LOG ...``; each line of the output is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from lowwater_authority.journal import GRAPH, Entry, Journal, JournalFenced, JournalPosition
from lowwater_authority.journal.redis import RedisJournal

APPENDS = 12
SNAPSHOT_EVERY = 7


def payload(name: str, log: str, position: int) -> bytes:
    """What tells who wrote, and where."""
    return f"{name} {log} {position}".encode()


async def add(journal: Journal, name: str, log: str, last: int, graph: int) -> tuple[int, int]:
    """One record in a log and one in the graph, in one step. Returns where both end."""
    while True:
        entries = [
            Entry(log, last + 1, payload(name, log, last + 1), strong=True),
            Entry(GRAPH, graph + 1, payload(name, log, last + 1), strong=True),
        ]
        try:
            await journal.append(entries)
        except JournalPosition as refused:
            if refused.log != GRAPH:
                raise
            graph = refused.last
        else:
            return last + 1, graph + 1


async def run(url: str, name: str, takes: int, logs: list[str]) -> None:
    """Take logs in turns; write until somebody else takes them. What is acknowledged is said at the end."""
    source = random.Random(name)
    journal = RedisJournal(url)
    await journal.open()
    acknowledged: list[tuple[int, str, int]] = []
    fenced = graph = 0
    print(json.dumps({"token": journal.server_token}), flush=True)
    sys.stdin.readline()
    for _ in range(takes):
        log = source.choice(logs)
        owner = await journal.take(log, address=name)
        last = (await journal.load(log)).last
        try:
            for _ in range(source.randrange(APPENDS)):
                last, graph = await add(journal, name, log, last, graph)
                acknowledged.append((owner.epoch, log, last))
                if last % SNAPSHOT_EVERY == 0:
                    await journal.snapshot(log, last, payload(name, log, last))
                await journal.confirm([log])
        except JournalFenced as refused:
            mine, theirs = refused.owners[log]
            fenced += mine == owner.epoch < theirs
            journal.release(log)
    await journal.close()
    print(json.dumps({"acknowledged": acknowledged, "fenced": fenced}), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
