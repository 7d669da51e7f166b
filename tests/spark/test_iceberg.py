"""An Iceberg source follows a table's lineage: what counts, what holds, and what is refused. `tests/iceberg` shows the same of real tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, OpenSource
from lowwater_spark.sources.tables.iceberg import IcebergSource, OpenIceberg
from lowwater_spark.sources.tables.iceberg_log import Snapshot, Table

INPUTS = frozenset({"default/source"})


class Log:
    def __init__(self) -> None:
        self.state = Table("u", "/t", None, {})
        self.layouts: dict[int, Sequence[tuple[int, int]]] = {}
        self._ids = itertools.count(900, -7)

    def table(self) -> Table:
        return self.state

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        return self.layouts[snapshot]

    def make(self, operation: str = "append", added: int | None = 1, *, parent: int | None, **fields: object) -> int:
        """A snapshot that is in no lineage."""
        snapshot = Snapshot(next(self._ids), parent, operation, added)._replace(**fields)  # type: ignore[arg-type]
        snapshots = {**self.state.snapshots, snapshot.id: snapshot}
        self.state = self.state._replace(snapshots=snapshots, sequence=self.state.sequence + 1)
        return snapshot.id

    def put(self, operation: str = "append", added: int | None = 1, **fields: object) -> int:
        snapshot = self.make(operation, added, parent=self.state.current, **fields)
        self.set(snapshot)
        return snapshot

    def set(self, snapshot: int | None) -> None:
        self.state = self.state._replace(current=snapshot)

    def expire(self, *snapshots: int) -> None:
        rest = {number: snapshot for number, snapshot in self.state.snapshots.items() if number not in snapshots}
        self.state = self.state._replace(snapshots=rest)


def line(snapshot: int, position: int = 1, *, whole: bool = False) -> str:
    return json.dumps({"version": 1, "snapshot_id": snapshot, "position": position, "scan_all_files": whole})


class Query:
    """A query over such a table, which begins where Iceberg's does."""

    def __init__(self, folder: Path, log: Log, **options: str) -> None:
        self.folder = folder
        self.log = log
        self.options = options
        self.manifest = Manifest(folder)
        self.manifest.begin(1)
        self.source = self.open()
        lineage = log.state.lineage
        self.begin(line(lineage[0].id if lineage else -1, 0))
        (folder / "offsets").mkdir()
        (folder / "offsets/0").touch()

    def begin(self, at: str) -> None:
        path = self.folder / "sources/0/offsets/0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(at)

    def open(self) -> OpenIceberg:
        source = IcebergSource("t", self.options, self.log).waiting_for(INPUTS).open(self.manifest, 0)
        assert isinstance(source, OpenIceberg)
        return source

    def commit(self, at: str, source: OpenSource | None = None) -> None:
        for_ = self.source if source is None else source
        for_.read_to(at)
        for_.confirm(at)

    def reached(self, at: str, *, settled: str = NONE) -> bool:
        """Return True if all that is there now is read when a batch at a place is committed."""
        head = self.source.wait(self.source.head(settled), None)
        self.commit(at)
        return self.source.reached(head, at)

    def holds(self, reason: str, *, for_good: bool = True) -> None:
        with pytest.raises(OSError, match=reason):
            self.source.head(NONE)
        if for_good:
            with pytest.raises(CheckpointMismatch, match=reason):
                self.open()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def query(log: Log, tmp_path: Path) -> Callable[..., Query]:
    return lambda **options: Query(tmp_path / "ck", log, **options)


def test_a_scan_of_all_files_has_older_ones_to_read(log: Log, query: Callable[..., Query]) -> None:
    first = log.put(added=3)
    run = query()
    head = run.source.head(NONE)
    assert [run.source.reached(head, line(first, 3, whole=whole)) for whole in (False, True)] == [True, False]


def test_files_that_icebergs_stream_passes_over_hold_for_good(log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    run = query()
    assert run.reached(line(first))
    second = log.put(added=None)
    log.layouts[second] = [(1, 5), (1, 0)]
    run.holds("Iceberg's stream skips files")


@pytest.mark.parametrize("aside", [False, True])
def test_a_cached_answer_of_a_catalog_does_no_lasting_harm(aside: bool, log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    run = query()
    run.commit(line(first))
    old, second = log.state, log.put()
    if aside:
        log.make("append", parent=first)
    new = log.state
    assert run.reached(line(second))
    run.source.close()
    pin = run.manifest["iceberg"]
    for _ in range(2):
        log.state = old
        run.holds("are older than before", for_good=False)
        run.source = run.open()
    assert run.manifest["iceberg"] == pin
    log.state = new
    run.commit(line(second))
    assert run.reached(line(second))
    log.state = old._replace(sequence=new.sequence)
    run.holds("was rolled back or replaced")


@pytest.mark.parametrize(("how", "restarted"), [("fast forward", True), ("cherry-pick", False)])
def test_rows_published_late_hold_for_good(how: str, restarted: bool, log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    run = query()
    assert run.reached(line(first))
    aside = log.make(parent=first)
    run.source.head(line(first))
    if restarted:
        run.source = run.open()
    if how == "cherry-pick":
        log.put()
        log.put(origin=aside)
    else:
        log.set(aside)
    run.holds("publishes rows that were written earlier")


def test_i2_an_expired_beginning_must_be_declared(log: Log, query: Callable[..., Query], tmp_path: Path) -> None:
    first, second = log.put(), log.put()
    log.expire(first)
    with pytest.raises(Unsupported, match="whose first snapshots have expired"):
        query()
    declared = Query(tmp_path / "declared", log, **{"lowwater.earlierrows": "skip"})
    assert declared.reached(line(second))


def test_i2_snapshots_that_expire_when_a_query_begins_hold_for_good(log: Log, query: Callable[..., Query]) -> None:
    run = query()
    first, second = log.put(), log.put()
    run.source.head(NONE)
    log.expire(first)
    run.commit(line(second))
    run.holds("it may have begun after rows that it never reads")


def test_only_a_snapshot_that_may_have_new_rows_needs_a_name() -> None:
    changes = [("append", 1), ("append", 0), ("append", None), ("replace", 3)]
    assert [Snapshot(1, None, *change).strange for change in changes] == [True, False, True, False]


def test_a_branch_and_a_table_that_publishes_late_are_refused(log: Log) -> None:
    with pytest.raises(Unsupported, match="of its branch audit"):
        IcebergSource("t", {}, log, branch="audit").waiting_for(INPUTS)
    log.state = log.state._replace(properties={"write.wap.enabled": "true"})
    with pytest.raises(Unsupported, match=r"write\.wap\.enabled"):
        IcebergSource("t", {}, log).waiting_for(INPUTS).check_writers()


@pytest.mark.parametrize("operation", ["delete", "heard of tomorrow"])
def test_what_takes_rows_is_never_reached_and_is_named(operation: str, log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    run = query()
    wall = log.put(operation, 0)
    assert not run.reached(line(first))
    head = run.source.head(NONE)
    [reason] = run.source.missing(head, 5)
    assert f"snapshot {wall} " in reason
    assert "a stream of Iceberg ends there" in reason


def test_i2_a_query_that_began_elsewhere_than_seen_holds_for_good(log: Log, query: Callable[..., Query]) -> None:
    _, second = log.put(), log.put()
    run = query()
    run.begin(line(second, 0))
    run.commit(line(second))
    run.holds("it may have begun after rows that it never reads")


def test_i2_an_empty_table_whose_beginning_expires_unseen_holds(log: Log, query: Callable[..., Query]) -> None:
    run = query()
    first, _ = log.put(), log.put()
    log.expire(first)
    run.holds("have expired before they were read")
