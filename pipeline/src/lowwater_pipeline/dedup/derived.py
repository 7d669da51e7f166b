"""Ids for records that bring none, derived from where they come from: a sender that runs again derives the same ones (MillWheel 6.1.1).

Each is a function of its columns alone, 16 bytes of a SHA-256, so that two records have one id by chance once in 2^64 records. Where a part is null the id is null, and
:class:`~lowwater_pipeline.dedup.stage.Deduplication` refuses the record. So it is where a text is not valid UTF-8, since several such texts would look alike: leave keys of bytes binary. A part is no floating-point
number: how one is written depends on the version of Java.

An id is only as good as what makes the records: where a program would make *other* records of the same input, as with a random number, a clock or an order that Spark does
not promise, their places say nothing. Such a sender writes what it makes first (``batch.write``), and sends from there, with :func:`staged_id`.

Needs PySpark; every function returns a column and costs a hash a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lowwater_spark.sources.kafka_marks import same_id

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["pane_id", "record_id", "staged_id"]

_FILE: Final = r"([^/]+/[^/]+)$"
"""The directory of a batch and the file in it; where they stand may change."""

_AS_TEXT: Final = {
    # Times are written as what they are, to the microsecond, and not as the session's zone shows
    # them.
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
_NO_UTF8: Final = "\ufffd"
"""What Java makes of bytes that are no UTF-8."""


def record_id(stage: str, lives: Mapping[str, str], *, index: str | Column | None = None) -> Column:
    """Return the id of what a deterministic program makes of a row that Spark has read from Kafka.

    Args:
        stage: The name of the program: another one that reads the same rows makes other records of
            them. Give it another name when it is changed so that it makes other ones.
        lives: The id of each topic by its name, in the spelling of ``kafka-topics.sh --describe``
            or of librdkafka: a topic that is deleted and made anew counts its offsets from 0 again.
            A row of another topic has no id.
        index: Where one row becomes several: the place of each among them (``posexplode``), which
            has to be the same each time.

    The frame has the columns ``topic``, ``partition`` and ``offset`` of Spark's source. Raises
    ValueError without a topic.
    """
    from pyspark.sql import functions as sf

    if not lives:
        msg = "lives has the id of each topic by its name; without one no row has an id"
        raise ValueError(msg)
    known = sf.create_map(*(sf.lit(each) for name, life in sorted(lives.items()) for each in (name, same_id(life))))
    place = [sf.try_element_at(known, sf.col("topic")), sf.col("partition"), sf.col("offset")]
    return _digest("record", sf.lit(stage), *place, *([] if index is None else [_column(index)]))


def pane_id(stage: str, window: str | Column, *key: str | Column, pane: str | Column | None = None) -> Column:
    """Return the id of a result of an aggregation: which stage, which window, which key, and which of its results for them.

    Args:
        stage: The name of the stage. Give it another one when its results for a window that it has sent before are to count as new.
        window: The window's start or end, or the window.
        key: What the aggregation groups by beside it.
        pane: Where a window has several results, such as one a batch until it is final: what tells them apart, the same each time.
    """
    from pyspark.sql import functions as sf

    parts = [window, *key, *([] if pane is None else [pane])]
    return _digest("pane", sf.lit(stage), *map(_column, parts))


def staged_id(stage: str) -> Column:
    """Return the id of a row that a stage has written by ``batch.write``, read from there as Parquet: the number of the batch, the file, and the place in it.

    The directories may be moved, but not written anew. ``stage`` names the stage and its life: a checkpoint that begins anew counts its batches from 0 again.
    """
    from pyspark.sql import functions as sf

    place = sf.regexp_extract(sf.col("_metadata.file_path"), _FILE, 1)
    return _digest("staged", sf.lit(stage), place, sf.col("_metadata.row_index"))


def _column(named: str | Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(named) if isinstance(named, str) else named


def _digest(kind: str, *parts: Column) -> Column:
    """Hash parts with their borders: ("a", "bc") is not ("ab", "c").

    Null when one of them is, or has a text that is not UTF-8.
    """
    from pyspark.sql import functions as sf

    fields = [sf.lit(kind).alias("0"), *(part.alias(str(number)) for number, part in enumerate(parts, 1))]
    text = sf.to_json(sf.struct(*fields), _AS_TEXT)
    whole = ~sf.contains(text, sf.lit(_NO_UTF8))
    for part in parts:
        whole &= part.isNotNull()
    return sf.when(whole, sf.unhex(sf.substring(sf.sha2(text, 256), 1, 32)))
