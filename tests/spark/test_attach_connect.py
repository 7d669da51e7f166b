"""attach() from a Spark Connect client, against a real Connect server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

import lowwater
import lowwater_spark as lws
from tests.kit.eventually import eventually
from tests.kit.program import run_program
from tests.process.serving import Serving
from tests.spark.support import SETTINGS, Feed, row

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_watermarks_arrive_from_a_connect_client(authority: Serving, tmp_path: Path) -> None:
    command = [sys.executable, "-m", __name__, authority.address, str(tmp_path)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("LOWWATER", "SPARK_"))}
    done = run_program(command, cwd=ROOT, env=environ, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "low": "2013-01-09T11:50:00Z",
        "estimated": True,
        "state": "UNOWNED",
        "rows": 4,
        "late_rows": 2,
        "swallowed": 0,
    }


def main(address: str, folder: Path) -> None:
    """Run a query in a process of its own: Spark Connect and a classic session do not go together in one."""
    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        if name.startswith(("spark.sql.", "spark.driver.extraJava")):
            builder = builder.config(name, value)
    spark = builder.config("spark.lowwater.address", address).getOrCreate()
    attachment = lws.attach(spark)
    assert lws.attach(spark) is attachment
    feed = Feed(folder / "in")
    feed.put([row("fast", 12), row("slow", 9)])
    rows = spark.readStream.schema("key string, t timestamp").json(str(feed.folder)).withWatermark("t", "10 minutes")
    counts = rows.groupBy(window("t", "1 hour")).count()
    writer = counts.writeStream.format("noop").queryName("hourly").option("checkpointLocation", str(folder / "ck"))
    query = writer.start()
    with lowwater.connect(address) as lw:
        eventually(lambda: not lw.get("spark.hourly")["spark.hourly"].low.unknown, "published", seconds=100)
        feed.put([row("slow", 7), row("slow", 8)])
        eventually(lambda: attachment.status().query("hourly").late_rows, "the late rows are counted", seconds=100)
        query.stop()
        eventually(lambda: attachment.status().query("hourly").state == "ended", "the end is seen", seconds=100)
        attachment.stop()
        view = lw.get("spark.hourly")["spark.hourly"]
    progress = attachment.status().query("hourly")
    print(
        json.dumps(
            {
                "low": str(view.low),
                "estimated": view.estimated,
                "state": view.holder.state.name if view.holder is not None else "",
                "rows": progress.rows,
                "late_rows": progress.late_rows,
                "swallowed": attachment.status().swallowed,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
