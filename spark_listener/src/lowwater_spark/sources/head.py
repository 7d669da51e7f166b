"""head(W): the files that stood in the sources when an input watermark had been read, and the readings that wait for theirs.

A batch may count on an input low watermark W only if it read everything that was there when W was read (a rate limit, targets
fixed earlier, a replayed plan and a stale listing all leave rows behind that W covers). So the driver lists the source *after*
it has read W, and W counts from a batch that has taken each listed path. The set is exact where a count or a greatest name is
not: with ``latestFirst`` an older file is taken later than a newer one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from lowwater_spark.sources.control import ControlSource
from lowwater_spark.sources.files import NO_FILE, FileSource, Intruder, Settled, walk
from lowwater_spark.sources.source_log import NOTHING, File, SourceLog

__all__ = ["Candidates", "Head", "Source", "list_head", "source_logs"]

KEPT: Final = 16
"""Bound of heads waited for; beyond it the candidate of every second one is dropped, the oldest and the newest never."""

Source = FileSource | ControlSource


def source_logs(checkpoint: Path, sources: Sequence[Source]) -> list[SourceLog]:
    """Return the logs of a query's sources, in their order. A control's stays empty: its plan names no offset in it."""
    folder = checkpoint / "sources"
    return [
        SourceLog(
            folder / str(i),
            source.root,
            source.max_age,
            None if source.recursive or source.sink_log else source.columns,
        )
        if isinstance(source, FileSource)
        else SourceLog(folder / str(i))
        for i, source in enumerate(sources)
    ]


class Head(set[File]):
    """What of a listing is still to be waited for. Any set of files is the head of a source of which nothing is left out."""

    __slots__ = ("batches", "settled", "unseen")

    def __init__(self, files: Iterable[File] = ()) -> None:
        super().__init__(files)
        self.settled: list[File] = []
        """Those that were looked at and left out."""
        self.batches: Container[str] = ()
        """The directories that were not looked into, since all in them is taken."""
        self.unseen = 0
        """The number of files in them."""

    def wait_for(self, reason: str) -> None:
        """Wait for what Spark never takes: nothing newer counts until a listing does not find it."""
        self.add(File(reason, NO_FILE))


def list_head(source: Source, settled: Settled | None = None) -> Head:
    """Return every file that Spark has to take before all that stands in the source now has been read; of a control none.

    What is settled is left out: it is taken, for good. What Spark never takes holds for as long as it is there: a sub-directory without
    recursiveFileLookup, and each :class:`Intruder`. O(entries), with a stat of each file that is in no settled batch. Raises OSError when the root
    cannot be listed; then nothing is known, and no watermark counts.
    """
    head = Head()
    if isinstance(source, ControlSource):
        return head
    for found in walk(source, settled):
        if isinstance(found, Intruder):
            head.add(_waited_for(found))
        elif settled is not None and settled.has(found):
            head.settled.append(found)
        else:
            head.add(found)
    if settled is not None:
        head.batches, head.unseen = settled.batches, settled.files
    return head


def _waited_for(found: Intruder) -> File:
    reason = f" ({found.writer} writes here, and the inputs do not name it)" if found.writer else ""
    return File(found.path + reason, NO_FILE)


T = TypeVar("T")


class _Candidate(Generic[T]):
    """One reading of W, what is missing of its head, and how far the rest reaches into each source's log."""

    __slots__ = ("missing", "needs", "reading")

    def __init__(self, reading: T, heads: Sequence[set[File]], planned: Sequence[int]) -> None:
        self.reading = reading
        # Not the heads themselves: they also have the paths that are left out.
        self.missing = [set(head) for head in heads]
        self.needs = [NOTHING] * len(heads)
        self._need(planned)

    def _need(self, planned: Sequence[int]) -> None:
        # What is not listed may have been read by a batch that is still running, and removed since.
        known = itertools.chain(planned, itertools.repeat(NOTHING))
        self.needs = [max(each) for each in zip(self.needs, known, strict=False)]

    def look(self, logs: Sequence[SourceLog]) -> None:
        for i, log in enumerate(logs):
            found = {file: batch for file in self.missing[i] if (batch := log.batch_of(file)) is not None}
            self.missing[i].difference_update(found)
            self.needs[i] = max([self.needs[i], *found.values()])

    def relist(self, heads: Sequence[set[File]], planned: Sequence[int], logs: Sequence[SourceLog]) -> None:
        """Wait for a later listing instead, if a file that no entry has taken is gone: removed, written again, or renamed to another one of it."""
        self.look(logs)
        if any(not missing <= head for missing, head in zip(self.missing, heads, strict=True)):
            self.missing = [set(head) for head in heads]
            self._need(planned)

    def same_head(self, other: _Candidate[T]) -> bool:
        """Return whether both are reached by the same offsets, now and later. Both must have looked at the same logs."""
        return self.needs == other.needs and self.missing == other.missing

    def reached(self, offsets: Sequence[int]) -> bool:
        # Before the first batch there are no offsets: then only an empty head is reached.
        known = itertools.chain(offsets, itertools.repeat(NOTHING))
        return not any(self.missing) and all(n <= offset for n, offset in zip(self.needs, known, strict=False))


class Candidates(Generic[T]):
    """Readings of W that wait until a batch has reached their head, oldest first.

    The rule is joint: all sources of the query must have reached their part of the head. Bounded by :data:`KEPT` heads and,
    per head, by the files that are not read yet. :meth:`add` and :meth:`newest_reached` cost O(waiting paths).

    Of neighbours that wait for the same, only the newer reading stays, so W may move as often as it likes: what is kept grows with
    the files that come and the batches that are planned, and the readings before a planned batch become one. No reading counts sooner
    by that. The one that stays was read before its own head was listed, and waits for all of that head; the one that goes would have been
    reached by the same offsets, and the newest that is reached is what counts.
    """

    def __init__(self, logs: Sequence[SourceLog]) -> None:
        self._logs = logs
        self._waiting: list[_Candidate[T]] = []

    def __len__(self) -> int:
        """Return how many readings wait."""
        return len(self._waiting)

    def add(self, reading: T, heads: Sequence[set[File]], planned: Sequence[int] = ()) -> None:
        """Add a reading with the heads that were listed after it, one per source.

        ``planned`` are the offsets of the newest batch that was planned when the listing had ended: its tasks may have read a file that
        was removed before. Only who counts planned batches as read may leave them out.
        """
        gone = [_gone(log, head) for log, head in zip(self._logs, heads, strict=False)]
        self._waiting.append(_Candidate(reading, heads, planned))
        self._look()
        # Only now: what a reading waited for and was taken before it went is known by its entry.
        for log, paths in zip(self._logs, gone, strict=False):
            log.forget(paths)
        if len(self._waiting) > KEPT:
            newest = self._waiting[-1]
            self._waiting = self._waiting[:-1:2]
            self._waiting.append(newest)

    def relist(self, heads: Sequence[set[File]], planned: Sequence[int] = ()) -> None:
        """List for the newest reading again: a later listing is one after it as well.

        A path that is gone before any entry took it gives no rows any more, and would be waited for in vain. One that an entry has
        taken still counts: its batch may have read it. The logs must have been read as for the batch that runs.
        """
        if self._waiting:
            self._waiting[-1].relist(heads, planned, self._logs)

    def newest_reached(self, offsets: Sequence[int], *, forget: bool) -> T | None:
        """Return the newest reading whose head lies within these log offsets, None when there is none.

        The source logs must have been read up to the offsets. ``forget`` drops it and all older ones; only a committed batch
        may do that, since the plan of a running one may still be lost.
        """
        self._look()
        for i in reversed(range(len(self._waiting))):
            if self._waiting[i].reached(offsets):
                reading = self._waiting[i].reading
                if forget:
                    del self._waiting[: i + 1]
                return reading
        return None

    def _look(self) -> None:
        for candidate in self._waiting:
            candidate.look(self._logs)
        kept = [older for older, newer in itertools.pairwise(self._waiting) if not older.same_head(newer)]
        self._waiting = [*kept, *self._waiting[-1:]]

    def missing(self, limit: int = 5) -> list[str]:
        """Return some of the paths that no batch has taken yet, of the oldest reading that waits for any; in order of names.

        Where waiting does not help, the reason goes with the path: it was written again since a batch has read it, or it is too old.
        """
        for candidate in self._waiting:
            named = [
                _named(file, log)
                for missing, log in zip(candidate.missing, self._logs, strict=True)
                for file in heapq.nsmallest(limit, missing)
            ]
            if named:
                return sorted(named)[:limit]
        return []


def _gone(log: SourceLog, head: set[File]) -> list[str]:
    listed = [file.path for file in head]
    if isinstance(head, Head):
        return log.gone([*listed, *(file.path for file in head.settled)], head.batches, head.unseen)
    return log.gone(listed)


def _named(file: File, log: SourceLog) -> str:
    if file.path in log.taken and file.modified != NO_FILE:
        return f"{file.path} (written again after it was read: give it another name)"
    if file.modified != NO_FILE and log.passes_over(file):
        return f"{file.path} (older than the newest file by more than maxFileAge)"
    return file.path
