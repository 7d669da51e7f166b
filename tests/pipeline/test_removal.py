"""A computation is taken out of a pipeline: not while it runs or is read, and what would be lost only when that is said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater_pipeline.command import main
from lowwater_pipeline.computation.remains import Remains
from lowwater_pipeline.graph import Pipeline, removal
from lowwater_pipeline.graph.removal import Refused, check_unread, drain, mark_running, remove
from lowwater_spark.track.segments import Segment
from lowwater_spark.track.state import RangeEntry, StateStore, Version
from tests.kit.times import MAX, mark
from tests.pipeline.test_graph import SOURCE, module, named, reads
from tests.process.serving import Serving
from tests.spark.support import Upstream, place

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
    """It came to nine o'clock, and has stopped."""
    upstream = Upstream(lw, "a")
    upstream.at(9)
    upstream.lease.release()


def test_one_that_is_read_is_not_removed(root: Path, lw: lowwater.Client) -> None:
    made = Pipeline("p", [named("a", reads("in")), named("b", reads("a"))], sources=SOURCE)
    with pytest.raises(Refused, match="b of the pipeline p reads a: remove that first, or take a out of its inputs="):
        check_unread(made, "a")
    check_unread(made, "b")
    with pytest.raises(Refused, match="a of the pipeline p reads in"):
        check_unread(made, "in")
    Upstream(lw, "a").lease.finish()
    lw.register("b", inputs=["a"])
    with pytest.raises(Refused, match="b reads a, as the authority knows it: remove that first"):
        remove(root, "a", lw, discard=True)
    assert lw.get("a")["a"].registered
    assert (root / "checkpoints/a/begun").exists()


def test_one_that_runs_is_not_removed(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    marks = [mark_running(root, "a"), mark_running(root, "a")]
    for each in marks:
        with pytest.raises(Refused, match="a runs: stop its process first, by Ctrl-C or SIGTERM"):
            remove(root, "a", lw, discard=True)
        each.close()
    assert remove(root, "a", lw, discard=True).startswith("a is removed")


def test_one_that_runs_elsewhere_is_not_removed(root: Path, authority: Serving, lw: lowwater.Client) -> None:
    with lowwater.connect(authority.address, namespace=lw.settings.namespace) as elsewhere:
        Upstream(elsewhere, "a").at(9)
        with pytest.raises(Refused, match=r"a runs elsewhere: .* on .* reports for it, at .* Stop that first"):
            remove(root, "a", lw, discard=True, silence=120)
    assert lw.get("a")["a"].registered
    assert remove(root, "a", lw, discard=True, silence=1).startswith("a is removed")


class Process:
    """One that runs, with what it has left in turn; None while its files are just removed. Then it is stopped."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *left: Remains | None) -> None:
        self.mark = mark_running(root, "a")
        self.left: list[Remains | None] = [*left]
        self.said: list[str] = []
        monkeypatch.setattr(removal, "_EVERY", 0.0)
        monkeypatch.setattr(Remains, "of", lambda _: self.look())

    def look(self) -> Remains:
        found = self.left.pop(0)
        if not self.left:
            self.mark.close()
        if found is None:
            raise FileNotFoundError
        return found


def test_it_is_drained_before_it_is_stopped(root: Path, lw: lowwater.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stood(lw)
    some = Remains(2, mark(10).micros, None, 3)
    process = Process(root, monkeypatch, some, None, some, Remains(), Remains(), Remains())
    drain(root, "a", within=60, tell=process.said.append)
    assert process.said == [
        "a has left: timers, or records that wait, in 2 key ranges, the first due at the low watermark 2013-01-09T10:00:00Z, 3 productions that no broker has acknowledged",
        "a has left: nothing. Stop its process now, by Ctrl-C or SIGTERM",
    ]
    process.left = [Remains(1, None, mark(9).micros)]
    with pytest.raises(
        Refused, match=r"a has stopped, and has left: timers, .* in 1 key ranges, the first by the clock at"
    ):
        remove(root, "a", lw, discard=False, drained=True)
    assert lw.get("a")["a"].registered
    process.left = [Remains()]
    assert remove(root, "a", lw, discard=False, drained=True).startswith("a is removed")


@pytest.mark.parametrize("committed", [None, 7])
def test_what_a_batch_has_read_that_was_cut_off_is_not_drained(
    root: Path, lw: lowwater.Client, committed: int | None
) -> None:
    stood(lw)
    checkpoint = root / "checkpoints/a"
    following = 0 if committed is None else committed + 1
    store = StateStore.opened(place(checkpoint), checkpoint / "lowwater/state", 1, following, ordinal=1)
    (checkpoint / "commits").mkdir()
    if committed is not None:
        (checkpoint / f"commits/{committed}").touch()
        store.first = committed
        store._keep(None)
        store.build(committed, "aa", lambda _: Version(committed, "aa", 0, [RangeEntry()]))
    store.build(following, "bb", lambda _: Version(following, "bb", 0, [RangeEntry()]))
    with pytest.raises(Refused, match=rf"a has stopped within batch {following}, .* let it finish that batch"):
        remove(root, "a", lw, discard=False, drained=True)
    assert lw.get("a")["a"].registered
    (checkpoint / f"commits/{following}").touch()
    assert remove(root, "a", lw, discard=False, drained=True).startswith("a is removed")


def test_a_drain_gives_up_with_what_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(root, monkeypatch, Remains(unsent=1), Remains())
    with pytest.raises(Refused, match=r"a still runs after 0 seconds\. a has left: 1 productions .* --within"):
        drain(root, "a", within=0, tell=process.said.append)
    process.mark.close()
    assert len(process.said) == 1
    with pytest.raises(Refused, match="there is no b in"):
        drain(root, "b", within=0, tell=print)


def test_after_a_crash_in_the_middle_it_does_what_is_left(
    root: Path, lw: lowwater.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood(lw)
    (root / "removed/a.4").mkdir(parents=True)

    def die(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(removal, "_put_aside", die)
        with pytest.raises(KeyboardInterrupt):
            remove(root, "a", lw, discard=True)
    assert lw.get("a")["a"].dropped
    remove(root, "a", lw, discard=False)
    assert (root / "removed/a.5/begun").exists()
    assert not (root / "removing/a").exists()


def test_the_command_removes(
    module: str, root: Path, authority: Serving, lw: lowwater.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    stood(lw)
    told = ["remove", module, "a", "--root", str(root), "--address", authority.address]
    assert main(told) == 2
    assert "a is not finished" in capsys.readouterr().err
    assert main([*told, "--discard"]) == 0
    assert capsys.readouterr().out.startswith("a is removed, its checkpoint is ")
    assert main(["remove", module, "in", *told[3:]]) == 2
    assert "a of the pipeline p reads in" in capsys.readouterr().err


def test_another_root_or_another_authority_removes_nothing(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    with pytest.raises(Refused, match="Is --root that of the pipeline"):
        remove(root / "other", "a", lw, discard=True)
    assert lw.get("a")["a"].registered
    lw.drop("a", force=True)
    with pytest.raises(Refused, match="the authority does not know a, so nobody can say whether it is finished"):
        remove(root, "a", lw, discard=False)
    for name in ("", ".", "..", "a/b"):
        with pytest.raises(Refused, match="is no name of a computation"):
            remove(root, name, lw, discard=True)
    assert (root / "checkpoints/a/begun").exists()


def test_what_would_be_lost_is_lost_only_when_that_is_said(root: Path, lw: lowwater.Client) -> None:
    stood(lw)
    with pytest.raises(
        Refused, match=r"a is not finished, its low watermark is 2013-01-09T09:00:00Z: rows that it has"
    ):
        remove(root, "a", lw, discard=False)
    assert lw.get("a")["a"].registered
    aside = root / "removed/a.1"
    assert remove(root, "a", lw, discard=True) == f"a is removed, its checkpoint is {aside} now. Its outputs stay"
    assert lw.get("a")["a"].dropped
    assert [each.name for each in aside.iterdir()] == ["begun"]
    with pytest.raises(Refused, match=r"there is no a in .*: .*/checkpoints/a is not there. Is --root that of"):
        remove(root, "a", lw, discard=True)


def test_what_is_left_is_told_by_the_newest_version(tmp_path: Path) -> None:

    def entry(*segments: Segment) -> RangeEntry:
        return RangeEntry(segments=segments, facts=(1,))

    idle = Segment("x", 0, 5, 1, 1, (0, 5, MAX, MAX, MAX, 1, 9))
    ranges = [
        RangeEntry(),
        entry(idle),
        entry(idle, Segment("x", 1, 2, 1, 1, (0, 2, 70, MAX, 60, 1, 9))),
        entry(Segment("x", 0, 2, 1, 1, (0, 2, 50, 90, 40, 1, 9)), Segment("x", 1, 4, 1, 1, (1, 30, 20, 0))),
    ]
    assert Remains.of_ranges(ranges) == Remains(2, 50, 90, 4)
    assert not Remains.of_ranges(ranges[:2])
    assert not Remains.of(tmp_path), "before the first batch"
