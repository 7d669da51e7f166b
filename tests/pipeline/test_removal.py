"""A computation is taken out of a pipeline: not while it runs or is read, and what would be lost only when that is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater_pipeline.command import main
from lowwater_pipeline.graph import Pipeline, removal
from lowwater_pipeline.graph.removal import Refused, check_unread, mark_running, remove
from tests.pipeline.test_graph import SOURCE, module, named, reads
from tests.process.serving import Serving
from tests.spark.support import Upstream

__all__ = ["module"]


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "authority").mkdir()
    with Serving(tmp_path / "authority") as server:
        yield server


@pytest.fixture
def lw(authority: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(authority.address) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints/a").mkdir(parents=True)
    (tmp_path / "checkpoints/a/begun").touch()
    return tmp_path


def test_one_that_is_read_is_not_removed(root: Path, lw: lowwater.Client) -> None:
    """By the module or, whatever the module says, by the authority."""
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
    """In however many processes; one that has ended by itself leaves nothing behind."""
    Upstream(lw, "a").at(9)
    marks = [mark_running(root, "a"), mark_running(root, "a")]
    for mark in marks:
        with pytest.raises(Refused, match="a runs: stop its process first, by Ctrl-C or SIGTERM"):
            remove(root, "a", lw, discard=True)
        mark.close()
    assert remove(root, "a", lw, discard=True).startswith("a is removed")


def test_what_would_be_lost_is_lost_only_when_that_is_said(root: Path, lw: lowwater.Client) -> None:
    Upstream(lw, "a").at(9)
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


def test_another_root_or_another_authority_removes_nothing(root: Path, lw: lowwater.Client) -> None:
    """Whoever is wrong about one of them would throw away what runs, or what is not finished."""
    Upstream(lw, "a").at(9)
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


def test_one_that_is_finished_has_nothing_to_lose(root: Path, lw: lowwater.Client) -> None:
    upstream = Upstream(lw, "a")
    upstream.lease.finish()
    upstream.lease.flush(20)
    assert remove(root, "a", lw, discard=False).startswith("a is removed")


def test_after_a_crash_in_the_middle_it_does_what_is_left(
    root: Path, lw: lowwater.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is dropped already. What was removed under the name before stays as it is."""
    Upstream(lw, "a").at(9)
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


def test_a_removal_that_was_interrupted_is_forgotten_when_it_is_started_again(root: Path, lw: lowwater.Client) -> None:
    Upstream(lw, "a").at(9)
    (root / "removing").mkdir()
    (root / "removing/a").touch()
    mark_running(root, "a").close()
    with pytest.raises(Refused, match="a is not finished"):
        remove(root, "a", lw, discard=False)


def test_the_command_removes(
    module: str, root: Path, authority: Serving, lw: lowwater.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    Upstream(lw, "a").at(9)
    told = ["remove", module, "a", "--root", str(root), "--address", authority.address]
    assert main(told) == 2
    assert "a is not finished" in capsys.readouterr().err
    assert main([*told, "--discard"]) == 0
    assert capsys.readouterr().out.startswith("a is removed, its checkpoint is ")
    assert main(["remove", module, "in", *told[3:]]) == 2
    assert "a of the pipeline p reads in" in capsys.readouterr().err
