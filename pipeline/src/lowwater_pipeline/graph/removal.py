"""Takes a computation out of a pipeline while the others run. What is read is not removed, nor what runs; what would be lost is lost only when that is said."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import lowwater
from lowwater import errors
from lowwater_pipeline.graph.pipeline import Pipeline
from lowwater_spark.checkpoint.durable import make_directory, write_once

__all__ = ["Refused", "check_unread", "mark_running", "remove"]


class Refused(Exception):
    """A computation that cannot be removed now, and what to do first."""


def mark_running(root: Path, name: str) -> IO[bytes]:
    """Return a file that says, as long as it is open in a process that lives, that a computation runs. Several processes may: the authority decides between them.

    A removal that was interrupted before is forgotten.
    """
    file = _mark(root, name).open("ab")
    fcntl.flock(file, fcntl.LOCK_SH)
    _begun(root, name).unlink(missing_ok=True)
    return file


@contextlib.contextmanager
def _stopped(root: Path, name: str) -> Iterator[None]:
    """Keep a computation from being started meanwhile. Raises Refused while it runs."""
    with _mark(root, name).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as failure:
            msg = f"{name} runs: stop its process first, by Ctrl-C or SIGTERM, and start the other computations again with --only"
            raise Refused(msg) from failure
        yield


def _mark(root: Path, name: str) -> Path:
    folder = root / "running"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _begun(root: Path, name: str) -> Path:
    """Return the file that says that a computation is being removed: nothing of it is missed any more."""
    return root / "removing" / name


def check_unread(pipeline: Pipeline, name: str) -> None:
    """Raise Refused for a computation that others of the pipeline read, also one that the module does not declare any more."""
    readers = [each.computation for each in pipeline.reads if name in each.input.names]
    if readers:
        msg = f"{', '.join(dict.fromkeys(readers))} of the pipeline {pipeline.name} reads {name}: remove that first, or take {name} out of its inputs="
        raise Refused(msg)


def remove(root: Path, name: str, client: lowwater.Client, *, discard: bool) -> str:
    """Drop a stopped computation at the authority, put its checkpoint aside, and return in words what was done. Again after a crash it does what is left.

    Raises :class:`Refused`, and then nothing has changed: while it runs, while another computation reads it, and without ``discard`` if it is not finished. Raises LowwaterError when the authority is away.
    """
    checkpoint, begun = root / "checkpoints" / name, _begun(root, name)
    if name in ("", ".", "..") or "/" in name:
        msg = f"{name!r} is no name of a computation"
        raise Refused(msg)
    if not checkpoint.exists() and not begun.exists():
        msg = f"there is no {name} in {root}: {checkpoint} is not there. Is --root that of the pipeline?"
        raise Refused(msg)
    with _stopped(root, name):
        view = client.get(name)[name]
        if not discard and not begun.exists():
            _check_finished(name, view)
        # From here on it is removed, also by who comes after a crash.
        make_directory(begun.parent)
        write_once(begun, b"")
        if view.registered:
            try:
                # It is stopped, and its key ranges hold for its next start: that is what ends here.
                client.drop(name, force=True)
            except errors.StillRead as failure:
                begun.unlink()
                msg = f"{failure.metadata.get('consumers', 'another computation')} reads {name}, as the authority knows it: remove that first, or change its inputs"
                raise Refused(msg) from failure
        told = _put_aside(root, checkpoint, name)
        begun.unlink()
        return f"{name} is removed{told}. Its outputs stay"


def _check_finished(name: str, view: lowwater.WatermarkView) -> None:
    """Raise Refused for a computation that has something to lose, or of which nobody can say."""
    if not view.registered:
        msg = f"the authority does not know {name}, so nobody can say whether it is finished: is --address that of the pipeline? Or say --discard"
        raise Refused(msg)
    if not view.low.finished:
        msg = (
            f"{name} is not finished, its low watermark is {view.low}: rows that it has not read, records that wait and timers that have not fired would be lost. "
            "Let it run until its inputs are finished, or say --discard"
        )
        raise Refused(msg)


def _put_aside(root: Path, checkpoint: Path, name: str) -> str:
    """Move a checkpoint to where no start finds it."""
    if not checkpoint.exists():
        return ""
    folder = root / "removed"
    folder.mkdir(exist_ok=True)
    number = 1 + max((int(each.name.rpartition(".")[2]) for each in folder.glob(f"{name}.*")), default=0)
    aside = folder / f"{name}.{number}"
    checkpoint.rename(aside)
    return f", its checkpoint is {aside} now"
