"""The Spark session of a test process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession


def spark_session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session; the JVM is launched by the first one of this process.

    PySpark forks with a function to run in the child, and so gRPC's threads, which the tests use by then, come back to life there. They abort when
    the child closes all files before it becomes the JVM. So it closes none: those that matter are closed by that itself.
    """
    # Workers are forked by a daemon of this interpreter: the executors need the same packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf().setMaster(master).setAppName(name).setAll([*settings.items()])
    if SparkContext._gateway is None:
        SparkContext(gateway=launch_gateway(conf, {"close_fds": False}), conf=conf)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
