"""The log of a Delta table, read through the JVM of Spark's driver: by the classes that the query reads it with, so that nothing is known sooner or later than there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.delta import Commit, Table
from lowwater_spark.sources.jvm import asked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DeltaLog", "path_of"]

T = TypeVar("T")


def path_of(spark: SparkSession, table: str | os.PathLike[str]) -> str:
    """Return the text of the path of a table, which is given by its path (with a slash in it) or by its name in the session's catalog.

    Raises Unsupported for a name that the catalog does not have, ValueError for a relative path.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    said = os.fspath(table)
    if "/" in said:
        named = SparkPath.of_text(said)
        if not named.scheme and not said.startswith("/"):
            msg = f"{said} is a relative path: name the table by an absolute one, or by its name in the catalog"
            raise ValueError(msg)
        return said
    state: Any = spark._jsparkSession.sessionState()
    try:
        name = state.sqlParser().parseTableIdentifier(said)
        found = state.catalog().getTableMetadata(name)
    except (Py4JJavaError, PySparkException) as error:
        raise Unsupported(
            f"The table {said}", "the session's catalog does not know it", "Create it first, or name it by its path."
        ) from error
    return SparkPath.of_uri(str(found.location().toString())).text


class DeltaLog:
    """The log of the table in a directory, on whatever file system.

    Each call costs a listing of the log's tail, or the reading of one file.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path
        """Text of the path, as the query names it."""

    def table(self) -> Table:
        """Return the table as of now. Raises OSError."""

        def ask() -> Table:
            log = self._log()
            snapshot = self._newest(log)
            said = json.loads(str(snapshot.protocol().json()))["protocol"]
            meta = json.loads(str(snapshot.metadata().json()))["metaData"]
            features = frozenset([*said.get("readerFeatures", ()), *said.get("writerFeatures", ())])
            location = str(log.dataPath().toString())
            return Table(int(snapshot.version()), meta["id"], location, features, meta.get("configuration", {}))

        return self._asked("how it stands", ask)

    @property
    def beside_iceberg(self) -> bool:
        """Whether its directory has the metadata of an Iceberg table. Raises OSError."""

        def ask() -> bool:
            log = self._log()
            jvm: Any = self._spark._jvm
            folder = jvm.org.apache.hadoop.fs.Path(log.dataPath(), "metadata")
            files = folder.getFileSystem(log.newDeltaHadoopConf())
            listed = files.listStatus(folder) if files.exists(folder) else ()
            return any(str(each.getPath().getName()).endswith(".metadata.json") for each in listed)

        return self._asked("what else is there", ask)

    def commit(self, version: int) -> Commit | None:
        """Return what a version says, None when it is not in the log any more. Raises OSError."""
        text = self._text(version)
        return None if text is None else Commit.parse(version, text)

    def files(self, version: int) -> list[str]:
        """Return the files that a version adds, by their names in it. Raises OSError."""
        actions = map(json.loads, lines_of(self._text(version) or ""))
        return [action["add"]["path"] for action in actions if "add" in action]

    def _text(self, version: int) -> str | None:
        def ask() -> str | None:
            log = self._log()
            path = self._classes.util.FileNames.unsafeDeltaFile(log.logPath(), version)
            configuration = log.newDeltaHadoopConf()
            if not path.getFileSystem(configuration).exists(path):
                return None
            return str(log.store().read(path, configuration).mkString("\n"))

        return self._asked(f"what its version {version} is", ask)

    def apps(self) -> Mapping[str, int]:
        """Return the last batch of each who counts batches in the table.

        Raises OSError. Costs a Spark job for each new version.
        """

        def ask() -> Mapping[str, int]:
            found = self._newest(self._log()).setTransactions()
            said = (json.loads(str(found.apply(i).json()))["txn"] for i in range(found.length()))
            return {each["appId"]: each["version"] for each in said}

        return self._asked("who writes into it", ask)

    @property
    def _classes(self) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.org.apache.spark.sql.delta

    def _log(self) -> Any:
        return self._classes.DeltaLog.forTable(self._spark._jsparkSession, self.path)

    def _newest(self, log: Any) -> Any:
        jvm: Any = self._spark._jvm
        nothing, stale = jvm.scala.Option.empty(), False
        return log.update(stale, nothing, nothing)

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        return asked(f"the Delta table {self.path}", what, ask)
