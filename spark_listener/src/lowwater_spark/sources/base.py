"""What a query asks of each of its sources, whatever kind it is.

Two things are told apart. What a plan says of a source is a small value (:class:`Source`). What a
run knows of it, its log, its directory, what was listed, is an object of that run
(:class:`OpenSource`), which :meth:`Source.open` makes.

An offset is the *line* that Spark has logged for the source in ``offsets/N``. Only the source
understands its lines, and its heads. So a new kind of source is a module of its own, and a line in
the table of :mod:`lowwater_spark.track.plan`.

What counts is decided in this order, and each step has its question:

1. The inputs are read: W. Only then each source is asked for its :meth:`~OpenSource.head`, all that
   stands there now. A head that was found before W was read would miss rows that W covers.
2. A batch is planned, and then committed: its line is read (:meth:`~OpenSource.read_to`) and, once
   it is committed, confirmed (:meth:`~OpenSource.confirm`).
3. W counts when the line has :meth:`~OpenSource.reached` the head.

Whatever a source cannot find out now it answers by OSError: nothing is known then, and no newer
watermark counts.
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
"""The offset of a source, as it stands in ``offsets/N``."""

NONE: Final[Line] = "-"
"""The line of a source that has given nothing yet."""

EARLIER: Final = "lowwater.earlierRows"
"""The option that declares with the value ``skip``: rows from before the source's beginning count
for nothing."""


def skips_earlier(options: Mapping[str, str]) -> bool:
    """Return whether it is declared that earlier rows count for nothing; the options have their names in lower case."""
    return options.get(EARLIER.lower(), "").lower() == "skip"


H = TypeVar("H")

O_contra = TypeVar("O_contra", contravariant=True)


class Awaited(Protocol[H, O_contra]):
    """What can be waited for: its heads, and the offsets that reach them.

    A source, or a log that counts in its own offsets.

    What :meth:`wait` returns belongs to one reading that waits; a listing may be shared by several.
    Offsets are None where nothing is planned.
    """

    def wait(self, listed: Any, planned: O_contra | None) -> H:
        """Return what has to be reached after a listing.

        ``planned`` is the offset of the newest batch that was planned when the listing had ended:
        it may have read what was gone by then. None for whoever counts what is planned as read.
        """
        ...

    def look(self, head: H) -> None:
        """Take notice of what was read of the source's log since."""
        ...

    def renewed(self, head: H, listed: Any, planned: O_contra | None) -> H:
        """Return what has to be reached after a later listing for the same reading: where things may vanish that no batch has taken, less."""
        ...

    def reached(self, head: H, offset: O_contra | None) -> bool:
        """Return whether everything of a head is in the batches up to an offset.

        Raises OSError when it cannot be known now.
        """
        ...

    def same(self, one: H, other: H) -> bool:
        """Return whether two heads are reached by the same offsets, now and later."""
        ...

    def missing(self, head: H, limit: int) -> list[str]:
        """Return some of what is still to be read, by name, with the reason where waiting does not help."""
        ...


class OpenSource(Awaited[Any, Line], Protocol):
    """A source of a query that runs. One thread at a time calls it."""

    @property
    def outputs(self) -> Mapping[str, Output]:
        """The directories in it that batches are handed over into, by their paths, of the newest listing; none for other kinds of sources."""
        ...

    @property
    def remembered(self) -> int:
        """How many files that were read this keeps the names of. O(1), and any thread may ask."""
        ...

    @property
    def planned_is_read(self) -> bool:
        """Whether what a plan names is what its batch will read, whatever happens meanwhile.

        Else only what is committed, and was confirmed, is known to be read.
        """
        ...

    def read_to(self, line: Line) -> None:
        """Read what Spark has logged of the source up to a planned batch.

        Raises CheckpointMismatch for a line of another source, OSError.
        """
        ...

    def head(self, settled: Line) -> Any:
        """Return all that stands in the source now: the listing that :meth:`wait` takes.

        ``settled`` is how far the committed batches go: what is in them, for good, may be left out.
        Raises OSError.
        """
        ...

    def knock(self, line: Line) -> None:
        """Ask what :meth:`confirm` has to know of a batch, which was committed before this is called. Returns at once if the source is never asked. Raises OSError.

        Called without the lock before :meth:`confirm`, which is called with it: to wait for a source that is away is to hold up nobody else. Two threads may call it.
        """
        ...

    def confirm(self, line: Line) -> None:
        """Make sure that a batch, which was committed before this is called, was read from the same source as those before it.

        Nothing counts for the batch until this has returned. Raises OSError when it cannot be known now, CheckpointMismatch when it was another.
        """
        ...

    def evidence(self, line: Line) -> list[Location]:
        """Return the files, beside the plan, that say what a batch has read: they are made durable before it counts."""
        ...

    def close(self) -> None:
        """End the run: make durable what the next one may use, and can do without.

        Raises CheckpointMismatch, OSError.
        """
        ...


class Fileless:
    """What a source answers that is no directory of files."""

    __slots__ = ()

    @property
    def outputs(self) -> Mapping[str, Output]:
        """Nothing is handed over into it."""
        return {}

    @property
    def remembered(self) -> int:
        """It has no files."""
        return 0

    def close(self) -> None:
        """Do nothing."""


class Rowless(Fileless):
    """What a source answers that has no rows which a reading covers: it is never waited for, and stands on the plan alone."""

    __slots__ = ()

    @property
    def planned_is_read(self) -> bool:
        """Nothing is waited for."""
        return True

    def head(self, settled: Line) -> None:
        """Return nothing."""

    def wait(self, listed: None, planned: Line | None) -> None:
        """Wait for nothing."""

    def look(self, head: None) -> None:
        """Do nothing."""

    def renewed(self, head: None, listed: None, planned: Line | None) -> None:
        """Wait for nothing."""

    def reached(self, head: None, offset: Line | None) -> bool:
        """Return True."""
        return True

    def same(self, one: None, other: None) -> bool:
        """Return True."""
        return True

    def missing(self, head: None, limit: int) -> list[str]:
        """Return nothing."""
        return []

    def knock(self, line: Line) -> None:
        """Do nothing: it is not asked."""

    def confirm(self, line: Line) -> None:
        """Do nothing: it is no place that could be another one."""

    def evidence(self, line: Line) -> list[Location]:
        """Return nothing."""
        return []


class Source(Protocol):
    """A source as a query's plan says it. A value: it can be compared, and it is open nowhere."""

    @property
    def name(self) -> str:
        """What it is called in errors: ``the files in /data/in``."""
        ...

    @property
    def kind(self) -> str:
        """What kind of source it is: a checkpoint keeps its sources, and their kinds."""
        ...

    def waiting_for(self, inputs: frozenset[str]) -> Source:
        """Return it with the computations that are waited for, for what is read here, by their full names.

        Raises Unsupported when nobody can wait for it, since it cannot name its head.
        """
        ...

    def check_writers(self) -> None:
        """Raise Unsupported when somebody writes into it whom its inputs do not name."""
        ...

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of a source of its kind."""
        ...

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return it for one run of a query, whose manifest keeps what it must remember.

        ``number`` is its place in the plan, by which Spark knows it. Raises CheckpointMismatch.
        """
        ...
