"""An Iceberg table, what writes into it, and the stages over it."""

from __future__ import annotations

import itertools
from typing import Any, Final

from pyspark.sql import DataFrame

import lowwater_spark as lws
from lowwater_spark.sources.tables.iceberg_log import MARK, IcebergLog, find
from lowwater_spark.sources.tables.versioned import marked
from tests.kit import iceberg
from tests.kit.iceberg import CATALOG, Offset
from tests.kit.times import at
from tests.spark.flow import Flow, Readable

_NUMBERS: Final = itertools.count()

COLUMNS: Final = "key string, t timestamp"


class TableFlow(Readable):
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.short = f"db.t{next(_NUMBERS)}"
        self.name = f"{CATALOG}.{self.short}"
        self.create()

    def create(self, *properties: str) -> None:
        clause = f" tblproperties ({', '.join(properties)})" if properties else ""
        self.flow.spark.sql(f"create table {self.name} ({COLUMNS}) using iceberg{clause}")

    def drop(self) -> None:
        self.flow.spark.sql(f"drop table if exists {self.name} purge")

    def rows(self, *rows: tuple[str, int]) -> DataFrame:
        return self.flow.spark.createDataFrame([(key, at(hour)) for key, hour in rows], COLUMNS)

    def put(self, *rows: tuple[str, int], files: int = 1, by: str = "", **options: str) -> int:
        frame = self.rows(*rows).repartition(files)
        if by:
            options[f"snapshot-property.{MARK}"] = marked(by)
        frame.write.format("iceberg").mode("append").options(**options).save(self.name)
        return self.head

    def sql(self, statement: str) -> None:
        self.flow.spark.sql(statement.format(table=self.name))

    def call(self, procedure: str, **arguments: object) -> None:
        more = "".join(f", {name} => {value}" for name, value in arguments.items())
        self.flow.spark.sql(f"call {CATALOG}.system.{procedure}(table => '{self.short}'{more})")

    def expire(self) -> None:
        self.call("expire_snapshots", older_than="timestamp '2999-01-01 00:00:00'", retain_last=1)

    @property
    def log(self) -> IcebergLog:
        log = find(self.flow.spark, self.name)
        assert log is not None
        return log

    @property
    def head(self) -> int:
        snapshot = self.log.table().current
        assert snapshot is not None
        return snapshot

    def read(self, **options: str) -> DataFrame:
        return self.flow.spark.readStream.format("iceberg").options(**options).load(self.name)

    @property
    def offsets(self) -> list[Offset]:
        return iceberg.offsets(self.flow.folder / "ck")


def through(table: TableFlow, *writers: str, **options: Any) -> lws.Completeness:
    return lws.complete_through(table.flow.spark, table.name, list(writers) or ["stage"], **options)
