"""An Iceberg table, read as the query does: by Iceberg's classes in the JVM of Spark's driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowwater_spark.sources.iceberg import Table
from lowwater_spark.sources.jvm import call_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["IcebergLog", "find", "is_iceberg"]

T = TypeVar("T")

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

        def ask() -> Table:
            metadata = self._metadata()
            where = str(metadata.metadataFileLocation())
            # Metadata of Hadoop tables have numbers as names: a table that was created anew has
            # other metadata under the same name.
            if self._read is None or self._read[0] != where or self.by_number:
                text = str(self.classes.TableMetadataParser.toJson(metadata))
                self._read = where, self._same(Table.parse(text))
            return self._read[1]

        return self._call("how it stands", ask)

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        """Return, for each manifest that a snapshot made, its new files and its older ones.

        Two numbers a manifest, in the order of the manifests. Raises OSError.
        """

        def ask() -> Sequence[tuple[int, int]]:
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

        return self._call(f"what its snapshot {snapshot} adds", ask)

    @property
    def classes(self) -> Any:
        """Package of Iceberg's own classes in the JVM."""
        jvm: Any = self._spark._jvm
        return jvm.org.apache.iceberg

    @property
    def by_number(self) -> bool:
        """True for a table without a catalog, whose metadata files are ordered by number."""
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

        def ask() -> str:
            return str(self.java.operations().refresh().uuid())

        if self._call("which one it is", ask) != table.id:
            msg = f"the Iceberg table {self.name} was created again, and this session still has the old one. Start the query again."
            raise OSError(msg)

    def files(self, snapshot: int) -> list[str]:
        """Return the paths of the data files that a snapshot adds. Raises OSError."""

        def ask() -> list[str]:
            java_snapshot = self.java.snapshot(snapshot)
            changes = self.classes.SnapshotChanges.builderFor(self.java).snapshot(java_snapshot).build()
            return [str(file.location()) for file in changes.addedDataFiles()]

        return self._call(f"what its snapshot {snapshot} adds", ask)

    def _metadata(self) -> Any:
        if not self.by_number:
            return self.java.operations().refresh()
        # A refresh looks only for metadata with a greater number than before. In a table that was
        # created anew it would find none.
        state: Any = self._spark._jsparkSession.sessionState()
        return self.classes.hadoop.HadoopTables(state.newHadoopConf()).load(self.java.location()).operations().current()

    def _same(self, table: Table) -> Table:
        """Return the table that was read before if it is equal: callers compare by identity."""
        return self._read[1] if self._read is not None and self._read[1] == table else table

    def _call(self, what: str, ask: Callable[[], T]) -> T:
        return call_jvm(f"the Iceberg table {self.name}", what, ask)
