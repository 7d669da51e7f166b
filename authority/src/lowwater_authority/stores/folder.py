"""The folder of ``lowwater serve --data``: an embedded journal, for one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater.core.private import make_private_folder
from lowwater_authority.journal.sqlite import SqliteJournal, unusable
from lowwater_authority.stores.store import Store

if TYPE_CHECKING:
    from pathlib import Path


class Folder(Store):
    """The journal in a folder, which is made for this user alone if it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path / "journal.sqlite"

    def __str__(self) -> str:
        return str(self._path)

    def journal(self, *, server_token: str = "", must_exist: bool = False, patience: float = 0.0) -> SqliteJournal:
        """See Store. Nobody else has the file, so nobody puts anything back."""
        del patience
        try:
            make_private_folder(self._path)
        except OSError as error:
            raise unusable(self._path, error, "name a folder on a writable local disk") from error
        return SqliteJournal(self._file, server_token=server_token, must_exist=must_exist)

    async def exists(self) -> bool:
        """See Store."""
        files = (self._file, self._file.with_name("journal.sqlite-wal"))
        return any(file.exists() and file.stat().st_size > 0 for file in files)

    async def served_by(self) -> str:
        """See Store. The lock on the file keeps a second process out."""
        return ""

    def removal(self) -> str:
        """See Store."""
        return f"delete {self._file} with its -wal, -shm and .lock"
