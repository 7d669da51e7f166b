"""Driven windows on the oldest Spark, whose driver is killed after a plan or a commit, in the middle of what follows."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import lowwater
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.sources.control import Offset
from tests.compatibility.environments import ROOT, clean_environ
from tests.floors.environments import CLIENTS
from tests.floors.smoke import Feed
from tests.floors.test_floor import FLOOR, LOWEST, python_with
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.serving import serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

PATIENCE = 240
KILLS = 5
"""Kills of the driver in each run of the test."""


@contextlib.contextmanager
def job(python: str, folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job in a process group of its own, and kill the driver, its JVM and all else of it at the end."""
    environ = {name: value for name, value in clean_environ().items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    command = [python, "-m", "tests.floors.driven_job", str(folder), address]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environ, "PYSPARK_PYTHON": python},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def logged(folder: Path, log: str) -> int:
    return max((int(entry.name) for entry in (folder / "ck" / log).glob("[0-9]*")), default=-1)


def await_batch(folder: Path, process: subprocess.Popen[bytes], log: str, batch: int) -> None:
    def alive() -> None:
        assert process.poll() is None, (folder / "log").read_text()[-5_000:]

    eventually(lambda: logged(folder, log) >= batch, f"batch {batch} in {log}", seconds=PATIENCE, check=alive)


def written(folder: Path) -> Counter[tuple[str, datetime]]:
    """Return the counts in the files that Spark's sink has committed. An hour that is there twice counts twice."""
    entries = [
        line for file in (folder / "out/_spark_metadata").glob("[0-9]*") for line in file.read_text().split("\n")[1:]
    ]
    paths = {json.loads(entry)["path"].removeprefix("file://") for entry in entries if entry}
    rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    return sum((Counter({(row["key"], datetime.fromisoformat(row["t"])): row["count"]}) for row in rows), Counter())


def moves_again(folder: Path) -> bool:
    """Whether the newest plan moves the watermark and is not committed, so that the next run moves it again."""
    log = CheckpointLog(folder / "ck")
    newest = log.newest()
    if newest is None or newest.batch == 0 or log.committed(newest.batch):
        return False
    before = log.plan(newest.batch - 1)
    return before is not None and Offset.of_line(newest.lines[0]).follows(Offset.of_line(before.lines[0]))


@pytest.mark.parametrize("seed", [1, 2])
def test_rule_8_no_window_is_wrong_after_kills(tmp_path: Path, seed: int) -> None:
    python, chance = python_with(FLOOR, CLIENTS, *LOWEST), random.Random(seed)
    (tmp_path / "authority").mkdir()
    feed, expected = Feed(tmp_path / "in"), Counter[tuple[str, datetime]]()
    with serving(tmp_path / "authority") as authority, lowwater.connect(authority.address) as lw:
        lw.register("source")
        lease = lw.worker("source", identity="test").claim()

        def low() -> lowwater.Watermark:
            views = lw.get("driven")
            return views["driven"].low if views["driven"].registered else lowwater.Watermark.UNKNOWN

        def promise_and_feed(hour: int) -> None:
            # Rows are as old as the promise allows, and up to three hours younger, in any order.
            for _ in range(4):
                rows = [(chance.choice("abc"), at(hour) + timedelta(minutes=chance.randrange(180))) for _ in range(20)]
                feed.put(*rows)
                expected.update((key, t.replace(minute=0)) for key, t in rows)
            lease.advance(None, oldest=None, frontier=at(hour + 1))
            lease.flush(20)

        def alive() -> None:
            assert process.poll() is None, (tmp_path / "log").read_text()[-5_000:]

        hours, moved_again = range(8, 8 + KILLS), 0
        for hour in hours:
            promise_and_feed(hour)
            log, batch = chance.choice(["offsets", "commits"]), logged(tmp_path, "offsets") + chance.randrange(1, 6)
            with job(python, tmp_path, authority.address) as process:
                if hour % 2:
                    await_batch(tmp_path, process, log, batch)
                else:
                    goal = lowwater.Watermark.of(at(hour + 1))
                    # A plan may be committed between two looks. Then the next kill has its chance.
                    there = functools.partial(lambda goal: moves_again(tmp_path) or low() == goal, goal)
                    eventually(there, "the watermark moves", seconds=PATIENCE, check=alive)
            moved_again += moves_again(tmp_path)
            reached, out = low(), written(tmp_path)
            assert reached <= lowwater.Watermark.of(at(hour + 1))
            assert all(expected[window] == count for window, count in out.items()), (
                "a window was closed too early, or twice"
            )
            over = {window for window in expected if lowwater.Watermark.of(window[1]) < reached}
            assert over <= set(out), "the stage has passed an hour that is not written"
        assert moved_again, "no kill left a moved watermark to be read again: the reader was not put to the test"
        with job(python, tmp_path, authority.address):
            eventually(lambda: low() == lowwater.Watermark.of(at(hours.stop)), "it has caught up", seconds=PATIENCE)
            complete = Counter({(key, t): count for (key, t), count in expected.items() if t < at(hours.stop)})
            assert written(tmp_path) == complete, "each hour that is over, whole and once"
            lease.finish()
            eventually(lambda: low().finished, "nothing will come", seconds=PATIENCE)
        assert written(tmp_path) == expected
