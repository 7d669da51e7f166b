"""The declaration of a query that is tracked by its checkpoint alone. Pure: no I/O.

A checkpoint shows how far each source was read, which batches are committed, and which of Spark's
operators keep state. It does not show where its sources begin and end, their options, or what the
sink does. Each of these is declared, or the query is refused, since after a guess its watermark
could lead.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from lowwater.cli.arguments import parse_duration
from lowwater.core.text import did_you_mean
from lowwater_spark.checkpoint.location import OBJECT_STORES
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported
from lowwater_spark.sidecar.dropped import Dropped
from lowwater_spark.sidecar.stateful import WORDS
from lowwater_spark.sources.base import SourceDeclared
from lowwater_spark.sources.kinds import KINDS, kind_of
from lowwater_spark.track.plan.bounds import Window

__all__ = [
    "BLANK",
    "HISTORY",
    "PROMISES",
    "SAME_OPERATORS",
    "SINGLE_DRIVER",
    "Declaration",
    "needed",
    "source_of",
]

HISTORY: Final = "history"

SAME_OPERATORS: Final = "same-operators"

SINGLE_DRIVER: Final = "single-driver"

PROMISES: Final[Mapping[str, str]] = {
    "sink-visible-before-commit": (
        "what a batch has written can be read, and is durable, when Spark commits the batch: files, Kafka with acks=all, Delta and Iceberg; of a "
        "foreachBatch function that it waits for what it writes"
    ),
    "nothing-skipped": (
        "the query reads all rows of its sources, each from its beginning: no startingOffsets but earliest (unless it is declared with lowwater.earlierRows=skip), failOnDataLoss true, no ignoreMissingFiles, "
        "ignoreCorruptFiles, pathGlobFilter, modifiedAfter, cleanSource, and no topics or directories but those that are declared"
    ),
    HISTORY: (
        "the checkpoint had planned or committed batches before anybody looked at it, or more of them than Spark keeps while nobody looked: all of them were of this query, and the "
        "topics and directories are those that it has read from its beginning"
    ),
    SINGLE_DRIVER: (
        "no second driver runs with the checkpoint before the one before it has ended, its JVM with it: Spark keeps two of them apart on a file system that renames at once, and not in an "
        "object store"
    ),
    SAME_OPERATORS: (
        "all versions of the query that have committed a batch with the checkpoint had the same operators with state, over the same columns and watermarks, and ran on Spark 3.5: "
        "before Spark 4.0 a checkpoint names no operators, and a changed operator with the same types goes on with the schema of the one before it"
    ),
}
"""The promises that a declaration may make, and what each means."""

_ALWAYS: Final = ("sink-visible-before-commit", "nothing-skipped")


def needed(checkpoint: str) -> tuple[str, ...]:
    """Return the promises that every query with this checkpoint needs.

    >>> needed("s3a://bucket/ck")[-1]
    'single-driver'
    """
    return (*_ALWAYS, SINGLE_DRIVER) if SparkPath.of_text(checkpoint).scheme in OBJECT_STORES else _ALWAYS


_MODES: Final = ("append", "update")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared query. :meth:`parse` makes it, and refuses a wrong declaration, naming the key."""

    name: str
    """Name of the computation."""
    checkpoint: str
    inputs: tuple[str, ...]
    sources: tuple[SourceDeclared, ...]
    promises: frozenset[str]
    """Names of the given promises, see :data:`PROMISES`."""
    retention: timedelta | None = None
    """Greatest distance below Spark's watermark of rows that its operators hold, as in
    :func:`~lowwater_spark.stage`. None: they hold none."""
    stamp: timedelta | None = None
    """Length of the windows whose start stamps the output; None: event times stamp it."""
    windows: timedelta | None = None
    """Length of tumbling windows whose start stamps the output, if Spark holds no other rows. It
    replaces ``retention`` and ``stamp``. It must be declared, because a checkpoint does not show
    whether windows slide. None: not declared."""
    windows_start: timedelta = timedelta()
    """Spark's ``startTime``: shift of the windows of ``windows`` or ``stamp``, at least 0 and below
    their length."""
    output_mode: str = ""
    """Spark's output mode; needed for an aggregation, else empty."""
    output: str = ""
    """Directory of Spark's file sink, which is synced before a batch counts; empty for another
    sink."""
    heuristics: tuple[float, ...] = (0.99,)
    adopt: bool = False
    """True takes the computation over from another checkpoint, by a new incarnation."""
    operators: tuple[str, ...] | None = None
    """Stateful operators of the query, in the order of Spark's numbers, by the words of
    :data:`~lowwater_spark.sidecar.stateful.WORDS`. Empty: Spark keeps no state. None: not
    declared."""
    dropped: tuple[Dropped, ...] = ()
    """How the rows that Spark drops are found again in each source, in the order of ``sources``.
    Empty: they are not counted."""
    writers: tuple[str, ...] = ()
    """Checkpoints of the flows of declarative pipelines that write what the query reads, directly
    or through others. After a full refresh of one of them the query is refused."""

    @classmethod
    def parse(cls, table: Any) -> Declaration:
        """Return the declaration in a table of a file.

        Raises ValueError, naming the key and the fix, and Unsupported for a missing promise.
        """
        if not isinstance(table, Mapping):
            msg = f"a query is a table [[query]] with its keys, not {table!r}"
            raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
        keys = set(cls.__dataclass_fields__)
        if unknown := sorted(table.keys() - keys):
            msg = f"{unknown[0]} is no key of a query; there are {', '.join(sorted(keys))}{did_you_mean(unknown[0], keys)}"
            raise ValueError(msg)
        name = _text(table, "name")
        where = f"the query {name}"
        checkpoint = _text(table, "checkpoint")
        inputs = _texts(table, "inputs", where)
        sources = table.get("sources")
        if not isinstance(sources, list) or not sources:
            msg = f'{where} has no sources: name them in the order of the query, like sources = ["files:/data/in"]'
            raise ValueError(msg)
        promises = frozenset(_texts(table, "promises", where)) if table.get("promises") else frozenset[str]()
        if wrong := sorted(promises - PROMISES.keys()):
            msg = (
                f"{where} promises {wrong[0]}, which is none of {', '.join(PROMISES)}{did_you_mean(wrong[0], PROMISES)}"
            )
            raise ValueError(msg)
        for promise in needed(checkpoint):
            if promise not in promises:
                raise _unpromised(where, promise)
        mode = str(table.get("output_mode", ""))
        if mode and mode not in _MODES:
            raise Unsupported(
                f"{where} in the output mode {mode}",
                "it writes old results again and again",
                f"Track queries in the modes {' and '.join(_MODES)}.",
            )
        heuristics = table.get("heuristics", [0.99])
        if not isinstance(heuristics, list | tuple) or not all(isinstance(e, float) and 0 < e < 1 for e in heuristics):
            msg = f"{where}: heuristics is a list of shares between 0 and 1, like [0.99], not {heuristics!r}"
            raise ValueError(msg)
        output, adopt = table.get("output", ""), table.get("adopt", False)
        if not isinstance(output, str) or not (output == "" or output.startswith("/")):
            msg = f"{where}: output is the absolute directory of Spark's file sink, not {output!r}"
            raise ValueError(msg)
        if not isinstance(adopt, bool):
            msg = f"{where}: adopt is true or false, not {adopt!r}"
            raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
        described = tuple(source_of(source) for source in sources)
        durations = _durations(table, where)
        return cls(
            name,
            checkpoint,
            inputs,
            described,
            promises,
            *durations,
            mode,
            output,
            tuple(heuristics),
            adopt,
            _operators(table, where),
            _dropped(table, where, described, *durations[2:]),
            _writers(table, where),
        )

    def require(self, promise: str, because: str) -> None:
        """Raise Unsupported if a needed promise was not given."""
        if promise not in self.promises:
            raise _unpromised(f"{because}: the query {self.name}", promise)

    def shape(self) -> dict[str, Any]:
        """Return, as JSON, the part that must not change: earlier conclusions rest on it."""
        return {
            "sources": [[source.kind, source.path, list(source.topics)] for source in self.sources],
            "retention": None if self.retention is None else self.retention // timedelta(microseconds=1),
            "stamp": None if self.stamp is None else self.stamp // timedelta(microseconds=1),
            "windows": None if self.windows is None else self.windows // timedelta(microseconds=1),
            "windows_start": self.windows_start // timedelta(microseconds=1),
        }

    def has_shape(self, stored: Mapping[str, Any]) -> bool:
        """Return True if the stored shape equals the declared one.

        Releases before ``windows_start`` stored neither that nor ``windows``, and took every window
        for one without a shift.
        """
        shape = self.shape()
        return {"windows": shape["windows"], "windows_start": 0, **stored} == shape


def source_of(description: Any) -> SourceDeclared:
    """Return the source in a text ``KIND:WHAT[,OPTION=VALUE...]``, or in a table.

    A table has kind, path or topics, and options. Raises ValueError, Unsupported.

    >>> source_of("kafka:a+b,lowwater.brokers=3,kafka.bootstrap.servers=one:9092").topics
    ('a', 'b')
    >>> source_of("files:/data/in,recursiveFileLookup=true").options
    {'recursivefilelookup': 'true'}
    """
    description = _table_of(description) if isinstance(description, str) else description
    if not isinstance(description, Mapping) or description.keys() - _SOURCE.keys():
        msg = f"{description!r} is no source: it is a text like files:/data/in, or a table with {', '.join(_SOURCE)}"
        raise ValueError(msg)
    kind, path, topics, raw_options = (description.get(key, or_else) for key, or_else in _SOURCE.items())
    if not isinstance(raw_options, Mapping) or not isinstance(path, str) or not _are_texts(topics):
        msg = f"{dict(description)!r} is no source: path is a text, topics is a list of texts, options is a table"
        raise ValueError(msg)
    options = {str(name).lower(): str(value) for name, value in raw_options.items()}
    source = SourceDeclared(str(kind), path, tuple(sorted(topics)), options)
    allowed = kind_of(source.kind).allowed(source)
    if unknown := sorted(options.keys() - allowed):
        allowed_names = ", ".join(sorted(allowed)) or "none"
        msg = f"{source.name} has the option {unknown[0]}, which says nothing here; there are {allowed_names}{did_you_mean(unknown[0], allowed)}"
        raise ValueError(msg)
    age = _duration(options, "maxfileage", source.name)
    if age is not None:
        options["maxfileage"] = str(age // timedelta(milliseconds=1))
    return source


def _table_of(text: str) -> Mapping[str, Any]:
    """Return the table of a source that is written as a text."""
    what, *pairs = text.split(",")
    options = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    word, _, rest = what.partition(":")
    if not rest or len(options) < len(pairs) or not all(options.values()):
        msg = f"{text!r} is no source; write it like files:/data/in or kafka:flights,lowwater.brokers=3,kafka.bootstrap.servers=broker:9092"
        raise ValueError(msg)
    return {"kind": word, "options": options, **kind_of(word).place(rest)}


_SOURCE: Final[Mapping[str, Any]] = {"kind": "", "path": "", "topics": (), "options": {}}
"""Keys of a source's table, with their defaults."""


def _are_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) and value for value in values)


def _unpromised(what: str, promise: str) -> Unsupported:
    return Unsupported(
        what,
        f"its checkpoint does not say whether {PROMISES[promise]}",
        f'If that is so, add "{promise}" to its promises.',
    )


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        msg = f"{key} of a query is a text that is not empty, not {value!r}"
        raise ValueError(msg)
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    values = table.get(key)
    if not values or not _are_texts(values):
        fix = f': pass a list: {key} = ["{values}"]' if values and isinstance(values, str) else ""
        msg = f"{where}: {key} is a list of texts with at least one, not {values!r}{fix}"
        raise ValueError(msg)
    return tuple(values)


def _operators(table: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    """Return the declared operators; None if the table has no such key."""
    words = table.get("operators")
    if words is None:
        return None
    if not _are_texts(words):
        msg = f'{where}: operators is a list like ["aggregation", "join"], or [] if Spark keeps no state, not {words!r}'
        raise ValueError(msg)
    if wrong := sorted(set(words) - WORDS.keys()):
        msg = f"{where} has the operator {wrong[0]}, which is none of {', '.join(WORDS)}{did_you_mean(wrong[0], WORDS)}"
        raise ValueError(msg)
    return tuple(words)


def _writers(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    writers = table.get("writers", ())
    if not _are_texts(writers) or not all(path.startswith("/") and Path(path).name.isdecimal() for path in writers):
        msg = f"{where}: writers is a list of local checkpoints of flows, like .../_checkpoints/spark_catalog/default/TABLE/FLOW/0, not {writers!r}"
        raise ValueError(msg)
    return tuple(writers)


def _dropped(
    table: Mapping[str, Any],
    where: str,
    sources: tuple[SourceDeclared, ...],
    windows: timedelta | None,
    start: timedelta,
) -> tuple[Dropped, ...]:
    """Return the declarations of dropped rows, one for each source; none without the key."""
    tables = table.get("dropped", ())
    if not isinstance(tables, list | tuple) or len(tables) not in (0, len(sources)):
        msg = f"{where}: dropped has one table for each of its {len(sources)} sources, in their order, not {tables!r}"
        raise ValueError(msg)
    if tables and (other := next((source for source in sources if not kind_of(source.kind).rereads), None)):
        kinds = ", ".join(word for word, kind in KINDS.items() if kind.rereads)
        msg = f"{where}: the rows of {other.name} are not read again, and so not counted; leave dropped out. It works with {kinds}"
        raise ValueError(msg)
    own = None if windows is None else Window(windows, windows, start)
    return tuple(
        _dropped_of(item, where, files=bool(source.path), windows=own)
        for item, source in zip(tables, sources, strict=False)
    )


_DROPPED: Final = ("event_time", "where", "format", "schema", "options", "window", "slide", "start", "session", "row")


def _dropped_of(table: Any, where: str, *, files: bool, windows: Window | None) -> Dropped:
    """Return the declaration of the dropped rows of one source.

    ``windows`` are those of the query, which count if the table names nothing else.
    """
    where = f"{where}: dropped"
    if not isinstance(table, Mapping):
        msg = f'{where} has a table for each source, like {{event_time = "t"}}, not {table!r}'
        raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
    if unknown := sorted(table.keys() - set(_DROPPED)):
        msg = f"{where} has no key {unknown[0]}; there are {', '.join(_DROPPED)}{did_you_mean(unknown[0], _DROPPED)}"
        raise ValueError(msg)
    of_files = ("format", "schema")
    for key in ("event_time", "where", *of_files):
        value, wanted = table.get(key), key == "event_time" or (files and key in of_files)
        if (wanted or value is not None) and not (isinstance(value, str) and value):
            msg = f"{where} needs {key}, a text that is not empty, not {value!r}"
            raise ValueError(msg)
        if value is not None and not files and key in of_files:
            msg = f"{where} has {key}, which only files have; leave it out"
            raise ValueError(msg)
    options = table.get("options", {})
    if not isinstance(options, Mapping) or not all(isinstance(value, str) for value in options.values()):
        msg = f'{where}: options is a table of texts, like {{multiLine = "true"}}, not {options!r}'
        raise ValueError(msg)
    read = {**options, **{key: table[key] for key in of_files if key in table}}
    return Dropped(table["event_time"], table.get("where", "true"), read, *_judged_by(table, where, windows))


def _judged_by(table: Mapping[str, Any], where: str, windows: Window | None) -> tuple[Window | None, timedelta | None]:
    """Return the window or the gap of sessions in a table; both None: the row's own time."""
    length, slide, start, session = (_duration(table, key, where) for key in ("window", "slide", "start", "session"))
    ways = [length is not None, session is not None, table.get("row") is True]
    shifted = slide is not None or start is not None
    if sum(ways) > 1 or table.get("row", True) is not True or (length is None and shifted):
        msg = f"{where} has one of window (with slide and start), session, and row = true"
        raise ValueError(msg)
    if not any(ways):
        if windows is None:
            msg = f'{where} does not say by what Spark drops: window = "1h" of windows, session = "30m" of sessions, row = true of anything else'
            raise ValueError(msg)
        return windows, None
    if length is None:
        return None, session
    slide = length if slide is None else slide
    if not timedelta() < slide <= length:
        msg = f"{where}: window is above 0, and slide above 0 and not above window"
        raise ValueError(msg)
    return Window(length, slide, start or timedelta()), None


def _duration(table: Mapping[str, Any], key: str, where: str) -> timedelta | None:
    """Return a duration of a table; None without the key. Raises ValueError."""
    value = table.get(key)
    if value is None or isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=parse_duration(str(value)))
    except argparse.ArgumentTypeError as failure:
        msg = f"{where}: {key}: {failure}"
        raise ValueError(msg) from None


def _durations(
    table: Mapping[str, Any], where: str
) -> tuple[timedelta | None, timedelta | None, timedelta | None, timedelta]:
    """Return retention, stamp, windows and windows_start."""
    retention, stamp, windows = (_duration(table, key, where) for key in ("retention", "stamp", "windows"))
    if stamp is not None and not stamp:
        msg = f"{where}: stamp is the length of the windows, above 0; leave it out where the output is stamped by event time"
        raise ValueError(msg)
    start = _duration(table, "windows_start", where) or timedelta()
    length = stamp or windows or timedelta()
    if start and not timedelta() < start < length:
        msg = (
            f"{where}: windows_start is the startTime of the windows whose length windows or stamp declares, and below that length: "
            "of a negative startTime declare the length less the shift"
        )
        raise ValueError(msg)
    if windows is None:
        return retention, stamp, None, start
    if not windows or stamp is not None or retention is not None:
        msg = f"{where}: windows is the length of tumbling windows, above 0, and stands for retention and stamp; leave those two out"
        raise ValueError(msg)
    return windows, windows, windows, start


BLANK: Final = """\
# One table for each query. Delete what does not apply; what stays in <> is to be filled in.
[[query]]
name = "<the computation's name>"
checkpoint = {checkpoint}
inputs = ["<each computation whose output it reads>"]
# The sources, in the order of the query. {read}
sources = [
{sources}
]
# {state}
{retention}retention = "<1h>"
# stamp: length of the windows, if their start is the time of the output's rows.
# stamp = "<1h>"
# windows: in place of retention and stamp, length of tumbling windows, if Spark's state holds nothing else.
# windows = "<1h>"
# windows_start: startTime of window(), beside windows or stamp. Left out, windows begin at whole multiples of their length.
# windows_start = "<15m>"
{mode}output_mode = "<append or update>"
# operators: what keeps state, in the order of Spark's numbers, [] for nothing. If it is declared, anything else is refused.
# {operators}
# output: directory of Spark's file sink, if the query has one.
# output = "</data/out>"
promises = [
{promises}
]
# dropped: counts the rows that Spark drops as late, by reading each row again. One table for each source.
# [[query.dropped]]
# event_time = "<t>"
"""
"""Template of a file of declarations, to fill in."""
