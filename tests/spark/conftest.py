"""A Spark session per module, in one small Spark for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

import lowwater
from tests.kit import delta
from tests.kit.gcs import Gcs
from tests.kit.s3 import S3
from tests.process.serving import Serving, serving
from tests.spark.flow import Flow
from tests.spark.queries import Queries
from tests.spark.session import QUICK, spark_session
from tests.spark.support import SETTINGS, Feed, Upstream

if TYPE_CHECKING:
    from tests.kit.kafka import Kafka
    from tests.spark.connect import ConnectServer


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Delta is there for all: a module that wants other settings of the Spark itself has it stopped and started.
    session = spark_session("lowwater-tests", "local[2,3]", SETTINGS | QUICK | delta.SETTINGS)
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    from tests.kit.kafka import Kafka  # the environment of tests/iceberg has no client of Kafka

    with Kafka(tmp_path_factory.mktemp("kafka"), settings={"log.cleaner.backoff.ms": 100}) as running:
        yield running


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """Run a server of Spark Connect for all tests, beside the Spark of this process. A test that kills it starts it again."""
    from tests.spark.connect import connect_server  # nor of Spark Connect

    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture(scope="module")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")).start() as running:
        for name, value in running.settings.items():
            spark.conf.set(name, value)
        yield running


@pytest.fixture(scope="module")
def gcs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcs]:
    with Gcs(tmp_path_factory.mktemp("gcs")).start() as running:
        for name, value in running.settings.items():
            spark.conf.set(name, value)
        yield running


@pytest.fixture
def feed(tmp_path: Path) -> Callable[[str], Feed]:
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


@pytest.fixture
def flow(request: pytest.FixtureRequest, spark: SparkSession, authority: Serving, tmp_path: Path) -> Iterator[Queries]:
    """Make what the module names by ``FLOW``; without it a feed, and stages with functions over it."""
    queries: Queries = getattr(request.module, "FLOW", Flow)(spark, authority.address, tmp_path)
    yield queries
    queries.stop()
