"""Location of a checkpoint, or of a file in it: a local path, or one of Hadoop's client."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.hadoop import HADOOP, HadoopFiles, HadoopPath
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "LISTED",
    "OBJECT_STORES",
    "Location",
    "checkpoint_of",
    "glance",
    "local",
    "local_directory",
    "location_of",
    "numbers_in",
    "real",
    "refuse_pattern",
    "source_at",
    "spark_path",
    "way",
]

Location = Path | HadoopPath
"""Path with one set of reading methods; :mod:`lowwater_spark.checkpoint.durable` writes to both."""


OBJECT_STORES: Final = frozenset({"abfs", "abfss", "gs", "s3a"})
"""Schemes of stores where Spark does not keep two drivers of one checkpoint apart."""

_WRITTEN: Final = frozenset({"gs", "s3a"})
"""Object stores in which lowwater writes; in the others it only reads a query's checkpoint."""

LISTED: Final = HADOOP | {"gs", "s3a"}
"""Schemes of Hadoop's file systems where the directory of a source may be."""


def location_of(spark: SparkSession, path: str, what: str, fix: str = "Use a directory on one of these.") -> Location:
    """Return the absolute location that Spark makes of a path.

    Raises Unsupported, naming ``what``, for a file system without an atomic rename.
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
    """Return the absolute location of a checkpoint. ``looked_at``: lowwater writes nothing there.

    Raises Unsupported for an unknown file system, and for an object store without the declaration
    ``single_driver``: from the start of a driver until its JVM has ended, no other driver runs with
    this checkpoint. In an object store Spark lets two drivers plan and commit the same batch. Rows
    would be in the output twice or not at all, and the checkpoint would not tell what either has
    read. The authority accepts reports of the newer run alone, but that run may read the entries of
    the other.
    """
    what, scheme = "The checkpoint", _scheme(spark, path)
    schemes = HADOOP | (OBJECT_STORES if looked_at else _WRITTEN)
    if scheme not in {"file", *schemes}:
        fix = "Use a directory on one of these."
        if scheme in OBJECT_STORES:
            fix = "Use one of these, or run the query as a plain one of Spark's and track it by a sidecar: lowwater-spark track."
        raise _unknown(what, path, scheme, schemes, fix)
    if scheme in OBJECT_STORES and not single_driver:
        raise Unsupported(
            f"{what} {path}",
            f"on {scheme}: Spark does not keep two drivers of one checkpoint apart: both commit batch N, and the checkpoint tells what neither of them has read",
            f"Make sure that a driver and its JVM have ended before another driver starts with this checkpoint; then {declare}.",
        )
    return _located(spark, path, scheme)


def _scheme(spark: SparkSession, path: str) -> str:
    """Return the scheme of the file system in which Spark looks for a path."""
    jvm: Any = spark._jvm
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    scheme = jvm.org.apache.hadoop.fs.Path(path).toUri().getScheme()
    return str(scheme or jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(hadoop).getScheme())


def _located(spark: SparkSession, path: str, scheme: str) -> Location:
    return Path(_local(spark, path)) if scheme == "file" else HadoopFiles.of(spark, path).at(path)


def _local(spark: SparkSession, path: str) -> str:
    """Return the absolute path that Spark makes of one in the local file system."""
    jvm: Any = spark._jvm
    raw = jvm.org.apache.hadoop.fs.Path(path)
    system = raw.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return str(system.makeQualified(raw).toUri().getPath())


def _unknown(what: str, path: str, scheme: str, schemes: frozenset[str], fix: str) -> Unsupported:
    """Return the refusal of an unknown file system."""
    return Unsupported(
        f"{what} {path}",
        "lowwater needs names that only one writer can take, and files that stay. Local file systems, NFS and "
        f"{' and '.join(f'{name}:' for name in sorted(schemes))} were tested for that, and {scheme}: was not",
        fix,
    )


def spark_path(location: Location) -> SparkPath:
    """Return Spark's path of a location, with the file system: the session's default may differ."""
    return SparkPath.of_local(location) if isinstance(location, Path) else SparkPath.of_text(location.uri)


def real(location: Location) -> Location:
    """Return the location with all symbolic links resolved."""
    return Path(os.path.realpath(location)) if isinstance(location, Path) else location


def local(location: Location, what: str, fix: str) -> Path:
    """Return a location as a local path.

    Raises Unsupported, naming ``what`` and the fix, when it is not local.
    """
    if isinstance(location, Path):
        return location
    raise Unsupported(f"{what} {location}", "the driver and the tasks write there as in a local directory", fix)


def way(above: Location, below: Location) -> str:
    """Return the relative path from one location down to another; a dot when they are the same.

    >>> way(Path("/ck"), Path("/ck/lowwater/stages/a")), way(Path("/ck"), Path("/ck"))
    ('lowwater/stages/a', '.')
    """
    return PurePosixPath(str(below)).relative_to(str(above)).as_posix()


def numbers_in(folder: Location, prefix: str = "", suffix: str = "") -> list[int]:
    """Return the numbers of a directory's entries whose names are prefix, digits and suffix.

    None of them when there is no such directory.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
    digits = [
        name[len(prefix) : len(name) - len(suffix)]
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    ]
    return [int(number) for number in digits if number.isdecimal()]


def glance(location: Location) -> float:
    """Return the least seconds between two looks for a name.

    0 for a local path; more where a look is a request to a server, or one that costs money.
    """
    if isinstance(location, Path):
        return 0.0
    return 1.0 if location.uri.partition(":")[0] in OBJECT_STORES else 0.1


def local_directory(spark: SparkSession, path: str) -> Path | None:
    """Return the absolute local path that Spark makes of a path; None on another file system."""
    return Path(_local(spark, path)) if _scheme(spark, path) == "file" else None


def source_at(spark: SparkSession, path: str, what: str) -> Location:
    """Return the absolute location that Spark makes of the path of a source.

    Raises Unsupported for a file system whose listings may show a file before all of its rows.
    """
    if (scheme := _scheme(spark, path)) not in {"file", *LISTED}:
        raise Unsupported(f"{what} {path}", _unlisted(scheme), _LISTED_FIX)
    location = _located(spark, path, scheme)
    if isinstance(location, HadoopPath) and scheme in HADOOP and (client := location.client) != _HDFS_CLIENT:
        raise Unsupported(
            f"{what} {path}",
            f"the client of {scheme}: is {client}, and lowwater must ask HDFS itself which files are open",
            "Name the directory by the name service that it is on.",
        )
    return location


def _unlisted(scheme: str) -> str:
    """Return why a source cannot be on a file system."""
    if scheme in ("abfs", "abfss"):
        return (
            "Azure lists a file while its writer still writes it, with times of whole seconds: a file that grew within its second would count as "
            "read"
        )
    return f"a listing must have all files that are there, each of them whole, and {scheme}: was not tested for that"


_LISTED_FIX: Final = (
    f"Use a directory on a local or NFS file system, or on one of {', '.join(f'{name}:' for name in sorted(LISTED))}."
)

_HDFS_CLIENT: Final = "org.apache.hadoop.hdfs.DistributedFileSystem"
"""Class of HDFS' own client. Another client of the same scheme joins several file systems, where a
directory has no identity of its own."""


def refuse_pattern(path: str, what: str) -> None:
    """Raise Unsupported for a path that Spark reads as a pattern, and so as other directories."""
    if any(mark in path for mark in "{}[]*?\\"):
        raise Unsupported(
            f"{what} {path}",
            "Spark reads it as a pattern, and the directories that match may change while the query runs",
            "Name one directory without any of {}[]*?\\ in its path; to read those in it as well, set recursiveFileLookup.",
        )
