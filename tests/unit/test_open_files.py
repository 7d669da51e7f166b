"""The watch over open files: one line when they run out, one when that is over."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from lowwater._core.events import ATTRIBUTE
from lowwater_authority.ops.open_files import FileWatch, open_share


async def test_files_that_run_out_are_one_line_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shares = [0.1, 0.85, 0.9, 1.0, 0.85, 0.95, 0.79, 0.9]
    watch = FileWatch(iter(shares).__next__)
    for _ in shares:
        await watch.look()
    told = [(getattr(each, ATTRIBUTE)["event"], getattr(each, ATTRIBUTE)["share"]) for each in caplog.records]
    assert told == [("files_run_out", 0.9), ("files_free", 0.79), ("files_run_out", 0.9)]


def test_a_look_that_finds_no_file_for_itself_says_that_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 3 / limit <= open_share() < 1
    error = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(os, "listdir", lambda _: (_ for _ in ()).throw(error))
    assert open_share() == 1.0
