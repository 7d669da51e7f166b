"""The protocol of a source: what a query asks of each of its sources, of whatever kind.

A :class:`Source` is a small value from the query's plan. :meth:`Source.open` makes an
:class:`OpenSource`, the object of one run: it knows the source's log, its directory, its listings.

An offset is the *line* that Spark has logged for the source in ``offsets/N``. Only the source
understands its lines, and its heads. So a new kind of source is a module of its own, and a line in
the table of :mod:`lowwater_spark.track.plan`.

Three steps decide whether a watermark W of the inputs counts:

1. The stage reads the inputs: W. Only then it asks each source for its :meth:`~OpenSource.head`,
   all that is there now. A head that was found before W was read would miss rows that W covers.
2. Spark plans a batch, and then commits it: the stage reads its line (:meth:`~OpenSource.read_to`)
   and, once the batch is committed, confirms it (:meth:`~OpenSource.confirm`).
3. W counts when the line has :meth:`~OpenSource.reached` the head.

A source that cannot find something out now raises OSError: then no newer watermark counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.location import Location
    from lowwater_spark.checkpoint.manifest import Manifest
    from lowwater_spark.sources.bookmarks import Output

__all__ = ["EARLIER", "NONE", "Awaited", "Fileless", "Line", "OpenSource", "Rowless", "Source", "skips_earlier"]

Line = str
"""Offset of a source as Spark writes it into ``offsets/N``."""

NONE: Final[Line] = "-"
"""Line of a source before its first rows."""

EARLIER: Final = "lowwater.earlierRows"
"""Option that declares, with the value ``skip``, that the stage does not need rows from before the
source's beginning."""


def skips_earlier(options: Mapping[str, str]) -> bool:
    """Return whether options, with names in lower case, declare that earlier rows are skipped."""
    return options.get(EARLIER.lower(), "").lower() == "skip"


H = TypeVar("H")

O_contra = TypeVar("O_contra", contravariant=True)


class Awaited(Protocol[H, O_contra]):
    """A source, or a source's log, with heads to wait for and offsets that reach them.

    A head that :meth:`wait` returns belongs to one waiting reading; several readings may share a
    listing. An offset is None while no batch is planned.
    """

    def wait(self, listed: Any, planned: O_contra | None) -> H:
        """Return the head to reach after a listing.

        ``planned`` is the offset of the newest batch that was planned when the listing had ended:
        that batch may have read files that were gone by then. A caller that counts planned batches
        as read gives None.
        """
        ...

    def look(self, head: H) -> None:
        """Update a head by the entries that were read of the source's log since."""
        ...

    def renewed(self, head: H, listed: Any, planned: O_contra | None) -> H:
        """Return the head of the same reading after a later listing.

        It is less where unread files were removed meanwhile.
        """
        ...

    def reached(self, head: H, offset: O_contra | None) -> bool:
        """Return whether the batches up to an offset have read all of a head.

        Raises OSError when the source cannot tell now.
        """
        ...

    def same(self, one: H, other: H) -> bool:
        """Return whether the same offsets reach both heads, now and later."""
        ...

    def missing(self, head: H, limit: int) -> list[str]:
        """Return up to ``limit`` names of unread parts of a head.

        A reason follows a name when waiting does not help.
        """
        ...


class OpenSource(Awaited[Any, Line], Protocol):
    """A source of a running query. One thread at a time calls it."""

    @property
    def outputs(self) -> Mapping[str, Output]:
        """Directories in the source into which lowwater hands batches over, by path.

        The newest listing decides. Only a file source has any.
        """
        ...

    @property
    def remembered(self) -> int:
        """Number of paths of read files that are held in memory. O(1), from any thread."""
        ...

    @property
    def planned_is_read(self) -> bool:
        """True when a planned batch surely reads what its plan names, or fails.

        Otherwise only a committed and confirmed batch counts as read.
        """
        ...

    def read_to(self, line: Line) -> None:
        """Read Spark's log of the source up to a planned batch.

        Raises CheckpointMismatch for a line of another source, OSError.
        """
        ...

    def head(self, settled: Line) -> Any:
        """Return the listing of all that is in the source now, for :meth:`wait`.

        The listing may leave out rows of the batches up to ``settled``, which are committed for
        good. Raises OSError.
        """
        ...

    def knock(self, line: Line) -> None:
        """Ask the outside world for what :meth:`confirm` needs, after a batch was committed.

        Called without the caller's lock, so that an absent source delays no other thread; two
        threads may call it. :meth:`confirm` is called with the lock. Returns at once when the
        source needs no answer. Raises OSError.
        """
        ...

    def confirm(self, line: Line) -> None:
        """Check that a committed batch was read from the same source as those before it.

        The batch does not count before this has returned. Raises OSError when the source cannot
        tell now, CheckpointMismatch when it is another source.
        """
        ...

    def evidence(self, line: Line) -> list[Location]:
        """Return the files, beside the plan, that tell what a batch has read.

        The caller makes them durable before the batch counts.
        """
        ...

    def close(self) -> None:
        """End the run: store what helps the next one, which can do without.

        Raises CheckpointMismatch, OSError.
        """
        ...


class Fileless:
    """Answers of a source that is no directory of files."""

    __slots__ = ()

    @property
    def outputs(self) -> Mapping[str, Output]:
        """No directories."""
        return {}

    @property
    def remembered(self) -> int:
        """Zero paths."""
        return 0

    def close(self) -> None:
        """Do nothing."""


class Rowless(Fileless):
    """Answers of a source without rows that W covers: no reading waits for it."""

    __slots__ = ()

    @property
    def planned_is_read(self) -> bool:
        """True: there are no rows to read."""
        return True

    def head(self, settled: Line) -> None:
        """Return None."""

    def wait(self, listed: None, planned: Line | None) -> None:
        """Return None: there is no head."""

    def look(self, head: None) -> None:
        """Do nothing."""

    def renewed(self, head: None, listed: None, planned: Line | None) -> None:
        """Return None: there is no head."""

    def reached(self, head: None, offset: Line | None) -> bool:
        """Return True."""
        return True

    def same(self, one: None, other: None) -> bool:
        """Return True."""
        return True

    def missing(self, head: None, limit: int) -> list[str]:
        """Return no names."""
        return []

    def knock(self, line: Line) -> None:
        """Do nothing: :meth:`confirm` needs no answer."""

    def confirm(self, line: Line) -> None:
        """Do nothing: the source cannot become another one."""

    def evidence(self, line: Line) -> list[Location]:
        """Return no files."""
        return []


class Source(Protocol):
    """A source in a query's plan. A value: it can be compared, and has nothing open."""

    @property
    def name(self) -> str:
        """Name of the source in errors, like ``the files in /data/in``."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the source. A checkpoint keeps the kinds of its sources."""
        ...

    def waiting_for(self, inputs: frozenset[str]) -> Source:
        """Return the source for a stage with these inputs, by full names.

        Raises Unsupported when the source cannot name its head.
        """
        ...

    def check_writers(self) -> None:
        """Raise Unsupported when a computation writes here that the inputs do not name."""
        ...

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of a source of this kind."""
        ...

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return the source for one run of a query.

        ``manifest`` stores what later runs need. ``number`` is the source's place in the plan, by
        which Spark identifies it. Raises CheckpointMismatch.
        """
        ...
