"""The computations of a pipeline in one Spark session: one query each, and one may fail alone."""

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
"""Seconds between two looks at the queries."""

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)

_RAISED: Final = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Mismatch|Changed|Conflict|Unsupported): .+", re.MULTILINE
)
"""Pattern of the line of a traceback that has the exception's message."""


def start(
    pipeline: Pipeline, spark: SparkSession, root: Path, names: Sequence[str], options: Mapping[str, Any]
) -> Running:
    """See :meth:`Pipeline.start`."""
    if not root.is_absolute():
        msg = f"{root} is not absolute: executors would look for it where they stand"
        raise ValueError(msg)

    for write in pipeline.writes:
        # Outputs of computations that do not start now are prepared too, because their readers may
        # start before the first row is written.
        if write.computation in names or any(write.computation in pipeline.upstream_of(name) for name in names):
            write.place.prepare(spark, _at(root, write.path), write.declared.schema)
    frames = _frames(pipeline, spark, root, names)
    running = Running(pipeline)
    for name in names:
        running.marks[name] = mark_running(root, name)
        written = [write for write in pipeline.writes_of(name) if write.sent is None]
        try:
            running.queries[name] = start_computation(
                pipeline.computations[name],
                frames[name],
                partial(_write, root, written) if written else None,
                checkpoint=root / "checkpoints" / name,
                ranges=pipeline.ranges,
                **options,
            )
        except Exception as failure:  # noqa: BLE001 - a failed start ends its computation alone
            running.failed[name] = failure
            running.marks.pop(name).close()
    return running


def _at(root: Path, path: str) -> str:
    """Return a path below the root as an absolute one; URLs stay as they are."""
    return str(root / path) if path and "://" not in path else path


def _frames(
    pipeline: Pipeline, spark: SparkSession, root: Path, names: Sequence[str]
) -> dict[str, dict[str, DataFrame]]:
    """Return the frames that each computation reads.

    Raises PipelineError with every frame that does not fit the declared inputs.
    """
    frames: dict[str, dict[str, DataFrame]] = {}
    problems: list[str] = []
    for name in names:
        try:
            frames[name] = {
                read.input.label: read.place.read(spark, _at(root, read.path), read.schema or "")
                for read in pipeline.reads_of(name)
            }
            united(pipeline.computations[name], frames[name])
        except Exception as failure:  # noqa: BLE001 - whatever Spark raises
            notes = "".join(f" ({note})" for note in getattr(failure, "__notes__", ()))
            problems.append(f"{name}: {reason(failure)}{notes}")
    if problems:
        raise PipelineError(pipeline.name, problems)
    return frames


def _write(root: Path, writes: Sequence[Writes], outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
    """Write each output of a batch into its place."""
    for write in writes:
        write.place.write(outputs[write.output], batch, _at(root, write.path))


def reason(failure: BaseException) -> str:
    """Return an exception in one line; for a failed query the Python exception, not Spark's."""
    text = str(failure)
    raised = _RAISED.findall(text) if "Traceback" in text else []
    line = raised[-1] if raised else f"{type(failure).__name__}: {text.splitlines()[0] if text else ''}"
    return line.strip()


@dataclass
class Running:
    """The queries of a running pipeline, and the failures of those that have ended."""

    pipeline: Pipeline
    queries: dict[str, lws.TrackedQuery] = field(default_factory=dict[str, Any])
    """Running queries by computation."""
    failed: dict[str, BaseException] = field(default_factory=dict[str, BaseException])
    finished: set[str] = field(default_factory=set[str])
    """Computations whose inputs are finished and whose rows are all written."""
    marks: dict[str, IO[bytes]] = field(default_factory=dict[str, Any])
    """Open files that mark computations as running, see ``mark_running``."""

    def wait(
        self,
        *,
        until_finished: bool = False,
        tell: Callable[[str], object] | None = None,
        stopping: threading.Event | None = None,
    ) -> int:
        """Print progress when it changes; return when all queries have stopped.

        Returns the exit code of :meth:`Pipeline.run`. ``tell`` takes a line, by default for
        standard output. ``stopping`` ends the queries; by default SIGINT and SIGTERM do, in the
        main thread.
        """
        tell = print_line if tell is None else tell
        ends = threading.Event() if stopping is None else stopping
        handled = stopping is None and threading.current_thread() is threading.main_thread()
        before = {stop: signal.signal(stop, lambda *_: ends.set()) for stop in _STOPS} if handled else {}
        printed: dict[str, str] = {}
        try:
            for name, failure in self.failed.items():
                tell(f"{name}  has not started: {reason(failure)}")
            while self.look(tell, printed) and not (until_finished and self._done()) and not ends.is_set():
                ends.wait(_EVERY)
            if ends.is_set():
                tell("stopping, since it was told to")
        finally:
            try:
                self.stop()
            finally:
                for stop, handler in before.items():
                    signal.signal(stop, handler)
        self.look(tell, printed)
        for name in self.pipeline.order:
            if name in self.finished:
                tell(f"{name}  is finished")
        return 1 if self.failed else 0

    def look(self, tell: Callable[[str], object], printed: dict[str, str]) -> bool:
        """Print changed progress, and drop ended queries. Returns True while a query runs."""
        width = max(map(len, self.pipeline.computations))
        for name, query in list(self.queries.items()):
            status = query.stage_status()
            line = (
                f"batch {'-' if status.batch is None else status.batch}  low {status.low}  reported {status.reported}"
            )
            line += f"  late {status.late_rows}" if status.late_rows else ""
            line += f"  holds: {status.holding}" if status.holding else ""
            if printed.get(name) != line:
                printed[name] = line
                tell(f"{name.ljust(width)}  {line}")
            if status.reported == lowwater.Watermark.FINISHED:
                self.finished.add(name)
            try:
                ended = query.await_termination(0.001)
            except Exception as failure:  # noqa: BLE001 - whatever the hooks raise
                self.failed[name] = failure
                ended = True
                tell(f"{name}  has failed: {reason(failure)}")
                others = [other for other in self.queries if other != name]
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
        """Stop all queries, each before those that read it. What they committed is reported.

        Raises the first exception of a stop, after the other queries have been stopped.
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
        """Return True when each query is finished, or waits for one that has failed."""
        blocked = set(self.failed)
        for name in self.pipeline.order:
            if blocked & set(self.pipeline.upstream_of(name)):
                blocked.add(name)
        return all(name in self.finished or name in blocked for name in self.queries)


def print_line(line: str) -> None:
    """Print a line with the time of day."""
    sys.stdout.write(f"{datetime.now().astimezone():%H:%M:%S}  {line}\n")
    sys.stdout.flush()
