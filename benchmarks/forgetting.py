"""Cost of a batch for the driver after a million files, or half a million empty batches.

Of files: how long the entry of a batch takes to be read at each tenth batch, where Spark repeats
all files that it ever took, by the number of those files. The baseline is the entry of an ordinary
batch, of one file. Of ticks: how long one takes from the wish to its being forgotten, in the last
tenth of them; the baseline is the first tenth. Beside it how large Spark's log of them becomes.
Spark's own part, which writes the entries, is played here: this measures no Spark.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.result import Result, Spread
from lowwater_spark.sources.files.source_log import SourceLog
from lowwater_spark.sources.ticks import Ticks, tick_directory


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    files: tuple[int, ...]
    ticks: int


FULL: Final = Size(files=(10_000, 100_000, 1_000_000), ticks=500_000)
QUICK: Final = Size(files=(100, 1_000), ticks=600)

_EVERY: Final = 10
"""Spark's default: each tenth entry is a compacted one."""


def _line(path: str, batch: int) -> str:
    return json.dumps(
        {"path": f"file://{path}", "timestamp": 1_700_000_000_000 + batch, "batchId": batch}, separators=(",", ":")
    )


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    return [*(_files(folder / f"{count}", count) for count in size.files), *_ticks(folder / "ck", size.ticks)]


def _files(log: Path, count: int) -> Result:
    log.mkdir()
    lines = [_line(f"/data/in/batch={n}/part-00000-{n:032x}.parquet", n) for n in range(count)]
    (log / f"{count - 1}.compact").write_text("\n".join(["v1", *lines]), encoding="utf-8")
    source = SourceLog(log, "/data/in")
    source.read_to(count - 1)
    ordinary, compacted = list[float](), list[float]()
    for n in range(count, count + 2 * _EVERY):
        lines.append(_line(f"/data/in/batch={n}/part.parquet", n))
        whole = (n + 1) % _EVERY == 0
        name, content = (f"{n}.compact", lines) if whole else (f"{n}", lines[-1:])
        (log / name).write_text("\n".join(["v1", *content]), encoding="utf-8")
        since = time.perf_counter()
        source.read_to(n)
        (compacted if whole else ordinary).append(time.perf_counter() - since)
    value, theirs = Spread(tuple(compacted)), Spread((max(ordinary),) * len(compacted))
    return Result("forgetting", "tenth_batch", value, "s", "an ordinary batch", theirs, {"ranges": 0, "files": count})


def _ticks(checkpoint: Path, count: int) -> list[Result]:
    entries, folder = checkpoint / "sources/1", tick_directory(checkpoint)
    entries.mkdir(parents=True)
    ticks, committed, took, longest, written = Ticks(checkpoint, 1, 1), "-", list[float](), 0, 0
    for n in range(count):
        since = time.perf_counter()
        ticks.force(committed)
        spent = time.perf_counter() - since
        line = _line(f"{folder}/1-{n + 1}", n)
        written += len(line) + 1
        _write_entry(entries, n, line)
        since, committed = time.perf_counter(), json.dumps({"logOffset": n})
        ticks.read_to(committed)
        ticks.clean(committed)
        took.append(spent + time.perf_counter() - since)
        if (n + 1) % _EVERY == 0:
            longest = max(longest, (entries / f"{n}.compact").stat().st_size)
    tenth = max(1, count // 10)
    last, first = Spread((sum(took[-tenth:]) / tenth,)), Spread((sum(took[:tenth]) / tenth,))
    facts: dict[str, object] = {"ranges": 0, "ticks": count, "held": ticks.remembered}
    return [
        Result("forgetting", "tick", last, "s", "the first tenth of them", first, facts),
        Result(
            "forgetting", "log_of_ticks", Spread((float(longest),)), "B", "all lines", Spread((float(written),)), facts
        ),
    ]


def _write_entry(entries: Path, number: int, line: str) -> None:
    """Write an entry as Spark does, and remove those that a compacted one repeats."""
    if (number + 1) % _EVERY:
        (entries / f"{number}").write_text(f"v1\n{line}", encoding="utf-8")
        return
    names = [f"{number - _EVERY}.compact", *(f"{n}" for n in range(number - _EVERY + 1, number))]
    paths = [entries / name for name in names if (entries / name).exists()]
    before = [entry for path in paths for entry in path.read_text(encoding="utf-8").split("\n")[1:]]
    (entries / f"{number}.compact").write_text("\n".join(["v1", *before, line]), encoding="utf-8")
    for path in paths:
        path.unlink()
