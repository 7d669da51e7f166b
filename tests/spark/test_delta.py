"""Delta as the source of a tracked stage: a watermark counts when all that the table had is committed, and else it holds, or is refused by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import OpenSource
from lowwater_spark.sources.delta import DELTA, Commit, DeltaSource, Head, Table, app_id
from lowwater_spark.sources.delta_log import DeltaLog
from lowwater_spark.track.plan import check_plan
from tests.kit import delta
from tests.kit.delta import Offset
from tests.kit.times import at, mark
from tests.spark.flow import Flow, Readable
from tests.spark.support import Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 180


class TableFlow(Readable):
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.path = flow.folder / "table"

    def put(self, *rows: tuple[str, int], files: int = 1, **options: Any) -> None:
        frame = self.flow.spark.createDataFrame([(key, at(hour)) for key, hour in rows], "key string, t timestamp")
        frame.repartition(files).write.format("delta").mode("append").options(**options).save(str(self.path))

    def sql(self, statement: str) -> None:
        self.flow.spark.sql(statement.format(table=f"delta.`{self.path}`"))

    def read(self, **options: str) -> DataFrame:
        return self.flow.spark.readStream.format("delta").options(**options).load(str(self.path))

    @property
    def head(self) -> int:
        return delta.head(self.path)

    @property
    def offsets(self) -> list[Offset]:
        return delta.offsets(self.flow.folder / "ck")


@pytest.fixture
def table(flow: Flow) -> TableFlow:
    return TableFlow(flow)


@dataclass
class Log:
    found: Table
    commits: dict[int, Commit] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def put(self, operation: str, **said: Any) -> None:
        version = self.found.version + 1
        self.found = self.found._replace(version=version)
        self.commits[version] = Commit(
            version, **{"added": 1, "removes": False, "writer": "", "table": "", **said}, operation=operation
        )

    def table(self) -> Table:
        return self.found

    def commit(self, version: int) -> Commit | None:
        return self.commits.get(version)

    def apps(self) -> Mapping[str, int]:
        return self.counted


def test_d1_a_stage_follows_inputs_through_a_table(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    going = threading.Event()
    going.set()

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        going.wait(PATIENCE)
        table.flow.plain(rows, batch)

    table.put(("a", 9), ("b", 9))
    upstream.at(9)
    query = table.track(write)
    table.flow.eventually(lambda: low(lw, "stage") == mark(9), "the rows are committed")
    upstream.at(10)
    table.flow.eventually(lambda: low(lw, "stage") == mark(10), "no rows are needed")
    going.clear()
    table.put(("c", 10))
    upstream.at(11)
    table.flow.eventually(lambda: table.offsets[-1].version > table.head, "the row is planned, not committed")
    assert low(lw, "stage") == mark(10)
    going.set()
    table.flow.eventually(lambda: low(lw, "stage") == mark(11), "now it is")
    for statement in ("OPTIMIZE {table}", "ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')"):
        before = table.head
        table.sql(statement)
        assert table.head > before
    upstream.at(12)
    table.flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes past what adds no rows")
    query.stop()
    table.put(("d", 12))
    upstream.at(13)
    query = table.track(write)
    table.flow.eventually(lambda: low(lw, "stage") == mark(13), "after a restart")
    assert table.keys() == ["a", "b", "c", "d"]
    table.sql("UPDATE {table} SET t = t + INTERVAL 1 HOUR WHERE key = 'a'")
    upstream.at(14)
    with pytest.raises(Exception, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        query.await_termination(PATIENCE)
    assert low(lw, "stage") == mark(13), "rows were taken away"


def test_d4_a_rate_limit_leaves_rows_of_a_snapshot(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    for hour in range(3):
        table.put((f"{hour}", hour))
    upstream.at(9)
    seen: list[tuple[Offset, bool]] = []

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        seen.append((table.offsets[batch.id], mark(9) in (batch.low, low(lw, "stage"))))
        table.flow.plain(rows, batch)

    table.track(write, source={"maxFilesPerTrigger": "1"})
    table.flow.eventually(lambda: low(lw, "stage") == mark(9), "all are read")
    head = table.head
    assert seen[:2] == [(Offset(head, 0, initial=True), False), (Offset(head, 1, initial=True), False)]
    assert [offset.version >= head for offset, _ in seen[:2]] == [True, True], "by its number alone it would lead"
    assert Offset(head + 1, -1, initial=False) in table.offsets
    assert table.keys() == ["0", "1", "2"]


class Opened:
    def __init__(self, folder: Path) -> None:
        self.log = Log(Table(3, "t", "/t"))
        self.made = DeltaSource("/t", {}, self.log).waiting_for(frozenset({"source"}))
        self.folder = folder
        self.manifest = Manifest(folder)
        self.manifest.begin(1)
        self.source = self.open()
        (folder / "offsets").mkdir()
        (folder / "offsets/0").touch()

    def open(self) -> OpenSource:
        return self.made.open(self.manifest, 0)


def line(version: int, index: int = -1, *, initial: bool = False) -> str:
    found = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": version, "index": index}
    return json.dumps({**found, "isStartingVersion": initial})


def test_a_writer_whom_the_inputs_do_not_name_is_refused_and_later_holds(tmp_path: Path) -> None:
    said = "was written by other, which the inputs do not name"
    for writer, why in (("other", said), ("", "names no computation")):
        opened = Opened(tmp_path / (writer or "nobody"))
        opened.log.put("WRITE", writer="source")
        opened.source.head("-")
        opened.log.put("WRITE", writer=writer)
        with pytest.raises(OSError, match=why):
            opened.source.head("-")
        if writer:
            opened.log.counted = {app_id(writer, "c0ffee"): 0}
            with pytest.raises(Unsupported, match="into which other writes"):
                opened.made.check_writers()
        else:
            with pytest.raises(Unsupported, match=why):
                opened.made.check_writers()
            with pytest.raises(CheckpointMismatch, match=why):
                opened.open()


@pytest.mark.parametrize(("operation", "removes"), [("RESTORE", False), ("UPDATE", True)])
def test_rows_that_came_back_hold_also_if_read_before_a_look(tmp_path: Path, operation: str, removes: bool) -> None:
    opened = Opened(tmp_path)
    opened.log.put(operation, removes=removes)
    head = opened.source.wait(Head(4, empty=False), None)
    assert opened.source.reached(head, line(5))
    opened.source.read_to(line(5))
    opened.source.confirm(line(5))
    assert not opened.source.reached(head, line(5))
    with pytest.raises(OSError, match=rf"version 4 \({operation}\)"):
        opened.source.head(line(5))
    with pytest.raises(CheckpointMismatch, match=operation):
        opened.open()


def test_what_was_looked_at_need_not_stay_in_the_log(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    for _ in range(25):
        opened.log.put("WRITE")
    opened.source.head("-")
    opened.source.confirm(line(26))
    for version in range(26):
        opened.log.commits.pop(version, None)
    again = opened.open()  # the run before was killed
    again.confirm(line(26))
    assert again.reached(again.head(line(26)), line(29))
    del opened.log.commits[27]
    with pytest.raises(OSError, match="version 27 of the Delta table /t is not in its log any more"):
        opened.open().head(line(26))


@pytest.mark.parametrize(
    "options",
    [{"ignoreChanges": "true"}, {"readChangeFeed": "true"}, {"heardOfTomorrow": "true"}],
    ids=lambda options: next(iter(options)),
)
def test_d5_d9_an_option_that_leaves_rows_out_is_refused_by_name(options: dict[str, str]) -> None:
    given = {"path": "/t", **{name.lower(): value for name, value in options.items()}}
    source = DeltaSource("/t", given, Log(Table(0, "t", "/t")))
    assert source.waiting_for(frozenset()) == source, "an injector says itself how far it is"
    with pytest.raises(Unsupported, match=f"(?i)with the option {next(iter(options))}"):
        source.waiting_for(frozenset({"default/source"}))


def test_d12_d13_a_table_whose_log_does_not_tell_all_is_refused() -> None:
    for table, why in (
        (Table(3, "t", "/t", frozenset({"catalogManaged"})), "catalog has its newest commits"),
        (Table(3, "t", "/t", properties={"delta.coordinatedCommits.commitCoordinator-preview": "d"}), "coordinator"),
    ):
        source = DeltaSource("/t", {"path": "/t"}, Log(table)).waiting_for(frozenset({"default/source"}))
        with pytest.raises(Unsupported, match=why):
            source.check_writers()


def test_d12_of_a_table_on_s3_it_is_declared_that_no_writer_keeps_commits_elsewhere() -> None:
    log = Log(Table(3, "t", "s3a://bucket/t"))
    given = {"path": "s3a://bucket/t"}
    with pytest.raises(Unsupported, match=r"without the option lowwater\.externalLogStore"):
        DeltaSource("s3a://bucket/t", given, log).waiting_for(frozenset({"source"})).check_writers()
    declared = {**given, "lowwater.externallogstore": "false"}
    DeltaSource("s3a://bucket/t", declared, log).waiting_for(frozenset({"source"})).check_writers()


def test_delta_is_known_however_it_is_spelt(table: TableFlow) -> None:
    table.put(("a", 9))
    for spelt in ("DELTA", "org.apache.spark.sql.delta.sources.DeltaDataSource"):
        frame = table.flow.spark.readStream.format(spelt).load(str(table.path))
        [source] = check_plan(table.flow.spark, frame).sources
        assert source == DeltaSource(str(table.path), {"path": str(table.path)}, DeltaLog(table.flow.spark, ""))
        assert source.kind == DELTA
