"""The computations of a pipeline in one Spark session: each is a query of its own, and one that fails ends alone."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import lowwater
from lowwater_pipeline.computation.incoming import united
from lowwater_pipeline.computation.stage import start as start_computation
from lowwater_pipeline.graph.pipeline import Pipeline, PipelineError, Writes
from lowwater_pipeline.graph.removal import mark_running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import lowwater_spark as lws

__all__ = ["Running", "print_line", "start"]

_EVERY: Final = 1.0
"""Seconds between two looks at how the computations stand."""

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)

_RAISED: Final = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Mismatch|Changed|Conflict|Unsupported): .+", re.MULTILINE
)
"""The line of a traceback that says what was raised."""


def start(
    pipeline: Pipeline, spark: SparkSession, root: Path, names: Sequence[str], options: Mapping[str, Any]
) -> Running:
    """See :meth:`Pipeline.start`."""
    if not root.is_absolute():
        msg = f"{root} is not absolute: executors would look for it where they stand"
        raise ValueError(msg)

    for each in pipeline.writes:
        # Also of what is not started now: a reader of it begins before its first row.
        if each.computation in names or any(each.computation in pipeline.upstream_of(name) for name in names):
            each.place.prepare(spark, _at(root, each.path), each.declared.schema)
    frames = _frames(pipeline, spark, root, names)
    running = Running(pipeline)
    for name in names:
        running.marks[name] = mark_running(root, name)
        written = [each for each in pipeline.writes_of(name) if each.sent is None]
        try:
            running.queries[name] = start_computation(
                pipeline.computations[name],
                frames[name],
                partial(_write, root, written) if written else None,
                checkpoint=root / "checkpoints" / name,
                ranges=pipeline.ranges,
                **options,
            )
        except Exception as failure:  # noqa: BLE001 - that of one is not that of the others
            running.failed[name] = failure
            running.marks.pop(name).close()
    return running


def _at(root: Path, path: str) -> str:
    """Return where a path below the root is; one that says where it is stays so."""
    return str(root / path) if path and "://" not in path else path


def _frames(
    pipeline: Pipeline, spark: SparkSession, root: Path, names: Sequence[str]
) -> dict[str, dict[str, DataFrame]]:
    """Return what each computation reads.

    Raises PipelineError with all that does not go with what it declares.
    """
    frames: dict[str, dict[str, DataFrame]] = {}
    problems: list[str] = []
    for name in names:
        try:
            frames[name] = {
                each.input.label: each.place.read(spark, _at(root, each.path), each.schema or "")
                for each in pipeline.reads_of(name)
            }
            united(pipeline.computations[name], frames[name])
        except Exception as failure:  # noqa: BLE001 - whatever Spark raises
            notes = "".join(f" ({note})" for note in getattr(failure, "__notes__", ()))
            problems.append(f"{name}: {reason(failure)}{notes}")
    if problems:
        raise PipelineError(pipeline.name, problems)
    return frames


def _write(root: Path, writes: Sequence[Writes], outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
    """Write each output of a batch where it stands."""
    for each in writes:
        each.place.write(outputs[each.output], batch, _at(root, each.path))


def reason(failure: BaseException) -> str:
    """Return what was raised in one line: of a query that has failed, what was raised in it, and not Spark's report of it."""
    said = str(failure)
    raised = _RAISED.findall(said) if "Traceback" in said else []
    line = raised[-1] if raised else f"{type(failure).__name__}: {said.splitlines()[0] if said else ''}"
    return line.strip()


@dataclass
class Running:
    """The queries of a pipeline that runs, and what has ended some of them."""

    pipeline: Pipeline
    queries: dict[str, lws.TrackedQuery] = field(default_factory=dict[str, Any])
    """Those that run, by computation."""
    failed: dict[str, BaseException] = field(default_factory=dict[str, BaseException])
    finished: set[str] = field(default_factory=set[str])
    """Whose inputs are finished, and whose rows are all written."""
    marks: dict[str, IO[bytes]] = field(default_factory=dict[str, Any])
    """What says of each query that it runs."""

    def wait(
        self,
        *,
        until_finished: bool = False,
        tell: Callable[[str], object] | None = None,
        stopping: threading.Event | None = None,
    ) -> int:
        """Tell how the computations stand when that changes, and return when they have ended, with the code of :meth:`Pipeline.run`. All queries have stopped then.

        ``tell`` takes a line, by default for standard output; ``stopping`` ends it, by default SIGINT and SIGTERM do, if this is the main thread.
        """
        tell = print_line if tell is None else tell
        ends = threading.Event() if stopping is None else stopping
        handled = stopping is None and threading.current_thread() is threading.main_thread()
        before = {each: signal.signal(each, lambda *_: ends.set()) for each in _STOPS} if handled else {}
        told: dict[str, str] = {}
        try:
            for name, failure in self.failed.items():
                tell(f"{name}  has not started: {reason(failure)}")
            while self.look(tell, told) and not (until_finished and self._done()) and not ends.is_set():
                ends.wait(_EVERY)
            if ends.is_set():
                tell("stopping, since it was told to")
        finally:
            try:
                self.stop()
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)
        self.look(tell, told)
        for name in self.pipeline.order:
            if name in self.finished:
                tell(f"{name}  is finished")
        return 1 if self.failed else 0

    def look(self, tell: Callable[[str], object], told: dict[str, str]) -> bool:
        """Tell what has changed, and find what has ended. Returns whether a query runs."""
        width = max(map(len, self.pipeline.computations))
        for name, query in list(self.queries.items()):
            status = query.stage_status()
            line = (
                f"batch {'-' if status.batch is None else status.batch}  low {status.low}  reported {status.reported}"
            )
            line += f"  late {status.late_rows}" if status.late_rows else ""
            line += f"  holds: {status.holding}" if status.holding else ""
            if told.get(name) != line:
                told[name] = line
                tell(f"{name.ljust(width)}  {line}")
            if status.reported == lowwater.Watermark.FINISHED:
                self.finished.add(name)
            try:
                ended = query.await_termination(0.001)
            except Exception as failure:  # noqa: BLE001 - whatever the hooks raise
                self.failed[name] = failure
                ended = True
                tell(f"{name}  has failed: {reason(failure)}")
                others = [each for each in self.queries if each != name]
                if others:
                    tell(
                        f"{name}  is stopped; {', '.join(others)} go on"
                        if others[1:]
                        else f"{name}  is stopped; {others[0]} goes on"
                    )
            if ended:
                del self.queries[name]
                self._mark_ended(name)
        return bool(self.queries)

    def stop(self) -> None:
        """Stop all queries, each before those that read it.

        What they have committed is reported. Raises what the first of them raised that could not be
        stopped, when the others are stopped.
        """
        failures: list[Exception] = []
        for name in self.pipeline.order:
            if name in self.queries:
                try:
                    self.queries[name].stop()
                except Exception as failure:  # noqa: BLE001 - the others are stopped first
                    failure.add_note(f"{name} could not be stopped")
                    failures.append(failure)
                else:
                    self._mark_ended(name)
        if failures:
            raise failures[0]

    def _mark_ended(self, name: str) -> None:
        if name in self.marks:
            self.marks.pop(name).close()

    def _done(self) -> bool:
        """Return whether each query has finished, or waits for one that has failed and will not."""
        blocked = set(self.failed)
        for name in self.pipeline.order:
            if blocked & set(self.pipeline.upstream_of(name)):
                blocked.add(name)
        return all(name in self.finished or name in blocked for name in self.queries)


def print_line(line: str) -> None:
    """Print a line with the time of the day."""
    sys.stdout.write(f"{datetime.now().astimezone():%H:%M:%S}  {line}\n")
    sys.stdout.flush()
