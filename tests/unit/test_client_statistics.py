"""Statistics of a client are of one moment."""

from __future__ import annotations

from concurrent import futures

import pytest

import lowwater


def test_statistics_are_read_while_nobody_changes_what_they_are_of() -> None:
    """A scrape may come at any time, also while an answer is taken in."""
    with lowwater.connect("localhost:1") as lw, futures.ThreadPoolExecutor(1) as pool:
        with lw._runtime().watcher.changed:
            asked = pool.submit(lw.statistics)
            with pytest.raises(futures.TimeoutError):
                asked.result(0.5)
        assert asked.result(30).watcher is not None
