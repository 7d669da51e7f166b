"""Files that survive a crash of the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from lowwater.core.private import make_private_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["sync_folder", "write_durably"]


def write_durably(path: Path, text: str, *, private: bool = False) -> None:
    """Write or replace a file, durably and never in part. Raises OSError.

    ``private``: only this user may read it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if private:
            make_private_file(aside)
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
