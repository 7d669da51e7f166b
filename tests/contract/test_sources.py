"""What every kind of source answers, alike: the contract of :mod:`lowwater_spark.sources.base`.

A kind joins by a class like :class:`Files` below, which can write rows, take them into a batch, and take rows away, and by a line in ``KINDS``. No
Spark here: what Spark writes into a checkpoint, the tests write themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources import iceberg
from lowwater_spark.sources.base import NONE, Line, OpenSource, Source
from lowwater_spark.sources.control import ControlSource, Offset
from lowwater_spark.sources.delta import Commit, DeltaSource, Table
from lowwater_spark.sources.files import FileSource
from lowwater_spark.sources.head import Candidates, Heads
from lowwater_spark.sources.sink_log import SINK_LOG
from lowwater_spark.sources.ticks import Ticks, tick_directory
from tests.spark.kafka_answers import Answers, over
from tests.spark.support import begun, lines

STRANGE = '{"topic":{"0":5}}'
"""The line of a source that is of no kind here."""


class Kind(Protocol):
    def __init__(self, base: Path) -> None: ...
    def open(self) -> OpenSource: ...
    def put(self, *names: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def lose(self) -> None: ...
    def replace(self) -> None: ...
    def plan(self, *names: str) -> Line: ...
    def names(self, said: str, name: str) -> bool: ...


class Files:
    sink_log = False

    def __init__(self, base: Path) -> None:
        self.checkpoint, self.root = base / "ck", base / "in"
        self.root.mkdir(parents=True)
        self.batch = -1

    @property
    def source(self) -> Source:
        return FileSource(os.fspath(self.root), recursive=True, sink_log=self.sink_log)

    def open(self) -> OpenSource:
        return self.source.open(begun(self.checkpoint), 0)

    def put(self, *names: str) -> None:
        for name in names:
            (self.root / name).write_text("{}")

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def lose(self) -> None:
        self.root.rename(self.root.with_name("elsewhere"))

    def replace(self) -> None:
        raise NotImplementedError

    def plan(self, *names: str) -> Line:
        self.batch += 1
        paths = [self.root / name for name in names]
        entries = [
            {"path": path.as_uri(), "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": self.batch}
            for path in paths
        ]
        write_log(self.checkpoint / "sources/0" / str(self.batch), entries)
        return lines(self.batch)[0]

    def names(self, said: str, name: str) -> bool:
        return name in Path(said).name


class SinkLog(Files):
    sink_log = True

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.written = -1
        write_log(self.root / SINK_LOG / "0", [])
        self.written = 0

    def put(self, *names: str) -> None:
        super().put(*names)
        self._log("add", *names)

    def remove(self, name: str) -> None:
        self._log("delete", name)
        super().remove(name)

    def lose(self) -> None:
        (self.root / SINK_LOG / "0").unlink()

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
            for path in (self.root / name for name in names)
        ]
        write_log(self.root / SINK_LOG / str(self.written), entries)


def write_log(path: Path, entries: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *map(json.dumps, entries)]))


class FolderLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.id = "t"

    def table(self) -> Table:
        return Table(max(int(path.stem) for path in self._folder.iterdir()), self.id, "")

    def commit(self, version: int) -> Commit | None:
        path = self._folder / f"{version}.json"
        return Commit.parse(version, path.read_text()) if path.exists() else None

    def apps(self) -> dict[str, int]:
        return {}


class Delta:
    def __init__(self, base: Path) -> None:
        self.checkpoint, self.table = base / "ck", base / "in"
        self.versions: list[int] = []
        """How many files each adds."""
        self.taken = -1
        self.log = FolderLog(self.table / "_delta_log")
        self.put()
        self.open()
        write_log(self.checkpoint / "offsets/0", [])  # it has begun with the empty table

    def open(self) -> OpenSource:
        inputs = frozenset({"default/source"})
        source = DeltaSource(os.fspath(self.table), {}, self.log)
        return source.waiting_for(inputs).open(begun(self.checkpoint), 0)

    def put(self, *names: str) -> None:
        path = self.table / "_delta_log" / f"{len(self.versions)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        actions: list[object] = [{"commitInfo": {"operation": "WRITE"}}]
        actions += [{"add": {"path": name, "dataChange": True}} for name in names]
        path.write_text("\n".join(map(json.dumps, actions)))
        self.versions.append(len(names))

    def remove(self, name: str) -> None:
        raise NotImplementedError

    def lose(self) -> None:
        self.table.rename(self.table.with_name("elsewhere"))

    def replace(self) -> None:
        self.log.id = "another"

    def plan(self, *names: str) -> Line:
        self.taken += len(names)
        version, index = 1, self.taken
        while version < len(self.versions) and index >= self.versions[version] - 1:
            index -= self.versions[version]
            version += 1
        return json.dumps(
            {
                "sourceVersion": 1,
                "reservoirId": "t",
                "reservoirVersion": version,
                "index": index,
                "isStartingVersion": False,
            }
        )

    def names(self, said: str, name: str) -> bool:
        return name in Path(said).name


class FolderTable:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def table(self) -> iceberg.Table:
        return iceberg.Table.parse((self._folder / "metadata.json").read_text())

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        raise NotImplementedError


class Iceberg:
    def __init__(self, base: Path) -> None:
        self.checkpoint, self.folder = base / "ck", base / "in"
        self.snapshots: list[dict[str, Any]] = []
        self.held: dict[str, int] = {}
        """By name: the snapshot that it is in."""
        self.taken = 0
        self.id = "t"
        self.folder.mkdir(parents=True)
        self.put()
        self.open()
        write_log(self.checkpoint / "offsets/0", [])  # it has begun with the empty table
        begin = self.checkpoint / "sources/0/offsets/0"
        begin.parent.mkdir(parents=True)
        begin.write_text(self.plan())

    def open(self) -> OpenSource:
        source = iceberg.IcebergSource("t", {}, FolderTable(self.folder))
        return source.waiting_for(frozenset({"default/source"})).open(begun(self.checkpoint), 0)

    def put(self, *names: str) -> None:
        summary = {"operation": "append", "manifests-created": "1", "added-data-files": str(len(names))}
        last = {"parent-snapshot-id": self.snapshots[-1]["snapshot-id"]} if self.snapshots else {}
        # Their numbers say nothing of their order.
        number = 1000 - 7 * len(self.snapshots)
        self.snapshots.append({"snapshot-id": number, **last, "summary": summary})
        self.held |= dict.fromkeys(names, number)
        said = {"table-uuid": self.id, "location": "/t", "current-snapshot-id": number, "snapshots": self.snapshots}
        fresh = self.folder / "fresh.json"
        fresh.write_text(json.dumps(said))
        fresh.replace(self.folder / "metadata.json")

    def remove(self, name: str) -> None:
        raise NotImplementedError

    def lose(self) -> None:
        self.folder.rename(self.folder.with_name("elsewhere"))

    def replace(self) -> None:
        self.id = "another"
        self.put()

    def plan(self, *names: str) -> Line:
        self.taken += len(names)
        at, left = 0, self.taken
        added = [int(each["summary"]["added-data-files"]) for each in self.snapshots]
        while left > added[at]:
            left -= added[at]
            at += 1
        found = {"version": 1, "snapshot_id": self.snapshots[at]["snapshot-id"], "position": left}
        return json.dumps({**found, "scan_all_files": False})

    def names(self, said: str, name: str) -> bool:
        return f"snapshot {self.held[name]} " in said


class Kafka:
    def __init__(self, base: Path) -> None:
        self.checkpoint, self.answers = base / "ck", Answers()
        self.offsets: dict[str, int] = {}
        self.taken = 0
        self.open()
        write_log(self.checkpoint / "offsets/0", [])
        begin = self.checkpoint / "sources/0/0"
        begin.parent.mkdir(parents=True)
        begin.write_text(f"v1\n{self.plan()}")

    def open(self) -> OpenSource:
        return over(self.answers).open(begun(self.checkpoint), 0)

    def put(self, *names: str) -> None:
        for name in names:
            self.answers.end += 1
            self.offsets[name] = self.answers.end

    def remove(self, name: str) -> None:
        raise NotImplementedError

    def lose(self) -> None:
        self.answers.away = True

    def replace(self) -> None:
        self.answers.ids_of["t"] = "another"

    def plan(self, *names: str) -> Line:
        self.taken += len(names)
        return json.dumps({"t": {"0": self.taken}})

    def names(self, said: str, name: str) -> bool:
        return said.startswith("partition 0 of t (read to ") and self.offsets[name] == self.answers.end


KINDS: dict[str, type[Kind]] = {"files": Files, "sink log": SinkLog}
"""The sources that have rows, by files of which each may vanish."""


NAMED: dict[str, type[Kind]] = {"delta": Delta, "iceberg": Iceberg, "kafka": Kafka}
"""The sources that are known by an id, so that another one of the same name is told apart."""


@pytest.fixture(params=[*KINDS, *NAMED])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return {**KINDS, **NAMED}[request.param](tmp_path)


@pytest.fixture(params=NAMED)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return NAMED[request.param](tmp_path)


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return KINDS[request.param](tmp_path)


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


def test_what_comes_after_a_listing_is_not_waited_for(kind: Kind) -> None:
    kind.put("a")
    source = kind.open()
    head = source.wait(source.head(NONE), NONE)
    kind.put("b")
    line = kind.plan("a")
    source.read_to(line)
    source.look(head)
    assert source.reached(head, line)


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
    """What was read belongs to the one before: under a run, when its batch is committed, and at the next start."""
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
