"""Exact low watermarks of Spark Structured Streaming queries.

    import lowwater_spark as lws

    lws.attach(spark)                                # every query's own watermark, as an estimate

    stage = lws.stage(spark, "enriched", inputs=["flights"], key="tailnum", event_time="sched_dep")
    query = stage.foreach_batch(stream, write_batch, checkpoint="/data/checkpoints/enriched")

    def write_batch(rows, batch):                    # complete up to batch.low, with this batch
        batch.write(rows.join(airlines, "carrier"), "/data/enriched")

This release tracks and drives queries over files on a local (or NFS) file system, Kafka and Delta,
and tracks those over Iceberg. A query that it cannot track exactly is refused before it starts,
with the reason. Importing the package starts nothing and needs no PySpark.
"""

from lowwater.notebook import install
from lowwater_spark import notebook

# The package also has folders named attach, doctor, drive and track. Python binds each of these
# names to the folder when the folder is first imported: the import of ``notebook`` above has done
# that for three, and that of a function's own module does it before it binds the function. If a
# folder were first imported after its function, lws.track(...) would call a folder, and fail.
from lowwater_spark.attach.attachment import Attachment, AttachStatus, attach
from lowwater_spark.complete.mark import Completeness, OutputWriter
from lowwater_spark.complete.sql import register_function
from lowwater_spark.complete.through import complete_through
from lowwater_spark.doctor.examination import doctor
from lowwater_spark.doctor.report import Report
from lowwater_spark.drive.frame import drive
from lowwater_spark.drive.watermark import WatermarkLost
from lowwater_spark.errors import CheckpointMismatch, StateLost, Unsupported
from lowwater_spark.sidecar.watch import Sidecar, track
from lowwater_spark.stages import Stage, injector, stage
from lowwater_spark.track.query import TrackedQuery
from lowwater_spark.track.run.batch import Batch, Claimed
from lowwater_spark.track.run.status import KeyRange, Status
from lowwater_spark.track.state.update import Update, UpdateResult

__all__ = [
    "AttachStatus",
    "Attachment",
    "Batch",
    "CheckpointMismatch",
    "Claimed",
    "Completeness",
    "KeyRange",
    "Sidecar",
    "Stage",
    "StateLost",
    "Status",
    "TrackedQuery",
    "Unsupported",
    "Update",
    "UpdateResult",
    "WatermarkLost",
    "OutputWriter",
    "Report",
    "attach",
    "complete_through",
    "doctor",
    "drive",
    "injector",
    "register_function",
    "stage",
    "track",
]

install(notebook.LINES, notebook.HTML)
