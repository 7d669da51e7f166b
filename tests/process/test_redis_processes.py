"""The Redis journal among real processes that take each other's logs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lowwater_authority.journal import GRAPH
from lowwater_authority.journal.redis import RedisJournal
from tests.contract.redis_server import RedisServer
from tests.process.redis_child import payload
from tests.process.test_journal_processes import line

NAMES = ("one", "two")
LOGS = ("a", "b", "c")
TAKES = 60


@contextmanager
def child(url: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone afterwards, whatever happens."""
    command = [sys.executable, "-m", "tests.process.redis_child", url, name, str(TAKES), *LOGS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_two_processes_take_each_others_logs(tmp_path: Path) -> None:
    """Each position of each log is acknowledged to one process only, under epochs that grow; nothing acknowledged is missing."""
    with RedisServer(tmp_path) as server, ExitStack() as stack:
        server.start()
        children = [stack.enter_context(child(server.url, name)) for name in NAMES]
        assert len({line(process)["token"] for process in children}) == 1
        for process in children:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = {name: line(process) for name, process in zip(NAMES, children, strict=True)}
        records, graph = asyncio.run(read(server.url))
    assert all(found["fenced"] for found in said.values())
    writers: dict[tuple[str, int], tuple[int, str]] = {}
    for name, found in said.items():
        for epoch, log, position in found["acknowledged"]:
            assert (log, position) not in writers
            writers[log, position] = epoch, name
    for log in LOGS:
        epochs = [writers[place][0] for place in sorted(writers) if place[0] == log]
        assert epochs == sorted(epochs)
        for position, stored in records[log].items():
            assert stored == payload(writers[log, position][1], log, position)
        assert max(records[log]) == max(position for name, position in writers if name == log)
    # Each call wrote the graph too, in the same step, whoever came in between.
    assert sorted(graph) == sorted(payload(name, *place) for place, (_, name) in writers.items())


async def read(url: str) -> tuple[dict[str, dict[int, bytes]], list[bytes]]:
    """What each log holds, a snapshot as the record in its place, and the graph."""
    journal = RedisJournal(url)
    await journal.open()
    records: dict[str, dict[int, bytes]] = {}
    for log in LOGS:
        found = await journal.load(log)
        covered = {} if found.snapshot is None else {found.snapshot_position: found.snapshot}
        records[log] = covered | dict(found.records)
    graph = [payload for _, payload in (await journal.load(GRAPH)).records]
    await journal.close()
    return records, graph
