"""Guarded writes into directories of a local or NFS file system.

A file system cannot compare before it writes. But of those who link a file to a name that is not
taken, one succeeds. So a guard is a log of numbered entries, made like that, each complete and
synced before it has its name:

    FOLDER/guard/NAME/00000000000000000007      {"rows": {...}, "directory": "..."}

Who writes the next entry has judged by the last one, and it is the next one only if nobody came
between. So a raise, and each batch, has one place in one order. The files of a batch stand in a
directory of their own, ``FOLDER/rows/N-TOKEN-UNIQUE``, which nobody else ever writes into; the
entry *names* it. Readers follow the names (:meth:`FileGuard.directories`), and never list.

A rename would not do: a directory that is renamed onto an empty one replaces it, without a word.

Needs the extra ``lowwater-pipeline[spark]``, whose durable files it uses, and no Spark.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from lowwater_pipeline.guard.claim import Claim, slot_bounds, slots_between
from lowwater_pipeline.guard.errors import InDoubt, Unfit
from lowwater_pipeline.guard.row import MAX_BATCH, Row, check_steps, damaged, judge, raised
from lowwater_spark.checkpoint.durable import make_directory, sync_directory, sync_tree, write_once

__all__ = ["FileGuard", "FileWriter"]

_FORMAT: Final = 1
_DIGITS: Final = 20
_TRIES: Final = 1_000
"""How often an entry is made that others come before."""


class _Entry(NamedTuple):
    """The newest entry of the log."""

    number: int
    """-1: there is none."""
    rows: Mapping[int, Row]


class FileGuard:
    """One guard in one folder. Several may stand in one folder, and know nothing of each other.

    ``folder`` is an absolute directory on a local or NFS file system. ``name`` and ``slots`` as for
    :class:`lowwater_pipeline.guard.postgres.PostgresGuard`; the name is that of a directory. An
    entry has the rows of all slots, so keep them few.
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
        self._known = -1

    @property
    def log(self) -> Path:
        """Where the entries stand."""
        return self.folder / "guard" / self.name

    def raise_(self, claim: Claim, *, bounds: Iterable[bytes] = (b"", b""), begin: int = 0) -> FileWriter:
        """Raise a claim that the authority has acknowledged, and return its writer.

        From now on no older claim writes, and all that one wrote is there to be read.

        As :meth:`lowwater_pipeline.guard.postgres.PostgresGuard.raise_`, but there is nobody to
        wait for. Costs an entry, with three fsyncs. Raises OSError.
        """
        slots = slots_between(bounds, self.slots)
        if type(begin) is not int or not 0 <= begin <= MAX_BATCH:
            msg = f"begin={begin!r}: the number of the first batch is a whole number from 0 on"
            raise Unfit(msg)
        make_directory(self.log)

        def change(rows: Mapping[int, Row]) -> dict[int, Row]:
            return {slot: raised(rows.get(slot), claim, self._life(), begin, self._where(slot)) for slot in slots}

        made, _ = self._append(change, "")
        return FileWriter(self, claim, slots, {slot: made[slot] for slot in slots})

    def write(self, claim: Claim, steps: Mapping[int, int], digest: str, fill: Callable[[Path], object]) -> bool:
        """Do what :meth:`FileWriter.write` says."""

        def change(rows: Mapping[int, Row]) -> dict[int, Row]:
            found = {slot: rows.get(slot) for slot in steps}
            if not judge(found, claim, self._life(), steps, digest, self.name):
                return {}
            return {
                slot: replace(row, batch=steps[slot], digest=digest) for slot, row in found.items() if row is not None
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
            # An entry that could not be made durable may have its name all the same.
            if not self._names(directory.name):
                shutil.rmtree(directory, ignore_errors=True)
            raise
        # Over NFS a link may have been made though it is said to have failed.
        if not named and not (named := self._names(directory.name)):
            shutil.rmtree(directory, ignore_errors=True)
        return named

    def directories(self) -> list[Path]:
        """Return the directories of all batches, in order: what readers read, and nothing else.

        Costs the reading of all entries.
        """
        found = [self._read(number)[1] for number in range(self._newest().number + 1)]
        return [self.folder / "rows" / name for name in found if name]

    def rows(self) -> dict[int, Row | None]:
        """Return what stands in each slot now. Raises Damaged, OSError."""
        rows = self._newest().rows
        return {slot: rows.get(slot) for slot in range(self.slots)}

    # -- the log -----------------------------------------------------------------------------------

    def _append(
        self, change: Callable[[Mapping[int, Row]], dict[int, Row]], directory: str
    ) -> tuple[Mapping[int, Row], bool]:
        """Add an entry with what is judged by the newest one; no entry when that changes nothing.

        Return the rows, and whether there is one. Durable when it returns.
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
                "rows": {str(slot): _said(row) for slot, row in sorted(rows.items())},
            }
            if write_once(self._path(newest.number + 1), json.dumps(entry).encode()):
                self._known = newest.number + 1
                return rows, True
        msg = f"the guard {self.name}: others have written before, {_TRIES} times. Make the same write again."
        raise InDoubt(msg)

    def _settle(self) -> None:
        """Make the names of the entries durable: who linked the last one may have been killed before it did."""
        sync_directory(self.log)

    def _newest(self) -> _Entry:
        number = self._known
        while self._path(number + 1).exists():
            number += 1
        if self._known < 0:
            number = self._whole(number)
        self._known = number
        return _Entry(-1, {}) if number < 0 else _Entry(number, self._read(number)[0])

    def _whole(self, number: int) -> int:
        """Return the newest entry, given the last one of those that follow each other from the first on. Raises Damaged when there are others: one before them is gone."""
        there = [int(path.name) for path in self.log.iterdir() if path.name.isdigit()] if self.log.exists() else []
        # Others may have added some meanwhile.
        while self._path(number + 1).exists():
            number += 1
        if there and max(there) > number:
            msg = f"the entry {number + 1} is not there, and {max(there)} is: somebody has removed or not restored a part of the log"
            raise damaged(f"the guard {self.name} in {self.log}", msg)
        return number

    def _read(self, number: int) -> tuple[dict[int, Row], str]:
        """Return the rows of an entry, and the directory that it names. Raises Damaged."""
        path = self._path(number)
        try:
            said: dict[str, Any] = json.loads(path.read_bytes())
            known, slots, directory = said["format"], said["slots"], said["directory"]
            rows = {int(slot): _row(values) for slot, values in said["rows"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(f"{path} of the guard {self.name}", repr(error)) from error
        if known != _FORMAT:
            raise damaged(
                f"{path} of the guard {self.name}", f"it is of format {known}, and this release reads {_FORMAT}"
            )
        if slots != self.slots:
            raise damaged(f"the guard {self.name}", f"it was made with {slots} slots and is opened with {self.slots}")
        return rows, directory

    def _names(self, directory: str) -> bool:
        """Return whether any of the newest entries names a directory; true when that cannot be known."""
        try:
            return any(self._read(number)[1] == directory for number in range(self._newest().number + 1))
        except Exception:  # noqa: BLE001 - what cannot be known must stay
            return True

    def _path(self, number: int) -> Path:
        return self.log / f"{number:0{_DIGITS}}"

    def _life(self) -> str:
        """Return the store's life: a folder that was copied is another one, while the first one is there. One that was removed may leave its inode to a copy that is put back."""
        return f"inode {self.log.stat().st_ino}" if self.log.exists() else ""

    def _where(self, slot: int) -> str:
        return f"slot {slot} of the guard {self.name}"


class FileWriter:
    """The owner of some slots, from its raise until the next one: what :meth:`FileGuard.raise_` returns."""

    def __init__(self, guard: FileGuard, claim: Claim, slots: range, rows: Mapping[int, Row]) -> None:
        self.guard = guard
        self.claim = claim
        self.slots = slots
        self.found = dict(rows)
        """The row of each slot as the raise has left it: up to which batch the folder is written.
        """

    def write(self, batch: int | Mapping[int, int], digest: str, fill: Callable[[Path], object]) -> bool:
        """Write a batch once; False when it stands there already.

        Durable when it returns, by syncing.

        ``fill(directory)`` puts the batch's files into a directory of its own, and nothing else.
        What it raises is raised, and the directory goes; one that a kill leaves is named by no
        entry. ``batch`` and ``digest`` as for
        :meth:`lowwater_pipeline.guard.postgres.PostgresWriter.write`.

        Raises Fenced when a newer claim was raised, also while the files were written, another
        GuardError, OSError, and lowwater_spark's NotDurable. After that one the entry may be there
        and not on the disk, and a repeat that returns False proves nothing: look at the disk, and
        begin a new guard.
        """
        steps = dict.fromkeys(self.slots, batch) if isinstance(batch, int) else dict(batch)
        check_steps(self.slots, steps, digest, self.guard.name)
        return self.guard.write(self.claim, steps, digest, fill)


def _said(row: Row) -> dict[str, Any]:
    """Return a row as an entry has it.

    Numbers of 64 bits are texts: who reads JSON into doubles would make two of them one.
    """
    return {name: str(value) if type(value) is int else value for name, value in asdict(row).items()}


def _row(said: Mapping[str, str]) -> Row:
    return Row(
        said["server_token"],
        said["computation"],
        said["identity"],
        int(said["incarnation"]),
        int(said["token"]),
        said["nonce"],
        int(said["configuration"]),
        said["life"],
        int(said["batch"]),
        said["digest"],
    )
