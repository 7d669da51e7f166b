"""Guarded writes into directories of a local or NFS file system.

A file system cannot compare before it writes. But of several writers that link a file to a free
name, only one succeeds. So a guard is a log of numbered entries, made in that way. Each entry is
complete and synced before it has its name:

    FOLDER/guard/NAME/00000000000000000007      {"rows": {...}, "directory": "..."}

A writer judges by the last entry, and its own entry is the next one only if no other came between.
So every raise and every batch has one place in one order. A batch's files are in a directory of
their own, ``FOLDER/rows/N-TOKEN-UNIQUE``, into which no other batch writes; the entry *names* it.
Readers follow the names (:meth:`FileGuard.directories`), and never list.

A rename would not do: a directory renamed onto an empty one replaces it without an error.

Needs the extra ``lowwater-pipeline[spark]``, for its durable files, and no Spark.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from lowwater_pipeline.guard.claim import Claim, slot_bounds, slots_between
from lowwater_pipeline.guard.errors import InDoubt, Unfit
from lowwater_pipeline.guard.row import Row, check_begin, check_steps, damaged, judge, raised
from lowwater_spark.checkpoint.durable import make_directory, sync_directory, sync_tree, write_once

__all__ = ["FileGuard", "FileWriter"]

_FORMAT: Final = 1
_DIGITS: Final = 20
_TRIES: Final = 1_000
"""Greatest number of attempts to append an entry when other writers come first."""


class _Entry(NamedTuple):
    """The newest entry of the log."""

    number: int
    """Number of the entry; -1 when the log is empty."""
    rows: Mapping[int, Row]


class FileGuard:
    """One guard in one folder. Several guards of one folder are independent.

    ``folder`` is an absolute directory on a local or NFS file system. ``name`` and ``slots`` as for
    :class:`lowwater_pipeline.guard.postgres.PostgresGuard`; the name becomes a directory. An entry
    has the rows of all slots, so use few.
    """

    def __init__(self, folder: str | Path, name: str, *, slots: int = 1) -> None:
        slot_bounds(slots)
        self.folder = Path(folder)
        if not self.folder.is_absolute():
            msg = f"{folder} is not an absolute path of a local directory"
            raise Unfit(msg)
        if not name or name.startswith(".") or {"/", "\0"} & set(name):
            msg = f"name={name!r}: it is the name of a directory, without a dot before it"
            raise Unfit(msg)
        self.name = name
        self.slots = slots
        self.probe: Callable[[str], None] = lambda point: None
        """Called at the named points of a write; for tests."""
        self._last_seen = -1

    @property
    def log(self) -> Path:
        """Directory of the entries."""
        return self.folder / "guard" / self.name

    def raise_(self, claim: Claim, *, bounds: Iterable[bytes] = (b"", b""), begin: int = 0) -> FileWriter:
        """Raise a claim that the authority has acknowledged, and return its writer.

        As :meth:`lowwater_pipeline.guard.postgres.PostgresGuard.raise_`, but without a lock to wait
        for. Costs an entry, with three fsyncs. Raises OSError.
        """
        slots = slots_between(bounds, self.slots)
        check_begin(begin)
        make_directory(self.log)

        def change(rows: Mapping[int, Row]) -> dict[int, Row]:
            return {slot: raised(rows.get(slot), claim, self._life(), begin, self._where(slot)) for slot in slots}

        new_rows, _ = self._append(change, "")
        return FileWriter(self, claim, slots, {slot: new_rows[slot] for slot in slots})

    def write(self, claim: Claim, steps: Mapping[int, int], digest: str, fill: Callable[[Path], object]) -> bool:
        """See :meth:`FileWriter.write`."""

        def change(rows: Mapping[int, Row]) -> dict[int, Row]:
            current = {slot: rows.get(slot) for slot in steps}
            if not judge(current, claim, self._life(), steps, digest, self.name):
                return {}
            return {
                slot: replace(row, batch=steps[slot], digest=digest) for slot, row in current.items() if row is not None
            }

        if not change(self._newest().rows):
            self._settle()
            return False
        directory = self.folder / "rows" / f"{max(steps.values())}-{claim.token}-{secrets.token_hex(8)}"
        make_directory(directory)
        named = False
        try:
            fill(directory)
            sync_tree(directory)
            sync_directory(directory.parent)
            self.probe("filled")
            _, named = self._append(change, directory.name)
        except BaseException:
            # _append() may have failed after the entry got its name. A directory that an entry
            # names must stay: readers would miss its rows.
            if not self._names(directory.name):
                shutil.rmtree(directory, ignore_errors=True)
            raise
        # Over NFS the entry may exist although link() reported a failure: then the batch is
        # written.
        if not named and not (named := self._names(directory.name)):
            shutil.rmtree(directory, ignore_errors=True)
        return named

    def directories(self) -> list[Path]:
        """Return the batches' directories in order: readers must read only these. O(entries)."""
        names = [self._read(number)[1] for number in range(self._newest().number + 1)]
        return [self.folder / "rows" / name for name in names if name]

    def rows(self) -> dict[int, Row | None]:
        """Return the row of each slot now. Raises Damaged, OSError."""
        rows = self._newest().rows
        return {slot: rows.get(slot) for slot in range(self.slots)}

    # -- the log -----------------------------------------------------------------------------------

    def _append(
        self, change: Callable[[Mapping[int, Row]], dict[int, Row]], directory: str
    ) -> tuple[Mapping[int, Row], bool]:
        """Append an entry with what ``change`` makes of the newest one's rows, if it changes any.

        Returns the rows, and whether an entry was appended. Durable when it returns.
        """
        for _ in range(_TRIES):
            newest = self._newest()
            changed = change(newest.rows)
            rows = {**newest.rows, **changed}
            if rows == newest.rows:
                self._settle()
                return rows, False
            entry = {
                "format": _FORMAT,
                "slots": self.slots,
                "directory": directory,
                "rows": {str(slot): row.texts() for slot, row in sorted(rows.items())},
            }
            self.probe("judged")
            if write_once(self._path(newest.number + 1), json.dumps(entry).encode()):
                self._last_seen = newest.number + 1
                return rows, True
        msg = f"the guard {self.name}: others have written before, {_TRIES} times. Make the same write again."
        raise InDoubt(msg)

    def _settle(self) -> None:
        """Sync the names of the entries: the writer of the last one may have died before it did."""
        sync_directory(self.log)

    def _newest(self) -> _Entry:
        number = self._last_seen
        while self._path(number + 1).exists():
            number += 1
        if self._last_seen < 0:
            number = self._whole(number)
        self._last_seen = number
        return _Entry(-1, {}) if number < 0 else _Entry(number, self._read(number)[0])

    def _whole(self, number: int) -> int:
        """Return the newest entry's number, given the last of the entries without a gap.

        Raises Damaged when there are entries behind a gap.
        """
        numbers = [int(path.name) for path in self.log.iterdir() if path.name.isdigit()] if self.log.exists() else []
        # Other writers may have appended entries meanwhile.
        while self._path(number + 1).exists():
            number += 1
        if numbers and max(numbers) > number:
            msg = f"the entry {number + 1} is not there, and {max(numbers)} is: a part of the log was removed, or not restored"
            raise damaged(f"the guard {self.name} in {self.log}", msg)
        return number

    def _read(self, number: int) -> tuple[dict[int, Row], str]:
        """Return an entry's rows, and the directory that it names. Raises Damaged."""
        path = self._path(number)
        try:
            entry: dict[str, Any] = json.loads(path.read_bytes())
            format_, slots, directory = entry["format"], entry["slots"], entry["directory"]
            rows = {int(slot): Row.of(values) for slot, values in entry["rows"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(f"{path} of the guard {self.name}", repr(error)) from error
        if format_ != _FORMAT:
            raise damaged(
                f"{path} of the guard {self.name}", f"it is of format {format_}, and this release reads {_FORMAT}"
            )
        if slots != self.slots:
            raise damaged(f"the guard {self.name}", f"it was made with {slots} slots and is opened with {self.slots}")
        return rows, directory

    def _names(self, directory: str) -> bool:
        """Return True if an entry names a directory, or if that cannot be known."""
        try:
            return any(self._read(number)[1] == directory for number in range(self._newest().number + 1))
        except Exception:  # noqa: BLE001 - a directory that may be named must stay
            return True

    def _path(self, number: int) -> Path:
        return self.log / f"{number:0{_DIGITS}}"

    def _life(self) -> str:
        """Return the store's life, the log directory's inode: a copied folder has another one.

        After the folder was removed, a copy put back may get the same inode.
        """
        return f"inode {self.log.stat().st_ino}" if self.log.exists() else ""

    def _where(self, slot: int) -> str:
        return f"slot {slot} of the guard {self.name}"


class FileWriter:
    """The owner of some slots until the next raise; :meth:`FileGuard.raise_` returns it."""

    def __init__(self, guard: FileGuard, claim: Claim, slots: range, rows: Mapping[int, Row]) -> None:
        self.guard = guard
        self.claim = claim
        self.slots = slots
        self.found = dict(rows)
        """Row of each slot after the raise; its batch is the last one that the folder has."""

    def write(self, batch: int | Mapping[int, int], digest: str, fill: Callable[[Path], object]) -> bool:
        """Write a batch once; return False if it is there already. Durable when it returns.

        ``fill(directory)`` puts the batch's files into a directory of its own. If it raises, the
        directory is removed; a killed writer leaves one that no entry names. ``batch`` and
        ``digest`` as for :meth:`lowwater_pipeline.guard.postgres.PostgresWriter.write`.

        Raises Fenced when a newer claim was raised, also while the files were written; another
        GuardError, OSError, and lowwater_spark's NotDurable. After NotDurable the entry may exist
        without being on the disk, and a repeat that returns False proves nothing: check the disk,
        and begin a new guard.
        """
        steps = check_steps(self.slots, batch, digest, self.guard.name)
        return self.guard.write(self.claim, steps, digest, fill)
