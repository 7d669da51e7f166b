"""Where a checkpoint, or something in it, stands: a path of the local file system, or of one that Hadoop's client reaches."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from lowwater_spark.checkpoint.hadoop import HADOOP, HadoopFiles, HadoopPath
from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Location", "glance", "local", "location_of", "real", "uri_of", "way"]

Location = Path | HadoopPath
"""Both are read alike; :mod:`lowwater_spark.checkpoint.durable` writes to them."""


def location_of(spark: SparkSession, path: str, what: str, fix: str = "Use a directory on one of these.") -> Location:
    """Return the absolute location that Spark makes of a path. Raises Unsupported, naming ``what``, for a file system that is not known."""
    jvm: Any = spark._jvm
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    raw = jvm.org.apache.hadoop.fs.Path(path)
    scheme = str(raw.toUri().getScheme() or jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(hadoop).getScheme())
    if scheme not in {"file", *HADOOP}:
        raise Unsupported(
            f"{what} {path}",
            f"a name there must be taken once, and what was written must stay, which is shown of local file systems, NFS and "
            f"{' and '.join(sorted(HADOOP))}:, and {scheme}: is none of them",
            fix,
        )
    if scheme != "file":
        return HadoopFiles.of(spark, path).at(path)
    return Path(str(raw.getFileSystem(hadoop).makeQualified(raw).toUri().getPath()))


def uri_of(location: Location) -> str:
    """Return what Spark calls a location."""
    return f"file://{location}" if isinstance(location, Path) else str(location)


def real(location: Location) -> Location:
    """Return the one location of all that lead to the same place."""
    return Path(os.path.realpath(location)) if isinstance(location, Path) else location


def local(location: Location, what: str, fix: str) -> Path:
    """Return a location that must be local. Raises Unsupported for another one, naming ``what``, with the fix."""
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
    """Return how many seconds must lie between two looks for a name: none where it costs nothing, and more where it is a call to a server."""
    return 0.0 if isinstance(location, Path) else 0.1
