import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.functions.{col, from_json}
import org.apache.spark.sql.types.StructType

/** A job of somebody else's: it copies a topic into files, and knows nothing of watermarks. */
object Copy {
  def main(arguments: Array[String]): Unit = {
    val Array(brokers, topic, output, checkpoint) = arguments
    val row = StructType.fromDDL("number LONG, key STRING, t TIMESTAMP")
    SparkSession.builder.getOrCreate().readStream
      .format("kafka")
      .option("kafka.bootstrap.servers", brokers)
      .option("subscribe", topic)
      .option("startingOffsets", "earliest")
      .option("kafka.isolation.level", "read_committed")
      .load()
      .select(from_json(col("value").cast("string"), row).as("row"))
      .select("row.*")
      .writeStream
      .format("parquet")
      .option("path", output)
      .option("checkpointLocation", checkpoint)
      .start()
      .awaitTermination()
  }
}
