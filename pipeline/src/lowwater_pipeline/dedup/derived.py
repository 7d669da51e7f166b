"""Ids for records that have none, derived from their origin (MillWheel 6.1.1).

A sender that runs again derives the same ids. An id depends on its columns only: 16 bytes of a
SHA-256, so that two records share one by chance once in 2^64 records. If a part is null, the id is
null, and :class:`~lowwater_pipeline.dedup.stage.Deduplication` refuses the record; likewise for a
text that is not valid UTF-8, since several such texts would look alike. So leave keys of bytes
binary. No part may be a floating-point number, because its text depends on Java's version.

The program must make the same records of the same input. If it uses a random number, a clock, or an
order that Spark does not promise, a record's place identifies nothing. Such a sender first writes
its records (``batch.write``), and sends them from there, with :func:`staged_id`.

Needs PySpark. Every function returns a column and costs a hash a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lowwater_spark.sources.kafka.marks import same_id

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["pane_id", "record_id", "staged_id"]

_FILE: Final = r"([^/]+/[^/]+)$"
"""The batch's directory and the file in it; the path before them may change."""

_AS_TEXT: Final = {
    # Times are written in UTC, to the microsecond, whatever zone the session has.
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
_NO_UTF8: Final = "\ufffd"
"""The character that Java makes of bytes that are no UTF-8."""


def record_id(stage: str, lives: Mapping[str, str], *, index: str | Column | None = None) -> Column:
    """Return the id of a record that a deterministic program makes of a row from Kafka.

    Args:
        stage: Name of the program. Give it a new name when it changes so that it makes other
            records of the same rows.
        lives: The id of each topic by name, as ``kafka-topics.sh --describe`` or librdkafka spells
            it, because a topic that is made anew counts its offsets from 0 again. A row of another
            topic has no id.
        index: Position among the records made of one row (``posexplode``), the same in each run;
            None when a row makes one record.

    The frame needs the columns ``topic``, ``partition`` and ``offset`` of Spark's source. Raises
    ValueError without a topic.
    """
    from pyspark.sql import functions as sf

    if not lives:
        msg = "lives has the id of each topic by its name; without one no row has an id"
        raise ValueError(msg)
    life_of = sf.create_map(*(sf.lit(pair) for name, life in sorted(lives.items()) for pair in (name, same_id(life))))
    place = [sf.try_element_at(life_of, sf.col("topic")), sf.col("partition"), sf.col("offset")]
    return _digest("record", sf.lit(stage), *place, *([] if index is None else [_column(index)]))


def pane_id(stage: str, window: str | Column, *key: str | Column, pane: str | Column | None = None) -> Column:
    """Return the id of an aggregation's result: stage, window, key and pane.

    Args:
        stage: Name of the stage. Give it a new name to have results for windows that it has sent
            before count as new.
        window: The window's start or end, or the window.
        key: The aggregation's other grouping columns.
        pane: What tells several results of a window apart, the same in each run, such as the batch.
    """
    from pyspark.sql import functions as sf

    parts = [window, *key, *([] if pane is None else [pane])]
    return _digest("pane", sf.lit(stage), *map(_column, parts))


def staged_id(stage: str) -> Column:
    """Return the id of a row that a stage wrote with ``batch.write``, read from there as Parquet.

    It is made of batch, file and place in the file. So the directories may be moved, but not
    written anew. ``stage`` names the stage and its life: a new checkpoint counts batches from 0.
    """
    from pyspark.sql import functions as sf

    place = sf.regexp_extract(sf.col("_metadata.file_path"), _FILE, 1)
    return _digest("staged", sf.lit(stage), place, sf.col("_metadata.row_index"))


def _column(column: str | Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(column) if isinstance(column, str) else column


def _digest(kind: str, *parts: Column) -> Column:
    """Hash parts with their borders: ("a", "bc") differs from ("ab", "c").

    The hash is null when a part is null, or has a text that is not UTF-8.
    """
    from pyspark.sql import functions as sf

    fields = [sf.lit(kind).alias("0"), *(part.alias(str(number)) for number, part in enumerate(parts, 1))]
    text = sf.to_json(sf.struct(*fields), _AS_TEXT)
    whole = ~sf.contains(text, sf.lit(_NO_UTF8))
    for part in parts:
        whole &= part.isNotNull()
    return sf.when(whole, sf.unhex(sf.substring(sf.sha2(text, 256), 1, 32)))
