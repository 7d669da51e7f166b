"""An Iceberg table, asked through the JVM of Spark's driver: by the classes that the query reads it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowwater_spark.sources.iceberg import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["IcebergLog", "is_iceberg", "load"]

T = TypeVar("T")

_SPARK_TABLE: Final = "org.apache.iceberg.spark.source.SparkTable"

_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopTableOperations"


def is_iceberg(table: Any) -> bool:
    """Return whether a table of Spark's catalogs is one of Iceberg, and not one of those that describe it."""
    return str(table.getClass().getName()) == _SPARK_TABLE


def load(spark: SparkSession, name: str) -> IcebergLog:
    """Return the table that a session knows by a name, or that is in a directory. Raises OSError when there is none, or Iceberg is not there."""
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm
    try:
        found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    except (Py4JError, TypeError) as error:
        msg = f"there is no Iceberg table {name} in this session: {error}"
        raise OSError(msg) from error
    return IcebergLog(spark, name, found)


class IcebergLog:
    """One table, in whatever catalog. Each call costs what the catalog needs to say which metadata are the newest, and these once when they are new."""

    def __init__(self, spark: SparkSession, name: str, table: Any) -> None:
        self._spark = spark
        self._table = table
        self.name = name
        """As the query names it."""
        self._read: tuple[str, Table] | None = None
        """The newest metadata, by where they are."""

    def table(self) -> Table:
        """Return the table as of now. Raises OSError."""

        def ask() -> Table:
            metadata = self._metadata()
            where = str(metadata.metadataFileLocation())
            # Those of Hadoop have numbers: a table that was made anew has other metadata under them.
            if self._read is None or self._read[0] != where or self._by_number:
                text = str(self._classes.TableMetadataParser.toJson(metadata))
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
            made = (each for each in found.dataManifests(self._table.io()) if each.snapshotId() == snapshot)
            return [(int(each.addedFilesCount()), int(each.existingFilesCount())) for each in made]

        return self._asked(f"what its snapshot {snapshot} adds", ask)

    @property
    def _classes(self) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.org.apache.iceberg

    @property
    def _by_number(self) -> bool:
        return str(self._table.operations().getClass().getName()) == _HADOOP

    def _metadata(self) -> Any:
        if not self._by_number:
            return self._table.operations().refresh()
        # It looks for metadata with a greater number than it had: in a table that was made anew it would find none.
        state: Any = self._spark._jsparkSession.sessionState()
        return (
            self._classes.hadoop.HadoopTables(state.newHadoopConf()).load(self._table.location()).operations().current()
        )

    def _same(self, found: Table) -> Table:
        """Return what was read before if it is the same."""
        return self._read[1] if self._read is not None and self._read[1] == found else found

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        from py4j.protocol import Py4JError, Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return ask()
        except Py4JJavaError as failure:
            thrown = failure.java_exception
            reason = f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
        except (Py4JError, PySparkException) as failure:
            reason = str(failure)
        msg = f"the Iceberg table {self.name} does not tell {what}: {reason}"
        raise OSError(msg)
