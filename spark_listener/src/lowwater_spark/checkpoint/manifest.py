"""The manifest: lowwater's own data in a checkpoint. Each change of it is a new version.

The versions are ``CHECKPOINT/lowwater/manifest/<version>.json``; the greatest number counts. A
version is created once and never replaced, so two runs of one checkpoint cannot overwrite each
other's data. With one file that is replaced, an older run that still goes on would undo what the
newer one has stored meanwhile.

Earlier releases had seven files: ``query``, ``stages``, ``reading``, ``roots``, ``sink`` and
``read.json``, and ``state.json`` for each stage with a state. They are read once, when this release
takes such a checkpoint over. ``query.json`` decides: while it is missing or of format 1, the seven
files count and any manifest is ignored; once it is of format 2, the manifest counts, and a release
that knows only the seven files refuses the checkpoint.

``state.json`` stays, though this release does not read it any more. The first release had only this
one of the seven files, so it does not see ``query.json``. Until a batch of this release has begun,
which the first release refuses (:mod:`lowwater_spark.track.run.batch_log`), it could still continue
the checkpoint; without the file it would take the stage for one without a state.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lowwater_spark.checkpoint.durable import make_directory, sync_directory, write_once, write_over
from lowwater_spark.checkpoint.location import Location, numbers_in
from lowwater_spark.errors import CheckpointMismatch

__all__ = ["SECTIONS", "Manifest"]

_FORMAT: Final = 2

_OLD: Final = 1
"""Format of the seven files."""

SECTIONS: Final[Mapping[str, str]] = {
    "query": "The parts of the query that decide which state the checkpoint has.",
    "stages": "The names of the query's stages; None: one stage, of any name.",
    "reading": "The last reading of the inputs that counted, and its batch.",
    "roots": "By path of a source's directory: its identity and witnesses.",
    "kafka": "By source: the ids of its cluster and topics, a topic that was cut off, and the marks of the partitions.",
    "kafka_ids": "By source of an injector: the ids of its cluster and topics.",
    "kafka_out": "By a stage's directory and output topic: the topic's id, the number of slots, the first batch, and where rows are staged.",
    "outputs": "By a stage's full name and output: for a table its newest batch there, for a directory its first one.",
    "delta": "By source: the table's id, the last checked version, and why the watermark holds for good.",
    "iceberg": "By source: the table's uuid, the first and the last checked snapshot, and why the watermark holds for good.",
    "sink": "The last batch of a file sink whose output is durable.",
    "read": "The extent of each output that was read, as of a committed batch.",
    "watched": "For a checkpoint that a sidecar watches: its query, its declaration, and its newest committed batch.",
    "state": "By a stage's directory: where its state is, the number of ranges, the first batch, and the state's form.",
}
"""Sections of a manifest, with their content. A section is None while it has none.

The pins of a kind of source that has no section here are in a section ``source:KIND``. A manifest
has it only with a pin in it.
"""

_HEADER: Final = frozenset({"format", "version", "run"})

_PINS: Final = "source:"

_FILES: Final = ("reading.json", "roots.json", "sink.json", "read.json", "stages.json")
"""Files of older releases, except ``query.json`` and ``state.json``."""


class Manifest:
    """The manifest of one checkpoint, for a run that has begun or is about to.

    :meth:`change` changes a section in memory, :meth:`save` makes the changes durable. Any thread
    may call every method. ``probe`` is called with the name of each step.
    """

    def __init__(
        self, checkpoint: Location, probe: Callable[[str], None] = lambda _step: None, *, home: Location | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.home: Location = checkpoint if home is None else home
        """Parent of the directory ``lowwater``: the checkpoint itself, except for a sidecar, which
        writes elsewhere."""
        self.run = 0
        """Number of the run that writes, see
        :func:`~lowwater_spark.checkpoint.identity.new_ordinal`; 0 before it has one."""
        self.last_run = 0
        """Number of the run that wrote the version which was read last."""
        self._home = self.home / "lowwater"
        self._folder = self._home / "manifest"
        self._probe = probe
        self._lock = threading.RLock()
        self._noted: dict[str, Any] = {}
        """Changed sections that are not durable yet."""
        self._version = 0
        """Version read or written last; 0: no manifest, at most files of earlier releases."""
        self._content: dict[str, Any] = {}
        self.look()

    def __getitem__(self, section: str) -> Any:
        """Return a section as it was read or changed last; None: it has no content."""
        with self._lock:
            return self._noted[section] if section in self._noted else self._content.get(section)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: a batch in an update's closure goes to tasks, which need no manifest."""
        return type(None), ()

    def look(self) -> None:
        """Read the newest version: until a run has its claim, an older one may still write.

        Raises CheckpointMismatch, and OSError.
        """
        with self._lock:
            if self._is_decided():
                self._version, self._content = self._newest()
            else:
                self._version, self._content = 0, self._read_old()

    def change(self, section: str, value: Any) -> None:
        """Change a section, in memory; ``value`` is JSON.

        The next :meth:`save` makes it durable.
        """
        if section not in SECTIONS and not section.startswith(_PINS):
            msg = f"a manifest has no section {section!r}"
            raise ValueError(msg)
        with self._lock:
            self._noted[section] = value
            if self._content.get(section) == value:
                del self._noted[section]

    def begin(self, run: int) -> None:
        """Begin a run, before its claim. Raises CheckpointMismatch when a newer run has begun."""
        self.take_over()
        self.run = run
        self.look()

    def keep(self, section: str, value: Any) -> None:
        """Change a section durably; when this raises, the section is as before.

        Costs and raises as :meth:`save`.
        """
        with self._lock:
            self.change(section, value)
            try:
                self.save()
            except BaseException:
                # save() has failed, so the change is dropped: whoever reads the section next must
                # not take it for durable.
                self._noted.pop(section, None)
                raise

    def keep_entry(self, section: str, name: str, value: Any) -> None:
        """Change one entry of a section as :meth:`keep` does.

        Entries that other threads change meanwhile stay: one source lists while another is
        confirmed.
        """
        with self._lock:
            self.keep(section, {**(self[section] or {}), name: value})

    def pin(self, kind: str, number: int) -> Any:
        """Return the pin of the source with a number; None: it has none."""
        return (self[_pins_of(kind)] or {}).get(str(number))

    def keep_pin(self, kind: str, number: int, pin: Sequence[Any]) -> None:
        """Store the pin of a source durably."""
        self.keep_entry(_pins_of(kind), str(number), list(pin))

    def attend(self) -> None:
        """Raise FileNotFoundError when the checkpoint is away: missing files then prove nothing."""
        self._folder.stat()

    def take_over(self) -> None:
        """Make the manifest count for this checkpoint, and delete the files of older releases.

        Call it after every check that can refuse the checkpoint: older releases cannot continue the
        checkpoint afterwards. After a crash at any point the next start finds the old files or the
        manifest whole. Costs nothing when it was done before, else eight fsyncs.
        """
        with self._lock:
            if not self._is_decided():
                make_directory(self._folder)
                # If an earlier take-over was killed before it wrote query.json, its versions are in
                # the folder. Their content does not count: an older release may have gone on since,
                # and changed its seven files (query.json, state.json and ``_FILES``), from which
                # ``_content`` comes. The new version only needs a number above theirs.
                self._version = max(self._numbers(), default=0)
                self._create({**self._content, **self._noted})
                self._probe("created")
                write_over(self._home / "query.json", json.dumps({"format": _FORMAT}).encode())
                self._probe("decided")
            self._delete_old()

    def save(self) -> None:
        """Make the changes durable in one new version; do nothing without changes.

        Call it only after :meth:`take_over`. Raises CheckpointMismatch when a newer run has taken
        the checkpoint over. Costs two fsyncs, and three listings of the folder.
        """
        with self._lock:
            if self._noted:
                self._create({**self._content, **self._noted})

    # -- versions ----------------------------------------------------------------------------------

    def _create(self, content: dict[str, Any]) -> None:
        while True:
            number = self._version + 1
            entry = {"format": _FORMAT, "version": number, "run": self.run, **content}
            created = write_once(self._path(number), json.dumps(entry, indent=1).encode())
            # The version counts only if its number is the greatest. For example, this run has read
            # version 5, and another run then wrote 6 to 9 and deleted 6: a new 6 would be ignored.
            if created and max(self._numbers()) == number:
                break
            self._version, theirs = self._newest()
            # Another run has written a newer version: an older run that still goes on, or a second
            # start that was refused. Its changes are kept (``theirs``), as ``content`` from before
            # would undo them; only the sections that this run has changed replace its own.
            content = {**theirs, **self._noted}
        self._version, self._content, self._noted = number, content, {}
        for old in self._numbers():
            if old < number - 1:
                self._path(old).unlink(missing_ok=True)

    def _newest(self) -> tuple[int, dict[str, Any]]:
        """Return number and content of the newest version.

        Raises CheckpointMismatch for a version from which this run may not continue.
        """
        while True:
            number = max(self._numbers(), default=0)
            if number == 0:
                msg = f"{self._folder} is empty, though the checkpoint was begun; restore the checkpoint as a whole"
                raise CheckpointMismatch(msg)
            with contextlib.suppress(FileNotFoundError):  # a newer version was written, and this one deleted
                return number, self._read(self._path(number))

    def _read(self, path: Location) -> dict[str, Any]:
        content = _loaded(path)
        if content.get("format") != _FORMAT:
            raise _other(path, content.get("format"))
        pins = {section for section in content if section.startswith(_PINS)}
        unknown = sorted((content.keys() - pins) ^ _HEADER ^ SECTIONS.keys())
        if unknown:
            msg = f"{path} has other sections than this release knows: {', '.join(unknown)}. Use the release that wrote it, or a newer one."
            raise CheckpointMismatch(msg)
        if self.run and content["run"] > self.run:
            msg = (
                f"a newer run, number {content['run']}, has taken the checkpoint of {self._home.parent} over, and this is number {self.run}: let the newer run "
                "go on, or stop it and start this query again"
            )
            raise CheckpointMismatch(msg)
        self.last_run = content["run"]
        return {section: value for section, value in content.items() if section not in _HEADER}

    def _path(self, number: int) -> Location:
        return self._folder / f"{number}.json"

    def _numbers(self) -> list[int]:
        return numbers_in(self._folder, suffix=".json")

    # -- the seven files of earlier releases -------------------------------------------------------

    def _is_decided(self) -> bool:
        """Return whether the manifest counts, and not the seven files.

        Raises CheckpointMismatch for a checkpoint of a newer release.
        """
        path = self._home / "query.json"
        version = _loaded(path).get("format") if path.exists() else _OLD
        if version not in (_OLD, _FORMAT):
            raise _other(path, version)
        return version == _FORMAT

    def _read_old(self) -> dict[str, Any]:
        if not isinstance(self.home, Path) or self.home != self.checkpoint:
            # ``home`` is no Path for a checkpoint on HDFS or S3, and another directory than the
            # checkpoint for a sidecar. The releases with the seven files had neither, so there is
            # nothing to read.
            return dict.fromkeys(SECTIONS)
        query, stages, reading, roots, sink, read = (
            self._old(f"lowwater/{name}.json") for name in ("query", "stages", "reading", "roots", "sink", "read")
        )
        return {
            **dict.fromkeys(SECTIONS),  # first, so that a version has its sections in this order
            "query": query,
            "stages": stages and stages["stages"],
            "reading": reading,
            "roots": roots and roots["roots"],
            "sink": sink,
            "read": read,
            "state": self._old_states(),
        }

    def _old_states(self) -> dict[str, Any] | None:
        """Return the content of each stage's ``state.json``, which had no format."""
        assert isinstance(self.checkpoint, Path)
        stages = self.checkpoint / "lowwater" / "stages"
        homes = [Path(), *(path.relative_to(self.checkpoint) for path in stages.glob("*"))]
        contents = {home.as_posix(): self._old((home / "lowwater/state.json").as_posix()) for home in homes}
        return {home: {"made": None, **entry} for home, entry in contents.items() if entry is not None} or None

    def _old(self, name: str) -> dict[str, Any] | None:
        """Return the content of an old file, by its path in the checkpoint; None: no such file."""
        path = self.checkpoint / name
        try:
            content = _loaded(path)
        except FileNotFoundError:
            return None
        # stages.json and state.json had no field "format": without one a file is of format 1.
        if content.pop("format", _OLD) != _OLD:
            raise _other(path, "another")
        return content

    def _delete_old(self) -> None:
        if not isinstance(self.checkpoint, Path):
            return
        for path in (self._home / name for name in _FILES):
            if path.exists():
                path.unlink()
                self._probe(f"deleted {path.name}")
                sync_directory(path.parent)


def _pins_of(kind: str) -> str:
    return kind if kind in SECTIONS else _PINS + kind


def _loaded(path: Location) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        msg = f"{path} is no JSON; restore the checkpoint as a whole"
        raise CheckpointMismatch(msg) from error
    if not isinstance(content, dict):
        msg = f"{path} is no JSON object; restore the checkpoint as a whole"
        raise CheckpointMismatch(msg)
    return content


def _other(path: Location, version: object) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{path} is of format {version}; this release reads {_OLD} and {_FORMAT}. Use the release that wrote it, or a newer one."
    )
