"""Takes a computation out of a pipeline while the others run.

What is read is not removed, nor what runs; what would be lost is lost only when that is said.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import lowwater
from lowwater import RangeState, errors
from lowwater_pipeline.computation.remains import Remains, cut_off
from lowwater_pipeline.graph.pipeline import Pipeline
from lowwater_spark.checkpoint.durable import make_directory, write_once
from lowwater_spark.errors import CheckpointMismatch, StateLost

__all__ = ["SILENCE", "Refused", "check_unread", "drain", "mark_running", "remove"]

SILENCE: Final = 15.0
"""Seconds in which nothing is heard of a claim whose worker is gone: one that lives repeats itself
every few seconds."""

_EVERY: Final = 0.5
"""Seconds between two looks."""

_MOST: Final = 1000
"""Key ranges that are looked at for a worker that lives."""


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


def drain(root: Path, name: str, *, within: float, tell: Callable[[str], object], every: float = _EVERY) -> None:
    """Wait until a computation that runs has nothing left to do, and its process is stopped.

    ``tell`` takes a line whenever what is left has changed.

    Returns at once for one that does not run. Raises :class:`Refused` after ``within`` seconds,
    with what is left.
    """
    _check_there(root, name)
    deadline, said = time.monotonic() + within, ""
    while _runs(root, name):
        with contextlib.suppress(FileNotFoundError, StateLost):  # it goes on meanwhile, and removes what was looked at
            left = Remains.of(root / "checkpoints" / name)
            stop = "" if left else ". Stop its process now, by Ctrl-C or SIGTERM"
            if said != f"{name} has left: {left}{stop}":
                said = f"{name} has left: {left}{stop}"
                tell(said)
        if time.monotonic() >= deadline:
            msg = f"{name} still runs after {within:g} seconds. {said}. Nothing has changed: wait longer by --within, or stop it and say --discard"
            raise Refused(msg)
        time.sleep(every)


def remove(
    root: Path, name: str, client: lowwater.Client, *, discard: bool, drained: bool = False, silence: float = SILENCE
) -> str:
    """Drop a stopped computation at the authority, put its checkpoint aside, and return in words what was done. Again after a crash it does what is left.

    With ``drained`` it need not be finished, but must have left nothing of what it has read. Takes ``silence`` seconds when it has a claim: so long is listened for who reports under it.

    Raises :class:`Refused`, and then nothing has changed: while it runs, here or elsewhere, while another computation reads it, and without ``discard`` if something would be lost. Raises LowwaterError when the
    authority is away.
    """
    checkpoint, begun = root / "checkpoints" / name, _begun(root, name)
    _check_there(root, name)
    with _stopped(root, name):
        view = client.get(name)[name]
        if not discard and not begun.exists():
            if drained:
                _check_drained(name, checkpoint)
            else:
                _check_finished(name, view)
        if view.registered:
            _check_silent(name, client, silence)
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


def _check_there(root: Path, name: str) -> None:
    """Raise Refused for what is no computation of the root."""
    if name in ("", ".", "..") or "/" in name:
        msg = f"{name!r} is no name of a computation"
        raise Refused(msg)
    checkpoint = root / "checkpoints" / name
    if not checkpoint.exists() and not _begun(root, name).exists():
        msg = f"there is no {name} in {root}: {checkpoint} is not there. Is --root that of the pipeline?"
        raise Refused(msg)


def _runs(root: Path, name: str) -> bool:
    try:
        with _stopped(root, name):
            return False
    except Refused:
        return True


def _check_silent(name: str, client: lowwater.Client, silence: float) -> None:
    """Raise Refused when somebody reports under a claim of a computation: a query that holds no lock here, of another root or on a file system without locks."""
    heard: dict[bytes, int] = {}
    deadline = time.monotonic() + silence
    while True:
        owned = [each for each in client.ranges(name, limit=_MOST) if each.state is RangeState.OWNED]
        for each in owned:
            if heard.setdefault(each.start, each.last_report_micros) != each.last_report_micros:
                msg = f"{name} runs elsewhere: {each.worker or 'a worker'} on {each.host or 'an unknown host'} reports for it, at {each.last_report}. Stop that first; is --root that of its pipeline?"
                raise Refused(msg)
        left = deadline - time.monotonic()
        if not owned or left <= 0:
            return
        time.sleep(min(_EVERY, left))


def _check_drained(name: str, checkpoint: Path) -> None:
    """Raise Refused for a computation that has stopped before all was done that it has read."""
    try:
        left, batch = Remains.of(checkpoint), cut_off(checkpoint)
    except (CheckpointMismatch, StateLost) as failure:
        msg = f"what {name} has left cannot be read: {failure}. Mend that, or say --discard"
        raise Refused(msg) from failure
    if batch is not None:
        msg = f"{name} has stopped within batch {batch}, after it had read its rows: start it again and let it finish that batch, or say --discard"
        raise Refused(msg)
    if left:
        msg = f"{name} has stopped, and has left: {left}. Start it again and let it go on, or say --discard"
        raise Refused(msg)


def _check_finished(name: str, view: lowwater.WatermarkView) -> None:
    """Raise Refused for a computation that has something to lose, or of which nobody can say."""
    if not view.registered:
        msg = f"the authority does not know {name}, so nobody can say whether it is finished: is --address that of the pipeline? Or say --discard"
        raise Refused(msg)
    if not view.low.finished:
        msg = (
            f"{name} is not finished, its low watermark is {view.low}: rows that it has not read, records that wait and timers that have not fired would be lost. "
            "Let it run until its inputs are finished, or say --drain to lose nothing of what it has read, or --discard"
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
