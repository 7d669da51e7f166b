"""A Spark session per module: small, and one JVM for the whole run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lowwater
from tests.process.serving import Serving, serving
from tests.spark.support import SETTINGS, Feed, Upstream


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

    def make(name: str) -> Feed:
        return Feed(tmp_path / name)

    return make


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "authority").mkdir()
    with serving(tmp_path / "authority") as server:
        yield server


@pytest.fixture
def lw(authority: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(authority.address) as client:
        yield client


@pytest.fixture
def upstream(lw: lowwater.Client) -> Upstream:
    return Upstream(lw)
