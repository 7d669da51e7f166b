"""A computation is taken out of a pipeline: not while it runs or is read, and what would be lost only when that is said."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater_pipeline.command import main
from lowwater_pipeline.computation import Input
from lowwater_pipeline.computation.remains import Remains
from lowwater_pipeline.graph import Folder, Pipeline
from lowwater_pipeline.graph.removal import Refused, check_unread, drain, mark_running, remove
from lowwater_spark.track.segments import Segment
from lowwater_spark.track.state.store import RangeEntry, StateStore, StateVersion
from tests.kit.times import MAX, mark
from tests.pipeline.test_graph import ROWS, SOURCE, module, named, reads
from tests.process.serving import Serving
from tests.spark.support import Upstream, make_version, place

__all__ = ["module"]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("authority")) as server:
        yield server


@pytest.fixture
def lw(authority: Serving, request: pytest.FixtureRequest) -> Iterator[lowwater.Client]:
    """A client in a namespace of the test's own; the command knows none."""
    name = request.node.name.partition("[")[0]
    namespace = "" if name == "test_the_command_removes" else f"{name[:40]}-{next(_numbers)}"
    with lowwater.connect(authority.address, namespace=namespace) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints/a").mkdir(parents=True)
    (tmp_path / "checkpoints/a/begun").touch()
    return tmp_path


def stood(lw: lowwater.Client) -> None:
    """Leave a computation that came to nine o'clock and has stopped."""
    upstream = Upstream(lw, "a")
    upstream.at(9)
    upstream.lease.release()


def test_one_that_is_read_is_not_removed(root: Path, lw: lowwater.Client) -> None:
    two = Input(["web", "phone"], key="q", event_time="start", alias="clicks")
    known = {**SOURCE, "web+phone": Folder(ROWS, "clicks")}
    line = Pipeline("p", [named("a", reads("in")), named("b", reads("a")), named("c", two, reads("a"))], sources=known)
    with pytest.raises(Refused, match="b, c of the pipeline p reads a: remove that first, or take a out of its inputs"):
        check_unread(line, "a")
    with pytest.raises(Refused, match="c of the pipeline p reads phone"):
        check_unread(line, "phone")
    check_unread(line, "b")
    with pytest.raises(Refused, match="a of the pipeline p reads in"):
        check_unread(line, "in")
    Upstream(lw, "a").lease.finish()
    lw.register("b", inputs=["a"])
    with pytest.raises(Refused, match="b reads a, as the authority knows it: remove that first"):
        remove(root, "a", lw, discard=True)
    assert lw.get("a")["a"].registered
    assert (root / "checkpoints/a/begun").exists()


def test_one_that_runs_is_not_removed(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    marks = [mark_running(root, "a"), mark_running(root, "a")]
    for running in marks:
        with pytest.raises(Refused, match="a runs: stop its process first, by Ctrl-C or SIGTERM"):
            remove(root, "a", lw, discard=True)
        running.close()
    assert remove(root, "a", lw, discard=True).startswith("a is removed")


def test_one_that_runs_elsewhere_is_not_removed(root: Path, authority: Serving, lw: lowwater.Client) -> None:
    refused = threading.Event()

    def report(upstream: Upstream) -> None:
        for minute in range(60):
            if not refused.wait(0.1):
                upstream.at(9, minute)

    with lowwater.connect(authority.address, namespace=lw.settings.namespace) as elsewhere:
        thread = threading.Thread(target=report, args=(Upstream(elsewhere, "a"),))
        thread.start()
        try:
            with pytest.raises(Refused, match=r"a runs elsewhere: .* on .* reports for it, at .* Stop that first"):
                remove(root, "a", lw, discard=True, silence=120)
        finally:
            refused.set()
            thread.join()
    assert lw.get("a")["a"].registered
    assert remove(root, "a", lw, discard=True, silence=0).startswith("a is removed")


def entry(*segments: Segment) -> RangeEntry:
    return RangeEntry(segments=segments, facts=(1,))


IDLE = Segment("x", 0, 5, 1, 1, (0, 5, MAX, MAX, MAX, 1, 9))
TIMERS = entry(Segment("x", 1, 2, 1, 1, (0, 2, mark(10).micros, MAX, 60, 1, 9)))
UNSENT = entry(Segment("x", 1, 3, 1, 1, (1, 30, 20, 0)))


class Process:
    def __init__(self, root: Path, first: int = 7) -> None:
        self.mark = mark_running(root, "a")
        self.checkpoint = root / "checkpoints/a"
        (self.checkpoint / "commits").mkdir()
        state = self.checkpoint / "lowwater/state"
        self.store = StateStore.opened(place(self.checkpoint), state, 2, first, ordinal=1)

    def build(self, batch: int, *ranges: RangeEntry) -> None:
        make_version(self.store, batch, "aa", lambda _: StateVersion(batch, "aa", 0, [*ranges]))

    def commit(self, batch: int) -> None:
        (self.checkpoint / f"commits/{batch}").touch()


def test_it_is_drained_before_it_is_stopped(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    process = Process(root)
    process.build(7, TIMERS, UNSENT)
    process.commit(7)
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            process.build(8, RangeEntry())
            process.commit(8)
        else:
            process.mark.close()

    drain(root, "a", within=60, tell=tell, every=0)
    assert lines == [
        "a has left: timers, or records that wait, in 1 key ranges, the first due at the low watermark 2013-01-09T10:00:00Z, 3 productions that no broker has acknowledged",
        "a has left: nothing. Stop its process now, by Ctrl-C or SIGTERM",
    ]
    process.build(9, UNSENT)
    process.commit(9)
    with pytest.raises(Refused, match=r"a has stopped, and has left: 3 productions"):
        remove(root, "a", lw, discard=False, drained=True)
    assert lw.get("a")["a"].registered
    process.build(10, RangeEntry())
    process.commit(10)
    assert remove(root, "a", lw, discard=False, drained=True).startswith("a is removed")


@pytest.mark.parametrize("committed", [None, 7])
def test_what_an_interrupted_batch_read_is_not_drained(root: Path, lw: lowwater.Client, committed: int | None) -> None:
    stood(lw)
    following = 0 if committed is None else committed + 1
    process = Process(root, committed or 0)
    process.mark.close()
    if committed is not None:
        process.build(committed, RangeEntry())
        process.commit(committed)
    process.build(following, RangeEntry())
    with pytest.raises(Refused, match=rf"a has stopped within batch {following}, .* let it finish that batch"):
        remove(root, "a", lw, discard=False, drained=True)
    assert lw.get("a")["a"].registered
    process.commit(following)
    assert remove(root, "a", lw, discard=False, drained=True).startswith("a is removed")


def test_a_drain_gives_up_with_what_is_left(root: Path) -> None:
    process, lines = Process(root), list[str]()
    process.build(7, UNSENT)
    process.commit(7)
    with pytest.raises(Refused, match=r"a still runs after 0 seconds\. a has left: 3 productions .* --within"):
        drain(root, "a", within=0, tell=lines.append)
    process.commit(8)  # what was looked at is removed meanwhile
    with pytest.raises(Refused, match="a still runs after 0 seconds"):
        drain(root, "a", within=0, tell=lines.append)
    process.mark.close()
    assert len(lines) == 1
    with pytest.raises(Refused, match="there is no b in"):
        drain(root, "b", within=0, tell=print)


def test_after_a_crash_in_the_middle_it_does_what_is_left(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    in_the_way = root / "removed"
    in_the_way.touch()
    with pytest.raises(FileExistsError):
        remove(root, "a", lw, discard=True)
    assert lw.get("a")["a"].dropped
    in_the_way.unlink()
    (root / "removed/a.4").mkdir(parents=True)
    remove(root, "a", lw, discard=False)
    assert (root / "removed/a.5/begun").exists()
    assert not (root / "removing/a").exists()


def test_the_command_removes(
    module: str, root: Path, authority: Serving, lw: lowwater.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    stood(lw)
    arguments = ["remove", module, "a", "--root", str(root), "--address", authority.address]
    assert main(arguments) == 2
    assert "a is not finished" in capsys.readouterr().err
    assert main([*arguments, "--discard"]) == 0
    assert capsys.readouterr().out.startswith("a is removed, its checkpoint is ")
    assert main(["remove", module, "in", *arguments[3:]]) == 2
    assert "a of the pipeline p reads in" in capsys.readouterr().err


def test_another_root_or_another_authority_removes_nothing(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    with pytest.raises(Refused, match="Is --root that of the pipeline"):
        remove(root / "other", "a", lw, discard=True)
    assert lw.get("a")["a"].registered
    lw.drop("a", force=True)
    with pytest.raises(Refused, match="the authority does not know a, and so not whether it is finished"):
        remove(root, "a", lw, discard=False)
    for name in ("", ".", "..", "a/b"):
        with pytest.raises(Refused, match="is no name of a computation"):
            remove(root, name, lw, discard=True)
    assert (root / "checkpoints/a/begun").exists()


def test_what_would_be_lost_is_lost_only_when_that_is_said(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    with pytest.raises(Refused, match=r"a is not finished, its low watermark is 2013-01-09T09:00:00Z: rows that"):
        remove(root, "a", lw, discard=False)
    assert lw.get("a")["a"].registered
    aside = root / "removed/a.1"
    assert remove(root, "a", lw, discard=True) == f"a is removed, its checkpoint is {aside} now. Its outputs stay"
    assert lw.get("a")["a"].dropped
    assert [path.name for path in aside.iterdir()] == ["begun"]
    with pytest.raises(Refused, match=r"there is no a in .*: .*/checkpoints/a is not there. Is --root that of"):
        remove(root, "a", lw, discard=True)


def test_what_is_left_is_told_by_the_newest_version(tmp_path: Path) -> None:
    ranges = [
        RangeEntry(),
        entry(IDLE),
        entry(IDLE, Segment("x", 1, 2, 1, 1, (0, 2, 70, MAX, 60, 1, 9))),
        entry(Segment("x", 0, 2, 1, 1, (0, 2, 50, 90, 40, 1, 9)), Segment("x", 1, 4, 1, 1, (1, 30, 20, 0))),
    ]
    assert Remains.of_ranges(ranges) == Remains(2, 50, 90, 4)
    assert not Remains.of_ranges(ranges[:2])
    assert not Remains.of(tmp_path), "before the first batch"
