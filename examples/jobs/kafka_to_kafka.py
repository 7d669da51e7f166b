"""Kafka to Kafka: count the clicks of a topic by page and hour, into another topic, each hour once.

It needs `pip install confluent-kafka`, and one broker: at localhost:9092, or named by BROKER. Start
`lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/kafka_to_kafka.py
It makes two topics and five clicks. Partition 1 is three hours behind, and all its clicks count.
You will see two rows, and who holds the next hours. Start a job of yours again on the same
checkpoints, always.
"""

import os
from datetime import timedelta
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws

FOLDER = Path("kafka_to_kafka").absolute()
BROKER = os.environ.get("BROKER", "localhost:9092")
KAFKA = {"kafka.bootstrap.servers": BROKER}
SETTINGS = {
    "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
CLICKS = [("a", "09:30", 0), ("a", "12:30", 0), ("b", "09:06", 1), ("b", "09:36", 1), ("b", "12:20", 1)]


def make_topics(spark: SparkSession) -> None:
    """Make the topics, and some clicks."""
    admin = AdminClient({"bootstrap.servers": BROKER})
    for topic in admin.create_topics([NewTopic("clicks", 2), NewTopic("click-counts", 1)]).values():
        topic.result()
    values = [(f'{{"page": "{page}", "at": "2013-01-09T{clock}:00Z"}}', number) for page, clock, number in CLICKS]
    rows = spark.createDataFrame(values, "value string, partition int")
    rows.write.format("kafka").options(topic="clicks", **KAFKA).save()


if __name__ == "__main__":
    with lowwater.connect() as lw:
        lw.topology()  # without an authority it ends here, in seconds
    spark = SparkSession.builder.config(map={**SETTINGS}).getOrCreate()
    make_topics(spark)
    topic = {"subscribe": "clicks", "startingOffsets": "earliest", "lowwater.brokers": "1", **KAFKA}
    rows = spark.readStream.format("kafka").options(**topic).load()
    click = sf.from_json(sf.col("value").cast("string"), "page string, at timestamp").alias("click")
    clicks = rows.select(click, "topic", "partition").select("click.*", "topic", "partition")

    # How far is the topic? A row is at most ten minutes older than any before it in its partition.
    source = lws.injector(spark, "clicks", key="page", event_time="at", disorder=timedelta(minutes=10))
    source.foreach_batch(clicks, lambda rows, batch: None, checkpoint=FOLDER / "clicks")

    # The counts. `drive` takes the place of `withWatermark`: an hour waits for all partitions.
    stage = lws.stage(spark, "click-counts", inputs=["clicks"], key="page", event_time="at", stamp=sf.col("hour"))
    counts = stage.drive(clicks.select("page", "at")).groupBy(sf.window("at", "1 hour"), "page").count()

    def write(hours: DataFrame, batch: lws.Batch) -> None:
        batch.write_kafka(hours.select(sf.to_json(sf.struct("*")).alias("value")), "click-counts", options=KAFKA)

    hours = counts.select(sf.col("window.start").alias("hour"), "page", "count")
    query = stage.foreach_batch(hours, write, checkpoint=FOLDER / "click-counts")

    with lowwater.connect() as lw:  # a job of yours runs on: query.await_termination()
        print(f"click-counts is complete until {lw.wait('click-counts', until='2013-01-09T12:00Z', timeout=300).low}")
        print(lw.why("click-counts").sentence)
    written = {"subscribe": "click-counts", "kafka.isolation.level": "read_committed", **KAFKA}
    spark.read.format("kafka").options(**written).load().selectExpr("string(value)").sort("value").show(truncate=False)
    for running in spark.streams.active:
        running.stop()
