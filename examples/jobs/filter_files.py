"""A filter that you already have, tracked: it copies the large sales that upload.py brings in.

Start `lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/upload.py 09 && lowwater promise sales --until 2013-01-09T10:00Z
    python examples/jobs/filter_files.py
It copies what is there, and ends. You will see one sale, and that all until ten are copied. Upload
and promise the next hour, as upload.py says, and run it again: that also is how cron runs it.
"""

from pathlib import Path

from pyspark.sql import SparkSession

import lowwater
import lowwater_spark as lws

FOLDER = Path("filter_files").absolute()

if __name__ == "__main__":
    with lowwater.connect() as lw:
        lw.topology()  # ends here, and not in Spark, if there is no authority
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    sales = spark.readStream.schema("shop string, at timestamp, cents long").json(str(FOLDER / "in"))
    writer = (
        sales.where("cents >= 100")
        .writeStream.format("parquet")
        .option("path", str(FOLDER / "large"))
        .option("checkpointLocation", str(FOLDER / "checkpoint"))
        .trigger(availableNow=True)  # leave this out, and it runs for ever
    )
    stage = lws.stage(spark, "large", inputs=["sales"], key="shop", event_time="at")
    query = stage.start(writer)  # in place of writer.start()
    query.await_termination()

    with lowwater.connect() as lw:
        print(f"large is complete until {lw.get('large')['large'].low}")
    spark.read.parquet(str(FOLDER / "large")).sort("at").show()
