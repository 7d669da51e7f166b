"""Iceberg as a source: a table, for a stage with inputs; for an injector too.

The head is the current snapshot of the table. An offset is Iceberg's own: ``(s, p)`` has everything
of the snapshots before s, and of s the files that it adds before position p. Snapshots have no
order by number, only by their parents: the *lineage*, which every look at the table makes longer.
An offset at s has reached the head H when the table is the pinned one, s is in the lineage, and

* s is beyond H, or
* no snapshot from s to H adds a file that it has not taken. One that only rearranges rows
  (``replace``, as of rewrite_data_files) adds none.

A snapshot that deletes or overwrites ends the stream of Iceberg, so nothing at or beyond it is
reached.

A stream begins at the oldest snapshot that is still there, and reads what that one *adds*: when
older ones have expired, their rows are never read. So the oldest must be the first one, unless it
is declared that earlier rows count for nothing.

The table's uuid, where the stream begins and how far the lineage was looked at stand in the
manifest. Rows that come back hold for good: when the lineage no longer leads to where it was (a
rollback), and when a snapshot joins it that was made before and stood aside (a branch, or a staged
one), since the watermark may have passed its rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import EARLIER, NONE, Fileless, Line, OpenSource, skips_earlier
from lowwater_spark.sources.delta import mark_of, writer_of
from lowwater_spark.sources.opaque import OpenOpaque
from lowwater_spark.sources.roots import Replaced

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = [
    "ICEBERG",
    "MARK",
    "SETTINGS",
    "Head",
    "IcebergSource",
    "Offset",
    "OpenIceberg",
    "Snapshot",
    "Table",
    "TableLog",
    "Written",
    "unread",
]

ICEBERG: Final = "iceberg"
"""The name of the source's format."""

MARK: Final = "lowwater"
"""The property of a snapshot's summary that says which computation has made it."""

_BACK: Final = 100
"""Snapshots before its start in which a query looks for writers who leave no mark."""

_STEP: Final = 20
"""Snapshots that a new run may have to look at again: how far they were looked at is not noted with
each batch."""

_START: Final = -1
"""What stands for a snapshot where a table had none yet."""

_ANEW: Final = "Start from a new checkpoint, with adopt=True."


# -- the table -------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """What one snapshot of a table says of its rows."""

    id: int
    parent: int | None
    """None: it is the first one."""
    operation: str
    added: int | None = None
    """How many files with new rows it adds; None: it does not say so itself."""
    writer: str = ""
    """The full name of the computation that has made it; empty: it is not said."""
    origin: int | None = None
    """The snapshot, made before and elsewhere, whose rows it publishes."""
    mark: Mapping[str, Any] = MappingProxyType({})
    """What lowwater has left in it."""

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Snapshot:
        """Return what a table's metadata say of a snapshot.

        >>> Snapshot.parse({"snapshot-id": 7, "summary": {"operation": "append", "added-data-files": "2", "manifests-created": "1"}}).added
        2
        """
        summary = dict(said.get("summary") or {})
        mark = mark_of(summary.get(MARK))
        origin = summary.get("source-snapshot-id")
        return cls(
            said["snapshot-id"],
            said.get("parent-snapshot-id"),
            str(summary.get("operation", "")),
            _added(summary),
            str(mark.get("computation", "")),
            None if origin is None else int(origin),
            mark,
        )

    @property
    def passed_over(self) -> bool:
        """Whether it has no rows that were not there before, so that the stream goes past it."""
        return self.operation == "replace"

    @property
    def ends_streams(self) -> bool:
        """Whether a stream fails when it comes to it."""
        return self.operation not in ("append", "replace")

    @property
    def strange(self) -> bool:
        """Whether it has rows of nobody that is known."""
        return self.operation != "replace" and self.added != 0 and not self.writer

    def __str__(self) -> str:
        """Return it in words."""
        return f"snapshot {self.id} ({self.operation or 'of an operation that it does not name'})"


def _added(summary: Mapping[str, str]) -> int | None:
    """Return how many files a snapshot adds by its own summary; None where its manifests have to be asked.

    The stream counts the files of a snapshot by the places of its manifests. Where the snapshot has merged older manifests into its own, and made several, the places
    and the number of files may differ.
    """
    created, replaced = summary.get("manifests-created"), summary.get("manifests-replaced")
    if created == "0":
        return 0
    if created != "1" and replaced != "0":
        return None
    said = summary.get("added-data-files")
    return None if said is None else int(said)


class Written(NamedTuple):
    """What a property of a table says of the last batch of one who writes batches."""

    batch: int
    digest: str
    run: int
    snapshot: int
    life: int = 0
    """The computation's incarnation by then; 0: it is not known."""

    @classmethod
    def parse(cls, said: str) -> Written:
        """Return what a property says. Raises OSError.

        >>> Written.parse('{"batch": 7, "digest": "d", "run": 1, "snapshot": 5}')
        Written(batch=7, digest='d', run=1, snapshot=5, life=0)
        """
        try:
            found = json.loads(said)
            made = cls(found["batch"], found["digest"], found["run"], found["snapshot"], found.get("life", 0))
            if [type(each) for each in made] != [int, str, int, int, int]:
                raise TypeError
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"the property of a table says nothing of a batch: {said!r}"
            raise OSError(msg) from error
        return made


class Table(NamedTuple):
    """A table as of its newest metadata."""

    id: str
    """Its uuid. Another one is another table."""
    location: str
    current: int | None
    """None: it has no snapshot yet."""
    snapshots: Mapping[int, Snapshot]
    """All that it still has, those of branches and staged ones too."""
    properties: Mapping[str, str] = MappingProxyType({})
    sequence: int = 0
    """The number of its newest snapshot, whether that is in the lineage or not: it never goes down,
    but stays 0 in tables of Iceberg's format 1."""

    @classmethod
    def parse(cls, text: str) -> Table:
        """Return what the JSON of a table's metadata says. Raises OSError when it is none."""
        try:
            said = json.loads(text)
            snapshots = {each["snapshot-id"]: Snapshot.parse(each) for each in said.get("snapshots", ())}
            current = said.get("current-snapshot-id")
            current = None if current in (None, _START) else snapshots[current].id
            sequence = said.get("last-sequence-number", 0)
            return cls(said["table-uuid"], said["location"], current, snapshots, said.get("properties", {}), sequence)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"the metadata of a table are none of Iceberg: {error!r}"
            raise OSError(msg) from error

    @property
    def lineage(self) -> list[Snapshot]:
        """The current snapshot and its ancestors, as far as they are still there, the oldest first."""
        found: list[Snapshot] = []
        at = self.current
        while at is not None and (snapshot := self.snapshots.get(at)) is not None:
            found.append(snapshot)
            at = snapshot.parent
        found.reverse()
        return found

    @property
    def writers(self) -> set[str]:
        """The computations that have ever written batches into it."""
        return {writer_of(name) for name in self.properties} - {""}

    @property
    def refusal(self) -> str:
        """Why its rows cannot be waited for, in words; empty: they can."""
        if self.properties.get("write.wap.enabled", "").lower() == "true":
            return (
                "what is written into it may be published later (write.wap.enabled), when the watermark has passed it"
            )
        return ""


class TableLog(Protocol):
    """What one table says of itself. Each call raises OSError when it cannot be known now."""

    def table(self) -> Table:
        """Return the table as of now."""
        ...

    def layout(self, snapshot: int) -> Sequence[tuple[int, int]]:
        """Return of each manifest that a snapshot has made, in order, how many files it adds and how many it took over."""
        ...


# -- offsets ---------------------------------------------------------------------------------------


class Offset(NamedTuple):
    """Where Iceberg's source stands."""

    snapshot: int
    """:data:`_START` before the first."""
    position: int
    """How many files of it were taken, by the places of its manifests."""
    whole: bool
    """Whether all files that stand in the snapshot count, and not only those that it adds."""

    @classmethod
    def of(cls, line: Line) -> Offset | None:
        """Return what a line of ``offsets/N`` says, None where nothing was read yet.

        Raises CheckpointMismatch for a line of another source.
        """
        if line == NONE:
            return None
        try:
            found = json.loads(line)
            read = cls(found["snapshot_id"], found["position"], found["scan_all_files"])
            known = found["version"] == 1
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointMismatch(_OTHER.format(line=line)) from error
        if not known or [type(each) for each in read] != [int, int, bool]:
            raise CheckpointMismatch(_OTHER.format(line=line))
        return None if read.snapshot == _START else read

    def __str__(self) -> str:
        """Return it in words."""
        return f"file {self.position} of snapshot {self.snapshot}"


def unread(offset: Offset, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return those of the snapshots that an offset has not taken whole.

    They are of one lineage, and the offset is in the first one.

    >>> snapshots = [Snapshot(7, None, "append", 2), Snapshot(8, 7, "replace", 1), Snapshot(9, 8, "append", 1)]
    >>> [each.id for each in unread(Offset(7, 2, False), snapshots)]
    [9]
    >>> [each.id for each in unread(Offset(7, 1, False), snapshots[:2])], unread(Offset(7, 2, False), snapshots[:2])
    ([7], [])
    """
    found = []
    for at, snapshot in enumerate(snapshots):
        taken = offset.position if at == 0 else 0
        if snapshot.passed_over:
            continue
        if snapshot.ends_streams or snapshot.added is None or snapshot.added > taken or (at == 0 and offset.whole):
            found.append(snapshot)
    return found


def went_back(before: Line, now: Line) -> str:
    """Return how a line is below the one before, in words; empty where it is not, as far as lines alone can tell."""
    old, new = Offset.of(before), Offset.of(now)
    if old is None:
        return ""
    if new is None or (new.snapshot == old.snapshot and new.position < old.position):
        return f"from {old} to {new or 'the beginning'}"
    return ""


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
"""Options that leave no row out."""

_FROM: Final = "stream-from-timestamp"

_OPTIONS: Final[Mapping[str, str]] = {
    "streaming-skip-overwrite-snapshots": "rows of a snapshot that is passed over would count as read",
    "streaming-skip-delete-snapshots": "rows of a snapshot that is passed over would count as read",
    _FROM: "the rows before it would count as read",
    "branch": "the stream reads the main branch all the same, and rows of a branch may be published later",
    "tag": "it names one snapshot, and no stream of them",
    "async-micro-batch-planning-enabled": "files that are queued ahead of a batch are not compared with the table's lineage",
}

SETTINGS: Final = ("spark.sql.iceberg.async-micro-batch-planning-enabled",)
"""Of the session; each must be false, as it is by default."""


@dataclass(frozen=True, slots=True)
class IcebergSource:
    """A streaming Iceberg source, as the plan has it."""

    table: str
    """As the catalog names it, or its path."""
    options: Mapping[str, str]
    """Of the source, their names in lower case."""
    log: TableLog = field(compare=False, repr=False)
    on: tuple[str, ...] = ()
    """The settings of :data:`SETTINGS` that the session has switched on."""
    branch: str = ""
    """The branch that the query names with the table; empty: none."""
    inputs: frozenset[str] | None = None
    """The full names of the computations that are waited for; None: nobody's, and nothing is asked
    of the source."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"the Iceberg table {self.table}"

    @property
    def kind(self) -> str:
        """Iceberg."""
        return ICEBERG

    @property
    def skips(self) -> bool:
        """Whether it is declared that earlier rows count for nothing."""
        return skips_earlier(self.options)

    def waiting_for(self, inputs: frozenset[str]) -> IcebergSource:
        """Return it for a stage with inputs.

        Raises Unsupported, naming the option, when its end cannot be known exactly.
        """
        if not inputs:
            return self
        stage = f"{_up(self.name)} as the source of a stage with inputs"
        for option, value in sorted(self.options.items()):
            if option in _HARMLESS or value.lower() == "false" or (option == _FROM and self.skips):
                continue
            why = _OPTIONS.get(option, "this release does not know whether it leaves rows out")
            fix = "Remove the option; filter rows instead."
            if option == _FROM:
                fix = f'If nobody waits for them, declare it: option("{EARLIER}", "skip"). Or remove the option.'
            raise Unsupported(f"{stage}, with the option {option}", why, fix)
        for setting in self.on:
            raise Unsupported(
                f"{stage}, in a session where {setting} is true",
                _OPTIONS["async-micro-batch-planning-enabled"],
                "Set it to false, its default.",
            )
        if self.branch not in ("", "main"):
            raise Unsupported(f"{stage}, of its branch {self.branch}", _OPTIONS["branch"], "Read the table itself.")
        return replace(self, inputs=inputs)

    def pin(self) -> Pin:
        """Return what is to be remembered of the table as it is now.

        Raises OSError; Unsupported where rows are gone that no stream reads.
        """
        found = self.log.table()
        lineage = found.lineage
        first = lineage[0] if lineage else None
        if first is not None and first.parent is not None and not self.skips:
            raise Unsupported(
                f"{_up(self.name)}, whose first snapshots have expired",
                f"a new stream begins with what {first} adds, and the rows before it are never read, though they may still stand in the table",
                f'Fill in what is older by other means and declare that nobody waits for it here: option("{EARLIER}", "skip").',
            )
        marked = bool(found.writers) or any(each.writer for each in lineage[-_BACK:])
        aside = tuple(sorted(found.snapshots.keys() - {each.id for each in lineage}))
        return Pin(found.id, first and first.id, found.current, aside, marked, sequence=found.sequence)

    def check_writers(self) -> None:
        """Raise Unsupported for a table whose rows may be published late, and when somebody writes into it whom the inputs do not name. Raises OSError."""
        if self.inputs is None:
            return
        table = self.log.table()
        if table.refusal:
            raise Unsupported(
                f"{_up(self.name)} as the source of a stage with inputs",
                table.refusal,
                "Unset the property of the table, and write into it at once. Or begin the pipeline here with lws.injector().",
            )
        recent = table.lineage[-_BACK:]
        writers = table.writers | {each.writer for each in recent} - {""}
        if strangers := writers - self.inputs:
            raise Unsupported(
                f"{_up(self.name)}, into which {min(strangers)} writes",
                "the inputs do not name it, so its rows would not be waited for",
                f"Name {min(strangers)} in inputs, or let it write into a table of its own.",
            )
        marked = next((at for at, each in enumerate(recent) if each.writer), None)
        # Before the first mark somebody may have filled the table. If it is none of these
        # snapshots', it is older.
        first = (-1 if writers else len(recent)) if marked is None else marked
        late = next((each for each in recent[first + 1 :] if each.strange), None)
        if late is not None:
            raise Unsupported(
                f"{_up(self.name)}, of which {late} names no computation",
                f"{', '.join(sorted(writers)) or 'a computation'} writes into it as well, and nobody waits for the rows of whoever else does",
                "Let only computations that inputs names write into it, or give the rows of others a table of their own.",
            )

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of Iceberg."""
        Offset.of(line)

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return it for one run of a query: a first one pins the table.

        Raises CheckpointMismatch, Unsupported, and OSError when the table does not answer.
        """
        if self.inputs is None:
            return OpenOpaque(ICEBERG, manifest.checkpoint / "sources" / str(number), order=went_back)
        return OpenIceberg(self, manifest, number)


def _up(words: str) -> str:
    return words[:1].upper() + words[1:]


class Pin(NamedTuple):
    """What a checkpoint remembers of a source."""

    table: str
    """The table's uuid."""
    first: int | None
    """The oldest snapshot when the query began; None: there was none."""
    checked: int | None
    """The current snapshot when the query began, or a later one that is committed: all since then
    were looked at, one by one."""
    aside: tuple[int, ...] = ()
    """The snapshots that the table had, and that were not in its lineage, at the last look."""
    marked: bool = False
    """Whether a computation has left its mark in the table: then all who write rows must."""
    begun: bool = False
    """Whether the first batch is committed, and has begun where it should."""
    broken: str = ""
    """Why nothing newer counts, for good; empty: nothing is known against it."""
    sequence: int = 0
    """The table's sequence number at the last look that was noted."""

    @classmethod
    def of(cls, kept: Sequence[Any]) -> Pin:
        """Return what :meth:`list` has made of one."""
        table, first, checked, aside, *rest = kept
        return cls(table, first, checked, tuple(aside), *rest)


class Head(NamedTuple):
    """What has to be reached."""

    snapshot: int | None
    """None: the table has no snapshot."""
    place: int
    """Its place in the lineage."""


class OpenIceberg(Fileless):
    """The table of a query that runs.

    Its offset is a place in the table's lineage, its head a snapshot.
    """

    def __init__(self, source: IcebergSource, manifest: Manifest, number: int) -> None:
        self._source = source
        self._log = source.log
        self._manifest = manifest
        self._number = str(number)
        self._committed: Offset | None = None
        self._planned: Offset | None = None
        self._lineage: list[Snapshot] = []
        """What is known of it, the oldest first, up to the snapshot that was looked at last."""
        self._cut = 0
        """How many older ones were forgotten."""
        self._places: dict[int, int] = {}
        """Of each snapshot: how many are before it, those that were forgotten among them."""
        self._noted = -1
        """The place of the snapshot that the pin has as checked."""
        self._settled = False
        """Whether this run has noted how far the one before it had come."""
        self._looked: Table | None = None
        self._knocked: tuple[Line, Table | None] = ("", None)
        """The line that was asked for last, and the table after it was committed."""
        self._stranger = ""
        """A snapshot of somebody whom the inputs do not name; empty: none."""
        self._asking = threading.Lock()
        """Held from when the table is asked until the answer was looked at: an older answer after a
        newer one would look like a rollback."""
        self._lock = threading.RLock()
        """Of the lineage and the pin: a look is made while a batch is confirmed, and while it is
        asked what is reached. Nobody asks the table under it."""
        self._pin = self._pinned()
        self._tip = self._pin.checked
        """The newest snapshot that was looked at."""
        self._sequence = self._pin.sequence
        """The table's sequence number at the last look."""

    @property
    def planned_is_read(self) -> bool:
        """A plan names a snapshot: until its files are read, the table may be made anew, or the snapshot may expire."""
        return False

    def _pinned(self) -> Pin:
        """Return the pin, made and durable before the query's first batch."""
        kept = (self._manifest["iceberg"] or {}).get(self._number)
        begun = CheckpointLog(self._manifest.checkpoint).last_planned() is not None
        if begun and kept is not None:
            pin = Pin.of(kept)
            if pin.broken:
                raise CheckpointMismatch(pin.broken)
            return pin
        if begun:
            msg = (
                f"{self._manifest.checkpoint} has read {self._source.name}, and nobody has noted since which snapshot: rows may have come back since. Start from a "
                "new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        pin = self._source.pin()
        self._keep(pin)
        return pin

    def _keep(self, pin: Pin) -> None:
        self._manifest.keep_entry("iceberg", self._number, list(pin))
        self._pin = pin

    # -- lines -------------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the committed one. Raises CheckpointMismatch."""
        offset = Offset.of(line)
        before = self._committed
        with self._lock:
            below = before is not None and self._is_below(offset, before)
        if below:
            msg = (
                f"the offset of {self._source.name} has gone back, from {before} to {offset or 'the beginning'}: restore the checkpoint as a whole, or start from a "
                "new one, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        self._planned = offset

    def _is_below(self, offset: Offset | None, before: Offset) -> bool:
        if offset is None:
            return True
        if offset.snapshot == before.snapshot:
            return offset.position < before.position
        here, there = self._places.get(offset.snapshot), self._places.get(before.snapshot)
        return here is not None and there is not None and here < there

    def knock(self, line: Line) -> None:
        """Ask what :meth:`confirm` has to know: the table as of now, and look at the snapshots that a batch has read. Raises CheckpointMismatch, OSError."""
        with self._asking:
            table = self._log.table()
            if table.id == self._pin.table and Offset.of(line) is not None:
                self._look(table)
        self._knocked = line, table

    def confirm(self, line: Line) -> None:
        """Make sure that the table is still the one that was pinned, and that the stream has begun where it should.

        Raises CheckpointMismatch, and OSError when the table does not answer.
        """
        if self._knocked[0] != line:
            self.knock(line)
        table = self._knocked[1]
        assert table is not None
        if table.id != self._pin.table:
            raise CheckpointMismatch(self._replaced(table.id))
        offset = Offset.of(line)
        if offset is None:
            return
        with self._lock:
            if not self._pin.begun:
                self._begin(table)
            self._committed = offset
            # What has expired nobody finds again: a new run would not know where to go on.
            later = self._settled and self._pin.checked in table.snapshots
            self._settled = True
            if self._unnoted >= (_STEP if later else 1):
                self.close()

    @property
    def _unnoted(self) -> int:
        """How many snapshots were looked at and are committed that a new run would look at again."""
        place = None if self._committed is None else self._places.get(self._committed.snapshot)
        return -1 if place is None else place - self._noted

    def _begin(self, table: Table) -> None:
        """Make sure that no rows were gone before the first batch was planned.

        It was committed before the table was asked.
        """
        path = self._manifest.checkpoint / "sources" / self._number / "offsets" / "0"
        begin = Offset.of(path.read_bytes().decode())
        first = self._lineage[0] if self._lineage else None
        oldest = None if first is None or self._cut or first.parent is not None else first.id
        if begin is not None:
            whole = begin.snapshot in (self._pin.first, oldest)
        else:
            # The first batch begins at what is the oldest snapshot then. What has not expired by
            # now had not expired then.
            whole = self._pin.first is None and oldest in table.snapshots
        if whole or self._source.skips:
            self._keep(self._pin._replace(begun=True))
        else:
            self._break(
                f"snapshots of {self._source.name} expired when the query began, and it may have begun beyond rows that it never reads. {_ANEW}"
            )

    def close(self) -> None:
        """Note how far the snapshots were looked at that are committed.

        Raises CheckpointMismatch, OSError.
        """
        with self._lock:
            if self._committed is not None and self._unnoted > 0:
                self._noted = self._places[self._committed.snapshot]
                self._keep(self._pin._replace(checked=self._committed.snapshot, sequence=self._sequence))

    def evidence(self, line: Line) -> list[Location]:
        """Return nothing: what a batch has read its plan says alone."""
        return []

    def _replaced(self, found: str) -> str:
        return f"{self._source.name} is another one (its uuid was {self._pin.table} and is {found}): what was read belongs to the old one. {_ANEW}"

    # -- heads -------------------------------------------------------------------------------------

    def head(self, settled: Line) -> Head:
        """Read the current snapshot, and each since the last look.

        Raises OSError when they are not known, and when the watermark cannot count on the table any
        more.
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

    def _raise_what_holds(self) -> None:
        if held := self._pin.broken or self._stranger:
            raise Replaced(held)

    def _look(self, table: Table) -> None:
        """Make the lineage longer by what is new, and look at it.

        Raises OSError when some of it is not there any more.
        """
        with self._lock:
            if table is self._looked or self._pin.broken:
                return
            if table.sequence < self._sequence:
                msg = (
                    f"what is told of {self._source.name} is older than what was told before: it ends with sequence number {table.sequence}, and {self._sequence} was seen. "
                    f"Its catalog answers from a cache, or an older copy of the table was put back. The query goes on when it is told of the newer one again. Otherwise: {_ANEW}"
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
            aside = tuple(sorted(table.snapshots.keys() - {each.id for each in lineage}))
            if aside != self._pin.aside:
                self._keep(self._pin._replace(aside=aside, sequence=self._sequence))
            self._looked = table

    def _append(self, snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            self._places[snapshot.id] = self._cut + len(self._lineage)
            self._lineage.append(snapshot)

    def _new(self, table: Table, lineage: Sequence[Snapshot]) -> Sequence[Snapshot]:
        """Return the part of a table's lineage that comes after what was looked at last."""
        if self._tip is None:
            if lineage and lineage[0].parent is not None and not self._source.skips:
                self._break(
                    f"snapshots of {self._source.name} have expired before they were read, and their rows never will be. {_ANEW}"
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
                f"watermark has passed them. {_ANEW}"
            )
            return ()
        msg = (
            f"snapshots of {self._source.name} that follow {self._tip} have expired before anybody looked at them, and nobody knows what they were. Keep snapshots "
            f"for longer than a query is away. {_ANEW}"
        )
        raise OSError(msg)

    def _check(self, snapshot: Snapshot) -> None:
        """Look at a snapshot that has joined the lineage."""
        assert self._source.inputs is not None
        late = next((each for each in (snapshot.id, snapshot.origin) if each in self._pin.aside), None)
        if late is not None:
            self._break(
                f"{snapshot} of {self._source.name} publishes rows that were written before and stood aside, which the watermark may have passed. {_ANEW}"
            )
        elif snapshot.writer and snapshot.writer not in self._source.inputs:
            self._stranger = (
                f"{snapshot} of {self._source.name} was written by {snapshot.writer}, which the inputs do not name: "
                "start the query with it in inputs"
            )
        elif snapshot.writer and not self._pin.marked:
            self._keep(self._pin._replace(marked=True))
        elif self._pin.marked and snapshot.strange:
            self._break(
                f"{snapshot} of {self._source.name} names no computation, though others that write into the table do: nobody waits for its rows. {_ANEW}"
            )

    def _forget(self, settled: Offset | None) -> None:
        """Let go of what is before the place that is committed."""
        place = None if settled is None else self._places.get(settled.snapshot)
        if place is not None and place > self._cut:
            with self._lock:
                gone, self._lineage = self._lineage[: place - self._cut], self._lineage[place - self._cut :]
                self._cut = place
                for snapshot in gone:
                    del self._places[snapshot.id]

    def _count(self) -> None:
        """Find out how many files each snapshot adds that does not say so itself.

        Raises OSError.
        """
        for at, snapshot in enumerate(self._lineage):
            if snapshot.added is None and snapshot.operation == "append":
                layout = self._log.layout(snapshot.id)
                added = sum(each for each, _ in layout)
                place = 0
                for adds, took in layout:
                    if adds and place + adds > added:
                        self._break(
                            f"{snapshot} of {self._source.name} has merged older manifests before its own new ones, where Iceberg's stream passes over files. {_ANEW}"
                        )
                    place += adds + took
                self._lineage[at] = snapshot._replace(added=added)

    def _break(self, reason: str) -> None:
        """Let nothing newer count, for good."""
        with self._lock:
            self._keep(self._pin._replace(broken=reason))

    def wait(self, listed: Head, planned: Line | None) -> Head:
        """Wait for all of it."""
        return listed

    def look(self, head: Head) -> None:
        """Do nothing: what is read of a table stands in the plan."""

    def renewed(self, head: Head, listed: Head, planned: Line | None) -> Head:
        """Wait for the same."""
        return head

    def reached(self, head: Head, offset: Line | None) -> bool:
        """Return whether an offset has taken everything up to a snapshot."""
        if self._pin.broken or self._stranger:
            return False
        read = None if offset is None else Offset.of(offset)
        with self._lock:
            if read is None:
                return self._without_rows(head)
            place = self._places.get(read.snapshot)
            if place is None:
                return False
            return place > head.place or not unread(read, self._between(place, head))

    def _without_rows(self, head: Head) -> bool:
        """Return whether no snapshot up to a head has a row, so that no batch is needed."""
        if head.snapshot is None:
            return True
        begin = Offset(self._lineage[0].id, 0, whole=False)
        return not self._cut and not unread(begin, self._between(0, head))

    def _between(self, place: int, head: Head) -> list[Snapshot]:
        """Return the lineage from a place to a head."""
        return self._lineage[place - self._cut : head.place - self._cut + 1]

    def same(self, one: Head, other: Head) -> bool:
        """Return whether both are the same snapshot."""
        return one.snapshot == other.snapshot

    def missing(self, head: Head, limit: int) -> list[str]:
        """Return some of the snapshots that are still to be read, with the reason where waiting does not help."""
        read = self._planned
        with self._lock:
            place = None if read is None else self._places.get(read.snapshot)
            if read is None or place is None:
                begin = self._lineage[0].id if self._lineage else _START
                read, place = Offset(begin, 0, whole=False), self._cut
            waiting = unread(read, self._between(place, head))
        said = []
        for snapshot in waiting:
            if snapshot.ends_streams:
                said.append(
                    f"{self._source.name}, {snapshot}: it takes rows away or writes them anew, and a stream of Iceberg ends there. {_ANEW}"
                )
                break
            added = snapshot.added or 0
            left = added - (read.position if snapshot.id == read.snapshot else 0)
            said.append(f"{self._source.name}, {snapshot}: {left} of its {added} files are unread")
        return said[:limit]


_OTHER: Final = (
    "{line!r} is not the offset of an Iceberg table in the offset log: the checkpoint was begun with another source. Start the query as it was begun, or another one "
    "from a new checkpoint, with adopt=True."
)
