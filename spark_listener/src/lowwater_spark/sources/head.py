"""The heads of a query's sources, and the readings of the inputs that wait for theirs.

A reading W counts from the first batch that has read everything which was in the sources when W
had been read. Each source itself tells its head, and whether an offset has reached it
(:mod:`lowwater_spark.sources.base`). The rule is joint: a reading waits for all sources, and one
source that cannot be listed holds W.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE, Awaited, Line, OpenSource, Source
from lowwater_spark.sources.files.bookmarks import Output
from lowwater_spark.sources.files.roots import Replaced

__all__ = ["KEPT", "Candidates", "Heads"]

logger = logging.getLogger("lowwater.spark")

KEPT: Final = 16
"""Greatest number of waiting readings. Beyond it every second one is dropped, but never the oldest
and the newest."""

T = TypeVar("T")


class Heads:
    """The open sources of one query, in Spark's order, with one listing for all who wait for them.

    A listing serves every reading that was taken before it began. So a stage that has read its
    inputs notes the :meth:`moment`, and asks for a look that began after it: :meth:`look` lists the
    sources, or returns a listing that another stage has made since. An earlier look may lack rows
    that W covers.

    Two threads may share an object if they hold ``lock`` while they read logs and while they add
    readings. One thread at a time makes a look, without the lock.
    """

    def __init__(self, sources: Sequence[OpenSource]) -> None:
        self.sources = sources
        self.lock = threading.RLock()
        self._settled: Sequence[Line] = ()
        """Lines up to which looks may take batches for committed."""
        self._moment = 0
        """Number of looks that have begun."""
        self._look: list[Any] | None = None
        """Newest look; None when it has failed, or is not needed any more."""
        self._error: OSError | None = None

    @classmethod
    def of(cls, manifest: Manifest, sources: Sequence[Source]) -> Heads:
        """Open the sources of a query for a run. Raises CheckpointMismatch."""
        return cls([source.open(manifest, number) for number, source in enumerate(sources)])

    @property
    def outputs(self) -> list[Mapping[str, Output]]:
        """Directories into which lowwater hands batches over, by path, of each source.

        The newest listing decides.
        """
        return [source.outputs for source in self.sources]

    @property
    def remembered(self) -> int:
        """Number of paths of read files that all sources hold in memory."""
        return sum(source.remembered for source in self.sources)

    @property
    def pause(self) -> float:
        """Least seconds between two looks at the sources."""
        return max((source.pause for source in self.sources), default=0.0)

    @property
    def lost(self) -> str:
        """Reason why no newer low watermark counts; empty: the newest listing has succeeded."""
        return "" if self._error is None else str(self._error)

    def list_heads(self, lines: Sequence[Line] = ()) -> list[Any] | None:
        """Return the listing of each source, or None when one source cannot be listed.

        In that case no newer watermark counts, and a new reason is logged as a warning. Batches up
        to ``lines`` cannot be taken back, so unchanged files that they took are left out. Costs the
        :meth:`~lowwater_spark.sources.base.OpenSource.head` of each source.
        """
        settled = itertools.chain(lines, itertools.repeat(NONE))
        try:
            heads = [source.head(line) for source, line in zip(self.sources, settled, strict=False)]
        except OSError as error:
            if str(error) != self.lost:
                logger.warning("a source cannot be listed, so no newer watermark counts: %s", error)
            self._error = error
            return None
        self._error = None
        return heads

    def moment(self, settled: Sequence[Line] | None = None) -> int:
        """Return the moment to give to :meth:`look`; call this when the inputs have been read.

        The run also gives the lines of its committed batches, ``settled``, which looks leave out
        from now on. So what the run stores after a look, like its bookmarks, belongs to the batch
        that the look counted, though another one may be committed meanwhile.
        """
        if settled is not None:
            self._settled = settled
        return self._moment

    def look(self, after: int) -> list[Any] | None:
        """Return the listing of each source from a look that began after a moment.

        Costs a :meth:`list_heads`, which may return None, when there is no such look yet.
        """
        if self._moment <= after:
            self._moment += 1
            self._look = self.list_heads(self._settled)
        return self._look

    def counted(self, planned: Sequence[Line], settled: Sequence[Line] | None = None) -> list[Line]:
        """Return the line up to which each source counts as read when a batch is planned.

        Where a plan proves that its rows are read, it is the planned line; for any other source it
        is the settled one. ``settled`` are by default the lines that :meth:`moment` got.
        """
        confirmed = itertools.chain(self._settled if settled is None else settled, itertools.repeat(NONE))
        lines = zip(self.sources, planned, confirmed, strict=False)
        return [plan if source.planned_is_read else line for source, plan, line in lines]

    def lags(self, committed: Sequence[Line]) -> bool:
        """Return whether :meth:`counted` is behind the lines of the newest committed batch."""
        return any(one != other for one, other in zip(self.counted(committed), committed, strict=False))

    def let_go(self) -> None:
        """Drop the newest look, when every stage has used it."""
        self._look = None

    def forgive(self) -> None:
        """Forget the error of the newest listing, when none is needed any more."""
        self._error = None

    def fail_again(self) -> None:
        """Raise the error of the newest listing, unless only the user can mend its cause.

        For the last look of a run: a later look could have helped.
        """
        if self._error is not None and not isinstance(self._error, Replaced):
            raise self._error

    def read_to(self, lines: Sequence[Line]) -> None:
        """Read Spark's logs of the sources up to a planned batch.

        Raises CheckpointMismatch, and OSError.
        """
        for source, line in zip(self.sources, lines, strict=False):
            source.read_to(line)

    def knock(self, lines: Sequence[Line]) -> None:
        """Ask the sources, without ``lock``, for what :meth:`confirm` needs. Raises OSError."""
        for source, line in zip(self.sources, lines, strict=False):
            source.knock(line)

    def confirm(self, lines: Sequence[Line]) -> None:
        """Read the logs up to a committed batch, and check that its sources are those of before.

        Raises as :meth:`read_to`.
        """
        self.read_to(lines)
        for source, line in zip(self.sources, lines, strict=False):
            source.confirm(line)

    def close(self) -> None:
        """End the run.

        A source that cannot store its progress only makes the next run check more.
        """
        for source in self.sources:
            try:
                source.close()
            except (CheckpointMismatch, OSError) as failure:
                logger.debug("a source could not store the progress of this run: %s", failure)

    def evidence(self, log: CheckpointLog, plan: Plan) -> list[Location]:
        """Return the files that tell what a planned batch reads.

        These files must be durable before the batch has an effect.
        """
        files = [log.path(plan)]
        for source, line in zip(self.sources, plan.lines, strict=False):
            files += source.evidence(line)
        return files


class _Candidate(Generic[T]):
    """One reading of W, and the head of each source for which it waits."""

    __slots__ = ("heads", "reading")

    def __init__(self, reading: T, heads: Sequence[Any]) -> None:
        self.reading = reading
        self.heads = list(heads)


class Candidates(Generic[T]):
    """Readings of W that wait until a batch has reached their heads, oldest first.

    The rule is joint: the batch must have reached the heads of all sources. Memory: :data:`KEPT`
    readings and, for each, the files that are not read yet. :meth:`add` and :meth:`newest_reached`
    cost O(waiting paths).

    When two neighbours wait for the same offsets, only the newer reading stays. So the number of
    readings grows with new files and planned batches, and not with each move of W. No reading
    counts too early by that: the newer one waits for its own head, and the same offsets reach both.
    """

    def __init__(self, sources: Sequence[Awaited[Any, Any]]) -> None:
        self._sources = sources
        self._waiting: list[_Candidate[T]] = []

    def __len__(self) -> int:
        """Return the number of waiting readings."""
        return len(self._waiting)

    def add(self, reading: T, heads: Sequence[Any], planned: Sequence[Any] = ()) -> None:
        """Add a reading with the listings that were made after it, one per source.

        ``planned`` are the offsets of the newest batch that was planned when the listing had ended:
        its tasks may have read a file that was removed before. A caller that counts planned batches
        as read may leave them out.
        """
        offsets = itertools.chain(planned, itertools.repeat(None))
        waits = [source.wait(*pair) for source, *pair in zip(self._sources, heads, offsets, strict=False)]
        self._waiting.append(_Candidate(reading, waits))
        self._look()
        if len(self._waiting) > KEPT:
            newest = self._waiting[-1]
            self._waiting = self._waiting[:-1:2]
            self._waiting.append(newest)

    def relist(self, heads: Sequence[Any], planned: Sequence[Any] = ()) -> None:
        """Renew the heads of the newest reading by later listings.

        The logs must have been read up to the running batch.
        """
        if self._waiting:
            newest = self._waiting[-1]
            offsets = itertools.chain(planned, itertools.repeat(None))
            parts = zip(self._sources, newest.heads, heads, offsets, strict=False)
            newest.heads = [source.renewed(*part) for source, *part in parts]

    def newest_reached(self, offsets: Sequence[Any], *, forget: bool) -> T | None:
        """Return the newest reading whose heads these offsets have reached; None: there is none.

        The source logs must have been read up to the offsets. ``forget`` drops this reading and all
        older ones; only a committed batch may do that, because the plan of a running one may still
        be lost. Raises OSError when a source cannot tell now.
        """
        self._look()
        for i in reversed(range(len(self._waiting))):
            if self._reached(self._waiting[i], offsets):
                reading = self._waiting[i].reading
                if forget:
                    del self._waiting[: i + 1]
                return reading
        return None

    def _reached(self, candidate: _Candidate[T], offsets: Sequence[Any]) -> bool:
        # Before the first batch ``offsets`` is empty, and each source gets None, which has reached
        # only a head without unread rows. Without the padding, zip() would yield nothing and all()
        # would be True: each reading would count before its rows are read.
        padded = itertools.chain(offsets, itertools.repeat(None))
        parts = zip(self._sources, candidate.heads, padded, strict=False)
        return all(source.reached(head, offset) for source, head, offset in parts)

    def _look(self) -> None:
        for candidate in self._waiting:
            for source, head in zip(self._sources, candidate.heads, strict=False):
                source.look(head)
        distinct = [older for older, newer in itertools.pairwise(self._waiting) if not self._same(older, newer)]
        self._waiting = [*distinct, *self._waiting[-1:]]

    def _same(self, older: _Candidate[T], newer: _Candidate[T]) -> bool:
        parts = zip(self._sources, older.heads, newer.heads, strict=False)
        return len(older.heads) == len(newer.heads) and all(source.same(*heads) for source, *heads in parts)

    def missing(self, limit: int = 5) -> list[str]:
        """Return up to ``limit`` names of unread parts of the oldest reading that has some."""
        for candidate in self._waiting:
            parts = zip(self._sources, candidate.heads, strict=False)
            named = [name for source, head in parts for name in source.missing(head, limit)]
            if named:
                return named[:limit]
        return []
