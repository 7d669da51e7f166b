"""Files and folders that only the user of this process may read: journals, states of agents.

Existing ones keep their rights: an operator may have allowed a backup to read them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, TextIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PRIVATE_FILE", "make_private_file", "make_private_folder", "open_private"]

PRIVATE_FILE: Final = 0o600
"""Rights of a new file: read and write for its user only."""

PRIVATE_FOLDER: Final = 0o700
"""Rights of a new folder."""


def make_private_folder(folder: Path) -> None:
    """Make a folder for this user alone; its parents get the usual rights. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Make an empty file for this user alone, if there is none. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))


def open_private(path: Path, mode: Literal["w", "a"]) -> TextIO:
    """Open a text file to write ("w") or append ("a"); a new one is private. Raises OSError."""
    make_private_file(path)
    return path.open(mode, encoding="utf-8")
