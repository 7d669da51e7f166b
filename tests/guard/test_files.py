"""Guarded writes into directories: what a log of entries that are linked once orders, and what is left when somebody dies."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lowwater_pipeline.guard import Damaged, Fenced, StoreReplaced, Unfit
from lowwater_pipeline.guard.files import FileGuard
from tests.guard.stores import FileStore, claim

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("delayed", ["filled", "judged"])
def test_figure_12_the_delayed_entry_of_a_zombie_is_never_named(in_files: FileStore, delayed: str) -> None:
    zombie = in_files.guard().raise_(claim(5))
    reached, go = threading.Event(), threading.Event()

    def probe(point: str) -> None:
        if point == delayed:
            reached.set()
            go.wait()

    zombie.guard.probe = probe
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(in_files.write, zombie, 0, "a", [1])
        reached.wait()
        successor = in_files.raise_(claim(6))
        scanned = in_files.values()
        go.set()
        outcome = written.exception()
    assert in_files.values() == scanned == []
    assert isinstance(outcome, Fenced)
    assert in_files.write(successor, 0, "b", [2])
    assert in_files.values() == [2]
    assert len(list((in_files.folder / "rows").iterdir())) == 1, "the zombie's files are gone"


def test_of_those_who_make_one_write_at_once_one_makes_it(in_files: FileStore, request: pytest.FixtureRequest) -> None:
    barrier = threading.Barrier(4)
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)

    def work(_: int) -> list[bool]:
        writer = in_files.guard().raise_(claim(5))
        written = []
        for batch in range(8):
            barrier.wait(60)
            written.append(in_files.write(writer, batch, f"digest {batch}", [batch]))
        return written

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(work, range(4)))
    assert [sum(written) for written in zip(*outcomes, strict=True)] == [1] * 8
    assert in_files.values() == list(range(8))


def test_what_the_caller_raises_leaves_nothing(in_files: FileStore) -> None:
    writer = in_files.raise_(claim(5))

    def fill(directory: Path) -> None:
        (directory / "half").touch()
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="own"):
        writer.write(0, "a", fill)
    assert list((in_files.folder / "rows").iterdir()) == []
    assert in_files.write(writer, 0, "a", [1])


@pytest.mark.parametrize("named", [False, True])
def test_kill_9_before_and_after_the_entry(in_files: FileStore, named: bool) -> None:
    """A batch without an entry does not count and is written again. A batch with an entry counts."""
    program = f"""
import os, signal, sys
from lowwater_pipeline.guard import Claim, files
from pathlib import Path
writer = files.FileGuard(Path(sys.argv[1]), "hourly").raise_(Claim("deployment", "default/hourly", 1, 5, "of 5"))
link = files.write_once
def killed(path, data):
    {"link(path, data)" if named else "pass"}
    os.kill(os.getpid(), signal.SIGKILL)
files.write_once = killed
writer.write(0, "a", lambda directory: (directory / "values").write_text("1\\n"))
"""
    done = subprocess.run([sys.executable, "-c", program, str(in_files.folder)], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert in_files.values() == ([1] if named else [])
    assert in_files.write(in_files.raise_(claim(6)), 0, "a", [1]) is not named
    assert in_files.values() == [1]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_log_that_lacks_an_entry_is_damaged_and_nobody_raises_over_it(in_files: FileStore, lost: int) -> None:
    """A reader would take the log for one that ended before, and a zombie's write would pass."""
    writer, neighbour = in_files.raise_(claim(9)), in_files.raise_(claim(5), guard="daily")
    for batch in range(2):
        in_files.write(writer, batch, f"digest {batch}", [batch])
    (in_files.guard().log / f"{lost:020}").unlink()
    for refused in (lambda: in_files.raise_(claim(8)), in_files.guard().directories, in_files.guard().rows):
        with pytest.raises(Damaged, match=f"the entry {lost} is not there, and 2 is"):
            refused()
    assert in_files.write(neighbour, 0, "a", [1])


def test_a_folder_that_was_copied_is_another_life(in_files: FileStore, tmp_path: Path) -> None:
    in_files.write(in_files.raise_(claim(5)), 0, "a", [1])
    subprocess.run(["cp", "-a", str(in_files.folder), str(tmp_path / "copy")], check=True)
    copy = FileStore(tmp_path / "copy")
    with pytest.raises(StoreReplaced):
        copy.write(copy.unraised(claim(5)), 1, "b", [2])
    assert copy.write(copy.raise_(claim(6)), 1, "b", [2])
    assert (in_files.values(), copy.values()) == ([1], [1, 2])


def test_what_is_no_name_of_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="name of a directory"):
        FileGuard(tmp_path, "a/b")
    with pytest.raises(Unfit, match="absolute"):
        FileGuard("relative", "hourly")
