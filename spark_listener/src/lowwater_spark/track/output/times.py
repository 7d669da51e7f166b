"""Writes the times of rows as text with all of their microseconds.

By default Spark writes times in JSON, CSV and XML with milliseconds. A row at 09:00:00.000700 would
be read again as one at 09:00:00, which is older. But the stage has promised that no row before
09:00:00.000700 comes, so its reader would count the row as late.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_times", "exact_times"]

logger = logging.getLogger("lowwater.spark")

_TEXTS: Final = frozenset({"csv", "json", "xml"})
"""File formats that have times as text."""

_ZONED: Final = "timestampFormat"

_PLAIN: Final = "timestampNTZFormat"

_FORMATS: Final[Mapping[str, str]] = {
    _ZONED: "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    _PLAIN: "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

_PARQUET_TIMES: Final = "spark.sql.parquet.outputTimestampType"


def exact_times(file_format: str, options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the options that a format needs besides the user's, so that times keep microseconds.

    >>> sorted(exact_times("json")), exact_times("parquet")
    (['timestampFormat', 'timestampNTZFormat'], {})
    >>> exact_times("JSON", {"TIMESTAMPFORMAT": "HH:mm"})
    {'timestampNTZFormat': "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
    """
    if file_format.lower() not in _TEXTS:
        return {}
    names = {name.lower() for name in options or {}}
    return {name: value for name, value in _FORMATS.items() if name.lower() not in names}


def check_times(frame: DataFrame, file_format: str, options: Mapping[str, Any] | None = None) -> None:
    """Raise Unsupported for Parquet that would truncate a frame's times to milliseconds.

    A truncating format of times that the user passes is kept and logged: it may concern a column
    by which no reader stamps rows.
    """
    kind = str(frame.sparkSession.conf.get(_PARQUET_TIMES, "INT96")) if file_format.lower() == "parquet" else ""
    if file_format.lower() not in _TEXTS and kind.upper() != "TIMESTAMP_MILLIS":
        return
    kinds = {field.dataType.typeName() for field in frame.schema.fields}
    if not kinds & {"timestamp", "timestamp_ntz"}:
        return
    if file_format.lower() in _TEXTS:
        for name, value in (options or {}).items():
            if name.lower() in {_ZONED.lower(), _PLAIN.lower()} and "SSSSSS" not in str(value):
                logger.warning(
                    "%s=%r writes times without their microseconds, so as older ones: a reader that stamps rows by them counts rows as late. Use a format with "
                    ".SSSSSS, as in %r",
                    name,
                    value,
                    _FORMATS[_ZONED],
                )
    if kind:
        raise Unsupported(
            f"Parquet in a session where {_PARQUET_TIMES} is {kind}",
            "a time is written without its microseconds, so as an older one, and its readers count rows as late",
            "Set it to TIMESTAMP_MICROS.",
        )
