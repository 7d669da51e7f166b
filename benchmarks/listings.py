"""What a move of W costs the driver in listing a source, when there is much history and a little news.

Two kinds of directories: files beside each other, which any program may write again, so each is asked for its modification time; and handed-over
batches. The baseline is the same listing by a driver that knows nothing of what it has listed before. Also what the names alone cost, which is the
least that a listing can: `os.scandir` over the root, and nothing else.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.result import Result, Spread
from lowwater_spark.handover import HANDED_OVER
from lowwater_spark.head import Candidates, FileSource, Head, list_head
from lowwater_spark.settled import Settled
from lowwater_spark.sourcelog import SourceLog, Taken


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    rounds: int
    history: int
    """Files, or handed-over batches of one file each, that committed batches have taken."""


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


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    return [found for kind in ("files", "batches") for found in _measure(folder, kind, size)]


def _measure(base: Path, kind: str, size: Size) -> list[Result]:
    root = base / kind
    names = [f"part-{n:08}.json" if kind == "files" else f"batch={n}/part.json" for n in range(size.history + NEWS)]
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        if kind == "batches":
            (path.parent / HANDED_OVER).write_text("{}")
    log = _Log(base / "unused")
    log.take(root, names[: size.history])
    source, settled = FileSource(os.fspath(root), recursive=True), Settled(log)

    def listed(known: Settled | None) -> Head:
        if known is None:
            return list_head(source)
        known.begin(0)
        head = list_head(source, known)
        known.end()
        return head

    def took(known: Settled | None) -> float:
        """Seconds of a listing, and of looking in the log for what it has found."""
        since = time.perf_counter()
        waiting = Candidates[int]([log])
        waiting.add(1, [listed(known)])
        assert waiting.newest_reached([0], forget=False) is None, "the news is waited for"
        return time.perf_counter() - since

    took(settled)  # the first listing looks at everything, and the system reads the directory
    ours, theirs, least = [], [], []
    for _ in range(size.rounds):
        ours.append(took(settled))
        theirs.append(took(None))
        since = time.perf_counter()
        with os.scandir(root) as listing:
            assert sum(1 for _ in listing) > 0
        least.append(time.perf_counter() - since)
    value, facts = Spread(tuple(ours)), {"ranges": 0, "history": size.history, "news": NEWS}
    return [
        Result("listing", kind, value, "s", "knowing nothing", Spread(tuple(theirs)), facts),
        Result("listing", kind, value, "s", "names alone", Spread(tuple(least)), facts),
    ]
