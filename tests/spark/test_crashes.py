"""kill -9 of a driver, its JVM and its workers at every step of a batch; a new run goes on from the checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lowwater
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.sources import bookmarks
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.crash_driver import ANY
from tests.spark.support import Feed, Upstream, low, row

ROOT = Path(__file__).parents[2]


class Crashes:
    """The feed, the driver's process, and what may be published at any moment."""

    name = "hourly"
    plain = False
    keep = False

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.feed = Feed(folder / "in")
        self.put_so_far: list[tuple[str, int]] = []
        self.driver: subprocess.Popen[bytes] | None = None
        self.wrong: list[str] = []
        self.seen: list[lowwater.Watermark] = []

    def put(self, *rows: tuple[str, int]) -> None:
        self.put_so_far += rows
        self.feed.put(row(key, hour) for key, hour in rows)

    def run(self, point: str = "", batch: int = -1) -> None:
        """Start a driver that will crash at this step."""
        command = [sys.executable, "-m", "tests.spark.crash_driver", json.dumps(self.arguments(point, batch))]
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def arguments(self, point: str, batch: int) -> dict[str, object]:
        """What the driver is told."""
        told: dict[str, object] = {"address": self.address, "folder": str(self.folder), "point": point, "batch": batch}
        return told | {"plain": self.plain, "keep": self.keep}

    def crashed(self) -> None:
        """Wait until the driver has killed itself."""
        assert self.driver is not None
        assert self.driver.wait(200) == -signal.SIGKILL, (self.folder / "driver.log").read_text()[-3000:]
        eventually(lambda: not _group_lives(self.driver.pid if self.driver else 0), "its JVM is gone as well")

    def check(self) -> None:
        """Fail when the driver has ended, which was to live."""
        assert self.driver is not None
        assert self.driver.poll() is None, (self.folder / "driver.log").read_text()[-3000:]

    def kill(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait(30)

    def written(self) -> list[tuple[str, str, int]]:
        """All windows that readers can see."""
        found = []
        for file in sorted(self.folder.glob("out/batch=*/*.parquet")):
            found += [(f"{w['hour']:%H:%M}", w["key"], w["n"]) for w in pq.read_table(file).to_pylist()]
        return sorted(found)

    def lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()

    def follow(self, reader: lowwater.Client) -> None:
        """Whatever is published: the windows before it are all written, by a committed batch, and the value never goes down."""
        for view in reader.watch(self.name):
            self.seen.append(view.low)
            last = CheckpointLog(self.folder / "ck").last_committed()
            below = [(key, hour) for key, hour in self.put_so_far if view.low > lowwater.Watermark.of(at(hour))]
            if not view.low.unknown and last is None:
                self.wrong.append(f"{view.low} before any batch was committed")
            missing = self.missing(below)
            if missing:
                self.wrong.append(f"{view.low} is published, but {missing} is not written")

    def missing(self, below: list[tuple[str, int]]) -> set[tuple[str, str]] | set[tuple[str, int]]:
        """The windows of some rows that nobody can read yet."""
        return {(f"{hour:02}:00", key) for key, hour in below} - {(hour, key) for hour, key, _ in self.written()}


class PlainCrashes(Crashes):
    """The same with a plain query and Spark's own file sink: what goes in comes out."""

    name = "rows"
    plain = True

    def missing(self, below: list[tuple[str, int]]) -> set[tuple[str, str]] | set[tuple[str, int]]:
        """The rows that stand in no committed batch yet."""
        return set(Counter(below) - Counter(self.rows()))

    def rows(self) -> list[tuple[str, int]]:
        """The rows of committed batches, by the sink's log, as Spark's readers find them."""
        last = CheckpointLog(self.folder / "ck").last_committed()
        found = []
        for batch in range(0 if last is None else last + 1):
            _, *entries = (self.folder / "out/_spark_metadata" / str(batch)).read_text().splitlines()
            for path in (json.loads(entry)["path"].removeprefix("file://") for entry in entries):
                found += [(row["key"], row["t"].hour) for row in pq.read_table(path).to_pylist()]
        return sorted(found)


class KeepingCrashes(Crashes):
    """A stage that removes what it has handed over, and one that reads and copies it."""

    name = "rows"
    keep = True

    def left(self, number: int) -> int:
        """How many files a batch has."""
        return len(list(self.folder.glob(f"out/batch={number}/*.parquet")))

    def removed(self) -> bookmarks.Removed:
        return bookmarks.removed(str(self.folder / "out"))

    def copied(self) -> list[tuple[str, int]]:
        tables = [pq.read_table(file) for file in self.folder.glob("copy/batch=*/*.parquet")]
        return sorted((row["key"], row["t"].hour) for table in tables for row in table.to_pylist())


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def crashes(tmp_path: Path, authority: Serving) -> Iterator[Crashes]:
    made = Crashes(tmp_path, authority.address)
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.long)])
def test_rule6_a_driver_killed_at_every_step_of_a_batch(
    crashes: Crashes, lw: lowwater.Client, upstream: Upstream, steps: int
) -> None:
    """Where a kill shows most: its output written and not committed, and committed and not told. With three also before it has written.

    Without a kill, a batch that ends before it has written anything is in test_stage.py.
    """
    lw.register("hourly", inputs=["source"], key_hash="xxhash64")
    reader = lowwater.connect(crashes.address)
    follower = threading.Thread(target=crashes.follow, args=[reader])
    follower.start()

    crashes.put(("a", 9), ("b", 9), ("c", 10))
    upstream.at(9, 30)
    if steps == 3:
        # Batch 0 has built its state with W=9:30, and written nothing, when its driver dies.
        crashes.run("state", 0)
        crashes.crashed()
        assert not (crashes.folder / "out").exists()
        # Meanwhile W passes both hours. S5: the replay must not see it, or it would close windows in a batch that is done.
        crashes.put(("a", 10))
        upstream.at(12)
    crashes.run("prepared", 0)
    crashes.crashed()
    if steps == 2:
        # The same of the replay of what is written.
        crashes.put(("a", 10))
        upstream.at(12)
    assert [path.name for path in (crashes.folder / "out").glob("batch=*")] == ["batch=0"]
    # The authority has batch 0 prepared, and Spark has not committed it: the claim of the next run must not apply it.
    # S6: batch 0 is replayed over its own output, and dies when Spark's commit log has it and the authority has not.
    crashes.run("committed", 0)
    crashes.crashed()
    assert CheckpointLog(crashes.folder / "ck").last_committed() == 0
    replayed = ["0 2013-01-09T09:30:00Z True"] * (steps - 1)
    assert crashes.lines("lows") == ["0 2013-01-09T09:30:00Z False", *replayed]
    assert low(lw, "hourly").unknown
    # The next run takes batch 0 as committed, without a word from the old one.
    crashes.run()
    eventually(lambda: low(lw, "hourly") == mark(12), "everything is written", check=crashes.check)
    crashes.kill()
    reader.close()
    follower.join()

    assert crashes.wrong == []
    assert crashes.seen == sorted(crashes.seen)
    assert crashes.written() == [("09:00", "a", 1), ("09:00", "b", 1), ("10:00", "a", 1), ("10:00", "c", 1)]


@pytest.fixture
def plain_crashes(tmp_path: Path, authority: Serving) -> Iterator[PlainCrashes]:
    made = PlainCrashes(tmp_path, authority.address)
    yield made
    made.kill()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rule6_a_driver_of_a_plain_query_killed_before_and_after_its_commit_and_while_idle(
    plain_crashes: PlainCrashes, lw: lowwater.Client, upstream: Upstream
) -> None:
    """No row is lost or doubled, and no watermark is ahead of committed data, wherever the driver dies."""
    crashes, log = plain_crashes, CheckpointLog(plain_crashes.folder / "ck")
    lw.register("rows", inputs=["source"], key_hash="xxhash64")
    reader = lowwater.connect(crashes.address)
    follower = threading.Thread(target=crashes.follow, args=[reader])
    follower.start()

    # Batch 0 is planned, with all that W=10 covers, when its driver dies.
    crashes.put(("a", 9), ("b", 9))
    upstream.at(10)
    crashes.run("planned", 0)
    crashes.crashed()
    assert log.last_committed() is None
    # Meanwhile W passes a row that came too late for that plan: the replay of batch 0 must not count on it.
    crashes.put(("c", 10))
    upstream.at(11)
    # Its rows can be read, and Spark has not committed it. The step is short: a driver that was killed too late is sent out again.
    batch = 0
    crashes.run("written", batch)
    crashes.crashed()
    while log.committed(batch):
        batch += 1
        assert batch < 5, "no driver died between the sink's commit and Spark's"
        crashes.put(("more", 10))
        crashes.run("written", batch)
        crashes.crashed()
    # The sink knows the batch that it has, and writes it no second time. The next one is committed by Spark, and nobody has been told.
    crashes.put(("d", 11))
    upstream.at(12)
    crashes.run("committed", batch + 1)
    crashes.crashed()
    assert log.committed(batch + 1)
    assert low(lw, "rows") < lowwater.Watermark.of(at(12))
    crashes.run()
    eventually(
        lambda: low(lw, "rows") == mark(12), "what W covers is in committed batches", seconds=200, check=crashes.check
    )
    # While it is idle, with nothing to read and everything told.
    crashes.kill()
    crashes.put(("e", 12))
    upstream.at(13)
    crashes.run()
    eventually(lambda: low(lw, "rows") == mark(13), "it goes on from there", seconds=200, check=crashes.check)
    crashes.kill()
    reader.close()
    follower.join()

    assert crashes.wrong == []
    assert crashes.seen == sorted(crashes.seen)
    assert crashes.rows() == sorted(crashes.put_so_far)


@pytest.fixture
def keeping_crashes(tmp_path: Path, authority: Serving) -> Iterator[KeepingCrashes]:
    made = KeepingCrashes(tmp_path, authority.address)
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_removal_a_driver_killed_in_the_middle_of_a_batch_that_is_removed(
    keeping_crashes: KeepingCrashes, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Its note says what may be gone, the next run removes the rest, and the reader has each row once."""
    crashes = keeping_crashes

    def goes_on(minute: int) -> None:
        """A row comes; the reader has it, unless the driver dies before."""
        crashes.put((f"row{minute}", 9))
        upstream.at(10, minute)
        here, reached = crashes.driver, lowwater.Watermark.of(at(10, minute))
        assert here is not None
        eventually(
            lambda: low(lw, "copy") == reached or here.poll() is not None, f"the reader has row {minute}", seconds=200
        )

    crashes.put(("a", 9), ("b", 9), ("c", 9))
    upstream.at(10)
    crashes.run("removed", ANY)
    minutes = iter(range(1, 60))
    while crashes.driver is not None and crashes.driver.poll() is None:
        goes_on(next(minutes))
    crashes.crashed()
    cut = crashes.removed()
    assert cut.through > cut.cleared
    assert crashes.left(0) < 3, "a part of the first batch is gone"

    crashes.run()
    while crashes.removed().cleared < cut.through:
        goes_on(next(minutes))
    goes_on(next(minutes))
    crashes.kill()
    assert [crashes.left(n) for n in range(cut.through + 1)] == [0] * (cut.through + 1)
    assert crashes.copied() == sorted(crashes.put_so_far)
