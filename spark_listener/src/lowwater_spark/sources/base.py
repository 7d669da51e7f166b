"""The protocol of a source: what a query asks of each of its sources, of whatever kind.

A kind of source is a class in a module of its own, and a line in the table of
:mod:`lowwater_spark.sources.kinds`. The class makes a :class:`Source` of a streaming :class:`Leaf`
of a query's plan, for tracked stages, injectors and driven queries, or of a
:class:`SourceDeclared`, for sidecars. A source is a value, which can be compared and has nothing
open. A run opens it, and gets an :class:`OpenSource`: that knows the source's log, its directory,
its listings.

Data flows one way. A leaf or a declaration becomes a source; a listing and the lines of Spark's
offset log become a head; a head and a line become a yes or a no. The last step is pure, and so is
all that a kind does with its lines. The manifest of the checkpoint has what the next run needs.

An offset is the *line* that Spark has logged for the source in ``offsets/N``. Only the source
understands its lines, and its heads.

Three steps decide whether a watermark W of the inputs counts:

1. The stage reads the inputs: W. Only then it asks each source for its :meth:`~OpenSource.head`,
   all that is there now. A head that was found before W was read would miss rows that W covers.
2. Spark plans a batch, and then commits it: the stage reads its line (:meth:`~OpenSource.read_to`)
   and, once the batch is committed, confirms it (:meth:`~OpenSource.confirm`).
3. W counts when the line has :meth:`~OpenSource.reached` the head.

A source that cannot find something out now raises OSError: then no newer watermark counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from lowwater_spark.errors import CheckpointMismatch, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lowwater_spark.checkpoint.location import Location
    from lowwater_spark.checkpoint.manifest import Manifest
    from lowwater_spark.sources.files.bookmarks import Output

__all__ = [
    "EARLIER",
    "NONE",
    "POSITION",
    "Awaited",
    "Leaf",
    "Line",
    "OpenSource",
    "Partition",
    "ReadBefore",
    "Rereading",
    "Rowless",
    "RowsGone",
    "Source",
    "SourceDeclared",
    "Vector",
    "foreign",
    "skips_earlier",
    "up",
]

Line = str
"""Offset of a source as Spark writes it into ``offsets/N``."""

NONE: Final[Line] = "-"
"""Line of a source before its first rows."""

EARLIER: Final = "lowwater.earlierRows"
"""Option that declares, with the value ``skip``, that the stage does not need rows from before the
source's beginning."""


POSITION: Final = "lowwater_position"
"""Column of a batch that is read again: the place of each row in words, a text."""


def foreign(line: Line, why: str) -> CheckpointMismatch:
    """Return the error for a line of another source; ``why`` says what the line is not."""
    return CheckpointMismatch(
        f"{line!r} {why}: the checkpoint belongs to a query with another source. Start that query again, or this one from a new checkpoint, with adopt=True."
    )


def skips_earlier(options: Mapping[str, str]) -> bool:
    """Return whether options, with names in lower case, declare that earlier rows are skipped."""
    return options.get(EARLIER.lower(), "").lower() == "skip"


def up(words: str) -> str:
    """Return words with a capital at their beginning."""
    return words[:1].upper() + words[1:]


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        """Return the partition in words."""
        return f"partition {self.number} of {self.topic}"


Vector = Mapping[Partition, int]
"""Next offset of each partition: the rows before it were read, or are there to be read."""

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

        The new head lacks unread files that were removed meanwhile.
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


class OpenSource(ABC):
    """A source of a running query: :class:`Awaited`, with Spark's lines as offsets.

    One thread at a time calls it. The methods that are not abstract fit a source that is no
    directory of files and has its rows in one order: its head is a place in that order.
    """

    __slots__ = ()

    @property
    def outputs(self) -> Mapping[str, Output]:
        """Directories in the source into which lowwater hands batches over, by path.

        The newest listing decides. Only a file source has any.
        """
        return {}

    @property
    def remembered(self) -> int:
        """Number of paths of read files that are held in memory. O(1), from any thread."""
        return 0

    @property
    def pause(self) -> float:
        """Least seconds between two looks at the source; more than 0 where a look costs money."""
        return 0.0

    @property
    def planned_is_read(self) -> bool:
        """True when a planned batch surely reads what its plan names, or fails.

        Otherwise only a committed and confirmed batch counts as read: until a planned batch has
        run, other rows may take the place of those planned.
        """
        return False

    @abstractmethod
    def read_to(self, line: Line) -> None:
        """Read Spark's log of the source up to a planned batch.

        Raises CheckpointMismatch for a line of another source, OSError.
        """

    @abstractmethod
    def head(self, settled: Line) -> Any:
        """Return the listing of all that is in the source now, for :meth:`wait`.

        The listing may leave out rows of the batches up to ``settled``, which are committed for
        good. Raises OSError.
        """

    def wait(self, listed: Any, planned: Line | None) -> Any:
        """See Awaited. Unless files can vanish from the source, a listing is the head itself."""
        return listed

    def look(self, head: Any) -> None:  # noqa: B027 - a head that is a place needs no update
        """See Awaited."""

    def renewed(self, head: Any, listed: Any, planned: Line | None) -> Any:
        """See Awaited. A head that is a place stays where it is after a newer listing."""
        return head

    @abstractmethod
    def reached(self, head: Any, offset: Line | None) -> bool:
        """See Awaited."""

    def same(self, one: Any, other: Any) -> bool:
        """See Awaited."""
        return bool(one == other)

    @abstractmethod
    def missing(self, head: Any, limit: int) -> list[str]:
        """See Awaited."""

    def knock(self, line: Line) -> None:  # noqa: B027 - most sources need no answer from outside
        """Ask the outside world for what :meth:`confirm` needs, after a batch was committed.

        Called without the caller's lock, so that an absent source delays no other thread; two
        threads may call it. :meth:`confirm` is called with the lock. Returns at once when the
        source needs no answer. Raises OSError.
        """

    def confirm(self, line: Line) -> None:  # noqa: B027 - some sources can never be replaced by another one
        """Check that a committed batch was read from the same source as those before it.

        The batch does not count before this has returned. Raises OSError when the source cannot
        tell now, CheckpointMismatch when it is another source.
        """

    def evidence(self, line: Line) -> list[Location]:
        """Return the files, beside the plan, that tell what a batch has read.

        The caller makes them durable before the batch counts.
        """
        return []

    def close(self) -> None:  # noqa: B027 - most sources store their progress before the end
        """End the run: store what helps the next one, which can do without.

        Raises CheckpointMismatch, OSError.
        """


class Rowless(OpenSource):
    """A source that gives no row which W could cover, like ticks: no reading waits for it."""

    __slots__ = ()

    @property
    def planned_is_read(self) -> bool:
        """True: there are no rows to read."""
        return True

    def head(self, settled: Line) -> None:
        """Return None."""

    def reached(self, head: None, offset: Line | None) -> bool:
        """Return True."""
        return True

    def missing(self, head: None, limit: int) -> list[str]:
        """Return no names."""
        return []


class RowsGone(Exception):
    """What a batch has read is gone, or something else is in its place: no retry helps."""


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """What one committed batch has read of one source."""

    manifest: Manifest
    """Manifest of the checkpoint, with the pin of the source."""
    number: int
    """Place of the source in the plan."""
    before: Line
    """Line of the batch before."""
    line: Line
    """Line of the batch itself."""


class Rereading(NamedTuple):
    """The rows of a batch, to be read again."""

    frame: DataFrame
    """The rows as Spark reads them, with :data:`POSITION`."""
    confirm: Callable[[], None]
    """Function to call after the frame was read. It raises RowsGone if the rows may be others than
    those of the batch, OSError if that is unknown."""


class Source(ABC):
    """A source of a query. A value: it can be compared, and has nothing open.

    The methods that are not abstract fit a source that has one path and no partitions, and whose
    writers leave no mark of lowwater.
    """

    __slots__ = ()

    kind: str
    """Kind of the source. A checkpoint keeps the kinds of its sources."""

    # -- from a plan or a declaration --------------------------------------------------------------

    @classmethod
    def planned(cls, leaf: Leaf) -> Source | None:
        """Return the source of a leaf of a query's plan; None for a leaf of another kind.

        Raises Unsupported for a source of this kind that cannot be tracked exactly.
        """
        return None

    @classmethod
    def place(cls, text: str) -> Mapping[str, Any]:
        """Return ``path`` or ``topics`` of a source that is declared by a text ``KIND:TEXT``."""
        return {"path": text}

    @classmethod
    def allowed(cls, declared: SourceDeclared) -> Set[str]:
        """Return the options, in lower case, that a declared source may have.

        Raises ValueError for a declaration that lacks something.
        """
        return set()

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> Source:
        """Return the source of a declaration.

        ``session`` makes the session that reaches it. Raises Unsupported, OSError.
        """
        raise NotImplementedError

    @classmethod
    def guess(cls, line: Line) -> str:
        """Return an example of a declaration for a line of this kind; empty for another line."""
        return ""

    # -- of a query --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the source in errors, like ``the files in /data/in``."""

    @abstractmethod
    def waiting_for(self, inputs: frozenset[str]) -> Source:
        """Return the source for a stage with these inputs, by full names.

        Raises Unsupported when the source cannot name its head.
        """

    @abstractmethod
    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of a source of this kind."""

    @abstractmethod
    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return the source for one run of a query.

        ``manifest`` stores what later runs need. ``number`` is the source's place in the plan, by
        which Spark identifies it. Raises CheckpointMismatch.
        """

    def check_writers(self) -> None:  # noqa: B027 - in most sources writers leave no mark
        """Raise Unsupported when a computation writes here that the inputs do not name."""

    def pin(self) -> Sequence[Any] | None:
        """Return what :meth:`open` stores in the manifest to identify the source, as it is now.

        None when nothing is stored. Raises Unsupported, OSError.
        """
        return None

    def recognize(self, manifest: Manifest, number: int, line: Line) -> None:  # noqa: B027 - most kinds compare the pin instead
        """Raise Unsupported when a checkpoint has read up to a line from another source than this.

        For a sidecar, which may see other directories than the query's driver.
        """

    # -- of a batch that is read again -------------------------------------------------------------

    rereads: ClassVar[bool] = False
    """True: :meth:`again` reads the rows of a committed batch again."""

    def again(self, spark: SparkSession, read: ReadBefore, options: Mapping[str, str]) -> Rereading | None:
        """Return the rows that a batch has read, as a frame that is not read yet; None: no rows.

        ``options`` are those of Spark's reader, beside ``format`` and ``schema`` of files. Raises
        RowsGone when the rows are gone, CheckpointMismatch, OSError.
        """
        raise NotImplementedError

    # -- of an injector that reports by partitions -------------------------------------------------

    def check_partitions(self, *, paced: bool) -> None:
        """Raise Unsupported when rows have no partition.

        With ``paced``, also when single partitions cannot be held back.
        """
        self.telling_ends()

    def telling_ends(self) -> Source:
        """Return the source for an injector that needs the ends of partitions.

        Raises Unsupported when they cannot be known.
        """
        raise Unsupported(
            f"{up(self.name)} in an injector that goes by partitions or their ends",
            "only Kafka says which partitions exist and where they end",
            "Pass producer= and producers= and neither across= nor delay=, or declare the injector without disorder= and call batch.frontier() yourself.",
        )

    @property
    def pace(self) -> str:
        """Directory in which the injector writes how far each partition is; empty: none."""
        return ""

    def vector(self, line: Line) -> Vector:
        """Return the next offset of each partition; empty without partitions."""
        return {}

    def ends(self, listed: Any) -> Vector:
        """Return the end of each partition in a listing by :meth:`OpenSource.head`."""
        return {}


@dataclass(frozen=True)
class Leaf:
    """A streaming source in a query's analysed plan, as Spark has it."""

    spark: SparkSession
    relation: Any
    """The plan's node, by py4j."""

    @property
    def of_tables(self) -> bool:
        """True for a source of Spark's newer interface, which reads tables."""
        return str(self.relation.getClass().getSimpleName()) != "StreamingRelation"

    @cached_property
    def format(self) -> str:
        """Format of the source: its registered name, also if the query has its class.

        For a source of Spark's older interface it is what the query has.
        """
        from py4j.java_gateway import is_instance_of

        if not self.of_tables:
            return str(self.relation.dataSource().className())
        provider: Any = self.relation.source()
        gateway: Any = self.spark.sparkContext._gateway
        if provider.isDefined() and is_instance_of(gateway, provider.get(), _REGISTERED):
            return str(provider.get().shortName())
        return str(self.relation.sourceName())

    @cached_property
    def options(self) -> dict[str, str]:
        """Options of the source, their names in lower case."""
        jvm: Any = self.spark._jvm
        if self.of_tables:
            options = dict(self.relation.extraOptions().asCaseSensitiveMap())
        else:
            options = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(self.relation.dataSource().options()))
        return {str(name).lower(): str(value) for name, value in options.items()}

    def changed(self, settings: Sequence[str], default: str) -> tuple[str, ...]:
        """Return those settings of the session that have another value than their default."""
        return tuple(name for name in settings if str(self.spark.conf.get(name, default)).lower() != default)


_REGISTERED: Final = "org.apache.spark.sql.sources.DataSourceRegister"
"""Interface of a source that has a name of its own."""


@dataclass(frozen=True, slots=True)
class SourceDeclared:
    """One source of a query that a sidecar tracks."""

    kind: str
    """Word of the table of :mod:`lowwater_spark.sources.kinds`, like ``files`` or ``kafka``."""
    path: str = ""
    """Files: the absolute directory that is read, or its URI. Delta: the table's absolute directory
    or URI. Iceberg: the table's name in a catalog, or its path."""
    topics: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Options by lower-case name. Files: ``recursiveFileLookup``, ``maxFileAge``, ``partitions``.
    Kafka: ``lowwater.brokers``, ``lowwater.head``, all ``kafka.*``. Kafka and Iceberg:
    ``lowwater.earlierRows``."""

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return f"{self.kind}:{self.path or '+'.join(self.topics)}"
