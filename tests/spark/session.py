"""The Spark of a test process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from scripts.jars import jars

QUICK = {
    "spark.python.daemon.module": "tests.spark.forked_workers",
    # The usual one asks for links by starting a program, seven times a batch and more. Both write the same files, whole, by a rename.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # An idle query asks its sources this often, and with Spark's own 10 ms that takes a sixth of a core and more, of each query that runs.
    "spark.sql.streaming.pollingDelay": "50ms",
}
"""Settings that halve the work of short queries and change nothing that they do. The usual ones run in tests/floors and on the cluster."""


STARTED = Path(__file__).with_name("started")


@contextmanager
def on_the_path(folder: Path) -> Iterator[None]:
    """Have what is started meanwhile, and all that it starts, look for modules in a folder first."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}" if before else str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def spark_session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session with its own settings, views, queries and listeners. All of a process share its Spark, which is stopped for one that wants another.

    PySpark forks with a function to run in the child, and so gRPC's threads, which the tests use by then, come back to life there. They abort when
    the child closes all files before it becomes the JVM. So it closes none: those that matter are closed by that itself.
    """
    # Workers are forked by a daemon of this interpreter: the executors need the same packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # A JVM takes them at its start only, so all have the connectors, which nothing loads that does not use them.
    connectors = os.pathsep.join(str(jar) for kind in ("kafka", "delta", "s3", "gcs") for jar in jars(kind))
    settings = {"spark.driver.extraClassPath": connectors, **settings}
    conf = SparkConf().setMaster(master).setAppName(name).setAll([*settings.items()])
    running = SparkContext._active_spark_context
    if running is not None and not {*conf.getAll()} <= {*running.getConf().getAll()}:
        running.stop()
    if SparkContext._gateway is None:
        with on_the_path(STARTED):
            gateway = launch_gateway(conf, {"close_fds": False})
        SparkContext(gateway=gateway, conf=conf)
    first = SparkSession.builder.config(conf=conf).getOrCreate()
    first.sparkContext.setLogLevel("OFF")
    # The new one is what is found by those that ask for the active session.
    SparkSession._instantiatedSession = None
    return first.newSession()
