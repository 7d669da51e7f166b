"""Cost of a move of W for the driver: it lists a source with much history and little news.

Three kinds of directories: files beside each other, which any program may write again, so each is
asked for its modification time; handed-over batches; and handed-over batches whose files were
removed, of which the directories stay. The baseline is the same listing by a driver that knows
nothing of what it has listed before. Also what the names alone cost, which is the least that a
listing can: `os.scandir` over the root, and nothing else. Of removed batches also what they would
cost if they had their files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.result import Result, Spread
from lowwater_spark.sources.files.source import FileSource, Settled, list_head
from lowwater_spark.sources.files.source_log import Head, SourceLog, Taken
from lowwater_spark.sources.files.writers import HANDED_OVER
from lowwater_spark.sources.head import Candidates


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    history: int
    """Files, or handed-over batches of one file each, that committed batches have taken. Those of
    them that are removed have none any more."""


FULL: Final = Size(rounds=5, history=50_000)
QUICK: Final = Size(rounds=1, history=200)

NEWS: Final = 10
"""Files that no batch has taken yet."""


class _Log(SourceLog):
    """A source's log that has taken everything but the news."""

    def take(self, folder: Path, names: list[str]) -> None:
        for name in names:
            path = folder / name
            self._taken[os.fspath(path)] = Taken(0, path.stat().st_mtime_ns // 1_000_000)
        self.read = 0


class _Driver:
    """Lists one directory."""

    def __init__(self, base: Path, kind: str, history: int) -> None:
        self.kind = kind
        self.root = base / kind
        names = [f"part-{n:08}.json" if kind == "files" else f"batch={n}/part.json" for n in range(history + NEWS)]
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
            if kind != "files":
                (path.parent / HANDED_OVER).write_text("{}")
        self._log = _Log(base / "unused")
        self._log.take(self.root, names[:history])
        if kind == "removed":
            for name in names[:history]:
                (self.root / name).unlink()
        self._source, self._settled = FileSource(os.fspath(self.root), recursive=True), Settled(self._log)

    def _listed(self, *, knowing: bool) -> Head:
        if not knowing:
            return list_head(self._source)
        self._settled.begin(0)
        head = list_head(self._source, self._settled)
        self._settled.end()
        return head

    def took(self, *, knowing: bool = True) -> float:
        """Seconds of a listing, and of looking in the log for what it has found."""
        since = time.perf_counter()
        waiting = Candidates[int]([self._log])
        waiting.add(1, [self._listed(knowing=knowing)])
        assert waiting.newest_reached([0], forget=False) is None, "the news is waited for"
        return time.perf_counter() - since

    def names_took(self) -> float:
        """Seconds of the names in the root."""
        since = time.perf_counter()
        with os.scandir(self.root) as listing:
            assert sum(1 for _ in listing) > 0
        return time.perf_counter() - since


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    files, batches, removed = (_Driver(folder, kind, size.history) for kind in ("files", "batches", "removed"))
    return [*_measure(files, size), *_measure(batches, size), *_measure(removed, size, batches)]


def _measure(driver: _Driver, size: Size, whole: _Driver | None = None) -> list[Result]:
    driver.took()  # the first listing looks at everything, and the system reads the directory
    ways: dict[str, Callable[[], float]] = {
        "knowing nothing": lambda: driver.took(knowing=False),
        "names alone": driver.names_took,
    }
    if whole is not None:
        ways["batches"] = whole.took
        ways["batches, knowing nothing"] = lambda: whole.took(knowing=False)
    ours, theirs = list[float](), {name: list[float]() for name in ways}
    for _ in range(size.rounds):
        ours.append(driver.took())
        for name, took in ways.items():
            theirs[name].append(took())
    value, facts = Spread(tuple(ours)), {"ranges": 0, "history": size.history, "news": NEWS}
    return [
        Result("listing", driver.kind, value, "s", name, Spread(tuple(took)), facts) for name, took in theirs.items()
    ]
