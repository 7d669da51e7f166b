"""Other releases of the authority, as far as a journal knows them: by the format that they write and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lowwater_authority.journal import frames


@contextmanager
def older_release() -> Iterator[None]:
    """Reads no format but the usual one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(frames, "FORMAT", frames.USUAL)
        yield


@contextmanager
def newer_release() -> Iterator[None]:
    """Writes a format that is yet to come."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(frames, "FORMAT", frames.FORMAT + 1)
        patched.setattr(frames, "USUAL", frames.FORMAT)
        yield
