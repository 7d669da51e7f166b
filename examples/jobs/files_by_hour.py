"""Files by hour: two shops put files into a folder, and Spark adds up each hour that is complete.

Start `lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/files_by_hour.py
It reads the files that are there, and ends; run it again when there are more, for example by cron.
You will see two hours, and who holds the next one: rome has sold until 13:40, but paris has not.
To run it for ever, leave out each `trigger` and the first `await_termination()`. Both queries run
side by side then, and the second `query.await_termination()` does not end.
"""

import json
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws

FOLDER = Path("files_by_hour").absolute()
CHECKPOINTS = FOLDER / "checkpoints"
SALES = {"rome": {"09:05": 250, "10:40": 120, "13:40": 80}, "paris": {"09:50": 300, "11:20": 990}}
ONCE = {"availableNow": True}


def deliver(shop: str) -> None:
    """Put a whole file into the folder, by a rename: Spark reads every file that it sees."""
    rows = [{"shop": shop, "at": f"2013-01-09T{clock}:00Z", "cents": cents} for clock, cents in SALES[shop].items()]
    part = FOLDER / f"{shop}.part"
    part.write_text("\n".join(map(json.dumps, rows)))
    part.rename(FOLDER / "in" / f"{shop}.json")


if __name__ == "__main__":
    with lowwater.connect() as lw:
        lw.topology()  # without an authority it ends here, in seconds
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    if not (FOLDER / "in").exists():
        (FOLDER / "in").mkdir(parents=True)
        for shop in SALES:
            deliver(shop)
    sales = spark.readStream.schema("shop string, at timestamp, cents long").json(str(FOLDER / "in"))

    # How far are the shops? The order of the rows tells: a row of a shop is at most ten minutes
    # older than any row of this shop before it. This query writes nothing.
    source = lws.injector(
        spark, "sales", key="shop", event_time="at", disorder=timedelta(minutes=10), producer="shop", producers=[*SALES]
    )
    query = source.foreach_batch(sales, lambda rows, batch: None, checkpoint=CHECKPOINTS / "sales", trigger=ONCE)
    query.await_termination()
    held_by = ", ".join(query.stage_status().waiting_for)

    # The sums. `drive` takes the place of `withWatermark`: an hour waits for all shops.
    stage = lws.stage(spark, "hourly", inputs=["sales"], key="shop", event_time="at", stamp=sf.col("hour"))
    sums = stage.drive(sales).groupBy(sf.window("at", "1 hour"), "shop").agg(sf.sum("cents").alias("cents"))
    hours = sums.select(sf.col("window.start").alias("hour"), "shop", "cents")
    query = stage.start(
        hours, checkpoint=CHECKPOINTS / "hourly", format="parquet", path=FOLDER / "hourly", trigger=ONCE
    )
    query.await_termination()

    with lowwater.connect() as lw:
        print(f"hourly is complete until {lw.get('hourly')['hourly'].low}, and sales waits for {held_by}")
    spark.read.parquet(str(FOLDER / "hourly")).sort("hour", "shop").show()
