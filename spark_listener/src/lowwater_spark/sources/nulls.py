"""Null columns for rows that a stage adds to a stream, like the control row of a driven frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField

__all__ = ["nulls_of"]


def nulls_of(fields: Iterable[StructField]) -> list[Column]:
    """Return a column for each field, with its name and type, that is null in every row.

    Spark's optimiser must not know that they are null. It plans each batch anew, and a batch may
    have the added row on one side of a join and data on the other. From a literal null it would
    infer that no row of the other side has a match, and filter those rows out before the join has
    stored them: their matches in later batches would be lost, without a trace. So each null is read
    from an array at an index that depends on the partition. Spark takes that for not deterministic,
    evaluates it row by row, and infers nothing from it.
    """
    from pyspark.sql import functions as sf

    index = sf.spark_partition_id()
    return [sf.get(sf.array(sf.lit(None).cast(field.dataType)), index).alias(field.name) for field in fields]
