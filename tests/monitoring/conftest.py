"""The Spark session of tests/spark, for the panels about Spark jobs."""

from tests.spark.conftest import spark

__all__ = ["spark"]
