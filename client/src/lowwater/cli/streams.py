"""The standard streams of a command."""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["open_streams"]

_STDERR: Final = 2
"""The greatest number of a standard stream."""


def open_streams() -> None:
    """Open standard streams that the caller has closed on the null device.

    ``lowwater complete ... >&-`` closes one. The next file or socket would get its number, and the
    output of a library would be written into a journal. Python has None in place of the stream, so
    the first print would end the command with the wrong exit code.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)  # noqa: FBT003 - its only form
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the process ends
