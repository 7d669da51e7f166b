"""Iceberg as a source: a table, for a stage with inputs; for an injector too.

The head is the current snapshot of the table. An offset is Iceberg's own: ``(s, p)`` covers all
snapshots before s, and the files that s adds before position p. Snapshots have no order by number,
only by their parents. The chain of parents is the *lineage*; each look at the table extends it. An
offset at s has reached the head H when the table is the pinned one, s is in the lineage, and

* s is after H, or
* the offset has taken every file that the snapshots from s to H add. A snapshot that only
  rearranges rows (``replace``, as rewrite_data_files makes) adds none.

Iceberg's stream fails at a snapshot that deletes or overwrites, so no offset reaches that one or a
later one.

A new stream begins at the oldest snapshot that the table still has, and reads the files which that
one *adds*. It never reads the rows of older, expired snapshots. So the oldest snapshot must have no
parent, unless the query declares that it does not need earlier rows.

The manifest keeps the table's uuid, the snapshot at which the stream began, and the last snapshot
that was checked. Two changes hold the watermark for good, because they bring rows that it may have
passed: a rollback (the lineage no longer contains the last checked snapshot), and a snapshot that
joins the lineage after it was made elsewhere (on a branch, or staged).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.base import EARLIER, NONE, Leaf, Line, SourceDeclared, skips_earlier, up
from lowwater_spark.sources.files.roots import Replaced
from lowwater_spark.sources.tables.iceberg_log import START, IcebergLog, Snapshot, Table, find, is_iceberg
from lowwater_spark.sources.tables.versioned import ANEW, BACK, STEP, OpenTable, TableSource, fields_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = [
    "ICEBERG",
    "SETTINGS",
    "Head",
    "IcebergSource",
    "Offset",
    "unread",
]

ICEBERG: Final = "iceberg"
"""Format of the source, as Spark names it."""


# -- offsets ---------------------------------------------------------------------------------------


class Offset(NamedTuple):
    """Offset of Iceberg's source."""

    snapshot: int
    """Id of a snapshot; :data:`START` before the first."""
    position: int
    """Number of the snapshot's files that were taken, by their positions in its manifests."""
    whole: bool
    """True when the stream takes all files of the snapshot, not only those that it adds."""

    @classmethod
    def of(cls, line: Line) -> Offset | None:
        """Return the offset in a line of ``offsets/N``; None before the first row was read.

        Raises CheckpointMismatch for a line of another source.
        """
        if line == NONE:
            return None
        fields = {"snapshot_id": int, "position": int, "scan_all_files": bool}
        read = cls(*fields_of(line, "an Iceberg table", fields, "version", (1,)))
        return None if read.snapshot == START else read

    def __str__(self) -> str:
        """Return the offset in words."""
        return f"file {self.position} of snapshot {self.snapshot}"


def unread(offset: Offset, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots that have files which an offset has not taken.

    ``snapshots`` is a part of one lineage, and begins with the snapshot of the offset.

    >>> snapshots = [Snapshot(7, None, "append", 2), Snapshot(8, 7, "replace", 1)]
    >>> unread(Offset(7, 2, False), snapshots)
    []
    >>> [snapshot.id for snapshot in unread(Offset(7, 1, False), snapshots)]
    [7]
    >>> snapshots.append(Snapshot(9, 8, "append", 1))
    >>> [snapshot.id for snapshot in unread(Offset(7, 2, False), snapshots)]
    [9]
    """
    pending = []
    for at, snapshot in enumerate(snapshots):
        position = offset.position if at == 0 else 0
        if snapshot.passed_over:
            continue
        if snapshot.ends_streams or snapshot.added is None or snapshot.added > position or (at == 0 and offset.whole):
            pending.append(snapshot)
    return pending


# -- the source ------------------------------------------------------------------------------------

_HARMLESS: Final = frozenset(
    {
        "path",
        "streaming-max-files-per-micro-batch",
        "streaming-max-rows-per-micro-batch",
        "split-size",
        "lookback",
        "file-open-cost",
        "locality",
        "vectorization-enabled",
        "batch-size",
        EARLIER.lower(),
    }
)
"""Options, in lower case, that leave no row out."""

_FROM: Final = "stream-from-timestamp"

_OPTIONS: Final[Mapping[str, str]] = {
    "streaming-skip-overwrite-snapshots": "rows of a skipped snapshot would count as read",
    "streaming-skip-delete-snapshots": "rows of a skipped snapshot would count as read",
    _FROM: f'rows before that time would count as read, and the stage does not declare option("{EARLIER}", "skip")',
    "branch": "the stream reads the main branch all the same, and rows of a branch may be published later",
    "tag": "a tag is one snapshot, and no stream of snapshots",
    "async-micro-batch-planning-enabled": "lowwater cannot compare files that Iceberg queues ahead of a batch with the table's lineage",
}

SETTINGS: Final = ("spark.sql.iceberg.async-micro-batch-planning-enabled",)
"""Settings of the session that must be false, as they are by default."""


@dataclass(frozen=True, slots=True)
class IcebergSource(TableSource):
    """A streaming Iceberg source, as the query's plan has it."""

    branch: str = ""
    """Branch that the query names with the table; empty: none."""

    kind = ICEBERG
    title = "Iceberg"
    harmless = _HARMLESS
    harmful = _OPTIONS

    @classmethod
    def planned(cls, leaf: Leaf) -> IcebergSource | None:
        """Return the source of Iceberg's stream, however the table is named."""
        if not leaf.of_tables or not is_iceberg(leaf.relation.table()):
            return None
        log = IcebergLog.of(leaf.spark, leaf.relation.table())
        return cls(log.name, leaf.options, log, leaf.changed(SETTINGS, "false"), branch=log.branch)

    @classmethod
    def allowed(cls, declared: SourceDeclared) -> Set[str]:
        """Return the options that a declared table may have."""
        return {EARLIER.lower()}

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> IcebergSource:
        """Return the source of a declared table."""
        log = find(session(), declared.path)
        if log is None:
            raise Unsupported(
                declared.name,
                "the session does not know such a table of Iceberg",
                "Name it as the catalogs of the session do, and give the session Iceberg's runtime and the settings of the catalog.",
            )
        return cls(declared.path, declared.options, log, branch=log.branch)

    @classmethod
    def guess(cls, line: Line) -> str:
        """Return an example for an offset of Iceberg."""
        return f"{ICEBERG}:catalog.database.table" if '"snapshot_id"' in line else ""

    def check_whole(self) -> None:
        """Raise Unsupported for a branch."""
        if self.branch not in ("", "main"):
            raise Unsupported(
                f"{self.staged}, of its branch {self.branch}", _OPTIONS["branch"], "Read the table itself."
            )

    def is_harmless(self, option: str, value: str) -> bool:
        """Return whether an option with a value leaves no row out that the stage needs."""
        return TableSource.is_harmless(self, option, value) or (option == _FROM and skips_earlier(self.options))

    def pin(self) -> Pin:
        """Return the pin of the table as it is now.

        Raises OSError, and Unsupported when snapshots have expired that no stream would read.
        """
        table = self.log.table()
        lineage = table.lineage
        first = lineage[0] if lineage else None
        if first is not None and first.parent is not None and not skips_earlier(self.options):
            raise Unsupported(
                f"{up(self.name)}, whose first snapshots have expired",
                f"a new stream begins with the files that {first} adds, and never reads older rows, though the table may still have them",
                f'Fill in the older rows by other means, and declare that this stage does not need them: option("{EARLIER}", "skip").',
            )
        marked = bool(table.writers) or any(snapshot.writer for snapshot in lineage[-BACK:])
        aside = tuple(sorted(table.snapshots.keys() - {snapshot.id for snapshot in lineage}))
        return Pin(table.id, first and first.id, table.current, aside, marked, sequence=table.sequence)

    def check_writers(self) -> None:
        """Refuse a table whose rows may be published late, or whose writers the inputs do not name.

        Raises Unsupported for both; OSError when the table cannot be read.
        """
        if self.inputs is None:
            return
        table = self.log.table()
        if table.refusal:
            raise Unsupported(
                self.staged,
                table.refusal,
                "Unset the property of the table, so that writers publish at once. Or begin the pipeline here with lws.injector().",
            )
        recent = table.lineage[-BACK:]
        self.check_alone(table.writers | {snapshot.writer for snapshot in recent} - {""}, recent)

    def offset(self, line: Line) -> Offset | None:
        """Return the offset in a line, see :meth:`Offset.of`."""
        return Offset.of(line)

    def open_table(self, manifest: Manifest, number: int) -> OpenIceberg:
        """Return the source for one run of a query that waits for the table's head."""
        return OpenIceberg(self, manifest, number)

    def went_back(self, before: Line, now: Line) -> str:
        """Return in words how a line is below the one before; empty when no line shows it."""
        old, new = Offset.of(before), Offset.of(now)
        if old is None:
            return ""
        if new is None or (new.snapshot == old.snapshot and new.position < old.position):
            return f"from {old} to {new or 'the beginning'}"
        return ""


class Pin(NamedTuple):
    """Identity of the table and progress of the checks, stored in the checkpoint's manifest."""

    table: str
    """The table's uuid."""
    first: int | None
    """Oldest snapshot when the query began; None: there was none."""
    checked: int | None
    """Newest committed snapshot whose ancestors since the query's start were all checked; at first
    the current snapshot when the query began."""
    aside: tuple[int, ...] = ()
    """Snapshots of the table that were not in its lineage at the last look."""
    marked: bool = False
    """True when a computation has left a mark in the table; then each snapshot with rows must have
    one."""
    begun: bool = False
    """True when the first batch is committed and missed no expired snapshot."""
    broken: str = ""
    """Reason why the watermark holds for good; empty: none."""
    sequence: int = 0
    """The table's sequence number when the pin was stored."""

    @classmethod
    def of(cls, entry: Sequence[Any]) -> Pin:
        """Return the pin that the manifest has as a list."""
        table, first, checked, aside, *rest = entry
        return cls(table, first, checked, tuple(aside), *rest)


class Head(NamedTuple):
    """Head of an Iceberg source: the snapshot to reach."""

    snapshot: int | None
    """Id of the snapshot; None: the table has none."""
    place: int
    """Place of the snapshot in the lineage, from 0; -1: the table has no snapshot."""


class OpenIceberg(OpenTable):
    """The table of a running query.

    Its offset is a place in the table's lineage, its head a snapshot.
    """

    def __init__(self, source: IcebergSource, manifest: Manifest, number: int) -> None:
        super().__init__(source, manifest, number, Pin.of)
        self._lineage: list[Snapshot] = []
        """Checked snapshots that batches may still have to read, the oldest first."""
        self._cut = 0
        """Number of older snapshots that were forgotten."""
        self._places: dict[int, int] = {}
        """Place of each snapshot: the number of snapshots before it, forgotten ones included."""
        self._noted = -1
        """Place of the snapshot that the pin has as ``checked``."""
        self._settled = False
        """True once this run has stored the pin for its first committed batch."""
        self._looked: Table | None = None
        """Table at the last look."""
        self._asking = threading.Lock()
        """Guards a question to the table and the look at its answer: an older answer that was
        looked at after a newer one would look like a rollback."""
        self._lock = threading.RLock()
        """Guards the lineage and the pin, which several threads use. No thread asks the table while
        it has this lock."""
        self._tip: int | None = self._pin.checked
        """Newest snapshot that was checked."""
        self._sequence: int = self._pin.sequence
        """The table's sequence number at the last look."""

    # -- lines -------------------------------------------------------------------------------------

    def _is_below(self, offset: Offset | None, before: Offset) -> bool:
        if offset is None:
            return True
        if offset.snapshot == before.snapshot:
            return offset.position < before.position
        with self._lock:
            here, earlier = self._places.get(offset.snapshot), self._places.get(before.snapshot)
        return here is not None and earlier is not None and here < earlier

    def knock(self, line: Line) -> None:
        """Ask for the table that :meth:`confirm` needs, and check the snapshots of a batch.

        Raises CheckpointMismatch, OSError.
        """
        with self._asking:
            table = self._log.table()
            if table.id == self._pin.table and Offset.of(line) is not None:
                self._look(table)
        self._knocked = line, table

    def _settle(self, offset: Offset, table: Table) -> None:
        with self._lock:
            if not self._pin.begun:
                self._begin(table)
            self._committed = offset
            # The pin is stored every STEP snapshots, but at once while its snapshot has expired: no
            # later run could continue from it. The first batch of a run stores it too: if each run
            # were killed before STEP snapshots, the pin would stay, and its snapshot would expire.
            later = self._settled and self._pin.checked in table.snapshots
            self._settled = True
            if self._unnoted >= (STEP if later else 1):
                self.close()

    @property
    def _unnoted(self) -> int:
        """Number of committed snapshots that were checked after the pin was stored; -1: unknown."""
        place = None if self._committed is None else self._places.get(self._committed.snapshot)
        return -1 if place is None else place - self._noted

    def _begin(self, table: Table) -> None:
        """Check that no snapshot had expired when the first batch was planned.

        ``table`` was read after that batch was committed.
        """
        path = self._manifest.checkpoint / "sources" / str(self._number) / "offsets" / "0"
        begin = Offset.of(path.read_bytes().decode())
        first = self._lineage[0] if self._lineage else None
        oldest = None if first is None or self._cut or first.parent is not None else first.id
        if begin is not None:
            whole = begin.snapshot in (self._pin.first, oldest)
        else:
            # The file names no snapshot, as after a start on an empty table. So the stream began at
            # the oldest snapshot that the table had at its first batch. If the table still has its
            # very first snapshot (``oldest``), none had expired then.
            whole = self._pin.first is None and oldest in table.snapshots
        if whole or skips_earlier(self._source.options):
            self._keep(self._pin._replace(begun=True))
        else:
            self._break(
                f"snapshots of {self._source.name} expired when the query began, so it may have begun after rows that it never reads. {ANEW}"
            )

    def close(self) -> None:
        """Store in the pin the newest committed snapshot that was checked.

        Raises CheckpointMismatch, OSError.
        """
        with self._lock:
            if self._committed is not None and self._unnoted > 0:
                self._noted = self._places[self._committed.snapshot]
                self._keep(self._pin._replace(checked=self._committed.snapshot, sequence=self._sequence))

    # -- heads -------------------------------------------------------------------------------------

    def head(self, settled: Line) -> Head:
        """Return the current snapshot, after each snapshot since the last look was checked.

        Raises OSError when one cannot be read, and Replaced when the watermark holds for good.
        """
        with self._asking:
            table = self._log.table()
            if table.id != self._pin.table:
                raise Replaced(self._replaced(table.id))
            self._look(table)
            self._raise_what_holds()
            self._forget(Offset.of(settled))
            self._count()
            self._raise_what_holds()
            return Head(table.current, -1 if table.current is None else self._places[table.current])

    def _look(self, table: Table) -> None:
        """Extend the lineage by new snapshots, and check them.

        Raises OSError when some have expired already, and for an answer older than the last one.
        """
        with self._lock:
            if table is self._looked or self._pin.broken:
                return
            if table.sequence < self._sequence:
                msg = (
                    f"the metadata of {self._source.name} are older than before: they end with sequence number {table.sequence}, and {self._sequence} was seen. Its catalog "
                    f"answers from a cache, or somebody put an older copy of the table back. The query goes on when the catalog has the newer table again. Otherwise: {ANEW}"
                )
                raise OSError(msg)
            self._sequence = table.sequence
            lineage = table.lineage
            new = self._new(table, lineage)
            if self._looked is None:
                self._append(lineage[: len(lineage) - len(new)])
                self._noted = len(self._lineage) - 1
            for snapshot in new:
                self._check(snapshot)
                self._append([snapshot])
                self._tip = snapshot.id
            aside = tuple(sorted(table.snapshots.keys() - {snapshot.id for snapshot in lineage}))
            if aside != self._pin.aside:
                self._keep(self._pin._replace(aside=aside, sequence=self._sequence))
            self._looked = table

    def _append(self, snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            self._places[snapshot.id] = self._cut + len(self._lineage)
            self._lineage.append(snapshot)

    def _new(self, table: Table, lineage: Sequence[Snapshot]) -> Sequence[Snapshot]:
        """Return the part of a table's lineage after the newest checked snapshot."""
        if self._tip is None:
            if lineage and lineage[0].parent is not None and not skips_earlier(self._source.options):
                self._break(
                    f"snapshots of {self._source.name} have expired before they were read, so their rows never will be. {ANEW}"
                )
            return lineage
        for at, snapshot in enumerate(lineage):
            if snapshot.id == self._tip:
                return lineage[at + 1 :]
        if lineage and lineage[0].parent == self._tip:
            return lineage
        if self._tip in table.snapshots or not lineage or lineage[0].parent is None:
            self._break(
                f"{self._source.name} was rolled back or replaced: snapshot {self._tip} is not in its lineage any more, and its rows may come back when the "
                f"watermark has passed them. {ANEW}"
            )
            return ()
        msg = (
            f"snapshots of {self._source.name} that follow {self._tip} have expired before this query checked them. Keep snapshots for longer than a query is "
            f"stopped. {ANEW}"
        )
        raise OSError(msg)

    def _check(self, snapshot: Snapshot) -> None:
        """Check a snapshot that has joined the lineage; hold the watermark if it may break it."""
        late = next((candidate for candidate in (snapshot.id, snapshot.origin) if candidate in self._pin.aside), None)
        if late is not None:
            self._break(
                f"{snapshot} of {self._source.name} publishes rows that were written earlier outside of its lineage, and the watermark may have passed them. {ANEW}"
            )
        else:
            self._know_writer(snapshot)

    def _forget(self, settled: Offset | None) -> None:
        """Drop the snapshots before the committed one."""
        place = None if settled is None else self._places.get(settled.snapshot)
        if place is not None and place > self._cut:
            with self._lock:
                forgotten, self._lineage = self._lineage[: place - self._cut], self._lineage[place - self._cut :]
                self._cut = place
                for snapshot in forgotten:
                    del self._places[snapshot.id]

    def _count(self) -> None:
        """Count in the manifests the new files of each snapshot whose summary does not tell them.

        Raises OSError.
        """
        for at, snapshot in enumerate(self._lineage):
            if snapshot.added is None and snapshot.operation == "append":
                layout = self._log.layout(snapshot.id)
                added = sum(adds for adds, _ in layout)
                place = 0
                for adds, older in layout:
                    if adds and place + adds > added:
                        self._break(
                            f"{snapshot} of {self._source.name} has merged older manifests before its own new ones, so Iceberg's stream skips files of it. {ANEW}"
                        )
                    place += adds + older
                self._lineage[at] = snapshot._replace(added=added)

    def _break(self, reason: str) -> None:
        """Hold the watermark for good: store the reason in the pin."""
        with self._lock:
            super()._break(reason)

    def _covers(self, head: Head, read: Offset | None) -> bool:
        with self._lock:
            if read is None:
                return self._without_rows(head)
            place = self._places.get(read.snapshot)
            if place is None:
                return False
            return place > head.place or not unread(read, self._between(place, head))

    def _without_rows(self, head: Head) -> bool:
        """Return whether no snapshot up to the head has a row, so that no batch is needed."""
        if head.snapshot is None:
            return True
        begin = Offset(self._lineage[0].id, 0, whole=False)
        return not self._cut and not unread(begin, self._between(0, head))

    def _between(self, place: int, head: Head) -> list[Snapshot]:
        """Return the lineage from a place up to the head."""
        return self._lineage[place - self._cut : head.place - self._cut + 1]

    def missing(self, head: Head, limit: int) -> list[str]:
        """Return in words up to ``limit`` unread snapshots, with the reason where a stream ends."""
        read = self._planned
        with self._lock:
            place = None if read is None else self._places.get(read.snapshot)
            if read is None or place is None:
                begin = self._lineage[0].id if self._lineage else START
                read, place = Offset(begin, 0, whole=False), self._cut
            waiting = unread(read, self._between(place, head))
        lines = []
        for snapshot in waiting:
            if snapshot.ends_streams:
                lines.append(
                    f"{self._source.name}, {snapshot}: it removes or rewrites rows, and a stream of Iceberg ends there. {ANEW}"
                )
                break
            added = snapshot.added or 0
            rest = added - (read.position if snapshot.id == read.snapshot else 0)
            lines.append(f"{self._source.name}, {snapshot}: {rest} of its {added} files are unread")
        return lines[:limit]
