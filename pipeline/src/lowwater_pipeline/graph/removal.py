"""Takes a computation out of a pipeline while the others run.

A computation that others read, or that runs, is not removed. Work is lost only on request.
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
"""Seconds after which a claim without a report has no live worker: a live one reports every few
seconds."""

_EVERY: Final = 0.5
"""Seconds between two checks for live workers."""

_MOST: Final = 1000
"""Greatest number of key ranges that are watched for a live worker."""


class Refused(Exception):
    """A computation cannot be removed now; the message says what to do first."""


def mark_running(root: Path, name: str) -> IO[bytes]:
    """Return a file that marks a computation as running while a live process has it open.

    Several processes may: the authority decides between them. An interrupted removal is forgotten.
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
    """Return the file that marks a removal as begun: from then on nothing is checked for loss."""
    return root / "removing" / name


def check_unread(pipeline: Pipeline, name: str) -> None:
    """Raise Refused if others of the pipeline read a computation, which may be undeclared."""
    readers = [read.computation for read in pipeline.reads if name in read.input.names]
    if readers:
        msg = f"{', '.join(dict.fromkeys(readers))} of the pipeline {pipeline.name} reads {name}: remove that first, or take {name} out of its inputs="
        raise Refused(msg)


def drain(root: Path, name: str, *, within: float, tell: Callable[[str], object], every: float = _EVERY) -> None:
    """Wait until a running computation has nothing left to do, and its process has stopped.

    ``tell`` takes a line whenever the work left has changed. Returns at once for a computation that
    does not run. Raises :class:`Refused` after ``within`` seconds, with the work left.
    """
    _check_there(root, name)
    deadline, line = time.monotonic() + within, ""
    while _runs(root, name):
        with contextlib.suppress(FileNotFoundError, StateLost):  # it goes on, and removes files that are being read
            remains = Remains.of(root / "checkpoints" / name)
            stop = "" if remains else ". Stop its process now, by Ctrl-C or SIGTERM"
            if line != f"{name} has left: {remains}{stop}":
                line = f"{name} has left: {remains}{stop}"
                tell(line)
        if time.monotonic() >= deadline:
            msg = f"{name} still runs after {within:g} seconds. {line}. Nothing has changed: wait longer by --within, or stop it and say --discard"
            raise Refused(msg)
        time.sleep(every)


def remove(
    root: Path, name: str, client: lowwater.Client, *, discard: bool, drained: bool = False, silence: float = SILENCE
) -> str:
    """Drop a stopped computation at the authority, move its checkpoint aside, and say so in words.

    Call it again after a crash: it does the rest. With ``drained`` the computation need not be
    finished, but must have done all work of the rows that it has read. If it has a claim, watches
    for reports under the claim for ``silence`` seconds.

    Raises :class:`Refused`, without a change, while the computation runs, here or elsewhere, while
    another computation reads it, and without ``discard`` if work would be lost. Raises
    LowwaterError when the authority is away.
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
        # Once the file ``begun`` exists, the removal is decided: after a crash the next call
        # completes it.
        make_directory(begun.parent)
        write_once(begun, b"")
        if view.registered:
            try:
                # force: the worker has stopped, but the computation still has its key ranges, which
                # would wait for a next start.
                client.drop(name, force=True)
            except errors.StillRead as failure:
                begun.unlink()
                msg = f"{failure.metadata.get('consumers', 'another computation')} reads {name}, as the authority knows it: remove that first, or change its inputs"
                raise Refused(msg) from failure
        moved = _put_aside(root, checkpoint, name)
        begun.unlink()
        return f"{name} is removed{moved}. Its outputs stay"


def _check_there(root: Path, name: str) -> None:
    """Raise Refused for a name that is no computation of the root."""
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
    """Raise Refused when a worker elsewhere reports for a computation.

    Such a query has no lock here: it uses another root, or a file system without locks.
    """
    last_reports: dict[bytes, int] = {}
    deadline = time.monotonic() + silence
    while True:
        owned = [claim for claim in client.ranges(name, limit=_MOST) if claim.state is RangeState.OWNED]
        for claim in owned:
            if last_reports.setdefault(claim.start, claim.last_report_micros) != claim.last_report_micros:
                msg = f"{name} runs elsewhere: {claim.worker or 'a worker'} on {claim.host or 'an unknown host'} reports for it, at {claim.last_report}. Stop that first; is --root that of its pipeline?"
                raise Refused(msg)
        rest = deadline - time.monotonic()
        if not owned or rest <= 0:
            return
        time.sleep(min(_EVERY, rest))


def _check_drained(name: str, checkpoint: Path) -> None:
    """Raise Refused for a computation that has stopped with work left from rows it has read."""
    try:
        remains, batch = Remains.of(checkpoint), cut_off(checkpoint)
    except (CheckpointMismatch, StateLost) as failure:
        msg = f"what {name} has left cannot be read: {failure}. Mend that, or say --discard"
        raise Refused(msg) from failure
    if batch is not None:
        msg = f"{name} has stopped within batch {batch}, after it had read its rows: start it again and let it finish that batch, or say --discard"
        raise Refused(msg)
    if remains:
        msg = f"{name} has stopped, and has left: {remains}. Start it again and let it go on, or say --discard"
        raise Refused(msg)


def _check_finished(name: str, view: lowwater.WatermarkView) -> None:
    """Raise Refused for a computation that would lose work, or that the authority does not know."""
    if not view.registered:
        msg = f"the authority does not know {name}, and so not whether it is finished: is --address that of the pipeline? Or say --discard"
        raise Refused(msg)
    if not view.low.finished:
        msg = (
            f"{name} is not finished, its low watermark is {view.low}: rows that it has not read, records that wait and timers that have not fired would be lost. "
            "Let it run until its inputs are finished, or say --drain to lose nothing of what it has read, or --discard"
        )
        raise Refused(msg)


def _put_aside(root: Path, checkpoint: Path, name: str) -> str:
    """Move a checkpoint to where no start finds it, and return where in words."""
    if not checkpoint.exists():
        return ""
    folder = root / "removed"
    folder.mkdir(exist_ok=True)
    number = 1 + max((int(path.name.rpartition(".")[2]) for path in folder.glob(f"{name}.*")), default=0)
    aside = folder / f"{name}.{number}"
    checkpoint.rename(aside)
    return f", its checkpoint is {aside} now"
