"""A job in Scala that nobody has changed: compiled as it is, run by spark-submit, and tracked by the sidecar's command, through kills of either."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import lowwater
from lowwater.watermark import MAX
from tests.cluster.beside import SOURCE, Beside, Copying, compiled
from tests.cluster.oracle import Put, judge_rows
from tests.cluster.streams import CLASSPATH
from tests.cluster.watching import Watching
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka, Row
from tests.kit.times import at, micros
from tests.process.serving import serving
from tests.spark.support import Upstream

PATIENCE = 300.0
PARTITIONS = 2


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rule6_a_job_in_scala_is_tracked_from_beside(tmp_path: Path) -> None:
    """Whoever is killed, the watermark is never above a row that the job has not committed, and comes to what was promised. The job has no word of lowwater."""
    assert "lowwater" not in SOURCE.read_text(encoding="utf-8")
    (tmp_path / "authority").mkdir()
    puts: list[Put] = []
    with Kafka(tmp_path / "kafka") as kafka, serving(tmp_path / "authority") as server:
        kafka.create("rows", PARTITIONS)
        job = Copying(tmp_path, compiled(tmp_path), kafka.address, "rows", CLASSPATH)
        sidecar = Beside(tmp_path, job, kafka.address, "rows", CLASSPATH, server.address)

        kills: list[tuple[Copying | Beside, ...]] = [(), (sidecar,), (job,), (sidecar, job)]

        def put(hour: int) -> None:
            now = [Put(0.0, f"k{minute % 3}", micros(hour, minute), len(puts) + minute) for minute in range(20)]
            said = [
                {"number": each.number, "key": each.key, "t": at(hour, each.number % 20).isoformat()} for each in now
            ]
            rows = [Row(json.dumps(each).encode(), partition=place % PARTITIONS) for place, each in enumerate(said)]
            kafka.put("rows", rows)
            there = time.time()
            puts.extend(each._replace(at=there) for each in now)

        with lowwater.connect(server.address) as lw:
            upstream = Upstream(lw, "rows")
            watching = Watching(server.address, ["copied"])

            def running() -> None:
                job.check()
                sidecar.check()

            def reaches(hour: int) -> None:
                eventually(
                    lambda: watching.low("copied") >= micros(hour),
                    f"{hour} o'clock",
                    seconds=PATIENCE,
                    check=running,
                    seen=lambda: (watching.low("copied"), job.tail(), sidecar.tail()),
                )

            try:
                job.start()
                sidecar.start()
                for hour, killed in enumerate(kills, 9):
                    put(hour)
                    for each in killed:
                        each.kill()
                    upstream.at(hour + 1)
                    for each in killed:
                        each.start()
                    reaches(hour + 1)
                upstream.lease.finish()
                eventually(lambda: watching.low("copied") == MAX, "all is finished", seconds=PATIENCE)
            finally:
                job.kill()
                sidecar.kill()
                watching.stop()
        assert judge_rows(puts, job.output.written(), watching.seen["copied"], finished=True) == []
