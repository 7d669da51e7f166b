"""Folders and files that only the user who runs this process may read: journals, states of agents.

What is there already keeps its rights: an operator may have given a backup the right to read it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, TextIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PRIVATE_FILE", "make_private_file", "make_private_folder", "open_private"]

PRIVATE_FILE: Final = 0o600
"""The rights of a new file: its user reads and writes it."""

PRIVATE_FOLDER: Final = 0o700
"""The rights of a new folder."""


def make_private_folder(folder: Path) -> None:
    """Make a folder for this user alone; those above it that are missing get the usual rights.

    Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Make an empty file for this user alone, if there is none. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))


def open_private(path: Path, mode: Literal["w", "a"]) -> TextIO:
    """Open a text file to be written; a new one is for this user alone.

    ``mode`` is "w" or "a". Raises OSError.
    """
    make_private_file(path)
    return path.open(mode, encoding="utf-8")
