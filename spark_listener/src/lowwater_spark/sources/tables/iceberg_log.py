"""An Iceberg table and its snapshots, read as the query does: by Iceberg's classes in the JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater_spark.sources.tables.jvm import jvm_call
from lowwater_spark.sources.tables.versioned import mark_of, writer_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MARK", "START", "IcebergLog", "Snapshot", "Table", "Written", "find", "is_iceberg"]

MARK: Final = "lowwater"
"""Property of a snapshot's summary that has lowwater's mark: the computation that made it."""

START: Final = -1
"""Snapshot id that stands for a table without a snapshot."""


class Snapshot(NamedTuple):
    """One snapshot of a table, from the table's metadata."""

    id: int
    parent: int | None
    """Id of the parent; None: the first snapshot."""
    operation: str
    added: int | None = None
    """Number of files with new rows; None: the summary does not tell it exactly."""
    writer: str = ""
    """Full name of the computation that made the snapshot; empty: it names none."""
    origin: int | None = None
    """Staged snapshot whose rows this one publishes; None: it publishes none."""
    mark: Mapping[str, Any] = MappingProxyType({})
    """Mark that lowwater has left in the summary; empty: none."""

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Snapshot:
        """Return a snapshot from its JSON in a table's metadata.

        >>> summary = {"operation": "append", "added-data-files": "2", "manifests-created": "1"}
        >>> Snapshot.parse({"snapshot-id": 7, "summary": summary}).added
        2
        """
        summary = dict(content.get("summary") or {})
        mark = mark_of(summary.get(MARK))
        origin = summary.get("source-snapshot-id")
        return cls(
            content["snapshot-id"],
            content.get("parent-snapshot-id"),
            str(summary.get("operation", "")),
            _added(summary),
            str(mark.get("computation", "")),
            None if origin is None else int(origin),
            mark,
        )

    @property
    def passed_over(self) -> bool:
        """True when the snapshot only rearranges rows, so that the stream skips it."""
        return self.operation == "replace"

    @property
    def ends_streams(self) -> bool:
        """True when Iceberg's stream fails at this snapshot."""
        return self.operation not in ("append", "replace")

    @property
    def strange(self) -> bool:
        """True when the snapshot may have new rows and names no computation."""
        return self.operation != "replace" and self.added != 0 and not self.writer

    def __str__(self) -> str:
        """Return the snapshot in words."""
        return f"snapshot {self.id} ({self.operation or 'of an operation that it does not name'})"


def _added(summary: Mapping[str, str]) -> int | None:
    """Return the number of files that a snapshot adds; None when its manifests must be read.

    The stream counts files by their positions in the snapshot's manifests. When the snapshot has
    several manifests and has merged older ones into them, positions and number may differ.
    """
    created, replaced = summary.get("manifests-created"), summary.get("manifests-replaced")
    if created == "0":
        return 0
    if created != "1" and replaced != "0":
        return None
    files = summary.get("added-data-files")
    return None if files is None else int(files)


class Written(NamedTuple):
    """Last batch of one writer, from a property of the table."""

    batch: int
    digest: str
    run: int
    snapshot: int
    life: int = 0
    """Incarnation of the computation at that batch; 0: unknown."""

    @classmethod
    def parse(cls, text: str) -> Written:
        """Return the batch that a property's value describes. Raises OSError for another value.

        >>> Written.parse('{"batch": 7, "digest": "d", "run": 1, "snapshot": 5}')
        Written(batch=7, digest='d', run=1, snapshot=5, life=0)
        """
        try:
            content = json.loads(text)
            batch = cls(
                content["batch"], content["digest"], content["run"], content["snapshot"], content.get("life", 0)
            )
            if [type(field_value) for field_value in batch] != [int, str, int, int, int]:
                raise TypeError
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"the property of a table describes no batch: {text!r}"
            raise OSError(msg) from error
        return batch


class Table(NamedTuple):
    """A table as of its newest metadata."""

    id: str
    """The table's uuid; it differs for a table that was dropped and created again."""
    location: str
    current: int | None
    """Id of the current snapshot; None: the table has none yet."""
    snapshots: Mapping[int, Snapshot]
    """All snapshots that have not expired, by id; those of branches and staged ones too."""
    properties: Mapping[str, str] = MappingProxyType({})
    sequence: int = 0
    """Sequence number of the newest snapshot, in the lineage or not. It never goes down, but stays
    0 in tables of Iceberg's format 1."""

    @classmethod
    def parse(cls, text: str) -> Table:
        """Return a table from the JSON of its metadata. Raises OSError for another text."""
        try:
            content = json.loads(text)
            snapshots = {snapshot["snapshot-id"]: Snapshot.parse(snapshot) for snapshot in content.get("snapshots", ())}
            current = content.get("current-snapshot-id")
            current = None if current in (None, START) else snapshots[current].id
            sequence = content.get("last-sequence-number", 0)
            return cls(
                content["table-uuid"], content["location"], current, snapshots, content.get("properties", {}), sequence
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"the metadata of a table are not Iceberg's: {error!r}"
            raise OSError(msg) from error

    @property
    def lineage(self) -> list[Snapshot]:
        """The current snapshot and its ancestors that have not expired, the oldest first."""
        lineage: list[Snapshot] = []
        at = self.current
        while at is not None and (snapshot := self.snapshots.get(at)) is not None:
            lineage.append(snapshot)
            at = snapshot.parent
        lineage.reverse()
        return lineage

    @property
    def writers(self) -> set[str]:
        """Full names of the computations that have ever written batches into the table."""
        return {writer_of(name) for name in self.properties} - {""}

    @property
    def refusal(self) -> str:
        """Reason why lowwater cannot wait for the table's rows; empty: it can."""
        if self.properties.get("write.wap.enabled", "").lower() == "true":
            return "rows that are written into it may be published later (write.wap.enabled), when the watermark has passed them"
        return ""


_SPARK_TABLE: Final = "org.apache.iceberg.spark.source.SparkTable"

_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopTableOperations"


def is_iceberg(table: Any) -> bool:
    """Return whether a table of Spark's catalogs is an Iceberg table, and no metadata table."""
    return str(table.getClass().getName()) == _SPARK_TABLE


def find(spark: SparkSession, name: str) -> IcebergLog | None:
    """Return the Iceberg table of a name in the session's catalogs, or of a directory.

    None when it is no Iceberg table, or the session has no Iceberg. Raises OSError when a directory
    cannot be read.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    if not _is_class(jvm.org.apache.iceberg.spark.Spark3Util):
        return None
    try:
        if "/" in name:
            return _in_directory(spark, name)
        place = jvm.org.apache.iceberg.spark.Spark3Util.catalogAndIdentifier(spark._jsparkSession, name)
        table = place.catalog().loadTable(place.identifier())
    except (Py4JJavaError, PySparkException):
        return None
    if not is_iceberg(table):
        return None
    log, last = IcebergLog.of(spark, table), str(place.identifier().name())
    log.part = "" if log.name.lower().endswith(last.lower()) else last
    return log


def _in_directory(spark: SparkSession, path: str) -> IcebergLog | None:
    """Return the table of a directory; None when it has none.

    Raises OSError when the directory cannot be read: there may be a table with rows in it.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    state: Any = spark._jsparkSession.sessionState()
    try:
        tables = jvm.org.apache.iceberg.hadoop.HadoopTables(state.newHadoopConf())
        return IcebergLog(spark, path, tables.load(path)) if tables.exists(path) else None
    except Py4JJavaError as failure:
        thrown = failure.java_exception
        msg = f"whether an Iceberg table is in {path} cannot be known: {thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
        raise OSError(msg) from failure


def _is_class(name: Any) -> bool:
    from py4j.java_gateway import JavaClass

    return isinstance(name, JavaClass)


class IcebergLog:
    """One table, in any catalog.

    Each call costs the catalog's look-up of the newest metadata, and reading these when they are
    new.
    """

    def __init__(self, spark: SparkSession, name: str, table: Any, branch: str = "") -> None:
        self._spark = spark
        self.java = table
        """Table in the JVM, in Iceberg's own API."""
        self.name = name
        """Name of the table in the query."""
        self.branch = branch
        """Branch that the query names with the table; empty: none, or the main one."""
        self.part = ""
        """Branch, tag or snapshot that the name asks for, as the catalog names it; empty: none."""
        self._read: tuple[str, Table] | None = None
        """Location of the newest metadata, and the table that they describe."""

    @classmethod
    def of(cls, spark: SparkSession, table: Any) -> IcebergLog:
        """Return the Iceberg table behind a table of Spark's catalogs."""
        branch = table.branch()
        return cls(spark, str(table.table().name()), table.table(), "" if branch in (None, "main") else str(branch))

    def table(self) -> Table:
        """Return the table as of now. Raises OSError."""
        with self._call("how it stands"):
            metadata = self._metadata()
            where = str(metadata.metadataFileLocation())
            # ``by_number``: the metadata files of a path's or a Hadoop catalog's table are named by
            # number, like v3.metadata.json. If it was dropped and created again, other metadata may
            # be at the same location: without parsing each time, the old table would be returned.
            if self._read is None or self._read[0] != where or self.by_number:
                text = str(self.classes.TableMetadataParser.toJson(metadata))
                self._read = where, self._same(Table.parse(text))
            return self._read[1]

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        """Return, for each manifest that a snapshot made, its new files and its older ones.

        Two numbers a manifest, in the order of the manifests. Raises OSError.
        """
        with self._call(f"what its snapshot {snapshot} adds"):
            java_snapshot = self._metadata().snapshot(snapshot)
            if java_snapshot is None:
                msg = f"snapshot {snapshot} of the Iceberg table {self.name} has expired"
                raise OSError(msg)
            manifests = (
                manifest
                for manifest in java_snapshot.dataManifests(self.java.io())
                if manifest.snapshotId() == snapshot
            )
            return [(int(manifest.addedFilesCount()), int(manifest.existingFilesCount())) for manifest in manifests]

    @property
    def classes(self) -> Any:
        """Package of Iceberg's own classes in the JVM."""
        jvm: Any = self._spark._jvm
        return jvm.org.apache.iceberg

    @property
    def by_number(self) -> bool:
        """True for a table of a path or a Hadoop catalog: its metadata files have numbers."""
        return str(self.java.operations().getClass().getName()) == _HADOOP

    @property
    def gateway(self) -> Any:
        """Py4J's gateway to the JVM."""
        return self._spark.sparkContext._gateway

    def knows(self, name: str) -> bool:
        """Return whether this version of Iceberg has a class."""
        package: Any = self._spark._jvm
        for part in name.split("."):
            package = getattr(package, part)
        return _is_class(package)

    def refresh(self, table: Table) -> None:
        """Make the table in the JVM at least as new as ``table``.

        Raises OSError when it is another table by now.
        """
        with self._call("which one it is"):
            now = str(self.java.operations().refresh().uuid())
        if now != table.id:
            msg = f"the Iceberg table {self.name} was created again, and this session still has the old one. Start the query again."
            raise OSError(msg)

    def files(self, snapshot: int) -> list[str]:
        """Return the paths of the data files that a snapshot adds. Raises OSError."""
        with self._call(f"what its snapshot {snapshot} adds"):
            java_snapshot = self.java.snapshot(snapshot)
            changes = self.classes.SnapshotChanges.builderFor(self.java).snapshot(java_snapshot).build()
            return [str(file.location()) for file in changes.addedDataFiles()]

    def _metadata(self) -> Any:
        if not self.by_number:
            return self.java.operations().refresh()
        # ``by_number``: the table of a path or of a Hadoop catalog is loaded anew each time.
        # refresh() would go on from the number of the metadata file that it read last: after the
        # table was dropped and created again, it would fail or keep the old metadata.
        state: Any = self._spark._jsparkSession.sessionState()
        return self.classes.hadoop.HadoopTables(state.newHadoopConf()).load(self.java.location()).operations().current()

    def _same(self, table: Table) -> Table:
        """Return the table that was read before if it is equal: callers compare by identity."""
        return self._read[1] if self._read is not None and self._read[1] == table else table

    def _call(self, what: str) -> AbstractContextManager[None]:
        return jvm_call(f"the Iceberg table {self.name}", what)
