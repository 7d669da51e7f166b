"""What has to be said of a query that is tracked by its checkpoint alone. Pure: no I/O.

A checkpoint tells how far each source was read, which batches are committed, and which of Spark's
operators keep state. It tells nothing of the rest: where its sources begin and end, which options
they have, what the sink does. Each of these is declared, or the query is refused, since a guess
could lead.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from lowwater.cli.arguments import parse_duration
from lowwater_spark.checkpoint.location import OBJECT_STORES
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.base import EARLIER
from lowwater_spark.sources.delta import DELTA
from lowwater_spark.sources.iceberg import ICEBERG
from lowwater_spark.sources.kafka import BROKERS, HEAD, KAFKA

__all__ = [
    "BLANK",
    "FILES",
    "HISTORY",
    "PROMISES",
    "SINGLE_DRIVER",
    "SINK",
    "Declaration",
    "SourceDeclared",
    "needed",
    "source_of",
]

FILES: Final = "files"
"""The kind of a source of files, which the query lists."""

SINK: Final = "sink"
"""The kind of a directory that Spark's file sink writes to, which the query reads by the sink's
log."""

HISTORY: Final = "history"

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
}
"""What can be promised, and what that means."""

_ALWAYS: Final = ("sink-visible-before-commit", "nothing-skipped")


def needed(checkpoint: str) -> tuple[str, ...]:
    """Return what must be promised of a query with this checkpoint, whatever stands in it.

    >>> needed("s3a://bucket/ck")[-1]
    'single-driver'
    """
    return (*_ALWAYS, SINGLE_DRIVER) if SparkPath.of_text(checkpoint).scheme in OBJECT_STORES else _ALWAYS


_MODES: Final = ("append", "update")


@dataclass(frozen=True, slots=True)
class SourceDeclared:
    """One source, in the order of the query."""

    kind: str
    """:data:`FILES`, :data:`SINK`, ``kafka``, ``delta`` or ``iceberg``."""
    path: str = ""
    """Of files: the directory that is read, absolute. Of Delta: the table's, absolute or a URI. Of
    Iceberg: the table's name in a catalog, or its path."""
    topics: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Of files ``recursiveFileLookup``, ``maxFileAge`` and ``partitions``; of Kafka
    ``lowwater.brokers``, ``lowwater.head`` and all ``kafka.*``; of Kafka and Iceberg
    ``lowwater.earlierRows``. Names in lower case."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"{self.kind}:{self.path or '+'.join(self.topics)}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """A query as it is declared. :meth:`parse` makes it; all that is wrong with it is refused there, by name."""

    name: str
    """The computation's."""
    checkpoint: str
    inputs: tuple[str, ...]
    sources: tuple[SourceDeclared, ...]
    promises: frozenset[str]
    """Of the keys of :data:`PROMISES`."""
    retention: timedelta | None = None
    """How far below Spark's watermark can come out what its operators hold, as in
    :func:`~lowwater_spark.stage`."""
    stamp: timedelta | None = None
    """Length of the windows by whose start the output is stamped; None: by event time."""
    windows: timedelta | None = None
    """Length of the tumbling windows, where Spark holds nothing else and the output is stamped by
    their start. Takes the place of ``retention`` and ``stamp``. It has to be declared, because a
    checkpoint does not show whether windows slide. None: not declared."""
    windows_start: timedelta = timedelta()
    """Spark's ``startTime``: shift of the windows of ``windows`` or ``stamp``, from zero to below
    their length."""
    output_mode: str = ""
    """Needed where there is an aggregation."""
    output: str = ""
    """The directory of Spark's file sink, which is then made durable before a batch counts; empty:
    another sink."""
    heuristics: tuple[float, ...] = (0.99,)
    adopt: bool = False
    """Whether to take the computation over from another checkpoint, by a new incarnation."""

    @classmethod
    def parse(cls, said: Any) -> Declaration:
        """Return what a table of a file of declarations says.

        Raises ValueError, naming the key and the fix, and Unsupported for what is not declared.
        """
        if not isinstance(said, Mapping):
            msg = f"a query is a table [[query]] with its keys, not {said!r}"
            raise ValueError(msg)  # noqa: TRY004 - a value in a file
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(said.keys() - known):
            msg = f"{unknown[0]} is no key of a query; there are {', '.join(sorted(known))}"
            raise ValueError(msg)
        name = _text(said, "name")
        where = f"the query {name}"
        checkpoint = _text(said, "checkpoint")
        inputs = _texts(said, "inputs", where)
        sources = said.get("sources")
        if not isinstance(sources, list) or not sources:
            msg = f'{where} has no sources: name them in the order of the query, like sources = ["files:/data/in"]'
            raise ValueError(msg)
        promises = frozenset(_texts(said, "promises", where)) if said.get("promises") else frozenset[str]()
        if wrong := sorted(promises - PROMISES.keys()):
            msg = f"{where} promises {wrong[0]}, which is none of {', '.join(PROMISES)}"
            raise ValueError(msg)
        for promise in needed(checkpoint):
            if promise not in promises:
                raise _unpromised(where, promise)
        mode = str(said.get("output_mode", ""))
        if mode and mode not in _MODES:
            raise Unsupported(
                f"{where} in the output mode {mode}",
                "it writes old results again and again",
                f"Track queries in the modes {' and '.join(_MODES)}.",
            )
        heuristics = said.get("heuristics", [0.99])
        if not isinstance(heuristics, list | tuple) or not all(isinstance(e, float) and 0 < e < 1 for e in heuristics):
            msg = f"{where}: heuristics is a list of shares between 0 and 1, like [0.99], not {heuristics!r}"
            raise ValueError(msg)
        output, adopt = said.get("output", ""), said.get("adopt", False)
        if not isinstance(output, str) or not (output == "" or output.startswith("/")):
            msg = f"{where}: output is the absolute directory of Spark's file sink, not {output!r}"
            raise ValueError(msg)
        if not isinstance(adopt, bool):
            msg = f"{where}: adopt is true or false, not {adopt!r}"
            raise ValueError(msg)  # noqa: TRY004 - a value in a file
        return cls(
            name,
            checkpoint,
            inputs,
            tuple(source_of(source) for source in sources),
            promises,
            *_held(said, where),
            mode,
            output,
            tuple(heuristics),
            adopt,
        )

    def require(self, promise: str, because: str) -> None:
        """Raise Unsupported for what would have to be promised and is not."""
        if promise not in self.promises:
            raise _unpromised(f"{because}: the query {self.name}", promise)

    def shape(self) -> dict[str, Any]:
        """Return what of it must stay the same for a checkpoint, as JSON: with another one, what was concluded before would not hold."""
        return {
            "sources": [[source.kind, source.path, list(source.topics)] for source in self.sources],
            "retention": None if self.retention is None else self.retention // timedelta(microseconds=1),
            "stamp": None if self.stamp is None else self.stamp // timedelta(microseconds=1),
            "windows": None if self.windows is None else self.windows // timedelta(microseconds=1),
            "windows_start": self.windows_start // timedelta(microseconds=1),
        }

    def has_shape(self, kept: Mapping[str, Any]) -> bool:
        """Return whether a shape that was kept is still the one declared.

        A release before ``windows_start`` kept neither that nor ``windows``. It took every window
        for one without a shift.
        """
        shape = self.shape()
        return {"windows": shape["windows"], "windows_start": 0, **kept} == shape


def source_of(said: Any) -> SourceDeclared:
    """Return a source, of a text ``KIND:WHAT[,OPTION=VALUE...]`` or of a table with kind, path or topics, and options. Raises ValueError, Unsupported.

    >>> source_of("kafka:a+b,lowwater.brokers=3,kafka.bootstrap.servers=one:9092").topics
    ('a', 'b')
    >>> source_of("files:/data/in,recursiveFileLookup=true").options
    {'recursivefilelookup': 'true'}
    """
    said = _table_of(said) if isinstance(said, str) else said
    if not isinstance(said, Mapping) or said.keys() - _SOURCE.keys():
        msg = f"{said!r} is no source: it is a text like files:/data/in, or a table with {', '.join(_SOURCE)}"
        raise ValueError(msg)
    kind, path, topics, given = (said.get(key, or_else) for key, or_else in _SOURCE.items())
    if not isinstance(given, Mapping) or not isinstance(path, str) or not _are_texts(topics):
        msg = f"{dict(said)!r} is no source: path is a text, topics is a list of texts, options is a table"
        raise ValueError(msg)
    options = {str(name).lower(): str(value) for name, value in given.items()}
    found = SourceDeclared(str(kind), path, tuple(sorted(topics)), options)
    allowed = _allowed(found)
    if unknown := sorted(options.keys() - allowed):
        there = ", ".join(sorted(allowed)) or "none"
        msg = f"{found.name} has the option {unknown[0]}, which says nothing here; there are {there}"
        raise ValueError(msg)
    age = _duration(options, "maxfileage", found.name)
    if age is not None:
        options["maxfileage"] = str(age // timedelta(milliseconds=1))
    return found


def _table_of(said: str) -> Mapping[str, Any]:
    """Return a source that is written as a text."""
    what, *pairs = said.split(",")
    given = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    word, _, rest = what.partition(":")
    if not rest or len(given) < len(pairs) or not all(given.values()):
        msg = f"{said!r} is no source; write it like files:/data/in or kafka:flights,lowwater.brokers=3,kafka.bootstrap.servers=broker:9092"
        raise ValueError(msg)
    return {"kind": word, "options": given} | ({"topics": rest.split("+")} if word == KAFKA else {"path": rest})


def _allowed(found: SourceDeclared) -> set[str]:
    """Return the options that a source may have, and check what it must have."""
    if found.kind in (FILES, SINK):
        if not found.path.startswith("/") or any(character in found.path for character in "*?[{"):
            msg = f"{found.name}: the path of files is an absolute directory, and no pattern"
            raise ValueError(msg)
        return {"maxfileage"} if found.kind == SINK else {"recursivefilelookup", "maxfileage", "partitions"}
    if found.kind == KAFKA:
        if not found.topics or not found.options.keys() >= {"kafka.bootstrap.servers", BROKERS}:
            msg = f"{found.name} needs its topics, kafka.bootstrap.servers and {BROKERS}, the number of all brokers of the cluster"
            raise ValueError(msg)
        return {BROKERS, HEAD, EARLIER.lower(), *(name for name in found.options if name.startswith("kafka."))}
    if found.kind == DELTA:
        if not found.path.startswith("/") and not SparkPath.of_text(found.path).scheme:
            msg = f"{found.name}: the path of a table is an absolute directory or a URI"
            raise ValueError(msg)
        return set()
    if found.kind == ICEBERG:
        return {EARLIER.lower()}
    raise Unsupported(
        f"a source of the kind {found.kind!r}",
        "nobody can tell where it ends",
        f"There are {FILES}, {SINK}, {KAFKA}, {DELTA} and {ICEBERG}; begin a pipeline over others with lws.injector().",
    )


_SOURCE: Final[Mapping[str, Any]] = {"kind": "", "path": "", "topics": (), "options": {}}
"""The keys of a source as a table, and what they are when they are left out."""


def _are_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) and value for value in values)


def _unpromised(what: str, promise: str) -> Unsupported:
    return Unsupported(
        what,
        f"its checkpoint does not say whether {PROMISES[promise]}",
        f'If that is so, add "{promise}" to its promises.',
    )


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str) or not value:
        msg = f"{key} of a query is a text that is not empty, not {value!r}"
        raise ValueError(msg)
    return value


def _texts(said: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    values = said.get(key)
    if not values or not _are_texts(values):
        msg = f"{where}: {key} is a list of texts with at least one, not {values!r}"
        raise ValueError(msg)
    return tuple(values)


def _duration(said: Mapping[str, Any], key: str, where: str) -> timedelta | None:
    value = said.get(key)
    if value is None or isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=parse_duration(str(value)))
    except argparse.ArgumentTypeError as failure:
        msg = f"{where}: {key}: {failure}"
        raise ValueError(msg) from None


def _held(
    said: Mapping[str, Any], where: str
) -> tuple[timedelta | None, timedelta | None, timedelta | None, timedelta]:
    """Return retention, stamp, windows and windows_start."""
    retention, stamp, windows = (_duration(said, key, where) for key in ("retention", "stamp", "windows"))
    if stamp is not None and not stamp:
        msg = f"{where}: stamp is the length of the windows, above 0; leave it out where the output is stamped by event time"
        raise ValueError(msg)
    start = _duration(said, "windows_start", where) or timedelta()
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
# In the order of the query. {read}
sources = [
{sources}
]
# {state}
{retention}retention = "<1h>"
# Of windows stamped by their start: their length.
# stamp = "<1h>"
# Instead of these two, of tumbling windows stamped by their start, where nothing else is held:
# windows = "<1h>"
# Where window() has a startTime, beside windows or stamp: that shift. Left out, windows begin at whole multiples of their length.
# windows_start = "<15m>"
{mode}output_mode = "<append or update>"
# Of Spark's file sink: its directory.
# output = "</data/out>"
promises = [
{promises}
]
"""
"""A file of declarations to fill in."""
