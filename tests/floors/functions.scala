// Stateful functions in Scala, which PySpark cannot write. FOLDER is in the environment.
import java.sql.Timestamp
import org.apache.spark.sql.Dataset
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode, Trigger}
import spark.implicits._

case class Event(key: String, t: Timestamp)
case class Seen(n: Long)

val folder = sys.env("FOLDER")
val events = spark.readStream.schema("key string, t timestamp").json(folder + "/in").withWatermark("t", "20 minutes").as[Event].groupByKey(_.key)

def run(name: String, rows: Dataset[String], mode: String): Unit =
  rows.writeStream.format("noop").outputMode(mode).option("checkpointLocation", folder + "/" + name).trigger(Trigger.AvailableNow).start().awaitTermination()

run("flatMapGroupsWithState", events.flatMapGroupsWithState[Seen, String](OutputMode.Append, GroupStateTimeout.EventTimeTimeout)((key, _, _) => Iterator(key)), "append")
run("mapGroupsWithState", events.mapGroupsWithState[Long, String](GroupStateTimeout.NoTimeout)((key, _, _) => key), "update")
System.exit(0)
