"""Spark of a region: hours of all clicks, own and mirrored, which close by both low watermarks.

python -m examples.regions.pipeline SETUP REGION

It goes on from its checkpoint after a kill. It knows nothing of owners: in the region that stands
by it does the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lowwater_spark as lws
from examples.regions.setup import CLICKS, MIRROR, MIRRORED, READY, SOURCE, WINDOWS, Setup
from examples.session import QUICK, spark_session
from scripts.jars import jars
from tests.spark.session import QUICK as LEAN


def closed(folder: Path) -> Path:
    """Return where the hours of a region are, as Spark has closed them."""
    return folder / "windows"


def main(setup: Setup, region: str) -> None:
    """Run until the query ends."""
    place = setup.regions[region]
    from pyspark.sql import functions as sf

    settings = {
        **QUICK,
        **LEAN,
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars("kafka")),
        "spark.local.dir": str(place.folder / "spark"),
    }
    with spark_session(f"regions {region}", place.folder, settings) as spark:
        options = {
            "kafka.bootstrap.servers": place.broker,
            "subscribe": f"{CLICKS},{MIRRORED}",
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "lowwater.brokers": "1",
        }
        rows = spark.readStream.format("kafka").options(**options).load()
        source = sf.expr(f"cast(filter(headers, h -> h.key = '{SOURCE}')[0].value as string)")
        home = sf.from_json(source, "array<string>")
        clicks = rows.select(
            sf.from_json(sf.col("value").cast("string"), "id long, at timestamp").alias("click"),
            # By source coordinates: the offset of a copy is another one.
            sf.when(home.isNull(), sf.col("offset")).alias("own"),
            home[1].cast("long").alias("others"),
        ).select("click.*", "own", "others")
        stage = lws.stage(
            spark,
            WINDOWS,
            inputs=[CLICKS, MIRROR],
            key="start",
            event_time="at",
            ranges=1,
            heuristics=(),
            stamp=sf.col("start"),
            address=place.authority,
        )
        # A set: a client whose acknowledgement was lost with a region says its click again in the
        # other one.
        hours = (
            stage.drive(clicks)
            .groupBy(sf.window("at", "1 hour"))
            .agg(
                sf.sort_array(sf.collect_set("id")).alias("ids"),
                (sf.max("own") + 1).alias("own"),
                (sf.max("others") + 1).alias("others"),
            )
            .select(sf.col("window.start").alias("start"), "ids", "own", "others")
        )

        folder = closed(place.folder)
        query = stage.start(hours, checkpoint=place.folder / "checkpoint", format="parquet", path=folder)
        print(READY, flush=True)
        query.await_termination()


if __name__ == "__main__":
    main(Setup.read(Path(sys.argv[1])), sys.argv[2])
