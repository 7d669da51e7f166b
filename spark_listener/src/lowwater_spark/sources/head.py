"""The heads of a query's sources, and the readings of the inputs that wait for theirs.

A reading W counts from the first batch that has read everything which stood in the sources when W
had been read. What a head is, and when it is reached, each source knows itself
(:mod:`lowwater_spark.sources.base`). Here stands what all of them have in common: the rule is
joint, so a reading waits for all sources, and one source that cannot be listed holds all.
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
from lowwater_spark.sources.bookmarks import Output
from lowwater_spark.sources.roots import Replaced

__all__ = ["KEPT", "Candidates", "Heads"]

logger = logging.getLogger("lowwater.spark")

KEPT: Final = 16
"""Bound of heads waited for; beyond it the candidate of every second one is dropped, the oldest and
the newest never."""

T = TypeVar("T")


class Heads:
    """The sources of one query, in the order in which Spark numbers them: one for all who wait for them.

    A listing serves every reading that was taken before it began. So whoever has read its inputs notes the :meth:`moment`, and asks for a look
    that began after it: :meth:`look` makes one, or gives the one that somebody else has made since. A look that began earlier says nothing
    of what stood there when W was read.

    Two threads may share it, if they hold ``lock`` where logs are read and where readings wait. A look is made by one thread alone, without it.
    """

    def __init__(self, sources: Sequence[OpenSource]) -> None:
        self.sources = sources
        self.lock = threading.RLock()
        self._settled: Sequence[Line] = ()
        """How far the batches go that looks may take for committed."""
        self._moment = 0
        """The number of looks that have begun."""
        self._look: list[Any] | None = None
        """The newest one; None when it has failed, or is not needed any more."""
        self._error: OSError | None = None

    @classmethod
    def of(cls, manifest: Manifest, sources: Sequence[Source]) -> Heads:
        """Open the sources of a query for a run. Raises CheckpointMismatch."""
        return cls([source.open(manifest, number) for number, source in enumerate(sources)])

    @property
    def outputs(self) -> list[Mapping[str, Output]]:
        """By source: the directories in it that batches are handed over into, by their paths.

        They change with each listing.
        """
        return [source.outputs for source in self.sources]

    @property
    def remembered(self) -> int:
        """How many files that were read the names are kept of, of all sources."""
        return sum(source.remembered for source in self.sources)

    @property
    def lost(self) -> str:
        """Why no newer low watermark counts; empty: the newest listing has succeeded."""
        return "" if self._error is None else str(self._error)

    def list_heads(self, lines: Sequence[Line] = ()) -> list[Any] | None:
        """Return the head of each source; None, and a warning once, when one cannot be known: then no newer low watermark counts.

        ``lines`` are how far the batches go that can no more be taken back, of whoever counts what is committed the committed ones. What has been
        taken up to there, and is as it was, is left out. Costs what each source's :meth:`~lowwater_spark.sources.base.OpenSource.head` does.
        """
        known = itertools.chain(lines, itertools.repeat(NONE))
        try:
            heads = [source.head(line) for source, line in zip(self.sources, known, strict=False)]
        except OSError as error:
            if str(error) != self.lost:
                logger.warning("a source cannot be listed, so no newer watermark counts: %s", error)
            self._error = error
            return None
        self._error = None
        return heads

    def moment(self, settled: Sequence[Line] | None = None) -> int:
        """Return what :meth:`look` takes as the present: call it when the inputs have been read.

        The run also says how far its committed batches go. Looks leave out what is in these, until
        it says another thing: what it makes durable after a look, like its bookmarks, is then of
        the very batch that the look has counted, though another one may be committed meanwhile.
        """
        if settled is not None:
            self._settled = settled
        return self._moment

    def look(self, after: int) -> list[Any] | None:
        """Return the head of each source, of a look that began after a moment.

        Costs, and is None, as :meth:`list_heads` when it has to be made.
        """
        if self._moment <= after:
            self._moment += 1
            self._look = self.list_heads(self._settled)
        return self._look

    def counted(self, planned: Sequence[Line], settled: Sequence[Line] | None = None) -> list[Line]:
        """Return how far each source is known to be read when a batch is planned: to its line, or to the one that the run has settled last.

        ``settled`` are those lines, for who knows them; else the ones that :meth:`moment` was told.
        """
        known = itertools.chain(self._settled if settled is None else settled, itertools.repeat(NONE))
        each = zip(self.sources, planned, known, strict=False)
        return [line if source.planned_is_read else confirmed for source, line, confirmed in each]

    def lags(self, committed: Sequence[Line]) -> bool:
        """Return whether the run has not settled the newest committed batch, of these lines, where :meth:`counted` goes by it."""
        return any(one != other for one, other in zip(self.counted(committed), committed, strict=False))

    def let_go(self) -> None:
        """Keep no look: everybody has had it."""
        self._look = None

    def forgive(self) -> None:
        """Forget that a listing failed: none is needed any more."""
        self._error = None

    def fail_again(self) -> None:
        """Raise what the newest listing has failed with, if a later look may help without anybody's doing. For a look that is the last one."""
        if self._error is not None and not isinstance(self._error, Replaced):
            raise self._error

    def read_to(self, lines: Sequence[Line]) -> None:
        """Read what Spark has logged of the sources up to a planned batch.

        Raises CheckpointMismatch, and OSError.
        """
        for source, line in zip(self.sources, lines, strict=False):
            source.read_to(line)

    def knock(self, lines: Sequence[Line]) -> None:
        """Ask the sources what :meth:`settle` has to know of a committed batch; before it, without ``lock``. Raises OSError."""
        for source, line in zip(self.sources, lines, strict=False):
            source.knock(line)

    def settle(self, lines: Sequence[Line]) -> None:
        """The same of a batch that is committed, and make sure that it was read from the sources that were known before. Raises as :meth:`read_to`."""
        self.read_to(lines)
        for source, line in zip(self.sources, lines, strict=False):
            source.confirm(line)

    def close(self) -> None:
        """End the run.

        What cannot be kept any more costs the next run nothing but what it would have known.
        """
        for source in self.sources:
            try:
                source.close()
            except (CheckpointMismatch, OSError) as failure:
                logger.debug("a source keeps nothing of this run: %s", failure)

    def evidence(self, log: CheckpointLog, plan: Plan) -> list[Location]:
        """Return the files that a plan stands on: what must be durable before anything is made from it."""
        found = [log.path(plan)]
        for source, line in zip(self.sources, plan.lines, strict=False):
            found += source.evidence(line)
        return found


class _Candidate(Generic[T]):
    """One reading of W, and what it waits for, by source."""

    __slots__ = ("heads", "reading")

    def __init__(self, reading: T, heads: Sequence[Any]) -> None:
        self.reading = reading
        self.heads = list(heads)


class Candidates(Generic[T]):
    """Readings of W that wait until a batch has reached their head, oldest first.

    The rule is joint: all sources of the query must have reached their part of the head. Bounded by
    :data:`KEPT` heads and, per head, by the files that are not read yet. :meth:`add` and
    :meth:`newest_reached` cost O(waiting paths).

    Of neighbours that wait for the same, only the newer reading stays, so W may move as often as it
    likes: what is kept grows with the files that come and the batches that are planned, and the
    readings before a planned batch become one. No reading counts sooner by that. The one that stays
    was read before its own head was listed, and waits for all of that head; the one that goes would
    have been reached by the same offsets, and the newest that is reached is what counts.
    """

    def __init__(self, sources: Sequence[Awaited[Any, Any]]) -> None:
        self._sources = sources
        self._waiting: list[_Candidate[T]] = []

    def __len__(self) -> int:
        """Return how many readings wait."""
        return len(self._waiting)

    def add(self, reading: T, heads: Sequence[Any], planned: Sequence[Any] = ()) -> None:
        """Add a reading with the heads that were listed after it, one per source.

        ``planned`` are the offsets of the newest batch that was planned when the listing had ended:
        its tasks may have read a file that was removed before. Only who counts planned batches as
        read may leave them out.
        """
        known = itertools.chain(planned, itertools.repeat(None))
        waits = [source.wait(*each) for source, *each in zip(self._sources, heads, known, strict=False)]
        self._waiting.append(_Candidate(reading, waits))
        self._look()
        if len(self._waiting) > KEPT:
            newest = self._waiting[-1]
            self._waiting = self._waiting[:-1:2]
            self._waiting.append(newest)

    def relist(self, heads: Sequence[Any], planned: Sequence[Any] = ()) -> None:
        """List for the newest reading again: a later listing is one after it as well.

        The logs must have been read as for the batch that runs.
        """
        if self._waiting:
            newest = self._waiting[-1]
            known = itertools.chain(planned, itertools.repeat(None))
            newest.heads = [
                source.renewed(*each) for source, *each in zip(self._sources, newest.heads, heads, known, strict=False)
            ]

    def newest_reached(self, offsets: Sequence[Any], *, forget: bool) -> T | None:
        """Return the newest reading whose head lies within these offsets, None when there is none.

        The source logs must have been read up to the offsets. ``forget`` drops it and all older
        ones; only a committed batch may do that, since the plan of a running one may still be lost.
        Raises OSError where a source cannot tell now.
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
        # Before the first batch there are no offsets: then only an empty head is reached.
        known = itertools.chain(offsets, itertools.repeat(None))
        each = zip(self._sources, candidate.heads, known, strict=False)
        return all(source.reached(head, offset) for source, head, offset in each)

    def _look(self) -> None:
        for candidate in self._waiting:
            for source, head in zip(self._sources, candidate.heads, strict=False):
                source.look(head)
        kept = [older for older, newer in itertools.pairwise(self._waiting) if not self._same(older, newer)]
        self._waiting = [*kept, *self._waiting[-1:]]

    def _same(self, older: _Candidate[T], newer: _Candidate[T]) -> bool:
        each = zip(self._sources, older.heads, newer.heads, strict=False)
        return len(older.heads) == len(newer.heads) and all(source.same(*heads) for source, *heads in each)

    def missing(self, limit: int = 5) -> list[str]:
        """Return some of what no batch has taken yet, of the oldest reading that waits for any; in the order of the sources."""
        for candidate in self._waiting:
            each = zip(self._sources, candidate.heads, strict=False)
            named = [name for source, head in each for name in source.missing(head, limit)]
            if named:
                return named[:limit]
        return []
