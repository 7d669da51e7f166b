"""A table of versions as a source: what Delta and Iceberg have in common.

A table has a newest version, and older ones before it in one line. A reader opens the table by its
id, which differs for a table that was created again, and pins it before the query's first batch.
The head is the newest version. Between the pin and the head each version is checked once: for its
writer, and for rows that the watermark may have passed. What such a check finds holds the watermark
for good, so the pin keeps the reason.

Where a version's place is, and which of its files an offset has taken, differs: a module of its own
says so for each format.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self

from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import Line, OpenSource, Source, foreign, up
from lowwater_spark.sources.files.roots import Replaced
from lowwater_spark.sources.opaque import OpenOpaque

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = ["ANEW", "BACK", "STEP", "OpenTable", "TableSource", "app_id", "fields_of", "mark_of", "marked", "writer_of"]

BACK: Final = 100
"""Number of versions before a query's start in which it looks for writers without a mark."""

STEP: Final = 20
"""Number of checked versions after which the pin is stored again; a new run checks at most so many
again."""

ANEW: Final = "Start from a new checkpoint, with adopt=True."


def fields_of(line: Line, what: str, fields: Mapping[str, type], version: str, versions: Collection[int]) -> list[Any]:
    """Return fields of an offset, whose names and types are ``fields``.

    Raises CheckpointMismatch for a line of another source, and for one in which the field
    ``version`` is none of ``versions``. ``what`` names the kind of table.
    """
    why = f"is not the offset of {what} in the offset log"
    try:
        content = json.loads(line)
        values = [content[name] for name in fields]
        supported = content[version] in versions
    except (KeyError, TypeError, ValueError) as error:
        raise foreign(line, why) from error
    if not supported or [type(value) for value in values] != [*fields.values()]:
        raise foreign(line, why)
    return values


_FORMAT: Final = 1

_APP: Final = "lowwater:"


def mark_of(metadata: Any) -> Mapping[str, Any]:
    """Return lowwater's mark from a commit's metadata; empty when there is none."""
    try:
        content = json.loads(metadata)["lowwater"]
    except (KeyError, TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def marked(computation: str, **content: object) -> str:
    """Return the mark that a computation leaves in the metadata of its commits, as JSON.

    >>> marked("hourly", batch=7)
    '{"lowwater": {"format": 1, "computation": "hourly", "batch": 7}}'
    """
    return json.dumps({"lowwater": {"format": _FORMAT, "computation": computation, **content}})


def app_id(computation: str, identity: str) -> str:
    """Return the name under which a table counts the batches of a computation's checkpoint.

    >>> app_id("default/hourly", "c0ffee"), writer_of("lowwater:c0ffee:default/hourly")
    ('lowwater:c0ffee:default/hourly', 'default/hourly')
    """
    return f"{_APP}{identity}:{computation}"


def writer_of(app: str) -> str:
    """Return the computation that counts its batches under an app; empty for a foreign app."""
    return app.removeprefix(_APP).partition(":")[2] if app.startswith(_APP) else ""


class TableVersion(Protocol):
    """One version of a table. Its text names it in messages."""

    @property
    def writer(self) -> str:
        """Full name of the computation that wrote the version; empty: it names none."""
        ...

    @property
    def strange(self) -> bool:
        """True when the version may have new rows and names no computation."""
        ...


@dataclass(frozen=True, slots=True)
class TableSource(Source):
    """A streaming source over a table, as the query's plan has it."""

    table: str
    """Path of the table, or its name in a catalog."""
    options: Mapping[str, str]
    """Options of the source, their names in lower case."""
    log: Any = field(compare=False, repr=False)
    """Answers the questions to the table."""
    settings: tuple[str, ...] = ()
    """Settings of the session that have another value than their default, by which rows could be
    left out."""
    inputs: frozenset[str] | None = None
    """Full names of the computations that the stage waits for; None: the source has no head, and
    lowwater does not ask the table."""

    title: ClassVar[str]
    """Name of the format in messages."""
    harmless: ClassVar[Set[str]]
    """Options, in lower case, that leave no row out."""
    harmful: ClassVar[Mapping[str, str]]
    """Reason why an option leaves rows out."""

    @property
    def name(self) -> str:
        """Name of the source in errors."""
        return f"the {self.title} table {self.table}"

    @property
    def staged(self) -> str:
        """Beginning of a refusal's message: the source, in its use by a stage with inputs."""
        return f"{up(self.name)} as the source of a stage with inputs"

    def waiting_for(self, inputs: frozenset[str]) -> Self:
        """Return the source for a stage with inputs.

        Raises Unsupported, naming the option, when the head cannot be known exactly.
        """
        if not inputs:
            return self
        for option, value in sorted(self.options.items()):
            if not self.is_harmless(option, value.lower()):
                why = self.harmful.get(option, "this release does not know whether it leaves rows out")
                raise Unsupported(
                    f"{self.staged}, with the option {option}", why, "Remove the option; filter rows instead."
                )
        for setting in self.settings:
            raise Unsupported(
                f"{self.staged}, in a session where {setting} has not its default",
                "the stream may then leave rows out that the head has",
                "Unset it.",
            )
        self.check_whole()
        return replace(self, inputs=inputs)

    def check_whole(self) -> None:
        """Raise Unsupported when only a part of the table is read."""

    def is_harmless(self, option: str, value: str) -> bool:
        """Return whether an option with a value leaves no row out."""
        return option in self.harmless or value == "false"

    def check_alone(self, writers: Set[str], recent: Sequence[TableVersion]) -> None:
        """Refuse a table into which a computation writes that the inputs do not name.

        ``writers`` are the computations that have left a mark, ``recent`` the newest versions, in
        order. Raises Unsupported.
        """
        assert self.inputs is not None
        if strangers := writers - self.inputs:
            raise Unsupported(
                f"{up(self.name)}, into which {min(strangers)} writes",
                "the inputs do not name it, so its rows would not be waited for",
                f"Name {min(strangers)} in inputs, or let it write into a table of its own.",
            )
        # Versions before the first mark may name no computation, because the table may have been
        # filled before; those after it must name one. If ``writers`` has names but no version of
        # ``recent`` has one, the first mark is older than ``recent``, and all of ``recent`` is
        # checked. Without any mark none of it is.
        unmarked = -1 if writers else len(recent)
        first = next((at for at, version in enumerate(recent) if version.writer), unmarked)
        late = next((version for version in recent[first + 1 :] if version.strange), None)
        if late is not None:
            raise Unsupported(
                f"{up(self.name)}, of which {late} names no computation",
                f"{', '.join(sorted(writers)) or 'a computation'} writes into it as well, and the stage cannot wait for rows of an unnamed writer",
                "Let only computations that inputs names write into it, or give the rows of others a table of their own.",
            )

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return the source for one run of a query; the first run pins the table.

        Raises CheckpointMismatch, Unsupported, and OSError when the table cannot be read.
        """
        if self.inputs is None:
            folder = manifest.checkpoint / "sources" / str(number)
            return OpenOpaque(self.kind, folder, order=self.went_back)
        return self.open_table(manifest, number)

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of a table of this format."""
        self.offset(line)

    @abstractmethod
    def offset(self, line: Line) -> Any:
        """Return the offset in a line; None before the first row was read.

        Raises CheckpointMismatch for a line of another source.
        """

    @abstractmethod
    def open_table(self, manifest: Manifest, number: int) -> OpenSource:
        """Return the source for one run of a query that waits for the table's head."""

    @abstractmethod
    def went_back(self, before: Line, now: Line) -> str:
        """Return in words how a line is below the one before; empty when no line shows it."""


class OpenTable(OpenSource):
    """The table of a running query: its pin, and the checks of its versions."""

    def __init__(self, source: Any, manifest: Manifest, number: int, pin_of: Callable[[Sequence[Any]], Any]) -> None:
        self._source = source
        self._log = source.log
        self._manifest = manifest
        self._number = number
        self._stranger = ""
        """Version of a writer that the inputs do not name, in words; empty: none."""
        self._pin = self._pinned(pin_of)
        self._committed: Any = None
        """Offset of the newest committed batch; None before the first row was read."""
        self._planned: Any = None
        """Offset of the newest planned batch, likewise."""
        self._knocked: tuple[Line, Any] = ("", None)
        """Last line given to :meth:`knock`, and the table as it was then."""

    def _pinned(self, pin_of: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the stored pin; before the query's first batch make one and store it durably."""
        entry = self._manifest.pin(self._source.kind, self._number)
        if CheckpointLog(self._manifest.checkpoint).last_planned() is None:
            self._keep(self._source.pin())
            return self._pin
        if entry is None:
            msg = (
                f"{self._manifest.checkpoint} has read {self._source.name}, and has no record of the versions that were checked: rows may have come back "
                f"since. {ANEW}"
            )
            raise CheckpointMismatch(msg)
        pin = pin_of(entry)
        if pin.broken:
            raise CheckpointMismatch(pin.broken)
        return pin

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the committed one. Raises CheckpointMismatch."""
        offset, before = self._source.offset(line), self._committed
        if before is not None and self._is_below(offset, before):
            raise CheckpointMismatch(
                f"the offset of {self._source.name} has gone back, from {before} to {offset or 'the beginning'}: restore the checkpoint as a whole, or start from a new one, with adopt=True."
            )
        self._planned = offset

    @abstractmethod
    def _is_below(self, offset: Any, before: Any) -> bool:
        """Return whether a planned offset is before the committed one."""

    def confirm(self, line: Line) -> None:
        """Check that the table is the pinned one, and the versions that a batch has read.

        Raises CheckpointMismatch, and OSError when the table cannot be read.
        """
        if self._knocked[0] != line:
            self.knock(line)
        table = self._knocked[1]
        if table.id != self._pin.table:
            raise CheckpointMismatch(self._replaced(table.id))
        offset = self._source.offset(line)
        if offset is not None:
            self._settle(offset, table)

    @abstractmethod
    def _settle(self, offset: Any, table: Any) -> None:
        """Count a batch up to ``offset`` as committed; ``table`` was read after that."""

    def reached(self, head: Any, offset: Line | None) -> bool:
        """Return whether an offset has taken all files up to the head."""
        return not self._held and self._covers(head, None if offset is None else self._source.offset(offset))

    @abstractmethod
    def _covers(self, head: Any, read: Any) -> bool:
        """Return whether an offset has taken all files up to the head; None before the first."""

    def _keep(self, pin: Any) -> None:
        self._manifest.keep_pin(self._source.kind, self._number, pin)
        self._pin = pin

    def _break(self, reason: str) -> None:
        """Hold the watermark for good: store the reason in the pin."""
        self._keep(self._pin._replace(broken=reason))

    @property
    def _held(self) -> str:
        """Reason why no watermark counts; empty: none."""
        return str(self._pin.broken or self._stranger)

    def _raise_what_holds(self) -> None:
        if reason := self._held:
            raise Replaced(reason)

    def _replaced(self, table: str) -> str:
        return f"{self._source.name} is another one (its id was {self._pin.table} and is {table}): the checkpoint has read the old one. {ANEW}"

    def _know_writer(self, version: TableVersion) -> None:
        """Check the writer of a version; hold the watermark if the inputs do not name it."""
        if version.writer and version.writer not in self._source.inputs:
            self._stranger = f"{version} of {self._source.name} was written by {version.writer}, which the inputs do not name: start the query with it in inputs"
        elif version.writer and not self._pin.marked:
            self._keep(self._pin._replace(marked=True))
        elif self._pin.marked and version.strange:
            self._break(
                f"{version} of {self._source.name} names no computation, though others that write into the table do: its rows were not waited for. {ANEW}"
            )
