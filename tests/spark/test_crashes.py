"""kill -9 of a driver, its JVM and its workers; a new run goes on from the checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.support import SETTINGS, Feed, Upstream, low, row
from tests.spark.updates import HOURLY, hourly

ROOT = Path(__file__).parents[2]


class Crashes:
    """The feed, the driver's process, and what may be published at any moment."""

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
        told = {"address": self.address, "folder": str(self.folder), "point": point, "batch": batch}
        command = [sys.executable, "-m", __name__, json.dumps(told)]
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

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

    def follow(self, reader: lowwater.Client) -> None:
        """Whatever is published: the windows before it are all written, by a committed batch, and the value never goes down."""
        for view in reader.watch("hourly"):
            self.seen.append(view.low)
            last = CheckpointLog(self.folder / "ck").last_committed()
            below = [(key, hour) for key, hour in self.put_so_far if view.low > lowwater.Watermark.of(at(hour))]
            if not view.low.unknown and last is None:
                self.wrong.append(f"{view.low} before any batch was committed")
            written = {(hour, key) for hour, key, _ in self.written()}
            missing = {(f"{hour:02}:00", key) for key, hour in below} - written
            if missing:
                self.wrong.append(f"{view.low} is published, but {missing} is not written")


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
def test_rule6_a_driver_killed_between_the_commit_and_the_report(
    crashes: Crashes, lw: lowwater.Client, upstream: Upstream
) -> None:
    lw.register("hourly", inputs=["source"], key_hash="xxhash64")
    reader = lowwater.connect(crashes.address)
    follower = threading.Thread(target=crashes.follow, args=[reader])
    follower.start()

    crashes.put(("a", 9), ("b", 9), ("c", 10))
    upstream.at(9, 30)
    # It dies when Spark's commit log has batch 0 and the authority has it prepared alone.
    crashes.run("committed", 0)
    crashes.crashed()
    assert CheckpointLog(crashes.folder / "ck").last_committed() == 0
    assert low(lw, "hourly").unknown
    crashes.put(("a", 10))
    upstream.at(12)
    # The next run takes batch 0 as committed, without a word from the old one.
    crashes.run()
    eventually(lambda: low(lw, "hourly") == mark(12), "everything is written", check=crashes.check)
    crashes.kill()
    reader.close()
    follower.join()

    assert crashes.wrong == []
    assert crashes.seen == sorted(crashes.seen)
    assert crashes.written() == [("09:00", "a", 1), ("09:00", "b", 1), ("10:00", "a", 1), ("10:00", "c", 1)]


def main(address: str, folder: str, point: str, batch: int) -> None:
    """Drive a query that kills itself, its JVM and its workers at a step of a batch."""
    builder = SparkSession.builder.master("local[2]").appName("crash")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    base = Path(folder)
    stream = spark.readStream.schema("key string, t timestamp").json(str(base / "in"))

    def probe(reached: str, number: int) -> None:
        if (reached, number) == (point, batch):
            os.killpg(0, signal.SIGKILL)

    def write_batch(rows: DataFrame, current: lws.Batch) -> None:
        current.write(current.stateful(rows, hourly, HOURLY), base / "out")

    hours = timedelta(hours=1)
    stage = lws.stage(
        spark, "hourly", inputs=["source"], key="key", event_time="t", ranges=4, stamp=hours, address=address
    )
    stage.foreach_batch(stream, write_batch, checkpoint=base / "ck", probe=probe).await_termination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
