"""Batches that were handed over are removed when every reader has read them, and never before.

A writer and its readers over a real directory. Each step of one may come between any two steps of another, and each may be killed at any.
The oracle knows all that was ever handed over. No Spark here: what Spark has taken is written into the readers' logs by the test.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.files.bookmarks import BOOKMARKS, Bookmarks, Output, Scan, bookmarks
from lowwater_spark.sources.files.source import FileSource, OpenFiles
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.files.writers import mark_writer
from lowwater_spark.sources.head import Heads
from lowwater_spark.track.output.removal import Removal
from lowwater_spark.track.state.handover import publish_directory, sweep
from tests.spark.support import Log, begun, lines

LATER = 1e12
"""A time at which every batch is old."""


class Killed(BaseException):
    """kill -9 at a step."""


def commit(checkpoint: Path, batch: int) -> None:
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / str(batch)).write_text("v1")


Steps = Callable[[str], None]
"""A function that is called at each step of another, with the step's name."""


class Writer:
    """Hands over one file a batch, commits, and removes."""

    def __init__(self, base: Path, name: str = "out") -> None:
        self.folder = base / name
        self.query = base / "writer"
        self.last = NOTHING
        self.ordinal = 1
        self.checkpoint = 1
        self.written: set[str] = set()
        mark_writer(self.folder, "writer")

    def write(self, *, empty: bool = False) -> None:
        self.last += 1
        name, file = f"batch={self.last}", "part.json" if self.checkpoint == 1 else f"part{self.checkpoint}.json"

        def fill(folder: Path) -> None:
            if not empty:
                (folder / file).write_text("{}")

        publish_directory(self.folder, name, f"{self.checkpoint} {self.last}", fill, ordinal=self.ordinal)
        self.written |= set() if empty else {os.fspath(self.folder / name / file)}
        commit(self.query, self.last)

    def remove(self, at: Steps = lambda _point: None) -> list[int]:
        return Removal(self.folder, at).remove(timedelta(0), self.last, LATER)

    def begin_anew(self) -> None:
        """Somebody has deleted all batches, and the note with them: another checkpoint writes there."""
        for batch in self.folder.glob("batch=*"):
            shutil.rmtree(batch)
        (self.folder / BOOKMARKS / "removed.json").unlink(missing_ok=True)
        self.checkpoint += 1
        self.last = NOTHING
        self.written = set()

    def restart(self) -> None:
        self.ordinal += 1
        sweep(self.folder, self.ordinal)

    @property
    def removed(self) -> set[str]:
        return {path for path in self.written if not Path(path).exists()}


class Reader:
    """Reads the output: what its log has taken is committed at once. It runs from :meth:`start` until it is killed or refused."""

    def __init__(self, base: Path, writer: Writer, name: str) -> None:
        self.checkpoint = base / name
        self.writer = writer
        self.name = name
        self.log = Log()
        self.batch = NOTHING
        self.running = False
        self.forgotten = False
        self.at: Steps = lambda _point: None
        self.heads: Heads
        self.marks: Bookmarks

    def start(self, at: Steps = lambda _point: None, *, skip_removed: bool = False) -> bool:
        source = FileSource(os.fspath(self.writer.folder), recursive=True)
        self.running, self.at = False, at
        manifest = begun(self.checkpoint)
        self.heads = Heads([OpenFiles(source, 0, manifest, self.log)])
        self.marks = Bookmarks(
            manifest, self.heads.outputs, self.name, self.name, skip_removed=skip_removed, probe=self.reach
        )
        self.heads.list_heads(lines(self.batch))
        at("listed")
        try:
            self.marks.begin(self.batch, 0.0)
        except CheckpointMismatch:
            return False
        self.running, self.forgotten = True, False
        return True

    def reach(self, point: str) -> None:
        self.at(point)

    def read(self, which: int | None = None) -> None:
        present = sorted(path for path in self.writer.folder.glob("batch=*/part*.json"))
        untaken = [path for path in present if os.fspath(path) not in self.log.taken]
        if which is not None and untaken:
            untaken = [untaken[which % len(untaken)]]
        self.batch += 1
        for path in untaken:
            self.log.take(path, self.batch)
        commit(self.checkpoint, self.batch)

    def look(self, at: Steps = lambda _point: None) -> bool:
        """One look of the clock; whether a watermark that was read before it counts."""
        self.at = at
        heads = self.heads.list_heads(lines(self.batch))
        counts = heads == [set()]
        if counts:
            unread = self.writer.written - self.log.taken.keys()
            assert not unread, f"{self.name} leads: it has not read {unread}"
        at("listed")
        self.marks.keep_up(self.batch, 0.0)
        return counts

    def forget(self) -> None:
        (self.writer.folder / BOOKMARKS / f"{self.name}-0.json").unlink(missing_ok=True)
        self.forgotten = True


class WriterAndReaders:
    """A writer and two readers. A step is its name, its arguments, and what comes at which point of it: other steps, or a kill."""

    def __init__(self, base: Path) -> None:
        self.writer = Writer(base)
        self.readers = [Reader(base, self.writer, name) for name in ("a", "b")]

    def do(self, step: tuple[Any, ...]) -> None:
        name, which, between = step

        def at(point: str) -> None:
            for reached, inner in between:
                if reached == point:
                    if inner is None:
                        raise Killed
                    self.do((*inner, ()))

        reader = self.readers[which % 2]
        try:
            if name == "write":
                self.writer.write(empty=which == 7)
            elif name == "remove":
                self.writer.remove(at)
            elif name == "start" and not reader.running:
                reader.start(at)
            elif name == "read" and reader.running:
                reader.read(None if which < 4 else which)
            elif name == "look" and reader.running:
                reader.look(at)
            elif name == "kill":
                reader.running = False
            elif name == "forget":
                reader.forget()
        except Killed:
            if name == "remove":
                self.writer.restart()
            else:
                reader.running = False
        self.check()

    def check(self) -> None:
        for reader in self.readers:
            if reader.running and not reader.forgotten:
                lost = self.writer.removed - reader.log.taken.keys()
                assert not lost, f"{lost} was removed, and {reader.name} has not read it"


def live(world: WriterAndReaders, steps: Sequence[tuple[Any, ...]]) -> None:
    for step in steps:
        world.do(step)
    for reader in world.readers:
        if reader.running:
            reader.look()


SIMPLE = st.tuples(st.sampled_from(["write", "remove", "start", "read", "look", "kill", "forget"]), st.integers(0, 7))
POINT = st.sampled_from(["looked", "noted", "chosen", "removed", "emptied", "listed", "recorded", "marked"])
BETWEEN = st.lists(st.tuples(POINT, st.one_of(st.none(), SIMPLE, SIMPLE)), max_size=3)
STEP = st.tuples(
    st.sampled_from(["write", "write", "remove", "remove", "start", "read", "look", "look", "kill", "forget"]),
    st.integers(0, 7),
    BETWEEN,
)


def step(name: str, which: int = 0, *between: tuple[str, tuple[str, int] | None]) -> tuple[Any, ...]:
    return (name, which, between)


A_HAS_READ = [step("start"), step("write"), step("write"), step("read"), step("look"), step("look")]
"""The first reader has read two batches, and its bookmark says so."""

B_COMES = ("start", 1)
"""The second reader begins, and has read nothing."""

KILLED_HALF_WAY = [*A_HAS_READ, step("remove", 0, ("removed", None)), step("start", 1), step("look", 1)]
COMES_WHEN_ALL_IS_CHOSEN = [*A_HAS_READ, step("remove", 0, ("chosen", B_COMES))]
COMES_BEFORE_THE_NOTE = [*A_HAS_READ, step("remove", 0, ("looked", B_COMES))]
COMES_WHILE_ALL_IS_REMOVED = [*A_HAS_READ, step("start", 1, ("recorded", ("remove", 0)))]


@given(st.lists(STEP, max_size=25))
@example(KILLED_HALF_WAY)
@example(COMES_WHEN_ALL_IS_CHOSEN)
@example(COMES_BEFORE_THE_NOTE)
@example(COMES_WHILE_ALL_IS_REMOVED)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_removal_no_reader_leads_and_none_loses_a_batch(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    live(WriterAndReaders(tmp_path_factory.mktemp("world")), steps)


def remaining(world: WriterAndReaders) -> list[str]:
    return sorted({path.parent.name for path in world.writer.folder.glob("batch=*/*.json") if path.name[0] != "."})


def test_removal_keeps_what_slow_readers_and_the_writer_need(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = WriterAndReaders(tmp_path)
    writer, (a, b) = world.writer, world.readers
    for _ in range(4):
        writer.write()
    with caplog.at_level(logging.INFO, "lowwater.spark"):
        removal = Removal(writer.folder)
        assert removal.remove(timedelta(0), 3, LATER) == [], "nobody is known to have read anything"
        assert "no reader has left a bookmark" in caplog.text
        assert a.start()
        assert b.start()
        a.read()
        a.look()
        b.read(0)
        b.look()
        assert b.log.taken.keys() == {os.fspath(writer.folder / "batch=0/part.json")}
        assert removal.remove(timedelta(0), 3, LATER) == [0]
        assert f"removed 1 batches of {writer.folder}, 0 to 0, " in caplog.text
        assert removal.remove(timedelta(0), 3, LATER) == []
        assert removal.remove(timedelta(0), 3, LATER) == []
    [line] = [line for line in caplog.messages if "b has read up to batch 0" in line]
    assert line.endswith(f"delete its bookmark {writer.folder}/{BOOKMARKS}/b-0.json")
    # What it may write again stays, and what is young.
    b.forget()
    assert removal.remove(timedelta(0), 2, LATER) == [1, 2]
    written_at = (writer.folder / "batch=3/.lowwater.json").stat().st_mtime
    assert removal.remove(timedelta(hours=1), 3, written_at + 3599) == []
    assert removal.remove(timedelta(hours=1), 3, written_at + 3601) == [3]
    assert a.look(), "its own watermark goes on"
    # The forgotten one runs on: it holds, names why, and is refused when it starts again. The other one is as before.
    assert not b.look()
    assert any(
        "batches up to 3 were removed, and this query has read those up to 0" in str(head)
        for head in b.heads.list_heads(lines(b.batch)) or []
    )
    assert not b.start()
    writer.write()
    a.read()
    assert a.look()


def test_removal_a_damaged_bookmark_keeps_everything_and_nobody_else_is_disturbed(tmp_path: Path) -> None:
    world = WriterAndReaders(tmp_path)
    live(world, A_HAS_READ)
    mark = world.writer.folder / BOOKMARKS / "c-0.json"
    for content in ("", "[]", '{"format": 1}', '{"format": 2, "read": 9}'):
        mark.write_text(content)
        with pytest.raises(OSError, match=r"c-0.json"):
            world.writer.remove()
        assert remaining(world) == ["batch=0", "batch=1"]
        assert world.readers[0].look()
        world.readers[0].running = False
        assert world.readers[0].start(), "who reads goes on, and begins"
    mark.unlink()
    assert world.writer.remove() == [0, 1]


def test_removal_of_an_output_that_was_begun_anew_waits_for_who_has_read_the_one_before(tmp_path: Path) -> None:
    """Bookmarks of other batches of the same numbers do not count, nor does a checkpoint's knowledge of them."""
    world = WriterAndReaders(tmp_path)
    live(world, [*A_HAS_READ, step("remove"), step("kill")])
    world.writer.begin_anew()
    live(world, [step("start", 1), *[step("write")] * 3, step("read", 1), step("look", 1), step("look", 1)])
    a, b = world.readers
    assert {mark.reader: mark.read for mark in bookmarks(world.writer.folder)} == {"a": NOTHING, "b": 2}
    assert world.writer.remove() == []
    assert a.start(), "nothing has gone that it needs"
    a.read()
    a.look()
    assert world.writer.remove() == [0, 1, 2]
    # One whose bookmark was taken away is refused.
    a.running = False
    a.forget()
    world.writer.begin_anew()
    for _ in range(3):
        world.writer.write()
    b.read()
    b.look()
    assert world.writer.remove() == [0, 1, 2]
    assert not a.start()
    assert b.look()


@pytest.mark.parametrize("order", list(itertools.permutations([6, 7])))
def test_a_listing_that_missed_a_batch_counts_none_beyond_it(order: tuple[int, ...]) -> None:
    """A directory that is listed while names come may show the later of two, and not the earlier."""
    output = Output("/out")
    missed, listed = min(order), max(order)

    def lists(*batches: tuple[int, bool, bool]) -> int:
        scan = Scan()
        for number, settled, sure in batches:
            scan.add(number, settled=settled, sure=sure)
        output.take(scan)
        output.advance()
        return output.extent.read

    assert lists((listed, False, True)) == NOTHING, "it was not there before"
    assert lists(*[(n, n == listed, True) for n in order]) == NOTHING
    # Without files there is nothing to be read, and nothing that shows when it came.
    assert lists((listed, True, False)) == NOTHING
    assert lists((missed, True, False), (listed, True, True)) == listed


def test_removal_a_new_reader_may_begin_at_what_is_left(tmp_path: Path) -> None:
    world = WriterAndReaders(tmp_path)
    live(world, [*A_HAS_READ, step("remove"), step("write"), step("write")])
    [a, b] = world.readers
    b.forgotten = True  # it says itself that rows may be missing
    assert not b.start()
    assert b.start(skip_removed=True)
    assert {mark.reader: mark.read for mark in bookmarks(world.writer.folder)} == {"a": 1, "b": NOTHING}
    a.read()
    a.look()
    a.look()
    assert world.writer.remove() == [], "what is left waits for the new one, too"
    assert b.start(), "it goes on, without being told again"
    b.read()
    [head] = b.heads.list_heads(lines(b.batch)) or []
    assert head == set()
    b.marks.keep_up(b.batch, 0.0)
    b.heads.list_heads(lines(b.batch))
    b.marks.keep_up(b.batch, 0.0)
    assert world.writer.remove() == [2, 3]
    # A checkpoint that has begun is refused all the same: its rows would be missing in the middle.
    world.writer.write()
    a.read()
    a.look()
    a.look()
    (world.writer.folder / BOOKMARKS / "b-0.json").unlink()
    assert world.writer.remove() == [4]
    assert not b.start(skip_removed=True)


def test_removal_counts_what_it_removes_and_how_far_readers_hold_it_back(tmp_path: Path) -> None:
    world = WriterAndReaders(tmp_path)
    live(world, [step("start"), step("write"), step("read"), step("look")])
    writer = world.writer
    removal, marker = Removal(writer.folder), writer.folder / "batch=1/.lowwater.json"
    assert removal.remove(timedelta(0), 0, LATER) == [0]
    assert (removal.batches, removal.size, removal.held_back(LATER)) == (1, 2, 0.0)
    writer.write()
    hour = timedelta(hours=1)
    handed_over = marker.stat().st_mtime
    assert removal.remove(hour, 1, handed_over + 3_599) == []
    assert removal.held_back(handed_over + 3_599) == 0.0, "it is not old"
    assert removal.remove(hour, 1, handed_over + 3_700) == []
    assert removal.held_back(handed_over + 3_700) == pytest.approx(100)
    assert removal.held_back(handed_over + 3_800) == pytest.approx(200), "nobody has looked since"
    live(world, [step("read"), step("look"), step("look")])
    assert removal.remove(hour, 1, LATER) == [1]
    assert (removal.batches, removal.size, removal.held_back(LATER)) == (2, 4, 0.0)


def test_removal_a_directory_that_lowwater_has_not_made_stays(tmp_path: Path) -> None:
    world = WriterAndReaders(tmp_path)
    foreign = world.writer.folder / "batch=0"
    foreign.mkdir()
    (foreign / "rows.json").write_text("{}")
    world.writer.last = 0
    world.writer.write()
    [reader, _] = world.readers
    reader.start()
    reader.log.take(foreign / "rows.json", 0)
    reader.read()
    assert reader.look()
    assert world.writer.remove() == []
    assert remaining(world) == ["batch=0", "batch=1"]
