"""Reads a query's analysed plan and refuses, before anything starts, what cannot be tracked exactly.

The list of what is allowed is short on purpose: an operator, option or source that nobody has thought about is refused, by name, with
the reason and the way out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.errors import Unsupported
from lowwater_spark.head import FileSource, hidden

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["absolute", "check_plan", "check_session", "check_trigger", "local_directory", "refuse_pattern"]

_FORMATS: Final = frozenset({"csv", "json", "orc", "parquet", "text"})

_STATELESS: Final = frozenset(
    {
        "CollectMetrics",
        "Deduplicate",
        "Expand",
        "Filter",
        "Generate",
        "Join",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "StreamingRelation",
        "SubqueryAlias",
        "Union",
        "View",
    }
)
"""Streaming operators that emit a row's results when the row arrives, or never."""

_OPTIONS: Final[Mapping[str, str]] = {
    "cleansource": "files vanish by rules of their own; clean up outside of Spark, by age",
    "filenameonly": "Spark takes two files of one name for one, and never reads the second",
    "ignorecorruptfiles": "rows of a file that is passed over would count as read",
    "ignoremissingfiles": "rows of a file that is passed over would count as read",
    "maxfileage": "Spark passes over files by age, and their rows would be missing",
    "modifiedafter": "the files that Spark passes over stand in the directory all the same",
    "modifiedbefore": "the files that Spark passes over stand in the directory all the same",
    "pathglobfilter": "the files that Spark passes over stand in the directory all the same",
    "sourcearchivedir": "files vanish by rules of their own; clean up outside of Spark, by age",
}

_SETTINGS: Final = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")


def check_session(spark: SparkSession) -> None:
    """Raise Unsupported for a session that this release cannot work with."""
    if not hasattr(spark, "_jvm"):
        raise Unsupported(
            "A Spark Connect session",
            "the driver's Python must see the query's plan and its checkpoint",
            "Run the query in a classic session, where the driver is.",
        )
    for name in _SETTINGS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            raise Unsupported(
                f"A session with {name}", "rows of a file that is passed over would count as read", "Set it to false."
            )
    evolution = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    if str(spark.conf.get(evolution, "false")).lower() == "true":
        raise Unsupported(
            f"A session with {evolution}",
            "sources are then numbered by name in the checkpoint, which this release does not read",
            "Set it to false.",
        )


def check_trigger(trigger: Mapping[str, Any]) -> None:
    """Raise Unsupported for triggers without batches that begin and commit one after the other."""
    for name, why in (("continuous", "continuous processing"), ("realTime", "real-time mode")):
        if trigger.get(name) is not None:
            raise Unsupported(
                f"The trigger {name}",
                f"{why} gives no evidence of which rows a commit contains",
                "Use processingTime or availableNow.",
            )


def check_plan(spark: SparkSession, frame: DataFrame) -> list[FileSource]:
    """Return the file sources of a streaming DataFrame, in the order in which Spark numbers them.

    Raises Unsupported, naming the first thing that cannot be tracked exactly.
    """
    if not frame.isStreaming:
        raise Unsupported("A DataFrame that is not streaming", "it has no batches", "Read it with spark.readStream.")
    plan = frame._jdf.queryExecution().analyzed()
    for node in _nodes(plan):
        if node.isStreaming():
            _check_operator(node)
    leaves = _items(plan.collectLeaves())
    relations = [leaf for leaf in leaves if leaf.isStreaming()]
    for i, relation in enumerate(relations):
        if any(relation.equals(other) for other in relations[:i]):
            raise Unsupported(
                "A stream that is used twice in one query",
                "Spark logs it once and counts it twice, and the two could be mixed up",
                "Load it twice with spark.readStream, or split the rows after one use.",
            )
    return [_file_source(spark, relation) for relation in relations]


def _check_operator(node: Any) -> None:
    name = node.getClass().getSimpleName()
    if name.startswith("StreamingRelation") and name != "StreamingRelation":
        raise Unsupported(
            f"The source {node.sourceName()}",
            "this release knows where a file source ends, and no other",
            "Let a plain query write what it gives to files, and track the query that reads them.",
        )
    if name == "EventTimeWatermark":
        raise Unsupported(
            "withWatermark",
            "Spark would drop rows by a watermark of its own, which knows nothing of slow partitions",
            "Remove it: batch.low is the watermark.",
        )
    if name not in _STATELESS:
        raise Unsupported(
            f"The streaming operator {name}",
            "Spark may hold rows back in state that this release does not see",
            "Do it on the batch, inside of the function, and keep what must wait with batch.stateful().",
        )
    if name == "Join" and all(side.isStreaming() for side in _items(node.children())):
        raise Unsupported(
            "A join of two streams",
            "Spark holds rows back in state that this release does not see",
            "Unite the streams and join them with batch.stateful(), or join with a static table.",
        )


def _file_source(spark: SparkSession, relation: Any) -> FileSource:
    source = relation.dataSource()
    kind = str(source.className()).lower()
    if kind not in _FORMATS:
        raise Unsupported(
            f"The source {kind}",
            f"this release knows where files end ({', '.join(sorted(_FORMATS))}), and no other source",
            "Let a plain query write what it gives to files, and track the query that reads them.",
        )
    options = {str(key).lower(): str(value) for key, value in _map(spark, source.options()).items()}
    for option, why in _OPTIONS.items():
        if option in options and options[option].lower() != "false":
            raise Unsupported(f"The option {option} of a {kind} source", why, "Remove the option; filter rows instead.")
    path = options.get("path", "")
    refuse_pattern(path, "The path")
    root = local_directory(spark, path, "The path")
    if not Path(root).is_dir():
        raise Unsupported(f"The path {path}", "it is no directory", "Read the directory that the files come into.")
    recursive = options.get("recursivefilelookup", "false").lower() == "true"
    if Path(root, "_spark_metadata").exists():
        raise Unsupported(
            f"The path {path}",
            "it is the output of Spark's file sink, which is read by its log and not by its listing",
            "Let the writing query use batch.write() instead.",
        )
    if not recursive:
        _refuse_folders(root)
    return FileSource(root, recursive, kind)


def _refuse_folders(root: str) -> None:
    with os.scandir(root) as listing:
        found = [entry.name for entry in listing if entry.is_dir() and not hidden(entry.name, folder=True)]
    if found:
        raise Unsupported(
            f"The directory {root}",
            f"it has sub-directories ({min(found)}), which Spark passes over or takes for partitions",
            'Set the option recursiveFileLookup to "true".',
        )


def local_directory(spark: SparkSession, path: str, what: str) -> str:
    """Return the absolute local path that Spark makes of a path. Raises Unsupported when it is on another file system."""
    jvm: Any = spark._jvm
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    raw = jvm.org.apache.hadoop.fs.Path(path)
    scheme = raw.toUri().getScheme() or raw.getFileSystem(hadoop).getUri().getScheme()
    if scheme != "file":
        raise Unsupported(
            f"{what} {path}",
            f"the driver must list and rename in it as in a local directory, and {scheme}: is none",
            "Use a directory on a local or NFS file system.",
        )
    return str(raw.getFileSystem(hadoop).makeQualified(raw).toUri().getPath())


def absolute(path: str | os.PathLike[str], spark: SparkSession) -> Path:
    """Return the absolute local path of a checkpoint directory. Raises Unsupported."""
    folder = local_directory(spark, os.fspath(path), "The checkpoint")
    refuse_pattern(folder, "The checkpoint")
    return Path(folder)


def refuse_pattern(path: str, what: str) -> None:
    """Raise Unsupported for a path that Spark reads as a pattern: it would find other directories under it, or none."""
    if any(mark in path for mark in "{}[]*?\\"):
        raise Unsupported(
            f"{what} {path}",
            "Spark reads it as a pattern, and which directories a pattern means may change while the query runs",
            "Name one directory without any of {}[]*?\\ in its path; to read those in it as well, set recursiveFileLookup.",
        )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _map(spark: SparkSession, scala_map: Any) -> Mapping[str, str]:
    jvm: Any = spark._jvm
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))
