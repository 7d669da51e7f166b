"""The log of a Delta table: its versions, read by Delta's own classes in the JVM of Spark's driver.

The query reads the log by the same classes, so lowwater sees a version no sooner than the query.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.tables.jvm import jvm_call
from lowwater_spark.sources.tables.versioned import mark_of, writer_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Commit", "DeltaLog", "Table", "TableLog", "path_of"]

_NAMED: Final = 5
"""Number of a version's files whose names are kept for messages."""


class Table(NamedTuple):
    """A table as of its newest version."""

    version: int
    """Number of the newest version; -1: there is no table."""
    id: str
    """The table's id; it differs for a table that was dropped and created again."""
    location: str
    features: frozenset[str] = frozenset()
    properties: Mapping[str, str] = MappingProxyType({})

    @property
    def on_s3(self) -> bool:
        """True when the table is on S3, where Delta's writers may need a LogStore to stay apart."""
        return SparkPath.of_text(self.location).scheme.startswith("s3")

    @property
    def refusal(self) -> str:
        """Reason why the table's log does not have all of its commits; empty: it has."""
        if managed := self.features & {"catalogManaged", "catalogOwned", "catalogOwned-preview"}:
            return f"a catalog has its newest commits (the feature {min(managed)})"
        if coordinated := [name for name in self.properties if name.startswith("delta.coordinatedCommits.")]:
            return f"a coordinator has its newest commits (the property {min(coordinated)})"
        return ""


class Commit(NamedTuple):
    """One version of a table, from the table's log."""

    version: int
    added: int
    """Number of files with new rows. Offsets count the files of a version from 0."""
    removes: bool
    """True when the version removes rows."""
    operation: str
    writer: str
    """Full name of the computation that wrote the version; empty: it names none."""
    table: str
    """The table's id, if the version sets it; else empty."""
    files: tuple[str, ...] = ()
    """Names of the first files that the version adds."""
    mark: Mapping[str, Any] = MappingProxyType({})
    """Mark that lowwater has left in the commit; empty: none."""
    batches: Mapping[str, int] = MappingProxyType({})
    """Number of the batch that was written as this version, by the app that counts batches."""

    @classmethod
    def parse(cls, version: int, text: str) -> Commit:
        r"""Return a version from the JSON of its commit. Raises OSError for another text.

        >>> new = '{"add":{"path":"a","dataChange":true}}'
        >>> moved = '{"add":{"path":"b","dataChange":false}}'
        >>> Commit.parse(7, f"{new}\n{moved}").added
        1
        """
        added, removes, operation, writer, table = 0, False, "", "", ""
        files: list[str] = []
        batches: dict[str, int] = {}
        mark: Mapping[str, Any] = {}
        try:
            for action in map(json.loads, lines_of(text)):
                if (add := action.get("add")) and add["dataChange"]:
                    added += 1
                    files += [add["path"]] if added <= _NAMED else []
                elif (remove := action.get("remove")) and remove["dataChange"]:
                    removes = True
                elif info := action.get("commitInfo"):
                    operation, mark = str(info.get("operation", "")), mark_of(info.get("userMetadata"))
                elif meta := action.get("metaData"):
                    table = meta["id"]
                elif txn := action.get("txn"):
                    writer = writer or writer_of(txn["appId"])
                    batches[txn["appId"]] = txn["version"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"version {version} of a table is no commit of Delta: {error!r}"
            raise OSError(msg) from error
        writer = writer or str(mark.get("computation", ""))
        return cls(version, added, removes, operation, writer, table, tuple(files), mark, batches)

    @property
    def strange(self) -> bool:
        """True when the version has new rows and names no computation."""
        return bool(self.added) and not self.writer

    @property
    def rewrites(self) -> bool:
        """True when the version adds older rows again, which a watermark may have passed."""
        return bool(self.added) and (self.removes or self.operation == "RESTORE")

    def __str__(self) -> str:
        """Return the version in words."""
        return f"version {self.version} ({self.operation or 'of an operation that it does not name'})"


class TableLog(Protocol):
    """Questions that a source asks one table. Each call raises OSError when there is no answer."""

    def table(self) -> Table:
        """Return the table as of now."""
        ...

    def commit(self, version: int) -> Commit | None:
        """Return one version; None when it is not in the log any more."""
        ...

    def apps(self) -> Mapping[str, int]:
        """Return the number of the last batch by each app that counts batches in the table."""
        ...


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
        with self._call("how it stands"):
            log = self._log()
            snapshot = self._newest(log)
            protocol = json.loads(str(snapshot.protocol().json()))["protocol"]
            meta = json.loads(str(snapshot.metadata().json()))["metaData"]
            features = frozenset([*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())])
            location = str(log.dataPath().toString())
            return Table(int(snapshot.version()), meta["id"], location, features, meta.get("configuration", {}))

    @property
    def beside_iceberg(self) -> bool:
        """True when the directory also has the metadata of an Iceberg table. Raises OSError."""
        with self._call("what else is there"):
            log = self._log()
            jvm: Any = self._spark._jvm
            folder = jvm.org.apache.hadoop.fs.Path(log.dataPath(), "metadata")
            files = folder.getFileSystem(log.newDeltaHadoopConf())
            listed = files.listStatus(folder) if files.exists(folder) else ()
            return any(str(entry.getPath().getName()).endswith(".metadata.json") for entry in listed)

    def commit(self, version: int) -> Commit | None:
        """Return one version; None when it is not in the log any more. Raises OSError."""
        text = self._text(version)
        return None if text is None else Commit.parse(version, text)

    def files(self, version: int) -> list[str]:
        """Return the names of the files that a version adds. Raises OSError."""
        actions = map(json.loads, lines_of(self._text(version) or ""))
        return [action["add"]["path"] for action in actions if "add" in action]

    def _text(self, version: int) -> str | None:
        with self._call(f"what its version {version} is"):
            log = self._log()
            path = self._classes.util.FileNames.unsafeDeltaFile(log.logPath(), version)
            configuration = log.newDeltaHadoopConf()
            if not path.getFileSystem(configuration).exists(path):
                return None
            return str(log.store().read(path, configuration).mkString("\n"))

    def apps(self) -> Mapping[str, int]:
        """Return the number of the last batch by each app that counts batches in the table.

        Raises OSError. Costs a Spark job for each new version.
        """
        with self._call("who writes into it"):
            transactions = self._newest(self._log()).setTransactions()
            entries = (json.loads(str(transactions.apply(i).json()))["txn"] for i in range(transactions.length()))
            return {entry["appId"]: entry["version"] for entry in entries}

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

    def _call(self, what: str) -> AbstractContextManager[None]:
        return jvm_call(f"the Delta table {self.path}", what)
