"""The stage keeps its state on disk: written once, whole, and tied to the plan it was made from."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import pytest

from lowwater import errors
from lowwater.watermark import MIN
from lowwater_spark.checkpoint import durable
from lowwater_spark.checkpoint.durable import write_once
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, StateLost
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import UNREAD, Origin, Reading
from lowwater_spark.track.output import folder_out
from lowwater_spark.track.output.folder_out import FolderOut
from lowwater_spark.track.output.kafka_out import KafkaOut
from lowwater_spark.track.output.outputs import KINDS, BatchOutput, OpenOutputs, OutputKind
from lowwater_spark.track.rows.counts import Counted
from lowwater_spark.track.rows.cut import EQUAL
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.run.batch import Outcome
from lowwater_spark.track.run.batch_log import BatchLog
from lowwater_spark.track.run.hook import Hook, _Running
from lowwater_spark.track.run.progress import AfterBatch, Progress
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.segments import Due, Segment
from lowwater_spark.track.state import handover
from lowwater_spark.track.state.handover import publish_directory, sweep
from lowwater_spark.track.state.store import RangeEntry, StageSection, StateStore, StateVersion
from tests.spark.support import make_version, place

READING = Reading(14, {990_000: 15, 500_000: 16}, 3, (1, 7))


def test_s5_a_replay_runs_with_the_w_and_the_clock_of_the_first_run(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.purge(before=8)  # a later stage of a chain has no folder of its own
    first = BatchFacts(7, "aa", READING, promised=9, now=60)
    assert log.begin(first) == first
    newer = BatchFacts(7, "aa", Reading(99), promised=50, now=70)
    assert log.begin(newer) == dataclasses.replace(first, replayed=True)
    with pytest.raises(CheckpointMismatch, match="batch 7 had another plan"):
        log.begin(BatchFacts(7, "bb", READING, promised=9))
    log.begin(BatchFacts(8, "cc", Reading(MIN), promised=MIN))
    log.purge(before=8)
    assert log.read(7) is None
    assert log.read(8) == BatchFacts(8, "cc", Reading(MIN), promised=MIN)


def test_a_batch_that_an_older_release_has_begun_is_replayed_and_none_of_this_one_by_it(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    entry = BatchFacts(7, "aa", READING, promised=9)
    log.begin(entry)
    path = tmp_path / "lowwater/batches/7.json"
    content = json.loads(path.read_text())
    assert content["format"] == 2, "0.1 reads format 1 alone: it would pass over the manifest"
    del content["now"]
    path.write_text(json.dumps({**content, "format": 1}))
    assert log.begin(dataclasses.replace(entry, now=5)) == dataclasses.replace(entry, replayed=True), (
        "its clock is not known"
    )
    path.write_text(json.dumps({**content, "format": 4}))
    with pytest.raises(CheckpointMismatch, match="is of format 4; this release reads 1 to 3"):
        log.begin(entry)


def test_an_injectors_frontier_must_be_found_again(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    assert log.frontier(3) is None
    log.set_frontier(3, 10)
    log.set_frontier(3, 10)
    with pytest.raises(CheckpointMismatch, match="never from a clock"):
        log.set_frontier(3, 11)
    log.purge(before=4)
    assert log.frontier(3) is None


def test_a_run_that_was_replaced_does_not_sweep_what_its_successor_fills(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "rows").write_text("half")
        sweep(tmp_path, 6)
        StateStore.opened(place(tmp_path / "ck"), tmp_path, 2, batch=0, ordinal=6).sweep()
        (folder / "rows").write_text("whole")

    assert publish_directory(tmp_path, "batch=0", "aa", fill, ordinal=7)
    assert (tmp_path / "batch=0/rows").read_text() == "whole"
    for name in (".lowwater-6-batch=1-left", ".lowwater-7-batch=1-mine", ".lowwater-8-batch=1-newer", ".lowwater-x"):
        (tmp_path / name).mkdir()
    sweep(tmp_path, 7)
    hidden = sorted(path.name for path in tmp_path.glob(".lowwater-*"))
    assert hidden == [".lowwater-7-batch=1-mine", ".lowwater-8-batch=1-newer", ".lowwater-x"]


def test_kafkas_staged_batches_stay_while_a_replay_or_a_later_run_needs_them(tmp_path: Path) -> None:
    for batch in range(8):
        (tmp_path / f"batch={batch}").mkdir()
    turn: Any = SimpleNamespace(facts=SimpleNamespace(batch=5))
    KafkaOut(place(tmp_path / "ck"), tmp_path, "default/a", "topic", {}, 1).remove(turn)
    assert sorted(path.name for path in tmp_path.glob("batch=*")) == [f"batch={batch}" for batch in range(3, 8)]


class Anew(BatchOutput):
    """An output that begins anew in each batch."""

    closed: ClassVar[list[BatchOutput]] = []

    @property
    def key(self) -> str:
        return "place"

    @classmethod
    def at(cls, *_: Any) -> Self:
        return cls()

    def resume(self, earlier: BatchOutput) -> None:
        pass

    def close(self) -> None:
        self.closed.append(self)


def test_an_output_that_is_opened_anew_closes_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "anew", OutputKind(__name__, "Anew"))
    monkeypatch.setattr(Anew, "closed", [])
    nothing: Any = None
    outputs = OpenOutputs()
    first, second = (outputs.open(["anew"], nothing, nothing, "", {}, window=None, taken=set()) for _ in range(2))
    assert Anew.closed == [first]
    outputs.close()
    assert Anew.closed == [first, second]


def test_a_name_already_there_is_made_durable_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever took it may have been killed between its rename and its sync."""
    synced: list[Path] = []

    def watched(path: Path) -> None:
        synced.append(path)
        durable.sync_file(path)

    def fill(folder: Path) -> None:
        (folder / "rows").write_text("1")

    def overtaken(folder: Path) -> None:
        fill(folder)
        publish_directory(tmp_path, "batch=1", "bb", fill, ordinal=2)
        synced.clear()

    publish_directory(tmp_path, "batch=0", "aa", fill, ordinal=1)
    write_once(tmp_path / "x", b"1")
    for module in (durable, handover, folder_out):
        monkeypatch.setattr(module, "sync_directory", watched)
    again: Callable[[], bool]
    nothing: Any = None
    for again in (
        lambda: publish_directory(tmp_path, "batch=0", "aa", fill, ordinal=2),
        lambda: publish_directory(tmp_path, "batch=1", "bb", overtaken, ordinal=1),
        lambda: write_once(tmp_path / "x", b"2"),
        lambda: FolderOut(tmp_path, tmp_path, "json", None).finish(nothing, nothing),
    ):
        synced.clear()
        assert not again()
        assert synced.count(tmp_path) == 1


def version(batch: int) -> StateVersion:
    entries = [RangeEntry(f"{batch}.state", "", 5, 2), RangeEntry()]
    return StateVersion(batch, f"digest{batch}", 14, entries, pending=([1, 3], [1, 1]), counted=Counted(3, 1, -4))


def version_of(batch: int, _: Path) -> StateVersion:
    return version(batch)


def test_the_state_of_a_checkpoint_that_was_copied_is_its_own(tmp_path: Path) -> None:
    """The manifest names it by the old place, which may still be there, of the checkpoint that was copied."""
    old, new = tmp_path / "old", tmp_path / "new"
    inside, elsewhere = old / "lowwater/state", tmp_path / "lowwater/state"
    make_version(StateStore.opened(place(old), inside, 2, batch=0, ordinal=1), 0, "digest0", lambda _: version(0))
    shutil.copytree(old, new)
    for copy, root in ((old, inside), (new, new / "lowwater/state")):
        assert StateStore.opened(StageSection(Manifest(copy), copy), root, 2, batch=1, ordinal=2).before(1) == version(
            0
        )
    StateStore.opened(place(tmp_path / "other"), elsewhere, 2, batch=0, ordinal=1)
    shutil.copytree(tmp_path / "other", tmp_path / "another")
    store = StateStore.existing(StageSection(Manifest(tmp_path / "another"), tmp_path / "another"))
    assert store is not None
    assert store.root == elsewhere, "the user has named it"


def test_state_versions_build_on_each_other_and_are_never_changed(tmp_path: Path) -> None:
    store = StateStore.opened(place(tmp_path), tmp_path / "state", 2, batch=4, ordinal=1)
    assert store.before(4) is None
    new = make_version(store, 4, "digest4", lambda _: version(4))
    assert new == version(4) == StateStore.opened(place(tmp_path), tmp_path / "state", 2, batch=9, ordinal=1).before(5)
    assert new.held == [5, None]
    assert make_version(store, 4, "digest4", lambda _: pytest.fail("computed twice")) == new
    with pytest.raises(CheckpointMismatch):
        make_version(store, 4, "other", lambda _: version(4))
    with pytest.raises(StateLost, match="needs version 5"):
        store.before(6)
    for batch in range(5, 9):
        make_version(store, batch, f"digest{batch}", partial(version_of, batch))
    store.purge(committed=7)
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["6", "7", "8"]


def test_versions_of_releases_without_segments_are_read_and_written_as_they_were(tmp_path: Path) -> None:
    """A stage that has no segments may go back to such a release; one that has some is refused by it."""
    store = StateStore.opened(place(tmp_path), tmp_path / "state", 2, batch=4, ordinal=1)
    make_version(store, 4, "digest4", partial(version_of, 4))
    written = json.loads((tmp_path / "state/4/manifest.json").read_bytes())
    assert (written["format"], written["ranges"]) == (1, [["4.state", "", 5, 2], ["", "", None, 0]])
    segments = (Segment("a.segments", 1, 3, 40, 90, (1, 2)),)
    make_version(
        store, 5, "digest5", lambda _: StateVersion(5, "digest5", 14, [RangeEntry(segments=segments, facts=(9,))])
    )
    written = json.loads((tmp_path / "state/5/manifest.json").read_bytes())
    assert (written["format"], written["ranges"]) == (2, [["", "", None, 0, [["a.segments", 1, 3, 40, 90, 1, 2]], [9]]])
    before = store.version(5)
    assert before is not None
    assert before.due is None
    due = [RangeEntry(segments=segments, due=entry) for entry in (Due(9, None), Due(None, 4), None, Due(8, 6))]
    make_version(store, 6, "digest6", lambda _: StateVersion(6, "digest6", 14, due))
    after = store.version(6)
    assert after is not None
    assert after.ranges == due
    assert after.due == Due(8, 4)
    (tmp_path / "state/5/manifest.json").write_text(json.dumps({**written, "format": 4}))
    with pytest.raises(CheckpointMismatch, match="of format 4; this release reads 1 to 3"):
        store.version(5)


def test_state_that_moved_or_was_cut_otherwise_is_refused(tmp_path: Path) -> None:
    StateStore.opened(place(tmp_path), tmp_path / "state", 2, batch=0, ordinal=1)
    with pytest.raises(CheckpointMismatch, match="ranges=2"):
        StateStore.opened(place(tmp_path), tmp_path / "state", 4, batch=1, ordinal=1)
    with pytest.raises(CheckpointMismatch, match="pass the same path"):
        StateStore.opened(place(tmp_path), tmp_path / "elsewhere", 2, batch=1, ordinal=1)


def test_the_schema_of_what_is_emitted_is_compared_by_name(tmp_path: Path) -> None:
    """More columns come with the next batch. One that was interrupted has its rows already, and not in them."""
    settings, schema = {"key": "k STRING", "stamp": "event"}, {"t": "timestamp", "n": "bigint"}
    more, fewer = {"m": "int", **schema}, {"t": "timestamp"}

    def opened(batch: int) -> StateStore:
        return StateStore.opened(place(tmp_path / "ck"), tmp_path / "state", 1, batch, ordinal=1)

    def build(batch: int, emitted: str) -> None:
        entries = [RangeEntry(emitted=emitted)]
        make_version(opened(batch), batch, "aa", lambda _: StateVersion(batch, "aa", MIN, entries))

    opened(0).match(settings, schema, 0)
    build(0, "rows")
    opened(0).match(settings, dict(reversed(schema.items())), 0)
    with pytest.raises(
        CheckpointMismatch,
        match=r"struct<m:int,t:timestamp,n:bigint>.* with the former schema until batch 0 is committed, which was",
    ):
        opened(0).match(settings, more, 0)
    for other in (fewer, {**schema, "n": "int"}, {**fewer, "m": "int"}):
        with pytest.raises(
            CheckpointMismatch, match=r"with the schema struct<t:timestamp,n:bigint>, .* with the former schema, or"
        ):
            opened(1).match(settings, other, 1)
    build(1, "")
    opened(1).match(settings, more, 1)
    with pytest.raises(CheckpointMismatch, match="with the schema struct<m:int,t:timestamp,n:bigint>, and"):
        opened(1).match(settings, schema, 1)
    opened(2).match(settings, {**more, "z": "int"}, 2)
    # A release that kept no time zone has made it: the first one counts from now on.
    opened(2).match({**settings, "time zone": "UTC"}, {**more, "z": "int"}, 2)
    with pytest.raises(CheckpointMismatch, match="the time zone UTC, and the stage has the time zone Asia/Tokyo"):
        opened(2).match({**settings, "time zone": "Asia/Tokyo"}, {**more, "z": "int"}, 2)


def lows_of(log: BatchLog, number: int, reading: Reading, spark_bound: int, before: int) -> tuple[int, int]:
    """Begin a batch in a run of its own; return its low and its promised. ``before``: Spark's bound after the batch before."""
    progress = Progress(1, None, [], AfterBatch(reading=reading, spark_bound=before))
    part: Any = SimpleNamespace(
        entries=log,
        name="stage",
        keyed=SimpleNamespace(layout=EQUAL),
        authority=SimpleNamespace(wanted=None),
        follow_logged=lambda *_: None,
        progress=progress,
    )
    hook = Hook(lambda *_: None, lambda *_: None)
    hook.run = cast(
        "Any",
        SimpleNamespace(
            lock=nullcontext(),
            reader=part,
            log=SimpleNamespace(plan=lambda number: Plan(number, [], "aa", 0)),
            heads=SimpleNamespace(counted=lambda *_: [], read_to=lambda _: None, evidence=lambda *_: []),
            lines=[],
            checked=SimpleNamespace(spark_bound=lambda _: spark_bound),
            stages=[part],
        ),
    )
    facts = hook._begin(number).facts
    return facts.reading.low, facts.promised


def test_a_batch_is_not_behind_the_one_before_when_the_retention_is_larger(tmp_path: Path) -> None:
    """Spark's bounds go back by the difference. What the last batch has closed would be opened, and written twice."""
    log, inputs = BatchLog(tmp_path), Reading(25)
    assert lows_of(log, 0, inputs, spark_bound=10, before=MIN) == (10, MIN)
    assert lows_of(log, 1, inputs, spark_bound=14, before=10) == (14, 10)
    assert lows_of(log, 2, inputs, spark_bound=6, before=4) == (14, 10), "a retention that is larger by ten"
    assert lows_of(log, 3, inputs, spark_bound=30, before=6) == (25, 10)
    assert lows_of(log, 4, UNREAD, spark_bound=30, before=30) == (MIN, MIN), "of other inputs nothing is known"


def test_no_stage_counts_a_batch_that_another_one_may_not_commit(tmp_path: Path) -> None:
    """The later stage would report what the earlier one passes on, and holds rows below it. Nor does the next batch begin."""

    def refuse(*_: object) -> str:
        raise errors.InvalidArgument("refused")

    def stage(commit: Callable[..., str], earlier: Sequence[StageRun] = ()) -> StageRun:
        authority: Any = SimpleNamespace(registration=SimpleNamespace(name="stage"), commit=commit, wanted=None)
        part = StageRun(authority, Keyed("key", "t", 1, injector=not earlier), tmp_path, earlier)
        part.open([], AfterBatch())
        part.progress.inputs = Origin()
        return part

    first = stage(lambda *_: "")
    last = stage(refuse, [first])
    hook, heads = Hook(lambda *_: None, lambda *_: None), SimpleNamespace(knock=lambda _: None, confirm=lambda _: None)
    log = SimpleNamespace(committed=lambda _: True)
    hook.run = cast("Any", SimpleNamespace(lock=threading.RLock(), heads=heads, log=log, stages=[first, last]))
    outcomes = [Outcome(AfterBatch(0, reading=Reading(10), held=held)) for held in ([], [4])]
    entry = BatchFacts(0, "aa", UNREAD, MIN, {}, 0)
    hook._running = _Running(Plan(0, [], "aa", 0), entry, since=0.0, outcomes=outcomes)
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument):
            hook.follow_commits(1)
        first.advance(None)
        last.advance(None)
        assert last.progress.values(last.progress.reading) == [MIN]
