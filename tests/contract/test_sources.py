"""Every kind of source gives the same answers: the contract of :mod:`lowwater_spark.sources.base`.

A kind joins by a class like :class:`Files` below, which can write rows, take them into a batch, and take rows away, and by a line in ``FILES`` or
``NAMED``. No Spark here: what Spark writes into a checkpoint, the tests write themselves.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources import kinds
from lowwater_spark.sources.base import NONE, Line, OpenSource, Source, SourceDeclared
from lowwater_spark.sources.control import ControlSource, Offset
from lowwater_spark.sources.files.sink_log import SINK_LOG
from lowwater_spark.sources.files.source import FileSource
from lowwater_spark.sources.files.writers import mark_writer
from lowwater_spark.sources.head import Candidates, Heads
from lowwater_spark.sources.kafka.source import KafkaSource
from lowwater_spark.sources.tables import iceberg_log
from lowwater_spark.sources.tables.delta import DeltaSource
from lowwater_spark.sources.tables.delta_log import Commit, Table
from lowwater_spark.sources.tables.iceberg import IcebergSource
from lowwater_spark.sources.tables.versioned import app_id, marked
from lowwater_spark.sources.ticks import Ticks, tick_directory
from tests.spark.kafka_answers import OPTIONS, Answers
from tests.spark.support import begun, lines, row
from tests.spark.tape import Tape
from tests.spark.taped import TAPE, TapeInput

STRANGE = '{"topic":{"0":5}}'
"""The line of a source that is of no kind here."""

INPUTS = frozenset({"default/source"})


class Kind:
    """A source, a writer, and a Spark that plans batches of it."""

    of_plan: Source
    """The source as a query's plan has it, before anybody asked it to wait for inputs."""

    def __init__(self, base: Path) -> None:
        self.checkpoint, self.folder = base / "ck", base / "in"

    def open(self, inputs: frozenset[str] = INPUTS) -> OpenSource:
        return self.of_plan.waiting_for(inputs).open(begun(self.checkpoint), 0)

    def begin(self, place: str, first: str) -> None:
        """Have begun with what is there, so far: Spark notes the first offsets at a place in the checkpoint."""
        self.open()
        write_log(self.checkpoint / "offsets/0", [])
        (self.checkpoint / place).parent.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / place).write_text(first)

    def put(self, *names: str) -> None:
        """Write rows of these names."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Take away a file."""
        raise NotImplementedError

    def lose(self) -> None:
        """Be away, or damaged."""
        self.folder.rename(self.folder.with_name("elsewhere"))

    def replace(self) -> None:
        """Put another source of the same name into its place."""
        raise NotImplementedError

    def cut(self) -> None:
        """Lose rows before the last ones."""
        raise NotImplementedError

    def write(self, writer: str, *names: str) -> None:
        """Write rows as a computation does: by its full name."""
        raise NotImplementedError

    def rewind(self, *, whole: bool) -> None:
        """Go back to an older version of the whole source, or write older rows anew."""
        raise NotImplementedError

    def forget(self, count: int) -> None:
        """Drop the oldest versions."""
        raise NotImplementedError

    def plan(self, *names: str) -> Line:
        """Take rows into a batch, and give the line of it."""
        raise NotImplementedError

    def names(self, message: str, name: str) -> bool:
        return name in Path(message).name


class Files(Kind):
    sink_log = False

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.folder.mkdir(parents=True)
        self.of_plan = FileSource(os.fspath(self.folder), recursive=True, sink_log=self.sink_log)
        self.batch = -1

    def put(self, *names: str) -> None:
        for name in names:
            (self.folder / name).write_text("{}")

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def write(self, writer: str, *names: str) -> None:
        mark_writer(self.folder, writer)
        self.put(*names)

    def plan(self, *names: str) -> Line:
        self.batch += 1
        paths = [self.folder / name for name in names]
        entries = [
            {"path": path.as_uri(), "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": self.batch}
            for path in paths
        ]
        write_log(self.checkpoint / "sources/0" / str(self.batch), entries)
        return lines(self.batch)[0]


class SinkLog(Files):
    sink_log = True

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        write_log(self.folder / SINK_LOG / "0", [])
        self.written = 0

    def put(self, *names: str) -> None:
        super().put(*names)
        self._log("add", *names)

    def remove(self, name: str) -> None:
        self._log("delete", name)
        super().remove(name)

    def lose(self) -> None:
        (self.folder / SINK_LOG / "0").unlink()

    def _log(self, action: str, *names: str) -> None:
        self.written += 1
        entries = [
            {
                "path": path.as_uri(),
                "size": path.stat().st_size,
                "isDir": False,
                "modificationTime": path.stat().st_mtime_ns // 1_000_000,
                "action": action,
            }
            for path in (self.folder / name for name in names)
        ]
        write_log(self.folder / SINK_LOG / str(self.written), entries)


def write_log(path: Path, entries: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *map(json.dumps, entries)]))


class FolderLog:
    """The log of a Delta table, read without Spark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.id = "t"

    def table(self) -> Table:
        return Table(max(int(path.stem) for path in self._folder.iterdir()), self.id, "")

    def commit(self, version: int) -> Commit | None:
        path = self._folder / f"{version}.json"
        return Commit.parse(version, path.read_text()) if path.exists() else None

    def apps(self) -> Mapping[str, int]:
        commits = [self.commit(int(path.stem)) for path in self._folder.iterdir()]
        return {app: batch for commit in commits if commit is not None for app, batch in commit.batches.items()}


class Delta(Kind):
    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.versions: list[int] = []
        """The number of files that each version adds."""
        self.planned = -1
        self.log = FolderLog(self.folder / "_delta_log")
        self.of_plan = DeltaSource(os.fspath(self.folder), {}, self.log)
        self.put()
        self.begin("sources/0/begun", "")

    def put(self, *names: str) -> None:
        self.write("", *names)

    def rewind(self, *, whole: bool) -> None:
        removed: list[object] = [] if whole else [{"remove": {"path": "a", "dataChange": True}}]
        self.write("", "older", operation="RESTORE" if whole else "UPDATE", more=removed)

    def forget(self, count: int) -> None:
        for version in range(count):
            (self.folder / "_delta_log" / f"{version}.json").unlink()

    def write(self, writer: str, *names: str, operation: str = "WRITE", more: Sequence[object] = ()) -> None:
        actions = [*more, *([{"txn": {"appId": app_id(writer, "c0ffee"), "version": 1}}] if writer else [])]
        actions += [{"commitInfo": {"operation": operation}}]
        actions += [{"add": {"path": name, "dataChange": True}} for name in names]
        path = self.folder / "_delta_log" / f"{len(self.versions)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(json.dumps, actions)))
        self.versions.append(len(names))

    def replace(self) -> None:
        self.log.id = "another"

    def cut(self) -> None:
        (self.folder / "_delta_log" / f"{len(self.versions) - 2}.json").unlink()

    def plan(self, *names: str) -> Line:
        self.planned += len(names)
        version, index = 1, self.planned
        while version < len(self.versions) and index >= self.versions[version] - 1:
            index -= self.versions[version]
            version += 1
        place = {"reservoirId": "t", "reservoirVersion": version, "index": index}
        return json.dumps({"sourceVersion": 1, **place, "isStartingVersion": False})


class FolderTable:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def table(self) -> iceberg_log.Table:
        return iceberg_log.Table.parse((self._folder / "metadata.json").read_text())

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        raise NotImplementedError


class Iceberg(Kind):
    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.snapshots: list[dict[str, Any]] = []
        self.places: dict[str, int] = {}
        """The snapshot of each file, by the file's name."""
        self.planned = 0
        self.expired = 0
        self.id = "t"
        self.of_plan = IcebergSource("t", {}, FolderTable(self.folder))
        self.folder.mkdir(parents=True)
        self.put()
        self.begin("sources/0/offsets/0", self.plan())

    def put(self, *names: str) -> None:
        self.write("", *names)

    def write(self, writer: str, *names: str) -> None:
        summary = {"operation": "append", "manifests-created": "1", "added-data-files": str(len(names))}
        summary |= {iceberg_log.MARK: marked(writer)} if writer else {}
        last = {"parent-snapshot-id": self.snapshots[-1]["snapshot-id"]} if self.snapshots else {}
        # Their numbers say nothing of their order.
        number = 1000 - 7 * len(self.snapshots)
        self.snapshots.append({"snapshot-id": number, **last, "summary": summary})
        self.places |= dict.fromkeys(names, number)
        self.show(number)

    def show(self, current: int) -> None:
        metadata = {"table-uuid": self.id, "location": "/t", "current-snapshot-id": current}
        fresh = self.folder / "fresh.json"
        fresh.write_text(json.dumps({**metadata, "snapshots": self.snapshots[self.expired :]}))
        fresh.replace(self.folder / "metadata.json")

    def replace(self) -> None:
        self.id = "another"
        self.put()

    def rewind(self, *, whole: bool) -> None:
        self.show(self.snapshots[0]["snapshot-id"])

    def forget(self, count: int) -> None:
        self.expired = count
        self.show(self.snapshots[-1]["snapshot-id"])

    def cut(self) -> None:
        self.expired = len(self.snapshots)
        self.put("last")

    def plan(self, *names: str) -> Line:
        self.planned += len(names)
        at, rest = 0, self.planned
        added = [int(snapshot["summary"]["added-data-files"]) for snapshot in self.snapshots]
        while rest > added[at]:
            rest -= added[at]
            at += 1
        offset = {"version": 1, "snapshot_id": self.snapshots[at]["snapshot-id"], "position": rest}
        return json.dumps({**offset, "scan_all_files": False})

    def names(self, message: str, name: str) -> bool:
        return f"snapshot {self.places[name]} " in message


class Kafka(Kind):
    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.answers = Answers()
        self.of_plan = KafkaSource(OPTIONS, self.answers)
        self.offsets: dict[str, int] = {}
        self.planned = 0
        self.begin("sources/0/0", f"v1\n{self.plan()}")

    def put(self, *names: str) -> None:
        for name in names:
            self.answers.end += 1
            self.offsets[name] = self.answers.end

    def lose(self) -> None:
        self.answers.away = True

    def replace(self) -> None:
        self.answers.ids_of["t"] = "another"

    def cut(self) -> None:
        self.answers.end = 0

    def plan(self, *names: str) -> Line:
        self.planned += len(names)
        return json.dumps({"t": {"0": self.planned}})

    def names(self, message: str, name: str) -> bool:
        return message.startswith("partition 0 of t (read to ") and self.offsets[name] == self.answers.end


class Toy(Kind):
    """The tape of `tests/spark/taped.py`."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.tape = Tape(self.folder)
        self.of_plan = TapeInput(os.fspath(self.folder))
        self.places: list[str] = []
        self.planned = 0
        self.begin("sources/0/begun", "")

    def put(self, *names: str) -> None:
        self.tape.put(*(row(name, 9) for name in names))
        self.places += names

    def replace(self) -> None:
        self.lose()
        Tape(self.folder).put(row("z", 9))

    def cut(self) -> None:
        self.folder.write_text("")

    def plan(self, *names: str) -> Line:
        self.planned += len(names)
        return json.dumps({TAPE: {"line": self.planned}})

    def names(self, message: str, name: str) -> bool:
        return message.endswith(f"row {self.places.index(name)}")


FILES: dict[str, type[Kind]] = {"files": Files, "sink": SinkLog}
"""The sources that have rows, by files of which each may vanish."""

TABLES: dict[str, type[Kind]] = {"delta": Delta, "iceberg": Iceberg}

NAMED: dict[str, type[Kind]] = {**TABLES, "kafka": Kafka, TAPE: Toy}
"""The sources that are known by an id, so that another one of the same name is told apart."""


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.KINDS, TAPE, TapeInput)


@pytest.fixture(params=[*FILES, *NAMED])
def word(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(word: str, tmp_path: Path) -> Kind:
    (tmp_path / "kind").mkdir()
    return {**FILES, **NAMED}[word](tmp_path / "kind")


@pytest.fixture(params=NAMED)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return NAMED[request.param](tmp_path)


@pytest.fixture(params=FILES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return FILES[request.param](tmp_path)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return TABLES[request.param](tmp_path)


@pytest.fixture(params=[*FILES, *TABLES])
def marking(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """A source in which each writer leaves its name."""
    return {**FILES, **TABLES}[request.param](tmp_path)


def control(base: Path) -> tuple[OpenSource, Line]:
    return ControlSource("/told").open(begun(base / "control"), 0), json.dumps(Offset(5_000, {"a": 1}, 2).to_json())


def ticks(base: Path) -> tuple[OpenSource, Line]:
    source = Ticks(base / "ck", 0, 1)
    source.force(NONE)
    path = tick_directory(base / "ck") / "1-1"
    write_log(base / "ck/sources/0/0", [{"path": f"file://{path}", "timestamp": 1, "batchId": 0}])
    return source, lines(0)[0]


def test_what_nobody_has_read_holds_and_is_named(kind: Kind) -> None:
    kind.put("a", "b")
    source = kind.open()
    head = source.wait(source.head(NONE), NONE)
    assert not source.reached(head, None), "before the first batch"
    line = kind.plan("a")
    source.read_to(line)
    source.look(head)
    assert not source.reached(head, line)
    [missing] = source.missing(head, 5)
    assert kind.names(missing, "b")
    assert source.missing(head, 0) == []


def test_a_head_is_reached_by_the_batch_that_has_read_the_last_of_it_and_by_no_earlier_one(kind: Kind) -> None:
    kind.put("a", "b")
    source = kind.open()
    head = source.wait(source.head(NONE), NONE)
    first, second = kind.plan("b"), kind.plan("a")
    kind.put("c")
    third = kind.plan("c")
    source.read_to(third)
    source.confirm(third)
    source.look(head)
    assert [source.reached(head, line) for line in (NONE, first, second, third)] == [False, False, True, True]
    assert source.missing(head, 5) == []


def test_what_a_planned_batch_may_have_read_and_is_gone_is_waited_for(files: Kind) -> None:
    """Its tasks may have read it before it went, and nobody knows yet whether the batch will be committed."""
    files.put("a")
    source = files.open()
    line = files.plan("a")
    files.remove("a")
    source.read_to(line)
    listed = source.head(NONE)
    assert not source.reached(source.wait(listed, line), NONE)
    assert source.reached(source.wait(listed, line), line)
    assert source.reached(source.wait(listed, None), NONE), "who counts planned batches as read does not wait"


def test_what_a_planned_batch_may_have_read_under_another_name_is_waited_for(files: Kind) -> None:
    files.put("a")
    source = files.open()
    head = source.wait(source.head(NONE), NONE)
    files.remove("a")
    files.put("b")
    line = files.plan("b")
    files.remove("b")
    source.read_to(line)
    head = source.renewed(head, source.head(NONE), line)
    assert not source.reached(head, NONE)
    assert source.reached(head, line)


def test_a_new_run_finds_the_same(kind: Kind) -> None:
    kind.put("a", "b", "c")
    line = kind.plan("a", "b")
    again = kind.open()
    again.read_to(line)
    head = again.wait(again.head(line), line)
    assert not again.reached(head, line)
    [missing] = again.missing(head, 5)
    assert kind.names(missing, "c")


def test_what_cannot_be_known_is_an_error_of_the_system_and_holds_all_sources(kind: Kind, tmp_path: Path) -> None:
    kind.put("a")
    heads = Heads([control(tmp_path)[0], kind.open()])
    assert heads.list_heads() is not None
    kind.lose()
    with pytest.raises(OSError, match=r"\w"):
        heads.sources[1].head(NONE)
    assert heads.list_heads() is None
    assert heads.lost


def test_another_source_of_the_same_name_holds_and_is_refused(named: Kind) -> None:
    """Rows that were read belong to the source before: under a run, when its batch is committed, and at the next start."""
    named.put("a")
    source = named.open()
    head = source.wait(source.head(NONE), None)
    line = named.plan("a")
    source.read_to(line)
    source.confirm(line)
    assert source.reached(head, line)
    named.put("b")
    after = named.plan("b")
    named.replace()
    with pytest.raises(OSError, match="another one"):
        source.head(line)
    with pytest.raises(CheckpointMismatch, match="another one"):
        source.confirm(after)
    with pytest.raises(CheckpointMismatch, match="another one"):
        named.open().confirm(line)


def test_a_planned_line_names_the_table_that_is_pinned(tmp_path: Path) -> None:
    delta = Delta(tmp_path)
    with pytest.raises(CheckpointMismatch, match="another one"):
        delta.open().read_to(delta.plan().replace('"t"', '"another"'))


@pytest.mark.parametrize("kind", [Delta, Iceberg, Kafka])
def test_a_checkpoint_that_has_read_without_a_pin_is_refused(kind: type[Kind], tmp_path: Path) -> None:
    read = kind(tmp_path)
    begun(read.checkpoint).keep(read.of_plan.kind, None)
    with pytest.raises(CheckpointMismatch, match=r"has no (record of the versions|ids of these topics)"):
        read.open()


def test_a_line_of_another_source_is_refused(kind: Kind, tmp_path: Path) -> None:
    strange = lines(0)[0] if isinstance(kind, Kafka) else STRANGE
    for line in (strange, control(tmp_path)[1]):
        with pytest.raises(CheckpointMismatch, match="offset"):
            kind.open().read_to(line)
    with pytest.raises(CheckpointMismatch, match="control"):
        control(tmp_path)[0].read_to(kind.plan())


def test_a_reading_waits_for_all_sources(kind: Kind, tmp_path: Path) -> None:
    kind.put("a")
    tick, tick_line = ticks(tmp_path / "other")
    moved, control_line = control(tmp_path)
    sources = [moved, kind.open(), tick]
    heads = Heads(sources)
    waiting = Candidates[str](sources)
    listed = heads.list_heads()
    assert listed is not None
    waiting.add("W", listed, [])
    before = [control_line, NONE, tick_line]
    heads.read_to(before)
    assert waiting.newest_reached(before, forget=True) is None
    [missing] = waiting.missing()
    assert kind.names(missing, "a")
    after = [control_line, kind.plan("a"), tick_line]
    heads.read_to(after)
    assert waiting.newest_reached(after, forget=True) == "W"


def test_rule5_a_look_serves_the_readings_that_were_taken_before_it(kind: Kind) -> None:
    heads = Heads([kind.open()])
    kind.put("a")
    assert heads.look(heads.moment([])) is not None, "for a reading before"
    kind.put("b")
    read = heads.moment()
    listed = heads.look(read)
    assert listed is not None
    waiting = Candidates[str](heads.sources)
    waiting.add("W", listed)
    line = kind.plan("a")
    heads.read_to([line])
    assert waiting.newest_reached([line], forget=False) is None, "W covers b, which nobody has read"
    assert heads.look(read) is listed, "whoever has read before it as well"


# -- one look while another is confirmed -----------------------------------------------------------------------------------


def test_what_is_settled_may_be_left_out_and_what_is_only_planned_may_not(kind: Kind) -> None:
    kind.put("a")
    source = kind.open()
    first = kind.plan("a")
    kind.put("b")
    second = kind.plan("b")
    source.read_to(second)
    head = source.wait(source.head(first), None)
    source.look(head)
    assert [source.reached(head, line) for line in (first, second)] == [False, True]


def test_a_commit_between_two_looks_is_no_rollback(tmp_path: Path) -> None:
    """An answer of a table that is older than what was looked at meanwhile lacks the newest snapshots, as after a rollback."""
    kind = Iceberg(tmp_path)
    kind.put("a")
    line = kind.plan("a")
    source = kind.open()
    source.read_to(line)
    source.knock(line)
    kind.put("b")
    head = source.head(line)
    source.confirm(line)
    source.confirm(line)
    assert not source.reached(head, line)
    after = kind.plan("b")
    source.read_to(after)
    source.confirm(after)
    assert source.reached(source.head(after), after)
    kind.open()


# -- what is gone, and who writes ------------------------------------------------------------------------------------------


def test_an_offset_that_goes_back_is_refused_of_a_stage_and_of_an_injector(named: Kind) -> None:
    named.put("a", "b")
    first, second = named.plan("a"), named.plan("b")
    for inputs in (INPUTS, frozenset[str]()):
        source = named.open(inputs)
        source.read_to(second)
        source.confirm(second)
        with pytest.raises(CheckpointMismatch, match=r"(gone back|cut off)(.|\n)*with adopt=True"):
            source.read_to(first)


def test_a_gap_before_unread_rows_holds_and_says_what_to_do(named: Kind) -> None:
    named.put("a")
    source = named.open()
    line = named.plan("a")
    source.read_to(line)
    source.confirm(line)
    named.put("b")
    named.put("c")
    named.cut()
    with pytest.raises(OSError, match="Start from a new checkpoint, with adopt=True"):
        source.head(line)


def test_a_writer_whom_the_inputs_do_not_name_is_refused_and_holds_when_it_comes_later(marking: Kind) -> None:
    source = marking.open()
    waiting = marking.of_plan.waiting_for(INPUTS)
    marking.write("default/source", "a")
    waiting.check_writers()
    source.head(NONE)
    marking.write("default/other", "b")
    with pytest.raises(Unsupported, match="default/other") as refusal:
        waiting.check_writers()
    assert "ame it in inputs" in refusal.value.fix or "Name default/other in inputs" in refusal.value.fix
    try:
        reasons = source.missing(source.wait(source.head(NONE), None), 5)
    except OSError as refused:
        reasons = [str(refused)]
    assert [reason for reason in reasons if "default/other" in reason and "inputs do not name" in reason]


def test_rows_of_nobody_hold_for_good_once_a_writer_has_left_its_name(table: Kind) -> None:
    table.put("from before")
    table.open().head(NONE)
    table.write("default/source", "a")
    source = table.open()
    source.head(NONE)
    table.put("b")
    for refused, call in (
        (OSError, lambda: source.head(NONE)),
        (CheckpointMismatch, table.open),
        (Unsupported, table.of_plan.waiting_for(INPUTS).check_writers),
    ):
        with pytest.raises(refused, match="names no computation"):
            call()


@pytest.mark.parametrize("read", [False, True])
def test_rows_that_may_come_back_hold_for_good_also_when_they_are_read_before_a_look(table: Kind, read: bool) -> None:
    table.put("a")
    source = table.open()
    head = source.wait(source.head(NONE), None)
    line = table.plan("a")
    source.read_to(line)
    source.confirm(line)
    assert source.reached(head, line)
    table.rewind(whole=read)
    if read:
        line = table.plan("older") if isinstance(table, Delta) else line
        source.knock(line)
        source.confirm(line)
    else:
        with pytest.raises(OSError, match="with adopt=True"):
            source.head(line)
    assert not source.reached(head, line)
    with pytest.raises(CheckpointMismatch, match="with adopt=True"):
        table.open()


def test_versions_that_were_checked_need_not_stay(table: Kind) -> None:
    source = table.open()
    line = NONE
    for number in range(25):
        table.put(f"{number}")
        line = table.plan(f"{number}")
        source.read_to(line)
        source.confirm(line)
    table.forget(20)
    again = table.open()  # the run before was killed
    again.read_to(line)
    again.confirm(line)
    assert again.reached(again.head(line), line)


# -- a sidecar -------------------------------------------------------------------------------------------------------------


def test_a_sidecar_pins_what_a_run_has_pinned(named: Kind) -> None:
    source = named.of_plan
    assert json.loads(json.dumps(source.pin())) == Manifest(named.checkpoint).pin(source.kind, 0)


def test_a_sidecar_recognizes_the_directory_from_which_a_query_has_read(files: Kind) -> None:
    files.put("a")
    line = files.plan("a")
    words = ["sink", "files"] if isinstance(files, SinkLog) else ["files", "sink"]
    good, wrong = (SourceDeclared(word, os.fspath(files.folder)) for word in words)
    with pytest.raises(Unsupported, match="file sink in it") as refusal:
        FileSource.declared(wrong, pytest.fail)
    assert f"Declare {good.name}" in refusal.value.fix
    source, manifest = FileSource.declared(good, pytest.fail), begun(files.checkpoint)
    source.recognize(manifest, 0, line)
    files.remove("a")
    with pytest.raises(Unsupported, match=good.name):
        source.recognize(manifest, 0, line)


def test_a_line_says_how_its_source_is_declared(kind: Kind, word: str) -> None:
    kind.put("a")
    example, _, place = kinds.guess(kind.plan("a")).partition(":")
    assert example == ("files" if word == "sink" else word)
    options = dict(pair.split("=") for pair in place.split(",")[1:])
    placed: Any = kinds.kind_of(word).place(place.split(",", maxsplit=1)[0])
    declared = SourceDeclared(word, **placed, options=options)
    assert options.keys() <= kinds.kind_of(word).allowed(declared)
    assert kinds.guess(NONE) == "?"


def test_an_option_of_which_nobody_knows_whether_it_leaves_rows_out_is_refused_by_name(table: Kind) -> None:
    source: Any = table.of_plan
    source = dataclasses.replace(source, options={"heardoftomorrow": "true"})
    assert source.waiting_for(frozenset()) == source, "an injector says itself how far it is"
    with pytest.raises(Unsupported, match="with the option heardoftomorrow") as refusal:
        source.waiting_for(INPUTS)
    assert refusal.value.fix
