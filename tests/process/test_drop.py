"""A job is dropped: by command and by the clients, on one authority and on shards, and what everybody sees of it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
import lowwater.aio
from lowwater import errors
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.browsing import Viewer
from tests.process.serving import Serving

NOON = 1_767_268_800_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """An authority with its status page."""
    with Serving(tmp_path / "data", page="127.0.0.1:0") as one:
        yield one


def reported(lw: lowwater.Client, name: str, hour: int) -> lowwater.Lease:
    lw.register(name)
    lease = lw.worker(name, name="exec-7").claim()
    lease.advance(None, oldest=None, frontier=NOON + hour * HOUR)
    lease.flush(30)
    return lease


def series(server: Serving, name: str) -> list[str]:
    with urllib.request.urlopen(server.metrics, timeout=30) as answer:
        return [line for line in answer.read().decode().splitlines() if f'computation="{name}"' in line]


def test_all_of_a_dropped_job_ends_and_a_new_incarnation_begins_above(server: Serving, lw: lowwater.Client) -> None:
    lease, neighbour = reported(lw, "old", 2), reported(lw, "beside", 1)
    with lowwater.connect(server.address) as reader, Viewer(server.page) as viewer:
        changes = reader.watch("old")
        assert next(changes).low.micros == NOON + 2 * HOUR
        viewer.until(lambda page: page.low("old") == NOON + 2 * HOUR)
        assert series(server, "old")

        with pytest.raises(errors.OwnedRanges, match=r"exec-7 owns key ranges of old, last heard of \d+ m?s ago"):
            lw.drop("old")
        assert lw.drop("old", force=True) == 1

        assert next(changes).dropped
        viewer.until(lambda page: "old" not in page.shown)
        assert not series(server, "old")
        assert [*lw.get()] == [*lw.topology().computations] == ["beside"]
        with pytest.raises(errors.StaleSequencer, match="its computation was dropped"):
            eventually(lambda: lease.advance(None, oldest=None, frontier=NOON + 5 * HOUR))
        with pytest.raises(errors.UnknownComputation, match="old was dropped"):
            lw.worker("old").claim()
        neighbour.advance(None, oldest=None, frontier=NOON + 3 * HOUR)
        neighbour.flush(30)

        reported(lw, "old", 1)
        first = next(view for view in changes if view.low.micros == NOON + HOUR)
        assert first.incarnation == 2
        viewer.until(lambda page: page.low("old") == NOON + HOUR)
    server.kill()
    server.start()
    eventually(lambda: lw.get("old")["old"].low.micros == NOON + HOUR)
    assert lw.get("old")["old"].incarnation == 2
