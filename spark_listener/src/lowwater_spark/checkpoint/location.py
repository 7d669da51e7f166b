"""Where a checkpoint, or something in it, stands: a path of the local file system, or of one that Hadoop's client reaches."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.hadoop import HADOOP, HadoopFiles, HadoopPath
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OBJECT_STORES", "Location", "checkpoint_of", "glance", "local", "location_of", "real", "spark_path", "way"]

Location = Path | HadoopPath
"""Both are read alike; :mod:`lowwater_spark.checkpoint.durable` writes to them."""


OBJECT_STORES: Final = frozenset({"abfs", "abfss", "s3a"})
"""Schemes of stores where Spark's own entries do not keep two drivers apart."""

_WRITTEN: Final = frozenset({"s3a"})
"""Those in which lowwater writes; in the others it only reads what a query has written."""


def location_of(spark: SparkSession, path: str, what: str, fix: str = "Use a directory on one of these.") -> Location:
    """Return the absolute location that Spark makes of a path.

    Raises Unsupported, naming ``what``, for a file system where nothing is renamed at once.
    """
    if (scheme := _scheme(spark, path)) not in {"file", *HADOOP}:
        raise _unknown(what, path, scheme, HADOOP, fix)
    return _located(spark, path, scheme)


def checkpoint_of(
    spark: SparkSession,
    path: str,
    *,
    single_driver: bool,
    looked_at: bool = False,
    declare: str = "pass single_driver=True",
) -> Location:
    """Return the absolute location of a checkpoint. ``looked_at``: nothing is written there.

    Raises Unsupported for a file system that is not known, and for an object store without the
    declaration that it has a single driver: that no other driver runs with this checkpoint from the
    start of one until that has ended, its JVM with it. There Spark itself tells two drivers both
    that they have planned batch N, and both that they have committed it: rows are in the output
    twice or not at all, and what one has read is not what the checkpoint says. The authority hears
    the newer run alone, here as anywhere; but what that reads of the checkpoint may be the other
    one's.
    """
    what, scheme = "The checkpoint", _scheme(spark, path)
    known = HADOOP | (OBJECT_STORES if looked_at else _WRITTEN)
    if scheme not in {"file", *known}:
        fix = "Use a directory on one of these."
        if scheme in OBJECT_STORES:
            fix = "Use one of these, or let the query be a plain one of Spark's and track it from beside: lowwater-spark track."
        raise _unknown(what, path, scheme, known, fix)
    if scheme in OBJECT_STORES and not single_driver:
        raise Unsupported(
            f"{what} {path}",
            f"on {scheme}: Spark does not keep two drivers of one checkpoint apart: both take batch N, and what is read of the checkpoint is not what either of them has done",
            f"See to it that a driver has ended, its JVM with it, before another one starts with this checkpoint; then {declare}.",
        )
    return _located(spark, path, scheme)


def _scheme(spark: SparkSession, path: str) -> str:
    """Return which file system Spark makes of a path."""
    jvm: Any = spark._jvm
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    given = jvm.org.apache.hadoop.fs.Path(path).toUri().getScheme()
    return str(given or jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(hadoop).getScheme())


def _located(spark: SparkSession, path: str, scheme: str) -> Location:
    if scheme != "file":
        return HadoopFiles.of(spark, path).at(path)
    jvm: Any = spark._jvm
    raw = jvm.org.apache.hadoop.fs.Path(path)
    system = raw.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return Path(str(system.makeQualified(raw).toUri().getPath()))


def _unknown(what: str, path: str, scheme: str, known: frozenset[str], fix: str) -> Unsupported:
    """Return the refusal of a file system."""
    return Unsupported(
        f"{what} {path}",
        "a name there must be taken once, and what was written must stay, which is shown of local file systems, NFS and "
        f"{' and '.join(f'{each}:' for each in sorted(known))}, and {scheme}: is none of them",
        fix,
    )


def spark_path(location: Location) -> SparkPath:
    """Return the path by which Spark knows a location, with its file system: the session's default one may be another."""
    return SparkPath.of_local(location) if isinstance(location, Path) else SparkPath.of_text(location.uri)


def real(location: Location) -> Location:
    """Return the one location of all that lead to the same place."""
    return Path(os.path.realpath(location)) if isinstance(location, Path) else location


def local(location: Location, what: str, fix: str) -> Path:
    """Return a location that must be local.

    Raises Unsupported for another one, naming ``what``, with the fix.
    """
    if isinstance(location, Path):
        return location
    raise Unsupported(f"{what} {location}", "the driver and the tasks write there as in a local directory", fix)


def way(above: Location, below: Location) -> str:
    """Return the way from one location down to another, with slashes; a dot where they are the same.

    >>> way(Path("/ck"), Path("/ck/lowwater/stages/a")), way(Path("/ck"), Path("/ck"))
    ('lowwater/stages/a', '.')
    """
    return PurePosixPath(str(below)).relative_to(str(above)).as_posix()


def glance(location: Location) -> float:
    """Return how many seconds must lie between two looks for a name: none where it costs nothing, more where it is a call to a server, or one that is paid for."""
    if isinstance(location, Path):
        return 0.0
    return 1.0 if location.uri.partition(":")[0] in OBJECT_STORES else 0.1
