"""What an Iceberg source makes of a table's lineage: what counts, what holds, and what is refused. `tests/iceberg` shows the same of real tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, OpenSource
from lowwater_spark.sources.iceberg import IcebergSource, OpenIceberg
from lowwater_spark.sources.iceberg_log import Snapshot, Table

INPUTS = frozenset({"default/source"})


class Log:
    def __init__(self) -> None:
        self.found = Table("u", "/t", None, {})
        self.layouts: dict[int, Sequence[tuple[int, int]]] = {}
        self._ids = itertools.count(900, -7)

    def table(self) -> Table:
        return self.found

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        return self.layouts[snapshot]

    def make(self, operation: str = "append", added: int | None = 1, *, parent: int | None, **said: object) -> int:
        """A snapshot that is in no lineage."""
        made = Snapshot(next(self._ids), parent, operation, added)._replace(**said)  # type: ignore[arg-type]
        snapshots = {**self.found.snapshots, made.id: made}
        self.found = self.found._replace(snapshots=snapshots, sequence=self.found.sequence + 1)
        return made.id

    def put(self, operation: str = "append", added: int | None = 1, **said: object) -> int:
        made = self.make(operation, added, parent=self.found.current, **said)
        self.set(made)
        return made

    def set(self, snapshot: int | None) -> None:
        self.found = self.found._replace(current=snapshot)

    def expire(self, *snapshots: int) -> None:
        left = {number: each for number, each in self.found.snapshots.items() if number not in snapshots}
        self.found = self.found._replace(snapshots=left)


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
        lineage = log.found.lineage
        self.begin(line(lineage[0].id if lineage else -1, 0))
        (folder / "offsets").mkdir()
        (folder / "offsets/0").touch()

    def begin(self, at: str) -> None:
        path = self.folder / "sources/0/offsets/0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(at)

    def open(self) -> OpenIceberg:
        made = IcebergSource("t", self.options, self.log).waiting_for(INPUTS).open(self.manifest, 0)
        assert isinstance(made, OpenIceberg)
        return made

    def commit(self, at: str, source: OpenSource | None = None) -> None:
        for_ = self.source if source is None else source
        for_.read_to(at)
        for_.confirm(at)

    def reached(self, at: str, *, settled: str = NONE) -> bool:
        """Whether all that is there now is read when a batch at a place is committed."""
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
    made = query()
    head = made.source.head(NONE)
    assert [made.source.reached(head, line(first, 3, whole=whole)) for whole in (False, True)] == [True, False]


def test_files_that_icebergs_stream_passes_over_hold_for_good(log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    made = query()
    assert made.reached(line(first))
    second = log.put(added=None)
    log.layouts[second] = [(1, 5), (1, 0)]
    made.holds("Iceberg's stream skips files")


@pytest.mark.parametrize("aside", [False, True])
def test_a_cached_answer_of_a_catalog_does_no_lasting_harm(aside: bool, log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    made = query()
    made.commit(line(first))
    old, second = log.found, log.put()
    if aside:
        log.make("append", parent=first)
    new = log.found
    assert made.reached(line(second))
    made.source.close()
    pin = made.manifest["iceberg"]
    for _ in range(2):
        log.found = old
        made.holds("are older than before", for_good=False)
        made.source = made.open()
    assert made.manifest["iceberg"] == pin
    log.found = new
    made.commit(line(second))
    assert made.reached(line(second))
    log.found = old._replace(sequence=new.sequence)
    made.holds("was rolled back or replaced")


@pytest.mark.parametrize(("how", "restarted"), [("fast forward", True), ("cherry-pick", False)])
def test_rows_published_late_hold_for_good(how: str, restarted: bool, log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    made = query()
    assert made.reached(line(first))
    aside = log.make(parent=first)
    made.source.head(line(first))
    if restarted:
        made.source = made.open()
    if how == "cherry-pick":
        log.put()
        log.put(origin=aside)
    else:
        log.set(aside)
    made.holds("publishes rows that were written earlier")


def test_i2_an_expired_beginning_must_be_declared(log: Log, query: Callable[..., Query], tmp_path: Path) -> None:
    first, second = log.put(), log.put()
    log.expire(first)
    with pytest.raises(Unsupported, match="whose first snapshots have expired"):
        query()
    declared = Query(tmp_path / "declared", log, **{"lowwater.earlierrows": "skip"})
    assert declared.reached(line(second))


def test_i2_snapshots_that_expire_when_a_query_begins_hold_for_good(log: Log, query: Callable[..., Query]) -> None:
    made = query()
    first, second = log.put(), log.put()
    made.source.head(NONE)
    log.expire(first)
    made.commit(line(second))
    made.holds("it may have begun after rows that it never reads")


def test_only_a_snapshot_that_may_have_new_rows_needs_a_name() -> None:
    made = [("append", 1), ("append", 0), ("append", None), ("replace", 3)]
    assert [Snapshot(1, None, *each).strange for each in made] == [True, False, True, False]


def test_a_branch_and_a_table_that_publishes_late_are_refused(log: Log) -> None:
    with pytest.raises(Unsupported, match="of its branch audit"):
        IcebergSource("t", {}, log, branch="audit").waiting_for(INPUTS)
    log.found = log.found._replace(properties={"write.wap.enabled": "true"})
    with pytest.raises(Unsupported, match=r"write\.wap\.enabled"):
        IcebergSource("t", {}, log).waiting_for(INPUTS).check_writers()


@pytest.mark.parametrize("operation", ["delete", "heard of tomorrow"])
def test_what_takes_rows_is_never_reached_and_is_named(operation: str, log: Log, query: Callable[..., Query]) -> None:
    first = log.put()
    made = query()
    wall = log.put(operation, 0)
    assert not made.reached(line(first))
    head = made.source.head(NONE)
    [said] = made.source.missing(head, 5)
    assert f"snapshot {wall} " in said
    assert "a stream of Iceberg ends there" in said


def test_i2_a_query_that_began_elsewhere_than_seen_holds_for_good(log: Log, query: Callable[..., Query]) -> None:
    _, second = log.put(), log.put()
    made = query()
    made.begin(line(second, 0))
    made.commit(line(second))
    made.holds("it may have begun after rows that it never reads")


def test_i2_an_empty_table_whose_beginning_expires_unseen_holds(log: Log, query: Callable[..., Query]) -> None:
    made = query()
    first, _ = log.put(), log.put()
    log.expire(first)
    made.holds("have expired before they were read")


def test_an_offset_that_goes_back_is_refused(log: Log, query: Callable[..., Query]) -> None:
    first, second = log.put(), log.put(added=2)
    made = query()
    made.commit(line(second, 2))
    for back in (line(second, 1), line(first), line(-1, -1)):
        with pytest.raises(CheckpointMismatch, match="has gone back"):
            made.source.read_to(back)
