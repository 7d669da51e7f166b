"""Iceberg's runtime is made for the Spark before the one of `uv.lock`: these tests run in an environment of their own, by `tests/floors/test_iceberg.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.iceberg.table import TableFlow
from tests.kit import iceberg
from tests.spark.conftest import authority, feed, flow, lw, upstream
from tests.spark.flow import Flow
from tests.spark.session import QUICK, spark_session
from tests.spark.support import SETTINGS

__all__ = ["authority", "feed", "flow", "lw", "upstream"]

HERE = pyspark.__version__.startswith("4.1.")

if not HERE:
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Let PySpark leave the connections of its threads to be closed by the garbage collection."""
    if HERE:
        config.addinivalue_line("filterwarnings", "ignore:.*<socket.socket:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    options = SETTINGS | QUICK | iceberg.settings(tmp_path_factory.getbasetemp() / "warehouse")
    session = spark_session("lowwater-iceberg", "local[2,3]", options)
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture
def table(flow: Flow) -> Iterator[TableFlow]:
    table_ = TableFlow(flow)
    yield table_
    table_.flow.stop()
    table_.drop()
