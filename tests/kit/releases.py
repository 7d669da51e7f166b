"""Other releases of the authority, as far as a journal knows them: by the format that they write and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from lowwater_authority.journal import frames


@contextmanager
def release(reads: int, writes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (("FORMAT", reads), ("USUAL", writes)):
            patched.setattr(frames, name, value)
        yield


def older_release() -> AbstractContextManager[None]:
    return release(frames.USUAL, frames.USUAL)


def newer_release() -> AbstractContextManager[None]:
    return release(frames.FORMAT + 1, frames.FORMAT + 1)
