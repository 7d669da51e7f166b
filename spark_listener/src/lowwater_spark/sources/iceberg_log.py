"""An Iceberg table, asked through the JVM of Spark's driver: by the classes that the query reads it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowwater_spark.sources.iceberg import Table
from lowwater_spark.sources.jvm import asked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["IcebergLog", "find", "is_iceberg"]

T = TypeVar("T")

_SPARK_TABLE: Final = "org.apache.iceberg.spark.source.SparkTable"

_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopTableOperations"


def is_iceberg(table: Any) -> bool:
    """Return whether a table of Spark's catalogs is one of Iceberg, and not one of those that describe it."""
    return str(table.getClass().getName()) == _SPARK_TABLE


def find(spark: SparkSession, name: str) -> IcebergLog | None:
    """Return the table that a session knows by a name, or that is in a directory without a catalog; None when it is none of Iceberg, or Iceberg is not there.

    Raises OSError when nobody tells what is in a directory.
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
        found = place.catalog().loadTable(place.identifier())
    except (Py4JJavaError, PySparkException):
        return None
    if not is_iceberg(found):
        return None
    log, last = IcebergLog.of(spark, found), str(place.identifier().name())
    log.part = "" if log.name.lower().endswith(last.lower()) else last
    return log


def _in_directory(spark: SparkSession, path: str) -> IcebergLog | None:
    """Return the table of a directory, None where there is none.

    Raises OSError when that cannot be known: there may be one, in which rows are looked for.
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
    """One table, in whatever catalog.

    Each call costs what the catalog needs to say which metadata are the newest, and these once when
    they are new.
    """

    def __init__(self, spark: SparkSession, name: str, table: Any, branch: str = "") -> None:
        self._spark = spark
        self.java = table
        """The table in the JVM, of Iceberg's own API."""
        self.name = name
        """As the query names it."""
        self.branch = branch
        """The branch that is named with it; empty: none, or the main one."""
        self.part = ""
        """The branch, tag or snapshot of it that was asked for, as the catalog names it; empty:
        none."""
        self._read: tuple[str, Table] | None = None
        """The newest metadata, by where they are."""

    @classmethod
    def of(cls, spark: SparkSession, table: Any) -> IcebergLog:
        """Return the table that a table of Spark's catalogs stands for."""
        branch = table.branch()
        return cls(spark, str(table.table().name()), table.table(), "" if branch in (None, "main") else str(branch))

    def table(self) -> Table:
        """Return the table as of now. Raises OSError."""

        def ask() -> Table:
            metadata = self._metadata()
            where = str(metadata.metadataFileLocation())
            # Those of Hadoop have numbers: a table that was made anew has other metadata under
            # them.
            if self._read is None or self._read[0] != where or self.by_number:
                text = str(self.classes.TableMetadataParser.toJson(metadata))
                self._read = where, self._same(Table.parse(text))
            return self._read[1]

        return self._asked("how it stands", ask)

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        """Return of each manifest that a snapshot has made, in order, how many files it adds and how many it took over. Raises OSError."""

        def ask() -> Sequence[tuple[int, int]]:
            found = self._metadata().snapshot(snapshot)
            if found is None:
                msg = f"snapshot {snapshot} of the Iceberg table {self.name} has expired"
                raise OSError(msg)
            made = (each for each in found.dataManifests(self.java.io()) if each.snapshotId() == snapshot)
            return [(int(each.addedFilesCount()), int(each.existingFilesCount())) for each in made]

        return self._asked(f"what its snapshot {snapshot} adds", ask)

    @property
    def classes(self) -> Any:
        """Iceberg's own."""
        jvm: Any = self._spark._jvm
        return jvm.org.apache.iceberg

    @property
    def by_number(self) -> bool:
        """Whether it has no catalog: its metadata are files with numbers, and the greatest one counts."""
        return str(self.java.operations().getClass().getName()) == _HADOOP

    @property
    def gateway(self) -> Any:
        """The way to the JVM."""
        return self._spark.sparkContext._gateway

    def knows(self, name: str) -> bool:
        """Return whether this version of Iceberg has a class."""
        found: Any = self._spark._jvm
        for part in name.split("."):
            found = getattr(found, part)
        return _is_class(found)

    def refresh(self, table: Table) -> None:
        """Have the JVM's table be as new as what was read of it.

        Raises OSError when that is another one by now.
        """

        def ask() -> str:
            return str(self.java.operations().refresh().uuid())

        if self._asked("which one it is", ask) != table.id:
            msg = f"the Iceberg table {self.name} was made anew; this session still has the old one. Start the query again."
            raise OSError(msg)

    def files(self, snapshot: int) -> list[str]:
        """Return the files of rows that a snapshot adds, by their paths. Raises OSError."""

        def ask() -> list[str]:
            found = self.java.snapshot(snapshot)
            changes = self.classes.SnapshotChanges.builderFor(self.java).snapshot(found).build()
            return [str(each.location()) for each in changes.addedDataFiles()]

        return self._asked(f"what its snapshot {snapshot} adds", ask)

    def _metadata(self) -> Any:
        if not self.by_number:
            return self.java.operations().refresh()
        # It looks for metadata with a greater number than it had: in a table that was made anew it
        # would find none.
        state: Any = self._spark._jsparkSession.sessionState()
        return self.classes.hadoop.HadoopTables(state.newHadoopConf()).load(self.java.location()).operations().current()

    def _same(self, found: Table) -> Table:
        """Return what was read before if it is the same."""
        return self._read[1] if self._read is not None and self._read[1] == found else found

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        return asked(f"the Iceberg table {self.name}", what, ask)
