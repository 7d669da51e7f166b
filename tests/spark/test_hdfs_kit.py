"""The HDFS that tests of checkpoints run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.kit.hdfs import RETRIES, Hdfs
from tests.spark.support import Feed


def test_a_query_goes_on_from_its_checkpoint_after_a_kill(
    spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path
) -> None:
    rows = feed("in")
    spark.conf.set(*RETRIES)
    with Hdfs(tmp_path / "hdfs").start() as hdfs:
        out, checkpoint = hdfs.path("out"), hdfs.path("checkpoint")
        writer = (
            spark.readStream.schema("n long")
            .json(str(rows.folder))
            .writeStream.option("checkpointLocation", checkpoint)
        ).trigger(availableNow=True)

        rows.put([{"n": 1}])
        writer.start(out, format="parquet").awaitTermination()
        hdfs.kill()
        hdfs.start()
        rows.put([{"n": 2}])
        writer.start(out, format="parquet").awaitTermination()

        assert sorted(row.n for row in spark.read.parquet(out).collect()) == [1, 2]
        commits = spark.read.text(f"{checkpoint}/commits").inputFiles()
        assert sorted(commit.rsplit("/", 1)[1] for commit in commits) == ["0", "1"]
