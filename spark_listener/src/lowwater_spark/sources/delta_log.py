"""The log of a Delta table, read by Delta's own classes in the JVM of Spark's driver.

The query reads the log by the same classes, so lowwater sees a version no sooner than the query.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.delta import Commit, Table
from lowwater_spark.sources.jvm import call_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DeltaLog", "path_of"]

T = TypeVar("T")


def path_of(spark: SparkSession, table: str | os.PathLike[str]) -> str:
    """Return the path of a table as text.

    ``table`` is a path (with a slash in it) or a name in the session's catalog.

    Raises Unsupported for a name that the catalog does not have, ValueError for a relative path.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    text = os.fspath(table)
    if "/" in text:
        named = SparkPath.of_text(text)
        if not named.scheme and not text.startswith("/"):
            msg = f"{text} is a relative path: name the table by an absolute one, or by its name in the catalog"
            raise ValueError(msg)
        return text
    state: Any = spark._jsparkSession.sessionState()
    try:
        name = state.sqlParser().parseTableIdentifier(text)
        metadata = state.catalog().getTableMetadata(name)
    except (Py4JJavaError, PySparkException) as error:
        raise Unsupported(
            f"The table {text}", "the session's catalog does not know it", "Create it first, or name it by its path."
        ) from error
    return SparkPath.of_uri(str(metadata.location().toString())).text


class DeltaLog:
    """The log of the table in a directory, on any file system that Spark knows.

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
            protocol = json.loads(str(snapshot.protocol().json()))["protocol"]
            meta = json.loads(str(snapshot.metadata().json()))["metaData"]
            features = frozenset([*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())])
            location = str(log.dataPath().toString())
            return Table(int(snapshot.version()), meta["id"], location, features, meta.get("configuration", {}))

        return self._call("how it stands", ask)

    @property
    def beside_iceberg(self) -> bool:
        """True when the directory also has the metadata of an Iceberg table. Raises OSError."""

        def ask() -> bool:
            log = self._log()
            jvm: Any = self._spark._jvm
            folder = jvm.org.apache.hadoop.fs.Path(log.dataPath(), "metadata")
            files = folder.getFileSystem(log.newDeltaHadoopConf())
            listed = files.listStatus(folder) if files.exists(folder) else ()
            return any(str(entry.getPath().getName()).endswith(".metadata.json") for entry in listed)

        return self._call("what else is there", ask)

    def commit(self, version: int) -> Commit | None:
        """Return one version; None when it is not in the log any more. Raises OSError."""
        text = self._text(version)
        return None if text is None else Commit.parse(version, text)

    def files(self, version: int) -> list[str]:
        """Return the names of the files that a version adds. Raises OSError."""
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

        return self._call(f"what its version {version} is", ask)

    def apps(self) -> Mapping[str, int]:
        """Return the number of the last batch by each app that counts batches in the table.

        Raises OSError. Costs a Spark job for each new version.
        """

        def ask() -> Mapping[str, int]:
            transactions = self._newest(self._log()).setTransactions()
            entries = (json.loads(str(transactions.apply(i).json()))["txn"] for i in range(transactions.length()))
            return {entry["appId"]: entry["version"] for entry in entries}

        return self._call("who writes into it", ask)

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

    def _call(self, what: str, ask: Callable[[], T]) -> T:
        return call_jvm(f"the Delta table {self.path}", what, ask)
