"""A Spark session per module: small, and one JVM for the whole run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.support import SETTINGS, Feed


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Workers are forked by a daemon of this interpreter: the executors need the same packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,3]").appName("lowwater-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def feed(tmp_path: Path) -> Callable[[str], Feed]:
    """Makes directories that records are dropped into, as files that appear whole."""
    return lambda name="in": Feed(tmp_path / name)
